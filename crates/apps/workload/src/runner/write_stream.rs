//! [`WriteStream`]: the writes of a job, for a caller that issues them itself.

use block::Limits;
use rng::Rng;
use time::Nanos;

use crate::device::{Addressing, DeviceSpace};
use crate::error::RunError;
use crate::io_range::{IoRange, io_range, largest_block};
use crate::job::{JobSpec, Rate};
use crate::runner::pattern::GivenRanks;
use crate::runner::source::{GeneratedIo, IssueDecision, RequestSource};

/// The writes that a [`JobRunner`](crate::JobRunner) issues for a job that does nothing but write as
/// fast as its depth allows.
#[derive(Debug)]
pub struct WriteStream {
    source: Box<GeneratedIo>,
    depth: u32,
}

/// A write of a job, in sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobWrite {
    /// The first sector.
    pub lba: u64,
    /// Length in sectors.
    pub sectors: u32,
}

impl WriteStream {
    /// Returns the writes of `jobs`, which run one after the other, on a device with these limits.
    /// `seed` is that of the [`JobRunner`](crate::JobRunner). Returns `None` if a job does anything
    /// else: if it has clones, rates, pauses, a runtime, loops, logs or flushes, is verified,
    /// replays a trace, or has requests that the device takes in parts.
    ///
    /// # Errors
    /// As [`JobRunner::new`](crate::JobRunner::new).
    pub fn of_jobs(
        jobs: &[JobSpec],
        limits: &Limits,
        seed: u64,
    ) -> Result<Option<Vec<WriteStream>>, RunError> {
        if !(0..).zip(jobs).all(|(i, job)| has_only_writes(job, i == 0, limits)) {
            return Ok(None);
        }
        let mut streams = Vec::with_capacity(jobs.len());
        for (index, spec) in (0..).zip(jobs) {
            let misfit = |what| RunError::DeviceMismatch { job: spec.name.clone(), what };
            let area: IoRange = io_range(spec, 0, limits).map_err(misfit)?;
            let rng = match spec.pattern.randseed {
                Some(own) => Rng::new(own).fork(0),
                None => Rng::new(seed).fork(index),
            };
            let device = DeviceSpace { sectors: limits, units: None };
            let RequestSource::Generated(source) = RequestSource::new(spec, 0, area, device, &rng)?
            else {
                return Ok(None);
            };
            streams.push(WriteStream { source, depth: spec.depth() });
        }
        Ok(Some(streams))
    }

    /// Accesses the blocks of `ranks` before its own, as
    /// [`JobRunner::access_first`](crate::JobRunner::access_first) does.
    pub fn access_first(&mut self, ranks: impl Iterator<Item = u64> + Send + 'static) {
        self.source.access_first(GivenRanks(Box::new(ranks)));
    }

    /// Returns the maximum number of outstanding writes.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the next write; `None` after the last one.
    #[inline]
    pub fn next_write(&mut self) -> Option<JobWrite> {
        match self.source.next(Nanos::ZERO) {
            IssueDecision::Now(io) => Some(JobWrite { lba: io.lba, sectors: io.sectors }),
            // Without rates it waits for nothing.
            IssueDecision::WaitUntil(_) | IssueDecision::WaitForCompletion | IssueDecision::End => {
                None
            }
        }
    }

    /// Returns the issued share of the writes, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.source.progress()
    }
}

/// Whether a job only writes, and waits for nothing but its own writes and, unless it is the `first`
/// one, those of the jobs before it.
fn has_only_writes(job: &JobSpec, first: bool, limits: &Limits) -> bool {
    let max_bytes = u64::from(limits.max_sectors) * u64::from(limits.sector_bytes);
    job.addressing() == Addressing::Blocks
        && job.numjobs == 1
        && (first || job.schedule.stonewall)
        && job.replay.is_none()
        && job.latency_target.is_none()
        && job.pattern.access.uses == [false, true, false]
        && job.pace.rate.iter().all(|rate| *rate == Rate::Unlimited)
        && job.pace.thinktime == Nanos::ZERO
        && job.schedule.loops <= 1
        && job.schedule.runtime.is_none()
        && !job.schedule.time_based
        && job.schedule.startdelay == Nanos::ZERO
        && !job.integrity.verify
        && job.integrity.fsync == 0
        && !job.integrity.end_fsync
        && !job.integrity.continue_on_error.write
        && !job.report.logs.is_on()
        && job.depth() <= limits.queue_depth
        && largest_block(job) <= max_bytes
}
