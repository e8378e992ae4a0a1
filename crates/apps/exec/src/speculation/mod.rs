//! Speculation: syncs return at once, ordered by barriers of the volume, and output of the program
//! waits until they are durable, or is copied to a bounded outbox and sent then.
//!
//! # Guarantee
//!
//! A call of the program that others can observe is executed only when every sync that was
//! acknowledged to any process of the session before the call is durable. If a sync fails, no such
//! call is executed any more. Data of a call that returned early is sent under the same conditions,
//! in the order of the calls.
//!
//! # Concurrency
//!
//! Programs acknowledge syncs, or the service's thread does so for them. This thread covers syncs by
//! barriers, and publishes durable ones. It never waits for the program or for the supervisor. The
//! supervisor's thread receives the calls that the filter stops ([`output_gate`]) and answers each
//! when the syncs before it are durable, or when its data is in the outbox, which only this thread
//! uses. It never waits for the program or for a peer. A sync becomes durable without further calls
//! of the program, so every wait ends.
//!
//! # References
//!
//! docs/speculation.md; \[Spec14 §4.4\].

mod outbox;
mod supervisor;
mod target;

use std::collections::VecDeque;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use event::Parker;
use exec_proto::{gate, slot_protocol};
use mem::SharedRegion;
use output_gate::FilterInstaller;
use time::Nanos;

use crate::connections::ring_doorbell;
pub use outbox::{
    OUTBOX_BYTES_MAX, OUTBOX_SENDS_MAX, OUTBOX_TARGET_BYTES_MAX, OutboxLimits, OutboxStats,
};
use outbox::{Outbox, OutboxCounters};
use supervisor::Supervisor;

/// Counters of a session that speculates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Syncs that returned before they were durable, with and without a call.
    pub syncs: u64,
    /// Barriers that covered them. One covers all syncs without a change between them.
    pub barriers: u64,
    /// Outputs that waited for a sync.
    pub waited: u64,
    /// Outputs that the filter stopped, and that had nothing to wait for.
    pub stopped: u64,
    /// Outputs that the library let pass without a stop.
    pub passed: u64,
    /// Outputs that failed, because a sync did.
    pub failed: u64,
    /// Sum of all waits.
    pub wait_total: Nanos,
    /// Longest wait.
    pub wait_max: Nanos,
    /// Whether speculation ended early, because the program shares memory with others.
    pub has_ended: bool,
    /// Counters of the outbox; all 0 without.
    pub outbox: OutboxStats,
}

/// Syncs of a session, shared by the service's thread and the supervisor's. The number of acknowledged
/// ones is in the doorbell's memory, because programs count them, too.
#[derive(Debug)]
struct SyncProgress {
    /// The last sync that is durable with all earlier ones.
    durable: AtomicU64,
    /// The last sync for which an output waits, or has waited.
    wanted: AtomicU64,
    /// A sync cannot become durable any more.
    has_failed: AtomicBool,
    /// The program shares memory with others, who would see it without a call.
    is_ending: AtomicBool,
    /// All syncs that were acknowledged before the service saw `is_ending` are covered by barriers,
    /// and all others wait for the device.
    has_ended: AtomicBool,
    /// No process has the filter any more.
    is_over: AtomicBool,
    counters: SupervisorCounters,
    /// Wakes the supervisor while calls wait.
    parker: Parker,
    doorbell: Arc<SharedRegion>,
}

/// Counters of the supervisor.
#[derive(Debug, Default)]
struct SupervisorCounters {
    /// Calls that wait now.
    waiting: AtomicU64,
    waited: AtomicU64,
    stopped: AtomicU64,
    failed: AtomicU64,
    wait_total: AtomicU64,
    wait_max: AtomicU64,
    outbox: OutboxCounters,
}

impl SyncProgress {
    fn new(doorbell: Arc<SharedRegion>) -> io::Result<SyncProgress> {
        Ok(SyncProgress {
            durable: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            counters: SupervisorCounters::default(),
            parker: Parker::new()?,
            doorbell,
        })
    }

    /// Returns the number of acknowledged syncs.
    fn acknowledged(&self) -> u64 {
        slot_protocol::acknowledged_syncs(self.doorbell.atomic_u64(gate::ACKNOWLEDGED))
    }

    fn stop_posting(&self) {
        slot_protocol::stop_posted_syncs(self.doorbell.atomic_u32(gate::POSTS_SYNCS));
    }

    fn set_ended(&self) {
        if !self.has_ended.swap(true, Ordering::SeqCst) {
            self.parker.waker().wake();
        }
    }

    /// Publishes the last durable sync.
    fn publish_durable(&self, sync: u64) {
        if sync > self.durable.load(Ordering::Relaxed) {
            self.durable.store(sync, Ordering::SeqCst);
            slot_protocol::publish_durable_sync(self.doorbell.atomic_u64(gate::DURABLE), sync);
            self.parker.waker().wake();
        }
    }

    /// Has the syncs up to this one become durable without delay.
    fn want(&self, sync: u64) {
        if self.wanted.fetch_max(sync, Ordering::SeqCst) < sync {
            ring_doorbell(&self.doorbell);
        }
    }

    /// Returns the number of sends in the outbox.
    fn buffered(&self) -> u64 {
        self.doorbell.atomic_u64(gate::BUFFERED).load(Ordering::SeqCst)
    }

    /// Publishes the number of sends in the outbox, which the library's gate reads.
    fn publish_buffered(&self, sends: usize) {
        self.doorbell.atomic_u64(gate::BUFFERED).store(sends as u64, Ordering::SeqCst);
    }

    /// Records that the syncs that are not durable will never be. Returns whether a process was told
    /// of such a sync, the first time.
    fn fail(&self) -> bool {
        let fails = self.has_pending() && !self.has_failed.swap(true, Ordering::SeqCst);
        if fails {
            self.parker.waker().wake();
        }
        fails
    }

    /// Returns whether a process was told of a sync that is not durable.
    fn has_pending(&self) -> bool {
        self.acknowledged() > self.durable.load(Ordering::SeqCst)
    }

    /// Ends speculation: the service replaces no further sync soon.
    fn end(&self) {
        if !self.is_ending.swap(true, Ordering::SeqCst) {
            self.want(u64::MAX);
        }
    }

    fn set_over(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        ring_doorbell(&self.doorbell);
    }

    fn stats(&self, barriers: u64) -> SpeculationStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpeculationStats {
            syncs: self.acknowledged(),
            barriers,
            waited: read(&self.counters.waited),
            stopped: read(&self.counters.stopped),
            passed: read(self.doorbell.atomic_u64(gate::PASSED)),
            failed: read(&self.counters.failed),
            wait_total: Nanos(read(&self.counters.wait_total)),
            wait_max: Nanos(read(&self.counters.wait_max)),
            has_ended: self.is_ending.load(Ordering::Relaxed),
            outbox: self.counters.outbox.stats(),
        }
    }
}

/// A barrier, and the syncs that it covers.
#[derive(Clone, Copy, Debug)]
struct CoveredSyncs {
    barrier: u64,
    /// The last one.
    sync: u64,
}

/// A call that is a sync, and waits until a barrier covers it.
#[derive(Clone, Copy, Debug)]
struct SyncCall {
    sync: u64,
    /// Its operation in [`PendingCalls`](crate::pending_calls::PendingCalls).
    id: u64,
}

/// Barriers that may wait at a time: 1 MiB of numbers.
const PENDING_BARRIERS_MAX: usize = 65_536;

/// Speculation of a service: which barriers cover the program's syncs.
#[derive(Debug)]
pub(crate) struct Speculation {
    progress: Arc<SyncProgress>,
    /// The syncs that were acknowledged when the service began to take no more, because the program
    /// shares memory with others.
    end: Option<u64>,
    /// Syncs counted before the last scan for posted writes.
    counted: u64,
    /// The last sync that a barrier covers.
    covered: u64,
    /// Barriers that are not durable.
    pending: VecDeque<CoveredSyncs>,
    /// The volume was asked for the barriers of the syncs up to this one.
    requested: u64,
    calls: VecDeque<SyncCall>,
    /// A write failed before a sync that its program has acknowledged itself.
    has_failed_write: bool,
    barriers: u64,
}

impl Speculation {
    pub(crate) fn new(doorbell: Arc<SharedRegion>) -> io::Result<Speculation> {
        slot_protocol::allow_posted_syncs(doorbell.atomic_u32(gate::POSTS_SYNCS));
        Ok(Speculation {
            progress: Arc::new(SyncProgress::new(doorbell)?),
            end: None,
            counted: 0,
            covered: 0,
            pending: VecDeque::new(),
            requested: 0,
            calls: VecDeque::new(),
            has_failed_write: false,
            barriers: 0,
        })
    }

    pub(crate) fn supervise(&self, limits: OutboxLimits) -> io::Result<OutputSupervisor> {
        OutputSupervisor::start(self.progress.clone(), Outbox::new(limits))
    }

    /// Counts the syncs acknowledged so far. The writes posted before them are found by a scan after
    /// this.
    pub(crate) fn count_syncs(&mut self) {
        self.check_end();
        self.counted = self.progress.acknowledged();
    }

    /// Takes no more syncs if the program shares memory with others.
    fn check_end(&mut self) {
        if self.end.is_none() && self.progress.is_ending.load(Ordering::SeqCst) {
            self.progress.stop_posting();
            self.end = Some(self.progress.acknowledged());
        }
    }

    /// Returns whether a sync is answered when a barrier covers it; otherwise it waits for the
    /// device.
    pub(crate) fn takes_syncs(&mut self) -> bool {
        self.check_end();
        self.end.is_none()
    }

    /// Acknowledges a sync that is a call; it is answered when it is [covered](Speculation::cover).
    pub(crate) fn acknowledge(&mut self, id: u64) {
        let acknowledged = self.progress.doorbell.atomic_u64(gate::ACKNOWLEDGED);
        let sync = slot_protocol::acknowledge_sync(acknowledged);
        self.calls.push_back(SyncCall { sync, id });
    }

    /// Returns whether no barrier covers a sync.
    pub(crate) fn is_due(&self, sync: u64) -> bool {
        sync > self.covered
    }

    /// Returns the last counted sync if it is not covered.
    pub(crate) fn due(&self) -> Option<u64> {
        Some(self.counted).filter(|sync| self.is_due(*sync))
    }

    /// Records the barrier that covers all syncs up to this one; `None` if the volume has failed.
    pub(crate) fn cover(&mut self, sync: u64, barrier: Option<u64>) {
        self.covered = sync;
        if let Some(barrier) = barrier {
            self.barriers += 1;
            self.pending.push_back(CoveredSyncs { barrier, sync });
        }
    }

    /// Returns the barrier that must become durable without delay, unless it was returned before:
    /// an output waits for it, or too many barriers are pending.
    pub(crate) fn take_wanted(&mut self) -> Option<u64> {
        let all = if self.pending.len() > PENDING_BARRIERS_MAX { self.covered } else { 0 };
        let wanted = self.progress.wanted.load(Ordering::SeqCst).min(self.covered).max(all);
        if wanted <= self.requested {
            return None;
        }
        self.requested = wanted;
        let at = self.pending.partition_point(|covered| covered.sync < wanted);
        self.pending.get(at).or(self.pending.back()).map(|covered| covered.barrier)
    }

    /// Removes a covered call, and returns its operation.
    pub(crate) fn next_covered_call(&mut self) -> Option<u64> {
        self.calls.pop_front_if(|call| call.sync <= self.covered).map(|call| call.id)
    }

    /// Records that a posted write has failed. The next sync of its file reports the error, unless
    /// the program may have acknowledged it already.
    pub(crate) fn on_posted_write_error(&mut self) {
        self.progress.stop_posting();
        // No barrier was issued while the write was in flight.
        self.has_failed_write |= self.is_due(self.progress.acknowledged());
    }

    /// Publishes the progress of the volume. Returns whether a sync has just failed and a process was
    /// told of it.
    pub(crate) fn publish(&mut self, durable: u64, has_failed: bool) -> bool {
        while let Some(covered) = self.pending.pop_front_if(|covered| covered.barrier <= durable) {
            if !self.has_failed_write {
                self.progress.publish_durable(covered.sync);
            }
        }
        self.check_end();
        let fails = has_failed || self.has_failed_write;
        if self.end.is_some_and(|end| self.covered >= end) {
            // Later numbers are of syncs that are calls, too, and wait for the device.
            self.covered = u64::MAX;
            self.progress.set_ended();
            if self.pending.is_empty() && !fails {
                self.progress.publish_durable(u64::MAX);
            }
        }
        if fails {
            self.progress.stop_posting();
        }
        fails && self.progress.fail()
    }

    /// Returns whether no process can sync or wait for a sync.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.is_over.load(Ordering::SeqCst)
    }

    /// Returns whether an output waits for a sync, or its data does.
    pub(crate) fn has_waiting_outputs(&self) -> bool {
        self.progress.counters.waiting.load(Ordering::Relaxed) > 0 || self.progress.buffered() > 0
    }

    pub(crate) fn stats(&self) -> SpeculationStats {
        self.progress.stats(self.barriers)
    }
}

impl Drop for Speculation {
    /// A service that ends makes nothing durable any more.
    fn drop(&mut self) {
        self.progress.fail();
    }
}

/// The supervisor of a program: it stops the program's output until the syncs before it are
/// durable. One supervisor has one program, with all its descendants.
#[derive(Debug)]
pub struct OutputSupervisor {
    progress: Arc<SyncProgress>,
    installer: FilterInstaller,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl OutputSupervisor {
    fn start(progress: Arc<SyncProgress>, outbox: Outbox) -> io::Result<OutputSupervisor> {
        let installer = FilterInstaller::new()?;
        let mut supervisor = Supervisor::new(progress.clone(), outbox);
        let of = installer.clone();
        let run = move || {
            let listener = of.listener();
            let result = listener.and_then(|listener| match listener {
                Some(listener) => supervisor.run(&listener),
                None => Ok(()),
            });
            supervisor.end();
            result
        };
        let thread = thread::Builder::new().name("sluice-output".into()).spawn(run)?;
        Ok(OutputSupervisor { progress, installer, thread: Some(thread) })
    }

    /// Makes the command start the program with the filter. Exactly one program may be started with
    /// it, while the service runs or will run, and by a thread that outlives it: the program is killed
    /// when that thread ends.
    pub fn prepare(&self, command: &mut Command) {
        command.env(gate::ENV_FILTER, "1");
        self.installer.prepare(command);
    }

    /// Ends the supervision of a program that could not be started.
    pub fn cancel(&self) {
        self.installer.cancel();
    }

    /// Returns the number of acknowledged syncs.
    pub fn acknowledged(&self) -> u64 {
        self.progress.acknowledged()
    }

    /// Returns the last sync that is durable with all earlier ones; `u64::MAX` after speculation has
    /// ended.
    pub fn durable(&self) -> u64 {
        self.progress.durable.load(Ordering::SeqCst)
    }

    /// Returns the number of calls that wait now.
    pub fn waiting(&self) -> u64 {
        self.progress.counters.waiting.load(Ordering::SeqCst)
    }

    /// Returns the number of calls whose data is in the outbox now.
    pub fn buffered(&self) -> u64 {
        self.progress.buffered()
    }

    /// Waits until no process has the filter any more, and the outbox is empty.
    ///
    /// # Errors
    /// If the kernel's interface failed; the program's output has failed with `ENOSYS` since then.
    pub fn join(mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the supervisor's thread panicked")),
        }
    }
}
