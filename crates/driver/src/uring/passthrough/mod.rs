//! A namespace of a controller that the kernel drives, by NVMe commands of our own: the kernel's
//! generic character device, `/dev/ng0n1` (Linux `include/uapi/linux/nvme_ioctl.h`, since 5.19).
//!
//! | file | noun |
//! |---|---|
//! | [`namespace`](Namespace) | the opened character device: identified, measured against the kernel's limits |
//! | [`entry`](CommandEntry) | an NVMe command as the kernel takes it, in a ring or by `ioctl` |
//! | `call` | the `ioctl`s: admin commands (all `unsafe`) |
//! | [`course`](NvmeCommandFlow) | a command on its way, and what answers mean |
//! | [`device`](Passthrough) | the device and its queues |
//!
//! The controller is shared: the kernel has its queues, its interrupts and its timeouts, sets tags
//! and data pointers, and goes on serving `/dev/nvme0n1`. What ends late it aborts itself, and resets the
//! controller if it must; commands that went with it end as [`nvme::Status::ABORTED`]. Every other
//! command ends with the controller's own status.

#[allow(unsafe_code, reason = "admin commands are sent by ioctl")]
mod call;
mod command_flow;
mod device;
mod entry;
mod namespace;

pub(super) use command_flow::NvmeCommandFlow;
pub use device::{Passthrough, PassthroughQueue};
pub(super) use entry::{CommandEntry, IO, IO_VEC};
pub(super) use namespace::Namespace;
