//! Host-managed flash: targets over the physical page address interface (LightNVM paper section 4).
//!
//! A *target* turns somebody's requests into vector commands on an open-channel drive's queue pair,
//! and looks like any other device from above.
//!
//! | file | noun |
//! |---|---|
//! | [`core`] | the subsystem: partition table, chunk ownership, health |
//! | [`ssd`](Ssd) | an open-channel drive that a host has attached to |
//! | [`ppa`] | the library for applications: addresses, sessions, virtual blocks |
//! | [`pu_set`](ppa::PuSet) | a set of parallel units, `0,4,8-11` |
//! | [`vector`] | a queue pair that takes vector commands |
//! | [`targets/pblk`](Pblk) | a block device: the translation layer of [`ftl`], run by the host |
//! | `targets/pblk/open` | start: what the chunks say, and which way to go from there |
//! | `targets/pblk/scan` | start with data: padding, then every sector's out-of-band bytes |
//! | `targets/pblk/vectors` | [`ftl::Flash`] by vector commands |
//! | `targets/pblk/split` | reads that take several commands |
//! | `targets/pblk/memory` | registered memory: the write buffer |
//! | [`targets/kv`](Kv) | keys and values: small ones packed, large ones in whole chunks |
//! | `targets/pblk/requests` | which requests are outstanding, and where their data is |
//! | `targets/pblk/spread` | where the sectors of a part of a request are |
//! | [`targets/pblk/sharded`](Sharded) | a block device with an owner per core |
//! | [`targets/pblk/error`](PblkError) | why a drive cannot be opened |
//! | [`targets/overlap`](OverlapSerializer) | requests that overlap one in flight wait for it |
//! | [`targets/rrpc`](Rrpc) | the thesis's sector target: the same layer, the map kept by the drive |
//!
//! # The path of a write
//!
//! [`Pblk`] notes where the request's data is and queues it in the [`ftl::Ftl`]. The next poll
//! *kicks* the layer, which copies the sectors into the write buffer's slots and completes the
//! request. When a write unit is full, the layer picks a chunk and one vector write goes out: data
//! pointer to the slots, metadata pointer to their out-of-band bytes. Its completion makes the unit
//! durable.
//!
//! # The path of a read
//!
//! The next poll looks every sector up, those of all reads together, because that is where they would
//! wait for memory one after the other. Holes and slots are answered on the spot; the rest is one vector
//! read, whose data pointer lets each sector land where it belongs in the request's memory.

#![forbid(unsafe_code)]

pub mod ppa;
mod pu_set;
mod ssd;
pub mod subsystem;
mod targets;
pub mod vector;

pub use ssd::{ChunkInfo, OcssdError, OpenChannelSsd, Performance};
pub use targets::kv::{
    BlockingKv, BlockingMutation, Cursor, Key, KeyLengthError, Kv, KvAnswer, KvCompletion,
    KvConfig, KvError, KvLayout, KvMutation, KvOp, KvOpenError, KvQueueFull, KvRequest, KvStats,
    ValueBuffer,
};
pub use targets::overlap::{OverlapSerializer, OverlapStats};
pub use targets::pblk::sharded::{
    ShardHandle, ShardStats, Sharded, ShardedConfig, ShardedError, SuperblockError,
    SuperblockHealth,
};
pub use targets::pblk::{Pblk, PblkError, PblkHealth};
pub use targets::rrpc::{DeviceL2pEntries, Rrpc, RrpcError};
