//! [`Sweep`]: runs all points of a grid that a store does not have.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use scenario::{Scenario, StateFolder};
use sim::{SimOutcome, to_json};
use stack::StateUse;

use crate::grid::scenarios;
use crate::row::{failed_row, replay_command, rows};
use crate::runs::{RunEnd, RunSettings, run_each};
use crate::{
    BaseScenario, Grid, GridPoint, Row, RunKey, RunStatus, RunStore, StoreError, Stored, SweepError,
};

/// A scenario and a grid of values and seeds.
///
/// ```
/// use std::path::Path;
/// use sluice_sweep::{BaseScenario, Grid, Setting, Sweep, SweepSettings};
///
/// let text = r#"
/// [drive]
/// preset = "femu-default"
/// geometry.chunks = 16
///
/// [[job]]
/// name = "writer"
/// rw = "write"
/// bs = "4k"
/// size = "1m"
/// "#;
/// let depths = Setting::parse("job.writer.iodepth=1,8")?;
/// let sweep = Sweep {
///     base: BaseScenario::new(Path::new("example.toml"), text),
///     job_files: Vec::new(),
///     grid: Grid::new(vec![depths], Some("2".parse()?))?,
/// };
/// let results = sweep.run(None, SweepSettings::default())?;
/// assert_eq!(results.rows.len(), 4);
/// assert_eq!(results.rows[3].parameters, ["8"]);
/// assert_eq!(results.rows[3].seed, Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The scenario.
    pub base: BaseScenario,
    /// Job files in addition to the scenario's own jobs.
    pub job_files: Vec<PathBuf>,
    /// The points.
    pub grid: Grid,
}

/// A point of a sweep.
#[derive(Debug)]
pub struct PlannedRun {
    /// The point.
    pub point: GridPoint,
    /// Its scenario; an error if its values exclude each other.
    pub scenario: Result<Scenario, SweepError>,
}

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepProgress {
    /// Number of runs that have ended, or that were stored.
    pub done: usize,
    /// Number of all runs.
    pub total: usize,
    /// Number of runs that failed.
    pub failed: usize,
}

/// Settings of the execution of a sweep. They do not change its rows.
pub struct SweepSettings {
    /// Maximum number of runs at a time.
    pub at_a_time: NonZeroUsize,
    /// Ends the sweep when it becomes true; finished runs are kept.
    pub interrupt: Arc<AtomicBool>,
    /// Called whenever a run has ended.
    pub progress: Box<dyn FnMut(SweepProgress)>,
    /// Changes where each run keeps the states of its preconditioned drives, and finds them; the
    /// value is that of its scenario. Runs that are verified keep and find none.
    pub states: ChooseStates,
}

/// Changes the folder of kept states of a run.
pub type ChooseStates = Box<dyn Fn(&mut Option<StateFolder>)>;

impl Default for SweepSettings {
    fn default() -> SweepSettings {
        SweepSettings {
            at_a_time: NonZeroUsize::MIN,
            interrupt: Arc::default(),
            progress: Box::new(|_| {}),
            states: Box::new(|_| {}),
        }
    }
}

impl fmt::Debug for SweepSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("SweepSettings");
        fields.field("at_a_time", &self.at_a_time).field("interrupt", &self.interrupt);
        fields.finish_non_exhaustive()
    }
}

/// The results of a sweep.
#[derive(Debug)]
pub struct SweepResults {
    /// The names of the keys.
    pub keys: Vec<String>,
    /// The rows of all runs that have ended, in the order of the points.
    pub rows: Vec<Row>,
    /// Number of runs.
    pub progress: SweepProgress,
    /// Number of runs that were computed now.
    pub computed: usize,
    /// Damaged files of the store, which were computed again, with their problems.
    pub damaged: Vec<(PathBuf, &'static str)>,
    /// How the drives of the runs that were computed now came to their states, by the name of the
    /// drive, in the order of the points. Drives for which no folder of states was used are not in
    /// it, nor are the drives of failed runs.
    pub states: Vec<(String, StateUse)>,
    /// Error of the store, which ended the sweep.
    pub store_error: Option<StoreError>,
}

impl SweepResults {
    /// Returns whether runs are missing, because of an interruption or of an error of the store.
    pub fn is_interrupted(&self) -> bool {
        self.progress.done < self.progress.total
    }
}

/// A run that is to be computed.
struct Missing {
    points: Vec<usize>,
    scenarios: Vec<Scenario>,
}

impl Sweep {
    /// Returns the points with their scenarios, or the error of each.
    ///
    /// # Errors
    /// [`SweepError`] if a value is possible at no point, or if no point is possible.
    pub fn points(&self) -> Result<Vec<PlannedRun>, SweepError> {
        let points = self.grid.points();
        let built = scenarios(&self.base, &points, &self.job_files)?;
        let planned = points.into_iter().zip(built);
        Ok(planned.map(|(point, scenario)| PlannedRun { point, scenario }).collect())
    }

    /// Returns the command that repeats the run of a point.
    pub fn replay(&self, point: &GridPoint) -> String {
        replay_command(&self.base, &self.job_files, point)
    }

    /// Runs the points that the store does not have, and stores them.
    ///
    /// The rows depend on the sweep only, and not on the settings, the store, or earlier interruptions.
    ///
    /// # Errors
    /// [`SweepError`] for invalid settings, runs that a store cannot identify, and a store that
    /// cannot be read. Errors of runs are in the rows. An error of the store during the runs is in the
    /// results, which have the runs before it.
    pub fn run(
        &self,
        store: Option<&RunStore>,
        settings: SweepSettings,
    ) -> Result<SweepResults, SweepError> {
        let SweepSettings { at_a_time, interrupt, progress, states } = settings;
        let points = self.points()?;
        let mut ends = Ends {
            rows: points.iter().map(|_| None).collect(),
            progress: SweepProgress { done: 0, total: points.len(), failed: 0 },
            observe: progress,
        };
        let mut missing = Missing { points: Vec::new(), scenarios: Vec::new() };
        let mut damaged = Vec::new();
        let mut grid_points = Vec::new();
        for (index, PlannedRun { point, scenario: built }) in points.into_iter().enumerate() {
            match built {
                Err(error) => {
                    let (replay, error) = (self.replay(&point), error.to_string());
                    ends.set(index, vec![failed_row(&point, point.seed, &replay, &error)]);
                }
                Ok(mut scenario) => {
                    states(&mut scenario.precondition.states);
                    let stored = match store {
                        Some(store) => store.get(&RunKey::new(&scenario, &self.job_files)?)?,
                        None => Stored::Missing,
                    };
                    match stored {
                        Stored::Run(run) => {
                            ends.set(index, rows(&point, &self.replay(&point), &run))
                        }
                        other => {
                            if let Stored::Damaged { path, problem } = other {
                                damaged.push((path, problem));
                            }
                            missing.points.push(index);
                            missing.scenarios.push(scenario);
                        }
                    }
                }
            }
            grid_points.push(point);
        }
        let (mut store_error, mut computed) = (None, 0);
        let mut used: Vec<(usize, Vec<(String, StateUse)>)> = Vec::new();
        let runs = RunSettings::new(self.job_files.clone(), at_a_time, interrupt);
        let observe = |_: &Scenario, _: usize| -> crate::StageObserver { Box::new(|_| {}) };
        let mut on_end = |run: usize, end: RunEnd| {
            let (index, scenario) = (missing.points[run], &missing.scenarios[run]);
            let point = &grid_points[index];
            let replay = self.replay(point);
            let failed =
                |error: String| vec![failed_row(point, Some(scenario.seed), &replay, &error)];
            let new = match end {
                RunEnd::Done(outcome) if outcome.partial => return ControlFlow::Continue(()),
                RunEnd::Failed(error) if error.is_stopped() => return ControlFlow::Continue(()),
                RunEnd::Failed(error) => failed(error.to_string()),
                RunEnd::Broken(message) => failed(message),
                RunEnd::Done(outcome) => {
                    let run = self.keep(store, scenario, &outcome);
                    used.push((index, outcome.diagnostics.states));
                    match run {
                        Ok(run) => rows(point, &replay, &run),
                        Err(error) => {
                            store_error = Some(error);
                            return ControlFlow::Break(());
                        }
                    }
                }
            };
            computed += 1;
            ends.set(index, new);
            ControlFlow::Continue(())
        };
        run_each(&missing.scenarios, &runs, &observe, &mut on_end).map_err(SweepError::Thread)?;
        let store_error = match store_error {
            Some(SweepError::Store(error)) => Some(error),
            Some(error) => return Err(error),
            None => None,
        };
        used.sort_by_key(|(index, _)| *index);
        Ok(SweepResults {
            keys: self.grid.settings().iter().map(|setting| setting.key.to_string()).collect(),
            rows: ends.rows.into_iter().flatten().flatten().collect(),
            progress: ends.progress,
            computed,
            damaged,
            states: used.into_iter().flat_map(|(_, states)| states).collect(),
            store_error,
        })
    }

    /// Returns the JSON of a run, and stores it.
    fn keep(
        &self,
        store: Option<&RunStore>,
        scenario: &Scenario,
        outcome: &SimOutcome,
    ) -> Result<serde_json::Value, SweepError> {
        let run = to_json(outcome);
        if let Some(store) = store {
            store.put(&RunKey::new(scenario, &self.job_files)?, &run)?;
        }
        Ok(run)
    }
}

/// The runs that have ended.
struct Ends {
    rows: Vec<Option<Vec<Row>>>,
    progress: SweepProgress,
    observe: Box<dyn FnMut(SweepProgress)>,
}

impl Ends {
    fn set(&mut self, index: usize, rows: Vec<Row>) {
        self.progress.done += 1;
        self.progress.failed += usize::from(rows.iter().any(|row| row.status == RunStatus::Failed));
        self.rows[index] = Some(rows);
        (self.observe)(self.progress);
    }
}
