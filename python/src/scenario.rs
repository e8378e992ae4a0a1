//! `Scenario`: a scenario of a dictionary, a file or TOML text.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use sluice::scenario::Scenario;
use toml::{Table, Value};

use crate::errors::scenario_error;

/// Name of a scenario without a file, in messages.
pub(crate) const WITHOUT_FILE: &str = "<scenario>";

/// Maximum depth of nested dictionaries and lists. Scenarios need fewer than ten levels.
const DEPTH_MAX: usize = 32;

/// A checked scenario.
#[pyclass(name = "Scenario", module = "sluice", frozen)]
pub(crate) struct PyScenario {
    pub(crate) scenario: Scenario,
}

/// Converts a dictionary, and everything in it.
fn table(from: &Bound<'_, PyDict>, name: &str, depth: usize) -> PyResult<Table> {
    let mut into = Table::new();
    for (key, item) in from {
        let Ok(key) = key.extract::<String>() else {
            let message = format!("keys of a scenario are strings, and {name} has {}", key.repr()?);
            return Err(PyTypeError::new_err(message));
        };
        let name = if name == WITHOUT_FILE { key.clone() } else { format!("{name}.{key}") };
        into.insert(key, value(&item, &name, depth + 1)?);
    }
    Ok(into)
}

/// Converts a value; `name` is the path of its key in messages.
pub(crate) fn value(from: &Bound<'_, PyAny>, name: &str, depth: usize) -> PyResult<Value> {
    if depth > DEPTH_MAX {
        return Err(PyValueError::new_err(format!("{name}: nested more than {DEPTH_MAX} levels")));
    }
    let list = |items: Vec<Bound<'_, PyAny>>| {
        let items = items.iter().enumerate();
        let items = items.map(|(i, item)| value(item, &format!("{name}[{i}]"), depth + 1));
        Ok(Value::Array(items.collect::<PyResult<_>>()?))
    };
    if let Ok(dict) = from.cast::<PyDict>() {
        return Ok(Value::Table(table(dict, name, depth)?));
    }
    if from.is_instance_of::<PyList>() || from.is_instance_of::<PyTuple>() {
        return list(from.try_iter()?.collect::<PyResult<_>>()?);
    }
    if let Ok(text) = from.cast::<PyString>() {
        return Ok(Value::String(text.extract()?));
    }
    if from.is_instance_of::<PyBool>() {
        return Ok(Value::Boolean(from.extract()?));
    }
    // Integers of numpy have `__index__`, and its floats are floats or have `__float__`.
    let is_index = from.is_instance_of::<PyInt>() || from.hasattr("__index__")?;
    if is_index {
        return from.extract().map(Value::Integer).map_err(|_| {
            PyValueError::new_err(format!("{name}: integers of a scenario have 64 bits"))
        });
    }
    if from.is_instance_of::<PyFloat>() || from.hasattr("__float__")? {
        return Ok(Value::Float(from.extract()?));
    }
    if let Ok(path) = from.extract::<PathBuf>()
        && let Some(path) = path.to_str()
    {
        return Ok(Value::String(path.into()));
    }
    let kind = from.get_type().name()?;
    let message = format!(
        "{name}: a scenario has strings, numbers, booleans, lists and dictionaries, and no {kind}"
    );
    Err(PyTypeError::new_err(message))
}

impl PyScenario {
    fn parse(py: Python<'_>, file: &Path, text: &str) -> PyResult<PyScenario> {
        let parsed = py.detach(|| Scenario::parse(file, text));
        let scenario = parsed.map_err(|error| scenario_error(py, &error))?;
        Ok(PyScenario { scenario })
    }

    fn load(py: Python<'_>, file: &Path) -> PyResult<PyScenario> {
        let loaded = py.detach(|| Scenario::load(file));
        let scenario = loaded.map_err(|error| scenario_error(py, &error))?;
        Ok(PyScenario { scenario })
    }
}

/// Returns the TOML text of a dictionary, which is not checked.
#[pyfunction]
pub(crate) fn scenario_text(scenario: &Bound<'_, PyDict>) -> PyResult<String> {
    toml::to_string(&table(scenario, WITHOUT_FILE, 0)?)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns whether a string is a path, and not TOML text.
fn is_path(text: &str) -> bool {
    text.ends_with(".toml") && !text.contains('\n')
}

#[pymethods]
impl PyScenario {
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<PyScenario> {
        let py = source.py();
        if let Ok(dict) = source.cast::<PyDict>() {
            return PyScenario::parse(py, Path::new(WITHOUT_FILE), &scenario_text(dict)?);
        }
        if let Ok(text) = source.cast::<PyString>() {
            let text: String = text.extract()?;
            return match is_path(&text) {
                true => PyScenario::load(py, Path::new(&text)),
                false => PyScenario::parse(py, Path::new(WITHOUT_FILE), &text),
            };
        }
        match source.extract::<PathBuf>() {
            Ok(path) => PyScenario::load(py, &path),
            Err(_) => Err(PyTypeError::new_err(format!(
                "a scenario is a dict, a path or TOML text, and no {}",
                source.get_type().name()?
            ))),
        }
    }

    /// Path of the file; `None` for a dictionary or a text.
    #[getter]
    fn file(&self) -> Option<&Path> {
        let file = self.scenario.file.as_path();
        (file != Path::new(WITHOUT_FILE)).then_some(file)
    }

    /// TOML text of the scenario.
    #[getter]
    fn text(&self) -> &str {
        &self.scenario.text
    }

    /// Title of the scenario.
    #[getter]
    fn title(&self) -> &str {
        &self.scenario.title
    }

    /// Question that the scenario answers; may be empty.
    #[getter]
    fn question(&self) -> &str {
        &self.scenario.question
    }

    /// Seed of all random numbers.
    #[getter]
    fn seed(&self) -> u64 {
        self.scenario.seed
    }

    /// Names of the drives.
    #[getter]
    fn drives(&self) -> Vec<&str> {
        self.scenario.drives.iter().map(|drive| drive.config.name.as_str()).collect()
    }

    /// Names of the paths; without named paths, those of the drives.
    #[getter]
    fn paths(&self) -> Vec<String> {
        self.scenario.paths().into_iter().map(|path| path.name).collect()
    }

    fn __repr__(&self) -> String {
        let drives = self.drives().join(", ");
        format!("<sluice.Scenario {:?}, drives: {drives}>", self.scenario.title)
    }
}
