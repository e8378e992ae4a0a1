//! `run()`: a scenario in virtual time. `SimResult`: its results.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use serde_json::Value;
use sluice::report::{Report, table};
use sluice::scenario::Scenario;
use sluice::sim::{SimOptions, SimOutcome, SimStage, TraceOutput, to_json, to_text, to_variant};

use crate::columns::{self, ColumnBytes};
use crate::errors::sim_error;
use crate::scenario::PyScenario;

/// Time between two looks for signals, and between two calls of `progress`.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Results of a run.
#[pyclass(name = "SimResult", module = "sluice", frozen)]
pub(crate) struct PySimResult {
    outcome: SimOutcome,
    json: Value,
}

/// Handles signals, and reports progress, while a run computes without the interpreter's lock.
struct ProgressReports<'a> {
    callback: Option<&'a Py<PyAny>>,
    stop: &'a AtomicBool,
    /// Exception of a signal handler or of the callback.
    raised: Option<PyErr>,
    reported: Instant,
}

impl ProgressReports<'_> {
    /// Called at intervals by the run. An exception stops it.
    fn update(&mut self, stage: SimStage) {
        let is_end = matches!(stage, SimStage::Running { part, .. } if part >= 1.0);
        if self.raised.is_some() || self.reported.elapsed() < SIGNAL_INTERVAL && !is_end {
            return;
        }
        self.reported = Instant::now();
        let reported = Python::attach(|py| {
            py.check_signals()?;
            let Some(callback) = self.callback else { return Ok(()) };
            let (name, part) = match stage {
                SimStage::Preconditioning(part) => ("preconditioning", part),
                SimStage::Running { part, .. } => ("running", part),
            };
            callback.call1(py, (name, part)).map(drop)
        });
        if let Err(error) = reported {
            self.raised = Some(error);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Options of a run.
#[derive(Default)]
pub(crate) struct RunRequest {
    /// Job files in addition to the scenario's own jobs.
    pub(crate) job_files: Vec<PathBuf>,
    /// Number of requests to explain.
    pub(crate) slowest: usize,
    /// Trace to write.
    pub(crate) trace: Option<TraceOutput>,
    /// Called with the stage and its progress.
    pub(crate) progress: Option<Py<PyAny>>,
}

/// Runs a scenario without the interpreter's lock. Signals end the run.
pub(crate) fn simulate(
    py: Python<'_>,
    scenario: &Scenario,
    request: RunRequest,
) -> PyResult<SimOutcome> {
    let (ran, raised) = py.detach(|| {
        let RunRequest { job_files, slowest, trace, progress } = request;
        let stop = AtomicBool::new(false);
        let mut reports = ProgressReports {
            callback: progress.as_ref(),
            stop: &stop,
            raised: None,
            reported: Instant::now(),
        };
        let mut update = |stage| reports.update(stage);
        let options = SimOptions {
            job_files,
            trace,
            slowest,
            stop: Some(&stop),
            progress: Some(&mut update),
            ..SimOptions::default()
        };
        let ran = sluice::sim::simulate(scenario, options);
        (ran, reports.raised)
    });
    match (raised, ran) {
        (Some(error), _) => Err(error),
        (None, Ok(outcome)) => Ok(outcome),
        (None, Err(error)) => Err(sim_error(py, &error)),
    }
}

/// Runs a scenario in virtual time.
#[pyfunction]
#[pyo3(signature = (scenario, *, seed=None, job_files=Vec::new(), slowest=0, trace=None, progress=None))]
pub(crate) fn run(
    py: Python<'_>,
    scenario: &PyScenario,
    seed: Option<u64>,
    job_files: Vec<PathBuf>,
    slowest: usize,
    trace: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<PySimResult> {
    let mut scenario = scenario.scenario.clone();
    if let Some(seed) = seed {
        scenario.set_seed(seed);
    }
    let trace = match trace {
        Some(name) => {
            let file = File::create(&name)?;
            Some(TraceOutput { name, file, truncate: false })
        }
        None => None,
    };
    let request = RunRequest { job_files, slowest, trace, progress };
    let outcome = simulate(py, &scenario, request)?;
    // As `sluice sim` has it: explanations only if they were requested.
    let json = py.detach(|| match slowest {
        0 => to_json(&outcome.without_explanations()),
        _ => to_json(&outcome),
    });
    Ok(PySimResult { outcome, json })
}

#[pymethods]
impl PySimResult {
    /// Returns what `sluice sim --json` writes for the scenario alone.
    fn json(&self, py: Python<'_>) -> String {
        py.detach(|| to_text(&Value::Array(vec![self.json.clone()])))
    }

    /// Returns the table that `sluice sim` prints.
    fn table(&self, py: Python<'_>) -> String {
        py.detach(|| {
            table::render(&Report {
                title: self.outcome.title.clone(),
                subtitle: self.outcome.question.clone(),
                variants: vec![to_variant(&self.outcome)],
            })
        })
    }

    /// Returns the columns of a table by its name.
    fn columns<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Vec<ColumnBytes<'py>>> {
        let table = match name {
            "jobs" => columns::jobs,
            "latencies" => columns::latencies,
            "time_series" => columns::time_series,
            "ftl" => columns::ftl,
            _ => {
                let message = format!("no table {name:?}: jobs, latencies, time_series, ftl");
                return Err(PyKeyError::new_err(message));
            }
        };
        py.detach(|| table(&self.json)).to_python(py)
    }

    #[getter]
    fn title(&self) -> &str {
        &self.outcome.title
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.outcome.seed
    }

    #[getter]
    fn elapsed_ns(&self) -> u64 {
        self.outcome.elapsed.0
    }

    #[getter]
    fn notes(&self) -> Vec<&str> {
        self.outcome.notes.iter().map(|n| &*n.text).collect()
    }

    #[getter]
    fn failures(&self) -> Vec<String> {
        self.outcome.failures()
    }
}
