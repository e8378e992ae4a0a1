//! The media manager of a drive: its partition table, chunk ownership, and the health of the flash
//! ([LightNVM17 §4.1]; [Thesis15 ch. 6 §4.2], "Common Services").
//!
//! # States of a chunk
//!
//! ```text
//!               granted (durable) ──▶ acquired ────▶ released, erased ──┐
//!   free ◀──────────────────────────────────────────────────────────────┘
//!    ▲                                   └──▶ released, or its target removed
//!    └── erased by the media manager ◀── dirty ◀┘
//!        (recorded afterwards)
//! ```
//!
//! Bad chunks leave this cycle for good. An exclusive target acquires all free chunks of its
//! parallel units when it is created, and keeps them.

#![forbid(unsafe_code)]

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

pub use ocssd::ppa::PuIndex;
pub use ocssd::ppa::{PuSet, PuSetError};

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
