//! Programming: where write units go, what happens when a program ends or fails, and when the map
//! moves from the write buffer to the media (LightNVM paper sections 4.2.1 and 4.2.3).

use clock::Nanos;
use nvme::Status;

use crate::buffer::BegunProgram;
use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::durability::snapshot::LineOpened;
use crate::flash::OpKind;
use crate::ftl::{GC, GC_COLD, HOST, MAP_PAGES, STREAM_COUNT};
use crate::space::active_pus::WIDTH_UNLIMITED;
use crate::space::lines::NONE;
use crate::space::open_line::{NO_RETAINED_UNIT, OpenLine, PlacementBudget};
use crate::space::programs::PadWrite;
use crate::{BufferEntry, FlashBackend, Ftl, L2pEntry, OpToken, WriteUnit};

/// Names a program of padding from outside of the rings; the rest of the name is its chunk.
const PAD_BIT: u32 = 1 << 28;

impl Ftl {
    /// Starts programs for all units that are ready, as far as parallel units take them.
    pub(crate) fn dispatch_ready(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = self.write_headers(now, flash);
        // One per parallel unit at most: users have the other program that it takes.
        moved |= self.write_footers(now, flash);
        let mut at = 0;
        while let Some(id) = self.buffer.redispatch().get(at) {
            let (ring, unit) = (id.ring(), id.index());
            if self.dispatch_unit(now, ring, unit, flash) {
                self.buffer.remove_redispatched(at);
                moved = true;
            } else if ring == GC {
                // Moved data that finds no place holds nobody up: what it came from is still there, and
                // space for it may come from what users' units make durable.
                at += 1;
            } else {
                return self.write_footers(now, flash) || moved;
            }
        }
        // Users first: what they may write has been limited on admission, and victims may wait for
        // it to be durable.
        for ring in [HOST, GC] {
            self.update_avoided_pus(ring, flash);
            while let Some(unit) = self.buffer.ring(ring).ready() {
                if !self.dispatch_unit(now, ring, unit, flash) {
                    break;
                }
                self.buffer.advance_dispatched(ring);
                moved = true;
            }
        }
        self.gc.end_placement();
        self.write_footers(now, flash) || moved
    }

    pub(crate) fn dispatch_unit(
        &mut self,
        now: Nanos,
        ring: usize,
        unit: u32,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let stream = self.stream_of(ring, unit);
        if ring == GC && !self.gc_can_place_unit() {
            return false;
        }
        if self.space.programs.is_blocked(stream) {
            return false;
        }
        if self.buffer.ring(ring).unit(unit).state == UnitState::Filling
            && !self.can_assign_seq(ring)
        {
            return false;
        }
        let Some((line, chunk, sector)) = self.choose_placement(ring, stream) else {
            if ring == GC {
                self.gc.record_unplaced();
            }
            // If nothing is under way, what unblocks it is not foreseen here.
            let blocked = self.space.programs.total() > 0 && !self.gc.is_program_deferred();
            self.space.programs.set_blocked(stream, blocked);
            return false;
        };
        let u = self.buffer.ring(ring).unit(unit);
        assert!(
            u.state <= UnitState::Programming,
            "unit {unit} of ring {ring} is dispatched although it is {:?}",
            u.state
        );
        let write_pointer = self.space.lines.chunks[chunk as usize].write_pointer;
        assert!(
            sector >= write_pointer,
            "sector {sector} of chunk {chunk} is placed behind the write pointer {write_pointer}"
        );
        let id = UnitId::new(ring, unit);
        if u.state == UnitState::Filling && (ring == GC || u.redispatch_from != NONE) {
            self.drop_superseded(id);
        }
        let first_psn = self.env.geometry.first_sector_of(chunk) + sector;
        let entries = self.buffer.ring(ring).entries(unit).iter();
        self.mapping.record_written(first_psn, entries.map(BufferEntry::written));
        let BegunProgram { sequence, is_new } = self.buffer.begin_program(id, chunk, sector);
        if is_new && ring == GC {
            self.durability.record_relocated(self.env.geometry.ws_opt);
        }
        let entries = self.buffer.ring(ring).entries(unit).iter();
        let written = entries.map(BufferEntry::written);
        self.space.lines.record_unit(line, chunk, sector, sequence, written);
        self.space.programs.start(self.env.geometry.pu_of(chunk));
        self.stats.programs += 1;
        let op = OpToken::new(OpKind::Program, id.raw());
        let ring = self.buffer.ring(ring);
        let (first_slot, entries) = (ring.slot_of_unit(unit), ring.entries(unit));
        let unit = WriteUnit { chunk, sector, first_slot, sequence, entries, metadata: false };
        flash.program(now, op, unit);
        true
    }

    /// When a ring is full of units that wait for their pairs, nothing can be put into it that
    /// would program those: padding does, from outside of the rings.
    pub(crate) fn break_pair_deadlock(
        &mut self,
        now: Nanos,
        flash: &mut impl FlashBackend,
    ) -> bool {
        // A chunk that has something under way gets there by itself.
        let waits = |chunk: &u32| self.buffer.first_on(*chunk).is_some();
        let still = |chunk: &u32| {
            !self.space.programs.has_pad_on(*chunk) && self.buffer.only_waits_for_pairs(*chunk)
        };
        let stuck = self.buffer.pair_blocked_chunks().filter(waits).find(still);
        let Some(chunk) = stuck else { return false };
        let has = |o: &&mut OpenLine| o.members.iter().any(|m| m.chunk == chunk);
        let Some(open) = self.space.open_lines.iter_mut().flatten().find(has) else { return false };
        let line = open.line;
        let mut chunk = chunk;
        if open.is_blocked_on_footer(&self.env.geometry, chunk) {
            // What is kept for the last metadata comes when the other chunks are full. With little
            // left in them they are padded, else there will be none.
            if open.free_units <= open.members.len() as u32 {
                let programs = &self.space.programs;
                let is_free = |chunk| !programs.has_pad_on(chunk);
                let Some(other) = open.other_writable_chunk(is_free) else { return false };
                chunk = other;
            } else {
                open.release_footer(&self.env.geometry, &mut self.space.lines);
                self.stats.lines_without_metadata += 1;
            }
        }
        let from = PlacementBudget { ring: HOST, unit: NO_RETAINED_UNIT, units_to_spare: 0 };
        let Some(sector) = open.allocate_on(&self.env.geometry, from, chunk) else { return false };
        (0..STREAM_COUNT).for_each(|stream| self.retire_full_open_lines(stream));
        self.pad_unit(now, line, chunk, sector, flash);
        true
    }

    /// Programs padding, from outside of the rings, into a write unit that was taken from an open line.
    pub(crate) fn pad_unit(
        &mut self,
        now: Nanos,
        line: u32,
        chunk: u32,
        sector: u32,
        flash: &mut impl FlashBackend,
    ) {
        self.space.programs.add_pad(PadWrite { chunk, sector });
        let first_psn = self.env.geometry.first_sector_of(chunk) + sector;
        self.mapping.record_nothing(first_psn, self.env.geometry.ws_opt);
        self.space.lines.lines[line as usize].programs_in_flight += 1;
        self.space.programs.start(self.env.geometry.pu_of(chunk));
        self.stats.programs += 1;
        self.stats.padding += u64::from(self.env.geometry.ws_opt);
        let op = OpToken::new(OpKind::Program, PAD_BIT | chunk);
        let slot = self.buffer.ring(HOST).capacity() + self.buffer.ring(GC).capacity();
        let entries = &[BufferEntry::PADDING; 64][..self.env.geometry.ws_opt as usize];
        let unit =
            WriteUnit { chunk, sector, first_slot: slot, sequence: 0, entries, metadata: false };
        flash.program(now, op, unit);
    }

    /// The stream that a unit goes to: what is moved for the sake of wear alone does not mix with others.
    fn stream_of(&self, ring: usize, unit: u32) -> usize {
        if ring == HOST && self.holds_only_map_pages(unit) {
            MAP_PAGES
        } else if ring == GC && self.is_cold(unit) {
            GC_COLD
        } else if self.env.config.hot_cold {
            ring
        } else {
            HOST
        }
    }

    /// A place for a ring's next unit. When the ring is half full of what cannot be read yet, its
    /// oldest chunk comes first: slots are free in order, and one chunk that lags behind the others
    /// because its parallel unit has been busy would hold up all of them.
    fn choose_placement(&mut self, ring: usize, stream: usize) -> Option<(u32, u32, u32)> {
        // Any line that takes units of the ring may lag, not only one of this unit's stream.
        let last = if ring == HOST { HOST } else { stream };
        let streams = [stream, GC_COLD, MAP_PAGES, last];
        let (from, holds) = self.placement_budget(ring);
        if let Some(chunk) = self.buffer.ring(ring).oldest_unreadable_chunk() {
            let free = self.space.programs.has_slot(self.env.geometry.pu_of(chunk));
            let at = self.space.lines.chunks[chunk as usize].member_index as usize;
            for stream in streams.into_iter().filter(|_| free) {
                let mut open = self.space.open_lines[stream].iter_mut();
                if let Some((line, sector)) = open.find_map(|o| {
                    Some((o.line, o.allocate_at(&self.env.geometry, from, chunk, at)?))
                }) {
                    self.retire_full_open_lines(stream);
                    return Some((line, chunk, sector));
                }
            }
        }
        // What keeps its slots until a line's last metadata is written waits for all of that line: as much
        // of the ring as it takes is kept for it.
        if holds && from.units_to_spare <= 0 {
            return self.place_on_retained_line(from);
        }
        // Written to fewer parallel units than before, chunks that were left behind would be gone on with
        // one at a time: as many at a time as are written, so that the write buffer keeps flowing.
        if self.stripe_width() != WIDTH_UNLIMITED {
            let free = |chunk: &u32| {
                let open = self.space.open_lines[stream].iter().flat_map(|o| &o.members);
                self.space.programs.has_slot(self.env.geometry.pu_of(*chunk))
                    && open.filter(|m| m.next < m.end).any(|m| m.chunk == *chunk)
            };
            let laggard = self.buffer.ring(ring).unreadable_chunks(self.stripe_width()).find(free);
            let mut open = self.space.open_lines[stream].iter_mut();
            if let Some(chunk) = laggard
                && let Some((line, sector)) = open
                    .find_map(|o| Some((o.line, o.allocate_on(&self.env.geometry, from, chunk)?)))
            {
                self.retire_full_open_lines(stream);
                return Some((line, chunk, sector));
            }
        }
        self.place_unit(from, stream)
    }

    /// A ring's next unit, and whether lines hold units of the ring until they are full. With lines that
    /// do, the units that fit behind the first one held, less what those lines still take.
    fn placement_budget(&self, ring: usize) -> (PlacementBudget, bool) {
        let (mut first, mut room) = (NO_RETAINED_UNIT, 0);
        for open in
            self.space.open_lines.iter().flatten().filter(|o| o.retained[ring] != NO_RETAINED_UNIT)
        {
            first = first.min(open.retained[ring]);
            room += i64::from(open.free_units);
        }
        let (unit, fits) =
            (self.buffer.ring(ring).dispatched(), self.buffer.ring(ring).dispatchable_after(first));
        (
            PlacementBudget { ring, unit, units_to_spare: fits as i64 - room },
            first != NO_RETAINED_UNIT,
        )
    }

    /// A place in a line that holds units of the ring.
    fn place_on_retained_line(&mut self, from: PlacementBudget) -> Option<(u32, u32, u32)> {
        let (width, busy) = (self.stripe_width(), &self.space.programs);
        for stream in 0..STREAM_COUNT {
            for open in self.space.open_lines[stream]
                .iter_mut()
                .filter(|o| o.retained[from.ring] != NO_RETAINED_UNIT)
            {
                let accepts = |pu: u32| busy.has_slot(pu);
                if let Some((chunk, sector)) =
                    open.allocate(&self.env.geometry, from, width, accepts)
                {
                    let line = open.line;
                    self.retire_full_open_lines(stream);
                    return Some((line, chunk, sector));
                }
            }
        }
        None
    }

    /// Finds a place for a write unit, opening a line when the open ones have none. When no chunk
    /// is left, the other stream's open lines will do.
    fn place_unit(&mut self, from: PlacementBudget, stream: usize) -> Option<(u32, u32, u32)> {
        loop {
            let (placed, room) = self.place_on_open_line(from, stream);
            if placed.is_some() {
                return placed;
            }
            // Room that is kept for cold data is everybody's when there is no other.
            if stream != GC_COLD
                && !self.space.open_lines[GC_COLD].is_empty()
                && self.gc.limiter().headroom(self.free_sectors()) <= 0.0
                && let (placed @ Some(_), _) = self.place_on_open_line(from, GC_COLD)
            {
                return placed;
            }
            // A second line is opened when the first one draws to its end: early enough for the
            // journal to say so before it is needed, three programs in a row at worst.
            let units = self.env.plan.line_sectors / self.env.geometry.ws_opt;
            let end = (4 * self.env.plan.active_pus).min(units / 2).max(self.env.plan.active_pus);
            let one = stream == GC_COLD && room > 0;
            if one || room >= end || self.space.open_lines[stream].len() >= 2 && room > 0 {
                return None;
            }
            // With no line to spare, room in any open line comes first: what was overwritten in it cannot
            // be won back before it is full.
            if self.space.lines.free_chunks() < 2 * self.env.plan.active_pus {
                let mut left = room;
                for other in (0..STREAM_COUNT).filter(|other| *other != stream) {
                    let (placed, room) = self.place_on_open_line(from, other);
                    if placed.is_some() {
                        return placed;
                    }
                    left += room;
                }
                if left > 0 && self.space.programs.total() > 0 {
                    return None;
                }
            }
            // A line is opened narrower than it should be only when no chunk is on its way back.
            if self.space.lines.free_chunks() < self.env.plan.active_pus
                && self.space.lines.erasing > 0
            {
                return None;
            }
            match self.space.lines.open(stream as u8, self.buffer.next_seq()) {
                Some(open) => {
                    if !self.journal_line_open(stream, open) {
                        return None;
                    }
                }
                None if room == 0 => {
                    let mut others = (0..STREAM_COUNT).filter(|other| *other != stream);
                    return others.find_map(|other| self.place_on_open_line(from, other).0);
                }
                None => return None,
            }
        }
    }

    /// Has the journal say that a line was opened. Without room there it is not.
    fn journal_line_open(&mut self, stream: usize, mut open: OpenLine) -> bool {
        if self.durability.has_device_l2p() {
            // Its recovery does not ask for lines.
            self.space.open_lines[stream].push(open);
            return true;
        }
        let chunks = open.members.iter().map(|m| m.chunk).collect();
        let opened = LineOpened { stream: stream as u8, chunks };
        let Some(recorded_lsn) = self.durability.line_opened(&opened) else {
            self.space.lines.cancel_open(open.line);
            return false;
        };
        open.recorded_lsn = recorded_lsn;
        let first = (self.space.lines.lines[open.line as usize].open_seq, open.members[0].chunk);
        open.previous = self.space.line_meta_writer.replace_previous(stream, first);
        self.space.open_lines[stream].push(open);
        true
    }

    /// A place in a stream's open lines, or how many write units they have room for.
    fn place_on_open_line(
        &mut self,
        from: PlacementBudget,
        stream: usize,
    ) -> (Option<(u32, u32, u32)>, u32) {
        let mut room = 0;
        let recorded = self.durability.journal().durable();
        let mut width = self.stripe_width();
        for open in self.space.open_lines[stream].iter_mut().take(2) {
            if open.recorded_lsn > recorded || width == 0 {
                room += open.free_units;
                continue;
            }
            let (busy, gc) = (&self.space.programs, &self.gc);
            let accepts = |pu: u32| busy.has_slot(pu) && !gc.should_avoid(pu);
            if let Some((chunk, sector)) = open.allocate(&self.env.geometry, from, width, accepts) {
                let line = open.line;
                if open.free_units == 0 {
                    self.retire_full_open_lines(stream);
                }
                return (Some((line, chunk, sector)), 0);
            }
            room += open.free_units;
            if width != WIDTH_UNLIMITED {
                width = width.saturating_sub(open.writable_members());
            }
        }
        (None, room)
    }

    /// Forgets open lines that take no more; they close when their programs are done.
    pub(crate) fn retire_full_open_lines(&mut self, stream: usize) {
        let lines = &mut self.space.lines;
        self.space.open_lines[stream].retain(|open| {
            if open.free_units == 0 {
                lines.lines[open.line as usize].fully_mapped = true;
            }
            open.free_units > 0
        });
    }

    /// A program has ended. [`kick`](Ftl::kick) afterwards.
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
            let chunk = op.index() & !PAD_BIT;
            (chunk, self.space.programs.take_pad(chunk))
        } else {
            let unit = self.buffer.unit(id);
            assert!(
                unit.state == UnitState::Programming,
                "no program of unit {id:?} is in flight: it is {:?}",
                unit.state
            );
            (unit.chunk, unit.sector)
        };
        let line = self.space.lines.line_of[chunk as usize];
        self.space.lines.lines[line as usize].programs_in_flight -= 1;
        self.space.programs.complete(self.env.geometry.pu_of(chunk));
        let gone =
            self.space.lines.chunks[chunk as usize].offline || status.is(Status::OFFLINE_CHUNK);
        let mut rescued_from = line;
        if status.is_success() && !gone {
            self.space.lines.chunks[chunk as usize]
                .on_programmed(sector + self.env.geometry.ws_opt);
            if !padding {
                let durable = self.buffer.program_done(id);
                self.publish_durable(id, durable.sequence);
                if let Some(from) = durable.redispatched_from {
                    rescued_from = from;
                    self.space.lines.program_ended(from);
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

    /// A unit is on the media: whoever has overwritten a sector of it in the buffer is told.
    fn publish_durable(&mut self, id: UnitId, sequence: u64) {
        let geometry = self.env.geometry;
        let u = self.buffer.unit(id);
        let first_psn = geometry.first_sector_of(u.chunk) + u.sector;
        let first_slot = self.buffer.ring(id.ring()).slot_of_unit(id.index());
        // Host sectors, whose pages are to say so.
        let has_pages = !self.durability.has_device_l2p();
        let paged = if has_pages { self.env.plan.logical } else { 0 };
        for i in 0..geometry.ws_opt {
            let entry = self.buffer.ring(id.ring()).entry(first_slot + i);
            let Some(lba) = entry.lba() else { continue };
            let trim = entry.trim_dep;
            if lba < paged {
                self.durability.mark_dirty(geometry.map_page_of(lba));
            }
            if !self.mapping.is_at(lba, L2pEntry::Buffer(first_slot + i))
                && let L2pEntry::Buffer(slot) = self.mapping.get(lba)
            {
                self.buffer.older_copy_durable(slot, trim, first_psn + i, sequence);
            }
        }
    }

    /// A chunk takes no more, is reclaimed next, and retired (LightNVM paper section 4.2.3).
    pub(crate) fn program_failed(&mut self, chunk: u32) {
        self.stats.program_failures += 1;
        self.space.lines.chunks[chunk as usize].bad = true;
        self.close_open_chunk(chunk);
        self.space.lines.lines[self.space.lines.line_of[chunk as usize] as usize].degraded = true;
    }

    /// A chunk of an open line takes no more.
    pub(crate) fn close_open_chunk(&mut self, chunk: u32) {
        for open in self.space.open_lines.iter_mut().flatten().chain(&mut self.space.finishing) {
            open.close_member(&self.env.geometry, chunk);
        }
        (0..STREAM_COUNT).for_each(|stream| self.retire_full_open_lines(stream));
    }

    /// Closes a line if nothing more will be mapped into it and nothing is outstanding.
    pub(crate) fn close_if_done(&mut self, line: u32) {
        if let Some(closed) = self.space.lines.close_if_done(line) {
            self.gc.add_candidate(closed);
        }
    }

    /// Points the map at flash for every unit of a chunk that can be read there now.
    pub(crate) fn release_readable_units(&mut self, chunk: u32) {
        let readable_end = self.space.table().chunk(chunk).readable_end(&self.env.geometry);
        while let Some(id) = self.buffer.pop_readable(&self.env.geometry, chunk, readable_end) {
            self.release_unit(id, chunk);
        }
    }

    fn release_unit(&mut self, id: UnitId, chunk: u32) {
        let ring = self.buffer.ring(id.ring());
        let first_psn = self.env.geometry.first_sector_of(chunk) + ring.unit(id.index()).sector;
        let first_slot = ring.slot_of_unit(id.index());
        let head = self.buffer.ring(HOST).head_pos();
        let line = self.space.lines.line_of(chunk);
        for (i, entry) in (0..).zip(ring.entries(id.index())) {
            let Some(lba) = entry.lba() else { continue };
            match self.mapping.move_to_flash(lba, first_slot + i, first_psn + i) {
                Ok(()) => self.space.lines.count_valid(line),
                Err(L2pEntry::Unmapped) => self.space.lines.wait_before_erase(line, None),
                // Overwritten in the buffer: until the new copy is durable this one counts.
                Err(_) => self.space.lines.wait_before_erase(line, Some(head)),
            }
        }
    }
}
