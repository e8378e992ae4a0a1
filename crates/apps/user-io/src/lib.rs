//! User-level I/O: queues, handles and policies in the application's hands (\[NVMeDirect16\]).
//!
//! # Composition
//!
//! Queues, queue handles, multi-queues and policies all implement [`block::BlockDevice`], and
//! policies stack over another device. An application composes a handle from the parts that it
//! needs; a part left out costs nothing. Custom policies implement the same trait.
//!
//! # The path of a read
//!
//! 1. [`Handle::submit`] passes the request to the uppermost device, which checks it or passes it
//!    on. [`Queue`] binds it to a tag of its hardware queue.
//! 2. [`Handle::poll`] rings the doorbell, once for all requests submitted so far, and collects
//!    completions.
//! 3. [`Handle::reap`] returns them.
//!
//! The path takes no lock, allocates no memory and makes no system call, unless a policy does.
//!
//! # References
//!
//! \[NVMeDirect16\]; docs/direct.md.

#![forbid(unsafe_code)]

mod admin;
mod buffer;
mod cache;
mod device;
mod device_inner;
mod errno;
mod error;
mod handle;
mod multi_queue;
mod queue;
mod queue_factory;
pub mod remote;
mod rule_queue;
mod scheduled;
mod shared_queue;
mod supervised;
mod wait;

pub use block::{
    Completion, Features, Group, Limits, Op, Payload, QueueFull, Request, Segment, WaitResult,
};
pub use buffer::Buffer;
pub use cache::{
    Cache, CacheConfig, CachePart, CacheStats, CacheViolation, EvictionPolicy, WritePolicy,
};
pub use device::{DeviceKind, IoDevice, QueueConfig, TargetConfig};
pub use errno::status_errno;
pub use error::{DirectError, IoError, NoRegionReason};
pub use handle::Handle;
pub use multi_queue::{MultiQueue, QueueSelectFn, QueueSelector};
pub use queue::{Queue, QueueStats};
pub use queue_factory::QueueFactory;
pub use remote::{RemoteDeviceConfig, RemoteDeviceError, RemovalReason};
pub use rule_queue::{RuleCompletion, RuleQueue};
pub use scheduled::{GroupedSubmit, Scheduled, ScheduledConfig};
pub use shared_queue::{QueueHandle, SharedQueue};
pub use wait::poller::{CompletionPoller, PollPeriod, PollerConfig, PollerStats};
pub use wait::{HybridPolling, WaitMode};
