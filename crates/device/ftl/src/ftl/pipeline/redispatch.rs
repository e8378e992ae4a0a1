//! Units that are programmed again at another location. The rules are in
//! [`redispatch`](crate::buffer::redispatch).

use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::{Ftl, L2pEntry};
use nvme::ChunkId;

impl Ftl {
    /// Queues a unit whose program failed for another location, ahead of all newer units.
    pub(super) fn requeue_failed(&mut self, id: UnitId) {
        let unit = *self.buffer.unit(id);
        // No map entry names the failed location. (A redispatched unit is still valid at its
        // former location; its line keeps that.)
        let first_phys = self.env.geometry.first_sector_of(unit.chunk) + unit.sector;
        self.mapping.record_nothing(first_phys, self.env.geometry.ws_opt);
        self.space.erase_unit(unit.chunk, unit.sector);
        self.buffer.program_failed(id);
    }

    /// Queues every unit that is durable on a chunk but not readable there, and so still in the
    /// write buffer, to be programmed again elsewhere. Until the new copy is durable the line stays
    /// open and is not erased: after a power cut the old copy is the only one.
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
            // The sectors become valid at the new location.
            let sectors = first_phys.run(self.env.geometry.ws_opt);
            sectors.for_each(|phys| self.mapping.invalidate(phys));
            self.space.hold_open(line);
            self.stats.redispatched_sectors += u64::from(self.env.geometry.ws_opt);
        }
    }

    /// Turns the superseded entries of a unit that gets a sequence number now into padding. Their
    /// copies on flash stay valid until the entries that supersede them are durable.
    pub(super) fn drop_superseded(&mut self, id: UnitId) {
        let geometry = self.env.geometry;
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id);
        for slot in first_slot.run(geometry.ws_opt) {
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
