//! [`PreconditionCache`]: preconditioned drives, for scenarios that start from equal states.

use std::sync::{Mutex, MutexGuard, PoisonError};

use media::{MediaConfig, estimate_memory};
use scenario::{DriveSpec, Scenario};
use stack::{Stack, StateKey, image};
use time::Nanos;

/// A state that several runs start from.
#[derive(Debug)]
struct CachedState {
    /// Name of the drive, which a copy keeps.
    name: String,
    key: StateKey,
    /// Number of runs that will still use the state.
    uses_left: usize,
    /// The state; `None` before the first run.
    stack: Option<Stack>,
}

/// Cache of preconditioned drives.
///
/// A state is kept while a later scenario has the same drive, target, precondition and seed. A
/// cached state equals the state that the run would produce itself.
///
/// Drives with image files are preconditioned each time. So are drives whose state cannot be copied
/// ([`Stack::duplicate`]), or for which memory does not suffice twice.
///
/// Runs on several threads may share a cache. A run does not wait for a state that another run is
/// still producing: it preconditions its own drive.
#[derive(Debug, Default)]
pub struct PreconditionCache(Mutex<CachedStates>);

/// The states, and how often they were used.
#[derive(Debug, Default)]
struct CachedStates {
    states: Vec<CachedState>,
    copies: u64,
}

impl PreconditionCache {
    /// Returns a cache for these scenarios; each is run once.
    pub fn new(scenarios: &[Scenario]) -> PreconditionCache {
        let mut states: Vec<CachedState> = Vec::new();
        // Only drives with one path, their own, are cached.
        for scenario in scenarios.iter().filter(|scenario| scenario.composition.is_empty()) {
            for plan in &scenario.drives {
                let new = CachedState::new(scenario, plan);
                match states.iter_mut().find(|shared| shared.is_state_of(&new)) {
                    Some(shared) => shared.uses_left += 1,
                    None => states.push(new),
                }
            }
        }
        PreconditionCache(Mutex::new(CachedStates { states, copies: 0 }))
    }

    /// Locks the states. They are valid even if a run has panicked: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, CachedStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of runs that started from a cached state.
    pub fn copies(&self) -> u64 {
        self.lock().copies
    }

    /// Returns the drive of a run that begins at `now`, if its state is cached.
    pub(super) fn take(&self, scenario: &Scenario, plan: &DriveSpec, now: Nanos) -> Option<Stack> {
        let mut states = self.lock();
        let shared = states.find(scenario, plan)?;
        shared.uses_left = shared.uses_left.saturating_sub(1);
        // Clocks are part of the state.
        if now != Nanos::ZERO {
            return None;
        }
        let taken = match (&shared.stack, shared.uses_left) {
            (_, 0) => shared.stack.take(),
            (Some(stack), _) => copy(stack, plan),
            (None, _) => None,
        };
        states.copies += u64::from(taken.is_some());
        taken
    }

    /// Caches the state of a drive that was preconditioned by `now`, if a later run starts from it;
    /// `copy` copies it.
    pub(super) fn insert(
        &self,
        scenario: &Scenario,
        plan: &DriveSpec,
        now: Nanos,
        copy: impl FnOnce() -> Option<Stack>,
    ) {
        // Rounds until steady state leave the drive active.
        let at_work = scenario.precondition.until.is_some() || now != Nanos::ZERO;
        if at_work || image(plan).is_some() || !has_memory(&plan.config.media) {
            return;
        }
        if let Some(shared) = self.lock().find(scenario, plan)
            && shared.uses_left > 0
            && shared.stack.is_none()
        {
            shared.stack = copy();
        }
    }
}

impl CachedStates {
    fn find(&mut self, scenario: &Scenario, plan: &DriveSpec) -> Option<&mut CachedState> {
        // Without a precondition there is no time to save.
        if scenario.precondition.is_none() {
            return None;
        }
        let wanted = CachedState::new(scenario, plan);
        self.states.iter_mut().find(|shared| shared.is_state_of(&wanted))
    }
}

/// Returns a copy of a stack. A stack that cannot be copied, also for lack of memory, is
/// preconditioned again.
fn copy(stack: &Stack, plan: &DriveSpec) -> Option<Stack> {
    stack.duplicate(plan).ok().flatten()
}

impl CachedState {
    /// Returns the state, not computed yet, of a drive that one run uses.
    fn new(scenario: &Scenario, plan: &DriveSpec) -> CachedState {
        let key = StateKey::new(plan, &scenario.precondition, scenario.seed);
        CachedState { name: plan.config.name.clone(), key, uses_left: 1, stack: None }
    }

    fn is_state_of(&self, other: &CachedState) -> bool {
        self.name == other.name && self.key == other.key
    }
}

/// Returns whether memory suffices for another medium, and for half as much again for its stack.
fn has_memory(media: &MediaConfig) -> bool {
    let needed = estimate_memory(media);
    workload::available_memory()
        .is_none_or(|available| needed.saturating_add(needed / 2) <= available)
}
