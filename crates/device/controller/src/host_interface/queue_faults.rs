//! Faults of queues: stalls and lost completions (`docs/faults.md`).
//!
//! A stalled queue has a maximum of no command in flight, so that arbitration skips it as any queue
//! at its maximum. It has commands in its ring, so that the drive is not drained, and looks for
//! commands again when it is polled at the end of the stall.

use crate::host_interface::queues::{Queues, SubmissionQueue};

impl Queues {
    /// Returns the I/O submission queues with an identifier, of all hosts.
    fn io_queues(&mut self, qid: u16) -> impl Iterator<Item = &mut SubmissionQueue> {
        let queues = self.submissions.iter_mut().flatten();
        queues.filter(move |q| !q.admin && q.teardown.is_none() && q.ring.qid() == qid)
    }

    /// Whether a host has an I/O submission queue with this identifier.
    pub(crate) fn has_io_queue(&self, qid: u16) -> bool {
        let mut queues = self.submissions.iter().flatten();
        queues.any(|q| !q.admin && q.teardown.is_none() && q.ring.qid() == qid)
    }

    /// Stalls the queues with an identifier for a fault. Returns `false`, and changes nothing, if
    /// one of them is stalled.
    pub(crate) fn stall(&mut self, qid: u16, fault: usize) -> bool {
        if self.io_queues(qid).any(|queue| queue.stall.is_some()) {
            return false;
        }
        for queue in self.io_queues(qid) {
            queue.stall = Some((fault, queue.outstanding_max));
            queue.outstanding_max = 0;
        }
        true
    }

    /// Ends the stall of the queues that a fault stalls.
    pub(crate) fn end_stall(&mut self, fault: usize) {
        for queue in self.submissions.iter_mut().flatten() {
            if let Some((_, max)) = queue.stall.take_if(|(by, _)| *by == fault) {
                queue.outstanding_max = max;
            }
        }
    }

    /// Has the next completion of each queue with an identifier not be posted. Returns `false`, and
    /// changes nothing, if that is so already.
    pub(crate) fn lose_next_completion(&mut self, qid: u16, fault: usize) -> bool {
        if self.io_queues(qid).any(|queue| queue.loss.is_some()) {
            return false;
        }
        self.io_queues(qid).for_each(|queue| queue.loss = Some(fault));
        true
    }

    /// Returns the number of completions that were not posted because of a fault.
    pub(crate) fn lost_completions(&self, fault: usize) -> u64 {
        self.lost.iter().filter(|lost| **lost == fault).count() as u64
    }
}
