//! A small crash-safe file store on any block device: extents, a metadata journal, checkpoints,
//! fsck. It holds the files of programs under `sluice exec`.
//!
//! # The path of an append and its sync
//!
//! [`VolumeOp::Append`] copies from the caller's registered memory into the page of the file's last
//! block, and completes. [`VolumeOp::Sync`] adds the bytes and the new size to the running transaction,
//! which is closed and written to the journal with FUA: one device write. Syncs that arrive
//! meanwhile share the next transaction. The block is written in place later, together with others,
//! through a staging buffer.
//!
//! More than four blocks are written in place at once, followed by the transaction: two device
//! writes in sequence. An overwrite in place that changes neither size nor blocks needs one.
//!
//! # Barriers
//!
//! [`VolumeOp::Barrier`] orders changes without a wait: it completes at once, and becomes durable
//! later. What a power cut leaves is always the state at a barrier, with some of the changes up to the
//! next one (`pipeline/barrier.rs`).
//!
//! # Limits
//!
//! One owner per volume, one name per inode, no data checksums. All metadata is in memory: volumes
//! hold tens of thousands of files.
//!
//! # References
//!
//! docs/format/volume.md (on-media format, and the order in which data becomes durable).

#![forbid(unsafe_code)]

mod blocking_volume;
mod device_io;
mod error;
pub mod format;
pub mod fsck;
mod inode_state;
mod invariants;
mod metadata;
mod on_media;
mod options;
mod parts;
mod pipeline;
mod recovery;
mod request;
mod stats;
mod volume;

pub use blocking_volume::BlockingVolume;
pub use error::{Error, VolumeOpenError};
pub use format::{FormatOptions, format};
pub use fsck::problem::FsckProblem;
pub use fsck::{FsckOptions, FsckReport, fsck};
pub use invariants::{VolumePart, VolumeViolation};
pub use metadata::inode::{Ino, InodeKind, InodePermissions, Stat, StatFs, Time, Times};
pub use metadata::name::Name;
pub use on_media::layout::{BLOCK, VolumeLayout};
pub use on_media::superblock::{Owner, Superblock, VERSION};
pub use options::Options;
pub use recovery::mount::{Mount, MountStatus};
pub use request::{OpResult, RequestBuffer, SetAttr, VolumeCompletion, VolumeOp, VolumeRequest};
pub use stats::Stats;
pub use volume::{DirEntry, QueueFull, Volume};

/// Maximum bytes of a file: 16 TiB less a block.
pub const FILE_BYTES_MAX: u64 = (u32::MAX as u64) * BLOCK as u64;
