//! Garbage collection: chooses victims, relocates their valid sectors, and erases their chunks. The
//! rules are in [`gc`](crate::gc).

use crate::ReadAddress;

use nvme::{ChunkId, PhysSector, Status};
use time::Nanos;
use tracepoint::Event;

use crate::buffer::unit_id::UnitId;
use crate::durability::barriers::{BarrierOwner, TrimDep};
use crate::flash::OpKind;
use crate::ftl::GC;
use crate::gc::defer::{MemberUnit, VictimUnit};
use crate::gc::{Relocation, VictimScan};
use crate::ids::{Lba, LineId, NO_SECTOR, SlotId, ToIndex, ToU32};
use crate::space::ChunkErase;
use crate::space::lines::LineState;
use crate::{
    BufferEntry, ChosenLine, FlashBackend, Ftl, L2pEntry, OpToken, ReadDest, RelocationStream,
    VictimLines,
};

/// Number of members of a line whose P2L entries are prefetched together.
const PREFETCH_MEMBERS: u32 = 16;

impl Ftl {
    /// Starts reads of victims as far as the window and the ring allow.
    pub(crate) fn step_gc(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = self.record_copied(now, flash);
        if self.mapping.is_named() {
            moved |= self.step_named_lines(now, flash);
        }
        moved |= self.run_deferred_erases(now, flash) | self.reclaim_empty(now, flash);
        moved |= self.read_again(now, flash);
        // A full write unit must always fit: reads are never split.
        while self.buffer.ring(GC).free() >= self.env.geometry.ws_opt
            && self.gc.reads_in_flight() < self.gc_queue_depth()
        {
            if self.gc.current_scan().is_none() && !self.select_victim(now, flash) {
                break;
            }
            let Some(VictimScan { line, .. }) = self.gc.current_scan() else { break };
            if !self.victim_p2l_ready(now, line, flash) || !self.scan_unit(now, flash) {
                break;
            }
            moved = true;
        }
        self.pad_open_gc_unit(flash) || moved
    }

    /// Reclaims lines without valid sectors, as long as free space is below the target.
    fn reclaim_empty(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = false;
        while self.gc.has_empty()
            && self.gc.limiter().needs_gc(self.free_sectors() + self.reclaimable_soon())
        {
            let Some(line) = self.gc.pop_empty() else { break };
            self.gc.begin_drain();
            self.space.begin_drain(line);
            self.reclaim_if_relocated(now, line, flash);
            moved = true;
        }
        moved
    }

    /// Returns the space that drained victims will free.
    fn reclaimable_soon(&self) -> u64 {
        u64::from(self.gc.draining()) * u64::from(self.env.plan.line_sectors)
    }

    fn select_victim(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let hurt = self.gc.has_degraded();
        let (free, coming) = (self.free_sectors(), self.reclaimable_soon());
        // When the host is stopped, padding still to be written counts as used: else each victim
        // would be padded to the end of its unit, and free nothing if the padding takes as much
        // as it frees.
        let waiting = if free <= self.gc.limiter().watermarks().0 {
            self.buffer.undispatched_sectors(&self.env.geometry, GC)
        } else {
            0
        };
        let collects = self.gc.limiter().needs_gc((free + coming).saturating_sub(waiting));
        // The usual case: no victim is needed.
        if !hurt && !collects && self.gc.draining() == 0 && !self.can_refresh() {
            return false;
        }
        if self.mapping.named().is_some_and(|named| named.has_kept_max()) {
            return false;
        }
        // With no operation in flight and no space, drained victims wait for host data that has
        // no location. A victim without valid sectors may not have to wait, and frees some.
        let stuck = self.gc.draining() > 0
            && self.space.programs().total() == 0
            && self.space.erasing() == 0
            && self.gc.reads_in_flight() == 0
            && !self.gc_can_place_unit();
        let room = self.relocation_budget();
        if !hurt
            && !stuck
            && let Some(chosen) = self.pop_refresh_victim(collects, room)
        {
            self.begin_victim_scan(chosen);
            return true;
        }
        if !hurt && !stuck && !collects {
            return false;
        }
        if !hurt && self.gc.is_futile(&self.env, self.space.table(), free) {
            return false;
        }
        // Take a further victim only if its data fits beside the relocations in flight. Otherwise
        // the space would be spread over victims that cannot be completed.
        let on_its_way = self.buffer.undispatched_sectors(&self.env.geometry, GC)
            + u64::from(self.env.plan.line_sectors);
        if self.gc.draining() > 0 && free < on_its_way && !stuck {
            return false;
        }
        let choose = |lines: &VictimLines<'_>| flash.choose_victim(now, lines);
        let chosen = self.gc.pick_victim(&self.env, self.space.table(), free, room, choose);
        let Some(chosen) = chosen else { return false };
        let ChosenLine { line, stream, .. } = chosen;
        self.space.begin_victim(line);
        if stream == RelocationStream::Cold && !self.health.is_refreshing_any() {
            self.stats.wear_leveled_lines += 1;
            self.health.begin_refresh(line, true);
        }
        self.gc.count_victim();
        self.health.count_victim();
        self.begin_victim_scan(chosen);
        true
    }

    /// Returns the sectors that relocations may still take: free ones, less those committed to the
    /// host and those of relocations in flight.
    pub(crate) fn relocation_budget(&self) -> u64 {
        let unit = u64::from(self.env.geometry.ws_opt);
        let promised = self.committed_sectors()
            + self.buffer.undispatched_sectors(&self.env.geometry, GC).next_multiple_of(unit)
            + unit;
        self.space.writable_sectors(&self.env, self.space.free_chunks()).saturating_sub(promised)
    }

    /// Starts the scan of all write units that a line has now.
    fn begin_victim_scan(&mut self, chosen: ChosenLine) {
        let ChosenLine { line, units_in_flight, .. } = chosen;
        let written = |c: &ChunkId| self.space.chunk(*c).write_pointer;
        let most = self.space.line(line).chunks.iter().map(written).max().unwrap_or(0);
        let units = most.div_ceil(self.env.geometry.ws_opt);
        let valid = self.space.line(line).valid_sectors;
        tracepoint::trace(|| Event::GcBegins { line: line.get(), valid });
        tracing::debug!(line = line.get(), valid, "GC begins with a victim");
        self.gc.begin_scan(line, units, units_in_flight);
    }

    /// Scans one write unit of the oldest victim and reads its valid sectors. Returns `false` if all
    /// that is left is deferred for host reads.
    fn scan_unit(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let Some(VictimScan { line: line_id, unit, member, units, .. }) = self.gc.current_scan()
        else {
            return false;
        };
        let line = self.space.line(line_id);
        let chosen = self.gc.chosen_unit();
        let whole = unit >= units && !self.gc.has_skipped_units() && chosen.is_none();
        let member = chosen.map_or(member, |chosen| chosen.at.member);
        // A line that was open when the scan began may have been reclaimed and opened again
        // meanwhile.
        if line.valid_sectors == 0 || whole || member.index() >= line.chunks.len() {
            // All sectors still being read have been overwritten.
            self.complete_scan(now, line_id, flash);
            return true;
        }
        let Some(chosen) = chosen.or_else(|| self.next_victim_unit(flash)) else { return false };
        if !self.prepare_gc_unit(now, line_id, chosen, flash) {
            self.gc.set_chosen_unit(Some(chosen));
            return false;
        }
        self.gc.set_chosen_unit(None);
        let VictimUnit { at, last } = chosen;
        if self.mapping.is_named() {
            self.read_named_unit(now, line_id, at, flash);
            if last {
                self.complete_scan(now, line_id, flash);
            }
            return true;
        }
        if at.member.is_multiple_of(PREFETCH_MEMBERS) && !self.mapping.is_cached() {
            self.prefetch_p2l(line_id, at);
        }
        let mut found = [(PhysSector(0), Lba(0)); 64];
        let mut count = 0;
        for phys in self.sectors_of_unit(line_id, at) {
            if let Some(lba) = self.p2l_lookup(line_id, phys) {
                found[count] = (phys, lba);
                count += 1;
            }
        }
        let found = &found[..count];
        let in_drive = self.is_copied_in_drive(found, flash);
        if !self.begin_gc_unit_of_kind(in_drive, flash) {
            self.gc.set_chosen_unit(Some(chosen));
            return false;
        }
        let mut addresses = self.gc.take_addresses();
        let mut first_slot = None;
        for &(phys, lba) in found {
            if !self.mapping.is_mapped_to(lba, phys) {
                continue;
            }
            let (under, under_sequence) =
                self.buffer.durable_copy_of(&self.env.geometry, L2pEntry::Flash(phys));
            let entry = BufferEntry {
                lba_plus_1: lba.get() + 1,
                poison: false,
                durable_copy: under,
                durable_copy_seq: under_sequence,
                trim_dep: 0,
                source: if in_drive { phys } else { NO_SECTOR },
            };
            let slot = self.buffer.push(GC, entry, true);
            self.mapping.pin(lba);
            first_slot = first_slot.or(Some(slot));
            addresses.push(ReadAddress::to_slot(phys, slot));
        }
        if let Some(first_slot) = first_slot {
            let count = addresses.len().to_u32();
            let read = Relocation { line: line_id, first_slot, count, again: 0 };
            let index = self.gc.begin_relocation(read);
            self.space.relocations_started(line_id, count);
            if in_drive {
                self.gc_read_done(index, 0, flash);
            } else {
                let op = OpToken::new(OpKind::GcRead, index);
                flash.read(now, op, &addresses, ReadDest::Buffer);
            }
            addresses.clear();
        }
        self.gc.return_addresses(addresses);
        if last {
            self.complete_scan(now, line_id, flash);
        }
        true
    }

    /// Returns whether the drive copies these sectors of a victim. Translation pages are read: a page
    /// that is in memory replaces one that cannot be read.
    #[inline]
    fn is_copied_in_drive(
        &self,
        found: &[(PhysSector, Lba)],
        flash: &mut impl FlashBackend,
    ) -> bool {
        let end = self.env.plan.host_end();
        flash.copies_in_drive() && found.iter().all(|(_, lba)| *lba < end)
    }

    /// Pads the ring's open unit if its sectors are read and the next ones are copied, or the other way
    /// round: the drive copies whole units. Returns `false` if the ring has no room for that.
    #[inline]
    fn begin_gc_unit_of_kind(&mut self, in_drive: bool, flash: &mut impl FlashBackend) -> bool {
        if !flash.copies_in_drive() {
            return true;
        }
        let ring = self.buffer.ring(GC);
        let differs = |entry: &BufferEntry| {
            entry.durable_copy != NO_SECTOR && (entry.source != NO_SECTOR) != in_drive
        };
        if !ring.open_entries().iter().any(differs) {
            return true;
        }
        let has_room = ring.free() >= ring.free_in_unit() + self.env.geometry.ws_opt;
        if has_room {
            self.fill_open_gc_unit(flash);
        }
        has_room
    }

    /// Returns the physical sectors of a victim's write unit; an empty range if it was not written.
    pub(crate) fn sectors_of_unit(
        &self,
        line: LineId,
        at: MemberUnit,
    ) -> impl Iterator<Item = PhysSector> + Clone + use<> {
        let sector = at.unit * self.env.geometry.ws_opt;
        match self.space.line(line).chunks.get(at.member.index()) {
            Some(chunk) if sector < self.space.chunk(*chunk).write_pointer => {
                let first = self.env.geometry.first_sector_of(*chunk) + sector;
                first.run(self.env.geometry.ws_opt)
            }
            _ => PhysSector(0).run(0),
        }
    }

    /// Returns the logical sector that was written at a physical sector of a victim.
    #[inline]
    pub(crate) fn p2l_lookup(&self, line: LineId, phys: PhysSector) -> Option<Lba> {
        if self.mapping.has_p2l() {
            return self.mapping.lba_at(phys);
        }
        let list = self.space.line(line).p2l.as_deref().or(self.gc.victim_p2l())?;
        let chunk = self.env.geometry.chunk_of(phys);
        let place = self.space.chunk(chunk).member_index;
        // The media is not trusted: sectors from here on do not exist.
        let end = self.env.plan.lba_end();
        list.lba(place, phys - self.env.geometry.first_sector_of(chunk)).filter(|lba| *lba < end)
    }

    /// Prefetches the P2L entries of the next members, so that their cache misses overlap.
    fn prefetch_p2l(&self, line: LineId, at: MemberUnit) {
        let members = self.space.line(line).chunks.iter().skip(at.member.index());
        let mut touched = 0u32;
        for &chunk in members.take(PREFETCH_MEMBERS.index()) {
            let first_phys =
                self.env.geometry.first_sector_of(chunk) + at.unit * self.env.geometry.ws_opt;
            for phys in first_phys.run(self.env.geometry.ws_opt) {
                if let Some(lba) = self.p2l_lookup(line, phys) {
                    touched ^= u32::from(self.mapping.is_mapped_to(lba, phys));
                }
            }
        }
        std::hint::black_box(touched);
    }

    /// Ends the scan of the oldest victim.
    fn complete_scan(&mut self, now: Nanos, line: LineId, flash: &mut impl FlashBackend) {
        self.gc.complete_scan();
        self.mapping.release_gc_pages();
        if self.space.line(line).state != LineState::Victim {
            if self.space.line(line).gate().relocations_in_flight() == 0 {
                self.health.on_relocated(line);
            } else if self.mapping.is_named() {
                self.update_waiting(line);
            }
            return self.space.emit_swept(line);
        }
        self.gc.begin_drain();
        self.space.begin_drain(line);
        self.reclaim_if_relocated(now, line, flash);
    }

    /// Reads once more what the first reads of relocations did not return.
    fn read_again(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = false;
        while let Some((index, read)) = self.gc.pop_retry() {
            let mut addresses = self.gc.take_addresses();
            for i in (0..read.count).filter(|i| read.again >> i & 1 != 0) {
                let slot = self.relocation_slot(read.first_slot, i);
                let phys = self.buffer.ring(GC).entry(slot).durable_copy;
                addresses.push(ReadAddress::to_slot(phys, slot));
            }
            flash.read(now, OpToken::new(OpKind::GcRead, index), &addresses, ReadDest::Buffer);
            addresses.clear();
            self.gc.return_addresses(addresses);
            moved = true;
        }
        moved
    }

    /// Reports the end of a read of a victim's sectors. What it did not return is read once more: a
    /// host may read again, and the only copy of a sector must not depend on one read.
    pub(crate) fn gc_read_done(&mut self, index: u32, failed: u64, flash: &mut impl FlashBackend) {
        let read = self.gc.relocation(index);
        let unread = if failed == 0 { 0 } else { read.unread(failed) };
        if unread != 0 && read.again == 0 {
            return self.gc.read_again(index, unread);
        }
        self.gc.end_relocation(index);
        if self.mapping.is_named() {
            return self.named_unit_read(read, unread, flash);
        }
        let mut moved = 0;
        for i in 0..read.count {
            let slot = self.relocation_slot(read.first_slot, i);
            let entry = *self.buffer.ring(GC).entry(slot);
            let lba = Lba(entry.lba_plus_1 - 1);
            let lost = unread >> i & 1 != 0;
            if lost {
                self.record_uncorrectable(self.env.geometry.chunk_of(entry.durable_copy));
            }
            flash.sync_slot(entry.durable_copy, slot);
            if self.mapping.is_mapped_to(lba, entry.durable_copy) {
                self.mapping.set(lba, L2pEntry::Buffer(slot));
                if let Some(change) = self.space.relocated_one(read.line) {
                    self.gc.on_candidate(change);
                }
                let poison = (lost || self.mapping.is_poisoned(entry.durable_copy))
                    && !self.restore_map_page(lba, slot, flash);
                self.buffer.fill_done(slot, true, poison);
                self.stats.uncorrectable_sectors += u64::from(lost);
                if poison {
                    self.durability.record_maybe_lost(lba);
                }
                moved += 1;
            } else {
                // Overwritten or trimmed meanwhile: the slot is written as padding.
                self.buffer.fill_done(slot, false, false);
                self.stats.padding += 1;
                self.mapping.unpin(lba);
            }
        }
        self.count_relocated(read.line, moved);
    }

    /// Counts sectors of a line that are read to be moved.
    pub(crate) fn count_relocated(&mut self, line: LineId, moved: u64) {
        self.stats.gc_relocations += moved;
        if self.health.is_refreshing(line) {
            self.stats.refresh_relocations += moved;
        }
        let free = self.free_sectors();
        self.gc.relocated(moved.to_u32(), free);
    }

    /// Returns the `i`-th slot after `first`; the ring wraps around.
    pub(crate) fn relocation_slot(&self, first: SlotId, i: u32) -> SlotId {
        let ring = self.buffer.ring(GC);
        let slot = first + i;
        if ring.has_slot(slot) { slot } else { SlotId(slot.get() - ring.capacity()) }
    }

    /// Pads the ring's last unit when no other relocation will fill it and space is short, so that
    /// victims can complete.
    fn pad_open_gc_unit(&mut self, flash: &mut impl FlashBackend) -> bool {
        if self.gc.draining() == 0 && !self.health.is_refreshing_any()
            || self.gc.current_scan().is_some()
            || self.gc.reads_in_flight() > 0
            || !self.health.is_refreshing_any()
                && self.gc.limiter().headroom(self.free_sectors()) > 0.5
        {
            return false;
        }
        self.fill_open_gc_unit(flash)
    }

    /// Fills the ring's last unit with padding. Returns whether it was open.
    fn fill_open_gc_unit(&mut self, flash: &mut impl FlashBackend) -> bool {
        let missing = self.buffer.ring(GC).free_in_unit();
        for _ in 0..missing {
            let slot = self.buffer.push(GC, BufferEntry::PADDING, false);
            flash.write_slot(slot, &[]);
            self.stats.padding += 1;
        }
        missing > 0
    }

    /// Counts the sources that the drive has copied, and that can be read where they were copied to.
    fn record_copied(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = false;
        while let Some(line) = self.gc.pop_copied() {
            self.relocation_durable(now, line, flash);
            moved = true;
        }
        moved
    }

    /// Counts the sectors of a durable unit as relocated, at the victims that they came from.
    pub(crate) fn record_durable_relocations(
        &mut self,
        id: UnitId,
        flash: &mut impl FlashBackend,
        now: Nanos,
    ) {
        if id.ring() != GC || self.mapping.is_named() {
            return;
        }
        for i in 0..self.env.geometry.ws_opt.index() {
            let entry = &self.buffer.ring(GC).entries(id)[i];
            // The source of a copy is read until the copy can be.
            if entry.durable_copy != NO_SECTOR && entry.source == NO_SECTOR {
                let line = self.space.line_of(self.env.geometry.chunk_of(entry.durable_copy));
                self.relocation_durable(now, line, flash);
            }
        }
    }

    /// Counts a sector of a victim as relocated.
    fn relocation_durable(&mut self, now: Nanos, line: LineId, flash: &mut impl FlashBackend) {
        let is_last = self.space.relocation_durable(line) == 0;
        if self.mapping.is_named() {
            self.update_waiting(line);
        }
        if is_last {
            self.sweep_done_if_open(line);
            self.reclaim_if_relocated(now, line, flash);
        }
    }

    /// Erases a victim whose scan has ended and whose relocated sectors are all durable.
    pub(crate) fn reclaim_if_relocated(
        &mut self,
        now: Nanos,
        line: LineId,
        flash: &mut impl FlashBackend,
    ) {
        if self.mapping.is_named() {
            self.update_waiting(line);
        }
        let l = self.space.line(line);
        if l.state != LineState::Draining || l.gate().relocations_in_flight() > 0 {
            return;
        }
        self.health.on_relocated(line);
        if self.waits_for_sources(line) {
            return;
        }
        let l = self.space.line(line);
        // The entries of a lost translation page are not known.
        let exact = self.stats.map_pages_lost + self.stats.pages_rebuilt == 0;
        debug_assert!(
            l.valid_sectors == 0 || !exact,
            "line {line} is reclaimed with valid sectors"
        );
        // A drive that keeps the L2P drops the entries of a chunk with its erase.
        let trimmed = l.gate().is_after_trims() && !self.durability.has_device_l2p();
        if trimmed || l.gate().after_pos() > self.buffer.durable_pos() {
            let trims = if trimmed { TrimDep::All } else { TrimDep::None };
            self.add_barrier(BarrierOwner::Erase(line), trims, 0);
        } else {
            self.erase_line(now, line, flash);
        }
    }

    /// Erases the chunks of a line that no reader, barrier or trim depends on any more.
    pub(crate) fn erase_line(&mut self, now: Nanos, line: LineId, flash: &mut impl FlashBackend) {
        tracepoint::trace_at(now, || Event::GcEnds { line: line.get() });
        let l = self.space.line(line);
        assert!(
            l.state == LineState::Draining && l.gate().is_idle(),
            "line {line} is erased although it is {:?}, with {:?}",
            l.state,
            l.gate()
        );
        tracing::debug!(at = now.0, line = line.get(), "line reclaimed");
        self.gc.end_drain();
        self.stats.lines_reclaimed += 1;
        self.mapping.drop_line_copies(&self.env, self.space.table(), line);
        if let Some(named) = self.mapping.named_mut() {
            self.space.line(line).chunks.iter().for_each(|chunk| named.forget_chunk(*chunk));
        }
        for i in 0..self.space.line(line).chunks.len() {
            let chunk = self.space.line(line).chunks[i];
            // Without a map, sectors of a retired chunk would be found after a power cut.
            match self.space.begin_chunk_erase(line, chunk, self.mapping.is_named()) {
                ChunkErase::Retired => {
                    self.stats.retired_chunks += 1;
                    tracing::info!(
                        at = now.0,
                        chunk = chunk.get(),
                        line = line.get(),
                        "chunk retired"
                    );
                }
                ChunkErase::Erasing => self.erase_or_defer(now, chunk, flash),
            }
        }
        self.space.release_if_erased(line);
        self.record_erased(line);
    }

    /// Records the end of the erase of a line, if that is complete.
    fn record_erased(&mut self, line: LineId) {
        if self.space.table().get(line).is_none_or(|l| l.state == LineState::Free)
            && let Some(named) = self.mapping.named_mut()
        {
            named.line_erased(line);
        }
    }

    /// Reports the end of an erase. Call [`kick`](Ftl::kick) afterwards.
    pub fn erase_done(&mut self, op: OpToken, status: Status) {
        if op.kind() == OpKind::Journal {
            return self.durability.journal_erase_done(op.index(), status);
        }
        op.expect_kind(OpKind::Erase);
        let chunk = ChunkId(op.index());
        self.stats.erases += 1;
        let line = self.space.line_of(chunk);
        if !self.space.erase_done(chunk, status.is_success()) {
            self.stats.erase_failures += u64::from(!status.is_success());
            self.stats.retired_chunks += 1;
            tracing::info!(chunk = chunk.get(), %status, "chunk retired after an erase");
        }
        self.record_erased(line);
    }
}
