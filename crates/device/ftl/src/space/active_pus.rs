//! How many parallel units are written at a time, chosen at run time (LightNVM paper sections 4.2.1 and
//! 5.2: fewer active units mean that fewer reads find theirs writing, and less write bandwidth).
//!
//! Guarantees: takes effect with the next write unit, in lines that are open already too; nothing that
//! capacity, reserves or recovery go by changes, because lines stay as wide as they were configured:
//! only so many of an open line's chunks are written at a time, each to its end, then the next ones.
//! At the configured number, lines overlap at their ends as if it had never been changed.
//!
//! Chunks that were left half written when the number fell are gone on with in their line's order. Those
//! whose last units cannot be read before more are programmed behind them hold slots of the write buffer;
//! when they hold half of it they come first, and until their line is full up to as many of them are
//! written beside the number.

/// No limit but the line's: the number is the configured one.
pub(crate) const WIDTH_UNLIMITED: u32 = u32::MAX;

/// More parallel units than the layer was configured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requested} active parallel units, but the layer was opened with {max}: allowed are 1 to {max}, or \
     0 for all of these"
)]
pub struct ActivePusError {
    /// Asked for.
    pub requested: u32,
    /// Width that reserves and capacity were computed for.
    pub max: u32,
}
