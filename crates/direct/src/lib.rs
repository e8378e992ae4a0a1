//! User-level I/O: queues, handles and policies in the application's hands (NVMeDirect, HotStorage
//! 2016).
//!
//! | file | noun |
//! |---|---|
//! | [`device`](Device) | what was opened: a drive, a file or block device of the host, nothing at all |
//! | `opened` | what it, its queues and their handles keep open together, and the way there |
//! | `admin` | of a drive: its health, its features, its events |
//! | [`buffer`](Buffer) | registered memory, handed out and taken back |
//! | [`queue`](Queue) | a hardware queue of the application's own |
//! | [`shared`](SharedQueue) | one that several handles use, each from a [`QueueHandle`] |
//! | [`lanes`](MultiQueue) | several of them as one, and who chooses |
//! | [`cache`](Cache) | a block cache: write-back or write-through, read-ahead |
//! | [`scheduled`](Scheduled) | a scheduler in front of a device: deadlines, classes, shares, rates |
//! | [`poller`](CompletionPoller) | a thread that looks for completions on others' behalf |
//! | [`handle`](Handle) | requests and their ends, for one thread: at once or one after the other |
//! | `watched` | a queue of a real controller: late commands, resets, removal |
//! | [`wait`](Wait) | how a handle spends the time until a completion |
//! | [`error`](DirectError) | what went wrong |
//! | [`served`] | a drive in another process: its server's socket, and what is said there |
//!
//! # One trait
//!
//! A queue, a seat, several lanes and every policy are [`block::Device`]s, each over another one: a
//! handle is made of what its application wants and of nothing else. Whatever is left out costs
//! nothing, and whoever has a policy of their own puts it in between.
//!
//! # The path of one read
//!
//! [`Handle::submit`] gives the request to the uppermost device, which checks it or passes it on;
//! [`Queue`] binds it to a tag of its hardware queue. [`Handle::poll`] rings the doorbell, once for
//! everything that was submitted, and looks for completions; [`Handle::reap`] takes them. No lock, no
//! allocation and no system call, unless a policy is one.

#![forbid(unsafe_code)]

mod adaptive_period;
mod admin;
mod buffer;
mod cache;
mod device;
mod device_inner;
mod error;
mod handle;
mod multi_queue;
mod poller;
mod queue;
mod queue_factory;
pub mod remote;
mod scheduled;
mod shared_queue;
mod supervised;
mod wait;

pub use block::{
    Completion, Features, Group, Limits, Op, Payload, QueueFull, Request, Segment, WaitResult,
};
pub use buffer::Buffer;
pub use cache::{Cache, CacheConfig, CacheStats, EvictionPolicy, WritePolicy};
pub use device::{DeviceKind, IoDevice, QueueConfig};
pub use error::{DirectError, IoError};
pub use handle::Handle;
pub use multi_queue::{MultiQueue, QueueSelectFn, QueueSelector};
pub use poller::{CompletionPoller, PollPeriod, PollerConfig, PollerStats};
pub use queue::{Queue, QueueStats};
pub use queue_factory::QueueFactory;
pub use remote::{RemoteDeviceConfig, RemoteDeviceError, RemovalReason};
pub use scheduled::{GroupedSubmit, Scheduled, ScheduledConfig};
pub use shared_queue::{QueueHandle, SharedQueue};
pub use wait::{Hybrid, WaitMode};
