//! `SweepPlan`: the runs of a sweep, their results and their store.
//!
//! The plan only computes single runs: `sluice.Sweep` distributes them over an executor. A worker makes
//! a plan of its own with one point, so that only text and values cross between processes.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use serde_json::Value;
use sluice::scenario::StateFolder;
use sluice::sim::{to_json, to_text};
use sweep::{
    BaseScenario, Grid, KeyPath, PlannedRun, Row, RunKey, RunStore, Seeds, SetOrigin, Setting,
    SettingValue, Stored, Sweep, SweepError, failed_row, rows,
};

use crate::columns::{self, ColumnBytes, SweepRow};
use crate::errors::{exception, sweep_error};
use crate::scenario::{WITHOUT_FILE, value};
use crate::simulation::{RunRequest, simulate};

/// A key of a scenario, and its values.
type PySetting<'py> = (String, Vec<Bound<'py, PyAny>>);

/// Where the states of preconditioned drives are kept.
#[derive(FromPyObject)]
enum KeptStates {
    /// Whether the folder of the scenario is used.
    OfScenario(bool),
    /// A folder.
    Folder(PathBuf),
}

impl KeptStates {
    /// Changes the folder of a run, which is that of its scenario.
    fn choose(self, states: &mut Option<StateFolder>) {
        match self {
            KeptStates::OfScenario(true) => {}
            KeptStates::OfScenario(false) => *states = None,
            KeptStates::Folder(path) => {
                let bytes_max = states.as_ref().map_or(StateFolder::BYTES_MAX, |s| s.bytes_max);
                *states = Some(StateFolder { path, bytes_max, worth: Duration::ZERO });
            }
        }
    }
}

/// The runs of a sweep.
#[pyclass(name = "SweepPlan", module = "sluice", frozen)]
pub(crate) struct PySweepPlan {
    sweep: Sweep,
    runs: Vec<PlannedRun>,
    store: Option<RunStore>,
}

impl PySweepPlan {
    fn run(&self, index: usize) -> PyResult<&PlannedRun> {
        let error = || PyIndexError::new_err(format!("the sweep has {} runs", self.runs.len()));
        self.runs.get(index).ok_or_else(error)
    }

    /// Returns the store and the key of a run; `None` without a store, or for an invalid run.
    fn stored(&self, py: Python<'_>, index: usize) -> PyResult<Option<(&RunStore, RunKey)>> {
        let (Some(store), Ok(scenario)) = (&self.store, &self.run(index)?.scenario) else {
            return Ok(None);
        };
        let files = &self.sweep.job_files;
        let key = py.detach(|| RunKey::new(scenario, files).map_err(Box::new));
        Ok(Some((store, key.map_err(|error| sweep_error(py, *error))?)))
    }

    /// Returns the rows of a run that ended with this JSON or this error.
    fn rows_of(&self, index: usize, end: Result<&Value, &str>) -> PyResult<Vec<Row>> {
        let PlannedRun { point, scenario } = self.run(index)?;
        let replay = self.sweep.replay(point);
        let seed = scenario.as_ref().map_or(point.seed, |scenario| Some(scenario.seed));
        Ok(match end {
            Ok(run) => rows(point, &replay, run),
            Err(error) => vec![failed_row(point, seed, &replay, error)],
        })
    }
}

#[pymethods]
impl PySweepPlan {
    /// Plans the runs of a scenario's text with all combinations of values and seeds.
    #[new]
    fn new(
        py: Python<'_>,
        source: (Option<PathBuf>, String),
        settings: Vec<PySetting<'_>>,
        seeds: Option<(u64, u64)>,
        job_files: Vec<PathBuf>,
        store: Option<PathBuf>,
    ) -> PyResult<PySweepPlan> {
        let (file, text) = source;
        let file = file.unwrap_or_else(|| WITHOUT_FILE.into());
        let settings: Vec<Setting> = settings
            .into_iter()
            .map(|(key, values)| setting(py, &key, &values))
            .collect::<PyResult<_>>()?;
        let seeds = seeds.and_then(|(first, end)| Seeds::new(first..end));
        let planned = py.detach(|| {
            let grid = Grid::new(settings, seeds)?;
            let sweep = Sweep { base: BaseScenario::new(&file, &text), job_files, grid };
            let runs = sweep.points()?;
            let store = store.as_deref().map(RunStore::open).transpose();
            let store = store.map_err(SweepError::from)?;
            Ok::<_, Box<SweepError>>(PySweepPlan { sweep, runs, store })
        });
        planned.map_err(|error| sweep_error(py, *error))
    }

    fn __len__(&self) -> usize {
        self.runs.len()
    }

    /// Names of the keys.
    #[getter]
    fn keys(&self) -> Vec<String> {
        self.sweep.grid.settings().iter().map(|setting| setting.key.to_string()).collect()
    }

    /// Seed of a run; `None` for the scenario's own.
    fn seed(&self, index: usize) -> PyResult<Option<u64>> {
        Ok(self.run(index)?.point.seed)
    }

    /// Indices of the values of a run, in the order of the keys.
    fn values(&self, index: usize) -> PyResult<Vec<usize>> {
        let assignments = &self.run(index)?.point.assignments;
        let pairs = assignments.iter().zip(self.sweep.grid.settings());
        let place = |(assignment, setting): (&sweep::Assignment, &Setting)| {
            setting.values.iter().position(|value| *value == assignment.value).unwrap_or(0)
        };
        Ok(pairs.map(place).collect())
    }

    /// Command that repeats a run.
    fn replay(&self, index: usize) -> PyResult<String> {
        Ok(self.sweep.replay(&self.run(index)?.point))
    }

    /// Error of a run whose values exclude each other; `None` for all others.
    fn error(&self, index: usize) -> PyResult<Option<String>> {
        Ok(self.run(index)?.scenario.as_ref().err().map(ToString::to_string))
    }

    /// Reads a run from the store: its JSON, and the problem of a damaged file.
    fn load(&self, py: Python<'_>, index: usize) -> PyResult<(Option<String>, Option<String>)> {
        let Some((store, key)) = self.stored(py, index)? else { return Ok((None, None)) };
        let stored = py.detach(|| {
            store.get(&key).map(|stored| match stored {
                Stored::Run(run) => (Some(to_text(&run)), None),
                Stored::Missing => (None, None),
                Stored::Damaged { path, problem } => {
                    (None, Some(format!("{}: {problem}", path.display())))
                }
            })
        });
        stored.map_err(|error| sweep_error(py, error.into()))
    }

    /// Stores a run. Without a store it has no effect.
    fn keep(&self, py: Python<'_>, index: usize, json: &str) -> PyResult<()> {
        let Some((store, key)) = self.stored(py, index)? else { return Ok(()) };
        let run = parse(py, json)?;
        py.detach(|| store.put(&key, &run)).map_err(|error| sweep_error(py, error.into()))
    }

    /// Runs a point, and returns its JSON. `states` says where the states of preconditioned drives are
    /// kept; by default in the folder of the scenario.
    #[pyo3(signature = (index, states = KeptStates::OfScenario(true)))]
    fn compute(&self, py: Python<'_>, index: usize, states: KeptStates) -> PyResult<String> {
        let mut scenario = match &self.run(index)?.scenario {
            Ok(scenario) => scenario.clone(),
            Err(error) => return Err(exception(py, "ScenarioError", (error.to_string(),), None)),
        };
        states.choose(&mut scenario.precondition.states);
        let job_files = self.sweep.job_files.clone();
        let request = RunRequest { job_files, ..RunRequest::default() };
        let outcome = simulate(py, &scenario, request)?;
        Ok(py.detach(|| to_text(&to_json(&outcome))))
    }

    /// Returns the columns of runs that ended with a JSON or an error, by index.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        ends: Vec<(usize, Option<String>, Option<String>)>,
    ) -> PyResult<Vec<ColumnBytes<'py>>> {
        let mut all = Vec::new();
        for (index, json, error) in ends {
            let rows = match json {
                Some(json) => self.rows_of(index, Ok(&parse(py, &json)?))?,
                None => self.rows_of(index, Err(&error.unwrap_or_default()))?,
            };
            all.extend(rows.into_iter().map(|row| SweepRow { run: index as u64, row }));
        }
        columns::sweep(&all).to_python(py)
    }
}

/// The program that computes runs: its version, and a digest of the sources that decide results.
#[pyfunction]
pub(crate) fn program() -> &'static str {
    RunKey::PROGRAM
}

/// Returns whether two runs have the same results; the JSON of both is as `SweepPlan.compute()` returns it.
#[pyfunction]
pub(crate) fn same_results(py: Python<'_>, stored: &str, computed: &str) -> PyResult<bool> {
    let (stored, computed) = (parse(py, stored)?, parse(py, computed)?);
    Ok(py.detach(|| sweep::results(stored) == sweep::results(computed)))
}

/// Returns a key with its values, which are those of a scenario's dictionary.
fn setting(py: Python<'_>, key: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Setting> {
    let texts: Vec<SettingValue> = values
        .iter()
        .map(|item| Ok(SettingValue::parse(&value(item, key, 0)?.to_string())))
        .collect::<PyResult<_>>()?;
    let origin = SetOrigin::Parameter(key.to_owned());
    let made = KeyPath::parse(key)
        .map_err(|problem| sweep::SetError { origin: origin.clone(), problem })
        .and_then(|key| Setting::new(key, texts, origin.clone()));
    made.map_err(|error| sweep_error(py, error.into()))
}

fn parse(py: Python<'_>, json: &str) -> PyResult<Value> {
    let parsed = py.detach(|| serde_json::from_str(json));
    parsed.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}
