//! A small crash-safe store of files on any block device: extents, a metadata journal, checkpoints, fsck.
//!
//! Under `sluice exec`, whose programs' files live on a Sluice volume. The on-media format, with the order
//! in which things become durable, is `docs/format/volume.md`.
//!
//! | file | noun |
//! |---|---|
//! | [`store`](Store) | files on a device, for one owner: submit, poll, reap |
//! | [`request`](Request) | what is asked, and how it ended |
//! | [`options`](Options), [`stats`](Stats), [`error`](Error) | how a volume is opened; what was done; what went wrong |
//! | [`inode`](Stat), [`name`](Name) | what is known of a file; one component of a path |
//! | `core` | what is in memory and under way; what all steps share |
//! | `names`, `read`, `write`, `shape`, `sync` | the steps of requests |
//! | `tree`, `extents`, `live` | inodes, entries and extents in memory; what is not recorded of them |
//! | `frames`, `cached` | blocks of files in memory |
//! | `writeback` | buffered data on its way to the device |
//! | `log` | buffered data that goes into the journal first |
//! | `space` | which blocks are free |
//! | `commit`, `journal` | transactions, and the sectors that they are written to |
//! | `checkpoint`, `snapshot` | all metadata at once, after which the journal before is not needed |
//! | `record` | what both are made of |
//! | [`superblock`](Superblock), [`layout`](Layout) | what a volume is; where everything is |
//! | [`opening`](Opening), `loading` | a volume on its way to being a store; reading everything |
//! | `parts`, `replay` | data that the journal has; bringing it to where it belongs |
//! | `check`, [`finding`](Finding) | whether everything fits together; what does not |
//! | [`mod@format`], [`fsck`](fsck::fsck) | making a volume; looking at one, and repairing it |
//! | [`session`](Session) | a store that waits: for tools and tests |
//! | `flights`, `bytes` | transfers at the device; numbers in bytes |
//!
//! # The path of an append and its sync
//!
//! [`Op::Append`] copies from the caller's registered memory into the frame of the file's last block and
//! ends. [`Op::Sync`] puts the bytes and the new size into the running transaction, which is closed and
//! written to the journal with FUA: one write of the device. Syncs that come meanwhile share the next
//! transaction. The block is written in place later, through a staging buffer, with others. What is more
//! than four blocks is written in place at once, and the transaction when that has ended: two writes of the
//! device, one after the other. What was overwritten in place, without a new size or block, is one.
//!
//! # Limits
//!
//! One owner per volume, one name per inode, no data checksums. All metadata is in memory: volumes hold
//! tens of thousands of files.

#![forbid(unsafe_code)]

mod allocator;
mod blocking_volume;
mod check;
mod checkpoint;
mod codec;
mod commit;
mod core;
mod data_journal;
mod device_io;
mod error;
mod extents;
pub mod format;
pub mod fsck;
mod inode;
mod inode_state;
mod journal;
mod journaled_blocks;
mod layout;
mod metadata_reader;
mod mount;
mod name;
mod namespace;
mod options;
mod page_cache;
mod page_lookup;
mod problem;
mod read;
mod record;
mod replay;
mod request;
mod snapshot;
mod stats;
mod superblock;
mod sync;
mod tree;
mod truncate;
mod volume;
mod write;
mod writeback;

pub use blocking_volume::BlockingVolume;
pub use error::{Error, OpenError};
pub use format::{FormatOptions, format};
pub use fsck::{FsckOptions, FsckReport, fsck};
pub use inode::{Access, Ino, Kind, Stat, StatFs, Time, Times};
pub use layout::{BLOCK, Layout};
pub use mount::{Mount, MountStatus};
pub use name::Name;
pub use options::Options;
pub use problem::FsckProblem;
pub use request::{Buffer, Op, OpCompletion, OpResult, Request, SetAttr};
pub use stats::Stats;
pub use superblock::{Owner, Superblock, VERSION};
pub use volume::{DirEntry, QueueFull, Volume};

/// Bytes of a file at most: 16 TiB less a block.
pub const FILE_BYTES_MAX: u64 = (u32::MAX as u64) * BLOCK as u64;
