//! Several drives in one simulation: [`measure`] returns the CPU time per request.

use std::fmt::Write as _;
use std::path::Path;

use scenario::Scenario;
use sim::{SimOptions, SimStage, simulate};

use super::super::{BenchError, Samples};
use super::simulated_drive::{DriveShape, JobLoad, setup};

/// Runs a job on each of `count` drives that were filled, and measures the CPU time of this thread
/// per request. The outstanding requests of all of them together are those of `load`, and so are the
/// requests.
pub(super) fn measure(
    count: u32,
    shape: &DriveShape,
    load: JobLoad,
    samples: usize,
) -> Result<Samples, BenchError> {
    let each = JobLoad { ios: load.ios / u64::from(count), depth: load.depth / count, ..load };
    let mut text = String::from("[precondition]\nfill = \"sequential\"\n");
    for drive in 0..count {
        let _ = writeln!(text, "[[drive]]\nname = \"drive{drive}\"\n{}", shape.keys());
        let _ = writeln!(text, "[[job]]\nname = \"job{drive}\"\ndrive = \"drive{drive}\"");
        for (key, value) in each.options() {
            let _ = writeln!(text, "{key} = \"{value}\"");
        }
    }
    let scenario = Scenario::parse(Path::new("bench"), &text).map_err(setup)?;
    let ios = (each.ios * u64::from(count)) as f64;
    let mut costs = Vec::new();
    for _ in 0..samples {
        let mut times = Vec::new();
        let mut progress = |stage| {
            if let SimStage::Running { part: 0.0 | 1.0, .. } = stage {
                times.push(event::thread_cpu_time());
            }
        };
        let options = SimOptions { progress: Some(&mut progress), ..SimOptions::default() };
        simulate(&scenario, options).map_err(setup)?;
        let [begin, .., end] = times[..] else {
            return Err(BenchError::Setup("the jobs have no begin and no end".to_owned()));
        };
        costs.push(end.since(begin).0 as f64 / ios);
    }
    Samples::new(costs).ok_or_else(|| BenchError::Setup("there are no samples".to_owned()))
}
