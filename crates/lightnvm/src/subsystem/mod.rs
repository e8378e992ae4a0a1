//! The subsystem: a drive's partition table, who owns which chunk, and the health of the flash
//! (LightNVM paper section 4.1; thesis section 6.4.2, "Common Services").
//!
//! | file | noun |
//! |---|---|
//! | [`target`](Target) | an entry of the table, and what is asked for when one is made |
//! | [`table`](Table) | the partition table as pure data |
//! | [`record`](Record) | one change of it |
//! | `snapshot`, `bytes` | how both are encoded: `docs/format/partition-table.md` |
//! | [`pool`](Pool) | the chunks and who has them, in memory |
//! | `grant` | [`Pool::acquire`], [`Pool::release`], and why a target gets nothing ([`AcquireError`]) |
//! | [`fill`](MediaManager::allocate_all) | all chunks at once, for a target that does not ask again |
//! | `reconcile` | what a drive reports against what the table says |
//! | `clean` | erasing between two owners |
//! | [`ration`](ChunkQuota) | how many chunks a target may hold, and take per second |
//! | [`wear`](Wear) | how worn chunks are, and which is handed out first |
//! | [`reserve`](TableWindow) | where the table is on the media |
//! | `flash` | the subsystem's own commands |
//! | [`subsystem`](MediaManager) | a registered drive: all of this, polled |
//! | `turn` | one poll of it |
//! | [`registration`](MediaManager::register) | opening, registering and closing a drive |
//! | `reading` | what the window of its partition table holds |
//! | [`partition`](MediaManager::create) | making and removing targets |
//! | [`health`](Health) | bad chunks, wear, and what is left of the warranty |
//! | [`scrub`](Scrubber) | reading what was not written for long, and advice to move it |
//! | [`error`](MediaManagerError) | what is refused, and who is in whose way |
//!
//! # A chunk's life
//!
//! ```text
//!               granted (durable) ──▶ handed out ──▶ released, erased ──┐
//!   free ◀──────────────────────────────────────────────────────────────┘
//!    ▲                                     └──▶ released, or its target removed
//!    └── erased by the core (recorded after) ◀── dirty ◀┘
//! ```
//!
//! What is bad leaves the circle for good. An exclusive target is handed all free chunks of its
//! parallel units when it is made, and keeps them.

mod allocate_all;
mod bytes;
mod chunk_allocator;
mod chunk_quota;
mod erase;
mod error;
mod grant;
mod health;
mod manager_io;
mod media_manager;
mod partition;
mod reconcile;
mod record;
mod registration;
mod scrub;
mod snapshot;
mod step;
mod table;
mod table_probe;
mod table_window;
mod target;
mod wear;

pub use crate::ppa::PuIndex;
pub use crate::pu_set::{PuSet, PuSetError};

pub use chunk_allocator::{ChunkAllocator, ChunkAllocatorConfig, ChunkAllocatorStats, Holdings};
pub use chunk_quota::{ChunkQuota, ChunkRate, QuotaLimits};
pub use erase::EraseOutcome;
pub use error::{MediaManagerError, TableError};
pub use grant::{AcquireError, ReleaseError};
pub use health::{
    ChunkCounts, DriveCounters, DriveHealth, Endurance, WEAR_BINS, Warranty, WearSpread,
};
pub use media_manager::{MediaManager, MediaManagerConfig, RelocationRequest};
pub use record::TableRecord;
pub use scrub::{RelocationReason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearInfo};
pub use table::{CHUNKS_MAX, ChunkEntry, ChunkUse, PU_MAX, TABLE_VERSION, TARGETS_MAX, Table};
pub use table_window::{JOURNAL_OWNER, TableWindow, WINDOW_CHUNKS_MAX};
pub use target::{
    NAME_BYTES_MAX, NewTarget, ParseTargetKindError, Sharing, Target, TargetId, TargetKind,
    TargetOptions, Uid, is_name,
};
pub use wear::{DataTemperature, RATED_CYCLES, Wear, WearPolicy};
