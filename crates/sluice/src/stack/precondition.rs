//! Preconditioning: the drive's state after having been filled and overwritten, without the time.
//!
//! The requests go the whole way, through the device, the queue pair and the drive's own code; only
//! the media takes no time. What comes out is the state that the same requests would have left, not
//! an estimate of it.

use std::path::Path;

use block::Device;
use clock::VirtualRunner;
use workload::{Host, HostCosts, JobSpec};

use super::{Stack, StackError, take_turns};
use crate::scenario::{Fill, Precondition};

/// Brings a stack to the state that `what` describes, at an instant of `runner`. `progress` is told
/// from 0 to 1 how far it is.
///
/// # Errors
/// [`StackError::Precondition`] when a write fails.
pub fn precondition(
    stack: Stack,
    what: &Precondition,
    runner: &mut VirtualRunner,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<Stack, StackError> {
    let jobs = jobs(what, stack.device.limits());
    if jobs.is_empty() {
        return Ok(stack);
    }
    let Stack { mut drive, mut device, port, controller } = stack;
    let name = drive.config().name.clone();
    let failed = |message: String| StackError::Precondition { name: name.clone(), message };
    drive.set_instant(true);
    let mut host = Host::new(&mut device, jobs, HostCosts::default(), seed)
        .map_err(|e| failed(e.to_string()))?;
    take_turns(runner, &mut host, &mut drive, &mut |_, host, _| {
        progress(host.progress());
        true
    });
    let result = host.finish().map_err(|e| failed(e.to_string()))?;
    if let Some((_, failure)) = result.failures().next() {
        return Err(failed(failure.to_string()));
    }
    drive.set_instant(false);
    drive.reset_stats();
    progress(1.0);
    Ok(Stack { drive, device, port, controller })
}

fn jobs(what: &Precondition, limits: &block::Limits) -> Vec<JobSpec> {
    let job = |name: &str, pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().enumerate().map(|(i, (k, v))| (*k, *v, i + 1));
        // Words and values are ours and known to be right.
        JobSpec::from_pairs(name, Path::new("[precondition]"), pairs).ok().map(|(spec, _)| spec)
    };
    let sector = limits.sector_bytes.to_string();
    let chunk = (limits.optimal_sectors.max(64) * limits.sector_bytes).to_string();
    let mut jobs = Vec::new();
    if what.fill == Fill::Sequential {
        jobs.extend(job("fill", &[("rw", "write"), ("bs", &chunk), ("iodepth", "8")]));
    }
    if what.overwrite_random > 0.0 {
        let sectors = (limits.sectors as f64 * what.overwrite_random) as u64;
        let bytes = (sectors * u64::from(limits.sector_bytes)).to_string();
        let pairs = [
            ("rw", "randwrite"),
            ("bs", sector.as_str()),
            ("iodepth", "64"),
            ("norandommap", "1"),
            ("stonewall", "1"),
            ("io_size", bytes.as_str()),
        ];
        jobs.extend(job("overwrite", &pairs).filter(|_| sectors > 0));
    }
    jobs
}
