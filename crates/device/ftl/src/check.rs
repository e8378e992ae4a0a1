//! Consistency checks of the FTL's state.
//!
//! [`Ftl::check_invariants`](crate::Ftl::check_invariants) recomputes the counters and lists of
//! every part from the map, the write buffer and the lines, and reports the first difference by
//! name. It reads all of the state, so that its cost grows with the flash: tests call it, the data
//! path does not.
//!
//! Every part checks its own state in a `check_invariants` method. `ftl::pipeline::check` calls
//! these, and compares the parts with one another.

use crate::buffer::unit_id::UnitId;
use std::fmt;

use crate::ids::{FrameId, Lba, LineId, MapPageId};

use collections::BrokenInvariant;
use nvme::{ChunkId, PhysSector, PuId};

/// A part of the FTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Host requests: queued writes and trims, reads in progress, completions.
    Requests,
    /// Logical-to-physical and physical-to-logical maps, and the cache of translation pages.
    Mapping,
    /// The write buffer.
    Buffer,
    /// Chunks, lines, and the placement of write units.
    Space,
    /// Garbage collection.
    Gc,
    /// Flushes, trims, checkpoints and the journal.
    Durability,
    /// Bad chunks, refresh and wear leveling.
    Health,
    /// Recovery after a power cut: its scans, and the maps that it builds.
    Recovery,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Requests => "requests",
            Part::Mapping => "mapping",
            Part::Buffer => "buffer",
            Part::Space => "space",
            Part::Gc => "gc",
            Part::Durability => "durability",
            Part::Health => "health",
            Part::Recovery => "recovery",
        })
    }
}

/// The subject of an invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The part as a whole.
    Part,
    /// A logical sector.
    Lba(Lba),
    /// A physical sector.
    Sector(PhysSector),
    /// A chunk.
    Chunk(ChunkId),
    /// A parallel unit.
    Pu(PuId),
    /// A line.
    Line(LineId),
    /// A write unit of the buffer.
    Unit(UnitId),
    /// A ring of the write buffer.
    Ring(usize),
    /// A translation page.
    Page(MapPageId),
    /// A frame of the map cache.
    Frame(FrameId),
    /// A request or an operation, by its index in a table.
    Index(u32),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Part => f.write_str("the part"),
            Subject::Lba(n) => write!(f, "logical sector {}", n.get()),
            Subject::Sector(n) => write!(f, "physical sector {}", n.get()),
            Subject::Chunk(n) => write!(f, "{n}"),
            Subject::Pu(n) => write!(f, "parallel unit {}", n.get()),
            Subject::Line(n) => write!(f, "line {n}"),
            Subject::Unit(n) => write!(f, "unit {} of ring {}", n.index(), n.ring()),
            Subject::Ring(n) => write!(f, "ring {n}"),
            Subject::Page(n) => write!(f, "translation page {}", n.get()),
            Subject::Frame(n) => write!(f, "{n}"),
            Subject::Index(n) => write!(f, "entry {n}"),
        }
    }
}

/// An invariant that does not hold.
pub type Violation = BrokenInvariant<Part, Subject>;

collections::invariant_macros!($ crate::check::Violation, crate::check::Part, new);
#[expect(
    clippy::single_component_path_imports,
    reason = "it makes the macros visible outside of this file"
)]
pub(crate) use {require, require_eq};
