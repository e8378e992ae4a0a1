//! Invariants of barriers, trims and checkpoints.

use super::{Subject, Violation, require_eq};
use crate::Ftl;
use crate::ftl::HOST;
use crate::space::lines::LineState;

impl Ftl {
    pub(super) fn check_durability(&self) -> Result<(), Violation> {
        let head = self.rings[HOST].head_pos();
        let mut waits = vec![0u32; self.lines.lines.len()];
        for line in self.barriers.check(head, self.trims.epoch())? {
            waits[line as usize] += 1;
        }
        for (id, (line, &found)) in (0..).zip(self.lines.lines.iter().zip(&waits)) {
            let drained = line.state == LineState::Draining
                && line.relocations_in_flight == 0
                && line.erasing == 0;
            require_eq!(
                Durability,
                "a drained line waits to be erased",
                Subject::Line(id),
                u32::from(drained),
                found
            );
        }
        let cursor = self.device_l2p.as_ref().and_then(|m| m.cursor_page());
        self.trims.check(cursor, head)?;
        self.checkpoint.check(self.sequencer.low_watermark())?;
        if let Some(map) = &self.device_l2p {
            map.check(self.sequencer.next_seq())?;
        }
        Ok(())
    }
}
