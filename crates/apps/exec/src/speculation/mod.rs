//! Speculation: syncs return at once as ordered barriers of the volume, and output of the program
//! waits until they are durable.
//!
//! # Guarantee
//!
//! A call of the program that others can observe is executed only when every barrier that was
//! acknowledged to any process of the session before the call is durable. If a barrier fails, no
//! such call is executed any more.
//!
//! # Concurrency
//!
//! The service's thread acknowledges barriers and publishes durable ones. It never waits for the
//! program or for the supervisor. The supervisor's thread receives the calls that the filter stops
//! ([`output_gate`]) and answers each when its barrier is durable; it never waits for the program
//! either. A barrier becomes durable without further calls of the program, so every wait ends.
//!
//! # References
//!
//! docs/speculation.md; \[Spec14 §4.4\].

mod supervisor;

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use event::Parker;
use exec_proto::gate;
use mem::SharedRegion;
use output_gate::FilterInstaller;
use time::Nanos;
use volume::VolumeOp;

use crate::connections::ring_doorbell;
use supervisor::Supervisor;

/// Counters of a session that speculates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Syncs that returned as barriers.
    pub barriers: u64,
    /// Outputs that waited for a barrier.
    pub waited: u64,
    /// Outputs that the filter stopped, and that had nothing to wait for.
    pub stopped: u64,
    /// Outputs that the library let pass without a stop.
    pub passed: u64,
    /// Outputs that failed, because a barrier did.
    pub failed: u64,
    /// Sum of all waits.
    pub wait_total: Nanos,
    /// Longest wait.
    pub wait_max: Nanos,
    /// Whether speculation ended early, because the program shares memory with others.
    pub has_ended: bool,
}

/// Barriers of a session, shared by the service's thread and the supervisor's.
#[derive(Debug)]
struct BarrierProgress {
    /// Last barrier that a process was told of.
    acknowledged: AtomicU64,
    durable: AtomicU64,
    /// A barrier cannot become durable any more.
    has_failed: AtomicBool,
    /// The program shares memory with others, who would see it without a call.
    is_ending: AtomicBool,
    /// The service acknowledges no further barrier since it saw `is_ending`.
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
}

impl BarrierProgress {
    fn new(doorbell: Arc<SharedRegion>) -> io::Result<BarrierProgress> {
        Ok(BarrierProgress {
            acknowledged: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            counters: SupervisorCounters::default(),
            parker: Parker::new()?,
            doorbell,
        })
    }

    fn set_ended(&self) {
        if !self.has_ended.swap(true, Ordering::SeqCst) {
            self.parker.waker().wake();
        }
    }

    /// Records a barrier whose number a process will be told, before it is.
    fn acknowledge(&self, barrier: u64) {
        if barrier > self.acknowledged.fetch_max(barrier, Ordering::SeqCst) {
            self.doorbell.atomic_u64(gate::ACKNOWLEDGED).store(barrier, Ordering::SeqCst);
        }
    }

    /// Publishes the last durable barrier.
    fn publish_durable(&self, barrier: u64) {
        if barrier > self.durable.load(Ordering::Relaxed) {
            self.durable.store(barrier, Ordering::SeqCst);
            self.doorbell.atomic_u64(gate::DURABLE).store(barrier, Ordering::SeqCst);
            self.parker.waker().wake();
        }
    }

    /// Records that the barriers that are not durable will never be. Returns whether a process was
    /// told of such a barrier, the first time.
    fn fail(&self) -> bool {
        let fails = self.has_pending() && !self.has_failed.swap(true, Ordering::SeqCst);
        if fails {
            self.parker.waker().wake();
        }
        fails
    }

    /// Returns whether a process was told of a barrier that is not durable.
    fn has_pending(&self) -> bool {
        self.acknowledged.load(Ordering::SeqCst) > self.durable.load(Ordering::SeqCst)
    }

    /// Ends speculation: the service acknowledges no further barrier soon.
    fn end(&self) {
        if !self.is_ending.swap(true, Ordering::SeqCst) {
            ring_doorbell(&self.doorbell);
        }
    }

    fn set_over(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        ring_doorbell(&self.doorbell);
    }

    fn stats(&self, barriers: u64) -> SpeculationStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpeculationStats {
            barriers,
            waited: read(&self.counters.waited),
            stopped: read(&self.counters.stopped),
            passed: read(self.doorbell.atomic_u64(gate::PASSED)),
            failed: read(&self.counters.failed),
            wait_total: Nanos(read(&self.counters.wait_total)),
            wait_max: Nanos(read(&self.counters.wait_max)),
            has_ended: self.is_ending.load(Ordering::Relaxed),
        }
    }
}

/// Speculation of a service: which syncs return as barriers.
#[derive(Debug)]
pub(crate) struct Speculation {
    progress: Arc<BarrierProgress>,
    /// The program shares memory with others: no further sync becomes a barrier.
    is_ending: bool,
    /// Barriers without an answer.
    in_flight: usize,
    barriers: u64,
}

impl Speculation {
    pub(crate) fn new(doorbell: Arc<SharedRegion>) -> io::Result<Speculation> {
        let progress = Arc::new(BarrierProgress::new(doorbell)?);
        Ok(Speculation { progress, is_ending: false, in_flight: 0, barriers: 0 })
    }

    pub(crate) fn supervise(&self) -> io::Result<OutputSupervisor> {
        OutputSupervisor::start(self.progress.clone())
    }

    /// Returns the operation that answers a sync: a barrier, unless speculation has ended.
    pub(crate) fn replace(&mut self, op: VolumeOp) -> VolumeOp {
        self.is_ending |= self.progress.is_ending.load(Ordering::SeqCst);
        match op {
            VolumeOp::Sync { .. } | VolumeOp::SyncAll if !self.is_ending => VolumeOp::Barrier,
            op => op,
        }
    }

    /// Counts a barrier that the volume has accepted.
    pub(crate) fn submitted(&mut self) {
        self.in_flight += 1;
    }

    /// Records the completion of a barrier, before its caller is answered.
    pub(crate) fn completed(&mut self, barrier: Option<u64>) {
        self.in_flight -= 1;
        if let Some(barrier) = barrier {
            self.barriers += 1;
            self.progress.acknowledge(barrier);
        }
    }

    /// Publishes the progress of the volume. Returns whether a barrier has just failed and a process
    /// was told of it.
    pub(crate) fn publish(&mut self, durable: u64, has_failed: bool) -> bool {
        self.progress.publish_durable(durable);
        self.is_ending |= self.progress.is_ending.load(Ordering::SeqCst);
        if self.is_ending && self.in_flight == 0 {
            self.progress.set_ended();
        }
        has_failed && self.progress.fail()
    }

    /// Returns whether no process can ask for a barrier or wait for one.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.is_over.load(Ordering::SeqCst)
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

/// The supervisor of a program: it stops the program's output until the barriers before it are
/// durable. One supervisor has one program, with all its descendants.
#[derive(Debug)]
pub struct OutputSupervisor {
    progress: Arc<BarrierProgress>,
    installer: FilterInstaller,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl OutputSupervisor {
    fn start(progress: Arc<BarrierProgress>) -> io::Result<OutputSupervisor> {
        let installer = FilterInstaller::new()?;
        let supervisor = Supervisor::new(progress.clone());
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
    /// it, while the service runs or will run.
    pub fn prepare(&self, command: &mut Command) {
        command.env(gate::ENV_FILTER, "1");
        self.installer.prepare(command);
    }

    /// Ends the supervision of a program that could not be started.
    pub fn cancel(&self) {
        self.installer.cancel();
    }

    /// Returns the last barrier that a process was told of.
    pub fn acknowledged(&self) -> u64 {
        self.progress.acknowledged.load(Ordering::SeqCst)
    }

    /// Returns the last durable barrier.
    pub fn durable(&self) -> u64 {
        self.progress.durable.load(Ordering::SeqCst)
    }

    /// Returns the number of calls that wait now.
    pub fn waiting(&self) -> u64 {
        self.progress.counters.waiting.load(Ordering::SeqCst)
    }

    /// Waits until no process has the filter any more.
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
