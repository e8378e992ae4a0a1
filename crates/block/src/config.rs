//! [`Config`]: which block layer, and [`BlockError`]: why there is none.

use driver::Limits;

use crate::merge::MergerError;
use crate::sched::{SchedError, Scheduling};
use crate::{Group, Timeouts};

/// The cores that submit: the modelled or real machine's, or just a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTopology {
    /// Sockets (NUMA nodes).
    pub sockets: u16,
    /// Cores of each.
    pub cores: u16,
}

impl QueueTopology {
    /// One socket of `cores` cores.
    pub const fn flat(cores: u16) -> QueueTopology {
        QueueTopology { sockets: 1, cores }
    }

    /// All cores.
    pub const fn count(self) -> u32 {
        self.sockets as u32 * self.cores as u32
    }
}

/// How many staging queues there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingScope {
    /// One per core.
    Core,
    /// One per socket.
    Socket,
    /// One.
    Device,
}

/// Which queues there are between the cores and the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueModel {
    /// `sq`: one staging queue and one dispatch queue, under one lock.
    SingleQueue,
    /// `mq`: staging queues as given, a dispatch queue for every hardware queue.
    MultiQueue {
        /// Staging queues.
        staging: StagingScope,
    },
}

/// Which block layer.
#[derive(Clone, Debug)]
pub struct BlockLayerConfig {
    /// Which queues.
    pub queue_model: QueueModel,
    /// Which cores.
    pub topology: QueueTopology,
    /// What orders requests in the staging queues.
    pub scheduler: Scheduling,
    /// Whether contiguous requests become one command.
    pub merge: bool,
    /// Requests that one core can have outstanding.
    pub queue_depth: u32,
    /// How long commands may take.
    pub timeouts: Timeouts,
}

impl Default for BlockLayerConfig {
    /// `mq` for one core: no scheduler, merging, 1,024 requests.
    fn default() -> BlockLayerConfig {
        BlockLayerConfig {
            queue_model: QueueModel::MultiQueue { staging: StagingScope::Core },
            topology: QueueTopology::flat(1),
            scheduler: Scheduling::default(),
            merge: true,
            queue_depth: 1024,
            timeouts: Timeouts::default(),
        }
    }
}

/// Why there is no block layer on a device.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The driver has no hardware queue.
    #[error("the driver reports 0 hardware queues")]
    NoQueues,
    /// A hardware queue was handed out before.
    #[error("hardware queue {queue} of {queues} is not to be had")]
    QueueTaken {
        /// The queue.
        queue: u16,
        /// Queues that the driver reports.
        queues: u16,
    },
    /// The driver maps a software queue to a hardware queue that is not there.
    #[error("the driver maps software queue {software} to hardware queue {mapped} of {queues}")]
    Mapping {
        /// The software queue.
        software: u16,
        /// Where it is mapped to.
        mapped: u16,
        /// Queues that the driver reports.
        queues: u16,
    },
    /// There is no core, or there are too many.
    #[error("{sockets} sockets of {cores} cores: a device has 1 to 65,535 submitters")]
    Topology {
        /// Sockets.
        sockets: u16,
        /// Cores of each.
        cores: u16,
    },
    /// No request could be outstanding, or too many.
    #[error("a queue depth of {0}: it is 1 to 1,048,576")]
    Depth(u32),
    /// What the device says of itself cannot be.
    #[error("the device has limits that cannot be: {0:?}")]
    Limits(Limits),
    /// What is configured compares submitters, but they have several staging queues.
    #[error(
        "{what} weigh submitters against each other, which needs one staging queue for all of them, \
         not {queues}: `sq`, or `mq` with one staging queue"
    )]
    SeparateStaging {
        /// What needs it.
        what: &'static str,
        /// Staging queues that there would be.
        queues: usize,
    },
    /// The scheduler's parameters.
    #[error(transparent)]
    Scheduler(#[from] SchedError),
    /// No memory for merging.
    #[error(transparent)]
    Merge(#[from] MergerError),
    /// No such group.
    #[error("group {} has no limits", .0.0)]
    NoGroup(Group),
}
