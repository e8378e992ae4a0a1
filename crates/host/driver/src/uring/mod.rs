//! A file or block device of the host, or a namespace under the kernel's NVMe driver, through
//! io_uring, as a low-level driver.
//!
//! [`Uring`] is a file or block device, [`Passthrough`] a namespace that takes NVMe commands
//! (`/dev/ng0n1`). Both are a [`RingDevice`], whose hardware queues are [`RingQueue`]s.
//!
//! # System calls and threads
//!
//! Commands bound since the last [`issue_tags`](crate::HardwareQueue::issue_tags) go to the kernel
//! with one `io_uring_enter(2)`. [`submit_batch`](UringConfig::submit_batch) may require several;
//! with a [`SubmissionThread`] that is awake there is none. Reading events from the completion ring
//! costs no system call. The exceptions run the kernel's side: with [`Polling`], every poll; with
//! [`TaskWork::Deferred`] and [`TaskWork::Cooperative`], polls while the ring reports pending work.
//!
//! A queue is [`Send`]: threads may own it one after the other. The kernel finishes a command on
//! behalf of *the thread that issued it*. Therefore:
//!
//! - If a thread exits, commands that it issued and that the kernel has not started complete as
//!   aborted.
//! - `IORING_SETUP_SINGLE_ISSUER` and `DEFER_TASKRUN` tie a ring to one thread for good, and are
//!   used for [`TaskWork::Deferred`] only. The ring is then created disabled; the first
//!   `issue_tags` enables it and binds it to its thread. If another thread issues later, the queue
//!   becomes [`Removed`](crate::QueueState::Removed).
//!
//! # Sleeping
//!
//! [`set_waker`](crate::HardwareQueue::set_waker) registers the waker's own eventfd with the ring,
//! so that the kernel ends the sleep without another thread in between. The kernel also writes to
//! it while the owner busy-polls; the first sleep after that returns at once.
//! [`UringQueue::event_fd`] is the ring, for an owner that sleeps in its own `poll(2)` (not with
//! deferred task work). With [`Polling`] no wake-up is possible, because commands complete only
//! when the owner polls. While a command is in flight, the queue's deadline is then always now.
//!
//! # Memory
//!
//! Every region of the [`AddressSpace`](mem::AddressSpace) is registered with the ring as a
//! fixed buffer when a command first names it. The kernel pins its pages once, which populates the
//! whole region. A region that the kernel does not pin (the limit on locked memory, more than 1
//! GiB, pages of a file) is used nevertheless: the kernel looks up its pages for every command, and
//! the queue counts this. Pages stay pinned: after [`SharedRegion::discard`](mem::SharedRegion::discard),
//! the kernel continues to use the old pages of a registered region.
//!
//! The kernel may access payloads until it has completed their command. A queue that is dropped
//! with commands in flight cancels them and waits for the kernel, for at most 30 s. If the kernel
//! does not complete them, the memory is leaked and never freed.
//!
//! `unsafe` code is confined to `ring::entry` and `passthrough::call`.

mod backend;
mod config;
mod device;
mod driver;
mod error;
mod file_target;
mod in_flight;
mod passthrough;
mod queue;
mod ring;
mod stats;
mod status;

pub use config::{Polling, SubmissionThread, TaskWork, UringConfig};
pub use device::RingDevice;
pub use driver::Uring;
pub use error::UringError;
pub use passthrough::{Passthrough, PassthroughQueue};
pub use queue::RingQueue;
pub use stats::UringStats;

use std::sync::Arc;

/// A hardware queue of a file or block device.
pub type UringQueue = RingQueue<Arc<file_target::FileTarget>>;
