//! [`JobStages`]: the stages of jobs that run on several threads.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::job::JobSpec;

/// The jobs of each stage that have not ended, over all threads. The jobs before a `stonewall` form
/// a stage; stages run one after the other.
#[derive(Debug)]
pub struct JobStages {
    unfinished: Box<[AtomicU32]>,
}

impl JobStages {
    /// Returns the stages of `jobs`. None of them has ended.
    pub fn new(jobs: &[JobSpec]) -> JobStages {
        let mut counts = vec![0];
        for (index, job) in jobs.iter().enumerate() {
            if job.schedule.stonewall && index > 0 {
                counts.push(0);
            }
            if let Some(last) = counts.last_mut() {
                *last += job.numjobs;
            }
        }
        JobStages { unfinished: counts.into_iter().map(AtomicU32::new).collect() }
    }

    /// Returns the number of stages, at least one.
    pub fn count(&self) -> usize {
        self.unfinished.len()
    }

    /// Returns the number of jobs that have not ended.
    pub fn unfinished(&self) -> u32 {
        self.unfinished.iter().map(|count| count.load(Ordering::Acquire)).sum()
    }

    /// Ends jobs of a stage. One that is stopped is of no stage.
    pub(crate) fn end_jobs(&self, stage: u32, count: u32) {
        if let Some(unfinished) = self.unfinished.get(stage as usize) {
            unfinished.fetch_sub(count, Ordering::AcqRel);
        }
    }

    /// Returns whether all jobs of a stage have ended.
    pub(crate) fn has_ended(&self, stage: u32) -> bool {
        let unfinished = self.unfinished.get(stage as usize);
        unfinished.is_none_or(|unfinished| unfinished.load(Ordering::Acquire) == 0)
    }
}
