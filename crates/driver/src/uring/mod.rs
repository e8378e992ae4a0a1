//! A file or block device of the host, or a controller that the kernel drives, through io_uring, as a
//! low-level driver.
//!
//! | file | noun |
//! |---|---|
//! | [`config`](UringConfig) | what can be chosen, and its limits |
//! | [`error`](UringError) | why a file or device cannot be used |
//! | [`target`](target::Target) | the opened file: sectors, alignment, what it can do |
//! | [`ring`](ring::Ring) | one io_uring instance and the memory that the kernel uses through it (`entry`: all `unsafe`) |
//! | [`wire`](wire::Wire) | what entries say: system calls on a file, or NVMe commands for the kernel's driver |
//! | [`flight`](flight::Flight) | a command on its way to a file: request → steps → how it ended |
//! | [`passthrough`](Passthrough) | a namespace under the kernel's driver, which takes NVMe commands (`/dev/ng0n1`) |
//! | [`queue`](RingQueue) | the hardware queue |
//! | [`device`](RingDevice) | the device and its queues |
//! | [`driver`](Uring) | a file or block device: how it is opened, and probed for polled completions |
//! | [`status`] | `errno` → NVMe status |
//! | [`stats`](UringStats) | what a queue counts |
//!
//! # System calls and threads
//!
//! Commands bound since the last [`issue_tags`](crate::HardwareQueue::issue_tags) go to the kernel
//! with one `io_uring_enter(2)`, or as many as [`submit_batch`](UringConfig::submit_batch) asks for; with a
//! [`SubmissionThread`] that is awake, with none. Events are
//! read from the completion ring, which costs no system call, except where somebody has to run the
//! kernel's side: with [`Polling`] (every look), and with [`TaskWork::Deferred`] and
//! [`TaskWork::Cooperative`] (when the ring says that something waits).
//!
//! A queue is [`Send`]: any thread may own it, one after the other. The kernel finishes a command on
//! behalf of *the thread that issued it*, therefore:
//!
//! * a thread that ends takes what it has issued and the kernel has not started with it: such
//!   commands end as aborted;
//! * `IORING_SETUP_SINGLE_ISSUER` and `DEFER_TASKRUN` would tie the ring to one thread for ever, and
//!   are used for [`TaskWork::Deferred`] only. The ring is then made disabled and enabled by the
//!   first `issue_tags`, whose thread is the one. Another thread that issues later finds the
//!   queue [`Removed`](crate::QueueState::Removed).
//!
//! # Sleeping
//!
//! [`set_waker`](crate::HardwareQueue::set_waker) registers the waker's own eventfd with the ring, so
//! the kernel ends the sleep itself and no thread stands between. It writes to it while the owner
//! spins, too: the first sleep after that ends at once. [`UringQueue::event_fd`] is the ring, for an owner
//! that sleeps in a `poll(2)` of its own (not with deferred task work). With [`Polling`] nobody can be woken, because nothing ends
//! unless somebody looks: while something is under way the queue's deadline is always now.
//!
//! # Memory
//!
//! Every region of the [`AddressSpace`](::ring::AddressSpace) is registered with the ring as a fixed
//! buffer when a command first names it, so that the kernel pins its pages once; that populates the
//! whole region. A region that the kernel does not pin (the limit on locked memory, more than 1 GiB,
//! pages of a file) is used all the same, its pages looked up for every command, and counted. Pages
//! stay pinned: memory that is given back ([`Region::discard`](::ring::Region::discard)) while a ring has it
//! is not the memory that the kernel goes on using.
//!
//! The kernel writes to payloads until it has answered. A queue that is dropped with commands under way
//! cancels them and waits for the kernel, at most 30 s; if that does not answer, the memory is
//! leaked, never freed under it.

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
