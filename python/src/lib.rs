//! `sluice._sluice`: the compiled part of the Python package `sluice`.
//!
//! The package in `python/sluice` wraps it: it makes tables of numpy arrays out of columns, and has
//! the exceptions. Every call that waits or computes releases the interpreter's lock.
//!
//! # Concurrency
//!
//! State is behind mutexes. A call waits for them only while the interpreter's lock is released, and
//! locks them for at most `queue::SLICE` at a time. Between two slices it handles pending signals.
//!
//! # References
//!
//! docs/python.md.

mod buffer;
mod columns;
mod drive;
mod errors;
mod open;
mod queue;
mod requests;
mod rules;
mod scenario;
mod simulation;
mod stats;
mod sweep;
mod trace;
mod transfers;

use pyo3::prelude::*;

/// The module `sluice._sluice`.
#[pymodule]
mod _sluice {
    #[pymodule_export]
    use crate::buffer::PyDriveBuffer;
    #[pymodule_export]
    use crate::drive::PyDrive;
    #[pymodule_export]
    use crate::open::open;
    #[pymodule_export]
    use crate::queue::PyQueue;
    #[pymodule_export]
    use crate::requests::PyCompletion;
    #[pymodule_export]
    use crate::scenario::{PyScenario, scenario_text};
    #[pymodule_export]
    use crate::simulation::{PySimResult, run};
    #[pymodule_export]
    use crate::sweep::{PySweepPlan, program, same_results};
    #[pymodule_export]
    use crate::trace::read_trace;
}
