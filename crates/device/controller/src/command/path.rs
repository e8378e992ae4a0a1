//! The path of a command through a [`Controller`]: fetch, parse, the stages of the controller
//! (fetch, data transfer, completion), the personality, and the post when the completion is due.
//!
//! The controller processes events in time order. A poll at `now` first processes all earlier
//! events at the times at which they were due. A late poll therefore delays completions, but
//! changes no timing inside the drive (ARCHITECTURE.md, R6).

use ftl::BatchWrite;
use mem::Iova;
use nvme::{CopyRange, IoCommand, NamedOp, PlaneMode, Sqe, Status, VectorHints, opcode};
use time::{Component, Nanos};
use tracepoint::Event;

use crate::admin::{AdminState, FailedCommand};
use crate::command::data_buffer::DataBuffer;
use crate::command::host_flush;
use crate::command::protection;
use crate::command::ranges::copy_ranges;
use crate::command::stage::Stage;
use crate::command::table::{returns_data, sends_data};
use crate::controller::{Controller, Personality};
use crate::faults::injection;
use crate::host_interface::registers;
use crate::namespaces::translation;
use crate::personality::block::{BlockDrive, DIRECT_TAG};
use crate::personality::rules::{commands as rules, output};
use crate::personality::spaces::ONLY_SPACE;
use crate::personality::{self, format};

impl Controller {
    pub(crate) fn effective_time(&self, time: Nanos) -> Nanos {
        if self.zero_latency { Nanos::ZERO } else { time }
    }

    /// Returns whether a command spends time in a stage: with zero latency only behind commands
    /// that entered it before. It must not overtake them: writes to a chunk of an open-channel
    /// drive start in the order in which they were submitted.
    #[inline]
    fn takes_time(&self, stage: Stage) -> bool {
        !self.zero_latency || self.stages.is_occupied(stage)
    }

    /// Fetches an entry from a queue and starts its fetch stage; skips a stage that takes no time.
    #[inline]
    fn accept(&mut self, now: Nanos, queue: usize) {
        let Some(q) = self.queues.submissions[queue].as_mut() else { return };
        let Some(sqe) = &q.fetch() else { return };
        let (owner, qid, admin) = (q.port, q.ring.qid(), q.admin);
        self.queues.count_fetched();
        if admin {
            return self.handle_admin(now, queue, sqe);
        }
        let port = &mut self.queues.ports[owner];
        let restricted = port.access.is_some();
        if self.commands.outstanding() == 0 {
            self.time.begin_busy(now);
        }
        let id = self.commands.add(&port.port, queue as u32, qid, sqe.cid.get());
        let cid = sqe.cid.get();
        tracepoint::trace_at(now, || Event::CommandFetched {
            id,
            port: port.port.number(),
            qid,
            cid,
        });
        self.commands.get_mut(id).fetched = now;
        let understood = self.parse_and_validate(id, owner, sqe);
        if restricted {
            self.consume_tokens(now, owner, self.commands.get(id).bytes);
        }
        if let Err(status) = understood {
            if translation::delays_refusals(self) {
                return translation::refuse(self, now, id, status);
            }
            self.commands.refuse(id, status);
            return self.commands.complete(id, status);
        }
        let fetch = self.config.controller.fetch_latency;
        if fetch > Nanos::ZERO && self.takes_time(Stage::Fetch) {
            self.stages.enqueue(Stage::Fetch, now, self.effective_time(fetch), id);
        } else {
            self.on_fetched(now, id);
        }
    }

    /// Turns a raw entry into a typed command, and checks everything that does not depend on the
    /// media.
    #[inline]
    fn parse_and_validate(&mut self, id: u32, owner: usize, sqe: &Sqe) -> Result<(), Status> {
        let nsid = sqe.nsid.get();
        if self.commands.checks_namespaces {
            self.commands.get_mut(id).nsid = nsid;
            translation::admit(self, owner, id, sqe)?;
        } else if nsid != 1 && !(nsid == u32::MAX && sqe.opcode == 0) {
            self.commands.get_mut(id).nsid = nsid;
            return Err(translation::missing(self, owner, nsid));
        }
        let parsed = IoCommand::parse(sqe).inspect_err(|_| {
            let vector = (opcode::io::VECTOR_RESET..=opcode::io::VECTOR_COPY).contains(&sqe.opcode);
            if vector && sqe.hints().is_err() {
                self.commands.get_mut(id).location = VectorHints::ERROR_LOCATION;
            }
        });
        let parsed = parsed.map_err(|status| output::status_without_rules(self, sqe, status));
        let block = u64::from(self.config.lba_bytes());
        let command = self.commands.get_mut(id);
        command.nsid = nsid;
        command.io = parsed?;
        let port = &mut self.queues.ports[owner];
        if let Some(rights) = &port.access {
            rights.authorize(&mut command.io).inspect_err(|_| port.stats.refused += 1)?;
            command.first_sector = rights.first_sector();
        }
        let bytes = match command.io {
            IoCommand::Read { nlb, .. }
            | IoCommand::Write { nlb, .. }
            | IoCommand::Compare { nlb, .. } => u64::from(nlb) * block,
            IoCommand::Copy { ranges, .. } => u64::from(ranges) * CopyRange::BYTES as u64,
            IoCommand::VectorRead { addresses, .. } | IoCommand::VectorWrite { addresses, .. } => {
                u64::from(addresses.count()) * block
            }
            IoCommand::DatasetManagement { ranges, .. } | IoCommand::DeviceTrim { ranges, .. } => {
                u64::from(ranges) * nvme::DsmRange::BYTES as u64
            }
            // The list of extents never has more entries than the range has sectors.
            IoCommand::LbaStatus { nlb, max_descriptors, .. } => {
                u64::from(max_descriptors.min(nlb)) * nvme::LbaStatusDescriptor::BYTES as u64
            }
            IoCommand::Rule(rule) => return output::parse_buffer(self, id, sqe, rule),
            IoCommand::Named(named) => block * u64::from(named.op.has_data()),
            IoCommand::Flush
            | IoCommand::WriteZeroes { .. }
            | IoCommand::Verify { .. }
            | IoCommand::WriteUncorrectable { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. } => 0,
        };
        let memory = command.port.memory();
        if sqe.mptr.get() != 0
            && let Personality::OpenChannel(drive) = &self.personality
        {
            let metadata = drive.metadata_bytes(&command.io);
            if metadata > 0 {
                let found = memory.find(Iova(sqe.mptr.get()), metadata);
                found.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                command.metadata = sqe.mptr.get();
            }
        }
        if bytes > 0 {
            command.data_buffer = DataBuffer::from_sqe(sqe, bytes, memory)?;
        }
        (command.bytes, command.dma_bytes) = (bytes, bytes);
        if self.config.protection.is_some() {
            protection::read_fields(command, sqe)?;
        }
        let hints = command.io.hints();
        let has_ranges = matches!(
            command.io,
            IoCommand::DatasetManagement { .. }
                | IoCommand::DeviceTrim { .. }
                | IoCommand::Copy { .. }
        );
        if has_ranges {
            copy_ranges(self, id, owner)?;
        }
        if self.commands.checks_namespaces {
            translation::translate(self, id)?;
        }
        if let Some(cmb) = &self.memory.cmb
            && let Some(range) = cmb.range(owner)
        {
            let command = self.commands.get_mut(id);
            let inside = command.data_buffer.bytes_within(bytes, &range);
            command.dma_bytes = command.dma_bytes.max(bytes) - inside;
            self.stats.cmb_bytes += inside;
        }
        if hints != VectorHints::NONE {
            self.count_hints(id, hints);
        }
        Ok(())
    }

    /// Counts a restricted host's command and charges its rate limits.
    #[inline]
    fn consume_tokens(&mut self, now: Nanos, owner: usize, bytes: u64) {
        let port = &mut self.queues.ports[owner];
        port.stats.commands += 1;
        port.stats.bytes += bytes;
        if let Some(rights) = &mut port.access {
            rights.consume_tokens(now, bytes);
        }
    }

    #[cold]
    fn count_hints(&mut self, id: u32, hints: VectorHints) {
        let (io, counts) = (&self.commands.get(id).io, &mut self.stats.hints);
        counts.plane_modes += u64::from(hints.planes != PlaneMode::Auto);
        counts.limited_retry += u64::from(hints.limited_retry);
        if hints.suspend {
            let reads = matches!(io, IoCommand::VectorRead { .. } | IoCommand::VectorCopy { .. });
            let array = match &self.personality {
                Personality::OpenChannel(d) => Some(&d.array),
                _ => None,
            };
            match reads && array.is_some_and(|a| a.can_suspend_on_hint()) {
                true => counts.suspend += 1,
                false => counts.suspend_ignored += 1,
            }
        }
    }

    /// Handles the end of the fetch stage: write data is transferred next.
    #[inline]
    fn on_fetched(&mut self, now: Nanos, id: u32) {
        let command = self.commands.get(id);
        let incoming = sends_data(&command.io);
        let rate = self.config.controller.write_bytes_per_sec();
        if incoming && rate > 0 && command.dma_bytes > 0 {
            let stage = match self.config.controller.dma_to_device_bytes_per_sec {
                0 => Stage::Dma,
                _ => Stage::DmaToDevice,
            };
            if self.takes_time(stage) {
                let time = self.effective_time(Nanos::transfer(command.dma_bytes, rate));
                return self.stages.enqueue(stage, now, time, id);
            }
        }
        self.start(now, id);
    }

    #[inline]
    pub(crate) fn start(&mut self, now: Nanos, id: u32) {
        tracepoint::trace_at(now, || Event::CommandStarted { id });
        match &mut self.personality {
            Personality::Block(_) if self.commands.rules.is_some() => rules::start(self, now, id),
            Personality::Block(d) => {
                d.start(now, id, ONLY_SPACE, &mut self.commands, self.admin.cache_enabled());
            }
            _ => self.start_without_ftl(now, id),
        }
    }

    /// Starts a command of a drive that does not manage flash.
    #[inline(never)]
    fn start_without_ftl(&mut self, now: Nanos, id: u32) {
        let commands = &mut self.commands;
        match &mut self.personality {
            Personality::Block(_) => {}
            Personality::Null(d) => d.start(now, id, commands),
            Personality::Pcm(d) => d.start(now, id, commands),
            Personality::OpenChannel(d) => {
                let owner = self.queues.owner(commands.get(id).queue as usize);
                let rights = owner.and_then(|port| self.queues.ports[port].access.as_deref());
                d.start(now, id, commands, rights.map(|r| &r.pus));
            }
        }
    }

    /// Sends completed commands on: read data is transferred first.
    #[inline(always)]
    fn send_completed(&mut self, now: Nanos) {
        if !self.commands.completed.is_empty() {
            self.send_all_completed(now);
        }
    }

    #[inline(never)]
    fn send_all_completed(&mut self, now: Nanos) {
        if self.config.media.data().flushes_to_host() {
            host_flush::flush_completed(self);
        }
        let rate = self.config.controller.dma_bytes_per_sec;
        let is_timed = rate > 0 && !self.zero_latency;
        let mut next = 0;
        while let Some(&id) = self.commands.completed.get(next) {
            next += 1;
            tracepoint::trace_at(now, || Event::CommandCompleted { id });
            let command = self.commands.get(id);
            let bytes = command.dma_bytes;
            if returns_data(command) && is_timed && bytes > 0 {
                self.stages.enqueue(Stage::Dma, now, Nanos::transfer(bytes, rate), id);
            } else {
                self.on_transferred(now, id);
            }
        }
        self.commands.completed.clear();
    }

    #[inline]
    fn on_transferred(&mut self, now: Nanos, id: u32) {
        let complete = self.effective_time(self.config.controller.completion_latency);
        self.commands.get_mut(id).due = now + complete;
        if complete > Nanos::ZERO {
            self.stages.enqueue_delay(Stage::Post, now, complete, id);
        } else {
            self.complete(id);
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, id: u32) {
        let command = self.commands.get(id);
        self.lateness.record_completion(command.due, self.time.now, &self.gaps);
        tracepoint::trace_at(command.due, || Event::CommandPosted { id });
        if let Some(times) = &mut self.command_times {
            // The command was fetched before timing was enabled, so its time is not known.
            times.record(self.time.now, command);
        }
        if let Some(monitor) = &mut self.admin.latency_monitor {
            let now = self.time.now;
            monitor.record(now, &command.io, now.since(command.fetched));
        }
        match command.io {
            IoCommand::Read { .. }
            | IoCommand::VectorRead { .. }
            | IoCommand::Compare { .. }
            | IoCommand::Named(nvme::NamedCommand { op: NamedOp::Read, .. }) => {
                self.stats.reads += 1;
                self.stats.bytes_read += command.bytes;
            }
            IoCommand::Write { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::VectorCopy { .. }
            | IoCommand::Named(nvme::NamedCommand { op: NamedOp::Write, .. }) => {
                self.stats.writes += 1;
                self.stats.bytes_written += command.bytes;
            }
            IoCommand::Rule(_) => {
                self.stats.others += 1;
                self.stats.bytes_read += command.bytes;
            }
            _ => self.stats.others += 1,
        }
        if !command.status.is_success() {
            self.stats.errors += 1;
            self.log_failure(id);
        }
        let command = self.commands.get(id);
        let (queue, cid) = (command.queue as usize, command.cid);
        let (status, result) = (command.status, command.result);
        let due = command.due;
        self.commands.release(id);
        if self.commands.outstanding() == 0 {
            self.time.end_busy(due);
        }
        if self.commands.checks_namespaces {
            format::start_waiting(self);
        }
        self.queues.post(queue, cid, status, result);
    }

    /// Appends a failed command to the error log of its host.
    #[cold]
    fn log_failure(&mut self, id: u32) {
        let command = self.commands.get(id);
        let (queue, status) = (command.queue as usize, command.status);
        let error = FailedCommand {
            sqid: command.sq_id,
            cid: command.cid,
            location: command.location,
            lba: translation::first_lba_in_error(self, id),
            nsid: command.nsid,
            detail: 0,
        };
        self.admin_for_queue(queue).log_error(status, &error);
        self.check_health();
    }

    /// Returns the admin state of the host that owns a queue.
    pub(crate) fn admin_for_queue(&mut self, queue: usize) -> &mut AdminState {
        match self.queues.owner(queue).and_then(|p| self.queues.ports[p].access.as_mut()) {
            Some(rights) => &mut rights.admin,
            None => &mut self.admin,
        }
    }

    #[inline]
    fn media_deadline(&self) -> Nanos {
        match &self.personality {
            Personality::Block(d) => d.deadline(),
            _ => self.deadline_without_ftl(),
        }
    }

    #[inline(never)]
    fn deadline_without_ftl(&self) -> Nanos {
        match &self.personality {
            Personality::Block(_) => Nanos::MAX,
            Personality::Null(d) => d.deadline(),
            Personality::Pcm(d) => d.deadline(),
            Personality::OpenChannel(d) => d.array.deadline(),
        }
    }

    /// Advances the media to their next event.
    #[inline]
    fn media_step(&mut self, now: Nanos) -> Nanos {
        match &mut self.personality {
            Personality::Block(d) if d.is_scrub_due(now) => {
                let at = self.time.at.max(d.deadline());
                d.run_scrub(at);
                at
            }
            Personality::Block(d) => {
                // The FTL works before time advances.
                let limit = match d.has_ftl_work() {
                    true => self.time.at,
                    false => now.min(d.media_event_handler.deadline().max(self.time.at)),
                };
                let mut at = d.array.advance(limit);
                while let Some(done) = d.array.pop_completion() {
                    d.on_op_complete(at, done, &mut self.commands);
                    self.faults.count_op(&mut self.stages);
                    // With zero latency many operations complete at one instant.
                    let due = self.zero_latency && at == self.time.at && d.is_op_due(at);
                    if !due || !self.commands.completed.is_empty() || self.stages.next_at() <= at {
                        break;
                    }
                    at = d.array.advance(at);
                }
                at
            }
            _ => self.step_without_ftl(now),
        }
    }

    /// Advances the media of a drive that does not manage flash to their next event.
    #[inline(never)]
    fn step_without_ftl(&mut self, now: Nanos) -> Nanos {
        let commands = &mut self.commands;
        match &mut self.personality {
            Personality::Block(_) => now,
            Personality::Null(d) => {
                let at = d.deadline();
                d.step(at, commands);
                at
            }
            Personality::Pcm(d) => {
                let at = d.deadline();
                d.step(now, commands);
                at
            }
            Personality::OpenChannel(d) => {
                let at = d.array.advance(now);
                if let Some(done) = d.array.pop_completion() {
                    d.on_op_complete(at, done, commands);
                    self.faults.count_op(&mut self.stages);
                }
                if d.array.media_events.has_pending() {
                    self.log_media_events();
                }
                at
            }
        }
    }

    /// Processes the events that are due by `now`, each at the time at which it was due. Returns
    /// whether there were any, and the time of the next event.
    #[inline(always)]
    fn process_events(&mut self, now: Nanos) -> (bool, Nanos) {
        let mut moved = false;
        loop {
            let (media, stages) = (self.media_deadline(), self.stages.next_at());
            let next = media.min(stages);
            if next > now {
                return (moved, next);
            }
            moved = true;
            if !self.run_ftl_before(next) {
                self.process_event(now, media, stages);
            }
        }
    }

    /// Before time advances to `next`, the FTL does the work that became possible at the present
    /// instant. Returns whether there was any, after which an earlier event may be the next one.
    #[inline]
    fn run_ftl_before(&mut self, next: Nanos) -> bool {
        let has_worked = next > self.time.at && self.run_ftl(self.time.at);
        if has_worked {
            self.send_completed(self.time.at);
        }
        has_worked
    }

    /// Processes the next event: of the media at `media`, or of a stage at `stages`.
    #[inline(never)]
    fn process_event(&mut self, now: Nanos, media: Nanos, stages: Nanos) {
        let next = media.min(stages);
        self.time.at = self.time.at.max(next);
        let at = if next == media {
            // The media may pass several instants before an operation completes; they must not pass
            // the next event of another part. An operation that could not start completes at once.
            let limit = if media < self.time.at { self.time.at } else { stages.min(now) };
            let at = self.media_step(limit);
            self.time.reach(at);
            at
        } else {
            let Some((stage, at, id)) = self.stages.dequeue(next) else {
                injection::end_due(self, self.time.at);
                return self.send_completed(self.time.at);
            };
            match stage {
                Stage::Fetch => self.on_fetched(at, id),
                Stage::Dma if !sends_data(&self.commands.get(id).io) => {
                    self.on_transferred(at, id);
                }
                Stage::Dma | Stage::DmaToDevice => self.start(at, id),
                Stage::Post => self.complete(id),
            }
            at
        };
        self.send_completed(at);
    }

    fn run_ftl(&mut self, now: Nanos) -> bool {
        match &mut self.personality {
            Personality::Block(d) => {
                let has_worked = d.run_ftl(now, &mut self.commands);
                if has_worked && self.commands.follows_ftl {
                    personality::follow_ftl(self, now);
                }
                has_worked
            }
            _ => false,
        }
    }
}

impl Component for Controller {
    fn poll(&mut self, now: Nanos) -> bool {
        self.time.powered_at.get_or_insert(now);
        self.queues.begin_poll();
        if self.queues.has_registers {
            registers::poll(self, now);
        }
        self.process_until::<true>(now).0
    }

    fn deadline(&self) -> Nanos {
        // Completions that wait for a free entry set no deadline: the host wakes the drive when it
        // frees one.
        self.next_internal_at().min(self.queues.throttled_until())
    }
}

impl Controller {
    /// Processes the drive's own events before `limit`, until it posts a completion. Returns the
    /// time of the last event if it has posted one ([`posted`](Controller::posted)), and else the
    /// drive's deadline, which is not before `limit`.
    ///
    /// This equals polls at one deadline after the other. It is faster because it reads no
    /// doorbells: no host may have been polled since the last [`poll`](Component::poll).
    pub fn run_before(&mut self, limit: Nanos) -> Nanos {
        let posted = self.queues.posts();
        while !self.queues.are_drained() {
            // A command waits for a token, or for commands before it.
            let at = self.deadline();
            if at >= limit {
                return at;
            }
            self.poll(at);
            if self.queues.posts() != posted {
                return at;
            }
        }
        self.run_drained_before(limit, posted)
    }

    /// Processes the events before `limit` in the order of their times, until a completion is
    /// posted besides the first `posted` ones. All queues are empty.
    fn run_drained_before(&mut self, limit: Nanos, posted: u64) -> Nanos {
        let Some(last) = limit.0.checked_sub(1).map(Nanos) else { return self.next_internal_at() };
        loop {
            let (media, stages) = (self.media_deadline(), self.stages.next_at());
            let next = media.min(stages);
            if !self.run_ftl_before(next) {
                if next > last {
                    return next;
                }
                self.time.now = self.time.now.max(next);
                self.process_event(last, media, stages);
            }
            if self.queues.posts() != posted {
                // The drive also processes the other events of this instant.
                let at = self.time.at;
                self.process_until::<false>(at);
                return at;
            }
        }
    }

    /// Processes everything that is due by `now`. With `FETCH`, fetches new commands, too. Returns
    /// whether there was anything, and the time of the drive's next event.
    #[inline(always)]
    fn process_until<const FETCH: bool>(&mut self, now: Nanos) -> (bool, Nanos) {
        self.time.now = self.time.now.max(now);
        let mut moved = false;
        loop {
            let (processed, mut next) = self.process_events(now);
            moved |= processed;
            if now > self.time.at {
                if self.run_ftl(self.time.at) {
                    self.send_completed(self.time.at);
                    moved = true;
                    continue;
                }
                self.time.at = now;
            }
            let mut fetched = false;
            while FETCH && let Some(queue) = self.queues.next_queue(now) {
                self.accept(now, queue);
                self.send_completed(now);
                fetched = true;
            }
            let settled = self.run_ftl(now);
            self.send_completed(now);
            if fetched {
                next = self.next_internal_at();
            }
            moved |= fetched | settled;
            if !settled && next > now {
                return (moved | self.queues.flush_completions(), next);
            }
        }
    }

    /// Processes everything that was due before `now`, without new commands.
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        if let Some(before) = now.0.checked_sub(1)
            && before >= self.time.at.0
        {
            self.process_until::<false>(Nanos(before));
        }
        self.time.now = self.time.now.max(now);
    }

    #[inline]
    fn next_internal_at(&self) -> Nanos {
        self.media_deadline().min(self.stages.next_at())
    }
}

/// Writes that reach the drive's FTL without commands, for preconditioning: with zero latency and
/// without data, a queue pair and a command add only time to a write. The drive runs its FTL, its
/// flash array and their events in the same order as for the commands of one host, so that its state
/// afterwards is the same.
impl Controller {
    /// Whether the drive takes direct writes: it has an FTL without rules and only its original
    /// namespace, its media store no data, it has no restricted host, and it runs with [zero latency](Controller::set_zero_latency).
    pub fn takes_direct_writes(&self) -> bool {
        self.zero_latency
            && !self.commands.checks_namespaces
            && self.commands.rules.is_none()
            && self.queues.ports.iter().all(|port| port.access.is_none())
            && matches!(&self.personality, Personality::Block(drive) if !drive.stores_data())
    }

    /// Queues a write of `sectors` sectors from `lba` on, in units that the drive's FTL maps, which
    /// may have several logical blocks. It is executed by the next
    /// [`run_direct_writes`](Controller::run_direct_writes). Tags are below 2^63 − 1.
    ///
    /// # Panics
    /// If the drive takes no direct writes ([`takes_direct_writes`](Controller::takes_direct_writes)).
    pub fn write_directly(&mut self, tag: u64, lba: u64, sectors: u32) {
        let (drive, cache_enabled) = self.direct_drive();
        drive.write_directly(DIRECT_TAG | tag, lba, sectors, cache_enabled);
    }

    /// Returns the part of the drive that takes direct writes, and whether its cache is enabled.
    fn direct_drive(&mut self) -> (&mut BlockDrive, bool) {
        match &mut self.personality {
            Personality::Block(d) if !d.stores_data() => (d, self.admin.cache_enabled()),
            _ => panic!("the drive takes no direct writes"),
        }
    }

    /// Queues writes, as [`write_directly`](Controller::write_directly) does for each of them, and
    /// processes everything that is due by `now`. Returns the number of those that completed in the
    /// write buffer. The others are [removed](Controller::pop_direct_write) one by one.
    ///
    /// # Panics
    /// As [`write_directly`](Controller::write_directly).
    pub fn write_batch_directly(&mut self, now: Nanos, writes: &mut [BatchWrite]) -> u32 {
        let (drive, cache_enabled) = self.direct_drive();
        drive.write_batch_directly(writes, cache_enabled);
        self.process_until::<false>(now);
        self.direct_drive().0.spaces.first.take_batch_completions()
    }

    /// Processes everything that is due by `now`. Returns whether there was anything.
    pub fn run_direct_writes(&mut self, now: Nanos) -> bool {
        self.process_until::<false>(now).0
    }

    /// Removes and returns the tag and the status of a completed direct write.
    pub fn pop_direct_write(&mut self) -> Option<(u64, Status)> {
        self.direct_drive().0.pop_direct_write()
    }
}
