//! [`HiopsHarness`]: six drives on an AHCI controller, and threads that read from them at random.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use block::completion::{
    Blocking, BlockingConfig, InterruptSource, Notify, Placement, Strategy, StripeMember, Transfer,
    Waiter,
};
use controller::{AhciConfig, AhciController, AhciStats, SataData};
use driver::{AhciHost, AhciPort, InterruptContext, InterruptOptions};
use event::{AllowedCpus, IdlePolicy, RealClock, RealRunner, StopHandle};
use rng::Rng;
use time::Nanos;

use super::sample::Sample;
use super::tasks::Tasks;
use crate::{BenchError, Quantiles, RunLength};

/// Maximum size of a request in bytes.
const REQUEST_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of polls of the controller for one step of its initialization; each yields the
/// CPU.
const INIT_POLL_LIMIT: u64 = 10_000_000;

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchSetting {
    /// Issue and completion strategy.
    pub strategy: Strategy,
    /// Number of reading threads.
    pub threads: u32,
    /// Size of each request in bytes.
    pub bytes: u32,
}

/// Commands to the threads.
#[derive(Debug)]
struct ThreadControl {
    stop: AtomicBool,
    active: AtomicU32,
    sectors: AtomicU32,
}

/// Running drives, controller, contexts and threads.
#[derive(Debug)]
pub struct HiopsHarness {
    blocking: Blocking<AhciPort>,
    control: Arc<ThreadControl>,
    threads: Vec<JoinHandle<u64>>,
    sector_bytes: u32,
    clock: RealClock,
    effort: RunLength,
    stopper: StopHandle,
    /// Context of the controller, which runs it until the end.
    controller: InterruptContext,
    stopped: Receiver<io::Result<AhciStats>>,
    /// The controller's thread and the measuring thread.
    excluded_threads: [u32; 2],
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

impl HiopsHarness {
    /// Starts the harness with capacity for `threads` threads.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(threads: u16, effort: RunLength) -> Result<HiopsHarness, BenchError> {
        // The measuring thread must not wait for the measured ones. A failure only costs precision.
        let _ = rustix::process::setpriority_process(None, -20);
        let cores = AllowedCpus::allowed();
        let (host_cpu, last) = (cores.cpu(0), cores.count() - 1);
        let mut config = AhciConfig::hiops();
        for drive in config.drives.iter_mut().flatten() {
            // A controller moves data without a CPU, so its thread does not spend CPU time on it.
            drive.data = SataData::Untouched;
        }
        let function = config.function()?;
        let mut controller = AhciController::new(function.clone(), &config)?;
        let clock = RealClock::start();
        // Hardware does not sleep; on one CPU it must let the host run.
        let spin =
            if cores.has_two() { Nanos::from_secs(1) } else { IdlePolicy::default().spin_time };
        let runner =
            RealRunner::new(clock, IdlePolicy { spin_time: spin, ..IdlePolicy::default() })?;
        function.set_device_waker(runner.waker());
        let stopper = runner.stop_handle();
        let (tell, told) = sync_channel(1);
        let (answer, stopped) = sync_channel(1);
        // Hardware has its own time; on one CPU the host must get some.
        let priority = cores.has_two().then_some(1);
        let options = InterruptOptions { cpu: cores.cpu(last), priority };
        let controller = InterruptContext::start(options, move || {
            // The receiver is dropped only after a failure.
            let _ = tell.try_send(this_thread());
            let ran = runner.run(&mut controller);
            let _ = answer.try_send(ran.map(|()| controller.stats()));
        })?;
        controller.waker().wake();
        let controller_thread = told.recv().map_err(|_| BenchError::Thread("the controller"))?;
        let mut host = AhciHost::connect(function, &mut thread::yield_now, INIT_POLL_LIMIT)?;
        let source = InterruptSource::ahci(&host);
        let config = BlockingConfig {
            threads,
            request_bytes: REQUEST_BYTES_MAX,
            placement: Placement { cpu: host_cpu, realtime: true },
            ..BlockingConfig::default()
        };
        let (blocking, queues) =
            Blocking::open(StripeMember::take_all(&mut host), source, &config)?;
        let orders = Arc::new(ThreadControl {
            stop: AtomicBool::new(false),
            active: AtomicU32::new(0),
            sectors: AtomicU32::new(1),
        });
        let sectors = blocking.striped().sectors();
        let mut running = Vec::new();
        for (index, queue) in queues.into_iter().enumerate() {
            let orders = orders.clone();
            let thread = thread::Builder::new().name("reader".into()).stack_size(128 << 10);
            running.push(thread.spawn(move || {
                AllowedCpus::allowed().pin(0);
                // The priority is inherited from the measuring thread.
                let _ = rustix::process::setpriority_process(None, 0);
                read(queue.enter(), &orders, index as u32, sectors)
            })?);
        }
        Ok(HiopsHarness {
            sector_bytes: blocking.sector_bytes(),
            blocking,
            control: orders,
            threads: running,
            clock,
            effort,
            stopper,
            controller,
            stopped,
            excluded_threads: [controller_thread, this_thread()],
        })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Measures an interval under `setting`.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn measure(&mut self, setting: &BenchSetting) -> Result<Sample, BenchError> {
        self.set(setting)?;
        let (settle, stretch) = match setting.strategy.notify {
            // The hybrid strategy learns first.
            Notify::Hybrid(hybrid) => (hybrid.window * 10, hybrid.window * 30),
            _ => (Nanos::from_millis(25), Nanos::from_millis(160)),
        };
        let quick = Nanos::from_millis(5);
        let sleep = |full| Duration::from_nanos(self.effort.choose(full, quick).0);
        thread::sleep(sleep(settle));
        self.blocking.reset_run_stats();
        let (tasks, before) =
            (Tasks::read(self.clock, &self.excluded_threads)?, self.blocking.stats());
        let start = self.clock.now();
        thread::sleep(sleep(stretch));
        let (time, after) = (self.clock.now().since(start), self.blocking.stats());
        let tasks = Tasks::read(self.clock, &self.excluded_threads)?.since(&tasks);
        let sample = Sample::from_difference(&before, &after, tasks, time);
        if sample.failed > 0 {
            let (case, failed) = (format!("{setting:?}"), sample.failed);
            return Err(BenchError::Failed { case, failed, requests: sample.requests });
        }
        Ok(sample)
    }

    fn set(&mut self, setting: &BenchSetting) -> Result<(), BenchError> {
        if *self.blocking.strategy() != setting.strategy {
            self.blocking.set_strategy(setting.strategy)?;
        }
        self.control.sectors.store(setting.bytes / self.sector_bytes, Ordering::Relaxed);
        let before = self.control.active.swap(setting.threads, Ordering::SeqCst);
        for thread in self.threads.iter().take(setting.threads as usize).skip(before as usize) {
            thread.thread().unpark();
        }
        Ok(())
    }

    /// Stops all threads; returns the lateness of the controller's completions.
    ///
    /// # Errors
    /// [`BenchError::Thread`] if a thread has panicked.
    pub fn stop(self) -> Result<Quantiles, BenchError> {
        self.control.stop.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads {
            thread.join().map_err(|_| BenchError::Thread("a reader"))?;
        }
        drop(self.blocking);
        self.stopper.stop();
        let stats = self.stopped.recv().map_err(|_| BenchError::Thread("the controller"))??;
        drop(self.controller);
        let late = stats.late;
        Ok(Quantiles { p50: late.p50, p99: late.p99, max: late.max })
    }
}

/// Body of a thread: reads at random while it is active; returns the number of reads.
fn read(mut waiter: Waiter<AhciPort>, orders: &ThreadControl, index: u32, sectors: u64) -> u64 {
    // Touch the memory of the slot and of the thread before the measurement.
    waiter.buffer().fill(0, REQUEST_BYTES_MAX as usize, index as u8);
    let all = REQUEST_BYTES_MAX / waiter.sector_bytes();
    let mut reads = 0;
    if waiter.submit_and_wait(Transfer::write(u64::from(index) * u64::from(all), all, 0)).is_err() {
        return reads;
    }
    let mut rng = Rng::new(u64::from(index));
    while !orders.stop.load(Ordering::Relaxed) {
        if index >= orders.active.load(Ordering::SeqCst) {
            thread::park();
            continue;
        }
        let count = orders.sectors.load(Ordering::Relaxed);
        let lba = rng.below(sectors / u64::from(count)) * u64::from(count);
        if waiter.read_at(lba, count, 0).is_err() {
            return reads;
        }
        reads += 1;
    }
    reads
}
