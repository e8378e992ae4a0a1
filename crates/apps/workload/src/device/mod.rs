//! [`JobDevice`]: the device of a job, which submits operations to it and reaps their completions.
//!
//! A device is addressed by blocks or by keys ([`Addressing`]). Every `BlockDevice` is a
//! [`JobDevice`]; [`KeyValueDevice`] makes one of a key-value target. The runner is monomorphic in
//! the device, so that jobs on blocks execute no code of jobs on keys.

pub(crate) mod key_value;

use std::fmt;

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use mem::{AddressSpace, Iova};
use time::{Component, Nanos};

/// How a device addresses its data, and how a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// By logical block: sectors.
    Blocks,
    /// By key: records.
    Keys,
}

impl Addressing {
    /// Returns the name of the addressed units, for messages.
    pub fn units(self) -> &'static str {
        match self {
            Addressing::Blocks => "sectors",
            Addressing::Keys => "records",
        }
    }

    /// Returns the options that make a job one of this addressing, for messages.
    pub(crate) fn options(self) -> &'static str {
        match self {
            Addressing::Blocks => "jobs without `ycsb` and `recordcount`",
            Addressing::Keys => "jobs with `ycsb` or `recordcount`",
        }
    }
}

impl fmt::Display for Addressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Addressing::Blocks => "blocks",
            Addressing::Keys => "keys",
        })
    }
}

/// Limits of a device that is addressed by keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// Maximum size of a value in bytes.
    pub value_bytes_max: u64,
    /// Maximum number of outstanding operations.
    pub queue_depth: u32,
}

/// Limits of the device of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobLimits {
    /// The limits of a block device.
    Blocks(Limits),
    /// The limits of a key-value device.
    Keys(KeyLimits),
}

impl JobLimits {
    /// Returns the addressing of a device with these limits.
    pub fn addressing(&self) -> Addressing {
        match self {
            JobLimits::Blocks(_) => Addressing::Blocks,
            JobLimits::Keys(_) => Addressing::Keys,
        }
    }
}

/// Kind of an operation on records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOp {
    /// Gets the value of a record, which must exist.
    Get,
    /// Puts the value of a record, whether or not it exists.
    Put,
    /// Replaces the value of a record, which must exist.
    Update,
    /// Deletes a record. It succeeds if the record does not exist.
    Delete,
    /// Gets the values of consecutive records in the order of their keys, as one operation.
    Scan,
    /// Gets the value of a record and then replaces it, as one operation.
    ReadModifyWrite,
    /// Makes all completed operations durable.
    Sync,
}

/// An operation on records. Record `i` has the key [`record_key(i)`](crate::ycsb::record_key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRequest {
    /// Kind of the operation.
    pub op: RecordOp,
    /// Index of the record, or of the first record of a scan.
    pub record: u64,
    /// Maximum number of records of a scan; 1 otherwise.
    pub count: u32,
    /// Size of a value in bytes. A get of a value of another size fails.
    pub value_bytes: u64,
    /// Registered memory for values that are read.
    pub read_into: Iova,
    /// Distance in bytes between the values of a scan in the memory; 0 if they overwrite each other.
    pub read_stride: u64,
    /// Registered memory with the value that is written.
    pub write_from: Iova,
    /// Tag, which the completion returns.
    pub tag: u64,
}

/// An operation that a job submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOperation {
    /// A request to a device that is addressed by blocks.
    Block(Request),
    /// An operation on a device that is addressed by keys.
    Record(RecordRequest),
}

/// A device that a [`JobRunner`](crate::JobRunner) runs jobs on.
///
/// Every submitted operation completes exactly once, in any order. An error of the operation is the
/// status of its completion.
pub trait JobDevice: Component {
    /// Returns the addressing of the device, which never changes.
    fn addressing(&self) -> Addressing;

    /// Returns the limits of the device.
    fn limits(&self) -> JobLimits;

    /// Returns the address space in which the memory of operations must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Submits an operation. The device issues it at the next [`poll`](Component::poll).
    ///
    /// # Errors
    /// [`QueueFull`] if the device did not take the operation.
    ///
    /// # Panics
    /// If the operation is not of the device's [`addressing`](JobDevice::addressing). A
    /// [`JobRunner`](crate::JobRunner) refuses such jobs before they start.
    fn submit(&mut self, now: Nanos, operation: JobOperation) -> Result<(), QueueFull>;

    /// Removes and returns a completion that a [`poll`](Component::poll) has found. Its `result` is
    /// the number of records that a [`RecordRequest`] found.
    fn reap(&mut self) -> Option<Completion>;
}

impl<D: BlockDevice> JobDevice for D {
    #[inline(always)]
    fn addressing(&self) -> Addressing {
        Addressing::Blocks
    }

    fn limits(&self) -> JobLimits {
        JobLimits::Blocks(*BlockDevice::limits(self))
    }

    fn memory(&self) -> &AddressSpace {
        BlockDevice::memory(self)
    }

    #[inline(always)]
    fn submit(&mut self, now: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        match operation {
            JobOperation::Block(request) => BlockDevice::submit(self, now, request),
            JobOperation::Record(request) => unreachable!("{request:?} on a block device"),
        }
    }

    #[inline(always)]
    fn reap(&mut self) -> Option<Completion> {
        BlockDevice::reap(self)
    }
}
