//! [`ShardedError`]: reasons why a drive cannot be opened as a sharded device.

use super::super::PblkError;

/// Why a drive cannot be opened as a sharded block device.
#[derive(Debug, thiserror::Error)]
pub enum ShardedError {
    /// The number of shards is out of range.
    #[error("shards is {shards}, but it must be 1 to {max}: use one for each core that writes")]
    Shards {
        /// Number requested.
        shards: u32,
        /// Maximum.
        max: u32,
    },
    /// The stripe size is invalid.
    #[error("stripe_sectors is {sectors}, but it must be a power of two up to {max}")]
    Stripe {
        /// Sectors requested.
        sectors: u32,
        /// Maximum in sectors.
        max: u32,
    },
    /// The number of queue pairs differs from the number of shards.
    #[error("{queues} queue pairs for {shards} shards: each shard needs its own")]
    Queues {
        /// Queue pairs given.
        queues: usize,
        /// Queue pairs needed.
        shards: u32,
    },
    /// The drive has too few chunks for this number of shards.
    #[error("{shards} shards need {needed} chunks, but the drive has {chunks}")]
    TooFewChunks {
        /// Number requested.
        shards: u32,
        /// Number of chunks of the drive.
        chunks: u32,
        /// Number of chunks needed.
        needed: u32,
    },
    /// A stripe is larger than the smallest shard.
    #[error("a stripe has {stripe_sectors} sectors, but the smallest shard only {shard_sectors}")]
    StripeTooWide {
        /// Stripe size in sectors.
        stripe_sectors: u32,
        /// Logical sectors of the smallest shard.
        shard_sectors: u64,
    },
    /// The superblock is missing or describes another layout.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The drive, or a command on its superblock, failed.
    #[error(transparent)]
    Drive(#[from] PblkError),
    /// A shard cannot be opened.
    #[error("shard {shard}: {source}")]
    Shard {
        /// Index of the shard.
        shard: u32,
        /// Cause.
        #[source]
        source: PblkError,
    },
}

/// Why the superblock of a drive cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// The drive has data but no superblock.
    #[error(
        "{chunks} chunks are written, but the drive has no superblock: it was not written as a \
         sharded device, or all {locations} locations of the superblock are unreadable"
    )]
    Missing {
        /// Number of chunks that are written.
        chunks: u32,
        /// Number of locations of the superblock.
        locations: usize,
    },
    /// The drive was created with another layout.
    #[error(
        "the drive has {shards} shards and stripes of {stripe_sectors} sectors, not {wanted_shards} \
         and {wanted_stripe_sectors}: open it with its own layout, or reset its chunks"
    )]
    LayoutMismatch {
        /// Number of shards of the drive.
        shards: u32,
        /// Stripe size of the drive in sectors.
        stripe_sectors: u32,
        /// Number of shards requested.
        wanted_shards: u32,
        /// Stripe size requested, in sectors.
        wanted_stripe_sectors: u32,
    },
    /// The drive was written by a pblk without shards.
    #[error(
        "the drive was written without shards, not by {wanted_shards} of them: open it without \
         shards, or reset its chunks"
    )]
    Unsharded {
        /// Number of shards requested.
        wanted_shards: u32,
    },
    /// The format version is not supported.
    #[error("the superblock has version {found}, but only versions up to {known} are supported")]
    Version {
        /// Version on the drive.
        found: u16,
        /// Newest supported version.
        known: u16,
    },
    /// No location accepts the superblock.
    #[error("the superblock cannot be written to any of its {locations} chunks")]
    Unwritable {
        /// Number of locations of the superblock.
        locations: usize,
    },
}
