//! [`MeasuredMachine`]: the numbers of `machine = "this"`, which the first scenario that needs them
//! measures.

use std::sync::Arc;

use bench::RunLength;
use bench::calibrate::{KeptMachine, MachineCosts, machine_model};
use scenario::format::printable_lines;
use scenario::{MachineModel, Scenario};

use crate::CliError;
use crate::args::user_cache;

/// The numbers of this machine, once a scenario has needed them.
#[derive(Debug, Default)]
pub(crate) struct MeasuredMachine(Option<Arc<MachineModel>>);

impl MeasuredMachine {
    /// Returns the numbers if the host of the scenario is this machine and has none yet.
    ///
    /// # Errors
    /// [`CliError`] if the user has no folder to keep them, if their file is not that of this machine,
    /// and if the measurement fails.
    pub(crate) fn needed_by(
        &mut self,
        scenario: &Scenario,
    ) -> Result<Option<Arc<MachineModel>>, CliError> {
        if scenario.host.this_machine.is_none() {
            return Ok(None);
        }
        if self.0.is_none() {
            self.0 = Some(Arc::new(load()?));
        }
        Ok(self.0.clone())
    }
}

/// Loads the numbers that are kept, or measures them and tells so.
fn load() -> Result<MachineModel, CliError> {
    let folder = user_cache("machines").ok_or_else(|| {
        let message = "machine = \"this\": there is no folder for the numbers of this machine: set \
                       XDG_CACHE_HOME or HOME, or `machine` to the file that `sluice calibrate \
                       --sheet` writes";
        CliError::Usage(message.into())
    })?;
    let mut is_busy = false;
    let measure = |about: &str| {
        eprintln!("machine = \"this\": measuring this machine");
        let costs = MachineCosts::measure(RunLength::Full)?;
        is_busy = costs.is_busy();
        machine_model::measure(RunLength::Full, &costs, about)
    };
    let kept = KeptMachine::load(&folder, measure).map_err(|e| CliError::Other(e.to_string()))?;
    if kept.is_new {
        let path = kept.path.display();
        let line = format!("machine = \"this\": measured; the numbers are kept in {path}");
        eprintln!("{}", printable_lines(&line));
        if is_busy {
            eprintln!(
                "warning: other programs used half of the CPUs or more during the measurement: \
                 remove the file to measure again"
            );
        }
    }
    Ok(kept.model)
}
