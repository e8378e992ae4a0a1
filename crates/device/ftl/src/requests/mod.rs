//! Host requests: queued writes and trims, and reads in progress.

pub(crate) mod host_reads;
pub(crate) mod queue;

use std::collections::VecDeque;

use crate::Completion;
use host_reads::HostReads;
use queue::WriteQueue;

/// Requests of the host, from their arrival to their completion.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) write_queue: WriteQueue,
    pub(crate) host_reads: HostReads,
    pub(crate) completions: VecDeque<Completion>,
}

impl Requests {
    /// No requests.
    pub(crate) fn new() -> Requests {
        Requests {
            write_queue: WriteQueue::new(),
            host_reads: HostReads::new(),
            completions: VecDeque::new(),
        }
    }
}
