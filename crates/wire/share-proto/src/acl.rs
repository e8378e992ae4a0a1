//! Access control: [`Principal`], [`Grant`], [`AclRule`]; and [`PartitionSpan`], the location of a
//! partition.

use std::fmt;

use crate::name::ResourceName;

/// The users to whom a rule applies. If several rules match a user, the most specific one applies:
/// the user's, then the group's, then [`Anyone`](Principal::Anyone)'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// A user id.
    Uid(u32),
    /// Users with this primary group id.
    Gid(u32),
    /// Every user who can open the socket.
    Anyone,
}

impl Principal {
    /// Returns whether the principal includes a user.
    pub fn matches(self, uid: u32, gid: u32) -> bool {
        match self {
            Principal::Uid(number) => number == uid,
            Principal::Gid(number) => number == gid,
            Principal::Anyone => true,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Uid(number) => write!(f, "uid:{number}"),
            Principal::Gid(number) => write!(f, "gid:{number}"),
            Principal::Anyone => f.write_str("anyone"),
        }
    }
}

/// Limits of a user on a partition, over all connections of that user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whether the user may write, trim and erase.
    pub write: bool,
    /// I/O queues, over all of the user's connections.
    pub queues: u16,
    /// Maximum number of entries of a queue.
    pub depth: u16,
    /// Commands per second; `None` for no limit. A connection gets the share of the rate that
    /// corresponds to its share of the queues.
    pub iops: Option<u64>,
    /// Bytes per second, reads and writes together; `None` for no limit.
    pub bytes_per_sec: Option<u64>,
}

impl Grant {
    /// Default number of queues.
    pub const QUEUES_DEFAULT: u16 = 4;

    /// Returns a grant of full access with this many queues.
    pub fn with_queues(queues: u16) -> Grant {
        Grant { write: true, queues, depth: u16::MAX, iops: None, bytes_per_sec: None }
    }
}

/// One rule of the access-control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclRule {
    /// The users.
    pub principal: Principal,
    /// The drive.
    pub device: ResourceName,
    /// The partition.
    pub partition: ResourceName,
    /// The permissions.
    pub grant: Grant,
}

/// Location of a partition on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionSpan {
    /// Sectors of a drive that manages its own media.
    Sectors {
        /// First sector.
        first: u64,
        /// Number of sectors.
        count: u64,
    },
    /// Parallel units of an open-channel drive.
    ParallelUnits {
        /// First parallel unit.
        first: u32,
        /// Number of parallel units.
        count: u32,
    },
}

impl fmt::Display for PartitionSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionSpan::Sectors { first, count } => write!(f, "sectors {first}..+{count}"),
            PartitionSpan::ParallelUnits { first, count } => {
                write!(f, "parallel units {first}..+{count}")
            }
        }
    }
}
