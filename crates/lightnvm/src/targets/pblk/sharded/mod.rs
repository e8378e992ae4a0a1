//! Several writers on different cores (LightNVM paper section 4.2.1: a single consumer of the write
//! buffer is what writers on several cores share; here each core has all of it for itself).
//!
//! The logical space is striped over *shards*. A shard is an independent [`Pblk`](super::Pblk): its
//! own map, write buffer, lines, journal and queue pair, on chunks of its own. Every shard is owned by
//! one core, so that neither reads nor writes take a lock or share a write context. What a request
//! touches of other cores' shards goes to their owners through single-producer, single-consumer
//! rings, and comes back the same way.
//!
//! | file | noun |
//! |---|---|
//! | `config` | [`ShardedConfig`]: how many shards, how wide a stripe, and which chunks are whose |
//! | `label` | what says on the media how a drive is sharded, and who looks after it |
//! | `open` | [`Sharded::open`] |
//! | `stripes` | which shard a sector belongs to, and the part of a request that a shard has |
//! | `links` | the rings between cores |
//! | `parents` | requests whose parts are under way |
//! | `extents` | the extents of several shards as those of one device |
//! | `handle` | [`ShardHandle`]: one core's end, a block device |
//! | `events` | what the drive tells of its media, for the shard whose business it is |
//! | `error` | [`ShardedError`] |
//!
//! # What bounds everything
//!
//! A contiguous range of the device is a contiguous range of every shard, so that a request has at
//! most one part per shard, however long it is; data is found in memory by its
//! [`Spread`](super::spread::Spread). A core has at most `queue_depth` requests outstanding, and a
//! shard has room for that many parts of every core: no ring and no table ever overflows.
//!
//! # Ordering and durability
//!
//! As for any block device: requests that are outstanding together have no order, a flush covers
//! what had completed when it was submitted, on whichever core. A flush completes when it has on
//! every shard. A request over several stripes may be cut anywhere by a loss of power.

mod config;
mod core_channel;
mod error;
mod events;
mod extents;
mod fragmented;
mod handle;
mod open;
mod stripes;
pub(super) mod superblock;

pub use config::ShardedConfig;
pub use error::{ShardedError, SuperblockError};
pub use handle::{ShardHandle, ShardStats};
pub use open::Sharded;
pub use superblock::SuperblockHealth;
