//! Who may use what: [`Subject`], [`Grant`], [`Rule`]; and [`PartitionSpan`], where a partition is.

use std::fmt;

use super::name::ResourceName;

/// Whom a rule is for. Of several that fit a user, the most special one counts: the user's own, then
/// the group's, then everybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// A user, by number.
    Uid(u32),
    /// Users whose primary group it is, by number.
    Gid(u32),
    /// Everybody who can open the socket.
    Anyone,
}

impl Principal {
    /// Whether it is about a user.
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

/// What a user may do on a partition, over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whether to write, trim and erase.
    pub write: bool,
    /// I/O queues, over all of the user's connections.
    pub queues: u16,
    /// Entries of a queue at most.
    pub depth: u16,
    /// Commands per second; without, as many as the drive can do. A connection that has some of the
    /// queues has as large a part of the rate.
    pub iops: Option<u64>,
    /// Bytes per second, read and written together.
    pub bytes_per_sec: Option<u64>,
}

impl Grant {
    /// Queues of a grant that does not say.
    pub const QUEUES_DEFAULT: u16 = 4;

    /// Everything, with so many queues.
    pub fn with_queues(queues: u16) -> Grant {
        Grant { write: true, queues, depth: u16::MAX, iops: None, bytes_per_sec: None }
    }
}

/// A line of the table of who may use what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclRule {
    /// Who.
    pub principal: Principal,
    /// The drive.
    pub device: ResourceName,
    /// The part of it.
    pub partition: ResourceName,
    /// How.
    pub grant: Grant,
}

/// Where on a drive a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionSpan {
    /// Sectors of a drive that manages its own media.
    Sectors {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Parallel units of an open-channel drive.
    ParallelUnits {
        /// The first.
        first: u32,
        /// How many.
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
