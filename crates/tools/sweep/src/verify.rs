//! [`verify`]: computes stored runs again and compares them byte for byte.

use std::ops::ControlFlow;
use std::path::PathBuf;

use scenario::Scenario;
use serde_json::Value;
use sim::{to_json, to_text};
use twox_hash::XxHash3_128;

use crate::runs::{RunEnd, RunSettings, run_each};
use crate::{PlannedRun, RunKey, RunStore, Stored, Sweep, SweepError, SweepSettings};

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Number of runs that were computed again.
    pub checked: usize,
    /// Runs that differ: the file in the store, and the command that repeats the run.
    pub different: Vec<(PathBuf, String)>,
}

/// Keys of the `sluice` section that are no results: a stored run has those of its first sweep.
const SHOWN: [&str; 3] = ["title", "question", "scenario"];

/// Computes up to `count` stored runs of the sweep again; `seed` chooses them. They precondition their
/// drives themselves and use no kept state, so that a wrong state is found, too.
///
/// # Errors
/// [`SweepError`] as [`Sweep::run`] returns it.
pub fn verify(
    sweep: &Sweep,
    store: &RunStore,
    count: usize,
    seed: u64,
    settings: SweepSettings,
) -> Result<Verification, SweepError> {
    let SweepSettings { at_a_time, interrupt, mut progress, .. } = settings;
    let mut stored: Vec<(u128, Scenario, String)> = Vec::new();
    for PlannedRun { point, scenario: built } in sweep.points()? {
        let Ok(mut scenario) = built else { continue };
        scenario.precondition.states = None;
        let key = RunKey::new(&scenario, &sweep.job_files)?;
        if matches!(store.get(&key)?, Stored::Run(_)) {
            let order = [seed.to_le_bytes().as_slice(), &key.digest().to_le_bytes()].concat();
            stored.push((XxHash3_128::oneshot(&order), scenario, sweep.replay(&point)));
        }
    }
    stored.sort_by_key(|(order, ..)| *order);
    stored.truncate(count);
    let (scenarios, replays): (Vec<Scenario>, Vec<String>) =
        stored.into_iter().map(|(_, scenario, replay)| (scenario, replay)).unzip();
    let mut found: Vec<(usize, PathBuf)> = Vec::new();
    let (mut checked, mut failure) = (0, None);
    let runs = RunSettings::new(sweep.job_files.clone(), at_a_time, interrupt);
    let observe = |_: &Scenario, _: usize| -> crate::StageObserver { Box::new(|_| {}) };
    let mut on_end = |index: usize, end: RunEnd| {
        let is_equal = || -> Result<(bool, PathBuf), SweepError> {
            let key = RunKey::new(&scenarios[index], &sweep.job_files)?;
            let is_equal = match (store.get(&key)?, &end) {
                (Stored::Run(old), RunEnd::Done(new)) => results(old) == results(to_json(new)),
                _ => false,
            };
            Ok((is_equal, store.path(&key)))
        };
        match &end {
            RunEnd::Done(outcome) if outcome.partial => return ControlFlow::Continue(()),
            RunEnd::Failed(error) if error.is_stopped() => return ControlFlow::Continue(()),
            _ => {}
        }
        match is_equal() {
            Ok((true, _)) => {}
            Ok((false, path)) => found.push((index, path)),
            Err(error) => {
                failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        checked += 1;
        let (total, failed) = (scenarios.len(), found.len());
        progress(crate::SweepProgress { done: checked, total, failed });
        ControlFlow::Continue(())
    };
    run_each(&scenarios, &runs, &observe, &mut on_end).map_err(SweepError::Thread)?;
    if let Some(error) = failure {
        return Err(error);
    }
    found.sort();
    let different = found.into_iter().map(|(index, path)| (path, replays[index].clone()));
    Ok(Verification { checked, different: different.collect() })
}

/// Returns the text of a run's results: its JSON without what names the scenario.
pub fn results(mut run: Value) -> String {
    if let Some(section) = run["sluice"].as_object_mut() {
        for key in SHOWN {
            section.remove(key);
        }
    }
    to_text(&run)
}
