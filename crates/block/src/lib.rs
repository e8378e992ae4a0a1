//! The block layer: many submitters to few hardware queues, and the block device that every front
//! end and workload sees.
//!
//! | file | noun |
//! |---|---|
//! | [`device`](Device) | a block device: submit many, poll, reap many |
//! | [`raw`](Raw) | straight to a driver's hardware queue, nothing in between |
//! | [`layer`](BlockLayer) | `sq` and `mq`: the queues between cores and hardware |
//! | [`config`](Config) | which of them, and what cannot be |
//! | [`queue`](Queue), `turn` | one core's end: the path of a request |
//! | `local` | what that core has to itself: plug, cutting, completions |
//! | `requests` | what it remembers of a request until it completes |
//! | `merge` | contiguous requests become one command |
//! | `staging`, [`sched`] | where requests wait and are put in order |
//! | [`dispatch`](Timeouts) | a hardware queue, what it has, and what goes wrong with it |
//! | `flush` | one flush standing for all that wait |
//! | `shares` | tags shared fairly by cores without a common scheduler |
//! | `shared`, `steer` | completions on their way to the core that submitted |
//! | [`account`](DiskStat) | counters |
//! | `notes`, [`trace`] | what happened to each request, and when |
//! | [`completion`] | how requests of threads that wait are issued, and how their ends arrive |
//! | [`sync`](Platform), `held` | where the layer runs; owned or behind a lock |
//!
//! A drive that manages its own flash is a device through [`Raw`] or a [`Queue`]; a host-managed
//! target (`pblk`) is a device itself.

#![forbid(unsafe_code)]

mod account;
pub mod completion;
mod config;
mod device;
mod dispatch;
mod flush;
mod hctx;
mod io_hooks;
mod layer;
mod merge;
mod ownership;
mod queue;
mod raw;
mod request_table;
mod run_queue;
pub mod sched;
mod staged;
mod staging;
mod steer;
mod submit_ctx;
mod sync;
mod tag_fairness;
pub mod trace;

pub use account::{
    Counter, DEPTH_BUCKETS, DepthHistogram, DiskStat, DispatchStats, OpStats, StagingStats,
    SubmitterStats,
};
pub use config::{BlockError, BlockLayerConfig, QueueModel, QueueTopology, StagingScope};
pub use device::{BlockDevice, QueueFull, validate_request};
pub use dispatch::{STATUS_REMOVED, Timeouts};
pub use driver::{
    Completion, Extent, ExtentState, Features, Limits, Op, Payload, Request, Segment, WaitResult,
};
pub use layer::{BlockLayer, OpenedQueues};
pub use merge::MergerError;
pub use queue::Queue;
pub use raw::Raw;
pub use staged::{Group, StagedRequest, Submitter};
pub use sync::{Lock, Native, Platform};
