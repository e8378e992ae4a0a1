//! A namespace of a controller under the kernel's NVMe driver, with commands of our own. It uses
//! the kernel's generic character device, `/dev/ng0n1` (Linux `include/uapi/linux/nvme_ioctl.h`,
//! since 5.19).
//!
//! The controller is shared. The kernel owns its queues, interrupts and timeouts, sets tags and
//! data pointers, and continues to serve `/dev/nvme0n1`. The kernel aborts commands that time out,
//! and resets the controller if necessary; commands lost in a reset complete as
//! [`nvme::Status::ABORTED`]. Every other command completes with the controller's own status.

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
