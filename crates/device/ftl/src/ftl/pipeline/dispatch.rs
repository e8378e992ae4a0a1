//! Dispatch: the location of each write unit, completion and failure of its program, and the update
//! of the map from the write buffer to the media [LightNVM17 §4.2.1, §4.2.3].

use nvme::{ChunkId, Status};
use time::Nanos;

use crate::buffer::BegunProgram;
use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::{BufferUnit, UnitState};
use crate::durability::snapshot::LineOpened;
use crate::flash::OpKind;
use crate::ftl::{GC, GC_COLD, HOST, HOT, HOT_DATA, MAP_PAGES, STREAM_COUNT};
use crate::ids::{Lba, LineId, NO_SECTOR, SlotId, ToIndex, WriteSeq};
use crate::space::active_pus::WIDTH_UNLIMITED;
use crate::space::open_line::{NO_RETAINED_UNIT, OpenLine, PlacementBudget};
use crate::space::placement::{OpenLineSpace, Placement};
use crate::{BufferEntry, FlashBackend, Ftl, L2pEntry, OpToken, WriteUnit};

/// Marks the operation number of a program of padding that is not in a ring; the other bits are the
/// chunk.
const PAD_BIT: u32 = 1 << 28;

/// P2L entries of a cache line, which a load brings into the cache.
const P2L_ENTRIES_PER_LOAD: u32 = 16;
/// Chunks of a line whose P2L entries are loaded together.
const PREFETCH_CHUNKS: u32 = 16;

impl Ftl {
    /// Starts programs for all full units for which a parallel unit has a free program slot.
    pub(crate) fn dispatch_ready(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = self.write_headers(now, flash);
        // At most one footer per parallel unit: the second program slot is for host data.
        moved |= self.write_footers(now, flash);
        let mut at = 0;
        while let Some(id) = self.buffer.redispatch().get(at) {
            if self.env.config.atomic_writes && self.waits_for_newer(id) {
                at += 1;
            } else if self.dispatch_unit(now, id, flash) {
                self.buffer.remove_redispatched(at);
                moved = true;
            } else if id.ring() == GC {
                // A relocation without a location does not block host units: its source is still
                // readable, and the programs of host units may free space for it.
                at += 1;
            } else {
                return self.write_footers(now, flash) || moved;
            }
        }
        moved |= self.dispatch_ring(now, HOST, flash);
        if self.env.config.hot_stream {
            moved |= self.dispatch_ring(now, HOT, flash);
        }
        self.update_avoided_pus(flash);
        moved |= self.dispatch_ring(now, GC, flash);
        self.gc.end_placement();
        self.write_footers(now, flash) || moved
    }

    /// Dispatches the units of a ring that are ready.
    #[inline(always)]
    fn dispatch_ring(&mut self, now: Nanos, ring: usize, flash: &mut impl FlashBackend) -> bool {
        let mut moved = false;
        while let Some(id) = self.buffer.ring(ring).ready() {
            if !self.dispatch_unit(now, id, flash) {
                break;
            }
            self.buffer.advance_dispatched(ring);
            moved = true;
        }
        moved
    }

    #[inline]
    pub(crate) fn dispatch_unit(
        &mut self,
        now: Nanos,
        id: UnitId,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let stream = self.stream_of(id);
        !self.space.programs().is_blocked(stream) && self.place_and_program(now, id, stream, flash)
    }

    /// Starts the program of a unit of a stream, if there is a location for it.
    #[inline(never)]
    fn place_and_program(
        &mut self,
        now: Nanos,
        id: UnitId,
        stream: usize,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let ring = id.ring();
        if ring == GC && !self.gc_can_place_unit() {
            return false;
        }
        if self.buffer.unit(id).state == UnitState::Filling && !self.can_assign_seq(ring) {
            return false;
        }
        let Some(at) = self.choose_placement(ring, stream) else {
            if ring == GC {
                self.gc.record_unplaced();
            }
            // With no program in flight no event would retry the unit.
            let blocked = self.space.programs().total() > 0 && !self.gc.is_program_deferred();
            self.space.set_blocked(stream, blocked);
            return false;
        };
        let u = self.buffer.unit(id);
        assert!(
            u.state <= UnitState::Programming,
            "unit {} of ring {ring} is dispatched although it is {:?}",
            id.index(),
            u.state
        );
        let Placement { chunk, sector, .. } = at;
        let write_pointer = self.space.chunk(chunk).write_pointer;
        assert!(
            sector >= write_pointer,
            "sector {sector} of {chunk} is placed behind the write pointer {write_pointer}"
        );
        if u.state == UnitState::Filling && (ring == GC || u.redispatch_from != LineId::NONE) {
            self.drop_superseded(id, flash);
        }
        let first_phys = self.env.geometry.first_sector_of(chunk) + sector;
        if first_phys.get().is_multiple_of(P2L_ENTRIES_PER_LOAD) {
            self.prefetch_p2l_ahead(at);
        }
        let entries = self.buffer.ring(ring).entries(id).iter();
        self.mapping.record_written(first_phys, entries.map(BufferEntry::written));
        let BegunProgram { sequence, is_new } = self.buffer.begin_program(id, chunk, sector);
        if is_new && ring == GC {
            self.durability.record_relocated(self.env.geometry.ws_opt);
        }
        if let Some(named) = self.mapping.named_mut() {
            named.record_program(chunk, sequence);
        }
        let entries = self.buffer.ring(ring).entries(id).iter();
        let written = entries.map(BufferEntry::written);
        self.space.program_started(&self.env, at, sequence, written);
        self.stats.programs += 1;
        let op = OpToken::new(OpKind::Program, id.raw());
        let ring = self.buffer.ring(ring);
        let (first_slot, entries) = (ring.slot_of_unit(id), ring.entries(id));
        let (metadata, in_slots) = (false, false);
        let named = self.buffer.named().of_unit(first_slot, self.env.geometry.ws_opt);
        let unit =
            WriteUnit { chunk, sector, first_slot, sequence, entries, metadata, in_slots, named };
        flash.program(now, op, unit);
        true
    }

    /// Reports that the drive could not copy the sources of a program, and that they were read into
    /// their slots instead, except for the sectors of the unit in `failed`. Those are lost. The unit
    /// is programmed from its slots, at its location.
    pub fn copy_failed(
        &mut self,
        now: Nanos,
        op: OpToken,
        failed: u64,
        flash: &mut impl FlashBackend,
    ) {
        op.expect_kind(OpKind::Program);
        let id = UnitId::from_raw(op.index());
        let BufferUnit { chunk, sector, sequence, .. } = *self.buffer.unit(id);
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id);
        for i in (0..self.env.geometry.ws_opt).filter(|i| failed >> i & 1 != 0) {
            let entry = *self.buffer.entry(first_slot + i);
            let Some(source) = entry.source() else { continue };
            self.record_uncorrectable(self.env.geometry.chunk_of(source));
            if entry.lba().is_some() {
                self.buffer.poison(first_slot + i);
                self.stats.uncorrectable_sectors += 1;
            }
        }
        let first_phys = self.env.geometry.first_sector_of(chunk) + sector;
        let entries = self.buffer.ring(id.ring()).entries(id);
        self.mapping.record_written(first_phys, entries.iter().map(BufferEntry::written));
        self.space.record_contents(
            chunk,
            sector,
            sequence,
            entries.iter().map(BufferEntry::written),
        );
        let (metadata, in_slots, named) = (false, true, &[][..]);
        let unit =
            WriteUnit { chunk, sector, first_slot, sequence, entries, metadata, in_slots, named };
        flash.program(now, op, unit);
    }

    /// Loads the P2L entries of a unit and of those placed next, on the following chunks of its line, so
    /// that their cache misses overlap.
    #[inline]
    fn prefetch_p2l_ahead(&self, at: Placement) {
        let member = self.space.chunk(at.chunk).member_index;
        if member.is_multiple_of(PREFETCH_CHUNKS) {
            let chunks = self.space.line(at.line).chunks.iter().skip(member.index());
            let loaded = chunks.take(PREFETCH_CHUNKS.index()).fold(0, |loaded, chunk| {
                let phys = self.env.geometry.first_sector_of(*chunk) + at.sector;
                loaded ^ self.mapping.prefetch_p2l(phys)
            });
            std::hint::black_box(loaded);
        }
    }

    /// Pads chunks from outside of the rings when a ring is full of units that wait for their paired
    /// pages: no unit can enter the ring that would program those pages.
    pub(crate) fn break_pair_deadlock(
        &mut self,
        now: Nanos,
        flash: &mut impl FlashBackend,
    ) -> bool {
        // A chunk with a program in flight needs no padding yet.
        let waits = |chunk: &ChunkId| self.buffer.first_on(*chunk).is_some();
        let still = |chunk: &ChunkId| {
            !self.space.programs().has_pad_on(*chunk) && self.buffer.only_waits_for_pairs(*chunk)
        };
        let stuck = self.buffer.pair_blocked_chunks().filter(waits).find(still);
        let Some(chunk) = stuck else { return false };
        let (placed, drops_footer) = self.space.place_pair_padding(&self.env, chunk);
        self.stats.lines_without_metadata += u64::from(drops_footer);
        let Some(at) = placed else { return false };
        self.pad_unit(now, at, flash);
        true
    }

    /// Programs padding, from outside of the rings, into a write unit of an open line.
    pub(crate) fn pad_unit(&mut self, now: Nanos, at: Placement, flash: &mut impl FlashBackend) {
        let Placement { chunk, sector, .. } = at;
        let first_phys = self.env.geometry.first_sector_of(chunk) + sector;
        self.mapping.record_nothing(first_phys, self.env.geometry.ws_opt);
        self.space.pad_started(&self.env, at);
        self.stats.programs += 1;
        self.stats.padding += u64::from(self.env.geometry.ws_opt);
        let op = OpToken::new(OpKind::Program, PAD_BIT | chunk.get());
        let first_slot = SlotId(self.buffer.capacity());
        let ws_opt = self.env.geometry.ws_opt;
        let unit = WriteUnit::without_sectors(chunk, sector, first_slot, ws_opt);
        flash.program(now, op, unit);
    }

    /// Returns the stream of a unit. Data relocated for static wear leveling is not mixed with other
    /// data.
    #[inline]
    fn stream_of(&self, id: UnitId) -> usize {
        if id.ring() == HOST && self.holds_only_map_pages(id) {
            MAP_PAGES
        } else if id.ring() == GC && self.is_cold(id) {
            GC_COLD
        } else if id.ring() == HOT {
            HOT_DATA
        } else if self.env.config.hot_cold {
            id.ring()
        } else {
            HOST
        }
    }

    /// Chooses the location of a ring's next unit. When half of the ring is not readable on flash
    /// yet, the chunk of the oldest such unit comes first: slots are freed in order, so one chunk
    /// that falls behind, because its parallel unit was busy, holds up the whole ring.
    fn choose_placement(&mut self, ring: usize, stream: usize) -> Option<Placement> {
        // A line of any stream of this ring may fall behind, not only one of the unit's own
        // stream.
        let last = if ring == HOST { HOST } else { stream };
        let streams = [stream, GC_COLD, MAP_PAGES, last];
        let retained = self.space.retained_units(&self.env, ring);
        let units = self.buffer.ring(ring);
        let from = PlacementBudget {
            ring,
            unit: units.dispatched(),
            units_to_spare: units.dispatchable_after(retained.first) as i64 - retained.free_units,
        };
        if let Some(chunk) = units.oldest_unreadable_chunk()
            && let Some(at) = self.space.place_on_chunk(&self.env, from, streams, chunk)
        {
            return Some(at);
        }
        // With retained units, slots are freed only after the line's footer is written: the ring
        // must have room for all units up to the footer.
        if retained.first != NO_RETAINED_UNIT && from.units_to_spare <= 0 {
            return self.space.place_on_retained_line(&self.env, from);
        }
        // After `set_active_pus` lowered the width, chunks of the former stripe may be left
        // behind. They are continued as many at a time as the stripe is wide, so that the write
        // buffer drains at the usual rate.
        let width = self.space.stripe_width(self.env.plan.active_pus);
        if width != WIDTH_UNLIMITED {
            let chunks = units.unreadable_chunks(width);
            let placed = self.space.place_on_trailing_chunk(&self.env, from, stream, chunks);
            if placed.is_some() {
                return placed;
            }
        }
        self.place_unit(from, stream)
    }

    /// Finds a location for a write unit, and opens a line if the open ones have no room. Without a
    /// free chunk, open lines of another stream are used.
    fn place_unit(&mut self, from: PlacementBudget, stream: usize) -> Option<Placement> {
        loop {
            let OpenLineSpace { placed, free_units: room } = self.place_on_open_line(from, stream);
            if placed.is_some() {
                return placed;
            }
            // Without other room, any data may use the room kept for cold data.
            if stream != GC_COLD
                && !self.space.open_lines(GC_COLD).is_empty()
                && self.gc.limiter().headroom(self.free_sectors()) <= 0.0
                && let placed @ Some(_) = self.place_on_open_line(from, GC_COLD).placed
            {
                return placed;
            }
            // The next line is opened before the first one is full: early enough that the
            // journal record of its opening is durable in time, which takes three successive
            // programs at worst.
            let units = self.env.plan.line_sectors / self.env.geometry.ws_opt;
            let end = (4 * self.env.plan.active_pus).min(units / 2).max(self.env.plan.active_pus);
            let one = stream == GC_COLD && room > 0;
            if one || room >= end || self.space.open_lines(stream).len() >= 2 && room > 0 {
                return None;
            }
            // Without a free line, room in any open line comes first: sectors that were
            // overwritten in it can be reclaimed only after it is full.
            if self.space.free_chunks() < 2 * self.env.plan.active_pus {
                let mut left = room;
                for other in (0..STREAM_COUNT).filter(|other| *other != stream) {
                    let OpenLineSpace { placed, free_units: room } =
                        self.place_on_open_line(from, other);
                    if placed.is_some() {
                        return placed;
                    }
                    left += room;
                }
                if left > 0 && self.space.programs().total() > 0 {
                    return None;
                }
            }
            // A line narrower than configured is opened only if no erase is in flight that
            // would add chunks.
            if self.space.free_chunks() < self.env.plan.active_pus && self.space.erasing() > 0 {
                return None;
            }
            match self.space.open_line(stream, self.buffer.next_seq()) {
                Some(open) => {
                    if !self.journal_line_open(stream, open) {
                        return None;
                    }
                }
                None if room == 0 => {
                    let mut others = (0..STREAM_COUNT).filter(|other| *other != stream);
                    return others.find_map(|other| self.place_on_open_line(from, other).placed);
                }
                None => return None,
            }
        }
    }

    /// Appends the record of a line's opening to the journal. Returns `false` if the journal has no
    /// room.
    fn journal_line_open(&mut self, stream: usize, open: OpenLine) -> bool {
        let mut recorded = None;
        // The recovery from the drive's L2P does not use line records.
        if !self.durability.has_device_l2p() {
            let chunks = open.members.iter().map(|m| m.chunk).collect();
            recorded = self.durability.line_opened(&LineOpened { stream: stream as u8, chunks });
            if recorded.is_none() {
                self.space.cancel_open(&open);
                return false;
            }
        }
        tracing::debug!(line = open.line.get(), stream, "line opened");
        self.space.add_open_line(stream, open, recorded);
        true
    }

    /// Returns a location in a stream's open lines, or the number of write units that they have room
    /// for.
    fn place_on_open_line(&mut self, from: PlacementBudget, stream: usize) -> OpenLineSpace {
        let (recorded, gc) = (self.durability.journal().durable(), &self.gc);
        self.space.place_on_open_line(&self.env, from, stream, recorded, |pu| gc.should_avoid(pu))
    }

    /// Reports the end of a program. Call [`kick`](Ftl::kick) afterwards.
    pub fn program_done(
        &mut self,
        now: Nanos,
        op: OpToken,
        status: Status,
        flash: &mut impl FlashBackend,
    ) {
        if op.kind() == OpKind::Journal {
            return self.journal_program_done(op.index(), status);
        }
        if op.kind() == OpKind::Meta {
            return self.metadata_program_done(op.index(), status);
        }
        op.expect_kind(OpKind::Program);
        let padding = op.index() & PAD_BIT != 0;
        let id = UnitId::from_raw(op.index());
        let (chunk, sector) = if padding {
            let chunk = ChunkId(op.index() & !PAD_BIT);
            (chunk, self.space.take_pad(chunk))
        } else {
            let unit = self.buffer.unit(id);
            assert!(
                unit.state == UnitState::Programming,
                "no program of unit {id:?} is in flight: it is {:?}",
                unit.state
            );
            (unit.chunk, unit.sector)
        };
        let line = self.space.program_ended(&self.env, chunk);
        let gone = self.space.chunk(chunk).offline || status.is(Status::OFFLINE_CHUNK);
        let mut rescued_from = line;
        if status.is_success() && !gone {
            self.space.on_programmed(chunk, sector + self.env.geometry.ws_opt);
            if !padding {
                let durable = self.buffer.program_done(id);
                if self.mapping.is_named() {
                    self.publish_named(id, durable.redispatched_from.is_some());
                } else {
                    self.publish_durable(id, durable.sequence);
                }
                if let Some(from) = durable.redispatched_from {
                    rescued_from = from;
                    self.space.release_hold(from);
                } else {
                    self.record_durable_relocations(id, flash, now);
                }
            }
        } else {
            if gone {
                self.stats.program_failures += 1;
                self.chunk_offline(chunk);
            } else {
                self.program_failed(chunk);
            }
            if !padding {
                self.requeue_failed(id);
            }
        }
        self.release_readable_units(chunk);
        self.buffer.advance_watermarks();
        self.close_if_done(line);
        self.close_if_done(rescued_from);
        self.complete_barriers(now, flash);
        self.complete_deferred();
    }

    /// Records that a unit is on the media: updates the entries that overwrite one of its sectors
    /// in the buffer.
    fn publish_durable(&mut self, id: UnitId, sequence: WriteSeq) {
        let geometry = self.env.geometry;
        let u = self.buffer.unit(id);
        let first_phys = geometry.first_sector_of(u.chunk) + u.sector;
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id);
        // The translation pages of these host sectors become dirty.
        let has_pages = !self.durability.has_device_l2p();
        let paged_end = if has_pages { self.env.plan.host_end() } else { Lba(0) };
        for i in 0..geometry.ws_opt {
            let entry = self.buffer.ring(id.ring()).entry(first_slot + i);
            let Some(lba) = entry.lba() else { continue };
            let trim = entry.trim_dep;
            if lba < paged_end {
                self.durability.mark_dirty(self.env.pages.page_of(lba));
            }
            if !self.mapping.is_at(lba, L2pEntry::Buffer(first_slot + i))
                && let L2pEntry::Buffer(slot) = self.mapping.get(lba)
            {
                self.buffer.older_copy_durable(slot, trim, first_phys + i, sequence);
            }
        }
    }

    /// Handles a failed program: the chunk takes no further units, its line is the next victim, and
    /// the chunk is retired after the erase [LightNVM17 §4.2.3].
    pub(crate) fn program_failed(&mut self, chunk: ChunkId) {
        self.stats.program_failures += 1;
        tracing::info!(chunk = chunk.get(), "a program failed: the chunk is closed");
        self.space.program_failed(&self.env, chunk);
    }

    /// Closes a line if no further sector will be mapped into it and no operation on it is in
    /// flight.
    pub(crate) fn close_if_done(&mut self, line: LineId) {
        if let Some(closed) = self.space.close_if_done(line) {
            self.gc.add_candidate(closed);
        }
    }

    /// Points the map at flash for every unit of a chunk that has become readable from the media.
    pub(crate) fn release_readable_units(&mut self, chunk: ChunkId) {
        let readable_end = self.space.table().chunk(chunk).readable_end(&self.env.geometry);
        while let Some(id) = self.buffer.pop_readable(&self.env.geometry, chunk, readable_end) {
            self.release_unit(id, chunk);
        }
    }

    fn release_unit(&mut self, id: UnitId, chunk: ChunkId) {
        if self.mapping.is_named() {
            // Its sectors have been valid on the media since the end of its program.
            return;
        }
        let ring = self.buffer.ring(id.ring());
        let first_phys = self.env.geometry.first_sector_of(chunk) + ring.unit(id).sector;
        let first_slot = ring.slot_of_unit(id);
        let head = self.buffer.head_pos();
        let line = self.space.line_of(chunk);
        for (i, entry) in (0..).zip(ring.entries(id)) {
            if entry.source != NO_SECTOR {
                // Nothing reads the source any more.
                let line = self.space.line_of(self.env.geometry.chunk_of(entry.source));
                self.gc.add_copied(line);
            }
            let Some(lba) = entry.lba() else { continue };
            match self.mapping.move_to_flash(lba, first_slot + i, first_phys + i) {
                Ok(()) => self.space.count_valid(line),
                Err(L2pEntry::Unmapped) => self.space.wait_before_erase(line, None),
                // Overwritten in the buffer: this copy stays valid for recovery until
                // the new one is durable.
                Err(_) => self.space.wait_before_erase(line, Some(head)),
            }
        }
    }
}
