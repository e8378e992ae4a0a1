//! [`Kv::open`]: power-on. What the chunks say, which records there are, and what is current.
//!
//! 1. Chunks that were being written are filled up with filler until everything in them can be read
//!    (LightNVM paper section 4.2.2).
//! 2. Labels say what every chunk is and where records start; of whole chunks one vector is enough.
//! 3. Headers are read, and the index is made of them ([`found`](super::found)).
//! 4. Chunks in which nothing is current are erased when the target runs, others are written on,
//!    behind a seal if a record may have been going on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use driver::{DriveInfo, OpenChannel, QueuePair};
use ftl::Shape;
use nvme::{ChunkDescriptor, Geometry};
use ring::Port;

use super::chunks::{Chunks, Use};
use super::clean::Cleaner;
use super::config::{KvConfig, Layout};
use super::fetch::Fetches;
use super::found::{Found, Versions, sort, versions};
use super::index::{Current, Index};
use super::media::{Media, State};
use super::oob::Label;
use super::order::Order;
use super::request::Requests;
use super::scan::{Job, Scan, Task};
use super::slots::Slots;
use super::stats::KvStats;
use super::streams::{Resumable, Streams};
use super::whole::Wholes;
use super::{Kv, KvOpenError, SCRATCH};
use crate::vector::{Addresses, VectorQueue};

/// Physical sectors that can be numbered.
const MAX_PHYSICAL: u64 = 0x7000_0000;

/// Reads of any record, and of whole chunks, at a time.
const ANY_READS: u32 = 16;
const WHOLE_READS: u32 = 32;
const SMALL_READS: u32 = 256;

impl Kv {
    /// Opens the drive that `info` describes and `port` leads to. `queue` is one of its queue pairs,
    /// has nothing outstanding, and is the target's from now on; `chunks` are the descriptors of all
    /// of its chunks ([`driver::Controller::chunks`]), fresh ones, and `owned` says which of them are
    /// the target's. `keeps_data` says whether the drive keeps contents.
    ///
    /// What was durable is found again: this takes commands, which are waited for by calling `pump`.
    /// It can be interrupted at any time and repeated. A sector that cannot be read by then, in which
    /// a record starts, takes the record with it; [`KvStats::unreadable_at_open`] counts them.
    ///
    /// # Errors
    /// [`KvOpenError`].
    #[expect(clippy::too_many_arguments, reason = "the drive, and what to make of it")]
    pub fn open(
        info: &DriveInfo,
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(u32) -> bool,
        queue: QueuePair,
        port: Arc<Port>,
        config: KvConfig,
        pump: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Kv, KvOpenError> {
        let OpenChannel { geometry, format, max_open_chunks, .. } = info
            .open_channel
            .ok_or_else(|| KvOpenError::NotOpenChannel { serial: info.serial.clone() })?;
        if !keeps_data {
            return Err(KvOpenError::KeepsNoData);
        }
        check_shape(info, &geometry)?;
        let shape = Shape::of(&geometry);
        let addresses = Addresses::new(shape, geometry, format);
        let mut media = Media::look(chunks, owned, &addresses)?;
        let counted = (0..).zip(chunks).filter(|(chunk, d)| {
            let from_factory = d.wear_index == 0 && d.wp.get() == 0;
            match media.states[*chunk as usize] {
                None => false,
                Some(State::Bad) => !from_factory,
                Some(_) => true,
            }
        });
        let counted = counted.count() as u32;
        let mut pus: Vec<u32> = (0..shape.total_chunks())
            .filter(|c| media.states[*c as usize].is_some())
            .map(|c| shape.pu_of(c))
            .collect();
        pus.dedup();
        let pus = pus.len() as u32;
        let layout = Layout::of(&shape, &config, (counted, pus), max_open_chunks)?;
        let mut queue = VectorQueue::new(queue, port.clone(), info)?;
        media.read(&mut Scan::new(&mut queue, &addresses, pump)?, &addresses)?;

        let space = port.memory();
        let slots = Streams::slots_needed(&layout);
        let sizes = (geometry.sector_bytes, geometry.oob_bytes);
        let slots = Slots::new(space, slots, shape.unit, sizes)?;
        let counts = [SMALL_READS.min(config.queue_depth), ANY_READS, WHOLE_READS];
        let fetches = Fetches::new(space, &layout, counts)?;
        let wholes = Wholes::new(space, &layout, geometry.oob_bytes)?;
        let cleaners = (0..layout.cleaners).map(|_| Cleaner::new()).collect();
        let mut kv = Kv {
            chunks: Chunks::new(shape),
            streams: Streams::new(layout, slots),
            stamp: media.found.values().filter_map(|f| f.stamp).max().unwrap_or(0),
            // Room for what could not be read.
            seq: media.seq + 1024,
            requests: Requests::new(config.queue_depth),
            done: VecDeque::with_capacity(config.queue_depth as usize),
            scratch: vec![0; SCRATCH].into(),
            index: Index::default(),
            order: Order::default(),
            line: VecDeque::new(),
            held: BTreeMap::new(),
            parked: 0,
            to_begin: VecDeque::new(),
            tails: VecDeque::new(),
            streaming: None,
            unfinished: 0,
            waiters: VecDeque::new(),
            readers: [VecDeque::new(), VecDeque::new()],
            failing: VecDeque::new(),
            dead: VecDeque::new(),
            read_dead: Vec::new(),
            erasing: BTreeMap::new(),
            reserved: 0,
            wholes_held: 0,
            tombstone_bytes: 0,
            tombstones: 0,
            stats: KvStats::default(),
            header: Vec::new(),
            waited: None,
            taken: false,
            went_on: false,
            short_of_chunks: false,
            queue,
            addresses,
            wholes,
            fetches,
            cleaners,
            config,
            layout,
        };
        kv.stats.unreadable_at_open = media.found.values().map(|f| f.bad.len() as u64).sum();
        kv.adopt(&mut media, pump)?;
        Ok(kv)
    }

    /// Makes the index of the records, and gives every chunk its use.
    fn adopt(&mut self, media: &mut Media, pump: &mut dyn FnMut()) -> Result<(), KvOpenError> {
        let mut records = std::mem::take(&mut media.records);
        self.stats.records_found = records.len() as u64;
        sort(&mut records);
        let mut directory: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        let mut live: BTreeMap<u32, u32> = BTreeMap::new();
        let mut wholes: BTreeMap<u32, ()> = BTreeMap::new();
        let mut from = 0;
        while let Some((found, next)) = versions(&records, from) {
            from = next;
            let Versions { key, entry, complete, void } = found;
            self.stats.void_at_open += void.len() as u64;
            for i in complete {
                let record = &records[i];
                directory.entry(record.chunk).or_default().push((record.offset, record.bytes()));
            }
            let Some(mut entry) = entry else { continue };
            for i in 0..entry.current.pieces().len() {
                let bytes = entry.current.record_bytes(key.len(), i);
                *live.entry(entry.current.pieces()[i].chunk).or_default() += bytes;
                if !entry.current.exists() {
                    self.tombstone_bytes += u64::from(bytes);
                    self.tombstones += 1;
                }
            }
            if let Current::Spread(spread) = &mut entry.current {
                for (i, part) in (0..).zip(spread.parts.iter_mut()) {
                    let there = media.found.get(&part.chunk).and_then(|f| f.whole);
                    if there == Some((i, entry.seq)) {
                        wholes.insert(part.chunk, ());
                    } else {
                        // Gone bad, or somebody else's by now: reads of the value fail.
                        part.chunk = u32::MAX;
                    }
                    self.wholes_held += 1;
                }
            }
            self.index.found(key, entry);
        }
        let mut seals = Vec::new();
        for chunk in 0..media.states.len() as u32 {
            let Some(state) = media.states[chunk as usize] else { continue };
            let records = directory.remove(&chunk).unwrap_or_default();
            let live = live.get(&chunk).copied().unwrap_or(0);
            let usage = self.usage(media, chunk, state, (!records.is_empty(), live > 0), &wholes);
            self.chunks.adopt(chunk, usage);
            self.chunks.add_live(chunk, live);
            let c = self.chunks.get_mut(chunk);
            c.stamp = media.found.get(&chunk).and_then(|f| f.stamp).unwrap_or(0);
            c.records = records;
            c.records.sort_unstable();
            match usage {
                Use::Failing => self.failing.push_back(chunk),
                Use::Dead => {
                    let number = self.order.next();
                    self.dead.push_back(super::Dead { chunk, number, keys: Vec::new() });
                }
                Use::Open if media.found.get(&chunk).is_some_and(Found::is_cut) => {
                    seals.push(chunk);
                }
                _ => {}
            }
        }
        self.seal(media, &seals, pump)?;
        for (chunk, c) in self.chunks.all().filter(|(_, c)| c.usage == Use::Open) {
            debug_assert!(!c.records.is_empty());
            let sectors = media.written.get(&chunk).copied().unwrap_or(0);
            let fill = sectors * self.layout.sector_bytes;
            let stamp = media.found.get(&chunk).and_then(|f| f.stamp).unwrap_or(0);
            self.streams.resumable.push_back(Resumable { chunk, fill, stamp });
        }
        Ok(())
    }

    /// What a chunk is used for from now on. It `holds` records, and perhaps live ones.
    fn usage(
        &self,
        media: &Media,
        chunk: u32,
        state: State,
        (holds, lives): (bool, bool),
        wholes: &BTreeMap<u32, ()>,
    ) -> Use {
        let room = media.written.get(&chunk).is_some_and(|written| {
            u64::from(*written) * u64::from(self.layout.sector_bytes)
                < u64::from(self.layout.chunk_bytes)
        });
        match state {
            State::Bad => Use::Retired,
            State::Free => Use::Free,
            _ if wholes.contains_key(&chunk) => Use::Whole,
            State::Failing if lives => Use::Failing,
            State::Failing => Use::Retired,
            _ if !holds => Use::Dead,
            State::Open if room => Use::Open,
            State::Open | State::Closed => Use::Closed,
        }
    }

    /// Writes seals behind what is torn in chunks that are to be written on.
    fn seal(
        &mut self,
        media: &mut Media,
        seals: &[u32],
        pump: &mut dyn FnMut(),
    ) -> Result<(), KvOpenError> {
        let unit = self.layout.unit_bytes / self.layout.sector_bytes;
        let jobs = seals.iter().filter_map(|chunk| {
            let (found, first) = (media.found.get(chunk)?, *media.written.get(chunk)?);
            Some(Job { task: Task::Seal(found.intact), chunk: *chunk, first, count: unit })
        });
        let jobs: Vec<Job> = jobs.collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let mut failed = Vec::new();
        let mut scan = Scan::new(&mut self.queue, &self.addresses, pump)?;
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            if seen.failed != 0 {
                failed.push(job.chunk);
            } else {
                media.written.insert(job.chunk, job.first + job.count);
            }
        })?;
        for chunk in failed {
            self.chunks.get_mut(chunk).usage = Use::Failing;
            self.failing.push_back(chunk);
        }
        let full = self.layout.chunk_bytes / self.layout.sector_bytes;
        for chunk in seals {
            let c = self.chunks.get_mut(*chunk);
            if c.usage == Use::Open && media.written.get(chunk) == Some(&full) {
                c.usage = Use::Closed;
            }
        }
        Ok(())
    }
}

/// Refuses drives that cannot be numbered, written or recovered.
fn check_shape(info: &DriveInfo, g: &Geometry) -> Result<(), KvOpenError> {
    let shape = |what, value, allowed| Err(KvOpenError::Shape { what, value, allowed });
    let pus = u64::from(g.groups) * u64::from(g.pus);
    let all = pus.checked_mul(g.chunks.into()).and_then(|c| c.checked_mul(g.sectors.into()));
    if all.is_none_or(|n| n > MAX_PHYSICAL) {
        let value = all.unwrap_or(u64::MAX);
        return shape("sectors of the drive", value, format!("at most {MAX_PHYSICAL}"));
    }
    if !(512..=1 << 16).contains(&g.sector_bytes) {
        return shape("sector_bytes", g.sector_bytes.into(), "512 to 65,536".into());
    }
    if !(1..=64).contains(&g.ws_opt) || !g.sectors.is_multiple_of(g.ws_opt) {
        let allowed = "1 to 64, a divisor of the sectors of a chunk".into();
        return shape("ws_opt", g.ws_opt.into(), allowed);
    }
    if info.max_sectors < g.ws_opt {
        let allowed = format!("at least a write unit, {}", g.ws_opt);
        return shape("sectors of one transfer", info.max_sectors.into(), allowed);
    }
    if g.oob_bytes < Label::BYTES as u32 {
        let allowed = format!("at least {}", Label::BYTES);
        return shape("out-of-band bytes of a sector", g.oob_bytes.into(), allowed);
    }
    Ok(())
}
