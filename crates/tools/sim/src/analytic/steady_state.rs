//! [`SteadyState`]: closed form of the long-run write amplification of an FTL under uniform random
//! writes.
//!
//! The published analysis ([`greedy`]) assumes physical sectors that hold data. These are all
//! sectors of lines, except those of lines that are free on average. The rate limiter determines
//! the number of free lines. Hosts get their share of the write bandwidth, which is 1/W at write
//! amplification W if nothing else limits them. Thus in steady state
//!
//! ```text
//! free      = stop + (start − stop) / W       proportional limiter
//! free      = (stop + start) / 2              PID limiter, which controls to this value
//! effective = (lines × line sectors − free) / (logical + map sectors) − 1
//! W         = the analysis at the effective over-provisioning
//! ```
//!
//! where `stop` and `start` are [`ftl::CapacityPlan::limiter_watermarks`]. The nominal
//! over-provisioning counts no reserved lines. On a drive of a few dozen lines the difference is
//! large: of five reserved lines, about two hold data most of the time, and these are spare space
//! as well.
//!
//! The map pages, which are all written between two checkpoints, and the metadata of lines increase W.

use ftl::{FtlConfig, RateLimiterKind, VictimPolicyKind};
use scenario::Capacity;

use super::greedy;

/// Steady state of an FTL under uniform random writes that are never idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyState {
    /// Effective spare space: physical sectors that hold data over sectors that can be mapped,
    /// minus 1.
    pub effective_spare: f64,
    /// Mean number of free lines; open lines count in proportion to their free capacity.
    pub free_lines: f64,
    /// Sectors written by hosts and relocated by GC, per host sector.
    pub data_write_amplification: f64,
    /// Sectors programmed per host sector, including map pages and line metadata.
    pub write_amplification: f64,
}

impl SteadyState {
    /// Returns the steady state of an FTL; `None` without spare space. `unit_sectors` is the size
    /// of the write unit.
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
            // Under uniform writes, age carries no information, so cost-benefit selects almost as
            // greedy does. Wear is even, so the cost policy does, too.
            VictimPolicyKind::Greedy
            | VictimPolicyKind::CostBenefit
            | VictimPolicyKind::CostWear => greedy::greedy(spare, capacity.line_sectors),
        };
        // A larger amplification means fewer free lines and thus more spare space: there is exactly
        // one solution.
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
        // A configured checkpoint interval also counts the sectors that GC relocates.
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
