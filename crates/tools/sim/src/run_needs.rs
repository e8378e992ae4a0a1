//! [`RunNeeds`]: the needs of a run, as far as they decide which runs can share the machine.

use std::path::PathBuf;

use media::estimate_memory;
use scenario::Scenario;
use stack::image;

use crate::analytic::summary::Memory;
use crate::{SimError, jobs};

/// The needs of a run, known before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNeeds {
    /// Number of jobs, with clones counted one by one. The logs of a later run are numbered after
    /// them.
    pub jobs: usize,
    /// Estimate of the memory of the drives and their tables, in bytes.
    pub memory_bytes: u64,
    /// Whether the run writes files: images with [`SimOptions::write_image`], or logs of jobs.
    ///
    /// [`SimOptions::write_image`]: crate::SimOptions::write_image
    pub writes_files: bool,
}

impl RunNeeds {
    /// Returns the needs of a run with these job files in addition to the scenario's own jobs.
    ///
    /// # Errors
    /// [`SimError`] for invalid jobs, as [`simulate`](crate::simulate()) returns it.
    pub fn of_run(
        scenario: &Scenario,
        job_files: &[PathBuf],
        write_image: bool,
    ) -> Result<RunNeeds, SimError> {
        let (per_path, _) = jobs(scenario, &scenario.paths(), job_files)?;
        let specs = || per_path.iter().flat_map(|path| &path.specs);
        let memory = scenario.drives.iter().map(|plan| {
            let listed = Memory::from_spec(plan);
            // The rest of a stack takes about half as much again.
            let media = estimate_memory(&plan.config.media);
            listed.tables.saturating_add(media.saturating_add(media / 2))
        });
        Ok(RunNeeds {
            jobs: specs().map(|spec| spec.numjobs as usize).sum(),
            memory_bytes: memory.fold(0, u64::saturating_add),
            writes_files: specs().any(|spec| spec.report.logs.is_on())
                || write_image && scenario.drives.iter().any(|plan| image(plan).is_some()),
        })
    }
}
