//! [`CostModel`]: the costs of operations on a modeled machine, each with the source of its value.
//!
//! One cost model applies to all curves and numbers of cores; no value is fitted to a result. A
//! cost model without measured values gives the same results on every machine.

use block::Step;
use machine::{StepCosts, Variation};
use time::Nanos;

/// Origin of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostOrigin {
    /// Measured in this run on this machine.
    Measured,
    /// Published, or measured earlier on another machine.
    Given,
}

impl CostOrigin {
    /// Returns the origin as reports show it.
    pub fn as_str(self) -> &'static str {
        match self {
            CostOrigin::Measured => "measured here",
            CostOrigin::Given => "given",
        }
    }
}

/// A cost and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Time of the operation.
    pub time: Nanos,
    /// Origin of the value.
    pub origin: CostOrigin,
    /// The measured system and the publication.
    pub source: &'static str,
}

impl Cost {
    /// Returns a published cost.
    pub const fn given(time_ns: u64, source: &'static str) -> Cost {
        Cost { time: Nanos(time_ns), origin: CostOrigin::Given, source }
    }

    /// Returns a cost measured in this run.
    pub const fn measured(time: Nanos, source: &'static str) -> Cost {
        Cost { time, origin: CostOrigin::Measured, source }
    }
}

/// CPU time per request on an otherwise idle machine: submit, poll and reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Directly on a hardware queue.
    pub raw: Cost,
    /// Through the block layer with per-core queues.
    pub owned: Cost,
    /// Through the block layer under a lock. All of it counts as work in the critical section.
    pub locked: Cost,
    /// A poll that finds no completion.
    pub idle: Cost,
}

impl Compute {
    /// The steps of a request that is submitted, polled for and reaped alone, through owned queues.
    pub(crate) const OWNED_STEPS: [Step; 5] =
        [Step::Submit, Step::Start, Step::Issue, Step::Fetch, Step::Reap];

    /// The steps of such a request under a lock.
    pub(super) const LOCKED_STEPS: [Step; 9] = [
        Step::Submit,
        Step::Run,
        Step::Unplug,
        Step::Start,
        Step::Issue,
        Step::Settle,
        Step::Fetch,
        Step::Deliver,
        Step::Reap,
    ];

    /// Divides the time of a request among its steps and a poll, which takes the time of one without
    /// a result, by their instructions.
    pub(super) fn step_costs(&self, request: Nanos, steps: &[Step]) -> StepCosts {
        let instructions: u64 = steps.iter().map(|step| u64::from(step.instructions())).sum();
        let poll = self.idle.time.0 * 1000;
        let picos = (request.0 * 1000).saturating_sub(poll);
        let mut costs = StepCosts::default().with(Step::Poll, poll);
        for step in Step::ALL.into_iter().filter(|step| *step != Step::Poll) {
            costs = costs.with(step, picos * u64::from(step.instructions()) / instructions);
        }
        costs
    }
}

/// Costs of a modeled machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Access to a line in the core's own cache.
    pub hit: Cost,
    /// Fetch of a line for reading, by distance of its owner.
    pub read: [Cost; 3],
    /// Fetch of a line for writing, by distance of the farthest core that has it.
    pub write: [Cost; 3],
    /// Access to a line that is shared in the socket, if the socket's cache responds.
    pub socket_shared: Cost,
    /// Occupancy of the link between boards per transfer, in picoseconds.
    pub link_ps: u64,
    /// CPU time per request outside the block layer: application, system call, asynchronous I/O.
    pub application: Cost,
    /// CPU time of the block layer and the driver.
    pub compute: Compute,
}

/// 8 sockets of 10 cores at 2.13 GHz: the processors of the largest machine in \[SYSTOR13\].
const SOSP: &str = "Westmere-EX, David et al., SOSP'13, table 2";

/// A processor of Sluice's development machine.
const ZEN: &str = "AMD EPYC (Zen 4), by --costs measured";

impl CostModel {
    /// Cost model without values measured in this run: an 8-socket Westmere-EX, and the block
    /// layer's CPU time as measured on the development machine.
    pub const GIVEN: CostModel = CostModel {
        // 5, 109, 289, 400; 5, 115, 320, 431; 44 cycles.
        hit: Cost::given(2, SOSP),
        read: [Cost::given(51, SOSP), Cost::given(136, SOSP), Cost::given(188, SOSP)],
        write: [Cost::given(54, SOSP), Cost::given(150, SOSP), Cost::given(202, SOSP)],
        socket_shared: Cost::given(21, SOSP),
        // Request, response, completion, header and 8 of data: 12 flits of 80 bits on 20 lanes at
        // 6.4 GT/s, over four links (one per socket of a board).
        link_ps: 12 * 625 / 4,
        // Linux as a whole handles 800 thousand requests per second ([SYSTOR13 §1]). The path
        // without the multi-queue block layer takes 78 % of that time ([SYSTOR13 §5.1], item 4, one
        // socket).
        application: Cost::given(975, "78 % of 1 s / 800,000, SYSTOR'13 sections 1, 5.1"),
        compute: Compute {
            raw: Cost::given(11, ZEN),
            owned: Cost::given(63, ZEN),
            locked: Cost::given(77, ZEN),
            idle: Cost::given(13, ZEN),
        },
    };
}

impl CostModel {
    /// The keys of the costs that can be [varied](CostModel::varied).
    pub const KEYS: [&str; 14] = [
        "hit",
        "read_socket",
        "read_board",
        "read_boards",
        "write_socket",
        "write_board",
        "write_boards",
        "socket_shared",
        "link",
        "application",
        "raw",
        "owned",
        "locked",
        "idle",
    ];

    /// Returns the model with one cost varied, at least 1 ns.
    ///
    /// # Errors
    /// A message if there is no such cost.
    pub fn varied(mut self, variation: &Variation) -> Result<CostModel, String> {
        let scaled = |value: u64| ((value as f64 * variation.factor()).round() as u64).max(1);
        let cost = match variation.key() {
            "hit" => &mut self.hit,
            "read_socket" => &mut self.read[0],
            "read_board" => &mut self.read[1],
            "read_boards" => &mut self.read[2],
            "write_socket" => &mut self.write[0],
            "write_board" => &mut self.write[1],
            "write_boards" => &mut self.write[2],
            "socket_shared" => &mut self.socket_shared,
            "link" => {
                self.link_ps = scaled(self.link_ps);
                return Ok(self);
            }
            "application" => &mut self.application,
            "raw" => &mut self.compute.raw,
            "owned" => &mut self.compute.owned,
            "locked" => &mut self.compute.locked,
            "idle" => &mut self.compute.idle,
            _ => {
                return Err(format!(
                    "there is no such cost; there is {}",
                    CostModel::KEYS.join(", ")
                ));
            }
        };
        cost.time = Nanos(scaled(cost.time.0));
        Ok(self)
    }
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::GIVEN
    }
}
