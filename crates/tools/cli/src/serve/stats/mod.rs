//! Statistics of a served path or drive: since the start ([`LiveStats`]), and of an interval
//! ([`interval`]).

pub mod interval;
mod live_stats;

pub use live_stats::{ActivityCounts, DriveReading, LiveStats, to_json};
