//! Host-managed flash: a media manager and targets for open-channel drives, which are accessed by
//! physical page addresses [LightNVM17 §4].
//!
//! A *target* translates requests into vector commands on a queue pair of an open-channel drive.
//! [`Pblk`], [`Sharded`] and [`Rrpc`] expose a block device; [`Kv`] exposes a key-value store.
//! [`ppa`] is the library for applications that place their own data, and [`subsystem`] divides a
//! drive between targets.
//!
//! # The path of a write
//!
//! [`Pblk`] records the data pointer of the request and queues it in the [`ftl::Ftl`]. The next
//! poll *kicks* the FTL, which copies the sectors to write buffer slots and completes the request.
//! When a write unit is full, the FTL allocates a location and submits one vector write: its data
//! pointer refers to the slots, its metadata pointer to their out-of-band bytes. The completion of
//! this command makes the unit durable.
//!
//! # The path of a read
//!
//! The next poll looks up the sectors of all new reads in one batch, so that cache misses of the
//! mapping entries overlap. Unmapped and buffered sectors are copied at once. The others take one
//! vector read, whose data pointer places each sector in the request's memory.

#![forbid(unsafe_code)]

// The unit tests share the drive of the integration tests, which names this crate.
#[cfg(test)]
extern crate self as lightnvm;

pub mod ppa;
mod pu_set;
mod ssd;
pub mod subsystem;
mod targets;
pub mod vector;

pub use ssd::{ChunkInfo, OcssdError, OpenChannelSsd, Performance};
pub use targets::kv::{
    BlockingKv, BlockingMutation, Cursor, Key, KeyLengthError, Kv, KvAnswer, KvCompletion,
    KvConfig, KvError, KvLayout, KvMutation, KvOp, KvOpenError, KvPart, KvQueueFull, KvRequest,
    KvStats, KvSubject, KvViolation, ValueBuffer,
};
pub use targets::overlap::{OverlapSerializer, OverlapStats};
pub use targets::pblk::sharded::{
    ShardHandle, ShardStats, Sharded, ShardedConfig, ShardedError, SuperblockError,
    SuperblockHealth,
};
pub use targets::pblk::{DriveQueue, Pblk, PblkError, PblkHealth};
pub use targets::rrpc::{DeviceL2pEntries, Rrpc, RrpcError};
