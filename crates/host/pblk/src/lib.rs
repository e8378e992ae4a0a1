//! Block devices on flash that the host manages [LightNVM17 §4.2].
//!
//! A *target* translates requests into vector commands on a queue pair of an open-channel drive.
//! [`Pblk`] exposes a block device, [`Sharded`] one with a handle per core. [`Rrpc`] keeps its map in the
//! drive, and [`OverlapSerializer`] orders its overlapping requests.
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

mod invariants;
mod overlap;
mod pblk;
mod rrpc;

pub use invariants::{PblkPart, PblkViolation};
pub use overlap::{OverlapSerializer, OverlapStats};
pub use pblk::sharded::{
    ShardHandle, ShardStats, Sharded, ShardedConfig, ShardedError, SuperblockError,
    SuperblockHealth,
};
pub use pblk::{
    DriveQueue, NamedTargetRule, Pblk, PblkError, PblkHealth, SavedPblk, TargetRuleMisses,
    TargetRuleStats, TargetRulesConfig, TargetRulesError,
};
pub use rrpc::{DeviceL2pEntries, Rrpc, RrpcError, SavedRrpc};
