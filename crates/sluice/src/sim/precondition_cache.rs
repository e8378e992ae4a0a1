//! [`PreconditionCache`]: drives in their preconditioned state, for scenarios that begin with the same one.

use clock::Nanos;
use media::{MediaConfig, estimate_memory};

use crate::scenario::{DriveSpec, Precondition, Scenario};
use crate::serve::image;
use crate::stack::Stack;

/// What the state of a drive depends on.
#[derive(Clone, Debug, PartialEq)]
struct StateKey {
    plan: DriveSpec,
    precondition: Precondition,
    seed: u64,
}

/// A state that several runs begin with.
#[derive(Debug)]
struct CachedState {
    key: StateKey,
    /// Runs that are still to come.
    uses_left: usize,
    /// The state, once there was a run.
    stack: Option<Stack>,
}

/// Preconditioned drives, kept from one scenario to the next as long as one of those to come has the same
/// drive, target, precondition and seed. What a run finds is what it would have made itself.
///
/// Drives with image files are preconditioned each time, and so are those whose state cannot be copied
/// ([`Stack::duplicate`]) or for which there is not enough memory twice.
#[derive(Debug, Default)]
pub struct PreconditionCache {
    states: Vec<CachedState>,
    copies: u64,
}

impl PreconditionCache {
    /// For these scenarios, each run once.
    pub fn new(scenarios: &[Scenario]) -> PreconditionCache {
        let mut states: Vec<CachedState> = Vec::new();
        for scenario in scenarios {
            for plan in &scenario.drives {
                let origin = StateKey::new(scenario, plan);
                match states.iter_mut().find(|shared| shared.key == origin) {
                    Some(shared) => shared.uses_left += 1,
                    None => states.push(CachedState { key: origin, uses_left: 1, stack: None }),
                }
            }
        }
        PreconditionCache { states, copies: 0 }
    }

    /// Runs that began with a state that another had made.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// The drive of a run that begins at `now`, if its state is there.
    pub(super) fn take(
        &mut self,
        scenario: &Scenario,
        plan: &DriveSpec,
        now: Nanos,
    ) -> Option<Stack> {
        let shared = self.find(scenario, plan)?;
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
        self.copies += u64::from(taken.is_some());
        taken
    }

    /// Keeps the state of a drive that was preconditioned by `now`, if a run to come begins with it.
    pub(super) fn insert(
        &mut self,
        scenario: &Scenario,
        plan: &DriveSpec,
        stack: &Stack,
        now: Nanos,
    ) {
        // Rounds until steady state leave the drive at work.
        let at_work = scenario.precondition.until.is_some() || now != Nanos::ZERO;
        if at_work || image(plan).is_some() || !has_memory(&plan.config.media) {
            return;
        }
        if let Some(shared) = self.find(scenario, plan)
            && shared.uses_left > 0
            && shared.stack.is_none()
        {
            shared.stack = copy(stack, plan);
        }
    }

    fn find(&mut self, scenario: &Scenario, plan: &DriveSpec) -> Option<&mut CachedState> {
        // Without a precondition there is nothing that takes time.
        if scenario.precondition == Precondition::default() {
            return None;
        }
        let origin = StateKey::new(scenario, plan);
        self.states.iter_mut().find(|shared| shared.key == origin)
    }
}

/// A copy; what cannot be copied, also for want of memory, is preconditioned again.
fn copy(stack: &Stack, plan: &DriveSpec) -> Option<Stack> {
    stack.duplicate(plan).ok().flatten()
}

impl StateKey {
    fn new(scenario: &Scenario, plan: &DriveSpec) -> StateKey {
        StateKey {
            plan: plan.clone(),
            precondition: scenario.precondition.clone(),
            seed: scenario.seed,
        }
    }
}

/// Whether the machine has memory for another medium, and half of it to spare for what belongs to it.
fn has_memory(media: &MediaConfig) -> bool {
    let needed = estimate_memory(media);
    workload::available_memory()
        .is_none_or(|available| needed.saturating_add(needed / 2) <= available)
}
