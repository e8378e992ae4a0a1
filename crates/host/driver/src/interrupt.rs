//! [`InterruptContext`]: a thread that stands for the hard interrupt's context.
//!
//! [HIOPS14 §3.1]: a low-level driver makes an upcall at the point of notification, so that the
//! layer above gets the context of the interrupt. User space has no such context, so a dedicated
//! thread waits for the device's interrupt line. If it is pinned to a CPU and runs under
//! `SCHED_FIFO`, a wake-up preempts other threads there, as an interrupt would. The run times are
//! recorded ([HIOPS14 fig. 8]).
//!
//! Guarantee: a wake-up after an upcall's last check causes another upcall, so that no notification
//! is lost. Several wake-ups during an upcall cause one more.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use event::{Parker, RealClock, Waker, thread_cpu_time};
use rustix::thread::CpuSet;
use time::Nanos;

/// How an interrupt context runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptOptions {
    /// The CPU to which it is pinned; `None` does not pin it.
    pub cpu: Option<usize>,
    /// Priority under `SCHED_FIFO`, 1 (lowest) to 99; an ordinary thread if `None`. This needs a
    /// privilege (`CAP_SYS_NICE` or `RLIMIT_RTPRIO`). Without it the context is an ordinary thread,
    /// which [`InterruptContext::is_realtime`] reports.
    pub priority: Option<u8>,
}

/// A running interrupt context; dropping it stops and joins its thread.
#[derive(Debug)]
pub struct InterruptContext {
    shared: Arc<InterruptState>,
    waker: Waker,
    realtime: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct InterruptState {
    stop: AtomicBool,
    masked: AtomicBool,
    /// Whether the line was raised while masked.
    pending: AtomicBool,
    cpu: IrqRunRecorder,
    wall: IrqRunRecorder,
}

impl InterruptContext {
    /// Starts a thread that runs `upcall` whenever [`waker`](InterruptContext::waker) is woken. An
    /// upcall may find nothing to do.
    ///
    /// # Errors
    /// The thread or an eventfd cannot be created, or the thread may not run on the CPU.
    pub fn start(
        options: InterruptOptions,
        mut upcall: impl FnMut() + Send + 'static,
    ) -> io::Result<InterruptContext> {
        let parker = Parker::new()?;
        let waker = parker.waker();
        // From here on a wake-up is kept, even before the thread sleeps.
        parker.prepare();
        let shared = Arc::new(InterruptState {
            stop: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            cpu: IrqRunRecorder::new(),
            wall: IrqRunRecorder::new(),
        });
        let (started, start) = mpsc::sync_channel(1);
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("interrupt".into()).spawn(move || {
            let entered = configure_thread(options);
            let refused = entered.is_err();
            // The receiver waits for this message.
            let _ = started.send(entered);
            if !refused {
                theirs.serve(&parker, &mut upcall);
            }
        })?;
        let entered = start.recv().map_err(|_| io::Error::other("the thread ended at once"))?;
        Ok(InterruptContext { shared, waker, realtime: entered?, thread: Some(thread) })
    }

    /// Returns the waker for the device's interrupt line.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns whether the thread runs under `SCHED_FIFO`.
    pub fn is_realtime(&self) -> bool {
        self.realtime
    }

    /// Returns whether the thread still runs: it ends early only if the upcall panics.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Masks upcalls. A running one continues; later wake-ups are remembered.
    pub fn mask(&self) {
        self.shared.masked.store(true, Ordering::SeqCst);
    }

    /// Unmasks upcalls. One runs at once if the line was raised while masked.
    pub fn unmask(&self) {
        self.shared.masked.store(false, Ordering::SeqCst);
        if self.shared.pending.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Returns the run times.
    pub fn stats(&self) -> InterruptStats {
        InterruptStats { cpu: self.shared.cpu.read(), wall: self.shared.wall.read() }
    }

    /// Clears the run times. A run that ends at the same time may be counted in part.
    pub fn reset_stats(&self) {
        self.shared.cpu.reset();
        self.shared.wall.reset();
    }
}

impl Drop for InterruptContext {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread has reported a panic of the upcall itself.
            let _ = thread.join();
        }
    }
}

impl InterruptState {
    /// Runs the thread's loop. Wake-ups stay in the eventfd, except between the end of a sleep and
    /// the next preparation of the parker. The parker is prepared before the upcall checks for
    /// work.
    fn serve(&self, parker: &Parker, upcall: &mut impl FnMut()) {
        let clock = RealClock::start();
        while !self.stop.load(Ordering::SeqCst) {
            if parker.park(&[], Nanos::MAX).is_err() {
                return;
            }
            parker.prepare();
            self.pending.store(true, Ordering::SeqCst);
            if self.masked.load(Ordering::SeqCst) || self.stop.load(Ordering::SeqCst) {
                continue;
            }
            self.pending.store(false, Ordering::SeqCst);
            let (wall, cpu) = (clock.now(), thread_cpu_time());
            upcall();
            self.cpu.record(thread_cpu_time().since(cpu));
            self.wall.record(clock.now().since(wall));
        }
    }
}

/// Applies the options to the calling thread. Returns whether it runs under `SCHED_FIFO`.
fn configure_thread(options: InterruptOptions) -> io::Result<bool> {
    if let Some(cpu) = options.cpu {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no CPU {cpu}"),
            ));
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    Ok(options.priority.is_some_and(|priority| become_realtime(priority).is_ok()))
}

/// Puts the calling thread under `SCHED_FIFO`.
#[allow(unsafe_code, reason = "rustix has no sched_setscheduler")]
fn become_realtime(priority: u8) -> io::Result<()> {
    // SAFETY: the all-zero bit pattern is a valid `sched_param`, a structure of integers.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority.clamp(1, 99).into();
    // SAFETY: `parameters` lives through the call, which only reads it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The run times of an interrupt context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptStats {
    /// By the thread's CPU clock: time used by the upcall itself.
    pub cpu: IrqRunHistogram,
    /// By wall clock: includes time in which other threads had the CPU.
    pub wall: IrqRunHistogram,
}

/// A histogram of run times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqRunHistogram {
    /// Number of runs.
    pub count: u64,
    /// Sum of the run times.
    pub total: Nanos,
    /// Longest run time.
    pub longest: Nanos,
    buckets: Box<[u64]>,
}

impl IrqRunHistogram {
    /// Returns the quantile `q` (0 to 1) of the run times, at most an eighth too long.
    pub fn quantile(&self, q: f64) -> Nanos {
        let rank = (q * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_upper_bound(i).min(self.longest);
            }
        }
        self.longest
    }

    /// Returns the buckets, shortest first: the longest run time of the bucket, and its number of
    /// runs.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(i, count)| (bucket_upper_bound(i), *count))
    }

    /// Returns the mean run time.
    pub fn mean(&self) -> Nanos {
        Nanos(self.total.0 / self.count.max(1))
    }
}

/// Eight buckets per power of two.
const SUB_BITS: u32 = 3;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

fn bucket_index(nanos: u64) -> usize {
    let shift = (63 - SUB_BITS).saturating_sub(nanos.leading_zeros());
    ((shift as usize) << SUB_BITS) + (nanos >> shift) as usize
}

fn bucket_upper_bound(bucket: usize) -> Nanos {
    let shift = (bucket >> SUB_BITS).saturating_sub(1) as u32;
    let mantissa = bucket as u128 - (u128::from(shift) << SUB_BITS);
    Nanos(u64::try_from(((mantissa + 1) << shift) - 1).unwrap_or(u64::MAX))
}

/// Records an [`IrqRunHistogram`]: one thread writes, any thread reads.
#[derive(Debug)]
pub struct IrqRunRecorder {
    count: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

impl Default for IrqRunRecorder {
    fn default() -> IrqRunRecorder {
        IrqRunRecorder::new()
    }
}

impl IrqRunRecorder {
    /// Creates an empty histogram.
    pub fn new() -> IrqRunRecorder {
        IrqRunRecorder {
            count: AtomicU64::new(0),
            total: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Records a run.
    pub fn record(&self, length: Nanos) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(length.0, Ordering::Relaxed);
        self.longest.fetch_max(length.0, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_index(length.0)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the runs so far.
    pub fn read(&self) -> IrqRunHistogram {
        IrqRunHistogram {
            count: self.count.load(Ordering::Relaxed),
            total: Nanos(self.total.load(Ordering::Relaxed)),
            longest: Nanos(self.longest.load(Ordering::Relaxed)),
            buckets: self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
        }
    }

    /// Clears the histogram. A run that is recorded at the same time may be counted in part.
    pub fn reset(&self) {
        for word in [&self.count, &self.total, &self.longest].into_iter().chain(&*self.buckets) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn buckets_are_an_eighth_wide_at_most() {
        let mut last = 0;
        for nanos in (0..5_000).chain((13..64).flat_map(|s| [(1 << s) - 1, 1 << s, (1 << s) + 1])) {
            let (b, end) = (bucket_index(nanos), bucket_upper_bound(bucket_index(nanos)).0);
            assert!(b < BUCKETS && b >= last, "{nanos}");
            assert!(end >= nanos && end - nanos <= nanos / 8, "{nanos}: up to {end}");
            last = b;
        }
        assert_eq!(bucket_upper_bound(bucket_index(u64::MAX)), Nanos::MAX);
        let record = IrqRunRecorder::new();
        (1..=100).for_each(|i| record.record(Nanos(i * 1000)));
        let runs = record.read();
        assert_eq!((runs.count, runs.longest, runs.mean()), (100, Nanos(100_000), Nanos(50_500)));
        assert!((50_000..57_000).contains(&runs.quantile(0.5).0), "{:?}", runs.quantile(0.5));
        assert_eq!(runs.quantile(1.0), Nanos(100_000));
        assert_eq!(runs.buckets().map(|b| b.1).sum::<u64>(), 100);
        record.reset();
        assert_eq!(record.read(), IrqRunRecorder::new().read());
    }

    fn wait_for(what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn no_notification_is_lost_and_several_may_be_one_run() {
        let (raised, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (theirs, theirs_seen) = (raised.clone(), seen.clone());
        let context = InterruptContext::start(InterruptOptions::default(), move || {
            theirs_seen.store(theirs.load(Ordering::Acquire), Ordering::Release);
        })
        .unwrap();
        let line = context.waker();
        for n in 1..=5_000 {
            raised.store(n, Ordering::Release);
            line.wake();
            if n % 3 == 0 {
                wait_for("the upcall", || seen.load(Ordering::Acquire) == n);
            }
        }
        wait_for("the last upcall", || seen.load(Ordering::Acquire) == 5_000);
        wait_for("its record", || context.stats().wall.count >= 5_000 / 3);
        let stats = context.stats();
        assert!(stats.wall.count <= 5_000, "{}", stats.wall.count);
        assert!(stats.cpu.longest > Nanos::ZERO && stats.wall.longest > Nanos::ZERO);
    }

    #[test]
    fn a_masked_context_remembers() {
        let seen = Arc::new(AtomicU64::new(0));
        let theirs = seen.clone();
        let context = InterruptContext::start(InterruptOptions::default(), move || {
            theirs.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        context.mask();
        context.waker().wake();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(seen.load(Ordering::SeqCst), 0, "masked");
        context.unmask();
        wait_for("the remembered run", || seen.load(Ordering::SeqCst) == 1);
        std::thread::sleep(Duration::from_millis(5));
        context.mask();
        context.unmask();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(seen.load(Ordering::SeqCst), 1, "nothing was raised");
    }

    #[test]
    fn runs_where_it_is_told_or_says_why_not() {
        let on = Arc::new(AtomicU64::new(u64::MAX));
        let theirs = on.clone();
        let options = InterruptOptions { cpu: Some(0), priority: Some(1) };
        let context = InterruptContext::start(options, move || {
            theirs.store(rustix::thread::sched_getcpu() as u64, Ordering::SeqCst);
        });
        // The process may not be permitted to run on the first CPU.
        if let Ok(context) = context {
            context.waker().wake();
            wait_for("a run", || on.load(Ordering::SeqCst) != u64::MAX);
            assert_eq!(on.load(Ordering::SeqCst), 0);
        }
        let nowhere = InterruptOptions { cpu: Some(usize::MAX), ..InterruptOptions::default() };
        let refused = InterruptContext::start(nowhere, || ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let nowhere = InterruptOptions { cpu: Some(CpuSet::MAX_CPU - 1), ..nowhere };
        assert!(InterruptContext::start(nowhere, || ()).is_err());
    }

    #[test]
    fn an_upcall_that_panics_ends_the_context() {
        let context =
            InterruptContext::start(InterruptOptions::default(), || panic!("on purpose")).unwrap();
        context.waker().wake();
        wait_for("the thread's end", || !context.is_running());
    }
}
