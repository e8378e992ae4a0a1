//! [`VictimCandidates`]: closed lines, and the choice of the next victim among them.

use std::collections::VecDeque;

use collections::MinTree;
use serde::{Deserialize, Serialize};

use super::victim::AnyVictimPolicy;
use crate::VictimPolicyKind;
use crate::check::{Subject, Violation, require_eq};
use crate::env::Env;
use crate::ids::LineId;
use crate::space::lines::{CandidateChange, ClosedLine, Line, LineState, LineTable};

/// Closed lines by kind: lines with a failed chunk, which are reclaimed first; lines without valid
/// sectors, which only need an erase; and all others, in the victim policy.
///
/// Invariant: a closed line is in exactly one of the three.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VictimCandidates {
    policy: AnyVictimPolicy,
    /// By line, the valid sectors of the lines in the policy.
    valid: MinTree<u32>,
    degraded: VecDeque<LineId>,
    empty: VecDeque<LineId>,
}

impl VictimCandidates {
    /// Creates the state without closed lines.
    pub(super) fn new(env: &Env) -> VictimCandidates {
        VictimCandidates {
            policy: env.config.victim_policy.build(),
            valid: MinTree::new(u32::MAX),
            degraded: VecDeque::new(),
            empty: VecDeque::new(),
        }
    }

    /// Replaces the policy. The new one learns of the closed lines in the order of their closing.
    pub(super) fn set_policy(&mut self, kind: VictimPolicyKind, lines: &LineTable) {
        self.policy = kind.build();
        for closed in lines.closed_in_order() {
            if !closed.degraded && closed.valid_sectors > 0 {
                self.add(closed);
            }
        }
    }

    /// Adds a line that was closed.
    pub(super) fn add(&mut self, closed: ClosedLine) {
        let ClosedLine { line, degraded, valid_sectors, weight, sectors, wear, at } = closed;
        if degraded {
            self.degraded.push_back(line);
        } else if valid_sectors == 0 {
            self.empty.push_back(line);
        } else {
            self.policy.on_wear(line, wear);
            self.policy.on_closed(line, weight, sectors, at);
            self.valid.grow(line.index() + 1);
            self.valid.set(line.index(), valid_sectors);
        }
    }

    /// Records that a closed line has fewer valid sectors.
    #[inline]
    pub(super) fn on_change(&mut self, change: CandidateChange) {
        if change.valid_sectors == 0 {
            self.policy.remove(change.line);
            self.valid.remove(change.line.index());
            self.empty.push_back(change.line);
        } else {
            self.policy.on_invalidate(change.line, change.weight);
            self.valid.set(change.line.index(), change.valid_sectors);
        }
    }

    /// Records that a closed line, which had `before` valid sectors, has more of them.
    pub(super) fn on_more_valid(&mut self, closed: ClosedLine, before: u32) {
        if before == 0 {
            self.empty.retain(|e| *e != closed.line);
        } else {
            self.policy.remove(closed.line);
            self.valid.remove(closed.line.index());
        }
        self.add(closed);
    }

    /// Updates the wear of a closed line.
    pub(super) fn on_wear(&mut self, line: LineId, wear: u32) {
        self.policy.on_wear(line, wear);
    }

    /// Removes a closed line that becomes a victim whatever the policy says.
    pub(super) fn remove(&mut self, id: LineId, line: &Line) {
        if line.degraded {
            self.degraded.retain(|h| *h != id);
        } else if line.valid_sectors == 0 {
            self.empty.retain(|e| *e != id);
        } else {
            self.policy.remove(id);
            self.valid.remove(id.index());
        }
    }

    /// Whether there are closed lines with a failed chunk.
    pub(super) fn has_degraded(&self) -> bool {
        !self.degraded.is_empty()
    }

    /// Whether there are closed lines without a valid sector.
    #[inline]
    pub(super) fn has_empty(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Removes and returns a closed line without a valid sector that is not `scanned`: reads of a
    /// scan in progress would be taken for those of the next line with the same index.
    pub(super) fn pop_empty(&mut self, scanned: Option<LineId>) -> Option<LineId> {
        let at = self.empty.iter().position(|id| Some(*id) != scanned)?;
        self.empty.remove(at)
    }

    /// Removes and returns the next line with a failed chunk.
    pub(super) fn pop_degraded(&mut self) -> Option<LineId> {
        self.degraded.pop_front()
    }

    /// Removes and returns the line that the policy chooses. `closed_total` is the number of lines
    /// closed so far.
    pub(super) fn pop_by_policy(&mut self, closed_total: u64) -> Option<LineId> {
        let line = self.policy.take(closed_total)?;
        self.valid.remove(line.index());
        Some(line)
    }

    /// Removes and returns a line that another part has chosen, if the policy could choose it.
    pub(super) fn pop_chosen(&mut self, line: LineId) -> Option<LineId> {
        if !self.is_in_policy(line) {
            return None;
        }
        self.policy.remove(line);
        self.valid.remove(line.index());
        Some(line)
    }

    /// Whether the policy could choose a line.
    pub(super) fn is_in_policy(&self, line: LineId) -> bool {
        self.valid.get(line.index()).is_some_and(|valid| valid != u32::MAX)
    }

    /// Removes and returns the closed line with the fewest valid sectors, if those are no more than
    /// `room`; among equals the lowest line.
    pub(super) fn pop_fewest_valid(&mut self, room: u64, lines: &LineTable) -> Option<LineId> {
        let listed = self.degraded.iter().chain(&self.empty).copied();
        let in_policy = self.valid.first_min().map(LineId::from_index);
        let valid = |id: &LineId| lines.line(*id).valid_sectors;
        let line = listed.chain(in_policy).min_by_key(|id| (valid(id), *id))?;
        if u64::from(valid(&line)) > room {
            return None;
        }
        self.remove(line, lines.line(line));
        Some(line)
    }

    /// Notifies the policy whether the host waits until space is reclaimed.
    pub(super) fn set_critical(&mut self, is_critical: bool) {
        self.policy.set_critical(is_critical);
    }

    /// Checks the lists against the lines.
    pub(super) fn check(&self, lines: &LineTable) -> Result<(), Violation> {
        let (mut degraded, mut empty) = (0, 0);
        for (_, line) in lines.iter() {
            let closed = line.state == LineState::Closed;
            degraded += usize::from(closed && line.degraded);
            empty += usize::from(closed && !line.degraded && line.valid_sectors == 0);
        }
        require_eq!(Gc, "degraded lines", Subject::Part, degraded, self.degraded.len());
        require_eq!(Gc, "empty lines", Subject::Part, empty, self.empty.len());
        for (id, line) in lines.iter() {
            let is_in_policy =
                line.state == LineState::Closed && !line.degraded && line.valid_sectors > 0;
            let expected = if is_in_policy { line.valid_sectors } else { u32::MAX };
            let known = self.valid.get(id.index()).unwrap_or(u32::MAX);
            require_eq!(Gc, "valid sectors of a candidate", Subject::Line(id), expected, known);
        }
        Ok(())
    }
}
