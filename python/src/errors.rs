//! Conversion of errors to the exceptions of `sluice._errors`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluice::nvme::Status;
use sluice::open::{CloseError, TargetOpenError};
use sluice::scenario::ScenarioError;
use sluice::sim::SimError;
use sluice::stack::StackError;
use sluice::stack::named_target::NamedError;
use sluice::user_io::{DirectError, IoError, status_errno};
use sweep::SweepError;

/// Reason why a call on a drive, queue or buffer failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallFailure {
    /// The drive or queue has been closed.
    #[error("the {0} is closed")]
    Closed(&'static str),
    /// The process is a child, made by `fork`, of the process that opened the drive.
    #[error(
        "the drive was opened in process {opener}, and this is process {here}: threads do not survive \
         fork(); open the drive in this process, or start processes with the method \"spawn\""
    )]
    Forked { opener: u32, here: u32 },
    /// Another thread is in a call on the queue.
    #[error(
        "another thread uses the queue: a queue is for one thread at a time, create one for each"
    )]
    InUse,
    /// The buffer belongs to another drive.
    #[error("the buffer is of another drive: create it with buffer() of this one")]
    Foreign,
    /// The queue has no space for a request.
    #[error("the queue is full: poll() or wait() for completions, then submit again")]
    Full,
    /// An argument has an invalid value.
    #[error("{0}")]
    Value(String),
    /// The device did not complete the requests of a queue before it was closed.
    #[error(
        "{outstanding} requests did not complete within {seconds} s: the device does not respond"
    )]
    Timeout { outstanding: u32, seconds: u64 },
    /// The device failed a request.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The drive could not be opened.
    #[error(transparent)]
    Open(#[from] TargetOpenError),
    /// The drive was not closed cleanly.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A queue or buffer could not be created.
    #[error(transparent)]
    Device(#[from] DirectError),
    /// A signal handler raised an exception.
    #[error(transparent)]
    Python(#[from] PyErr),
}

/// Creates an exception of `sluice._errors`.
pub(crate) fn exception<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
    attributes: Option<&Bound<'py, PyDict>>,
) -> PyErr {
    let made = || {
        let class = py.import("sluice._errors")?.getattr(class)?;
        let value = class.call1(arguments)?;
        for (name, attribute) in attributes.into_iter().flatten() {
            value.setattr(name.extract::<String>()?.as_str(), attribute)?;
        }
        Ok(PyErr::from_value(value))
    };
    made().unwrap_or_else(|error| error)
}

impl CallFailure {
    /// Returns the exception.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            CallFailure::Python(error) => error,
            CallFailure::Open(TargetOpenError::Scenario(error)) => scenario_error(py, &error),
            CallFailure::Closed(_) => exception(py, "ClosedError", (text,), None),
            CallFailure::Forked { .. } => exception(py, "ForkedError", (text,), None),
            CallFailure::InUse => exception(py, "InUseError", (text,), None),
            CallFailure::Full => exception(py, "QueueFullError", (text,), None),
            CallFailure::Foreign | CallFailure::Value(_) => PyValueError::new_err(text),
            CallFailure::Timeout { .. } => exception(
                py,
                "CloseError",
                (rustix::io::Errno::TIMEDOUT.raw_os_error(), text),
                None,
            ),
            CallFailure::Io(error) => io_error(py, &error),
            CallFailure::Open(error) => exception(py, "OpenError", (error.errno(), text), None),
            CallFailure::Close(_) => {
                exception(py, "CloseError", (rustix::io::Errno::IO.raw_os_error(), text), None)
            }
            CallFailure::Device(error) => exception(py, "OpenError", (error.errno(), text), None),
        }
    }
}

/// Returns the exception of a failed request.
pub(crate) fn io_error(py: Python<'_>, error: &IoError) -> PyErr {
    match error {
        IoError::Busy(_) => CallFailure::Full.into_exception(py),
        IoError::Length { .. } | IoError::Segments { .. } => {
            PyValueError::new_err(error.to_string())
        }
        IoError::Status { status, .. } => status_error(py, *status, error.to_string()),
    }
}

/// Returns the exception of a status.
fn status_error(py: Python<'_>, status: Status, text: String) -> PyErr {
    let attributes = PyDict::new(py);
    match attributes.set_item("status", status.to_bits()) {
        Ok(()) => exception(py, "IoError", (status_errno(status), text), Some(&attributes)),
        Err(error) => error,
    }
}

/// Returns the exception of an invalid or unreadable scenario.
pub(crate) fn scenario_error(py: Python<'_>, error: &ScenarioError) -> PyErr {
    let attributes = PyDict::new(py);
    let set = || match error {
        ScenarioError::Read { path, .. } => attributes.set_item("file", path),
        ScenarioError::Invalid(invalid) => {
            attributes.set_item("file", &invalid.path)?;
            attributes.set_item("line", invalid.line)?;
            attributes.set_item("column", invalid.column)?;
            attributes.set_item("help", invalid.problem.help())
        }
    };
    match set() {
        Ok(()) => exception(py, "ScenarioError", (error.to_string(),), Some(&attributes)),
        Err(error) => error,
    }
}

/// Returns the exception of a run.
pub(crate) fn sim_error(py: Python<'_>, error: &SimError) -> PyErr {
    match error {
        SimError::Scenario(error)
        | SimError::Stack(StackError::Named(NamedError::Scenario(error))) => {
            scenario_error(py, error)
        }
        error if error.is_usage() => PyValueError::new_err(error.to_string()),
        error => exception(py, "SimulationError", (error.to_string(),), None),
    }
}

/// Returns the exception of a sweep.
pub(crate) fn sweep_error(py: Python<'_>, error: SweepError) -> PyErr {
    match error {
        SweepError::Scenario(error) => scenario_error(py, &error),
        SweepError::Run(error) => sim_error(py, &error),
        SweepError::Set(error) => scenario_help(py, error.to_string(), error.problem.help()),
        SweepError::Combination { ref help, .. } => {
            let help = help.clone();
            scenario_help(py, error.to_string(), help)
        }
        SweepError::Store(error) => exception(py, "StoreError", (error.to_string(),), None),
        error => PyValueError::new_err(error.to_string()),
    }
}

/// Returns the exception of a scenario that is invalid with the values of a sweep.
fn scenario_help(py: Python<'_>, text: String, help: Option<String>) -> PyErr {
    let attributes = PyDict::new(py);
    match attributes.set_item("help", help) {
        Ok(()) => exception(py, "ScenarioError", (text,), Some(&attributes)),
        Err(error) => error,
    }
}
