//! [`CacheViolation`]: an invariant of a block cache that does not hold.

use std::fmt;

use collections::BrokenInvariant;

/// A part of a block cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePart {
    /// Requests in flight.
    Requests,
    /// Frames and the blocks that they hold.
    Blocks,
    /// Requests that wait for a frame's transfer, or for a frame.
    Waiters,
    /// Commands to the device.
    Commands,
    /// Dirty blocks and flushes.
    Writeback,
    /// Requests that bypass the frames.
    Bypass,
}

impl fmt::Display for CachePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CachePart::Requests => "requests",
            CachePart::Blocks => "blocks",
            CachePart::Waiters => "waiters",
            CachePart::Commands => "commands",
            CachePart::Writeback => "writeback",
            CachePart::Bypass => "bypass",
        })
    }
}

/// An invariant that does not hold.
pub type CacheViolation = BrokenInvariant<CachePart>;

collections::invariant_macros!($ crate::cache::invariants::CacheViolation, crate::cache::invariants::CachePart, of_values);
#[expect(
    clippy::single_component_path_imports,
    reason = "it makes the macros visible outside of this file"
)]
pub(super) use {require, require_eq};
