//! The block layer: queues between many submitters and few hardware queues, and the block-device
//! interface.
//!
//! Every front end and workload submits to a [`BlockDevice`]. A drive that manages its own flash is
//! a device through [`Raw`], without a block layer, or through a [`Queue`] of a [`BlockLayer`]. A
//! target on host-managed flash, such as `pblk`, implements [`BlockDevice`] itself.
//!
//! Invariants: every request that a device accepts completes exactly once, in any order. A device
//! allocates no memory per request.
//!
//! Concurrency: a device has one owner and takes no lock (ARCHITECTURE.md, R4). Cores that share a
//! staging or dispatch queue lock it once per batch.
//!
//! References: \[SYSTOR13\] for the queue models `raw`, `sq` and `mq`; \[HIOPS14\] for
//! [`completion`] strategies.

#![forbid(unsafe_code)]

mod account;
pub mod completion;
mod config;
mod device;
mod device_queue;
mod dispatch;
mod layer;
pub mod notify;
mod ownership;
mod queue;
mod raw;
mod run_queue;
pub mod sched;
mod staging;
mod steer;
mod stripe;
mod submitter;
mod sync;
pub mod trace;

pub use account::{
    Counter, DEPTH_BUCKETS, DepthHistogram, DiskStat, DispatchStats, OpStats, StagingStats,
    SubmitterStats,
};
pub use config::{BlockError, BlockLayerConfig, QueueModel, QueueTopology, StagingScope};
#[doc(hidden)]
pub use device::delegate;
pub use device::{BlockDevice, QueueFull, validate_request};
pub use device_queue::{DeviceDriver, DeviceDriverError, DeviceQueue};
pub use dispatch::{STATUS_REMOVED, Timeouts};
pub use driver::{
    AtomicLimits, Completion, Extent, ExtentState, Features, Limits, Op, Payload, Request, Segment,
    WaitResult,
};
pub use layer::{BlockLayer, OpenedQueues};
pub use platform::{Layer, Lock, Native, Platform, Step};
pub use queue::Queue;
pub use raw::Raw;
pub use staging::Staging;
pub use staging::request::{Group, StagedRequest, Submitter};
pub use stripe::{MemberSchedule, Stripe, StripeError, StripeFragment, StripeLayout};
pub use submitter::merge::MergerError;
