//! [`Service`]: the service loop. It takes calls from slots, submits operations to the volume, and replies; with
//! nothing to do it sleeps on the doorbell.
//!
//! Guarantee: every call is answered once, in any order. A call that cannot start yet (the volume
//! is busy, or another call uses the open file's offset) is retried, in arrival order.

pub(crate) mod pipeline;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use block::BlockDevice;
use block::notify::{CompletionMethod, CompletionPolicy};
use event::RealClock;
use exec_proto::{AdaptiveSpin, Call, CallOp, slot_protocol};
use mem::{RegisterError, SharedRegion};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::thread::futex;
use time::{Component as _, Nanos};
use volume::{Error, Time, Volume, VolumeCompletion, VolumeOp, VolumeRequest};

use crate::connections::{
    ConnectionEvent, ConnectionManager, ServiceAddress, ring_doorbell, send_memory,
};
use crate::locks::{LockOwner, Locks};
use crate::open_files::OpenFiles;
use crate::pending_calls::{PendingCall, PendingCalls};
use crate::service::pipeline::completion::OnComplete;
use crate::service::pipeline::mapping_sync::{MappingSync, SYNC_REQUEST_ID};
use crate::service::pipeline::posted_writes::PostedWriteQueue;
use crate::session::ProcessSession;
use crate::shared_mappings::{MappingUpdate, SharedMappings};
use crate::speculation::{OutboxLimits, OutputSupervisor, Speculation, SpeculationStats};

/// Why a service stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A socket or memory operation failed.
    #[error("the file service: {0}")]
    Io(#[from] io::Error),
    /// The volume was not closed cleanly; durable data is safe.
    #[error("the volume was not closed in order: {0}")]
    Close(Error),
}

/// Counters of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Calls answered.
    pub calls: u64,
    /// Posted writes executed.
    pub posted_writes: u64,
    /// Malformed calls.
    pub refused: u64,
    /// Processes that had a session.
    pub sessions: u64,
    /// Files and directories opened.
    pub opened: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Counters of the volume.
    pub store: volume::Stats,
    /// Number of shared mappings created.
    pub mapped: u64,
    /// Bytes changed by mappings and written back.
    pub written_back: u64,
    /// Files whose write-back failed after their last mapping was removed.
    pub writeback_failures: u64,
    /// Counters of speculation; all 0 without.
    pub speculation: SpeculationStats,
}

/// Session and slot of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) session: usize,
    pub(crate) slot: usize,
}

/// Result of starting a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartResult {
    /// Completed with this reply: a count, or a negative error number.
    Completed(i64),
    /// An operation of the volume is in flight.
    Pending,
    /// Retry after another operation has completed.
    Retry,
}

/// Tells a service, from another thread, that the program has ended. The service stops when no
/// process has files open.
#[derive(Clone, Debug)]
pub struct ServiceStopHandle {
    doorbell: Arc<SharedRegion>,
}

/// Offset of the stop flag in the doorbell's memory; only this process reads it.
const STOPPED_OFFSET: usize = 128;

impl ServiceStopHandle {
    /// Reports that the program has ended.
    pub fn stop(&self) {
        self.doorbell.atomic_u32(STOPPED_OFFSET).store(1, Ordering::SeqCst);
        ring_doorbell(&self.doorbell);
    }
}

/// Polls of the service before it sleeps.
#[derive(Clone, Copy, Debug)]
struct SpinLimits {
    /// Maximum rounds without work.
    rounds_max: u32,
    /// Time within which spinning pays. The service yields the processor between rounds, so on a
    /// loaded machine a few rounds can take long.
    time_max: Nanos,
}

/// With operations in flight; the device wakes the service.
const BUSY_SPIN: SpinLimits = SpinLimits { rounds_max: 64, time_max: Nanos::from_micros(30) };
/// Without operations. The next call often follows at once.
const IDLE_SPIN: SpinLimits = SpinLimits { rounds_max: 200, time_max: Nanos::from_micros(100) };
/// Sleep between polls of a device that cannot wake the service.
const POLL_SLEEP: Nanos = Nanos::from_micros(50);
/// Free blocks needed per waiting call: the maximum that one call writes, with both ends. Below
/// that, close events are processed before any write, because they may free blocks.
const CALL_BLOCKS_MAX: u64 = exec_proto::DATA_BYTES as u64 / volume::BLOCK as u64 + 2;
/// Maximum sleep.
const SLEEP_MAX: Nanos = Nanos::from_millis(1000);
/// Maximum number of sessions of live processes, limited by the device's memory registrations.
const SESSIONS_MAX: usize = 900;

/// A call taken from a slot; `None` if it is malformed.
#[derive(Clone, Copy, Debug)]
struct ReceivedCall {
    from: CallId,
    call: Option<Call>,
}

/// A call that could not start yet.
#[derive(Clone, Copy, Debug)]
struct DeferredCall {
    from: CallId,
    call: Call,
}

/// Calls that were taken from slots and are not answered, without posted writes that wait.
#[derive(Debug, Default)]
struct OpenCalls {
    /// Memory for the calls taken in one iteration; empty between iterations.
    received: Vec<ReceivedCall>,
    deferred: VecDeque<DeferredCall>,
    pending: PendingCalls,
    /// An operation has completed since deferred calls were retried.
    has_completed: bool,
}

/// Time of the current iteration.
#[derive(Clone, Copy, Debug)]
struct IterationTime {
    now: Nanos,
    /// Wall-clock time, for the times of files.
    time: Time,
}

/// Kinds of the calls that were taken last, which predict the next wait.
#[derive(Clone, Copy, Debug, Default)]
struct LastCalls {
    /// The last call was a sync.
    sync: bool,
    /// Only posted writes were taken: the program does not wait.
    only_posted: bool,
}

/// When writes of the program become durable, beyond what it asks for.
#[derive(Debug, Default)]
struct DurabilityMode {
    /// Every write is as one of a file opened with `O_DSYNC`.
    has_sync_writes: bool,
    /// Syncs return before the data is durable.
    speculation: Option<Speculation>,
}

/// The file service of one volume.
#[derive(Debug)]
pub struct Service<D> {
    volume: Volume<D>,
    clock: IterationTime,
    connections: ConnectionManager,
    doorbell: Arc<SharedRegion>,
    sessions: Vec<ProcessSession>,
    files: OpenFiles,
    locks: Locks,
    calls: OpenCalls,
    posted_writes: PostedWriteQueue,
    shared_mappings: SharedMappings,
    mapping_sync: MappingSync,
    scratch: Scratch,
    stats: ServiceStats,
    last_calls: LastCalls,
    durability: DurabilityMode,
}

/// Memory that is used again and again.
#[derive(Debug, Default)]
struct Scratch {
    path: Vec<u8>,
    events: Vec<ConnectionEvent>,
    /// Slots of each session, one bit each, that a check of the invariants has found.
    due_slots: Vec<u64>,
}

impl<D: BlockDevice> Service<D> {
    /// Creates a service of a mounted volume; clients can connect at once.
    ///
    /// # Errors
    /// [`ServiceError::Io`] if the name is in use, or memory or threads are unavailable.
    pub fn new(store: Volume<D>, address: &ServiceAddress) -> Result<Service<D>, ServiceError> {
        let bell = SharedRegion::memfd(exec_proto::DOORBELL_BYTES)?;
        let door = ConnectionManager::open(address, bell.clone())?;
        Ok(Service {
            volume: store,
            clock: IterationTime { now: Nanos::ZERO, time: Time(0) },
            connections: door,
            doorbell: bell,
            sessions: Vec::new(),
            files: OpenFiles::new(),
            locks: Locks::default(),
            calls: OpenCalls::default(),
            posted_writes: PostedWriteQueue::default(),
            shared_mappings: SharedMappings::default(),
            mapping_sync: MappingSync::default(),
            scratch: Scratch::default(),
            stats: ServiceStats::default(),
            last_calls: LastCalls::default(),
            durability: DurabilityMode::default(),
        })
    }

    /// Makes every write durable before it returns, as if each file had been opened with `O_DSYNC`.
    pub fn set_sync_writes(&mut self) {
        self.durability.has_sync_writes = true;
    }

    /// Lets syncs return at once, as barriers of the volume, and returns the supervisor that stops
    /// the program's output until they are durable. The program must be started with it. Data sent
    /// to sockets and pipes does not wait if it fits into the outbox. The service ends when the
    /// program and all its descendants have ended, and the outbox is empty.
    ///
    /// # Errors
    /// [`ServiceError::Io`] if threads or memory are unavailable, or on a machine other than x86-64.
    pub fn speculate(&mut self, outbox: OutboxLimits) -> Result<OutputSupervisor, ServiceError> {
        let speculation = Speculation::new(self.doorbell.clone())?;
        let supervisor = speculation.supervise(outbox)?;
        self.durability.speculation = Some(speculation);
        Ok(supervisor)
    }

    /// Returns the handle that stops the service.
    pub fn stop(&self) -> ServiceStopHandle {
        ServiceStopHandle { doorbell: self.doorbell.clone() }
    }

    /// Returns the counters.
    pub fn stats(&self) -> ServiceStats {
        let speculation = self.durability.speculation.as_ref().map(Speculation::stats);
        let speculation = speculation.unwrap_or_default();
        ServiceStats { store: self.volume.stats(), speculation, ..self.stats }
    }

    /// Serves until [`stop`](ServiceStopHandle::stop) was called and no process with a session is left.
    /// Then closes the volume cleanly and returns its device.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(self, clock: RealClock) -> Result<(D, ServiceStats), ServiceError> {
        self.run_with(
            clock,
            CompletionPolicy { method: CompletionMethod::Hybrid, ..Default::default() },
        )
    }

    /// As [`run`](Service::run), which polls as long as that has paid before it sleeps: while
    /// operations are in flight, `completion` says how the service learns of their end.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run_with(
        mut self,
        clock: RealClock,
        completion: CompletionPolicy,
    ) -> Result<(D, ServiceStats), ServiceError> {
        // One statistic while the device works; one after a sync, when programs usually do
        // something else first; one otherwise.
        let waits = [BUSY_SPIN, IDLE_SPIN, IDLE_SPIN]
            .map(|limits| (AdaptiveSpin::new(limits.rounds_max), limits.time_max));
        let (mut idle, mut slept) = (0, false);
        let (mut wait, mut since) = (0, Nanos::ZERO);
        self.volume.set_waker(self.connections.waker());
        loop {
            self.clock.now = clock.now();
            let bell = slot_protocol::read_doorbell(self.doorbell.atomic_u32(exec_proto::DOORBELL));
            if self.poll_once()? {
                if idle > 0 && !slept && !self.last_calls.only_posted {
                    let (spin, time_max) = &waits[wait];
                    if self.clock.now - since <= *time_max { spin.hit() } else { spin.miss() }
                }
                (idle, slept) = (0, false);
                continue;
            }
            let stopped = self.doorbell.atomic_u32(STOPPED_OFFSET).load(Ordering::SeqCst) != 0;
            let at_rest = self.calls.pending.is_empty()
                && self.mapping_sync.is_empty()
                && self.durability.speculation.as_ref().is_none_or(Speculation::is_over);
            if stopped
                && at_rest
                && self.sessions.iter().all(ProcessSession::is_reusable)
                && !self.is_mapped(None)
            {
                break;
            }
            let busy = self.is_device_working();
            if idle == 0 {
                wait = if busy { 0 } else { 2 - usize::from(self.last_calls.sync) };
                since = self.clock.now;
            }
            idle = u32::saturating_add(idle, 1);
            // Posted writes do not justify a spin: they arrive in bulk, or before a call.
            slept |= self.last_calls.only_posted && (!busy || !self.is_awaited());
            let rounds = match (busy, completion.method, completion.poll_interval) {
                (false, ..) | (true, CompletionMethod::Hybrid, _) => waits[wait].0.budget(),
                (true, CompletionMethod::Poll, None) => u32::MAX,
                (true, ..) => 0,
            };
            if idle <= rounds && !slept {
                std::thread::yield_now();
                continue;
            }
            if !slept {
                waits[wait].0.miss();
                slept = true;
            }
            self.sleep(bell, busy, clock, completion.poll_interval)?;
        }
        self.close(clock)
    }

    /// Returns whether the volume waits for the device: for a request, or for a barrier, which has
    /// none.
    fn is_device_working(&self) -> bool {
        self.volume.in_flight() > 0 || self.volume.is_making_barriers_durable()
    }

    /// Returns whether the program waits for the volume: for the reply of a call, or to make an output.
    fn is_awaited(&self) -> bool {
        let speculation = self.durability.speculation.as_ref();
        !self.calls.pending.is_empty() || speculation.is_some_and(Speculation::has_waiting_outputs)
    }

    /// Publishes the progress of syncs. If one has failed, the program is told by a signal, as in
    /// \[Spec14 §4.4\].
    fn publish_syncs(&mut self) {
        let Some(speculation) = &mut self.durability.speculation else { return };
        if speculation.publish(self.volume.durable_barrier(), self.volume.failure().is_some()) {
            for process in self.sessions.iter().filter_map(|session| session.pidfd.as_ref()) {
                // A process that has ended needs no signal.
                let _ = pidfd_send_signal(process, Signal::BUS);
            }
        }
    }

    /// Advances calls and operations. Returns whether it made progress.
    fn poll_once(&mut self) -> Result<bool, ServiceError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.clock.time = Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
        let mut received = std::mem::take(&mut self.calls.received);
        for (session, of) in self.sessions.iter_mut().enumerate() {
            let mut bits = of.take_submitted();
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                let from = CallId { session, slot };
                received.push(ReceivedCall { from, call: of.call(slot) });
                bits &= bits - 1;
            }
        }
        // Where it matters, process what a program closed before its call, and execute what it
        // posted before either.
        let mut moved = !received.is_empty();
        if moved {
            self.revoke_reservations(&received);
        }
        if let Some(speculation) = &mut self.durability.speculation {
            speculation.count_syncs();
        }
        let hears =
            self.connections.has_pending_event() || moved && self.depends_on_closes(&received);
        if hears {
            self.connections.drain_events(&mut self.scratch.events)?;
        }
        if self.drain_posted() {
            (self.last_calls.only_posted, moved) = (received.is_empty(), true);
        }
        moved |= self.cover_due_syncs();
        if hears {
            moved |= self.handle_events();
        }
        for ReceivedCall { from, call } in received.drain(..) {
            match call {
                Some(call) => self.start_or_defer(from, call),
                None => {
                    self.stats.refused += 1;
                    self.complete_call(from, -i64::from(rustix::io::Errno::INVAL.raw_os_error()));
                }
            }
        }
        self.calls.received = received;
        self.request_syncs();
        moved |= self.poll_volume();
        self.publish_syncs();
        let mut ended = self.step_mapping_sync();
        ended |= self.start_posted();
        ended |= self.cover_due_syncs();
        ended |= std::mem::take(&mut self.calls.has_completed);
        self.reenable_posting();
        if ended {
            for _ in 0..self.calls.deferred.len() {
                if let Some(DeferredCall { from, call }) = self.calls.deferred.pop_front() {
                    self.start_or_defer(from, call);
                }
            }
        }
        Ok(moved | ended)
    }

    /// Polls the volume, and handles its completions. Returns whether it made progress.
    pub(crate) fn poll_volume(&mut self) -> bool {
        let moved = self.volume.poll(self.clock.now);
        while let Some(VolumeCompletion { id, result }) = self.volume.reap() {
            self.calls.has_completed = true;
            match id {
                SYNC_REQUEST_ID => self.on_sync_op_complete(result),
                _ => self.on_op_complete(id, result),
            }
        }
        moved
    }

    /// Returns whether a call among these may depend on earlier closes.
    fn depends_on_closes(&self, received: &[ReceivedCall]) -> bool {
        let room = self.volume.has_free_blocks(received.len() as u64 * CALL_BLOCKS_MAX);
        received.iter().filter_map(|received| received.call).any(|call| match call.op {
            CallOp::Write | CallOp::WriteAt | CallOp::WriteAtomic => !room,
            CallOp::Read
            | CallOp::ReadAt
            | CallOp::Seek
            | CallOp::Sync
            | CallOp::Stat
            | CallOp::Flags
            | CallOp::SetFlags => false,
            _ => true,
        })
    }

    fn start_or_defer(&mut self, from: CallId, call: Call) {
        self.last_calls.sync = matches!(call.op, CallOp::Sync | CallOp::SyncAll);
        self.last_calls.only_posted = false;
        if self.must_wait_for_posted(&call) {
            return self.calls.deferred.push_back(DeferredCall { from, call });
        }
        match self.start_call(from, &call) {
            StartResult::Completed(answer) => self.complete_call(from, answer),
            StartResult::Pending => {}
            StartResult::Retry => self.calls.deferred.push_back(DeferredCall { from, call }),
        }
    }

    pub(crate) fn complete_call(&mut self, from: CallId, answer: i64) {
        self.stats.calls += 1;
        self.sessions[from.session].complete(from.slot, answer);
        self.release_reservation(from.session);
    }

    /// Frees the slot of a completed posted write.
    pub(crate) fn free_slot(&mut self, from: CallId) {
        self.stats.posted_writes += 1;
        self.sessions[from.session].free(from.slot);
        self.release_reservation(from.session);
    }

    /// Submits an operation to the volume.
    pub(crate) fn submit_op(
        &mut self,
        from: CallId,
        op: VolumeOp,
        then: OnComplete,
    ) -> StartResult {
        self.submit_op_with(from, op, then, self.clock.time, 0)
    }

    /// Submits an operation with a time stamp and reserved blocks.
    pub(crate) fn submit_op_with(
        &mut self,
        from: CallId,
        op: VolumeOp,
        then: OnComplete,
        time: Time,
        reserved_blocks: u64,
    ) -> StartResult {
        let effect = MappingUpdate::from_op(&op);
        if effect.changed_inode().is_some_and(|ino| self.mapping_sync.is_syncing(ino)) {
            return StartResult::Retry;
        }
        let id = self.calls.pending.next();
        let call = PendingCall { from, on_complete: then, mapping_update: effect };
        if matches!(op, VolumeOp::Sync { .. } | VolumeOp::SyncAll)
            && self.volume.failure().is_none()
            && let Some(speculation) = &mut self.durability.speculation
            && speculation.takes_syncs()
        {
            speculation.acknowledge(id);
            self.calls.pending.insert(id, call);
            return StartResult::Pending;
        }
        let request = VolumeRequest { id, op, time };
        if self.volume.submit_reserved(self.clock.now, request, reserved_blocks).is_err() {
            return StartResult::Retry;
        }
        self.calls.pending.insert(id, call);
        StartResult::Pending
    }

    /// Handles connection events.
    fn handle_events(&mut self) -> bool {
        let mut heard = std::mem::take(&mut self.scratch.events);
        let moved = !heard.is_empty();
        for what in heard.drain(..) {
            match what {
                ConnectionEvent::Hello { stream, process, pidfd } => {
                    // If no session can be created, the process sees its connection closed.
                    if let Ok(session) = self.create_session(process, pidfd) {
                        let _ =
                            send_memory(&stream, [&self.sessions[session].region, &self.doorbell]);
                    }
                }
                ConnectionEvent::FileClosed(number) => self.close_if_unused(number),
                ConnectionEvent::ProcessExited(session) => {
                    let ended = self.sessions.get_mut(session).unwrap_or_else(|| {
                        panic!("sessions: the process of session {session} ends, and it is unknown")
                    });
                    ended.pidfd = None;
                    self.locks.release_all(LockOwner::Process(ended.process));
                    self.release_reservation(session);
                }
            }
        }
        self.scratch.events = heard;
        moved
    }

    /// Creates a session for a process, in the memory of an ended session or in new memory. A
    /// process that calls `exec` replaces its previous session.
    fn create_session(&mut self, process: u32, pidfd: rustix::fd::OwnedFd) -> io::Result<usize> {
        for before in 0..self.sessions.len() {
            if self.sessions[before].process == process {
                self.sessions[before].pidfd = None;
                self.release_reservation(before);
            }
        }
        let none = |error: RegisterError| io::Error::other(error.to_string());
        let session = match self.sessions.iter().position(ProcessSession::is_reusable) {
            Some(session) => session,
            None if self.sessions.len() == SESSIONS_MAX => {
                return Err(io::Error::other("too many processes"));
            }
            None => {
                let region = SharedRegion::memfd(exec_proto::SESSION_BYTES)?;
                let at = self.volume.memory().register(&region).map_err(none)?;
                let (under_way, taken, room) = (0, 0, 0);
                let new = ProcessSession {
                    region,
                    iova: at,
                    process,
                    pidfd: None,
                    pending_calls: under_way,
                    taken_slots: taken,
                    reserved_blocks: room,
                };
                self.sessions.push(new);
                self.sessions.len() - 1
            }
        };
        self.connections.watch_process(session, &pidfd)?;
        let taken = &mut self.sessions[session];
        taken.clear();
        (taken.process, taken.pidfd) = (process, Some(pidfd));
        self.stats.sessions += 1;
        Ok(session)
    }

    pub(crate) fn count_refused(&mut self) {
        self.stats.refused += 1;
    }

    pub(crate) fn count_opened(&mut self) {
        self.stats.opened += 1;
    }

    pub(crate) fn count_mapped(&mut self) {
        self.stats.mapped += 1;
    }

    pub(crate) fn count_written_back(&mut self, bytes: u32) {
        self.stats.written_back += u64::from(bytes);
    }

    pub(crate) fn count_writeback_failure(&mut self) {
        self.stats.writeback_failures += 1;
    }

    /// Sleeps on the doorbell; with operations in flight, the device rings it too, if it can. With
    /// `poll_interval` the device is polled in this interval instead.
    fn sleep(
        &mut self,
        bell: u32,
        busy: bool,
        clock: RealClock,
        poll_interval: Option<Nanos>,
    ) -> Result<(), ServiceError> {
        if cfg!(debug_assertions)
            && let Err(violation) = self.check_invariants()
        {
            panic!("file service: {violation}");
        }
        // A device that cannot wake is polled between short sleeps.
        let rings = busy && poll_interval.is_none() && self.volume.device().can_wake();
        if rings {
            self.connections.on_park();
            // Completions since the last poll did not ring: poll once more.
            self.clock.now = clock.now();
            if self.poll_once()? {
                self.connections.on_unpark();
                return Ok(());
            }
        }
        let until = self.volume.deadline();
        let sleeps = until > self.clock.now && rings == busy;
        let most = match sleeps {
            true => SLEEP_MAX.min(until - self.clock.now),
            false => poll_interval.unwrap_or(POLL_SLEEP),
        };
        let (word, asleep) = (
            self.doorbell.atomic_u32(exec_proto::DOORBELL),
            self.doorbell.atomic_u32(exec_proto::SERVICE_PARKED),
        );
        slot_protocol::park(asleep);
        let (tv_sec, tv_nsec) = ((most.0 / 1_000_000_000) as i64, (most.0 % 1_000_000_000) as _);
        let timeout = futex::Timespec { tv_sec, tv_nsec };
        // Whether woken, timed out or interrupted, the service polls next.
        let _ = futex::wait(word, futex::Flags::empty(), bell, Some(&timeout));
        slot_protocol::unpark(asleep);
        if rings {
            self.connections.on_unpark();
        }
        self.stats.sleeps += 1;
        Ok(())
    }

    fn close(mut self, clock: RealClock) -> Result<(D, ServiceStats), ServiceError> {
        if cfg!(debug_assertions)
            && let Err(violation) = self.check_all_invariants()
        {
            panic!("file service: {violation}");
        }
        let id = u64::MAX;
        let request = VolumeRequest { id, op: VolumeOp::Close, time: self.clock.time };
        while self.volume.submit(clock.now(), request).is_err() {
            self.volume.poll(clock.now());
        }
        loop {
            self.volume.poll(clock.now());
            while let Some(done) = self.volume.reap() {
                if done.id == id {
                    self.publish_syncs();
                    done.result.map_err(ServiceError::Close)?;
                    let counters = self.stats();
                    return Ok((self.volume.into_device(), counters));
                }
            }
            std::thread::yield_now();
        }
    }
}
