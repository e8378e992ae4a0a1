//! [`Arbiter`]: the order in which submission queues are served ([NVMe1.4 §4.13]).

use nvme::QueuePriority;
use time::Nanos;

use crate::ArbitrationConfig;
use crate::host_interface::queues::{QueueTeardown, SubmissionQueue};

/// The order in which submission queues are served.
#[derive(Debug)]
pub(super) struct Arbiter {
    pub(super) arbitration: ArbitrationConfig,
    /// Submission queues by priority class: urgent, high, medium, low.
    pub(super) classes: [Vec<usize>; 4],
    /// Start of the next round, per class.
    pub(super) cursors: [usize; 4],
    /// Per class, the poll in which all queues were found empty; they are not read again in that
    /// poll.
    pub(super) empty_in_poll: [u64; 4],
    pub(super) credits: [u16; 4],
    pub(super) current_burst: Option<Burst>,
    /// Number of polls.
    pub(super) poll_count: u64,
    /// Every queue was empty when a command was looked for last.
    pub(super) drained: bool,
    /// Commands in the rings, as far as doorbells were read.
    pub(super) waiting: u32,
    /// Queues in the classes.
    pub(super) queues: u32,
    /// Queues whose doorbell has not been read in this poll, or more.
    pub(super) unread: u32,
    /// Earliest time at which a skipped rate-limited queue has tokens.
    pub(super) throttled_until: Nanos,
}

/// The queue being served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) queue: usize,
    /// Commands that remain.
    pub(super) remaining: u16,
}

impl Arbiter {
    pub(super) fn new(arbitration: ArbitrationConfig) -> Arbiter {
        Arbiter {
            arbitration,
            classes: Default::default(),
            cursors: [0; 4],
            empty_in_poll: [0; 4],
            credits: [0; 4],
            current_burst: None,
            poll_count: 0,
            drained: false,
            waiting: 0,
            queues: 0,
            unread: 0,
            throttled_until: Nanos::MAX,
        }
    }

    /// Returns the class of a queue; admin queues are urgent.
    pub(super) fn class_of(&self, queue: &SubmissionQueue) -> usize {
        match (self.arbitration, queue.priority) {
            _ if queue.admin => 0,
            (ArbitrationConfig::RoundRobin { .. }, _) => 1,
            (_, QueuePriority::Urgent) => 0,
            (_, QueuePriority::High) => 1,
            (_, QueuePriority::Medium) => 2,
            (_, QueuePriority::Low) => 3,
        }
    }

    /// Returns the queues by class.
    pub(super) fn classes_of(&self, queues: &[Option<SubmissionQueue>]) -> [Vec<usize>; 4] {
        let mut classes: [Vec<usize>; 4] = Default::default();
        for (index, queue) in queues.iter().enumerate() {
            if let Some(queue) = queue
                && queue.teardown != Some(QueueTeardown::Detached)
            {
                classes[self.class_of(queue)].push(index);
            }
        }
        classes
    }
}
