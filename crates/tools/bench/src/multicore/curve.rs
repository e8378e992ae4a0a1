//! [`Curve`]: the block layer under the application. [`Model`]: a machine that runs it.

use block::{BlockError, BlockLayer, BlockLayerConfig, QueueModel, Raw, StagingScope};
use driver::{LowLevelDriver, Null};
use time::Nanos;

use super::application::{Application, Load, LoadOutcome};
use super::engine::Engine;
use super::lines::{SnoopPolicy, Traffic};
use super::{CostModel, Machine, Modeled, access_log};

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
    /// [`block::BlockError`] if the block layer cannot be opened.
    pub fn run(
        &self,
        curve: Curve,
        active: usize,
        load: Load,
    ) -> Result<Option<(LoadOutcome, Traffic)>, BlockError> {
        access_log::reset();
        let active = active.clamp(1, self.machine.cores());
        let mut null = Null::new(Null::default().limits(), curve.hardware_queues(self.machine));
        let compute = &self.cost_model.compute;
        let layout = match curve {
            Curve::Raw => {
                let limits = null.limits();
                let queues = (0..active as u16).filter_map(|n| null.take_queue(n));
                let devices: Vec<_> = queues.map(|queue| Raw::new(queue, limits)).collect();
                return Ok(self.play(devices, compute.raw.time, load));
            }
            Curve::Single => QueueModel::SingleQueue,
            Curve::Multi(staging, _) => QueueModel::MultiQueue { staging },
        };
        let config = BlockLayerConfig {
            queue_model: layout,
            topology: self.machine.topology(),
            merge: false,
            queue_depth: load.depth.max(1),
            ..BlockLayerConfig::default()
        };
        let (_, queues) = BlockLayer::open_with_platform::<Null, Modeled>(&mut null, &config)?;
        let compute =
            if curve == Curve::PER_CORE { compute.owned.time } else { compute.locked.time };
        // The queues of idle cores stay open, as in the runs of the paper.
        let (mut queues, mut idle) = (queues, Vec::new());
        idle.extend(queues.drain(active..));
        Ok(self.play(queues, compute, load))
    }

    fn play<D: block::BlockDevice>(
        &self,
        devices: Vec<D>,
        compute: Nanos,
        load: Load,
    ) -> Option<(LoadOutcome, Traffic)> {
        let active = devices.len();
        let stagger = Nanos(self.cost_model.application.time.0 / active.max(1) as u64);
        let mut engine = Engine::new(self.machine, self.cost_model, self.snoops, active, stagger);
        let mut application = Application::new(devices, load, self.cost_model, compute);
        engine.run(&mut application);
        application.outcome().map(|outcome| (outcome, engine.traffic()))
    }
}
