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

mod chunks;
mod error;
mod health;
mod manager;
mod table;

pub use ocssd::ppa::{PuId, PuSet, PuSetError};

pub use chunks::allocator::{ChunkAllocator, ChunkAllocatorConfig, ChunkAllocatorStats, Holdings};
pub use chunks::erase::EraseOutcome;
pub use chunks::grant::{AcquireError, ReleaseError};
pub use chunks::quota::{ChunkQuota, ChunkRate, QuotaLimits};
pub use error::{MediaManagerError, TableError};
pub use health::drive_health::{
    ChunkCounts, DriveCounters, DriveHealth, Endurance, WEAR_BINS, Warranty, WearSpread,
};
pub use health::scrub::{RelocationReason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearInfo};
pub use health::wear::{DataTemperature, RATED_CYCLES, WearPolicy, WearTable};
pub use manager::{MediaManager, MediaManagerConfig, RelocationRequest};
pub use table::record::TableRecord;
pub use table::target::{
    NAME_BYTES_MAX, NewTarget, ParseTargetKindError, Sharing, TargetEntry, TargetId, TargetKind,
    TargetOptions, Uid, is_name,
};
pub use table::window::{JOURNAL_OWNER, TableWindow, WINDOW_CHUNKS_MAX};
pub use table::{CHUNKS_MAX, ChunkEntry, ChunkUse, PU_MAX, TABLE_VERSION, TARGETS_MAX, Table};
