//! [`Drive`]: the controller. Fetches commands, passes them through its own stations (fetch, data
//! transfer, completion) and its personality, and posts completions at the time they are due.
//!
//! Everything happens in the order of time: a poll at `now` first lets all that was due before
//! happen at the time it was due, so that a late poll delays completions but changes no timing
//! inside of the drive (rule R6).

use std::io;
use std::sync::Arc;

use clock::{Component, Nanos};
use media::{DataStore, MediaConfig, Nand, Pcm};
use nvme::{AdminCommand, IoCommand, Sqe, Status};
use ring::{CompletionDrive, Iova, Port, SubmissionDrive};

use crate::admin::{AdminState, HealthCounters};
use crate::block::BlockDrive;
use crate::commands::Commands;
use crate::error::DriveError;
use crate::flash::FlashArray;
use crate::null::NullDrive;
use crate::open_channel::OpenChannelDrive;
use crate::payload::Payload;
use crate::pcm::PcmDrive;
use crate::queues::Queues;
use crate::station::Station;
use crate::stats::LatenessRecord;
use crate::trace::Span;
use crate::{DriveConfig, DriveStats, PersonalityKind, PuBusy, WriteBuffer};

/// What the drive exposes, and over what.
#[derive(Debug)]
pub(crate) enum Personality {
    Null(NullDrive),
    Block(Box<BlockDrive>),
    Pcm(Box<PcmDrive>),
    OpenChannel(Box<OpenChannelDrive>),
}

/// An emulated drive. Poll it (rule R2); talk to it through [`Drive::attach`].
#[derive(Debug)]
pub struct Drive {
    pub(crate) config: DriveConfig,
    pub(crate) personality: Personality,
    pub(crate) commands: Commands,
    pub(crate) queues: Queues,
    pub(crate) admin: AdminState,
    /// Asynchronous event requests: queue and command identifier.
    pub(crate) events: Vec<(usize, u16)>,
    fetch: Station,
    dma: Station,
    post: Station,
    instant: bool,
    late: LatenessRecord,
    counts: DriveStats,
    powered_at: Option<Nanos>,
    /// The last poll.
    now: Nanos,
    /// The instant that the drive has got to: that of the last poll or before, while a late poll
    /// catches up.
    at: Nanos,
}

impl Drive {
    /// Powers a drive on. Its image, if it has one, is created if it is missing; what was written
    /// before is recovered.
    ///
    /// # Errors
    /// [`DriveError`]: what cannot be, and images that cannot be opened.
    pub fn new(config: DriveConfig) -> Result<Drive, DriveError> {
        config.check()?;
        let personality = match (&config.media, config.personality) {
            (MediaConfig::Nand(nand), kind) => {
                let array = FlashArray::new(Nand::open_or_create(nand.clone())?, &config);
                Drive::over_nand(array, kind, &config)?
            }
            (MediaConfig::Pcm(pcm), _) => {
                Personality::Pcm(Box::new(PcmDrive::new(Pcm::open_or_create(pcm.clone())?)))
            }
            (MediaConfig::Null { bytes, sector_bytes }, _) => {
                Personality::Null(NullDrive::new(config.null, *bytes, *sector_bytes))
            }
        };
        Drive::with_personality(config, personality)
    }

    pub(crate) fn over_nand(
        array: FlashArray,
        kind: PersonalityKind,
        config: &DriveConfig,
    ) -> Result<Personality, DriveError> {
        Ok(match kind {
            PersonalityKind::OpenChannel => {
                Personality::OpenChannel(Box::new(OpenChannelDrive::new(array)?))
            }
            _ => {
                let drive = BlockDrive::new(array, config.ftl, config.write_buffer)?;
                Personality::Block(Box::new(drive))
            }
        })
    }

    pub(crate) fn with_personality(
        config: DriveConfig,
        personality: Personality,
    ) -> Result<Drive, DriveError> {
        let facts = crate::facts::of(&config, &personality);
        Ok(Drive {
            queues: Queues::new(config.controller.arbitration),
            admin: AdminState::new(facts)?,
            commands: Commands::default(),
            events: Vec::new(),
            fetch: Station::default(),
            dma: Station::default(),
            post: Station::default(),
            instant: false,
            late: LatenessRecord::new(),
            counts: DriveStats::default(),
            powered_at: None,
            now: Nanos::ZERO,
            at: Nanos::ZERO,
            personality,
            config,
        })
    }

    /// Connects a host: a port with its admin queues ready.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn attach(&mut self) -> io::Result<Arc<Port>> {
        let port = Port::new()?;
        let index = self.queues.ports.len();
        let (sq, sq_depth) = port.admin_submission();
        let (cq, cq_depth) = port.admin_completion();
        let submission = SubmissionDrive::open(&port, 0, sq, sq_depth).map_err(io::Error::other)?;
        let completion =
            CompletionDrive::open(&port, 0, cq, cq_depth, Some(0)).map_err(io::Error::other)?;
        self.queues.ports.push(port.clone());
        let completion = self.queues.add_completion(completion, index, 0);
        let urgent = nvme::QueuePriority::Urgent;
        self.queues.add_submission(submission, index, completion, urgent);
        Ok(port)
    }

    /// What describes the drive.
    pub fn config(&self) -> &DriveConfig {
        &self.config
    }

    /// Sectors that a host sees, all of the medium for an open-channel drive.
    pub fn sectors(&self) -> u64 {
        match &self.personality {
            Personality::Null(d) => d.sectors,
            Personality::Block(d) => d.ftl.sectors(),
            Personality::Pcm(d) => d.sectors,
            Personality::OpenChannel(d) => d.geometry.total_sectors(),
        }
    }

    /// The translation layer, if the drive manages its own flash.
    pub fn ftl(&self) -> Option<&ftl::Ftl> {
        match &self.personality {
            Personality::Block(d) => Some(&d.ftl),
            _ => None,
        }
    }

    pub(crate) fn array(&self) -> Option<&FlashArray> {
        match &self.personality {
            Personality::Block(d) => Some(&d.array),
            Personality::OpenChannel(d) => Some(&d.array),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    pub(crate) fn array_mut(&mut self) -> Option<&mut FlashArray> {
        match &mut self.personality {
            Personality::Block(d) => Some(&mut d.array),
            Personality::OpenChannel(d) => Some(&mut d.array),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    /// The NAND medium, to look at or to make fail on cue.
    pub fn nand_mut(&mut self) -> Option<&mut Nand> {
        self.array_mut().map(|a| &mut a.nand)
    }

    /// Lets everything take no time at all, to bring a drive into a state quickly; or its own time
    /// again. Operations under way end when they would have.
    pub fn set_instant(&mut self, instant: bool) {
        self.instant = instant;
        match &mut self.personality {
            Personality::Block(d) => d.array.instant = instant,
            Personality::OpenChannel(d) => d.array.instant = instant,
            Personality::Pcm(d) => d.instant = instant,
            Personality::Null(_) => {}
        }
    }

    /// Collects what the flash does when, for [`Drive::take_spans`].
    pub fn enable_trace(&mut self) {
        if let Some(array) = self.array_mut() {
            array.trace.enable();
        }
    }

    /// What the flash did since the last call.
    pub fn take_spans(&mut self) -> Vec<Span> {
        self.array_mut().map(|a| a.trace.take()).unwrap_or_default()
    }

    /// Operations waiting or running on a parallel unit.
    pub fn pu_depth(&self, pu: u32) -> usize {
        self.array().map_or(0, |a| a.depth(pu))
    }

    /// Whether no command and no operation of the flash is under way.
    pub fn is_idle(&self) -> bool {
        self.commands.outstanding() == 0 && self.array().is_none_or(FlashArray::is_idle)
    }

    /// Counters.
    pub fn stats(&self) -> DriveStats {
        let mut stats = self.counts.clone();
        stats.late = self.late.read();
        stats.invalid_doorbells = self.queues.invalid_doorbells;
        if let Some(array) = self.array() {
            stats.media = Some(array.nand.stats());
            let busy = |b: &[Nanos; 3]| PuBusy { read: b[0], program: b[1], erase: b[2] };
            stats.pus = array.pus.iter().map(|p| busy(&p.busy)).collect();
            stats.channels = array.channels.iter().map(|c| c.busy).collect();
            stats.register_hits = array.pus.iter().map(|p| p.register_hits).sum();
        }
        match &self.personality {
            Personality::Block(d) => {
                stats.ftl = Some(*d.ftl.stats());
                stats.free_lines = Some(d.ftl.free_lines());
            }
            Personality::Pcm(d) => {
                let busy = |b: &[Nanos; 3]| PuBusy { read: b[0], program: b[1], erase: b[2] };
                stats.pus = d.busy.iter().map(busy).collect();
            }
            _ => {}
        }
        stats
    }

    /// Starts counting commands, busy times and lateness anew; counters of the translation layer
    /// and the medium go on.
    pub fn reset_stats(&mut self) {
        self.counts = DriveStats::default();
        self.late.reset();
        if let Some(array) = self.array_mut() {
            for pu in &mut array.pus {
                pu.busy = [Nanos::ZERO; 3];
                pu.register_hits = 0;
            }
            for channel in &mut array.channels {
                channel.busy = Nanos::ZERO;
            }
        }
        if let Personality::Pcm(d) = &mut self.personality {
            d.busy.fill([Nanos::ZERO; 3]);
        }
    }

    /// Writes everything buffered to the media and the image to its file: an orderly power-off.
    ///
    /// # Errors
    /// What `fsync(2)` on the image returns.
    pub fn shut_down(mut self) -> io::Result<()> {
        let now = self.now;
        match &mut self.personality {
            Personality::Block(d) => {
                d.drain(now, &mut self.commands);
                d.array.nand.sync()
            }
            Personality::OpenChannel(d) => d.array.nand.sync(),
            Personality::Pcm(d) => d.pcm.sync(),
            Personality::Null(_) => Ok(()),
        }
    }

    pub(crate) fn health(&self) -> HealthCounters {
        let media = self.array().map(|a| (a.nand.stats(), a.nand.config()));
        let powered = self.now.since(self.powered_at.unwrap_or(self.now));
        let mut health = HealthCounters {
            bytes_read: self.counts.bytes_read,
            bytes_written: self.counts.bytes_written,
            reads: self.counts.reads,
            writes: self.counts.writes,
            powered,
            power_cycles: 1,
            spare_percent: 100,
            ..HealthCounters::default()
        };
        if let Some((stats, config)) = media {
            let rated = match config.errors.endurance {
                0 => config.cell.rated_cycles(),
                n => n,
            };
            let used = stats.wear.mean * 100.0 / f64::from(rated);
            health.used_percent = used.min(255.0) as u8;
            health.media_errors = stats.uncorrectable_reads;
            health.power_cuts = stats.power_cuts;
            health.power_cycles += stats.power_cuts;
            let chunks = config.host_geometry().total_chunks().max(1);
            health.spare_percent = (100 - u64::from(stats.offline_chunks) * 100 / chunks) as u8;
        }
        health
    }

    fn time(&self, time: Nanos) -> Nanos {
        if self.instant { Nanos::ZERO } else { time }
    }

    /// Takes an entry off a queue: to its first station, or straight on if that takes no time.
    #[inline]
    fn accept(&mut self, now: Nanos, queue: usize, sqe: &Sqe) {
        let Some(q) = self.queues.submissions[queue].as_ref() else { return };
        let (port, qid) = (q.port, q.ring.qid());
        let port = &self.queues.ports[port];
        if q.admin {
            return self.administer(now, queue, sqe);
        }
        let id = self.commands.add(port, queue as u32, qid, sqe.cid.get());
        if let Err(status) = self.understand(id, sqe) {
            self.commands.end(id, status);
            return;
        }
        let fetch = self.time(self.config.controller.fetch);
        if fetch > Nanos::ZERO {
            self.fetch.serve(now, fetch, id);
        } else {
            self.fetched(now, id);
        }
    }

    /// From raw entry to typed command, with everything checked that does not depend on the media.
    #[inline]
    fn understand(&mut self, id: u32, sqe: &Sqe) -> Result<(), Status> {
        if sqe.nsid.get() != 1 && !(sqe.nsid.get() == u32::MAX && sqe.opcode == 0) {
            return Err(Status::INVALID_NAMESPACE);
        }
        let io = IoCommand::parse(sqe)?;
        let sector = u64::from(self.sector_bytes());
        let bytes = match io {
            IoCommand::Read { nlb, .. } | IoCommand::Write { nlb, .. } => u64::from(nlb) * sector,
            IoCommand::VectorRead { addresses } | IoCommand::VectorWrite { addresses } => {
                u64::from(addresses.count()) * sector
            }
            IoCommand::DatasetManagement { ranges, .. } => {
                u64::from(ranges) * nvme::DsmRange::BYTES as u64
            }
            // There are never more extents than sectors.
            IoCommand::LbaStatus { nlb, max_descriptors, .. } => {
                u64::from(max_descriptors.min(nlb)) * nvme::LbaStatusDescriptor::BYTES as u64
            }
            IoCommand::Flush
            | IoCommand::WriteZeroes { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. } => 0,
        };
        let metadata = match &self.personality {
            Personality::OpenChannel(d) if sqe.mptr.get() != 0 => d.metadata_bytes(&io),
            _ => 0,
        };
        let command = self.commands.get_mut(id);
        let memory = command.port.memory();
        if metadata > 0 {
            memory.find(Iova(sqe.mptr.get()), metadata).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            command.metadata = sqe.mptr.get();
        }
        if bytes > 0 {
            command.payload = Payload::of(sqe, bytes, memory)?;
        }
        (command.io, command.bytes) = (io, bytes);
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        match &self.config.media {
            MediaConfig::Nand(n) => n.geometry.sector_bytes,
            MediaConfig::Pcm(p) => p.sector_bytes,
            MediaConfig::Null { sector_bytes, .. } => *sector_bytes,
        }
    }

    /// A command has been fetched: data of writes comes in next.
    #[inline]
    fn fetched(&mut self, now: Nanos, id: u32) {
        let command = self.commands.get(id);
        let incoming =
            matches!(command.io, IoCommand::Write { .. } | IoCommand::VectorWrite { .. });
        let rate = self.config.controller.dma_bytes_per_sec;
        if incoming && rate > 0 && !self.instant {
            let time = Nanos::transfer(command.bytes, rate);
            self.dma.serve(now, time, id);
        } else {
            self.start(now, id);
        }
    }

    #[inline]
    fn start(&mut self, now: Nanos, id: u32) {
        let commands = &mut self.commands;
        match &mut self.personality {
            Personality::Null(d) => d.start(now, id, commands),
            Personality::Block(d) => d.start(now, id, commands, self.admin.cache_enabled()),
            Personality::Pcm(d) => d.start(now, id, commands),
            Personality::OpenChannel(d) => d.start(now, id, commands),
        }
    }

    /// Commands that the personality has ended go out: data of reads first.
    #[inline]
    fn send_done(&mut self, now: Nanos) {
        while let Some(id) = self.commands.done.pop_front() {
            let command = self.commands.get(id);
            let outgoing =
                matches!(command.io, IoCommand::Read { .. } | IoCommand::VectorRead { .. });
            let rate = self.config.controller.dma_bytes_per_sec;
            if outgoing && rate > 0 && !self.instant && command.status.is_success() {
                let time = Nanos::transfer(command.bytes, rate);
                self.dma.serve(now, time, id);
            } else {
                self.transferred(now, id);
            }
        }
    }

    #[inline]
    fn transferred(&mut self, now: Nanos, id: u32) {
        let complete = self.time(self.config.controller.complete);
        self.commands.get_mut(id).due = now + complete;
        if complete > Nanos::ZERO {
            self.post.delay(now, complete, id);
        } else {
            self.complete(id);
        }
    }

    #[inline]
    fn complete(&mut self, id: u32) {
        let command = self.commands.get(id);
        self.late.record(self.now.since(command.due));
        match command.io {
            IoCommand::Read { .. } | IoCommand::VectorRead { .. } => {
                self.counts.reads += 1;
                self.counts.bytes_read += command.bytes;
            }
            IoCommand::Write { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::VectorCopy { .. } => {
                self.counts.writes += 1;
                self.counts.bytes_written += command.bytes;
            }
            _ => self.counts.others += 1,
        }
        if !command.status.is_success() {
            self.counts.errors += 1;
            self.admin.note_error(command.sq_id, command.cid, command.status, 0);
        }
        let (queue, cid) = (command.queue as usize, command.cid);
        let (status, result) = (command.status, command.result);
        self.commands.release(id);
        self.queues.post(queue, cid, status, result);
    }

    #[inline]
    fn media_deadline(&self) -> Nanos {
        match &self.personality {
            Personality::Null(d) => d.deadline(),
            Personality::Block(d) => d.array.deadline(),
            Personality::Pcm(d) => d.deadline(),
            Personality::OpenChannel(d) => d.array.deadline(),
        }
    }

    /// Lets the media move on to the next thing that is due.
    #[inline]
    fn media_step(&mut self, now: Nanos) -> Nanos {
        let commands = &mut self.commands;
        match &mut self.personality {
            Personality::Null(d) => {
                let at = d.deadline();
                d.step(now, commands);
                at
            }
            Personality::Pcm(d) => {
                let at = d.deadline();
                d.step(now, commands);
                at
            }
            Personality::Block(d) => match d.array.next_done(now) {
                Some((at, done)) => {
                    d.operation_done(at, done, commands);
                    at
                }
                None => now,
            },
            Personality::OpenChannel(d) => match d.array.next_done(now) {
                Some((at, done)) => {
                    d.operation_done(at, done, commands);
                    at
                }
                None => now,
            },
        }
    }

    /// Lets the next thing that is due by `now` happen, at the time it was due.
    #[inline]
    fn step(&mut self, now: Nanos) -> bool {
        let media = self.media_deadline();
        let (fetch, dma, post) = (self.fetch.next_at(), self.dma.next_at(), self.post.next_at());
        let next = media.min(fetch).min(dma).min(post);
        if next > now {
            return false;
        }
        // Before time moves on, the translation layer does what became possible at this instant.
        if next > self.at && self.settle(self.at) {
            self.send_done(self.at);
            return true;
        }
        self.at = self.at.max(next);
        let at = if next == media {
            // The media may have several instants to go through before something ends; it must
            // not run past what else is due. What could not even begin ends at once.
            let limit = if media < self.at { self.at } else { fetch.min(dma).min(post).min(now) };
            self.media_step(limit)
        } else if let Some((at, id)) = self.fetch.leave(next) {
            self.fetched(at, id);
            at
        } else if let Some((at, id)) = self.dma.leave(next) {
            match self.commands.get(id).io {
                IoCommand::Write { .. } | IoCommand::VectorWrite { .. } => self.start(at, id),
                _ => self.transferred(at, id),
            }
            at
        } else if let Some((at, id)) = self.post.leave(next) {
            self.complete(id);
            at
        } else {
            return false;
        };
        self.send_done(at);
        true
    }

    fn settle(&mut self, now: Nanos) -> bool {
        match &mut self.personality {
            Personality::Block(d) => d.settle(now, &mut self.commands),
            _ => false,
        }
    }

    fn administer(&mut self, now: Nanos, queue: usize, sqe: &Sqe) {
        let cid = sqe.cid.get();
        match AdminCommand::parse(sqe).and_then(|c| self.carry_out(now, queue, cid, c, sqe)) {
            Ok(Some(result)) => self.queues.post(queue, cid, Status::SUCCESS, result),
            Ok(None) => {}
            Err(status) => {
                self.admin.note_error(0, cid, status, 0);
                self.queues.post(queue, cid, status, 0);
            }
        }
    }

    /// Power fails: everything volatile is lost, unless the write buffer has capacitors. What is
    /// left is the drive without power, to be powered on again; its hosts' ports are dead.
    pub fn power_cut(mut self) -> crate::PoweredOff {
        if let Personality::Block(d) = &mut self.personality {
            if matches!(self.config.write_buffer, WriteBuffer::PowerLossProtected { .. }) {
                d.drain(self.now, &mut self.commands);
            }
        }
        self.commands.clear();
        self.fetch.clear();
        self.dma.clear();
        self.post.clear();
        match &mut self.personality {
            Personality::Block(d) => d.array.power_cut(),
            Personality::OpenChannel(d) => d.power_cut(),
            Personality::Pcm(d) => d.power_cut(),
            Personality::Null(_) => {}
        }
        crate::PoweredOff::new(self.config, self.personality)
    }

    /// Whether contents are kept.
    pub fn keeps_data(&self) -> bool {
        match &self.config.media {
            MediaConfig::Nand(n) => n.data != DataStore::None,
            MediaConfig::Pcm(p) => p.data != DataStore::None,
            MediaConfig::Null { .. } => false,
        }
    }
}

impl Component for Drive {
    fn poll(&mut self, now: Nanos) -> bool {
        self.now = self.now.max(now);
        self.powered_at.get_or_insert(now);
        let mut moved = false;
        loop {
            while self.step(now) {
                moved = true;
            }
            if now > self.at {
                if self.settle(self.at) {
                    self.send_done(self.at);
                    moved = true;
                    continue;
                }
                self.at = now;
            }
            let mut fetched = false;
            while let Some((queue, sqe)) = self.queues.fetch() {
                self.accept(now, queue, &sqe);
                self.send_done(now);
                fetched = true;
            }
            let settled = self.settle(now);
            self.send_done(now);
            moved |= fetched | settled;
            if !settled && self.next_internal() > now {
                break;
            }
        }
        moved |= self.queues.notify();
        moved
    }

    fn deadline(&self) -> Nanos {
        // Completions that wait for room are no reason: a host that gives some back wakes the drive.
        self.next_internal()
    }
}

impl Drive {
    #[inline]
    fn next_internal(&self) -> Nanos {
        self.media_deadline()
            .min(self.fetch.next_at())
            .min(self.dma.next_at())
            .min(self.post.next_at())
    }
}
