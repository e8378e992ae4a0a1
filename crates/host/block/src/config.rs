//! Configuration of the block layer ([`BlockLayerConfig`]) and its errors ([`BlockError`]).

use driver::Limits;

use crate::sched::{SchedError, Scheduling};
use crate::submitter::merge::MergerError;
use crate::{Group, Timeouts};

/// The cores that submit: those of the modelled or the real machine, or a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTopology {
    /// Number of sockets (NUMA nodes).
    pub sockets: u16,
    /// Number of cores per socket.
    pub cores: u16,
}

impl QueueTopology {
    /// Returns a topology with one socket of `cores` cores.
    pub const fn flat(cores: u16) -> QueueTopology {
        QueueTopology { sockets: 1, cores }
    }

    /// Returns the total number of cores.
    pub const fn count(self) -> u32 {
        self.sockets as u32 * self.cores as u32
    }
}

/// The scope of a staging queue, which determines the number of staging queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingScope {
    /// One staging queue per core.
    Core,
    /// One staging queue per socket.
    Socket,
    /// One staging queue for the device.
    Device,
}

/// The queue model between the cores and the hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueModel {
    /// `sq`: one staging queue and one dispatch queue, under one lock.
    SingleQueue,
    /// `mq`: staging queues of the given scope, and one dispatch queue per hardware queue.
    MultiQueue {
        /// Scope of the staging queues.
        staging: StagingScope,
    },
}

/// Configuration of a block layer.
#[derive(Clone, Debug)]
pub struct BlockLayerConfig {
    /// The queue model.
    pub queue_model: QueueModel,
    /// The cores that submit.
    pub topology: QueueTopology,
    /// The scheduler of the staging queues.
    pub scheduler: Scheduling,
    /// Whether contiguous requests are merged into one command.
    pub merge: bool,
    /// Maximum number of outstanding requests per core.
    pub queue_depth: u32,
    /// Command timeouts and the retry limit.
    pub timeouts: Timeouts,
}

impl Default for BlockLayerConfig {
    /// Returns the configuration of `mq` for one core: no scheduler, merging, and 1,024 requests.
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

/// The reason why a block layer cannot be opened on a device.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The driver has no hardware queue.
    #[error("the driver reports 0 hardware queues")]
    NoQueues,
    /// The hardware queue is already in use.
    #[error("hardware queue {queue} of {queues} is already in use")]
    QueueTaken {
        /// Index of the hardware queue.
        queue: u16,
        /// Number of hardware queues that the driver reports.
        queues: u16,
    },
    /// The driver maps a software queue to a hardware queue that does not exist.
    #[error("the driver maps software queue {software} to hardware queue {mapped} of {queues}")]
    Mapping {
        /// Index of the software queue.
        software: u16,
        /// Index of the hardware queue that the driver maps it to.
        mapped: u16,
        /// Number of hardware queues that the driver reports.
        queues: u16,
    },
    /// The topology has no core, or more than 65,535.
    #[error("{sockets} sockets of {cores} cores: a device has 1 to 65,535 submitters")]
    Topology {
        /// Number of sockets.
        sockets: u16,
        /// Number of cores per socket.
        cores: u16,
    },
    /// The queue depth is 0 or exceeds the maximum.
    #[error("the queue depth is {0}: it must be 1 to 1,048,576")]
    Depth(u32),
    /// The device reports inconsistent limits.
    #[error("the device reports inconsistent limits: {0:?}")]
    Limits(Limits),
    /// The configuration weighs submitters against each other, but they have separate staging
    /// queues.
    #[error(
        "{what} weigh submitters against each other, which needs one staging queue for all of them, \
         not {queues}: `sq`, or `mq` with one staging queue"
    )]
    SeparateStaging {
        /// The feature that needs a common staging queue.
        what: &'static str,
        /// Number of staging queues in the configuration.
        queues: usize,
    },
    /// The scheduler's parameters are invalid.
    #[error(transparent)]
    Scheduler(#[from] SchedError),
    /// The memory that merging needs cannot be registered.
    #[error(transparent)]
    Merge(#[from] MergerError),
    /// The group does not exist.
    #[error("group {} has no limits", .0.0)]
    NoGroup(Group),
}
