//! [`VictimLines`]: the facts about lines from which the owner of the flash may choose a victim in
//! place of the FTL's policy.

use super::candidates::VictimCandidates;
use crate::ids::LineId;
use crate::space::lines::LineTable;
use serde::{Deserialize, Serialize};

/// Where the valid sectors of a line are relocated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RelocationStream {
    /// To lines with the sectors of other victims.
    Gc,
    /// To lines without other data, on the free chunks with the most wear, as static wear leveling does.
    /// One line at a time is relocated so; the sectors of others go to [`RelocationStream::Gc`].
    Cold,
}

/// A line that is relocated and erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChosenLine {
    /// The line.
    pub line: LineId,
    /// Where its valid sectors go.
    pub stream: RelocationStream,
    /// Write units that may be read or programmed at a time, at least one; `None` for
    /// [`gc_queue_depth_units`](crate::FtlConfig::gc_queue_depth_units), and for one while no space is
    /// needed. In the lower half between the watermarks the number grows as the free space shrinks.
    pub units_in_flight: Option<u32>,
}

impl ChosenLine {
    /// Creates the choice of a line whose sectors go to the lines of garbage collection.
    pub const fn new(line: LineId) -> ChosenLine {
        ChosenLine { line, stream: RelocationStream::Gc, units_in_flight: None }
    }
}

/// The choice of the next victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimDecision {
    /// The policy of the configuration.
    Policy,
    /// This line is the victim. If it is none of [`VictimLines::ids`], there is no victim now.
    Line(ChosenLine),
    /// There is no victim now. The FTL retries when it next works while space is needed.
    None,
}

/// Facts about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimLine {
    /// Sectors that it holds when full.
    pub sectors: u32,
    /// Valid sectors as the policies count them: those of map pages count four times, up to one less
    /// than the line has.
    pub valid: u32,
    /// Lines that were closed since this one.
    pub age: u64,
    /// Erases of its chunks, on average.
    pub erases: u32,
}

/// The closed lines that can be a victim: those with valid sectors and without a failed chunk.
#[derive(Clone, Copy, Debug)]
pub struct VictimLines<'a> {
    pub(super) candidates: &'a VictimCandidates,
    pub(super) lines: &'a LineTable,
    pub(super) free_lines: u64,
    pub(super) is_critical: bool,
}

impl VictimLines<'_> {
    /// Returns the lines in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = LineId> {
        LineId::all().take(self.lines.len()).filter(|line| self.candidates.is_in_policy(*line))
    }

    /// Returns the facts about a line; `None` if it cannot be a victim.
    pub fn get(&self, line: LineId) -> Option<VictimLine> {
        if !self.candidates.is_in_policy(line) {
            return None;
        }
        let close_index = self.lines.line(line).close_index;
        let closed = self.lines.closed_line(line, close_index);
        Some(VictimLine {
            sectors: closed.sectors,
            valid: closed.weight,
            age: self.lines.closed_total().saturating_sub(close_index),
            erases: closed.wear,
        })
    }

    /// Returns the free lines beyond the reserve of garbage collection, open ones in part.
    pub fn free_lines(&self) -> u64 {
        self.free_lines
    }

    /// Whether the host waits until space is reclaimed.
    pub fn is_critical(&self) -> bool {
        self.is_critical
    }
}
