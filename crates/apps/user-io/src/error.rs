//! [`DirectError`]: errors of setup; [`IoError`]: errors of requests.

use std::io;

use block::{Op, QueueFull};
use driver::{DriverError, NvmeDeviceError, RegionError, UringError};
use mem::RegisterError;
use nvme::Status;
use ocssd::vector::MemoryError;

use crate::remote::RemoteDeviceError;

/// Why a device has no persistent memory region for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRegionReason {
    /// The device is not an emulated NVMe drive with a region.
    #[error("only an emulated NVMe drive with `pmr` has one")]
    NoRegion,
    /// The process is confined to a partition of the drive.
    #[error(
        "a process that is confined to a partition of a drive does not have the drive's region"
    )]
    Partition,
    /// Several drives are behind the device.
    #[error("several drives behind it have one")]
    Several,
}

/// Why a device, a queue or memory cannot be provided.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// Error of a file or block device.
    #[error(transparent)]
    File(#[from] UringError),
    /// Error of the drive.
    #[error(transparent)]
    Drive(#[from] DriverError),
    /// The drive's queues take no block requests.
    #[error(transparent)]
    Queue(#[from] NvmeDeviceError),
    /// No memory for address lists.
    #[error(transparent)]
    Vector(#[from] MemoryError),
    /// The device takes no physical addresses.
    #[error("{device} takes no vector commands: only an open-channel drive does")]
    NoVector {
        /// The device.
        device: String,
    },
    /// The operation needs the queues of a drive.
    #[error("{device} is not a drive: only a drive has hardware queues")]
    NoDrive {
        /// The device.
        device: String,
    },
    /// A command to the rules of a drive was not sent, or has no answer.
    #[error("a command to the rules of the drive: {what}")]
    Rules {
        /// The reason.
        what: String,
    },
    /// The device has no health log.
    #[error("{device} has no health log: only a drive does")]
    NoHealth {
        /// The device.
        device: String,
    },
    /// The device has no persistent memory region for this process.
    #[error("{device} has no persistent memory region: {reason}")]
    NoRegion {
        /// The device.
        device: String,
        /// The reason.
        reason: NoRegionReason,
    },
    /// The persistent memory region cannot be accessed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A sleeping thread would never be woken.
    #[error(
        "{what}: the device would not wake a sleeping handle: the queue was made without interrupts, or its \
         controller has none (with uio_pci_generic there is only the interrupt line, which stays raised until \
         doorbells are rung, and is not used): poll for completions (WaitMode::Poll, WaitMode::Hybrid, \
         strategies that poll)"
    )]
    NoInterrupts {
        /// The operation that was requested.
        what: String,
    },
    /// All queues of a target are in use.
    #[error("{device} has {queues} queues, and all are in use")]
    NoQueueLeft {
        /// The device.
        device: String,
        /// Number of queues.
        queues: usize,
    },
    /// Memory could not be allocated.
    #[error("{bytes} bytes of memory for I/O: {source}")]
    Memory {
        /// Bytes requested.
        bytes: usize,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Memory could not be registered.
    #[error("registering memory for I/O: {0}")]
    Register(#[from] RegisterError),
    /// Error of the server of a drive in another process.
    #[error(transparent)]
    Remote(#[from] RemoteDeviceError),
    /// A configuration value is out of range.
    #[error("{key} = {value}: {allowed}")]
    Config {
        /// The option.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The device failed or refused the request.
    #[error("{op:?} of {sectors} sectors at {lba}: {status}")]
    Status {
        /// The operation.
        op: Op,
        /// First sector.
        lba: u64,
        /// Sectors.
        sectors: u32,
        /// Status of the completion.
        status: Status,
    },
    /// The buffer is not a multiple of the sector size, or exceeds the maximum length of a request.
    #[error(
        "a buffer of {bytes} bytes: a request takes whole sectors of {sector_bytes} bytes, {sectors_max} at \
         most"
    )]
    Length {
        /// Bytes of the buffer.
        bytes: usize,
        /// Bytes of a sector.
        sector_bytes: u32,
        /// Maximum number of sectors of a request.
        sectors_max: u32,
    },
    /// The request has more segments than the device supports.
    #[error("{segments} segments of memory in one request: the device takes {segments_max}")]
    Segments {
        /// Segments of the request.
        segments: usize,
        /// Maximum number of segments.
        segments_max: u16,
    },
    /// The queue is full.
    #[error(transparent)]
    Busy(#[from] QueueFull),
}

impl IoError {
    /// Returns the device's status, if the device answered.
    pub fn status(&self) -> Option<Status> {
        match self {
            IoError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the drive or its process was removed, so that the outcome of the request is
    /// unknown ([`IoDevice::removal_reason`](crate::IoDevice::removal_reason) says why).
    pub fn is_removed(&self) -> bool {
        self.status().is_some_and(|status| status.is(Status::HOST_PATH_ERROR))
    }
}
