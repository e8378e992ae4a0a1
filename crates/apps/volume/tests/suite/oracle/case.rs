//! [`Case`]: one volume with random operations and power cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::BlockDevice;
use mem::{Iova, SharedRegion};
use rng::Rng;
use time::Nanos;
use volume::{
    Error, FormatOptions, FsckOptions, Ino, InodeKind, InodePermissions, Mount, Name, OpResult,
    Options, Owner, RequestBuffer, Time, Volume, VolumeCompletion, VolumeOp, VolumeRequest, format,
    fsck,
};

use super::harness::{DeviceComponent, Harness, MountComponent};
use super::mix::{Mix, Seen};
use super::model::{Model, Names, Versions};

const REQUESTS: usize = 8;
const BYTES: usize = 24 << 10;

#[derive(Clone, Debug)]
struct InFlightOp {
    op: VolumeOp,
    /// The file that no other operation changes meanwhile.
    file: Option<Ino>,
    /// For a sync: the state of names and the versions of files that it makes durable.
    names: usize,
    versions: BTreeMap<Ino, usize>,
    /// Files with changes in flight when it was submitted.
    changing: BTreeSet<Ino>,
}

pub(crate) struct Case<B: Harness> {
    harness: B,
    rng: Rng,
    volume: Option<Box<Volume<B::Device>>>,
    region: Option<(Arc<SharedRegion>, Iova)>,
    in_flight: Vec<Option<InFlightOp>>,
    model: Model,
    open: BTreeSet<Ino>,
    options: Options,
    sector: usize,
    mix: Mix,
    seen: Seen,
    /// Contents found by a read-only mount.
    before: Option<(Names, BTreeMap<Ino, Vec<u8>>)>,
    stamp: u64,
}

impl<B: Harness> Case<B> {
    pub(crate) fn new(seed: u64, mut harness: B, mix: Mix) -> Case<B> {
        let mut rng = Rng::new(seed);
        let mut device = harness.attach();
        let sector = device.limits().sector_bytes as usize;
        // Without more journal blocks, a journal with sectors of 4096 bytes holds data of four
        // blocks only.
        let is_large = device.limits().bytes() >= 400 << 12;
        let journal_blocks = (mix.is_small() && is_large && rng.chance(0.5)).then_some(64);
        let uuid = seed.into();
        let options = FormatOptions { uuid, journal_blocks, ..FormatOptions::default() };
        format(&mut device, &options, |d| harness.step(&mut DeviceComponent(d))).unwrap();
        let options = Options {
            owner: Owner { boot: 1, process: 1 },
            cache_pages: 16 + rng.below(100) as u32,
            dirty_expire: Nanos::from_micros(300 + rng.below(20_000)),
            barrier_delay: mix.barrier_delay(seed),
            discard: rng.chance(0.7),
            ..Options::default()
        };
        let mut case = Case {
            harness,
            rng,
            volume: None,
            region: None,
            in_flight: vec![None; REQUESTS],
            model: Model::new(),
            open: BTreeSet::new(),
            options,
            sector,
            mix,
            before: None,
            seen: Seen::default(),
            stamp: 0,
        };
        case.mount(device);
        case.check();
        case
    }

    /// Mounts the volume, possibly after power cuts during mounts.
    fn mount(&mut self, mut device: B::Device) {
        loop {
            let report = fsck(&mut device, FsckOptions::default(), |d| {
                self.harness.step(&mut DeviceComponent(d))
            });
            let report = report.unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            if self.mix.is_small() && self.rng.chance(0.4) {
                device = self.check_read_only(device);
            }
            let mut opening = Mount::new(device, self.options).unwrap();
            let cut_after = if self.rng.chance(0.3) { self.rng.below(60) } else { u64::MAX };
            let mut steps = 0;
            let store = loop {
                let mut ahead = MountComponent { mount: &mut opening, ready: None };
                self.harness.step(&mut ahead);
                if let Some(store) = ahead.ready {
                    break Some(store);
                }
                steps += 1;
                assert!(steps < 1_000_000, "the mount does not complete");
                if steps >= cut_after {
                    break None;
                }
            };
            if let Some(store) = store {
                self.seen.recovered += store.stats().recovered_blocks;
                store.check_invariants().unwrap();
                let region = store.memory().allocate_registered(REQUESTS * BYTES).unwrap();
                self.region = Some(region);
                self.volume = Some(store);
                return;
            }
            self.seen.cuts += 1;
            let there = take_device(opening);
            self.harness.cut(there);
            device = self.harness.attach();
        }
    }

    /// Mounts the volume read-only: the contents must equal those before a power cut during a
    /// mount.
    fn check_read_only(&mut self, device: B::Device) -> B::Device {
        let options = Options { read_only: true, cache_pages: 16, ..self.options };
        let mut opening = Mount::new(device, options).unwrap();
        let store = loop {
            let mut ahead = MountComponent { mount: &mut opening, ready: None };
            self.harness.step(&mut ahead);
            if let Some(store) = ahead.ready {
                break store;
            }
        };
        store.check_invariants().unwrap();
        self.region = Some(store.memory().allocate_registered(REQUESTS * BYTES).unwrap());
        self.volume = Some(store);
        let found = self.all();
        assert!(
            self.before.as_ref().is_none_or(|b| *b == found),
            "a power cut during a mount changed the contents"
        );
        self.before = Some(found);
        self.volume.take().unwrap().into_device()
    }

    fn step(&mut self) {
        let store = self.volume.as_mut().unwrap();
        self.harness.step(store);
        store.check_invariants().unwrap();
        while let Some(done) = self.volume.as_mut().unwrap().reap() {
            self.end(done);
        }
        let durable = self.volume().durable_barrier();
        self.model.durable_barrier(durable);
    }

    fn volume(&mut self) -> &mut Volume<B::Device> {
        self.volume.as_mut().unwrap()
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.below(of.len() as u64) as usize].clone())
    }

    /// Returns a file with a name, or an open one without, that has no operation in flight.
    fn file(&mut self) -> Option<Ino> {
        let busy: Vec<Ino> = self.in_flight.iter().flatten().filter_map(|f| f.file).collect();
        let named =
            self.model.now().values().filter(|(_, k)| *k == InodeKind::File).map(|(i, _)| *i);
        let all: BTreeSet<Ino> = named.chain(self.open.iter().copied()).collect();
        let idle: Vec<Ino> = all.into_iter().filter(|i| !busy.contains(i)).collect();
        self.pick(&idle)
    }

    fn directory(&mut self) -> Ino {
        let kinds = self.model.now().values().filter(|(_, k)| *k == InodeKind::Directory);
        let dirs: Vec<Ino> = kinds.map(|(i, _)| *i).chain([Ino::ROOT]).collect();
        self.pick(&dirs).unwrap()
    }

    fn name(&mut self) -> Name {
        let long = if self.rng.chance(0.05) { "x".repeat(200) } else { String::new() };
        Name::new(format!("{}{long}", (b'a' + self.rng.below(6) as u8) as char)).unwrap()
    }

    fn data(&mut self, slot: usize, len: usize) -> RequestBuffer {
        self.stamp += 1;
        let bytes = crate::common::pattern(self.stamp, len);
        let (region, at) = self.region.as_ref().unwrap();
        let odd = if self.rng.chance(0.3) { 1 } else { 0 };
        region.write(slot * BYTES + odd, &bytes);
        RequestBuffer { iova: at.offset((slot * BYTES + odd) as u64), len: len as u32 }
    }

    fn bytes_of(&self, data: RequestBuffer) -> Vec<u8> {
        let (region, at) = self.region.as_ref().unwrap();
        let mut bytes = vec![0; data.len as usize];
        region.read((data.iova.0 - at.0) as usize, &mut bytes);
        bytes
    }

    fn submit(&mut self) {
        let Some(slot) = self.in_flight.iter().position(Option::is_none) else { return };
        let kind = match self.mix {
            // More writes, appends and removals; the rest is unchanged.
            Mix::Small if self.rng.chance(0.7) => {
                self.pick(&[40, 60, 60, 60, 78, 82, 90, 90, 90, 90]).unwrap()
            }
            Mix::Barriers | Mix::Unordered if self.rng.chance(0.75) => {
                self.pick(&[40, 40, 60, 60, 60, 78, 82, 90, 100, 100, 100, 101]).unwrap()
            }
            _ => self.rng.below(100),
        };
        let mut file = None;
        let op = match kind {
            0..12 => VolumeOp::Create {
                dir: self.directory(),
                name: self.name(),
                access: InodePermissions::default(),
                exclusive: self.rng.chance(0.5),
                open: false,
            },
            12..15 => VolumeOp::MakeDirectory {
                dir: self.directory(),
                name: self.name(),
                access: InodePermissions::default(),
            },
            15..20 => VolumeOp::Unlink { dir: self.directory(), name: self.name() },
            20..22 => VolumeOp::RemoveDirectory { dir: self.directory(), name: self.name() },
            22..30 => VolumeOp::Rename {
                from: self.directory(),
                name: self.name(),
                to: self.directory(),
                new: self.name(),
                replace: self.rng.chance(0.8),
            },
            30..32 => VolumeOp::SyncAll,
            100 if self.mix == Mix::Unordered => return self.model.mark_barrier(self.changing()),
            100 => VolumeOp::Barrier,
            101 => {
                let barrier = self.volume().last_barrier();
                VolumeOp::AwaitBarrier { barrier }
            }
            32..34 => VolumeOp::Sync { ino: self.directory(), data_only: self.rng.chance(0.3) },
            34..38 => {
                // Opens and closes complete at once.
                let Some(ino) = self.file() else { return };
                if self.open.remove(&ino) {
                    self.volume().close(ino).unwrap();
                } else if self.volume().open(ino).is_ok() {
                    self.open.insert(ino);
                }
                return;
            }
            _ => {
                let Some(ino) = self.file() else { return };
                file = Some(ino);
                let size = self.model.files[&ino].now().len() as u64;
                let offset = match self.rng.below(4) {
                    0 => size,
                    1 => self.rng.below(size + 1),
                    2 => self.rng.below(size + 1) / 4096 * 4096,
                    // Beyond the end.
                    _ if self.mix.is_small() && self.rng.chance(0.6) => size + self.rng.below(3000),
                    _ => self.rng.below(60_000),
                };
                let small = self.mix.is_small() && self.rng.chance(0.8);
                let most = if small && self.rng.chance(0.3) { 3000 } else { 100 };
                let len = match if small { 0 } else { self.rng.below(4) } {
                    0 => 1 + self.rng.below(most),
                    1 => 4096,
                    2 => 4096 * (1 + self.rng.below(4)),
                    _ => 1 + self.rng.below(20_000),
                };
                let data = self.data(slot, len as usize);
                match kind {
                    38..55 => VolumeOp::Write { ino, offset, data },
                    55..66 => VolumeOp::Append { ino, data },
                    66..76 => VolumeOp::Read { ino, offset, data },
                    // The last block stays: it may be buffered.
                    76..81 if self.mix.has_barriers() && self.rng.chance(0.6) => {
                        VolumeOp::Truncate { ino, size: size - self.rng.below(size.min(3000) + 1) }
                    }
                    76..81 => VolumeOp::Truncate { ino, size: offset },
                    81..84 => VolumeOp::Punch { ino, offset, len },
                    84..87 => {
                        VolumeOp::Allocate { ino, offset, len, keep_size: self.rng.chance(0.5) }
                    }
                    _ => VolumeOp::Sync { ino, data_only: self.rng.chance(0.4) },
                }
            }
        };
        // A sync may run concurrently with changes of its file: it covers operations completed
        // before.
        let (names, versions) = match op {
            VolumeOp::SyncAll => {
                let versions = self.model.files.iter().map(|(i, v)| (*i, v.number())).collect();
                (self.model.number(), versions)
            }
            VolumeOp::Sync { ino, .. } => {
                let versions = self.model.files.get(&ino).map(|v| (ino, v.number()));
                let names = self.model.changed.get(&ino).copied().unwrap_or(0);
                (names, versions.into_iter().collect())
            }
            _ => (0, BTreeMap::new()),
        };
        let changing = self.changing();
        if matches!(op, VolumeOp::Sync { .. }) && self.rng.chance(0.5) {
            file = None;
        }
        let request = VolumeRequest { id: slot as u64, op, time: Time(self.stamp as i64) };
        let now = self.harness.now();
        self.volume().submit(now, request).unwrap();
        self.in_flight[slot] = Some(InFlightOp { op, file, names, versions, changing });
    }

    /// Returns the files with changes in flight.
    fn changing(&self) -> BTreeSet<Ino> {
        let is_change =
            |op: &InFlightOp| !matches!(op.op, VolumeOp::Read { .. } | VolumeOp::Sync { .. });
        self.in_flight.iter().flatten().filter(|op| is_change(op)).filter_map(|f| f.file).collect()
    }

    fn end(&mut self, done: VolumeCompletion) {
        let flight = self.in_flight[done.id as usize].take().expect("each request completes once");
        let VolumeCompletion { result, .. } = done;
        let has = |names: &Names, dir: Ino, name: &Name| {
            names.get(&(dir, name.as_bytes().to_vec())).copied()
        };
        let key = |dir: Ino, name: Name| (dir, name.as_bytes().to_vec());
        match (flight.op, result) {
            (_, Err(Error::NoSpace | Error::NoMetadataSpace)) => self.check_partial_write(&flight),
            (VolumeOp::Barrier, Ok(OpResult::Barrier(barrier))) => {
                let changing = self.changing();
                self.model.mark_barrier(&flight.changing & &changing);
                assert_eq!(self.model.barriers.last(), barrier);
            }
            (VolumeOp::AwaitBarrier { barrier }, Ok(OpResult::Done)) => {
                let durable = self.volume.as_ref().map_or(u64::MAX, |v| v.durable_barrier());
                assert!(barrier <= durable, "barrier {barrier} is not durable");
            }
            (VolumeOp::Create { dir, name, .. }, Ok(OpResult::Inode(ino))) => {
                if has(self.model.now(), dir, &name) != Some((ino, InodeKind::File)) {
                    assert_eq!(has(self.model.now(), dir, &name), None);
                    self.model.change(&[dir, ino], |n| {
                        n.insert(key(dir, name), (ino, InodeKind::File));
                    });
                    self.model.files.insert(ino, Versions::new(Vec::new()));
                }
            }
            (VolumeOp::MakeDirectory { dir, name, .. }, Ok(OpResult::Inode(ino))) => {
                assert_eq!(has(self.model.now(), dir, &name), None);
                self.model.change(&[dir, ino], |n| {
                    n.insert(key(dir, name), (ino, InodeKind::Directory));
                });
            }
            (VolumeOp::Unlink { dir, name } | VolumeOp::RemoveDirectory { dir, name }, Ok(_)) => {
                let (ino, _) = has(self.model.now(), dir, &name).expect("the unlinked name exists");
                self.model.change(&[dir, ino], |n| {
                    n.remove(&key(dir, name));
                });
            }
            (VolumeOp::Rename { from, name, to, new, .. }, Ok(_)) => {
                let what = has(self.model.now(), from, &name).expect("the renamed name exists");
                if has(self.model.now(), to, &new) != Some(what) {
                    self.model.change(&[from, to, what.0], |n| {
                        n.remove(&key(from, name));
                        n.insert(key(to, new), what);
                    });
                }
            }
            (
                VolumeOp::Create { .. } | VolumeOp::MakeDirectory { .. },
                Err(Error::Exists | Error::IsDirectory | Error::NotFound),
            ) => {}
            (
                VolumeOp::Unlink { .. }
                | VolumeOp::RemoveDirectory { .. }
                | VolumeOp::Rename { .. },
                Err(
                    Error::NotFound
                    | Error::IsDirectory
                    | Error::NotDirectory
                    | Error::NotEmpty
                    | Error::Exists
                    | Error::Invalid(_),
                ),
            ) => {}
            (VolumeOp::Read { ino, offset, data }, Ok(OpResult::Bytes { len, .. })) => {
                let now = self.model.files[&ino].now();
                let from = (offset as usize).min(now.len());
                let to = (from + data.len as usize).min(now.len());
                let got = self.bytes_of(RequestBuffer { len, ..data });
                assert!(got == now[from..to], "{ino} from {offset}: {len} of {}", to - from);
            }
            (
                VolumeOp::Write { ino, data, .. } | VolumeOp::Append { ino, data },
                Ok(OpResult::Bytes { offset, len }),
            ) => {
                let new = self.bytes_of(RequestBuffer { len, ..data });
                let versions = self.model.files.get_mut(&ino).unwrap();
                // A large write may be on the device in part.
                let mut now = versions.now().to_vec();
                let end = offset as usize + new.len();
                now.resize(now.len().max(end), 0);
                now[offset as usize..end].copy_from_slice(&new);
                versions.push(now);
            }
            (VolumeOp::Truncate { ino, size }, Ok(_)) => {
                let versions = self.model.files.get_mut(&ino).unwrap();
                let mut now = versions.now().to_vec();
                now.resize(size as usize, 0);
                versions.push(now);
            }
            (VolumeOp::Punch { ino, offset, len }, Ok(_)) => {
                let versions = self.model.files.get_mut(&ino).unwrap();
                let mut now = versions.now().to_vec();
                let from = (offset as usize).min(now.len());
                let to = (from + len as usize).min(now.len());
                now[from..to].fill(0);
                versions.push(now);
            }
            (VolumeOp::Allocate { ino, offset, len, keep_size }, Ok(_)) => {
                let versions = self.model.files.get_mut(&ino).unwrap();
                let mut now = versions.now().to_vec();
                let end = (offset + len) as usize;
                if !keep_size && end > now.len() {
                    now.resize(end, 0);
                }
                versions.push(now);
            }
            (VolumeOp::Sync { .. } | VolumeOp::SyncAll, Ok(_)) => {
                self.model.durable(flight.names);
                for (ino, index) in flight.versions {
                    if let Some(versions) = self.model.files.get_mut(&ino) {
                        versions.durable(index);
                    }
                }
            }
            // A file without a name is gone, unless it is open.
            (op, Err(Error::NotFound)) => {
                if let Some(ino) = flight.file {
                    let named = self.model.now().values().any(|(i, _)| *i == ino);
                    assert!(!named && !self.open.contains(&ino), "{op:?}");
                } else {
                    assert!(matches!(op, VolumeOp::Sync { .. }), "{op:?}");
                }
            }
            (op, result) => panic!("{op:?}: {result:?}"),
        }
    }

    /// Space ran out: a write may have been executed in part.
    fn check_partial_write(&mut self, flight: &InFlightOp) {
        self.seen.no_space += 1;
        assert!(
            !matches!(
                flight.op,
                VolumeOp::Sync { .. } | VolumeOp::SyncAll | VolumeOp::Unlink { .. }
            ),
            "{:?}",
            flight.op
        );
    }

    fn wait(&mut self) {
        let mut steps = 0;
        while self.in_flight.iter().any(Option::is_some) {
            self.step();
            steps += 1;
            assert!(
                steps < 200_000,
                "{:?} do not complete: {:?}",
                self.in_flight.iter().flatten().map(|f| f.op).collect::<Vec<_>>(),
                self.volume().stats()
            );
        }
    }

    fn cut(&mut self) {
        self.seen.cuts += 1;
        let mut store = self.volume.take().unwrap();
        store.check_invariants().unwrap();
        self.seen.journaled += store.stats().journaled_blocks;
        self.seen.checkpoints += store.stats().checkpoints.saturating_sub(1);
        self.seen.barriers += store.stats().barriers;
        self.seen.waits += store.stats().barrier_waits;
        self.seen.in_place += store.stats().barrier_in_place_blocks;
        let pending = store.last_barrier() - store.durable_barrier();
        self.seen.pending += u64::from(pending > 0);
        self.seen.several += u64::from(pending > 1);
        let durable = store.durable_barrier();
        while let Some(done) = store.reap() {
            self.end(done);
        }
        // Operations in flight may have been executed, in part or completely.
        let flights: Vec<InFlightOp> = self.in_flight.iter_mut().filter_map(Option::take).collect();
        self.harness.cut(store.into_device());
        self.open.clear();
        self.model.durable_barrier(durable);
        self.model.cut_barriers();
        self.model = self.possible(&flights);
        let device = self.harness.attach();
        self.mount(device);
        self.check();
    }

    /// Returns the model with the possible effects of the operations in flight.
    fn possible(&self, flights: &[InFlightOp]) -> Model {
        let mut model = self.model.clone();
        for flight in flights {
            let (ino, offset, data) = match flight.op {
                VolumeOp::Write { ino, offset, data } => (ino, Some(offset), data),
                VolumeOp::Append { ino, data } => (ino, None, data),
                VolumeOp::Punch { ino, offset, len } => {
                    // The unaligned head and tail of the hole are zeroed one after the other.
                    if let Some(versions) = model.files.get_mut(&ino) {
                        let mut now = versions.now().to_vec();
                        let end = now.len().min((offset + len) as usize);
                        let from = end.min(offset as usize);
                        let head = end.min(from.next_multiple_of(4096));
                        now[from..head].fill(0);
                        versions.push(now.clone());
                        now[head.max(end / 4096 * 4096)..end].fill(0);
                        versions.push(now);
                    }
                    continue;
                }
                _ => continue,
            };
            let new = self.bytes_of(data);
            let Some(versions) = model.files.get_mut(&ino) else { continue };
            let from = offset.map_or(versions.now().len(), |o| o as usize);
            // The write may have been executed block by block.
            let mut now = versions.now().to_vec();
            let mut done = 0;
            while done < new.len() {
                let at = from + done;
                let n = (4096 - at % 4096).min(new.len() - done);
                now.resize(now.len().max(at + n), 0);
                now[at..at + n].copy_from_slice(&new[done..done + n]);
                done += n;
                versions.push(now.clone());
            }
        }
        model
    }

    /// Reads everything, and compares it with the possible contents.
    fn check(&mut self) {
        let (names, contents) = self.all();
        if let Some(before) = self.before.take() {
            assert!(
                before == (names.clone(), contents.clone()),
                "a read-only mount had other contents"
            );
        }
        if self.mix.has_barriers()
            && let Err(why) = self.model.check_barriers(&names, &contents, self.sector)
        {
            assert!(self.mix == Mix::Unordered, "after {} cuts: {why}", self.seen.cuts);
            self.seen.violations += 1;
        }
        if let Err(why) = self.model.settle(names, contents, self.sector) {
            panic!("after {} cuts: {why}", self.seen.cuts);
        }
    }

    /// Returns all names and contents.
    fn all(&mut self) -> (Names, BTreeMap<Ino, Vec<u8>>) {
        let (mut names, mut contents) = (Names::new(), BTreeMap::new());
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            let store = self.volume.as_ref().unwrap();
            for entry in store.list(dir, 0).unwrap() {
                names.insert((dir, entry.name.to_vec()), (entry.ino, entry.kind));
                match entry.kind {
                    InodeKind::Directory => dirs.push(entry.ino),
                    InodeKind::File => {
                        contents.insert(entry.ino, Vec::new());
                    }
                }
            }
        }
        for (ino, bytes) in &mut contents {
            *bytes = self.read_now(*ino);
        }
        (names, contents)
    }

    fn read_now(&mut self, ino: Ino) -> Vec<u8> {
        let size = self.volume().stat(ino).unwrap().size as usize;
        let mut bytes = vec![0; size];
        let mut at = 0;
        while at < size {
            let len = BYTES.min(size - at);
            let (_, iova) = self.region.clone().unwrap();
            let data = RequestBuffer { iova, len: len as u32 };
            let op = VolumeOp::Read { ino, offset: at as u64, data };
            let now = self.harness.now();
            self.volume().submit(now, VolumeRequest { id: 99, op, time: Time(0) }).unwrap();
            let done = loop {
                let store = self.volume.as_mut().unwrap();
                self.harness.step(store);
                if let Some(done) = store.reap() {
                    break done;
                }
            };
            assert!(matches!(done.result, Ok(OpResult::Bytes { len: n, .. }) if n as usize == len));
            let (region, _) = self.region.as_ref().unwrap();
            region.read(0, &mut bytes[at..at + len]);
            at += len;
        }
        bytes
    }

    /// Closes cleanly and mounts again: nothing may have changed.
    fn close(&mut self) {
        self.wait();
        let now = self.harness.now();
        let request = VolumeRequest { id: 0, op: VolumeOp::Close, time: Time(0) };
        self.volume().submit(now, request).unwrap();
        let mut steps = 0;
        let done = loop {
            let store = self.volume.as_mut().unwrap();
            self.harness.step(store);
            if let Some(done) = store.reap() {
                break done;
            }
            steps += 1;
            assert!(steps < 200_000, "the close does not complete: {:?}", store.stats());
        };
        assert_eq!(done.result, Ok(OpResult::Done));
        let store = self.volume.take().unwrap();
        store.check_invariants().unwrap();
        assert_eq!(store.superblock().owner, None);
        let number = self.model.number();
        self.model.durable(number);
        for versions in self.model.files.values_mut() {
            versions.durable(versions.number());
        }
        self.open.clear();
        self.harness.cut(store.into_device());
        let device = self.harness.attach();
        self.mount(device);
        self.check();
    }

    pub(crate) fn run(mut self) -> Seen {
        let commands = 60 + self.rng.below(240);
        let eager = self.rng.below(8);
        // `Mix::Small` submits more commands, and completes more of them.
        let (commands, eager) = match self.mix {
            Mix::All => (commands, eager),
            Mix::Small => (2 * commands, 4 * eager),
            Mix::Barriers | Mix::Unordered => (2 * commands, 2 * eager),
        };
        let cuts = if self.mix.has_barriers() { 0.05 } else { 0.02 };
        for _ in 0..commands {
            self.submit();
            for _ in 0..self.rng.below(eager + 1) {
                // Data must not expire: an idle drive would advance the time to that point.
                if self.mix.is_small() && self.in_flight.iter().all(Option::is_none) {
                    break;
                }
                self.step();
            }
            if self.rng.chance(cuts) {
                self.cut();
            } else if self.rng.chance(0.005) {
                self.close();
            }
        }
        self.wait();
        self.cut();
        self.close();
        self.seen
    }
}

fn take_device<D: BlockDevice>(opening: Mount<D>) -> D {
    opening.into_device().expect("a finished mount returns its device")
}
