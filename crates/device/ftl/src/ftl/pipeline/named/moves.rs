//! Moves of sectors with names, and their confirmation.

use nvme::PhysSector;
use time::Nanos;

use crate::buffer::unit_id::UnitId;
use crate::flash::OpKind;
use crate::ftl::GC;
use crate::gc::Relocation;
use crate::gc::defer::MemberUnit;
use crate::ids::{LineId, NO_SECTOR, SlotId, ToU32};
use crate::space::lines::LineState;
use crate::{
    BufferEntry, FlashBackend, Ftl, MovedSector, NamedOob, Oob, OpToken, ReadAddress, ReadDest,
    SectorName, SectorNameError,
};

use crate::buffer::named_slots::NamedSlot;

impl Ftl {
    /// Reads the valid sectors of a victim's write unit into the ring of garbage collection. Those that
    /// cannot be read yet are still in the write buffer: only a line that stays open has any.
    pub(crate) fn read_named_unit(
        &mut self,
        now: Nanos,
        line: LineId,
        at: MemberUnit,
        flash: &mut impl FlashBackend,
    ) {
        let mut addresses = self.gc.take_addresses();
        let mut first_slot = None;
        for phys in self.sectors_of_unit(line, at) {
            if !self.is_movable(phys) {
                continue;
            }
            let entry = BufferEntry {
                lba_plus_1: 1,
                poison: false,
                durable_copy: phys,
                durable_copy_seq: self.buffer.next_seq(),
                trim_dep: 0,
                source: NO_SECTOR,
            };
            let slot = self.buffer.push(GC, entry, true);
            first_slot = first_slot.or(Some(slot));
            addresses.push(ReadAddress::to_slot(phys, slot));
        }
        if let Some(first_slot) = first_slot {
            let count = addresses.len().to_u32();
            let index = self.gc.begin_relocation(Relocation { line, first_slot, count, again: 0 });
            self.space.relocations_started(line, count);
            let op = OpToken::new(OpKind::GcRead, index);
            flash.read(now, op, &addresses, ReadDest::Buffer);
            addresses.clear();
        }
        self.gc.return_addresses(addresses);
    }

    /// Whether a sector is valid and can be read from the media.
    fn is_movable(&self, phys: PhysSector) -> bool {
        let geometry = &self.env.geometry;
        let readable_end = self.space.chunk(geometry.chunk_of(phys)).readable_end(geometry);
        self.mapping.named().is_some_and(|named| named.is_valid(phys))
            && geometry.sector_in_chunk(phys) < readable_end
    }

    /// Takes the sectors of a victim that were read, with their tags. `unread` has the bits of those that
    /// could not be read.
    pub(crate) fn named_unit_read(
        &mut self,
        read: Relocation,
        unread: u64,
        flash: &mut impl FlashBackend,
    ) {
        let mut moved = 0;
        for i in 0..read.count {
            let slot = self.relocation_slot(read.first_slot, i);
            let phys = self.buffer.entry(slot).durable_copy;
            let is_lost = unread >> i & 1 != 0;
            if is_lost {
                self.record_uncorrectable(self.env.geometry.chunk_of(phys));
            }
            flash.sync_slot(phys, slot);
            let is_valid = self.mapping.named().is_some_and(|named| named.is_valid(phys));
            let tag = if is_valid && !is_lost { self.tag_of_read(phys, slot, flash) } else { None };
            if let Some(tag) = tag {
                self.buffer.named_mut().set(slot, NamedSlot { tag, ..NamedSlot::default() });
                self.buffer.fill_done(slot, true, false);
                moved += 1;
                continue;
            }
            if is_valid {
                self.lose_named(read.line, phys);
            }
            self.buffer.fill_done(slot, false, false);
            self.stats.padding += 1;
        }
        self.count_relocated(read.line, moved);
    }

    /// Returns the tag of a sector that was read into a slot; `None` if the sector has none.
    fn tag_of_read(
        &self,
        phys: PhysSector,
        slot: SlotId,
        flash: &mut impl FlashBackend,
    ) -> Option<u64> {
        if !flash.stores_data() {
            return Some(0);
        }
        let mut bytes = [0; Oob::BYTES];
        flash.read_slot_oob(phys, slot, &mut bytes);
        NamedOob::decode(&bytes).filter(|oob| !oob.is_padding).map(|oob| oob.tag)
    }

    /// Records that a valid sector of a line cannot be read. It has no valid copy from now on.
    #[cold]
    fn lose_named(&mut self, line: LineId, phys: PhysSector) {
        if let Some(named) = self.mapping.named_mut() {
            named.lose(&self.env, phys);
        }
        self.stats.uncorrectable_sectors += 1;
        if let Some(change) = self.space.relocated_one(line) {
            self.gc.on_candidate(change);
        }
    }

    /// Turns the copies of sectors that have been freed into padding, before a unit gets its sequence
    /// number.
    pub(crate) fn drop_freed(&mut self, id: UnitId) {
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id);
        for slot in first_slot.run(self.env.geometry.ws_opt) {
            let entry = *self.buffer.entry(slot);
            let is_freed = entry.lba().is_some()
                && entry.durable_copy != NO_SECTOR
                && !self.mapping.named().is_some_and(|named| named.is_valid(entry.durable_copy));
            if is_freed {
                self.buffer.drop_entry(slot);
            }
        }
    }

    /// Makes the copy in a slot valid, which is on the media at `phys`, if the sector that it comes from is.
    pub(super) fn publish_move(&mut self, slot: SlotId, phys: PhysSector, redispatched: bool) {
        let entry = *self.buffer.entry(slot);
        let from = entry.durable_copy;
        let line = self.space.line_of(self.env.geometry.chunk_of(from));
        let to = self.space.line_of(self.env.geometry.chunk_of(phys));
        let Some(named) = self.mapping.named_mut() else { return };
        named.add_source(to, line);
        if entry.lba().is_none() || !named.is_valid(from) {
            if !redispatched {
                self.gc.add_copied(line);
            }
            return;
        }
        let tag = self.buffer.named().get(slot).tag;
        named.publish_move(&self.env, from, phys, tag, line);
        if let Some(change) = self.space.relocated_one(line) {
            self.gc.on_candidate(change);
        }
        self.space.count_valid(to);
        if redispatched {
            self.space.relocations_started(line, 1);
        }
        self.update_waiting(line);
    }

    /// Removes and returns the next move. Until it is [confirmed](Ftl::confirm_move), the old name is valid
    /// too. A recovery reports again the moves whose old sectors have not been erased.
    #[inline]
    pub fn pop_moved(&mut self) -> Option<MovedSector> {
        self.mapping.named_mut()?.pop_moved()
    }

    /// Removes and returns the name of the next sector that could not be read when it was to be moved. It
    /// is not valid any more.
    pub fn pop_lost_name(&mut self) -> Option<SectorName> {
        self.mapping.named_mut()?.pop_lost()
    }

    /// Confirms that the owner of the names knows a move, so that the old sector may be erased, once all
    /// changes of the [owner's state](Ftl::owner_state) so far are durable. Call [`kick`](Ftl::kick)
    /// afterwards.
    ///
    /// # Errors
    /// [`SectorNameError`], [`SectorNameError::NotMoved`] if it was confirmed before; nothing has changed.
    pub fn confirm_move(&mut self, old: SectorName) -> Result<(), SectorNameError> {
        let named = self.mapping.named_mut().ok_or(SectorNameError::Logical)?;
        let phys = named.confirm(&self.env, old)?;
        let line = self.space.line_of(self.env.geometry.chunk_of(phys));
        named.release_after(phys, line, self.durability.owner_changes());
        if named.is_confirmed(line) {
            // The line's space comes with the next flush of the journal.
            self.stop_waiting(line);
            self.update_waiting(line);
        }
        self.release_confirmed();
        Ok(())
    }

    fn stop_waiting(&mut self, line: LineId) {
        if self.mapping.named_mut().is_some_and(|named| named.stop_waiting(line)) {
            self.gc.begin_drain();
        }
    }

    /// Says that the owner of the names confirms no move before the host has done something. Until the next
    /// [confirmation](Ftl::confirm_move), writes fail that would wait for space which only moved sectors
    /// occupy. Call [`kick`](Ftl::kick) afterwards.
    pub fn set_moves_stuck(&mut self) {
        if let Some(named) = self.mapping.named_mut() {
            named.set_stuck();
        }
    }

    /// Releases the old sectors of confirmed moves, as far as the owner's state is durable.
    pub(crate) fn release_confirmed(&mut self) {
        let durability = &self.durability;
        let is_durable = |changes| durability.is_owner_state_durable(changes);
        while let Some(line) = self.mapping.named_mut().and_then(|n| n.release_next(is_durable)) {
            if self.mapping.named_mut().is_some_and(|named| named.stop_waiting(line)) {
                self.gc.begin_drain();
            }
            // The next step of garbage collection releases the sector.
            self.gc.add_copied(line);
        }
    }

    /// Ends the drains and the refreshes of lines that only moves keep which the owner has been told of and has
    /// not confirmed: garbage collection goes on without their space. Erases drained lines that have waited
    /// for the erase of others.
    #[cold]
    pub(crate) fn step_named_lines(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut reclaimed = false;
        for line in self.mapping.named_mut().map(|named| named.take_told()).unwrap_or_default() {
            if self.mapping.named_mut().is_some_and(|named| named.start_waiting(line)) {
                self.gc.end_drain();
                self.health.on_relocated(line);
            }
        }
        while let Some(line) = self.mapping.named_mut().and_then(|named| named.pop_unblocked()) {
            self.gc.begin_drain();
            self.reclaim_if_relocated(now, line, flash);
            reclaimed = true;
        }
        reclaimed
    }

    /// Has a drained line wait for the erase of the lines that its sectors were moved from. Returns whether it
    /// waits.
    pub(crate) fn waits_for_sources(&mut self, line: LineId) -> bool {
        let Some(named) = self.mapping.named_mut() else { return false };
        if named.block(line) {
            self.gc.end_drain();
        }
        named.is_blocked(line)
    }

    /// Records that only moves keep a drained line. If all are confirmed, makes the owner's state durable.
    pub(crate) fn update_waiting(&mut self, line: LineId) {
        let Some(named) = self.mapping.named_mut() else { return };
        let l = self.space.line(line);
        let (kept, in_flight) = (named.kept_in(line), l.gate().relocations_in_flight());
        if kept == 0 || kept < in_flight {
            return;
        }
        match l.state {
            LineState::Draining if named.is_confirmed(line) => {
                self.durability.flush_owner_state();
            }
            LineState::Draining => named.add_drained(line),
            LineState::Open | LineState::Closed if !self.gc.is_scanned(line) => {
                self.health.on_relocated(line);
            }
            _ => {}
        }
    }

    /// Lets units have sequence numbers when the snapshot after a recovery is durable.
    pub(crate) fn end_snapshot_wait(&mut self) -> bool {
        let is_pending = self.durability.is_snapshot_pending();
        let Some(named) = self.mapping.named_mut().filter(|n| n.awaits_snapshot()) else {
            return false;
        };
        if !is_pending {
            named.end_snapshot_wait();
            self.space.unblock();
        }
        !is_pending
    }
}
