//! [`CacheViolation`]: an invariant of a block cache that does not hold.

use std::fmt;

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {invariant} is broken for {subject}: expected {expected}, found {found}")]
pub struct CacheViolation {
    /// The part whose invariant it is.
    pub part: CachePart,
    /// The invariant's name.
    pub invariant: &'static str,
    /// The frame, block, request or command for which it does not hold.
    pub subject: String,
    /// The value, or the bound, that the invariant requires.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

impl CacheViolation {
    #[cold]
    pub(crate) fn new(
        part: CachePart,
        invariant: &'static str,
        subject: impl fmt::Display,
        expected: impl fmt::Debug,
        found: impl fmt::Debug,
    ) -> CacheViolation {
        let subject = subject.to_string();
        let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
        CacheViolation { part, invariant, subject, expected, found }
    }
}

/// Returns a [`CacheViolation`] from the calling function unless a condition holds.
macro_rules! require {
    ($holds:expr, $part:ident, $invariant:expr, $subject:expr, $expected:expr, $found:expr) => {
        if !$holds {
            return Err($crate::cache::invariants::CacheViolation::new(
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
