//! [`Service`]: the loop. Calls are taken from slots, become requests of the store, and are answered; with
//! nothing to do it sleeps at the bell.
//!
//! Guarantee: every call is answered once, in any order; a call that cannot be taken now (the store is
//! busy, another one uses the open file's offset) is tried again, in the order in which calls came.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use block::BlockDevice;
use clock::{Component as _, Nanos, RealClock};
use ring::{RegisterError, SharedRegion};
use rustix::thread::futex;
use slots::{Call, Op as CallOp, slot_protocol};
use store::{Error, Op, OpCompletion, Request, Time, Volume};

use crate::adaptive_spin::AdaptiveSpin;
use crate::completion::OnComplete;
use crate::connections::{Address, ConnectionEvent, ConnectionManager, ring_doorbell, send_memory};
use crate::locks::{LockOwner, Locks};
use crate::mapping_sync::{MappingSync, SYNC_REQUEST_ID};
use crate::open_files::OpenFiles;
use crate::pending_calls::{PendingCall, PendingCalls};
use crate::posted_writes::PostedWriteQueue;
use crate::session::Session;
use crate::shared_mappings::{MappingUpdate, SharedMappings};

/// Why a service cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The system refuses sockets or memory.
    #[error("the file service: {0}")]
    Io(#[from] io::Error),
    /// The volume could not be closed in order; what was made durable is there.
    #[error("the volume was not closed in order: {0}")]
    Close(Error),
}

/// What a service has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Calls answered.
    pub calls: u64,
    /// Writes that nobody waited for.
    pub posted_writes: u64,
    /// Calls that made no sense.
    pub refused: u64,
    /// Processes that had a session.
    pub sessions: u64,
    /// Files and directories opened.
    pub opened: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// What the store has done.
    pub store: store::Stats,
    /// Times that bytes of a file were mapped and shared.
    pub mapped: u64,
    /// Bytes that mappings had changed, and that were brought back.
    pub written_back: u64,
    /// Files of which that failed after nobody had them mapped any more.
    pub writeback_failures: u64,
}

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) session: usize,
    pub(crate) slot: usize,
}

/// What came of looking at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartResult {
    /// It is answered: a count, or an error number as a negative one.
    Completed(i64),
    /// The store has a request for it.
    Pending,
    /// Try again when something has ended.
    Retry,
}

/// Tells a service from another thread that the program has ended: it returns when no process has files open.
#[derive(Clone, Debug)]
pub struct StopHandle {
    doorbell: Arc<SharedRegion>,
}

/// Where the word is that says so, in the bell's memory; only this process looks at it.
const STOPPED_OFFSET: usize = 128;

impl StopHandle {
    /// The program has ended.
    pub fn stop(&self) {
        self.doorbell.atomic_u32(STOPPED_OFFSET).store(1, Ordering::SeqCst);
        ring_doorbell(&self.doorbell);
    }
}

/// Rounds without work, with requests under way, before it sleeps until the device says something; at most, and
/// where that takes no longer than so.
const BUSY_SPIN: (u32, Nanos) = (64, Nanos::from_micros(30));
/// Rounds without work and without requests before it sleeps, in the same way: the next call often comes at once.
const IDLE_SPIN: (u32, Nanos) = (200, Nanos::from_micros(100));
/// How long it sleeps while the device works that cannot wake it.
const POLL_SLEEP: Nanos = Nanos::from_micros(50);
/// Free blocks for each call that has come, below which files that were just closed are heard of before anything is
/// written: they may be what makes room. What one call writes at most, and its ends.
const CALL_BLOCKS_MAX: u64 = slots::DATA_BYTES as u64 / store::BLOCK as u64 + 2;
/// How long it sleeps at most.
const SLEEP_MAX: Nanos = Nanos::from_millis(1000);
/// Sessions at most, of processes that live at once: the device's memory has as many places.
const SESSIONS_MAX: usize = 900;

/// The file service of one volume.
#[derive(Debug)]
pub struct Service<D> {
    pub(crate) volume: Volume<D>,
    pub(crate) now: Nanos,
    pub(crate) time: Time,
    pub(crate) connections: ConnectionManager,
    pub(crate) doorbell: Arc<SharedRegion>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) files: OpenFiles,
    pub(crate) locks: Locks,
    pub(crate) deferred_calls: VecDeque<(CallId, Call)>,
    pub(crate) posted_writes: PostedWriteQueue,
    pub(crate) pending_calls: PendingCalls,
    pub(crate) shared_mappings: SharedMappings,
    pub(crate) mapping_sync: MappingSync,
    pub(crate) path: Vec<u8>,
    events: Vec<ConnectionEvent>,
    submitted: Vec<(CallId, Option<Call>)>,
    stats: ServiceStats,
    /// The last call that was taken was one for durability.
    after_sync: bool,
    /// What was last taken was only left: its program is elsewhere.
    after_posted: bool,
}

impl<D: BlockDevice> Service<D> {
    /// A service of an open volume, which can be reached at once.
    ///
    /// # Errors
    /// [`ServiceError::Io`]: the name is taken, no memory, no threads.
    pub fn new(store: Volume<D>, address: &Address) -> Result<Service<D>, ServiceError> {
        let bell = SharedRegion::memfd(slots::DOORBELL_BYTES)?;
        let door = ConnectionManager::open(address, bell.clone())?;
        Ok(Service {
            volume: store,
            now: Nanos::ZERO,
            time: Time(0),
            connections: door,
            doorbell: bell,
            sessions: Vec::new(),
            files: OpenFiles::new(),
            locks: Locks::default(),
            deferred_calls: VecDeque::new(),
            posted_writes: PostedWriteQueue::default(),
            pending_calls: PendingCalls::default(),
            shared_mappings: SharedMappings::default(),
            mapping_sync: MappingSync::default(),
            path: Vec::new(),
            events: Vec::new(),
            submitted: Vec::new(),
            stats: ServiceStats::default(),
            after_sync: false,
            after_posted: false,
        })
    }

    /// What ends it.
    pub fn stop(&self) -> StopHandle {
        StopHandle { doorbell: self.doorbell.clone() }
    }

    /// Counters.
    pub fn stats(&self) -> ServiceStats {
        ServiceStats { store: self.volume.stats(), ..self.stats }
    }

    /// Serves until it is told to [`stop`](Stop::stop) and no process that has a session is left. Then
    /// the volume is closed in order, and its device given back.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(mut self, clock: RealClock) -> Result<(D, ServiceStats), ServiceError> {
        // While the device works; when the last call was a sync, after which programs do something else first;
        // otherwise.
        let mut waits = [BUSY_SPIN, IDLE_SPIN, IDLE_SPIN].map(AdaptiveSpin::new);
        let (mut idle, mut slept) = (0, false);
        let (mut wait, mut since) = (0, Nanos::ZERO);
        self.volume.set_waker(self.connections.waker());
        loop {
            self.now = clock.now();
            let bell = slot_protocol::read_doorbell(self.doorbell.atomic_u32(slots::DOORBELL));
            if self.poll_once()? {
                if idle > 0 && !slept && !self.after_posted {
                    waits[wait].succeeded(self.now - since);
                }
                (idle, slept) = (0, false);
                continue;
            }
            let stopped = self.doorbell.atomic_u32(STOPPED_OFFSET).load(Ordering::SeqCst) != 0;
            let at_rest = self.pending_calls.is_empty() && self.mapping_sync.is_empty();
            if stopped
                && at_rest
                && self.sessions.iter().all(Session::is_reusable)
                && !self.is_mapped(None)
            {
                break;
            }
            let busy = self.volume.in_flight() > 0;
            if idle == 0 {
                wait = if busy { 0 } else { 2 - usize::from(self.after_sync) };
                since = self.now;
            }
            idle += 1;
            // Nobody hurries with what is left: it comes in numbers, or before a call.
            slept |= self.after_posted && !busy;
            if idle <= waits[wait].spin_budget() && !slept {
                std::thread::yield_now();
                continue;
            }
            if !slept {
                waits[wait].timed_out();
                slept = true;
            }
            self.sleep(bell, busy, clock)?;
        }
        self.close(clock)
    }

    /// Takes calls and requests one step on; returns whether anything moved.
    fn poll_once(&mut self) -> Result<bool, ServiceError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.time = Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
        let mut posted = std::mem::take(&mut self.submitted);
        for (session, of) in self.sessions.iter_mut().enumerate() {
            let mut bits = of.take_submitted();
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                posted.push((CallId { session, slot }, of.call(slot)));
                bits &= bits - 1;
            }
        }
        // What a process closed before it called is heard of before its call is looked at, where it matters. What it
        // left before either is done before both.
        let mut moved = !posted.is_empty();
        if moved {
            self.revoke_reservations(&posted);
        }
        let hears =
            self.connections.has_pending_event() || moved && self.depends_on_closes(&posted);
        if hears {
            self.connections.drain_events(&mut self.events)?;
        }
        if self.drain_posted() {
            (self.after_posted, moved) = (posted.is_empty(), true);
        }
        if hears {
            moved |= self.handle_events();
        }
        for (from, call) in posted.drain(..) {
            match call {
                Some(call) => self.start_or_defer(from, call),
                None => {
                    self.stats.refused += 1;
                    self.complete_call(from, -i64::from(rustix::io::Errno::INVAL.raw_os_error()));
                }
            }
        }
        self.submitted = posted;
        moved |= self.volume.poll(self.now);
        let mut ended = false;
        while let Some(OpCompletion { id, result }) = self.volume.reap() {
            ended = true;
            match id {
                SYNC_REQUEST_ID => self.on_sync_op_complete(result),
                _ => self.on_op_complete(id, result),
            }
        }
        ended |= self.step_mapping_sync();
        ended |= self.start_posted();
        self.reenable_posting();
        if ended {
            for _ in 0..self.deferred_calls.len() {
                if let Some((from, call)) = self.deferred_calls.pop_front() {
                    self.start_or_defer(from, call);
                }
            }
        }
        Ok(moved | ended)
    }

    /// Whether a call among these may depend on what was closed before.
    fn depends_on_closes(&self, posted: &[(CallId, Option<Call>)]) -> bool {
        let room = self.volume.has_free_blocks(posted.len() as u64 * CALL_BLOCKS_MAX);
        posted.iter().flat_map(|(_, call)| call).any(|call| match call.op {
            CallOp::Write | CallOp::WriteAt => !room,
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
        self.after_sync = matches!(call.op, CallOp::Sync | CallOp::SyncAll);
        self.after_posted = false;
        if self.must_wait_for_posted(&call) {
            return self.deferred_calls.push_back((from, call));
        }
        match self.start_call(from, &call) {
            StartResult::Completed(answer) => self.complete_call(from, answer),
            StartResult::Pending => {}
            StartResult::Retry => self.deferred_calls.push_back((from, call)),
        }
    }

    pub(crate) fn complete_call(&mut self, from: CallId, answer: i64) {
        self.stats.calls += 1;
        self.sessions[from.session].complete(from.slot, answer);
        self.release_reservation(from.session);
    }

    /// A write that nobody waited for has ended.
    pub(crate) fn free_slot(&mut self, from: CallId) {
        self.stats.posted_writes += 1;
        self.sessions[from.session].free(from.slot);
        self.release_reservation(from.session);
    }

    /// Gives the store a request.
    pub(crate) fn submit_op(&mut self, from: CallId, op: Op, then: OnComplete) -> StartResult {
        self.submit_op_with(from, op, then, (self.time, 0))
    }

    /// The same, of a time, and with blocks that are reserved for it.
    pub(crate) fn submit_op_with(
        &mut self,
        from: CallId,
        op: Op,
        then: OnComplete,
        (time, room): (Time, u64),
    ) -> StartResult {
        let effect = MappingUpdate::from_op(&op);
        if effect.changed_inode().is_some_and(|ino| self.mapping_sync.is_syncing(ino)) {
            return StartResult::Retry;
        }
        let id = self.pending_calls.next();
        if self.volume.submit_reserved(self.now, Request { id, op, time }, room).is_err() {
            return StartResult::Retry;
        }
        self.pending_calls
            .insert(id, PendingCall { from, on_complete: then, mapping_update: effect });
        StartResult::Pending
    }

    /// Acts upon what was heard at the door.
    fn handle_events(&mut self) -> bool {
        let mut heard = std::mem::take(&mut self.events);
        let moved = !heard.is_empty();
        for what in heard.drain(..) {
            match what {
                ConnectionEvent::Hello { stream, process, pidfd } => {
                    // A process that cannot be served sees its connection closed.
                    if let Ok(session) = self.create_session(process, pidfd) {
                        let _ =
                            send_memory(&stream, [&self.sessions[session].region, &self.doorbell]);
                    }
                }
                ConnectionEvent::FileClosed(number) => self.close_if_unused(number),
                ConnectionEvent::ProcessExited(session) => {
                    if let Some(ended) = self.sessions.get_mut(session) {
                        ended.pidfd = None;
                        self.locks.release_all(LockOwner::Process(ended.process));
                    }
                    self.release_reservation(session);
                }
            }
        }
        self.events = heard;
        moved
    }

    /// A session for a process: the memory of one that is over, or new memory. A program that a process
    /// has become by `exec` takes the place of the one before.
    fn create_session(&mut self, process: u32, pidfd: rustix::fd::OwnedFd) -> io::Result<usize> {
        for before in 0..self.sessions.len() {
            if self.sessions[before].process == process {
                self.sessions[before].pidfd = None;
                self.release_reservation(before);
            }
        }
        let none = |error: RegisterError| io::Error::other(error.to_string());
        let session = match self.sessions.iter().position(Session::is_reusable) {
            Some(session) => session,
            None if self.sessions.len() == SESSIONS_MAX => {
                return Err(io::Error::other("too many processes"));
            }
            None => {
                let region = SharedRegion::memfd(slots::SESSION_BYTES)?;
                let at = self.volume.memory().register(&region).map_err(none)?;
                let (under_way, taken, room) = (0, 0, 0);
                let new = Session {
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

    /// Sleeps until the bell rings; with requests under way, the device rings it, too, if it can.
    fn sleep(&mut self, bell: u32, busy: bool, clock: RealClock) -> Result<(), ServiceError> {
        // Of a device that wakes nobody completions are looked for, between naps.
        let rings = busy && self.volume.device().can_wake();
        if rings {
            self.connections.on_park();
            // What has ended since the last look rang for nobody.
            self.now = clock.now();
            if self.poll_once()? {
                self.connections.on_unpark();
                return Ok(());
            }
        }
        let until = self.volume.deadline();
        let sleeps = until > self.now && rings == busy;
        let most = if sleeps { SLEEP_MAX.min(until - self.now) } else { POLL_SLEEP };
        let (word, asleep) = (
            self.doorbell.atomic_u32(slots::DOORBELL),
            self.doorbell.atomic_u32(slots::SERVICE_PARKED),
        );
        slot_protocol::park(asleep);
        let (tv_sec, tv_nsec) = ((most.0 / 1_000_000_000) as i64, (most.0 % 1_000_000_000) as _);
        let timeout = futex::Timespec { tv_sec, tv_nsec };
        // Woken, too late, interrupted: it looks in every case.
        let _ = futex::wait(word, futex::Flags::empty(), bell, Some(&timeout));
        slot_protocol::unpark(asleep);
        if rings {
            self.connections.on_unpark();
        }
        self.stats.sleeps += 1;
        Ok(())
    }

    fn close(mut self, clock: RealClock) -> Result<(D, ServiceStats), ServiceError> {
        let id = u64::MAX;
        let request = Request { id, op: Op::Close, time: self.time };
        while self.volume.submit(clock.now(), request).is_err() {
            self.volume.poll(clock.now());
        }
        loop {
            self.volume.poll(clock.now());
            while let Some(done) = self.volume.reap() {
                if done.id == id {
                    done.result.map_err(ServiceError::Close)?;
                    let counters = self.stats();
                    return Ok((self.volume.into_device(), counters));
                }
            }
            std::thread::yield_now();
        }
    }
}
