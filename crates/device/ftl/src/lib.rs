//! Flash translation: a page-mapped, log-structured translation layer over any flash that can
//! program, read and erase. A drive with the block personality runs it over its own parallel units;
//! `pblk` runs the same code on the host, over vector commands (rule: one mechanism, two places).
//!
//! # Where to look
//!
//! [`Ftl`] is a composition of parts, each with private state and invariants of its own:
//!
//! * `requests`: queued writes and trims, and reads. `mapping`: the maps, and the map cache.
//! * `buffer`: the write buffer. `space`: chunks and lines, and where write units go.
//! * `gc`: garbage collection, its victim policies and the rate limiter. `health`: refresh and wear.
//! * `durability`: barriers, trims, checkpoints and the [`journal`].
//!
//! `ftl::pipeline` has the transactions that span several parts; `kick` there runs them. `recovery`
//! reads the flash after power-on, and `ftl::restore` builds an [`Ftl`] from its result. `check` defines
//! the report of a violated invariant.
//!
//! # The path of a write
//!
//! [`Ftl::write`] queues it; [`Ftl::kick`] admits its sectors into the user's ring as the
//! [`RateLimiter`] allows, points the map at the ring's slots and acknowledges. When a write unit is
//! full (or a flush pads it), `kick` picks a parallel unit of the open line that has room and calls
//! [`FlashBackend::program`]. [`Ftl::program_done`] makes it durable; once the unit's paired pages are
//! programmed too, the map moves from the slot to the physical sector and the slot is free again.
//!
//! # The path of a read
//!
//! [`Ftl::read`] looks every sector up once: a hole reads as zeros, a slot is copied, the rest goes
//! to [`FlashBackend::read`] in one call.
//!
//! # Sectors with names
//!
//! With [`SectorAddressing::Named`] there is no map: [`Ftl::write_named`] returns the location of a sector as its
//! [`SectorName`], and [`Ftl::read_named`] and [`Ftl::free_named`] take it. The owner of the names is told of
//! moves by [`Ftl::pop_moved`], and confirms them by [`Ftl::confirm_move`].

#![forbid(unsafe_code)]

mod buffer;
mod check;
mod config;
mod durability;
mod env;
mod flash;
mod for_rules;
mod ftl;
mod gc;
mod geometry;
mod health;
mod ids;
mod mapping;
mod named_oob;
mod names;
mod oob;
mod recovery;
mod requests;
mod space;
mod stats;

pub use buffer::named_slots::NamedSlot;
pub use buffer::write_ring::BufferEntry;
pub use check::{Part, Subject, Violation};
pub use config::{
    FtlConfig, GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind, SectorAddressing,
    VictimPolicyKind,
};
pub use durability::journal;
pub use durability::owner_state::OwnerChange;
pub use flash::{FlashBackend, OpToken, ReadAddress, ReadDest, WriteUnit};
pub use for_rules::{FtlFacts, rule_status, victim_lines_max};
pub use ftl::pipeline::control::{ControlChange, ControlError, ControlSettings};
pub use ftl::pipeline::stall::{Blocker, Stall};
pub use ftl::{Completion, Ftl, HostStream, NewFtlError};
pub use gc::limiter::RateLimiter;
pub use gc::limiter_history::LimiterSample;
pub use gc::steady_lines::{SteadyLine, SteadyLines, WriteClass};
pub use gc::victim::{CostBenefit, CostWear, Fifo, Greedy, VictimPolicy};
pub use gc::victim_lines::{ChosenLine, RelocationStream, VictimDecision, VictimLine, VictimLines};
pub use geometry::{CapacityError, CapacityPlan, JournalPlan, MapCachePlan};
pub use ids::{Lba, LbaRun, LineId, SlotId, WriteSeq};
pub use mapping::cache::map_cache::MapCacheStats;
pub use mapping::l2p::{L2p, L2pEntry, PHYSICAL_SECTORS_MAX};
pub use mapping::p2l::LOGICAL_SECTORS_MAX;
pub use named_oob::NamedOob;
pub use names::{
    FoundName, MovedSector, NamedSectorStats, NamedWrite, SectorName, SectorNameError,
};
pub use nvme::FlashGeometry;
pub use oob::Oob;
pub use recovery::{
    ChunkReport, DeviceL2pEntry, Recovery, RecoveryError, RecoveryOp, RecoveryOpKind,
    RecoveryOpResult, RecoveryStats,
};
pub use requests::batch::BatchWrite;
pub use space::active_pus::ActivePusError;
pub use space::line_refresh::ChunkEvent;
pub use stats::FtlStats;
