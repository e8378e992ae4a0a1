//! [`ShardedError`]: why a drive cannot be opened by several cores.

use super::super::PblkError;

/// Why a drive cannot be opened as a sharded block device.
#[derive(Debug, thiserror::Error)]
pub enum ShardedError {
    /// No number of shards.
    #[error("a device of {shards} shards, but there are 1 to {max}, one for each core that writes")]
    Shards {
        /// Asked for.
        shards: u32,
        /// At most.
        max: u32,
    },
    /// No width of a stripe.
    #[error("stripe_sectors is {sectors}, but it must be a power of two up to {max}")]
    Stripe {
        /// Asked for.
        sectors: u32,
        /// At most.
        max: u32,
    },
    /// Not a queue pair for each shard.
    #[error("{queues} queue pairs for {shards} shards: each has one of its own")]
    Queues {
        /// Given.
        queues: usize,
        /// Needed.
        shards: u32,
    },
    /// More shards than there are chunks for.
    #[error("{shards} shards need {needed} chunks, but the drive has {chunks}")]
    TooFewChunks {
        /// Asked for.
        shards: u32,
        /// Chunks of the drive.
        chunks: u32,
        /// At least.
        needed: u32,
    },
    /// A stripe is more than a shard holds.
    #[error("a stripe has {stripe_sectors} sectors, but the smallest shard only {shard_sectors}")]
    StripeTooWide {
        /// Sectors of a stripe.
        stripe_sectors: u32,
        /// Logical sectors of the smallest shard.
        shard_sectors: u64,
    },
    /// The drive is not sharded as it should be.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The drive, or the label on it.
    #[error(transparent)]
    Drive(#[from] PblkError),
    /// A shard.
    #[error("shard {shard}: {source}")]
    Shard {
        /// Which.
        shard: u32,
        /// Why.
        #[source]
        source: PblkError,
    },
}

/// What a drive's label says, or does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Data, and no label.
    #[error(
        "{chunks} chunks are written, but no label says how the drive is sharded: it was not \
         written as a sharded device, or all {locations} places of its label are lost"
    )]
    Missing {
        /// Chunks that are written.
        chunks: u32,
        /// Where a label may be.
        locations: usize,
    },
    /// Another layout.
    #[error(
        "the drive has {shards} shards and stripes of {stripe_sectors} sectors, not {wanted_shards} \
         and {wanted_stripe_sectors}: open it as it was made, or reset its chunks"
    )]
    LayoutMismatch {
        /// Shards of the drive.
        shards: u32,
        /// Sectors of its stripes.
        stripe_sectors: u32,
        /// Shards asked for.
        wanted_shards: u32,
        /// Sectors of a stripe asked for.
        wanted_stripe_sectors: u32,
    },
    /// Another version.
    #[error("the label has version {found}, known is version {known}")]
    Version {
        /// On the drive.
        found: u16,
        /// Known here.
        known: u16,
    },
    /// A label of neither.
    #[error("none of {locations} chunks takes the label that says how the drive is sharded")]
    Unwritable {
        /// Where a label may be.
        locations: usize,
    },
}
