//! [`Case`]: a drive with a random configuration, one host, random commands, and the oracle.

use std::ops::Range;
use std::sync::Arc;

use block::{BlockDevice, Op, Payload, Raw, Request};
use controller::{Controller, DriveConfig, DriveError, WriteBuffer};
use driver::ControllerHandle;
use media::{DataStore, MediaConfig};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos, VirtualRunner};

use super::block_commands::BlockCommands;
use super::configs::random_config;
use super::host_file::HostFile;
use super::sector::{Sector, UNREADABLE, decode, encode};

/// The storage of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Memory,
    Image,
    /// An image on a host that crashes.
    CrashedHost {
        /// Whether flushes reach the host's device.
        durable: bool,
    },
}

/// The relation of logical blocks and the units that the drive maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// Blocks are units.
    Units,
    /// Units have 2, 4 or 8 blocks.
    Parts,
}

/// Maximum number of requests in flight, and of sectors per request.
const REQUESTS: usize = 12;
pub(super) const SECTORS: u32 = 40;

#[derive(Clone, Debug)]
struct InFlight {
    request: Request,
    /// For a command that changes sectors: the sequence numbers of its values.
    value_seqs: Vec<u64>,
    /// For a flush: the sequence numbers of all sectors' values at submission.
    seqs_at_submit: Vec<u64>,
    durable: bool,
}

pub(crate) struct Case {
    pub(super) config: DriveConfig,
    drive: Option<Controller>,
    raw: Option<Raw>,
    runner: VirtualRunner,
    memory: Arc<SharedRegion>,
    at: Iova,
    /// Size of a logical block. The oracle knows each block.
    pub(super) sector_bytes: usize,
    /// Number of blocks in a unit that the drive maps.
    pub(super) unit_blocks: u64,
    pub(super) oracle: Vec<Sector>,
    in_flight: Vec<Option<InFlight>>,
    rng: Rng,
    value: u64,
    pub(super) failing: bool,
    /// Ranges of requests that failed.
    pub(super) failed_ranges: Vec<(u64, u32)>,
    pub(super) medium: Medium,
    /// Commands that check, mark and copy blocks, if the case has them.
    pub(crate) block_commands: Option<BlockCommands>,
    /// The image, if the host of the drive crashes.
    pub(crate) host_file: Option<HostFile>,
    _folder: Option<tempfile::TempDir>,
    pub(crate) reclaimed: u64,
    pub(crate) hot_sectors: u64,
    pub(crate) cuts: u64,
    pub(crate) partial_units: u64,
    steps: u64,
}

/// Steps between checks of all invariants of the drive. The other steps check the commands, the queues
/// and the array only: with a walk of the map after every step, the test takes 3 times the CPU time.
const CHECK_STEPS: u64 = 32;

/// Makes the sectors and pages of the media larger by this power of two; logical blocks keep their
/// size.
fn enlarge_units(config: &mut DriveConfig, shift: u32) {
    config.lba_bytes = Some(config.sector_bytes());
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.geometry.sector_bytes <<= shift;
    nand.geometry.page_bytes <<= shift;
    match &mut config.write_buffer {
        WriteBuffer::None => {}
        WriteBuffer::Volatile { bytes } | WriteBuffer::PowerLossProtected { bytes } => {
            *bytes <<= shift;
        }
    }
}

/// Creates a drive with this configuration, with more chunks if it needs them.
pub(super) fn power_on(config: &mut DriveConfig) -> Controller {
    loop {
        let error = match Controller::new(config.clone()) {
            Ok(drive) => return drive,
            Err(error) => error,
        };
        let MediaConfig::Nand(nand) = &mut config.media else { panic!("{error}") };
        assert!(matches!(error, DriveError::Ftl(_)) && nand.geometry.chunks < 400, "{error}");
        nand.geometry.chunks += nand.geometry.chunks / 3;
        if let Some(path) = nand.data.image() {
            std::fs::remove_file(path).unwrap();
        }
    }
}

impl Case {
    pub(crate) fn new(seed: u64, medium: Medium, blocks: Blocks) -> Case {
        let mut rng = Rng::new(seed);
        let folder = (medium != Medium::Memory).then(|| tempfile::tempdir().unwrap());
        let data = match &folder {
            Some(folder) => {
                let path = folder.path().join("image");
                match medium {
                    Medium::CrashedHost { durable: true } => DataStore::DurableFile(path),
                    _ => DataStore::File(path),
                }
            }
            None => DataStore::Memory,
        };
        let failing = rng.chance(0.3);
        let mut config = random_config(&mut rng, failing, data);
        if blocks == Blocks::Parts {
            enlarge_units(&mut config, rng.below(3) as u32 + 1);
        }
        let mut host_file = None;
        if let (Medium::CrashedHost { .. }, Some(folder)) = (medium, &folder) {
            let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
            // The recorder copies the file at each flush.
            (nand.geometry.channels, nand.geometry.pus) = (1, 1 + rng.below(2) as u32);
            config.ftl.active_pus = config.ftl.active_pus.min(nand.geometry.pus);
            host_file = Some(HostFile::new(&folder.path().join("image")));
        }
        let drive = match &host_file {
            Some(file) => file.open(false, || power_on(&mut config)),
            None => power_on(&mut config),
        };
        let sector_bytes = config.lba_bytes() as usize;
        let unit_blocks = u64::from(config.sector_bytes() / config.lba_bytes());
        let oracle = vec![Sector::new(0); drive.sectors() as usize];
        let mut case = Case {
            drive: Some(drive),
            raw: None,
            runner: VirtualRunner::new(),
            memory: SharedRegion::anonymous(REQUESTS * SECTORS as usize * sector_bytes).unwrap(),
            at: Iova(0),
            sector_bytes,
            unit_blocks,
            oracle,
            in_flight: vec![None; REQUESTS],
            rng,
            value: 0,
            failing,
            failed_ranges: vec![],
            medium,
            block_commands: None,
            _folder: folder,
            host_file,
            reclaimed: 0,
            hot_sectors: 0,
            cuts: 0,
            partial_units: 0,
            steps: 0,
            config,
        };
        case.attach();
        case
    }

    /// Creates a case with commands that check, mark and copy blocks.
    pub(crate) fn with_block_commands(seed: u64, medium: Medium, blocks: Blocks) -> Case {
        let mut case = Case::new(seed, medium, blocks);
        case.block_commands = Some(BlockCommands::new(seed, case.sector_bytes));
        case.attach();
        case
    }

    /// Powers the drive on again with another configuration, before its first command.
    pub(super) fn replace_drive(&mut self) {
        (self.raw, self.drive) = (None, None);
        self.drive = Some(power_on(&mut self.config));
        self.oracle = vec![Sector::new(0); self.drive().sectors() as usize];
        self.attach();
    }

    /// Returns the drive.
    pub(super) fn drive(&self) -> &Controller {
        self.drive.as_ref().expect("the drive is powered on")
    }

    fn attach(&mut self) {
        let (drive, now) = (self.drive.as_mut().unwrap(), self.runner.now());
        let port = drive.attach().unwrap();
        let mut progress = || {
            drive.poll(now);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, 1_000_000).unwrap();
        let queue = controller.create_queue_pair(64, None, &mut progress).unwrap();
        if let Some(own) = &mut self.block_commands {
            let queue = controller.create_queue_pair(64, None, &mut progress).unwrap();
            own.attach(queue, port.memory());
        }
        self.raw = Some(Raw::from_pair(controller.info(), queue, port.clone()).unwrap());
        self.at = port.memory().register(&self.memory).unwrap();
    }

    /// Whether a flush does not cover trims; see [`Case::submit`].
    fn is_flush_lossy_for_trims(&self) -> bool {
        let protected = matches!(self.config.write_buffer, WriteBuffer::PowerLossProtected { .. });
        self.failing && protected && self.medium == Medium::Memory
    }

    fn slot(&self, slot: usize) -> usize {
        slot * SECTORS as usize * self.sector_bytes
    }

    fn step(&mut self) {
        let (raw, drive) = (self.raw.as_mut().unwrap(), self.drive.as_mut().unwrap());
        let moved = self.runner.step(&mut [raw, drive], Nanos::MAX);
        self.steps += 1;
        let drive = self.drive.as_ref().unwrap();
        let checked = if self.steps.is_multiple_of(CHECK_STEPS) {
            drive.check_invariants()
        } else {
            drive.check_command_invariants()
        };
        assert_eq!(checked, Ok(()));
        let ended = self.reap();
        self.recheck_failed();
        if !moved && !ended && self.is_waiting() {
            let drive = self.drive.as_ref().unwrap();
            panic!(
                "{:?} do not complete at {}: {}",
                self.in_flight.iter().flatten().map(|f| f.request).collect::<Vec<_>>(),
                self.runner.now(),
                drive.ftl().unwrap().debug_state()
            );
        }
    }

    /// Processes all completions. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut ended = false;
        while let Some(done) = self.raw.as_mut().unwrap().reap() {
            let slot = done.tag as usize;
            let flight = self.in_flight[slot].take().expect("one completion per request");
            self.on_completion(slot, &flight, done.status);
            ended = true;
        }
        ended | self.reap_block_commands(false)
    }

    fn is_waiting(&self) -> bool {
        self.in_flight.iter().any(Option::is_some)
            || self.block_commands.as_ref().is_some_and(BlockCommands::is_waiting)
    }

    fn on_completion(&mut self, slot: usize, flight: &InFlight, status: Status) {
        let Request { op, lba, sectors, .. } = flight.request;
        let changed = self.changed_range(&flight.request);
        let range = lba as usize..lba as usize + sectors as usize;
        if op == Op::Read
            && self.oracle[range.clone()].iter().any(|s| s.model.value() == UNREADABLE)
        {
            assert_eq!(status, Status::UNRECOVERED_READ, "{sectors} sectors at {lba}");
            return self.oracle[range].iter_mut().for_each(|s| s.reading -= 1);
        }
        assert!(
            status.is_success() || self.failing && status.is(Status::WRITE_PROTECTED),
            "{op:?} of {sectors} at {lba}: {status} after {} cuts {:?}\n{:?}",
            self.cuts,
            self.config,
            self.drive
                .as_ref()
                .and_then(|d| Some((d.ftl()?.debug_state(), d.ftl()?.capacity_plan())))
        );
        let from = self.slot(slot);
        match op {
            Op::Read => {
                let mut bytes = vec![0; self.sector_bytes];
                for (i, sector) in self.oracle[range].iter_mut().enumerate() {
                    self.memory.read(from + i * self.sector_bytes, &mut bytes);
                    sector.reading -= 1;
                    let found = decode(&bytes);
                    assert_eq!(found, Some(sector.model.value()), "sector {}", lba as usize + i);
                }
            }
            Op::Flush if status.is_success() && !self.is_flush_lossy_for_trims() => {
                for (sector, held) in self.oracle.iter_mut().zip(&flight.seqs_at_submit) {
                    sector.model.set_durable(*held);
                }
            }
            Op::Flush => {}
            _ => {
                for (sector, number) in
                    self.oracle[changed.clone()].iter_mut().zip(&flight.value_seqs)
                {
                    if status.is_success() {
                        sector.changing = false;
                        sector.model.complete_at(*number);
                        if flight.durable {
                            sector.model.set_durable(*number);
                        }
                    }
                }
                if !status.is_success() {
                    self.failed_ranges.push((changed.start as u64, changed.len() as u32));
                }
            }
        }
    }

    /// Returns the blocks that a request changes: of a trim those in whole units.
    fn changed_range(&self, request: &Request) -> Range<usize> {
        let (first, end) = (request.lba, request.lba + u64::from(request.sectors));
        if request.op != Op::Discard {
            return first as usize..end as usize;
        }
        let unit = self.unit_blocks;
        let (first, end) = (first.next_multiple_of(unit), end / unit * unit);
        first as usize..end.max(first) as usize
    }

    /// Reads the ranges of failed requests, which may have been executed in part.
    fn recheck_failed(&mut self) {
        while let Some((lba, sectors)) = self.failed_ranges.pop() {
            if sectors == 0 {
                continue;
            }
            for (i, value) in (lba as usize..).zip(self.read_now(lba, sectors)) {
                let sector = &mut self.oracle[i];
                assert!(sector.model.allows(value), "sector {i} holds {value}: {sector:?}");
                let number = sector.model.send_next(value);
                sector.model.complete_at(number);
                sector.changing = false;
            }
        }
    }

    /// Reads without the oracle, while other commands proceed.
    fn read_now(&mut self, lba: u64, sectors: u32) -> Vec<u64> {
        let memory = SharedRegion::anonymous(sectors as usize * self.sector_bytes).unwrap();
        let at = self.raw.as_mut().unwrap().memory().register(&memory).unwrap();
        let status = self.read_into(at, lba, sectors);
        let value = |bytes: &[u8]| decode(bytes).expect("a sector must not mix two values");
        if status.is_success() {
            let mut data = vec![0; sectors as usize * self.sector_bytes];
            memory.read(0, &mut data);
            return data.chunks(self.sector_bytes).map(value).collect();
        }
        assert!(self.block_commands.is_some(), "read of {sectors} at {lba}: {status}");
        let one = |lba| match self.read_into(at, lba, 1) {
            Status::SUCCESS => {
                let mut data = vec![0; self.sector_bytes];
                memory.read(0, &mut data);
                value(&data)
            }
            status => {
                assert_eq!(status, Status::UNRECOVERED_READ, "read of sector {lba}");
                UNREADABLE
            }
        };
        (lba..lba + u64::from(sectors)).map(one).collect()
    }

    /// Reads sectors into memory, while other commands proceed.
    fn read_into(&mut self, at: Iova, lba: u64, sectors: u32) -> Status {
        let (now, tag) = (self.runner.now(), u64::MAX);
        let request = Request::read(lba, sectors, Payload::Contiguous(at), tag);
        self.raw.as_mut().unwrap().submit(now, request).unwrap();
        loop {
            let (raw, drive) = (self.raw.as_mut().unwrap(), self.drive.as_mut().unwrap());
            let moved = self.runner.step(&mut [raw, drive], Nanos::MAX);
            let Some(done) = self.raw.as_mut().unwrap().reap() else {
                assert!(moved, "a read does not complete");
                continue;
            };
            if done.tag == tag {
                return done.status;
            }
            let slot = done.tag as usize;
            let flight = self.in_flight[slot].take().expect("one completion per request");
            self.on_completion(slot, &flight, done.status);
        }
    }

    /// Returns a range that no command in flight changes. If the range is to be changed, no command
    /// in flight reads it either.
    pub(super) fn range(&mut self, change: bool) -> Option<(u64, u32)> {
        let most = SECTORS.min(self.oracle.len() as u32 / 4).max(1);
        let few = self.rng.chance(0.7);
        let n = 1 + self.rng.below(if few { most.min(6) } else { most }.into()) as usize;
        // Half of all commands address an eighth of the sectors.
        let hot = self.rng.chance(0.5);
        let span = if hot { self.oracle.len() / 8 } else { self.oracle.len() }.max(n);
        let lba = self.rng.below((span - n + 1) as u64) as usize;
        let free = |s: &Sector| !s.changing && (!change || s.reading == 0);
        self.oracle[lba..lba + n].iter().all(free).then_some((lba as u64, n as u32))
    }

    fn submit(&mut self) {
        let Some(slot) = self.in_flight.iter().position(Option::is_none) else { return };
        let (at, tag) = (self.at.offset(self.slot(slot) as u64), slot as u64);
        let kind = self.rng.below(100);
        if kind < 5 {
            let held = self.oracle.iter().map(|s| s.model.flush_mark()).collect();
            let request = Request::flush(tag);
            return self.send(
                slot,
                InFlight { request, value_seqs: vec![], seqs_at_submit: held, durable: false },
            );
        }
        let Some((lba, n)) = self.range(kind < 75) else { return };
        let mut request = match kind {
            5..60 => Request::write(lba, n, Payload::Contiguous(at), tag),
            60..66 => Request::write_zeroes(lba, n, self.rng.chance(0.5), tag),
            66..75 => Request::discard(lba, n, tag),
            _ => Request::read(lba, n, Payload::Contiguous(at), tag),
        };
        let range = lba as usize..(lba + u64::from(n)) as usize;
        if request.op == Op::Read {
            self.oracle[range].iter_mut().for_each(|s| s.reading += 1);
            let (numbers, held) = (vec![], vec![]);
            return self.send(
                slot,
                InFlight { request, value_seqs: numbers, seqs_at_submit: held, durable: false },
            );
        }
        request.fua = request.op != Op::Discard && self.rng.chance(0.1);
        let trims = request.op == Op::Discard || request.deallocate && !request.fua;
        let durable = match self.config.write_buffer {
            // The page cache of the host is a write cache.
            _ if matches!(self.medium, Medium::CrashedHost { .. }) => request.fua,
            WriteBuffer::None => !trims,
            WriteBuffer::Volatile { .. } => request.fua,
            // Data that is only in the buffer does not survive the death of the process. A drive
            // without spare chunks cannot store the trims that its capacitors would save.
            WriteBuffer::PowerLossProtected { .. } => {
                request.fua || self.medium == Medium::Memory && !(self.failing && trims)
            }
        };
        let mut bytes = vec![0; self.sector_bytes];
        let mut numbers = Vec::with_capacity(n as usize);
        for i in self.changed_range(&request) {
            let value = if request.op == Op::Write {
                self.value += 1;
                encode(self.value, &mut bytes);
                let offset = self.slot(slot) + (i - lba as usize) * self.sector_bytes;
                self.memory.write(offset, &bytes);
                self.value
            } else {
                0
            };
            numbers.push(self.oracle[i].model.send_next(value));
            self.oracle[i].changing = true;
        }
        self.send(slot, InFlight { request, value_seqs: numbers, seqs_at_submit: vec![], durable });
    }

    fn send(&mut self, slot: usize, flight: InFlight) {
        let now = self.runner.now();
        self.raw.as_mut().unwrap().submit(now, flight.request).unwrap();
        self.in_flight[slot] = Some(flight);
    }

    fn wait(&mut self) {
        while self.is_waiting() {
            self.step();
        }
    }

    fn cut_power(&mut self) {
        self.cuts += 1;
        let mut drive = self.drive.take().unwrap();
        self.reclaimed += drive.ftl().unwrap().stats().lines_reclaimed;
        self.hot_sectors += drive.stats().rules.map_or(0, |rules| rules.hot_sectors);
        let partial = drive.stats().read_modify_write;
        assert_eq!(partial.is_some(), self.unit_blocks > 1);
        self.partial_units += partial.map_or(0, |stats| stats.units);
        if let Some(file) = &self.host_file {
            drop(drive);
            // Otherwise only the drive's process dies.
            let crashed = self.rng.chance(0.7);
            if crashed {
                file.crash(&mut self.rng);
            }
            drive = file.open(crashed, || Controller::new(self.config.clone()).unwrap());
        } else if self.medium == Medium::Image {
            drop(drive);
            drive = Controller::new(self.config.clone()).unwrap();
        } else {
            drive = drive.power_cut().power_on().unwrap();
        }
        // Completions posted before the cut count as acknowledged, even if the host has not reaped
        // them. Requests whose sectors would need another check count as not completed.
        let raw = self.raw.as_mut().unwrap();
        let posted: Vec<_> = std::iter::from_fn(|| raw.reap()).collect();
        for done in posted {
            let slot = done.tag as usize;
            if done.status.is_success() {
                let flight = self.in_flight[slot].take().expect("one completion per request");
                self.on_completion(slot, &flight, done.status);
            }
        }
        self.reap_block_commands(true);
        self.in_flight.fill(None);
        self.failed_ranges.clear();
        // A second cut may follow before anything is written.
        while self.rng.chance(0.2) && self.medium == Medium::Memory {
            drive = drive.power_cut().power_on().unwrap();
        }
        assert_eq!(drive.check_invariants(), Ok(()));
        self.drive = Some(drive);
        self.attach();
        self.check_all();
    }

    fn check_all(&mut self) {
        let mut lba = 0;
        while lba < self.oracle.len() {
            let n = 256.min(self.oracle.len() - lba);
            for (i, value) in self.read_now(lba as u64, n as u32).into_iter().enumerate() {
                let sector = &mut self.oracle[lba + i];
                assert!(
                    sector.model.allows(value),
                    "sector {} holds {value} after a power cut, but may hold {sector:?}; {:?}",
                    lba + i,
                    self.config
                );
                *sector = Sector::new(value);
            }
            lba += n;
        }
    }

    pub(crate) fn run(&mut self) {
        let commands = 100 + self.rng.below(500);
        let eager = self.rng.below(6);
        for _ in 0..commands {
            self.submit();
            self.submit_block_command();
            for _ in 0..self.rng.below(eager + 1) {
                self.step();
            }
            if self.rng.chance(0.008) {
                self.cut_power();
            }
            if let Some(file) = &self.host_file
                && self.rng.chance(0.02)
            {
                file.record_versions();
            }
        }
        self.wait();
        self.cut_power();
        assert_eq!(self.drive.as_ref().unwrap().stats().late.max, Nanos::ZERO);
    }
}
