//! [`Curve`]: the block layer under the application. [`Model`]: a machine that runs it.

use std::sync::{Arc, Mutex, PoisonError};

use block::{
    BlockDevice, BlockLayer, BlockLayerConfig, QueueModel, QueueTopology, Raw, StagingScope, Step,
};
use driver::{LowLevelDriver, Null};
use machine::{
    Costs, Engine, EngineConfig, LineCosts, Machine, Modeled, SnoopPolicy, StepCosts, TaskSpec,
    Traffic,
};
use time::Nanos;

use super::costs::{Compute, CostModel};
use super::load::{BackgroundLoad, CoreLoad, Load, LoadCounts, LoadOutcome};
use crate::BenchError;

/// A path from the application to the null device. Staging queues are given first, then hardware
/// queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// A hardware queue per core, without a block layer.
    Raw,
    /// One staging queue and one hardware queue under one lock.
    Single,
    /// `mq` with this many staging queues and this many hardware queues.
    Multi(StagingScope, StagingScope),
}

impl Curve {
    /// `mq` without shared queues.
    pub const PER_CORE: Curve = Curve::Multi(StagingScope::Core, StagingScope::Core);

    /// `mq` as in figures 6 and 7 of \[SYSTOR13\].
    pub const PER_SOCKET: Curve = Curve::Multi(StagingScope::Core, StagingScope::Socket);

    /// The curves of figures 6, 9 and 10 of \[SYSTOR13\].
    pub const ALL: [Curve; 8] = [
        Curve::Raw,
        Curve::Single,
        Curve::PER_CORE,
        Curve::PER_SOCKET,
        Curve::Multi(StagingScope::Core, StagingScope::Device),
        Curve::Multi(StagingScope::Device, StagingScope::Core),
        Curve::Multi(StagingScope::Device, StagingScope::Socket),
        Curve::Multi(StagingScope::Device, StagingScope::Device),
    ];

    /// Returns the name as in the paper.
    pub fn name(self) -> String {
        let word = |per| match per {
            StagingScope::Core => "per-core",
            StagingScope::Socket => "per-socket",
            StagingScope::Device => "one",
        };
        match self {
            Curve::Raw => "raw".to_owned(),
            Curve::Single => "sq".to_owned(),
            Curve::Multi(staging, hardware) => format!("mq {}/{}", word(staging), word(hardware)),
        }
    }

    fn hardware_queues(self, machine: Machine) -> u16 {
        let count = match self {
            Curve::Raw | Curve::Multi(_, StagingScope::Core) => machine.cores(),
            Curve::Multi(_, StagingScope::Socket) => machine.sockets(),
            Curve::Single | Curve::Multi(_, StagingScope::Device) => 1,
        };
        count as u16
    }
}

/// A machine with its costs, which are the same for every curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The machine.
    pub machine: Machine,
    /// The costs.
    pub cost_model: CostModel,
    /// Policy for requests of cache lines.
    pub snoops: SnoopPolicy,
}

impl Model {
    /// Runs a load on the first `active` cores (1 to all); queues exist for all cores.
    ///
    /// # Errors
    /// [`BenchError`] if the block layer cannot be opened, or the machine fails.
    pub fn run(
        &self,
        curve: Curve,
        active: usize,
        load: Load,
    ) -> Result<Option<(LoadOutcome, Traffic)>, BenchError> {
        self.run_beside(curve, active, load, None)
    }

    /// Runs a load as [`run`](Model::run) does, beside other work, and for its time.
    ///
    /// # Errors
    /// As [`run`](Model::run).
    pub fn run_beside(
        &self,
        curve: Curve,
        active: usize,
        load: Load,
        background: Option<BackgroundLoad>,
    ) -> Result<Option<(LoadOutcome, Traffic)>, BenchError> {
        let active = active.clamp(1, self.machine.cores());
        let mut null = Null::new(Null::default().limits(), curve.hardware_queues(self.machine));
        let compute = &self.cost_model.compute;
        let layout = match curve {
            Curve::Raw => {
                let limits = null.limits();
                let queues = (0..active as u16).filter_map(|n| null.take_queue(n));
                let devices: Vec<_> = queues.map(|queue| Raw::new(queue, limits)).collect();
                let steps = StepCosts::default().with(Step::Poll, compute.idle.time.0 * 1000);
                return self.play(devices, steps, compute.raw.time, load, background);
            }
            Curve::Single => QueueModel::SingleQueue,
            Curve::Multi(staging, _) => QueueModel::MultiQueue { staging },
        };
        let (sockets, cores) = (self.machine.sockets() as u16, self.machine.cores_per_socket());
        let config = BlockLayerConfig {
            queue_model: layout,
            topology: QueueTopology { sockets, cores: cores as u16 },
            merge: false,
            queue_depth: load.depth.max(1),
            ..BlockLayerConfig::default()
        };
        let (_, queues) = BlockLayer::open_with_platform::<Null, Modeled>(&mut null, &config)?;
        let steps = match curve {
            Curve::PER_CORE => compute.step_costs(compute.owned.time, &Compute::OWNED_STEPS),
            _ => compute.step_costs(compute.locked.time, &Compute::LOCKED_STEPS),
        };
        // The queues of idle cores stay open, as in the runs of the paper.
        let (mut queues, mut idle) = (queues, Vec::new());
        idle.extend(queues.drain(active..));
        self.play(queues, steps, Nanos::ZERO, load, background)
    }

    /// Runs the load on these devices, one per core.
    fn play<D: BlockDevice + Send + 'static>(
        &self,
        devices: Vec<D>,
        steps: StepCosts,
        device_work: Nanos,
        load: Load,
        background: Option<BackgroundLoad>,
    ) -> Result<Option<(LoadOutcome, Traffic)>, BenchError> {
        let CostModel { hit, read, write, socket_shared, link_ps, application, .. } =
            self.cost_model;
        let lines = LineCosts {
            hit: hit.time,
            read: read.map(|cost| cost.time),
            write: write.map(|cost| cost.time),
            socket_shared: socket_shared.time,
            link_ps,
        };
        let switch = background.map_or(Nanos::ZERO, |background| background.switch);
        let costs = Costs { lines, steps, switch, ..Costs::ZERO };
        let config = EngineConfig { snoops: self.snoops, ..EngineConfig::new(self.machine, costs) };
        let mut engine = Engine::new(config)?;
        let (active, application) = (devices.len(), application.time);
        let counts = Arc::new(Mutex::new(LoadCounts::new(
            load,
            background.map(|background| background.measured),
            active,
        )));
        let counter = Arc::new(0);
        for (index, device) in devices.into_iter().enumerate() {
            // Cores do not start at once, as no machine's do.
            let start = Nanos(index as u64 * (application.0 / active as u64));
            let spec = TaskSpec { start, ..TaskSpec::thread(format!("core {index}")).on(index) };
            let (counter, counts) = (counter.clone(), counts.clone());
            let core = CoreLoad { device, index, load, application, device_work, counter, counts };
            engine.spawn(spec, move || core.run())?;
            if let Some(background) = background {
                let spec = TaskSpec::thread(format!("other work {index}")).on(index);
                engine.spawn(spec, move || background.run(index, active))?;
            }
        }
        let report = engine.run()?;
        let outcome = counts.lock().unwrap_or_else(PoisonError::into_inner).outcome();
        Ok(outcome.map(|outcome| (outcome, report.traffic)))
    }
}
