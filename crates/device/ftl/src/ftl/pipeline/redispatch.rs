//! Units that are programmed again at another location. The rules are in
//! [`redispatch`](crate::buffer::redispatch).

use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::ids::{LineId, NO_SECTOR};
use crate::{FlashBackend, Ftl, L2pEntry};
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

    /// Returns whether a unit must wait, so that atomic writes stay whole: its chunk is offline, and an
    /// entry that would be dropped has a newer version that is not on the media yet. That version never
    /// waits for this unit.
    pub(super) fn waits_for_newer(&self, id: UnitId) -> bool {
        let is_only_copy = self.is_only_copy(id);
        let entries = self.buffer.ring(id.ring()).entries(id);
        is_only_copy && entries.iter().any(|entry| self.buffer.is_newer_in_flight(id, entry))
    }

    /// Whether a unit was on the media of a chunk that went offline, and gets another location.
    fn is_only_copy(&self, id: UnitId) -> bool {
        let unit = self.buffer.unit(id);
        unit.state == UnitState::Filling
            && unit.redispatch_from != LineId::NONE
            && self.space.table().chunk(unit.chunk).offline
    }

    /// Turns the superseded entries of a unit that gets a sequence number now into padding. Their
    /// copies on flash stay valid until the entries that supersede them are durable. With atomic writes,
    /// an entry of an offline chunk whose sector was trimmed becomes zeros instead.
    pub(super) fn drop_superseded(&mut self, id: UnitId, flash: &mut impl FlashBackend) {
        if self.mapping.is_named() {
            return self.drop_freed(id);
        }
        let keeps_trimmed = self.env.config.atomic_writes && self.is_only_copy(id);
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
            if keeps_trimmed && self.is_trimmed(now) {
                flash.write_slot(slot, &[]);
                self.buffer.unpoison(slot);
                continue;
            }
            let chunk = geometry.chunk_of(entry.durable_copy);
            let head = self.buffer.head_pos();
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

    /// Whether a sector at this location is trimmed, and no later version of it has a sequence number.
    fn is_trimmed(&self, now: L2pEntry) -> bool {
        match now {
            L2pEntry::Unmapped => true,
            L2pEntry::Buffer(at) => {
                self.buffer.unit_of(at).state == UnitState::Filling
                    && self.buffer.entry(at).durable_copy == NO_SECTOR
            }
            L2pEntry::Flash(_) | L2pEntry::Lost => false,
        }
    }
}
