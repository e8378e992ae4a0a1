//! The host side of a device: the hardware abstraction layer, and the low-level drivers that
//! implement it.
//!
//! [`hal`] defines what a low-level driver provides: tags, issue, events, reset and notification.
//! The drivers are:
//!
//! - [`NvmeDevice`]: queue pairs to an NVMe drive, emulated or real.
//! - [`AhciHost`]: an AHCI controller and its SATA drives.
//! - [`Uring`]: a file or block device of the host, through io_uring; [`Passthrough`]: a namespace
//!   under the kernel's NVMe driver.
//! - [`Null`]: a device that completes every request at once.
//!
//! [`pci`] opens real controllers of this machine. [`ControllerHandle`] and [`QueuePair`] serve
//! callers that issue NVMe commands themselves, such as the pblk target.
//!
//! Invariants: the driver does not trust a drive. Invalid completions and Identify data become
//! errors or counts; they never cause a panic, a hang or a second completion of a command.
//!
//! Concurrency: a hardware queue has one owner and takes no lock (ARCHITECTURE.md, R4).
//!
//! References: [HIOPS14 §3.1], [HIOPS14 §3.2] and [SYSTOR13 §3.3] for the hardware abstraction
//! layer; \[NVMe1.4\], \[AHCI1.3\] and \[OC20\] for the devices.

#![deny(unsafe_code)]

mod ahci;
mod controller;
mod data;
mod error;
pub mod hal;
mod interrupt;
mod null;
mod nvme_device;
pub mod pci;
mod queue_pair;
mod request;
mod tag;
mod uring;

pub use ahci::{AhciError, AhciHost, AhciInterrupt, AhciPort, AhciPortStats, DriveIdentity};
pub use controller::cmb::{Cmb, OutOfCmbBounds};
pub use controller::events::MediaEvent;
pub use controller::info::{ControllerInfo, OpenChannelInfo, ProductIdentity};
pub use controller::namespaces::{AllocatedNamespace, NamespaceAdmin};
pub use controller::region::{PersistentRegion, RegionError};
pub use controller::reset::ControllerGeneration;
pub use controller::{ConnectOptions, ControllerHandle, DoorbellUse};
pub use data::{BounceStats, DataPointers};
pub use error::DriverError;
pub use hal::{
    AtomicLimits, BindError, CompletionEvent, Features, HardwareQueue, Limits, LowLevelDriver,
    QueueState, WaitResult,
};
pub use interrupt::{
    InterruptContext, InterruptOptions, InterruptStats, IrqRunHistogram, IrqRunRecorder,
};
pub use null::{Null, NullQueue};
pub use nvme_device::{NvmeDevice, NvmeDeviceError, NvmeQueue};
pub use queue_pair::{Completed, QueueFull, QueuePair, RingAddresses};
pub use request::{Completion, Extent, ExtentState, Op, Payload, Request, Segment};
pub use tag::{Detached, Tag, TagError, TagSet, TagState};
pub use uring::{
    Passthrough, PassthroughQueue, Polling, RingDevice, RingQueue, SubmissionThread, TaskWork,
    Uring, UringConfig, UringError, UringQueue, UringStats,
};
