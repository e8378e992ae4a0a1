//! Host requests: queued writes and trims, and reads in progress.

pub(crate) mod batch;
pub(crate) mod host_reads;
pub(crate) mod queue;

use std::collections::VecDeque;

use nvme::Status;
use serde::{Deserialize, Serialize};

use crate::Completion;
use crate::check::Violation;
use crate::env::Env;
use batch::WriteBatch;
use host_reads::HostReads;
use queue::WriteQueue;

/// Requests of the host, from their arrival to their completion.
///
/// Invariants: those of the queue and of the reads; a request is queued, in progress, or completed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Requests {
    write_queue: WriteQueue,
    host_reads: HostReads,
    completions: VecDeque<Completion>,
    #[serde(skip)]
    batch: WriteBatch,
}

impl Requests {
    /// Creates the state without requests.
    pub(crate) fn new() -> Requests {
        Requests {
            write_queue: WriteQueue::new(),
            host_reads: HostReads::new(),
            completions: VecDeque::new(),
            batch: WriteBatch::default(),
        }
    }

    /// Writes that are admitted without being queued.
    #[inline]
    pub(crate) fn batch(&self) -> &WriteBatch {
        &self.batch
    }

    #[inline]
    pub(crate) fn batch_mut(&mut self) -> &mut WriteBatch {
        &mut self.batch
    }

    /// Writes and trims that are not admitted.
    #[inline]
    pub(crate) fn writes(&self) -> &WriteQueue {
        &self.write_queue
    }

    #[inline]
    pub(crate) fn writes_mut(&mut self) -> &mut WriteQueue {
        &mut self.write_queue
    }

    /// Reads in progress.
    #[inline]
    pub(crate) fn reads(&self) -> &HostReads {
        &self.host_reads
    }

    #[inline]
    pub(crate) fn reads_mut(&mut self) -> &mut HostReads {
        &mut self.host_reads
    }

    /// Completes a request.
    #[inline]
    pub(crate) fn complete(&mut self, tag: u64, status: Status) {
        self.completions.push_back(Completion { tag, status });
    }

    /// Removes and returns the oldest completed request.
    #[inline]
    pub(crate) fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Returns whether completed requests wait to be returned.
    #[inline]
    pub(crate) fn has_completion(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Checks the queue and the reads; `waiters` are the reads that wait for translation pages.
    pub(crate) fn check_invariants(
        &self,
        env: &Env,
        waiters: impl Iterator<Item = u32>,
    ) -> Result<(), Violation> {
        self.write_queue.check(env.plan.logical)?;
        self.host_reads.check(waiters)
    }
}
