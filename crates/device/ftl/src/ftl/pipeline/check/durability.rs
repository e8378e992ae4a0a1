//! Invariants of barriers, trims and checkpoints.

use crate::Ftl;
use crate::check::{Subject, Violation, require_eq};
use crate::space::lines::LineState;

impl Ftl {
    pub(super) fn check_durability(&self) -> Result<(), Violation> {
        let head = self.buffer.head_pos();
        let mut waits = vec![0u32; self.space.table().len()];
        let (low, next) = (self.buffer.low_watermark(), self.buffer.next_seq());
        for line in self.durability.check_invariants(head, low, next)? {
            waits[line.index()] += 1;
        }
        for (id, (line, &found)) in
            self.space.table().iter().zip(&waits).map(|((id, line), n)| (id, (line, n)))
        {
            let waits_for_sources = self.mapping.named().is_some_and(|named| named.is_blocked(id));
            let drained = line.state == LineState::Draining
                && !waits_for_sources
                && line.gate().relocations_in_flight() == 0
                && line.gate().erasing() == 0;
            require_eq!(
                Durability,
                "a drained line waits to be erased",
                Subject::Line(id),
                u32::from(drained),
                found
            );
        }
        Ok(())
    }
}
