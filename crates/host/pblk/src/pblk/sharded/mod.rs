//! A block device that is written by several cores. In [LightNVM17 §4.2.1], writers on several
//! cores share one write buffer with a single consumer; here each core has a write buffer of its
//! own.
//!
//! The logical space is striped over *shards*. A shard is an independent [`Pblk`](super::Pblk) with
//! its own map, write buffer, lines, journal and queue pair, on its own chunks. Each shard is owned
//! by one core, so reads and writes neither take a lock nor share a write context. Request
//! fragments for other cores' shards go to their owners through single-producer, single-consumer
//! rings; the replies return through such rings as well.
//!
//! # Limits
//!
//! A contiguous range of the device is a contiguous range of every shard. A request of any length
//! thus has at most one fragment per shard, whose location in memory is given by its
//! [`StripeMap`](super::stripe_layout::StripeMap). A core has at most `queue_depth` outstanding
//! requests, and a shard accepts that many fragments of every core. No ring and no table overflows.
//!
//! # Ordering and durability
//!
//! As for any block device, concurrent requests are not ordered. A flush covers all requests, of
//! any core, that had completed when it was submitted; it completes when every shard has flushed. A
//! power cut may leave any subset of the stripes of a request durable.

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
pub(super) use open::find_shards;
pub use superblock::SuperblockHealth;
