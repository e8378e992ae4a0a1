//! [`StagePeers`]: the threads of a path whose jobs wait for one another (`stonewall`).

use std::sync::{Arc, Mutex, PoisonError};

use workload::{JobSpec, JobStages};

use super::port::ThreadPort;

/// The stages of the jobs of several threads. A thread that ends a job wakes the others, whose next
/// stage may begin.
#[derive(Debug)]
pub(super) struct StagePeers {
    stages: Arc<JobStages>,
    ports: Mutex<Vec<Arc<ThreadPort>>>,
}

impl StagePeers {
    /// Returns the stages of jobs on several threads; `None` if none waits for that of another
    /// thread.
    pub(super) fn new(jobs: &[JobSpec], threads: usize) -> Option<StagePeers> {
        let stages = JobStages::new(jobs);
        (stages.count() > 1 && threads > 1)
            .then(|| StagePeers { stages: Arc::new(stages), ports: Mutex::default() })
    }

    /// Adds a thread. Returns the stages for its jobs.
    pub(super) fn add(&self, port: &Arc<ThreadPort>) -> Arc<JobStages> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).push(port.clone());
        self.stages.clone()
    }

    /// Returns the number of jobs that have not ended.
    pub(super) fn unfinished(&self) -> u32 {
        self.stages.unfinished()
    }

    /// Wakes the threads.
    pub(super) fn wake_all(&self) {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ports.iter().for_each(|port| port.wake());
    }
}
