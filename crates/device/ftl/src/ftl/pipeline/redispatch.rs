//! Units that are programmed again at another location. The rules are in
//! [`redispatch`](crate::buffer::redispatch).

use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::{Ftl, L2pEntry};
use nvme::ChunkId;

impl Ftl {
    /// The program of a unit has failed: it goes elsewhere, ahead of everything newer.
    pub(super) fn requeue_failed(&mut self, id: UnitId) {
        let unit = *self.buffer.unit(id);
        // Nothing names its location any more. (A redispatched unit is where it was: its line says so, and
        // is kept.)
        let first_phys = self.env.geometry.first_sector_of(unit.chunk) + unit.sector;
        self.mapping.record_nothing(first_phys, self.env.geometry.ws_opt);
        self.space.erase_unit(unit.chunk, unit.sector);
        self.buffer.program_failed(id);
    }

    /// Has every unit that is durable on a chunk, but not readable there and so still in the write buffer,
    /// programmed again elsewhere. Until it is durable there its line is not closed, and so not erased: this
    /// copy is what a power cut leaves.
    pub(super) fn redispatch_unreadable(&mut self, chunk: ChunkId) {
        let line = self.space.line_of(chunk);
        let mut at = self.buffer.first_on(chunk);
        while let Some(id) = at {
            let unit = *self.buffer.unit(id);
            at = unit.chain_next;
            if unit.state != UnitState::Persisted {
                continue;
            }
            let first_phys = self.env.geometry.first_sector_of(chunk) + unit.sector;
            self.buffer.redispatch_durable(id, line, first_phys);
            // The sectors are valid where they are going.
            let sectors = first_phys..first_phys + self.env.geometry.ws_opt;
            sectors.for_each(|phys| self.mapping.invalidate(phys));
            self.space.hold_open(line);
            self.stats.redispatched_sectors += u64::from(self.env.geometry.ws_opt);
        }
    }

    /// Makes padding of the superseded entries of a unit that gets a sequence number now. The copies that
    /// those leave on flash count until what supersedes them is durable.
    pub(super) fn drop_superseded(&mut self, id: UnitId) {
        let geometry = self.env.geometry;
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id.index());
        for slot in first_slot..first_slot + geometry.ws_opt {
            let entry = *self.buffer.entry(slot);
            let Some(lba) = entry.lba() else { continue };
            let now = self.mapping.get(lba);
            if now == L2pEntry::Buffer(slot)
                || self.buffer.is_still_newest(&geometry, id, &entry, now)
            {
                continue;
            }
            let chunk = geometry.chunk_of(entry.durable_copy);
            let head = self.buffer.ring(crate::ftl::HOST).head_pos();
            let after = Some(head).filter(|_| now != L2pEntry::Unmapped);
            let line = self.space.line_of(chunk);
            self.space.wait_before_erase(line, after);
            if self.space.table().chunk(chunk).offline {
                self.buffer.raise_flush_floor();
            }
            self.buffer.drop_entry(slot);
            self.mapping.unpin(lba);
        }
    }
}
