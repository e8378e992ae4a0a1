//! [`SteadyState`]: what random writes of a translation layer come to in the long run, in closed form.
//!
//! The published analysis ([`greedy`]) is of physical sectors that hold data. Those are all sectors of
//! lines, less the ones that are free on average. How many are free, the layer's rate limiter says: users
//! write at the share of the write bandwidth that it gives them, which is one over the write amplification
//! W when nobody waits for anything else. So in steady state
//!
//! ```text
//! free      = stop + (start − stop) / W       rate_limiter = "share"
//! free      = (stop + start) / 2              rate_limiter = "pid", which holds it there
//! effective = (lines × line sectors − free) / (logical + map sectors) − 1
//! W         = the analysis at the effective over-provisioning
//! ```
//!
//! with `stop` and `start` of [`ftl::CapacityPlan::limiter_watermarks`]. The nominal over-provisioning counts no line
//! that is held back. On a drive of a few dozen lines this is far off: of five lines held back some two
//! hold data most of the time, and those are spare space like any other.
//!
//! To W come the map's pages, all of which are written between two checkpoints, and the metadata of lines.

use ftl::{FtlConfig, RateLimiterKind, VictimPolicyKind};

use super::greedy;
use crate::scenario::Capacity;

/// Steady state of a layer under uniform random writes that it never waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyState {
    /// Physical sectors that hold data over sectors that can be mapped, minus 1.
    pub effective_spare: f64,
    /// Lines that are free on average, open ones in proportion to their room.
    pub free_lines: f64,
    /// Sectors that users write and garbage collection moves, per sector that users write.
    pub data_write_amplification: f64,
    /// Sectors programmed per sector that users write: with the map's pages and the metadata of lines.
    pub write_amplification: f64,
}

impl SteadyState {
    /// Steady state of this layer; `None` without spare space, where there is none. `unit_sectors` is
    /// the write unit.
    pub fn new(ftl: &FtlConfig, capacity: &Capacity, unit_sectors: u32) -> Option<SteadyState> {
        let all = (capacity.lines * capacity.line_sectors) as f64;
        let mapped = (capacity.logical_sectors + capacity.map_sectors).max(1) as f64;
        let (stop, start) =
            (capacity.low_watermark_sectors as f64, capacity.high_watermark_sectors as f64);
        let free_at = |amplification: f64| match ftl.rate_limiter {
            RateLimiterKind::Proportional => stop + (start - stop) / amplification,
            RateLimiterKind::Pid { .. } => (stop + start) / 2.0,
        };
        let spare_at = |amplification: f64| (all - free_at(amplification)) / mapped - 1.0;
        let moved_at = |spare: f64| match ftl.victim_policy {
            VictimPolicyKind::Fifo => greedy::fifo(spare),
            // Where every sector is as likely to be written as any other, age says nothing, and
            // cost-benefit chooses much as greedy does; and all wear alike, so that cost does, too.
            VictimPolicyKind::Greedy
            | VictimPolicyKind::CostBenefit
            | VictimPolicyKind::CostWear => greedy::greedy(spare, capacity.line_sectors),
        };
        // The more is amplified the less is free, and the more spare there is: the two sides meet once.
        let (mut low, mut high) = (1.0, 1e6);
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            match moved_at(spare_at(middle)) {
                Some(moved) if moved <= middle => high = middle,
                _ => low = middle,
            }
        }
        let effective_spare = spare_at(high);
        let moved = moved_at(effective_spare)?;
        let interval = capacity.checkpoint_sectors.max(1) as f64;
        // With an interval that was asked for, what garbage collection moves counts as well.
        let users = if ftl.checkpoint_sectors == 0 { interval } else { interval / moved };
        let pages = capacity.map_sectors as f64 / users;
        let of_line = f64::from(capacity.line_metadata_units * unit_sectors);
        let metadata = 1.0 + of_line / capacity.line_sectors.max(1) as f64;
        Some(SteadyState {
            effective_spare,
            free_lines: free_at(high) / capacity.line_sectors.max(1) as f64,
            data_write_amplification: moved,
            write_amplification: (moved + pages) * metadata,
        })
    }
}
