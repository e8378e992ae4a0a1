//! The host's side of a device: the hardware abstraction layer, and the low-level drivers below it.
//!
//! | file | noun |
//! |---|---|
//! | [`hal`] | what every low-level driver implements: tags, issue, events, reset, notification |
//! | [`request`](Request) | what is asked of a device, and how it ended |
//! | [`tag`](Tag) | which commands of a queue are under way, and whose they are |
//! | [`null`](Null) | a device that acknowledges at once |
//! | [`emulated`](Emulated) | queue pairs to a drive on the other side of a port |
//! | [`ahci`](AhciHost) | an AHCI controller and its SATA drives |
//! | [`uring`](Uring) | a file or block device of the host, or a controller under the kernel's driver ([`Passthrough`]), through io_uring |
//! | [`pci`] | real controllers of this machine: functions, their registers, memory and interrupts |
//! | `command` | what of a request becomes which NVMe command |
//! | [`interrupt`](InterruptContext) | a thread that stands in for the hard interrupt's context |
//!
//! What the emulated driver is made of, for who speaks NVMe itself (a target such as pblk):
//!
//! | file | noun |
//! |---|---|
//! | [`controller`](Controller) | a drive that was brought up: its queue pairs, and what it tells |
//! | `bring_up` | a real controller's registers: stopping, starting, shutting down |
//! | `recovery` | a reset of a real controller, and how queues hear of it |
//! | `admin` | the admin queue, one command at a time |
//! | [`data`](DataPointers) | how commands say where their data is: SGLs, or lists of pages; in it `bounce`, memory through which payloads go that these cannot name, and `metadata`, of which requests have none |
//! | [`events`](MediaEvent) | what the drive tells of its media unasked |
//! | [`cmb`](Cmb) | memory of the drive that the host reaches into |
//! | [`info`](ControllerInfo) | what a drive says about itself, checked |
//! | [`queue_pair`](QueuePair) | submit many, ring once, reap many; owned, without lock or allocation |
//! | `memory` | the registered memory of the two rings |
//! | [`error`](DriverError) | what went wrong, with which command, on which queue |
//!
//! A drive is not trusted: whatever it writes into a completion queue or returns from Identify is
//! an error or a count here, never a panic, a hang or a command completed twice.

#![deny(unsafe_code)]

mod admin;
mod ahci;
mod cmb;
mod command;
mod controller;
mod data;
mod error;
mod events;
pub mod hal;
mod info;
mod init;
mod interrupt;
mod memory;
mod null;
mod nvme_device;
pub mod pci;
mod queue_pair;
mod request;
mod reset;
mod tag;
mod uring;

pub use ahci::{AhciError, AhciHost, AhciInterrupt, AhciPort, DriveIdentity, PortStats};
pub use cmb::{Cmb, OutOfCmbBounds};
pub use controller::{ConnectOptions, ControllerHandle, DoorbellUse};
pub use data::{BounceStats, DataPointers};
pub use error::DriverError;
pub use events::MediaEvent;
pub use hal::{
    BindError, Event, Features, HardwareQueue, Limits, LowLevelDriver, QueueState, WaitResult,
};
pub use info::{ControllerInfo, OpenChannelInfo};
pub use interrupt::{
    InterruptContext, InterruptOptions, InterruptStats, IrqRunHistogram, IrqRunRecorder,
};
pub use null::{Null, NullQueue};
pub use nvme_device::{NvmeDevice, NvmeDeviceError, NvmeQueue};
pub use queue_pair::{Completed, QueueFull, QueuePair};
pub use request::{Completion, Extent, ExtentState, Op, Payload, Request, Segment};
pub use reset::ControllerGeneration;
pub use tag::{Detached, Tag, TagError, TagSet, TagState};
pub use uring::{
    Passthrough, PassthroughQueue, Polling, RingDevice, RingQueue, SubmissionThread, TaskWork,
    Uring, UringConfig, UringError, UringQueue, UringStats,
};
