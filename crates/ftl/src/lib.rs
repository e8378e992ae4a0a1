//! Flash translation: a page-mapped, log-structured translation layer over any flash that can
//! program, read and erase. A drive with the block personality runs it over its own parallel units;
//! `pblk` runs the same code on the host, over vector commands (rule: one mechanism, two places).
//!
//! | file | noun |
//! |---|---|
//! | [`config`](FtlConfig) | over-provisioning, victim policy, streams, limits |
//! | [`shape`](Shape) | what the layer knows of the flash; capacity |
//! | [`flash`](Flash) | the seam to the flash below, and to the memory of requests |
//! | [`oob`](Oob) | what is written beside every sector, and recovery reads back |
//! | [`map`](Map) | logical to physical |
//! | `frames` | the memory for pages of a map that does not fit it |
//! | `fetch` | pages of the map on their way from the media |
//! | `paging` | who waits for pages of the map, and which go |
//! | `salvage` | rebuilds pages of the map that cannot be read |
//! | `p2l_reader` | reads for that what was written in lines |
//! | `counting` | counts after a recovery what pages on the media say |
//! | `reverse` | physical to logical: what was written where |
//! | `map_page` | a piece of the map as it is on the media |
//! | `issued` | the numbers of write units, and which of them are under way |
//! | [`write_ring`](Entry) | the write buffer: slots between acknowledgement and the media |
//! | `lines` | the unit of reclamation: one chunk on each active parallel unit |
//! | `open_line` | a line that is being written: which of its chunks takes the next write unit |
//! | `chunk` | what of a chunk is programmed, and what of that can be read |
//! | `line_meta` | what a line says of itself, in its first and last write units |
//! | `metadata` | writes it |
//! | `victim_p2l` | what was written in a victim, read back from the media |
//! | [`victim`](VictimPolicy) | which line is reclaimed next |
//! | [`limiter`](RateLimiter) | how users and garbage collection share the flash |
//! | `pid` | the controller that may decide that |
//! | [`curve`](LimiterSample) | what the limiter did, as a bounded history |
//! | [`ftl`](Ftl) | the layer: requests in, flash operations out |
//! | `admit` | writes and trims into the write buffer and the map |
//! | `read` | users' reads |
//! | `program` | where write units go, and what happens when a program ends |
//! | `again` | units that are written once more: failed programs, chunks that have gone, lines that end |
//! | `checkpoint` | brings the map to the media piece by piece |
//! | `snapshot` | what the layer keeps in its journal |
//! | [`journal`] | a mirrored journal with snapshots, on chunks of its own |
//! | `device_l2p` | what is left to do when the drive keeps the map |
//! | `durable` | flushes, padding, map pages |
//! | `collect` | garbage collection |
//! | [`refresh`](ChunkEvent) | lines that are moved for their health; chunks that have gone; static wear levelling |
//! | `loss` | what is lost is known before a flush ends |
//! | `yielding` | what garbage collection keeps back for users' reads |
//! | [`active`](ActivePusError) | how many parallel units are written at a time, at run time |
//! | [`recover`](Recovery) | the map from what is on the media after power was lost |
//! | [`stats`](FtlStats) | what was written for whom |
//!
//! # The path of a write
//!
//! [`Ftl::write`] queues it; [`Ftl::kick`] admits its sectors into the user's ring as the
//! [`RateLimiter`] allows, points the map at the ring's slots and acknowledges. When a write unit is
//! full (or a flush pads it), `kick` picks a parallel unit of the open line that has room and calls
//! [`Flash::program`]. [`Ftl::program_done`] makes it durable; once the unit's paired pages are
//! programmed too, the map moves from the slot to the physical sector and the slot is free again.
//!
//! # The path of a read
//!
//! [`Ftl::read`] looks every sector up once: a hole reads as zeros, a slot is copied, the rest goes
//! to [`Flash::read`] in one call.

#![forbid(unsafe_code)]

mod active_pus;
mod admit;
mod check;
mod checkpoint;
mod chunk;
mod config;
mod defer;
mod device_l2p;
mod dispatch;
mod fetch;
mod finish_line;
mod flash;
mod flush;
mod frames;
mod ftl;
mod gc;
mod geometry;
pub mod journal;
mod l2p;
mod limiter;
mod limiter_history;
mod line_meta;
mod line_meta_writer;
mod lines;
mod loss;
mod map_cache;
mod oob;
mod open_line;
mod p2l;
mod p2l_reader;
mod pid;
mod read;
mod rebuild;
mod reconcile;
mod recovery;
mod redispatch;
mod refresh;
mod sequence;
mod snapshot;
mod stats;
mod translation_page;
mod victim;
mod victim_p2l;
mod write_ring;

pub use active_pus::ActivePusError;
pub use check::{Part, Subject, Violation};
pub use config::{
    FtlConfig, GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind, VictimPolicyKind,
};
pub use flash::{FlashBackend, OpToken, ReadDest, WriteUnit};
pub use ftl::{Completion, Ftl, NewFtlError};
pub use geometry::{CapacityError, CapacityPlan, FlashGeometry};
pub use l2p::{L2p, L2pEntry};
pub use limiter::RateLimiter;
pub use limiter_history::LimiterSample;
pub use map_cache::MapCacheStats;
pub use oob::Oob;
pub use recovery::{
    ChunkReport, Recovery, RecoveryError, RecoveryOp, RecoveryOpKind, RecoveryOpResult,
    RecoveryStats,
};
pub use refresh::ChunkEvent;
pub use stats::FtlStats;
pub use victim::{CostBenefit, CostWear, Fifo, Greedy, VictimPolicy};
pub use write_ring::BufferEntry;
