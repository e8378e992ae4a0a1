//! [`Costs`]: what everything takes on a modelled machine, and where each number comes from.
//!
//! One sheet serves every curve and every number of cores; nothing here is fitted to a result. A
//! sheet without measured numbers gives the same results everywhere, always.

use clock::Nanos;

use super::Distance;

/// Where a cost comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured in this run on this machine.
    Measured,
    /// Published, or measured once elsewhere.
    Given,
}

impl Origin {
    /// The word for it in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Measured => "measured here",
            Origin::Given => "given",
        }
    }
}

/// A cost and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// How long.
    pub time: Nanos,
    /// Where the number comes from.
    pub origin: Origin,
    /// What took this long where, and who says so.
    pub source: &'static str,
}

impl Cost {
    /// A published cost.
    pub const fn given(time_ns: u64, source: &'static str) -> Cost {
        Cost { time: Nanos(time_ns), origin: Origin::Given, source }
    }

    /// A cost measured in this run.
    pub const fn measured(time: Nanos, source: &'static str) -> Cost {
        Cost { time, origin: Origin::Measured, source }
    }
}

/// What one core spends on a request where nobody else is: submit, poll and reap together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Straight on a hardware queue.
    pub raw: Cost,
    /// Through the block layer with queues of its own.
    pub owned: Cost,
    /// Through the block layer under a lock. All of it counts as work inside the critical section.
    pub locked: Cost,
    /// A poll that finds nothing.
    pub idle: Cost,
}

/// The cost sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// A line that the core has.
    pub hit: Cost,
    /// Fetching a line to read it, by distance of who has it.
    pub read: [Cost; 3],
    /// Fetching a line to write it, by distance of the farthest who has it.
    pub write: [Cost; 3],
    /// A line that others of the socket share, where the socket's cache answers for it.
    pub socket_shared: Cost,
    /// How long one transfer occupies the link between boards, in picoseconds.
    pub link_ps: u64,
    /// What a request takes outside the block layer: application, system call, asynchronous I/O.
    pub application: Cost,
    /// What the block layer and the driver take.
    pub compute: Compute,
}

/// 8 sockets of 10 cores, 2.13 GHz: the processors of SYSTOR'13's largest machine.
const SOSP: &str = "Westmere-EX, David et al., SOSP'13, table 2";

/// A processor of the machine that Sluice is developed on.
const ZEN: &str = "AMD EPYC (Zen 4), by --costs measured";

impl CostModel {
    /// The sheet without anything measured now: an 8-socket Westmere-EX, and the block layer's own
    /// time as it was measured on the development machine.
    pub const GIVEN: CostModel = CostModel {
        // 5, 109, 289, 400; 5, 115, 320, 431; 44 cycles.
        hit: Cost::given(2, SOSP),
        read: [Cost::given(51, SOSP), Cost::given(136, SOSP), Cost::given(188, SOSP)],
        write: [Cost::given(54, SOSP), Cost::given(150, SOSP), Cost::given(202, SOSP)],
        socket_shared: Cost::given(21, SOSP),
        // Request, response, completion, header and 8 of data: 12 flits of 80 bits on 20 lanes at
        // 6.4 GT/s, over four links (one per socket of a board).
        link_ps: 12 * 625 / 4,
        // 800 thousand a second through all of Linux (section 1), of which the path without the
        // multi-queue layer is 78 % (section 5.1, item 4, one socket).
        application: Cost::given(975, "78 % of 1 s / 800,000, SYSTOR'13 sections 1, 5.1"),
        compute: Compute {
            raw: Cost::given(11, ZEN),
            owned: Cost::given(63, ZEN),
            locked: Cost::given(77, ZEN),
            idle: Cost::given(13, ZEN),
        },
    };

    /// Fetching a line over a distance.
    pub(crate) fn fetch(&self, distance: Distance, write: bool) -> u64 {
        let costs = if write { &self.write } else { &self.read };
        costs[distance as usize].time.0
    }
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::GIVEN
    }
}
