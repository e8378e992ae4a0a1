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
//! | `grant` | [`Pool::acquire`], [`Pool::release`], and why a target gets nothing ([`Denied`]) |
//! | [`fill`](Subsystem::fill) | all chunks at once, for a target that does not ask again |
//! | `reconcile` | what a drive reports against what the table says |
//! | `clean` | erasing between two owners |
//! | [`ration`](Ration) | how many chunks a target may hold, and take per second |
//! | [`wear`](Wear) | how worn chunks are, and which is handed out first |
//! | [`reserve`](Reserve) | where the table is on the media |
//! | `flash` | the subsystem's own commands |
//! | [`subsystem`](Subsystem) | a registered drive: all of this, polled |
//! | `turn` | one poll of it |
//! | [`registration`](Subsystem::register) | opening, registering and closing a drive |
//! | `reading` | what the window of its partition table holds |
//! | [`partition`](Subsystem::create) | making and removing targets |
//! | [`health`](Health) | bad chunks, wear, and what is left of the warranty |
//! | [`scrub`](Scrubber) | reading what was not written for long, and advice to move it |
//! | [`error`](CoreError) | what is refused, and who is in whose way |
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

mod bytes;
mod clean;
mod error;
mod fill;
mod flash;
mod grant;
mod health;
mod partition;
mod pool;
mod ration;
mod reading;
mod reconcile;
mod record;
mod registration;
mod reserve;
mod scrub;
mod snapshot;
mod subsystem;
mod table;
mod target;
mod turn;
mod wear;

pub use crate::ppa::Pu;
pub use crate::pu_set::{PuSet, PuSetError};

pub use clean::Erased;
pub use error::{CoreError, TableError};
pub use grant::{Denied, ReleaseError};
pub use health::{ChunkCounts, DriveCounters, Endurance, Health, WEAR_BINS, Warranty, WearSpread};
pub use pool::{Holding, Pool, PoolConfig, PoolStats};
pub use ration::{Limits, Rate, Ration};
pub use record::Record;
pub use reserve::{JOURNAL_OWNER, Reserve, WINDOW_CHUNKS_MAX};
pub use scrub::{Reason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearOf};
pub use subsystem::{CoreConfig, MoveChunk, Subsystem};
pub use table::{CHUNKS_MAX, ChunkEntry, ChunkUse, PU_MAX, TABLE_VERSION, TARGETS_MAX, Table};
pub use target::{
    NAME_BYTES_MAX, NewTarget, NoSuchKind, Sharing, Target, TargetId, TargetKind, TargetOptions,
    Uid, is_name,
};
pub use wear::{Heat, RATED_CYCLES, Wear, WearPolicy};
