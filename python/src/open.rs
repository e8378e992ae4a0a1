//! `open()`: opens a drive of a scenario, or any device by its name.

use std::sync::mpsc::channel;

use pyo3::prelude::*;
use sluice::open::{FileOptions, OpenOptions, RegionLog, Target, TargetOpenError};
use sluice::scenario::Scenario;
use sluice::time::Nanos;

use crate::drive::PyDrive;
use crate::errors::CallFailure;
use crate::scenario::PyScenario;

/// Options of [`open`] that only files and block devices have.
#[derive(Clone, Copy)]
struct PlainFileOptions {
    buffered: bool,
    shared: bool,
    sector_bytes: Option<u32>,
}

impl PlainFileOptions {
    /// Refuses options that the device ignores.
    fn refuse(self, what: &str) -> Result<(), CallFailure> {
        let flags = [(self.buffered, "buffered = True"), (self.shared, "shared = True")];
        let set = flags.into_iter().find(|(set, _)| *set).map(|(_, text)| text.to_owned());
        match set.or_else(|| self.sector_bytes.map(|bytes| format!("sector_bytes = {bytes}"))) {
            None => Ok(()),
            Some(set) => {
                let text = format!("{set} for {what}: only files and block devices are opened so");
                Err(CallFailure::Value(text))
            }
        }
    }
}

/// Reads the size of a log: bytes, a text such as `"16M"`, or `"pmr"` for the whole region.
fn region_log(from: &Bound<'_, PyAny>) -> PyResult<RegionLog> {
    let bytes = match from.extract::<&str>() {
        Ok("pmr") => return Ok(RegionLog::Whole),
        Ok(text) => sluice::scenario::units::size(text),
        Err(_) => from.extract().ok(),
    };
    bytes.map(RegionLog::Bytes).ok_or_else(|| {
        let text = "log: bytes, a size such as \"16M\", or \"pmr\" for the whole region";
        CallFailure::Value(text.into()).into_exception(from.py())
    })
}

/// Opens a drive of a scenario, or any device by its name.
#[pyfunction]
#[pyo3(signature = (what, *, drive=None, depth=None, queues=None, read_only=false, buffered=false,
                    shared=false, sector_bytes=None, timeout=None, core=None, log=None))]
#[allow(clippy::too_many_arguments, reason = "the arguments of a Python function have names")]
pub(crate) fn open(
    what: &Bound<'_, PyAny>,
    drive: Option<String>,
    depth: Option<u16>,
    queues: Option<u16>,
    read_only: bool,
    buffered: bool,
    shared: bool,
    sector_bytes: Option<u32>,
    timeout: Option<f64>,
    core: Option<usize>,
    log: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyDrive> {
    let py = what.py();
    let invalid = |text: &str| CallFailure::Value(text.into()).into_exception(py);
    let timeout = match timeout {
        None => None,
        Some(seconds) if seconds > 0.0 && seconds < 1e9 => Some(Nanos((seconds * 1e9) as u64)),
        Some(_) => return Err(invalid("timeout: seconds, above 0")),
    };
    let log = log.map(region_log).transpose()?;
    let plain = PlainFileOptions { buffered, shared, sector_bytes };
    let (close_errors, closed) = channel();
    let file = FileOptions {
        sector_bytes,
        direct: !buffered,
        exclusive: !shared,
        ..FileOptions::default()
    };
    let options = OpenOptions {
        depth,
        queues,
        read_only,
        drive_core: core,
        timeout,
        close_errors: Some(close_errors),
        log,
        file,
        ..OpenOptions::default()
    };
    let of_scenario = |scenario: &Scenario, drive: Option<&str>| {
        plain.refuse("a drive of a scenario")?;
        Ok(sluice::open::open_scenario(scenario, drive, &options)?)
    };
    let opened = if let Ok(scenario) = what.cast::<PyScenario>() {
        let scenario = &scenario.get().scenario;
        py.detach(|| of_scenario(scenario, drive.as_deref()))
    } else {
        let what: String = what.extract()?;
        py.detach(|| match what.parse::<Target>()? {
            Target::Scenario { file, drive: of_file } => {
                let scenario = Scenario::load(&file).map_err(TargetOpenError::from)?;
                of_scenario(&scenario, drive.or(of_file).as_deref())
            }
            _ if drive.is_some() => {
                Err(CallFailure::Value("drive: only a scenario has drives to choose from".into()))
            }
            target => {
                if !matches!(target, Target::File(_)) {
                    plain.refuse(&what)?;
                }
                Ok(sluice::open::open_with_control(&target, &options)?)
            }
        })
    };
    let (device, control) = opened.map_err(|failure: CallFailure| failure.into_exception(py))?;
    drop(options);
    Ok(PyDrive::new(device, control, closed))
}
