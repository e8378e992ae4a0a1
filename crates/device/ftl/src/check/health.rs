//! Invariants of bad chunks and of refresh.

use super::{Subject, Violation, require};
use crate::Ftl;
use crate::space::lines::LineState;

impl Ftl {
    pub(super) fn check_health(&self) -> Result<(), Violation> {
        for (chunk, c) in (0..).zip(&self.space.lines.chunks) {
            let subject = Subject::Chunk(chunk);
            require!(
                c.bad || !c.offline,
                Health,
                "an offline chunk is bad",
                subject,
                "bad",
                "good"
            );
            let pu = self.env.geometry.pu_of(chunk) as usize;
            require!(
                !c.had_read_error || self.health.pus_with_read_errors[pu],
                Health,
                "a chunk with read errors is on a parallel unit with read errors",
                subject,
                true,
                false
            );
        }
        if let Some(line) = self.health.refresh.line() {
            let state = self.space.lines.lines[line as usize].state;
            require!(
                state != LineState::Free,
                Health,
                "the line being refreshed is in use",
                Subject::Line(line),
                "in use",
                format_args!("{state:?}")
            );
        }
        for (id, line) in (0..).zip(&self.space.lines.lines) {
            let waits = self.space.lines.refresh_queue.contains(&id);
            require!(
                !line.refresh_requested || line.state != LineState::Closed || waits,
                Health,
                "a closed line to be refreshed is queued",
                Subject::Line(id),
                "queued",
                "not queued"
            );
        }
        Ok(())
    }
}
