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

/// Returns a [`CacheViolation`] from the calling function unless a condition holds.
macro_rules! require {
    ($holds:expr, $part:ident, $invariant:expr, $subject:expr, $expected:expr, $found:expr) => {
        if !$holds {
            return Err($crate::cache::invariants::CacheViolation::of_values(
                $crate::cache::invariants::CachePart::$part,
                $invariant,
                $subject,
                $expected,
                $found,
            ));
        }
    };
}

/// Returns a [`CacheViolation`] from the calling function unless two values are equal.
macro_rules! require_eq {
    ($part:ident, $invariant:expr, $subject:expr, $expected:expr, $found:expr) => {
        let (expected, found) = ($expected, $found);
        $crate::cache::invariants::require!(
            expected == found,
            $part,
            $invariant,
            $subject,
            expected,
            found
        );
    };
}

pub(super) use {require, require_eq};
