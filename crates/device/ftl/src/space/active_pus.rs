//! Number of parallel units that are written at a time, chosen at run time. Fewer active units mean
//! that fewer reads wait for programs, and less write bandwidth [LightNVM17 §4.2.1, §5.2].
//!
//! Guarantees: a change takes effect with the next write unit, also in open lines. Capacity,
//! reserves and recovery do not depend on it, because lines stay as wide as configured: only that
//! many chunks of an open line are written at a time, each to its end, then the next ones. At the
//! configured number, lines overlap at their ends as if the number had never been changed.
//!
//! Chunks that were partly written when the number decreased are continued in the order of their
//! line. Some of them hold slots of the write buffer, because their last units are not readable
//! before more is programmed behind them. When these hold half of the buffer, they go first, and
//! until their line is full up to as many of them are written in addition to the number.

/// No limit but the line's: the number is the configured one.
pub(crate) const WIDTH_UNLIMITED: u32 = u32::MAX;

/// More parallel units than configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requested} active parallel units, but the layer was opened with {max}: allowed are 1 to {max}, or \
     0 for all of these"
)]
pub struct ActivePusError {
    /// The requested number.
    pub requested: u32,
    /// Width that reserves and capacity were computed for.
    pub max: u32,
}
