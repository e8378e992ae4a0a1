//! Invariants of garbage collection.

use crate::Ftl;
use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ftl::GC;
use crate::ids::{LineId, NO_SECTOR, ToIndex};
use crate::space::lines::LineState;

impl Ftl {
    pub(super) fn check_gc(&self) -> Result<(), Violation> {
        let mut moves = vec![0u32; self.space.table().len()];
        let ring = &self.buffer.ring(GC);
        for (unit, filled) in ring.occupied() {
            let u = ring.unit(unit);
            // A redispatched unit was durable before, and was counted then.
            let is_durable = u.state >= UnitState::Persisted || u.redispatch_from != LineId::NONE;
            for entry in &ring.entries(unit)[..filled.index()] {
                let (from, is_relocated) = match entry.source {
                    NO_SECTOR => (entry.durable_copy, is_durable),
                    source => (source, u.state == UnitState::Released),
                };
                if from != NO_SECTOR && !is_relocated {
                    let line = self.space.line_of(self.env.geometry.chunk_of(from));
                    require!(
                        line != LineId::NONE,
                        Gc,
                        "the source of a relocation is in a line",
                        Subject::Sector(from),
                        "a line",
                        "none"
                    );
                    moves[line.index()] += 1;
                }
            }
        }
        for line in self.gc.copied() {
            moves[line.index()] += 1;
        }
        let (mut draining, mut erasing) = (0, 0);
        for (id, (line, &expected)) in
            self.space.table().iter().zip(&moves).map(|((id, line), n)| (id, (line, n)))
        {
            let subject = Subject::Line(id);
            let named = self.mapping.named();
            let expected = expected + named.map_or(0, |named| named.kept_in(id));
            require_eq!(
                Gc,
                "relocations in flight",
                subject,
                expected,
                line.gate().relocations_in_flight()
            );
            let waits = named.is_some_and(|named| named.is_waiting(id) || named.is_blocked(id));
            let drains = line.state == LineState::Draining && line.gate().erasing() == 0;
            draining += u32::from(drains && !waits);
            erasing += line.gate().erasing();
            if line.state == LineState::Victim {
                let scanned = self.gc.is_scanned(id);
                require!(scanned, Gc, "a victim is being scanned", subject, "a scan", "none");
            }
        }
        require_eq!(Gc, "draining lines", Subject::Part, draining, self.gc.draining());
        require_eq!(Space, "chunks being erased", Subject::Part, erasing, self.space.erasing());
        self.gc.check_invariants(self.space.table())?;
        for chunk in self.gc.deferred_erases() {
            let line = self.space.line_of(chunk);
            let erasing = self.space.table().get(line).map_or(0, |l| l.gate().erasing());
            require!(
                erasing > 0,
                Gc,
                "a deferred erase is of a line that is being erased",
                Subject::Chunk(chunk),
                "at least 1 chunk erasing",
                erasing
            );
        }
        Ok(())
    }
}
