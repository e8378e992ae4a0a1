//! [`ModeledHost`]: runs readers on a modeled machine with an AHCI controller.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use block::completion::{
    Blocking, BlockingConfig, BlockingQueue, ContextKind, InterruptSource, Strategy, StripeMember,
};
use block::{Layer, Timeouts};
use controller::{AhciConfig, AhciController, SataData, SataDriveConfig};
use driver::AhciHost;
use event::Waker;
use machine::{
    BackEnd, CoreState, Engine, EngineConfig, EngineReport, MachineModel, Modeled, TaskSpec,
};
use rng::Rng;
use scenario::HostKernel;
use time::{Component, Nanos};

use super::contexts::{EngineContexts, INTERRUPT_CORE};
use super::device::{HostedController, HostedLine, HostedPort, HostedPorts};
use crate::{BenchError, RunLength};

/// Maximum size of a request in bytes.
const REQUEST_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of polls of the controller for one step of its initialization.
const INIT_POLL_LIMIT: u64 = 10_000_000;

/// Time between two of those polls.
const INIT_POLL: Nanos = Nanos::from_micros(10);

/// Time between two examinations of whether the readers have ended.
const WAIT: Nanos = Nanos::from_micros(100);

/// A load on the modeled machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ModeledSetting {
    pub(super) strategy: Strategy,
    pub(super) kernel: HostKernel,
    /// Number of drives.
    pub(super) drives: usize,
    /// Number of reading threads.
    pub(super) threads: u16,
    /// Size of each request in bytes.
    pub(super) bytes: u32,
    /// Processor time of the program for each request.
    pub(super) application: Nanos,
}

/// Measurements of a load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModeledSample {
    /// Completed requests per second.
    pub(super) iops: f64,
    /// Bytes read per second.
    pub(super) bytes_per_second: f64,
    /// Mean time of a request.
    pub(super) latency: Nanos,
    /// Longest run of the interrupt's handler.
    pub(super) handler_max: Nanos,
    /// Share of completions that other threads found.
    pub(super) stolen: f64,
    /// Number of requests.
    requests: u64,
    failed: u64,
    /// Switches between threads per request.
    pub(super) switches_per_io: f64,
    /// Interrupts per request.
    pub(super) interrupts_per_io: f64,
    /// Share of the time in which the hardware thread of the interrupt is busy.
    pub(super) interrupt_core: f64,
    /// Mean share of the time in which a hardware thread is busy.
    pub(super) busy: f64,
}

/// A modeled machine and its controller.
#[derive(Clone, Debug)]
pub(super) struct ModeledHost {
    pub(super) model: MachineModel,
    pub(super) effort: RunLength,
    pub(super) back_end: BackEnd,
    /// Time after the start from which on the controller does nothing any more.
    pub(super) hangs_after: Nanos,
    pub(super) timeouts: Timeouts,
}

/// State that the readers share.
#[derive(Debug)]
struct ReaderControl {
    stop: AtomicBool,
    running: AtomicU32,
    sectors: u32,
    application: Nanos,
}

impl ModeledHost {
    /// Returns the machine of a model, with a controller that works.
    pub(super) fn new(model: MachineModel, effort: RunLength) -> ModeledHost {
        ModeledHost {
            model,
            effort,
            back_end: BackEnd::default(),
            hangs_after: Nanos::MAX,
            timeouts: Timeouts::default(),
        }
    }

    /// Measures a load.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(super) fn measure(&self, setting: &ModeledSetting) -> Result<ModeledSample, BenchError> {
        let drive = SataDriveConfig { data: SataData::Untouched, ..SataDriveConfig::default() };
        let config = AhciConfig::uniform(setting.drives, &drive);
        let function = config.function()?;
        let mut controller = AhciController::new(function.clone(), &config)?;
        let mut start = Nanos::ZERO;
        let mut poll = || {
            start += INIT_POLL;
            controller.poll(start);
        };
        let host = AhciHost::connect(function.clone(), &mut poll, INIT_POLL_LIMIT)?;
        let kernel = setting.kernel.request_costs(&self.model);
        let config = self.model.engine_config(kernel);
        let config = EngineConfig { start, back_end: self.back_end, ..config };
        let hangs_at = Nanos(start.0.saturating_add(self.hangs_after.0));
        let mut engine = Engine::new(config)?;
        engine.add_device(Box::new(HostedController::new(controller, hangs_at)));
        function.set_device_waker(Waker::calling(machine::doorbell)?);
        let source = match InterruptSource::ahci(&host) {
            InterruptSource::SharedLine(line) => {
                InterruptSource::SharedLine(Arc::new(HostedLine(line)))
            }
            InterruptSource::PerQueue => InterruptSource::PerQueue,
        };
        let blocking = BlockingConfig {
            threads: setting.threads,
            request_bytes: REQUEST_BYTES_MAX,
            strategy: setting.strategy,
            timeouts: self.timeouts,
            ..BlockingConfig::default()
        };
        let members = StripeMember::take_all(&mut HostedPorts(host));
        let mut contexts = EngineContexts(&mut engine);
        let (blocking, queues) = Blocking::open_on(members, source, &blocking, &mut contexts)?;
        let sectors = blocking.striped().sectors();
        let control = Arc::new(ReaderControl {
            stop: AtomicBool::new(false),
            running: AtomicU32::new(u32::from(setting.threads)),
            sectors: setting.bytes / blocking.sector_bytes(),
            application: setting.application,
        });
        for (index, queue) in queues.into_iter().enumerate() {
            let control = control.clone();
            let spec = TaskSpec::thread(format!("reader {index}"));
            engine.spawn(spec, move || read(queue, &control, index as u64, sectors))?;
        }
        let sample = Arc::new(Mutex::new(ModeledSample::default()));
        let (theirs, lengths) = (sample.clone(), self.lengths());
        engine.spawn(TaskSpec::thread("measurement"), move || {
            let measured = observe(blocking, &control, lengths);
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        })?;
        let report = engine.run()?;
        let mut sample = sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if sample.failed > 0 || sample.requests == 0 {
            let (case, failed) = (format!("{setting:?}"), sample.failed);
            return Err(BenchError::Failed { case, failed, requests: sample.requests });
        }
        sample.add_report(&report);
        Ok(sample)
    }

    /// Returns the times before the measurement and of it.
    fn lengths(&self) -> [Nanos; 2] {
        let millis = self.effort.choose([10, 40], [2, 4]);
        millis.map(Nanos::from_millis)
    }
}

impl ModeledSample {
    fn add_report(&mut self, report: &EngineReport) {
        let per_io = |count: u64| count as f64 / self.requests as f64;
        self.switches_per_io = per_io(report.switches);
        self.interrupts_per_io = per_io(report.interrupts);
        let busy: Vec<f64> = report
            .core_times
            .iter()
            .map(|times| {
                let idle = times.time(CoreState::Idle).as_secs_f64();
                1.0 - idle / report.measured.as_secs_f64()
            })
            .collect();
        self.interrupt_core = busy[INTERRUPT_CORE];
        self.busy = busy.iter().sum::<f64>() / busy.len() as f64;
    }
}

/// Waits, measures, stops the readers and the contexts.
fn observe(
    blocking: Blocking<HostedPort, Modeled>,
    control: &ReaderControl,
    [settle, stretch]: [Nanos; 2],
) -> ModeledSample {
    machine::sleep_until(machine::now() + settle);
    machine::begin_measurement();
    blocking.reset_run_stats();
    let (start, before) = (machine::now(), blocking.stats());
    machine::sleep_until(start + stretch);
    let (seconds, after) = (machine::now().since(start).as_secs_f64(), blocking.stats());
    control.stop.store(true, Ordering::Relaxed);
    while control.running.load(Ordering::Relaxed) > 0 {
        machine::sleep_until(machine::now() + WAIT);
    }
    let failed = blocking.stats().waiters.failed - before.waiters.failed;
    drop(blocking);
    let [before, waiters] = [before.waiters, after.waiters];
    let requests = waiters.requests - before.requests;
    let handler = after.context(ContextKind::HardIrq);
    ModeledSample {
        iops: requests as f64 / seconds,
        bytes_per_second: (waiters.bytes - before.bytes) as f64 / seconds,
        latency: Nanos(waiters.latency.since(before.latency).0 / requests.max(1)),
        handler_max: handler.map_or(Nanos::ZERO, |context| context.wall.longest),
        stolen: (waiters.stolen - before.stolen) as f64 / requests.max(1) as f64,
        requests,
        failed,
        ..ModeledSample::default()
    }
}

/// Body of a reader: reads at random until it is stopped.
fn read(
    queue: BlockingQueue<HostedPort, Modeled>,
    control: &ReaderControl,
    seed: u64,
    sectors: u64,
) {
    let mut waiter = queue.enter();
    let mut rng = Rng::new(seed);
    let count = control.sectors;
    while !control.stop.load(Ordering::Relaxed) {
        let lba = rng.below(sectors / u64::from(count)) * u64::from(count);
        machine::compute(Layer::Application, control.application);
        match waiter.read_at(lba, count, 0) {
            Ok(done) if done.status.is_success() => {}
            _ => break,
        }
    }
    drop(waiter);
    control.running.fetch_sub(1, Ordering::Relaxed);
}
