//! [`CoreTimes`]: the time of each hardware thread by what it did.

use platform::Layer;
use time::Nanos;

/// State of a hardware thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreState {
    /// Work of a layer, in a thread.
    Work(Layer),
    /// Waiting for a lock that another core holds.
    LockWait,
    /// A handler of a hard interrupt.
    Interrupt,
    /// A soft interrupt.
    SoftInterrupt,
    /// Switching from one thread to another.
    Switch,
    /// Spinning for a completion and finding none.
    Spin,
    /// Nothing to do.
    #[default]
    Idle,
}

const LAYERS: usize = Layer::ALL.len();

/// Number of states.
const STATES: usize = LAYERS + 6;

impl CoreState {
    /// Returns all states, in the order of results.
    pub fn all() -> impl Iterator<Item = CoreState> {
        let others = [
            CoreState::LockWait,
            CoreState::Interrupt,
            CoreState::SoftInterrupt,
            CoreState::Switch,
            CoreState::Spin,
            CoreState::Idle,
        ];
        Layer::ALL.into_iter().map(CoreState::Work).chain(others)
    }

    /// Returns the name as results show it.
    pub fn word(self) -> &'static str {
        match self {
            CoreState::Work(layer) => layer.word(),
            CoreState::LockWait => "lock_wait",
            CoreState::Interrupt => "interrupt",
            CoreState::SoftInterrupt => "soft_interrupt",
            CoreState::Switch => "switch",
            CoreState::Spin => "spin",
            CoreState::Idle => "idle",
        }
    }

    fn index(self) -> usize {
        match self {
            CoreState::Work(layer) => layer as usize,
            CoreState::LockWait => LAYERS,
            CoreState::Interrupt => LAYERS + 1,
            CoreState::SoftInterrupt => LAYERS + 2,
            CoreState::Switch => LAYERS + 3,
            CoreState::Spin => LAYERS + 4,
            CoreState::Idle => LAYERS + 5,
        }
    }
}

/// The time that one hardware thread spent in each state, which sums to the time elapsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTimes {
    nanos: [u64; STATES],
}

impl CoreTimes {
    pub(crate) fn add(&mut self, state: CoreState, time: Nanos) {
        self.nanos[state.index()] += time.0;
    }

    /// Returns the time in a state.
    pub fn time(&self, state: CoreState) -> Nanos {
        Nanos(self.nanos[state.index()])
    }

    /// Returns the time in all states.
    pub fn total(&self) -> Nanos {
        Nanos(self.nanos.iter().sum())
    }

    /// Returns the time in all states but [`CoreState::Idle`].
    pub fn busy(&self) -> Nanos {
        self.total() - self.time(CoreState::Idle)
    }
}
