//! [`JobDevice`]: the device of a job, which submits operations to it and reaps their completions.
//!
//! A device is addressed by blocks, by keys or by parallel units ([`Addressing`]). Every
//! `BlockDevice` is a [`JobDevice`]; [`KeyValueDevice`] makes one of a key-value target, and
//! [`ParallelUnits`] of a drive's physical addresses. The runner is monomorphic in
//! the device, so that jobs on blocks execute no code of jobs on keys.

pub(crate) mod key_value;
pub(crate) mod parallel_units;

use std::fmt;

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use mem::{AddressSpace, Iova};
use ocssd::ReportedChunk;
use time::{Component, Nanos};

use crate::unit_spec::UnitLimits;

/// How a device addresses its data, and how a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// By logical block: sectors.
    Blocks,
    /// By key: records.
    Keys,
    /// By parallel unit: sectors of chunks.
    Units,
}

impl Addressing {
    /// Returns the name of the addressed units, for messages.
    pub fn units(self) -> &'static str {
        match self {
            Addressing::Blocks => "sectors",
            Addressing::Keys => "records",
            Addressing::Units => "sectors of parallel units",
        }
    }

    /// Returns the options that make a job one of this addressing, for messages.
    pub(crate) fn options(self) -> &'static str {
        match self {
            Addressing::Blocks => "jobs without `ycsb`, `recordcount` and `pus`",
            Addressing::Keys => "jobs with `ycsb` or `recordcount`",
            Addressing::Units => "jobs with `pus`",
        }
    }
}

impl fmt::Display for Addressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Addressing::Blocks => "blocks",
            Addressing::Keys => "keys",
            Addressing::Units => "parallel units",
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobLimits {
    /// The limits of a block device.
    Blocks(Limits),
    /// The limits of a key-value device.
    Keys(KeyLimits),
    /// The limits of parallel units.
    Units(UnitLimits),
}

impl JobLimits {
    /// Returns the limits of parallel units; `None` for other devices.
    pub fn units(&self) -> Option<&UnitLimits> {
        match self {
            JobLimits::Units(units) => Some(units),
            JobLimits::Blocks(_) | JobLimits::Keys(_) => None,
        }
    }

    /// Returns the addressing of a device with these limits.
    pub fn addressing(&self) -> Addressing {
        match self {
            JobLimits::Blocks(_) => Addressing::Blocks,
            JobLimits::Keys(_) => Addressing::Keys,
            JobLimits::Units(_) => Addressing::Units,
        }
    }
}

/// The addresses of a device: its sectors or records, and its parallel units, if it has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSpace<'a> {
    pub(crate) sectors: &'a Limits,
    pub(crate) units: Option<&'a UnitLimits>,
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
    /// A request for sectors, to a device that is addressed by blocks or by parallel units.
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

    /// Returns the chunks of parallel units when the device was opened, in their order; `None` is a
    /// chunk that jobs must not use. Other devices have none.
    fn chunks(&self) -> &[Option<ReportedChunk>] {
        &[]
    }

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

    /// Returns the time after a call at `now`: that of a device whose calls take time, on a modeled
    /// machine.
    #[inline(always)]
    fn time_after(&self, now: Nanos) -> Nanos {
        now
    }
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
