//! [`Costs`]: what operations take on a modeled machine.

use platform::Step;
use time::Nanos;

use crate::topology::Distance;

/// Times of transfers of cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCosts {
    /// Access to a line in the core's own cache.
    pub hit: Nanos,
    /// Fetch of a line for reading, by distance of its owner.
    pub read: [Nanos; 3],
    /// Fetch of a line for writing, by distance of the farthest core that has it.
    pub write: [Nanos; 3],
    /// Access to a line that is shared in the socket, if the socket's cache responds.
    pub socket_shared: Nanos,
    /// Occupancy of the link between boards per transfer, in picoseconds.
    pub link_ps: u64,
}

impl LineCosts {
    /// Costs of nothing.
    pub const ZERO: LineCosts = LineCosts {
        hit: Nanos::ZERO,
        read: [Nanos::ZERO; 3],
        write: [Nanos::ZERO; 3],
        socket_shared: Nanos::ZERO,
        link_ps: 0,
    };

    /// Those of 8 sockets of Westmere-EX, of the tests.
    #[cfg(test)]
    pub(crate) const WESTMERE_EX: LineCosts = LineCosts {
        hit: Nanos(2),
        read: [Nanos(51), Nanos(136), Nanos(188)],
        write: [Nanos(54), Nanos(150), Nanos(202)],
        socket_shared: Nanos(21),
        link_ps: 1875,
    };

    /// Returns the time of fetching a line over a distance, in nanoseconds.
    pub(crate) fn fetch(&self, distance: Distance, write: bool) -> u64 {
        let costs = if write { &self.write } else { &self.read };
        costs[distance as usize].0
    }
}

/// Time of each [`Step`], in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCosts {
    picos: [u64; Step::ALL.len()],
}

impl Default for StepCosts {
    fn default() -> StepCosts {
        StepCosts { picos: [0; Step::ALL.len()] }
    }
}

impl StepCosts {
    /// Returns the costs with that of one step changed to `picos` picoseconds.
    #[must_use]
    pub fn with(mut self, step: Step, picos: u64) -> StepCosts {
        self.picos[step as usize] = picos;
        self
    }

    /// Returns the time of a step in picoseconds.
    #[inline]
    pub fn picos(&self, step: Step) -> u64 {
        self.picos[step as usize]
    }
}

/// Times of a machine's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Transfers of cache lines.
    pub lines: LineCosts,
    /// Steps of software.
    pub steps: StepCosts,
    /// Switch of a core from one thread to another.
    pub switch: Nanos,
    /// From an interrupt's arrival to the first instruction of its handler.
    pub interrupt_entry: Nanos,
    /// From a handler's last instruction to the interrupted one.
    pub interrupt_exit: Nanos,
    /// From a wake-up on one core to the moment at which another, idle core begins to switch.
    pub remote_wake: Nanos,
    /// Time of work while the other hardware thread of the core works, in percent of the time
    /// alone; at least 100.
    pub smt_percent: u32,
}

impl Costs {
    /// Costs of nothing.
    pub const ZERO: Costs = Costs {
        lines: LineCosts::ZERO,
        steps: StepCosts { picos: [0; Step::ALL.len()] },
        switch: Nanos::ZERO,
        interrupt_entry: Nanos::ZERO,
        interrupt_exit: Nanos::ZERO,
        remote_wake: Nanos::ZERO,
        smt_percent: 100,
    };
}
