//! [`DirectError`]: why something cannot be set up; [`IoError`]: how a request ended.

use std::io;

use block::{Op, QueueFull};
use driver::{DriverError, NvmeDeviceError, UringError};
use lightnvm::vector::MemoryError;
use nvme::Status;
use ring::RegisterError;

use crate::remote::RemoteDeviceError;

/// Why a device, a queue or memory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The file or block device of the host.
    #[error(transparent)]
    File(#[from] UringError),
    /// The drive.
    #[error(transparent)]
    Drive(#[from] DriverError),
    /// The drive's queues take no block requests.
    #[error(transparent)]
    Queue(#[from] NvmeDeviceError),
    /// Memory for lists of addresses.
    #[error(transparent)]
    Vector(#[from] MemoryError),
    /// The device takes no physical addresses.
    #[error("{device} takes no vector commands: only an open-channel drive does")]
    NoVector {
        /// The device.
        device: String,
    },
    /// What is asked for, only the queues of a drive have.
    #[error("{device} is no drive: it has no hardware queues to hand out")]
    NoDrive {
        /// The device.
        device: String,
    },
    /// The device has no health log.
    #[error("{device} has no health log: only a drive does")]
    NoHealth {
        /// The device.
        device: String,
    },
    /// Somebody would sleep whom nobody wakes.
    #[error(
        "{what}: nobody would wake who sleeps: the queue was made without interrupts, or its controller has \
         none (behind uio_pci_generic there is only its line, which stays raised until doorbells are rung, and \
         is not used): look for completions (Wait::Poll, Wait::Hybrid, strategies that poll)"
    )]
    NoInterrupts {
        /// What was asked for.
        what: String,
    },
    /// All queues of a target have been handed out.
    #[error("{device} has {queues} queues, and all are in use")]
    NoQueueLeft {
        /// The device.
        device: String,
        /// How many there are.
        queues: usize,
    },
    /// No memory.
    #[error("{bytes} bytes of memory for I/O: {source}")]
    Memory {
        /// What was asked for.
        bytes: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No registration left.
    #[error("registering memory for I/O: {0}")]
    Register(#[from] RegisterError),
    /// The server of a drive in another process.
    #[error(transparent)]
    Remote(#[from] RemoteDeviceError),
    /// What a policy was configured with cannot be.
    #[error("{key} = {value}: {allowed}")]
    Config {
        /// Which option.
        key: &'static str,
        /// What it was set to.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// A request that did not go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The device carried it out, or refused to.
    #[error("{op:?} of {sectors} sectors at {lba}: {status}")]
    Status {
        /// What was asked.
        op: Op,
        /// First sector.
        lba: u64,
        /// Sectors.
        sectors: u32,
        /// How it ended.
        status: Status,
    },
    /// The buffer is not whole sectors, or longer than one request may be.
    #[error(
        "a buffer of {bytes} bytes: a request takes whole sectors of {sector_bytes} bytes, {sectors_max} at \
         most"
    )]
    Length {
        /// The buffer's.
        bytes: usize,
        /// Bytes of a sector.
        sector_bytes: u32,
        /// Sectors of a request at most.
        sectors_max: u32,
    },
    /// More pieces than the device takes.
    #[error("{segments} pieces of memory in one request: the device takes {segments_max}")]
    Segments {
        /// How many.
        segments: usize,
        /// How many it takes.
        segments_max: u16,
    },
    /// The queue is full.
    #[error(transparent)]
    Busy(#[from] QueueFull),
}

impl IoError {
    /// How the device answered, if it did.
    pub fn status(&self) -> Option<Status> {
        match self {
            IoError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the drive, or its process, is gone, so that nobody knows what became of the request
    /// ([`IoDevice::removal_reason`](crate::IoDevice::removal_reason) says why).
    pub fn is_removed(&self) -> bool {
        self.status().is_some_and(|status| status.is(Status::HOST_PATH_ERROR))
    }
}
