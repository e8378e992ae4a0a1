//! A small sweep. Some of its runs fail.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sluice_sweep::{BaseScenario, Grid, Setting, Sweep, SweepProgress, SweepSettings};

/// A small drive, and a job whose size some drives do not have.
pub(crate) const SCENARIO: &str = "title = \"small\"\n[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n[precondition]\nfill = \"sequential\"\n\
    [[job]]\nname = \"mixed\"\nrw = \"randrw\"\nbs = \"4k\"\nsize = \"1m\"\nio_size = \"256k\"\n\
    norandommap = 1\n";

/// Returns a sweep with these settings and seeds.
pub(crate) fn sweep(text: &str, sets: &[&str], seeds: &str) -> Sweep {
    let settings = sets.iter().map(|set| Setting::parse(set).unwrap()).collect();
    let grid = Grid::new(settings, Some(seeds.parse().unwrap())).unwrap();
    Sweep { base: BaseScenario::new(Path::new("small.toml"), text), job_files: Vec::new(), grid }
}

/// Returns the sweep of most tests: twelve runs. Those with a size of 1t fail.
pub(crate) fn usual() -> Sweep {
    sweep(SCENARIO, &["job.mixed.iodepth=1,4", "job.mixed.size=1m,1t,2m"], "2")
}

pub(crate) fn settings(jobs: usize) -> SweepSettings {
    SweepSettings { at_a_time: NonZeroUsize::new(jobs).unwrap(), ..SweepSettings::default() }
}

/// Returns settings that interrupt the sweep as soon as so many runs have ended.
pub(crate) fn interrupted_after(count: usize) -> SweepSettings {
    let interrupt: Arc<AtomicBool> = Arc::default();
    let flag = interrupt.clone();
    let progress = Box::new(move |progress: SweepProgress| {
        if progress.done >= count {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    SweepSettings { interrupt, progress, ..settings(1) }
}
