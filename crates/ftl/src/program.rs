//! Programming: where write units go, what happens when a program ends or fails, and when the map
//! moves from the write buffer to the media (LightNVM paper sections 4.2.1 and 4.2.3).

use clock::Nanos;
use nvme::Status;

use crate::active::ALL_AT_ONCE;
use crate::flash::OpKind;
use crate::ftl::{COLD, GC, PAGES, STREAMS, USER};
use crate::lines::NONE;
use crate::open_line::{Claim, NOT_HELD, OpenLine};
use crate::snapshot::Opened;
use crate::write_ring::{UnitState, WriteRing};
use crate::{Entry, Flash, Ftl, Location, OpId, WriteUnit};

/// Programs outstanding per parallel unit at most: one in the array, one in the cache register.
pub(crate) const PROGRAMS_PER_PU: u8 = 2;

/// Names a program of padding from outside of the rings; the rest of the name is its chunk.
const PADDING: u32 = 1 << 28;

/// A program of padding from outside of the rings that is under way: one per chunk at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padding {
    chunk: u32,
    sector: u32,
}

/// The name of a ring's unit, and of its program.
fn name(ring: usize, unit: u32) -> u32 {
    (ring as u32) << 27 | unit
}

/// The ring and the unit that a name stands for.
pub(crate) fn parts(name: u32) -> (usize, u32) {
    ((name >> 27) as usize, name & 0x07ff_ffff)
}

impl Ftl {
    /// Starts programs for all units that are ready, as far as parallel units take them.
    pub(crate) fn program_ready(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let mut moved = self.begin_lines(now, flash);
        // One per parallel unit at most: users have the other program that it takes.
        moved |= self.finish_lines(now, flash);
        let mut at = 0;
        while let Some(&(ring, unit)) = self.retry.get(at) {
            if self.program_unit(now, ring, unit, flash) {
                self.retry.remove(at);
                moved = true;
            } else if ring == GC {
                // Moved data that finds no place holds nobody up: what it came from is still there, and
                // space for it may come from what users' units make durable.
                at += 1;
            } else {
                return self.finish_lines(now, flash) || moved;
            }
        }
        // Users first: what they may write has been limited on admission, and victims may wait for
        // it to be durable.
        for ring in [USER, GC] {
            self.avoid_reads(ring, flash);
            while let Some(unit) = self.rings[ring].ready() {
                if !self.program_unit(now, ring, unit, flash) {
                    break;
                }
                self.rings[ring].advance_mapped();
                moved = true;
            }
        }
        self.yielding.avoid_none();
        self.finish_lines(now, flash) || moved
    }

    pub(crate) fn program_unit(
        &mut self,
        now: Nanos,
        ring: usize,
        unit: u32,
        flash: &mut impl Flash,
    ) -> bool {
        let stream = self.stream_of(ring, unit);
        if ring == GC && !self.spares_a_unit() {
            return false;
        }
        if self.blocked[stream] {
            return false;
        }
        if self.rings[ring].units[unit as usize].state == UnitState::Filling
            && !self.may_number(ring)
        {
            return false;
        }
        let Some((line, chunk, sector)) = self.place_for(ring, stream) else {
            self.note_unplaced(ring);
            // If nothing is under way, what unblocks it is not foreseen here.
            self.blocked[stream] = self.programs > 0 && !self.yielding.keeps_program();
            return false;
        };
        let u = &self.rings[ring].units[unit as usize];
        if u.state == UnitState::Filling && (ring == GC || u.from != NONE) {
            self.drop_outdated(ring, unit);
        }
        let first_psn = self.shape.first_psn(chunk) + sector;
        let entries = self.rings[ring].entries(unit).iter();
        self.reverse.set_run(first_psn, entries.map(Entry::written));
        let name = name(ring, unit);
        // Behind the chunk's other units, so that they are released in order.
        let last = self.lines.chunks[chunk as usize].last;
        match last {
            NONE => self.lines.chunks[chunk as usize].first = name,
            last => self.unit_mut(last).next = name,
        }
        self.lines.chunks[chunk as usize].last = name;
        let u = &mut self.rings[ring].units[unit as usize];
        if u.state == UnitState::Filling {
            // One that was under way already keeps its number, and so its age (see `again`).
            u.sequence = self.issued.begin();
            if ring == GC {
                self.checkpoint.note_moved(self.shape.unit);
            }
        }
        (u.state, u.chunk, u.sector, u.next) = (UnitState::Mapped, chunk, sector, NONE);
        let sequence = u.sequence;
        let l = &mut self.lines.lines[line as usize];
        if let Some(list) = &mut l.list {
            let place = self.lines.chunks[chunk as usize].place;
            let entries = self.rings[ring].entries(unit).iter();
            list.note(place, sector, sequence, entries.map(Entry::written));
        }
        l.programs += 1;
        l.newest = l.newest.max(sequence);
        self.programs_on[self.shape.pu_of(chunk) as usize] += 1;
        self.programs += 1;
        self.stats.programs += 1;
        let op = OpId::new(OpKind::Program, name);
        let ring = &self.rings[ring];
        let (first_slot, entries) = (ring.slot_of_unit(unit), ring.entries(unit));
        let unit = WriteUnit { chunk, sector, first_slot, sequence, entries, metadata: false };
        flash.program(now, op, unit);
        true
    }

    /// When a ring is full of units that wait for their pairs, nothing can be put into it that
    /// would program those: padding does, from outside of the rings.
    pub(crate) fn unstick(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        // A chunk that has something under way gets there by itself.
        let waits = |chunk: &u32| self.lines.chunks[*chunk as usize].first != NONE;
        let mut stuck = self.rings.iter().filter_map(WriteRing::stuck_on).filter(waits);
        let still = |chunk: &u32| !self.is_padded(*chunk) && self.only_waits_for_pairs(*chunk);
        let Some(chunk) = stuck.find(still) else { return false };
        let has = |o: &&mut OpenLine| o.members.iter().any(|m| m.chunk == chunk);
        let Some(open) = self.open.iter_mut().flatten().find(has) else { return false };
        let line = open.line;
        let mut chunk = chunk;
        if open.waits_on(&self.shape, chunk) {
            // What is kept for the last metadata comes when the other chunks are full. With little
            // left in them they are padded, else there will be none.
            if open.room <= open.members.len() as u32 {
                let padded = &self.padded;
                let is_free = |chunk| padded.iter().all(|p| p.chunk != chunk);
                let Some(other) = open.other_with_room(is_free) else { return false };
                chunk = other;
            } else {
                open.give_up_last(&self.shape, &mut self.lines);
                self.stats.lines_without_metadata += 1;
            }
        }
        let from = Claim { ring: USER, unit: NOT_HELD, unclaimed: 0 };
        let Some(sector) = open.take(&self.shape, from, chunk) else { return false };
        (0..STREAMS).for_each(|stream| self.drop_full(stream));
        self.pad_unit(now, line, chunk, sector, flash);
        true
    }

    /// Whether padding from outside of the rings is being programmed into a chunk.
    fn is_padded(&self, chunk: u32) -> bool {
        self.padded.iter().any(|p| p.chunk == chunk)
    }

    /// Whether every unit of a chunk that holds its slots is on the media.
    fn only_waits_for_pairs(&self, chunk: u32) -> bool {
        let mut at = self.lines.chunks[chunk as usize].first;
        while at != NONE {
            let (ring, unit) = parts(at);
            let unit = &self.rings[ring].units[unit as usize];
            if unit.state != UnitState::Persisted {
                return false;
            }
            at = unit.next;
        }
        true
    }

    /// Programs padding, from outside of the rings, into a write unit that was taken from an open line.
    pub(crate) fn pad_unit(
        &mut self,
        now: Nanos,
        line: u32,
        chunk: u32,
        sector: u32,
        flash: &mut impl Flash,
    ) {
        debug_assert!(!self.is_padded(chunk), "chunk {chunk}");
        self.padded.push(Padding { chunk, sector });
        let first_psn = self.shape.first_psn(chunk) + sector;
        for psn in first_psn..first_psn + self.shape.unit {
            self.reverse.set(psn, None, false);
        }
        self.lines.lines[line as usize].programs += 1;
        self.programs_on[self.shape.pu_of(chunk) as usize] += 1;
        self.programs += 1;
        self.stats.programs += 1;
        self.stats.padding += u64::from(self.shape.unit);
        let op = OpId::new(OpKind::Program, PADDING | chunk);
        let slot = self.rings[USER].capacity() + self.rings[GC].capacity();
        let entries = &[Entry::PADDING; 64][..self.shape.unit as usize];
        let unit =
            WriteUnit { chunk, sector, first_slot: slot, sequence: 0, entries, metadata: false };
        flash.program(now, op, unit);
    }

    #[inline]
    pub(crate) fn unit_mut(&mut self, name: u32) -> &mut crate::write_ring::Unit {
        let (ring, unit) = parts(name);
        &mut self.rings[ring].units[unit as usize]
    }

    /// The stream that a unit goes to: what is moved for the sake of wear alone does not mix with others.
    fn stream_of(&self, ring: usize, unit: u32) -> usize {
        if ring == USER && self.is_of_pages(unit) {
            PAGES
        } else if ring == GC && self.is_cold(unit) {
            COLD
        } else if self.config.hot_cold {
            ring
        } else {
            USER
        }
    }

    /// A place for a ring's next unit. When the ring is half full of what cannot be read yet, its
    /// oldest chunk comes first: slots are free in order, and one chunk that lags behind the others
    /// because its parallel unit has been busy would hold up all of them.
    fn place_for(&mut self, ring: usize, stream: usize) -> Option<(u32, u32, u32)> {
        // Any line that takes units of the ring may lag, not only one of this unit's stream.
        let last = if ring == USER { USER } else { stream };
        let streams = [stream, COLD, PAGES, last];
        let (from, holds) = self.claim(ring);
        if let Some(chunk) = self.rings[ring].lagging() {
            let free = self.programs_on[self.shape.pu_of(chunk) as usize] < PROGRAMS_PER_PU;
            let at = self.lines.chunks[chunk as usize].place as usize;
            for stream in streams.into_iter().filter(|_| free) {
                let mut open = self.open[stream].iter_mut();
                if let Some((line, sector)) =
                    open.find_map(|o| Some((o.line, o.take_at(&self.shape, from, chunk, at)?)))
                {
                    self.drop_full(stream);
                    return Some((line, chunk, sector));
                }
            }
        }
        // What keeps its slots until a line's last metadata is written waits for all of that line: as much
        // of the ring as it takes is kept for it.
        if holds && from.unclaimed <= 0 {
            return self.place_in_held(from);
        }
        // Written to fewer parallel units than before, chunks that were left behind would be gone on with
        // one at a time: as many at a time as are written, so that the write buffer keeps flowing.
        if self.width() != ALL_AT_ONCE {
            let free = |chunk: &u32| {
                let open = self.open[stream].iter().flat_map(|o| &o.members);
                self.programs_on[self.shape.pu_of(*chunk) as usize] < PROGRAMS_PER_PU
                    && open.filter(|m| m.next < m.end).any(|m| m.chunk == *chunk)
            };
            let laggard = self.rings[ring].laggards(self.width()).find(free);
            let mut open = self.open[stream].iter_mut();
            if let Some(chunk) = laggard
                && let Some((line, sector)) =
                    open.find_map(|o| Some((o.line, o.take(&self.shape, from, chunk)?)))
            {
                self.drop_full(stream);
                return Some((line, chunk, sector));
            }
        }
        self.place(from, stream)
    }

    /// A ring's next unit, and whether lines hold units of the ring until they are full. With lines that
    /// do, the units that fit behind the first one held, less what those lines still take.
    fn claim(&self, ring: usize) -> (Claim, bool) {
        let (mut first, mut room) = (NOT_HELD, 0);
        for open in self.open.iter().flatten().filter(|o| o.held[ring] != NOT_HELD) {
            first = first.min(open.held[ring]);
            room += i64::from(open.room);
        }
        let (unit, fits) = (self.rings[ring].mapped(), self.rings[ring].placeable_behind(first));
        (Claim { ring, unit, unclaimed: fits as i64 - room }, first != NOT_HELD)
    }

    /// A place in a line that holds units of the ring.
    fn place_in_held(&mut self, from: Claim) -> Option<(u32, u32, u32)> {
        let (width, busy) = (self.width(), &self.programs_on);
        for stream in 0..STREAMS {
            for open in self.open[stream].iter_mut().filter(|o| o.held[from.ring] != NOT_HELD) {
                let accepts = |pu: u32| busy[pu as usize] < PROGRAMS_PER_PU;
                if let Some((chunk, sector)) = open.place(&self.shape, from, width, accepts) {
                    let line = open.line;
                    self.drop_full(stream);
                    return Some((line, chunk, sector));
                }
            }
        }
        None
    }

    /// Finds a place for a write unit, opening a line when the open ones have none. When no chunk
    /// is left, the other stream's open lines will do.
    fn place(&mut self, from: Claim, stream: usize) -> Option<(u32, u32, u32)> {
        loop {
            let (placed, room) = self.place_in_open(from, stream);
            if placed.is_some() {
                return placed;
            }
            // Room that is kept for cold data is everybody's when there is no other.
            if stream != COLD
                && !self.open[COLD].is_empty()
                && self.limiter.share(self.free_sectors()) <= 0.0
                && let (placed @ Some(_), _) = self.place_in_open(from, COLD)
            {
                return placed;
            }
            // A second line is opened when the first one draws to its end: early enough for the
            // journal to say so before it is needed, three programs in a row at worst.
            let units = self.layout.line_sectors / self.shape.unit;
            let end = (4 * self.layout.active).min(units / 2).max(self.layout.active);
            let one = stream == COLD && room > 0;
            if one || room >= end || self.open[stream].len() >= 2 && room > 0 {
                return None;
            }
            // With no line to spare, room in any open line comes first: what was overwritten in it cannot
            // be won back before it is full.
            if self.lines.free_chunks() < 2 * self.layout.active {
                let mut left = room;
                for other in (0..STREAMS).filter(|other| *other != stream) {
                    let (placed, room) = self.place_in_open(from, other);
                    if placed.is_some() {
                        return placed;
                    }
                    left += room;
                }
                if left > 0 && self.programs > 0 {
                    return None;
                }
            }
            // A line is opened narrower than it should be only when no chunk is on its way back.
            if self.lines.free_chunks() < self.layout.active && self.lines.erasing > 0 {
                return None;
            }
            match self.lines.open(stream as u8, self.issued.next()) {
                Some(open) => {
                    if !self.record_opened(stream, open) {
                        return None;
                    }
                }
                None if room == 0 => {
                    let mut others = (0..STREAMS).filter(|other| *other != stream);
                    return others.find_map(|other| self.place_in_open(from, other).0);
                }
                None => return None,
            }
        }
    }

    /// Has the journal say that a line was opened. Without room there it is not.
    fn record_opened(&mut self, stream: usize, mut open: OpenLine) -> bool {
        if self.drive_map.is_some() {
            // Its recovery does not ask for lines.
            self.open[stream].push(open);
            return true;
        }
        let chunks = open.members.iter().map(|m| m.chunk).collect();
        let record = Opened { stream: stream as u8, chunks }.encode();
        if self.journal.append(&record).is_err() {
            self.lines.unopen(open.line);
            self.want_compaction();
            return false;
        }
        open.recorded = self.journal.flush();
        let first = (self.lines.lines[open.line as usize].opening, open.members[0].chunk);
        open.previous = self.metadata.follow(stream, first);
        self.open[stream].push(open);
        true
    }

    /// A place in a stream's open lines, or how many write units they have room for.
    fn place_in_open(&mut self, from: Claim, stream: usize) -> (Option<(u32, u32, u32)>, u32) {
        let mut room = 0;
        let recorded = self.journal.durable();
        let mut width = self.width();
        for open in self.open[stream].iter_mut().take(2) {
            if open.recorded > recorded || width == 0 {
                room += open.room;
                continue;
            }
            let (busy, yielding) = (&self.programs_on, &self.yielding);
            let accepts = |pu: u32| busy[pu as usize] < PROGRAMS_PER_PU && !yielding.avoids(pu);
            if let Some((chunk, sector)) = open.place(&self.shape, from, width, accepts) {
                let line = open.line;
                if open.room == 0 {
                    self.drop_full(stream);
                }
                return (Some((line, chunk, sector)), 0);
            }
            room += open.room;
            if width != ALL_AT_ONCE {
                width = width.saturating_sub(open.takers());
            }
        }
        (None, room)
    }

    /// Forgets open lines that take no more; they close when their programs are done.
    pub(crate) fn drop_full(&mut self, stream: usize) {
        let lines = &mut self.lines;
        self.open[stream].retain(|open| {
            if open.room == 0 {
                lines.lines[open.line as usize].full = true;
            }
            open.room > 0
        });
    }

    /// A program has ended. [`kick`](Ftl::kick) afterwards.
    pub fn program_done(&mut self, now: Nanos, op: OpId, status: Status, flash: &mut impl Flash) {
        if op.kind() == OpKind::Journal {
            return self.journal_program_done(op.index(), status);
        }
        if op.kind() == OpKind::Meta {
            return self.metadata_program_done(op.index(), status);
        }
        let name = op.index();
        let padding = name & PADDING != 0;
        let (chunk, sector) = if padding {
            let chunk = name & !PADDING;
            let at = self.padded.iter().position(|p| p.chunk == chunk);
            let Some(at) = at else { return };
            (chunk, self.padded.swap_remove(at).sector)
        } else {
            let unit = self.unit_mut(name);
            (unit.chunk, unit.sector)
        };
        let line = self.lines.line_of[chunk as usize];
        self.lines.lines[line as usize].programs -= 1;
        self.programs_on[self.shape.pu_of(chunk) as usize] -= 1;
        self.programs -= 1;
        self.blocked = [false; STREAMS];
        let gone = self.lines.chunks[chunk as usize].offline || status.is(Status::OFFLINE_CHUNK);
        let mut rescued_from = line;
        if status.is_success() && !gone {
            self.lines.chunks[chunk as usize].programmed(sector + self.shape.unit);
            if !padding {
                let unit = self.unit_mut(name);
                unit.state = UnitState::Persisted;
                let (sequence, from) = (unit.sequence, std::mem::replace(&mut unit.from, NONE));
                self.issued.end(sequence);
                self.note_on_media(name);
                if from != NONE {
                    rescued_from = from;
                    self.rescued(from);
                } else {
                    self.note_moves_durable(name, flash, now);
                }
            }
        } else {
            if gone {
                self.stats.program_failures += 1;
                self.retire(chunk);
            } else {
                self.program_failed(chunk);
            }
            if !padding {
                self.repeat(name);
            }
        }
        self.release_readable(chunk);
        self.rings[USER].settle();
        self.rings[GC].settle();
        self.lines.close_if_done(line);
        self.lines.close_if_done(rescued_from);
        self.complete_durable(now, flash);
        self.release_held();
    }

    /// A unit is on the media: whoever has overwritten a sector of it in the buffer is told.
    fn note_on_media(&mut self, name: u32) {
        let (ring, unit) = parts(name);
        let u = &self.rings[ring].units[unit as usize];
        let (first_psn, sequence) = (self.shape.first_psn(u.chunk) + u.sector, u.sequence);
        let first_slot = self.rings[ring].slot_of_unit(unit);
        // Those whose pages are to say so.
        let paged = if self.drive_map.is_none() { self.layout.logical } else { 0 };
        let shape = self.shape;
        for i in 0..shape.unit {
            let entry = self.rings[ring].entry(first_slot + i);
            let Some(lba) = entry.lba_plus_1.checked_sub(1) else { continue };
            let trim = entry.trim;
            if lba < paged {
                self.checkpoint.touch(shape.map_page_of(lba));
            }
            if !self.map.is_at(lba, Location::Buffer(first_slot + i))
                && let Location::Buffer(slot) = self.map.get(lba)
            {
                let newer = self.entry_mut(slot);
                if newer.trim == trim {
                    newer.trim = 0;
                }
                if newer.under_sequence <= sequence {
                    (newer.under, newer.under_sequence) = (first_psn + i, sequence);
                }
            }
        }
    }

    /// A chunk takes no more, is reclaimed next, and retired (LightNVM paper section 4.2.3).
    pub(crate) fn program_failed(&mut self, chunk: u32) {
        self.stats.program_failures += 1;
        self.lines.chunks[chunk as usize].bad = true;
        self.abandon(chunk);
        self.lines.lines[self.lines.line_of[chunk as usize] as usize].hurt = true;
    }

    /// A chunk of an open line takes no more.
    pub(crate) fn abandon(&mut self, chunk: u32) {
        for open in self.open.iter_mut().flatten().chain(&mut self.ending.open) {
            open.abandon(&self.shape, chunk);
        }
        (0..STREAMS).for_each(|stream| self.drop_full(stream));
    }

    pub(crate) fn unlink(&mut self, name: u32, chunk: u32) {
        let (mut at, mut before) = (self.lines.chunks[chunk as usize].first, NONE);
        while at != NONE {
            let next = self.unit_mut(at).next;
            if at == name {
                match before {
                    NONE => self.lines.chunks[chunk as usize].first = next,
                    before => self.unit_mut(before).next = next,
                }
                if next == NONE {
                    self.lines.chunks[chunk as usize].last = before;
                }
                return;
            }
            (before, at) = (at, next);
        }
    }

    /// Points the map at the media for every unit of a chunk that can be read there now.
    pub(crate) fn release_readable(&mut self, chunk: u32) {
        loop {
            let c = self.lines.chunks[chunk as usize];
            if c.first == NONE {
                return;
            }
            let unit = *self.unit_mut(c.first);
            let readable = unit.sector + self.shape.unit <= c.readable(&self.shape);
            if unit.state != UnitState::Persisted || !readable {
                return;
            }
            self.release_unit(c.first);
            let chunk = &mut self.lines.chunks[chunk as usize];
            chunk.first = unit.next;
            if unit.next == NONE {
                chunk.last = NONE;
            }
        }
    }

    pub(crate) fn release_unit(&mut self, name: u32) {
        let (ring, unit) = parts(name);
        let u = &mut self.rings[ring].units[unit as usize];
        u.state = UnitState::Released;
        let first_psn = self.shape.first_psn(u.chunk) + u.sector;
        let line = self.lines.line_of[u.chunk as usize];
        let line = &mut self.lines.lines[line as usize];
        let first_slot = self.rings[ring].slot_of_unit(unit);
        for (i, entry) in (0..).zip(self.rings[ring].entries(unit)) {
            let Some(lba) = entry.lba_plus_1.checked_sub(1) else { continue };
            let (slot, psn) = (first_slot + i, first_psn + i);
            match self.map.redirect(lba, Location::Buffer(slot), Location::Flash(psn)) {
                Ok(()) => line.valid += 1,
                Err(now) => {
                    self.reverse.invalidate(psn);
                    match now {
                        Location::Unmapped => line.trimmed = true,
                        // Overwritten in the buffer: until the new copy is durable this one counts.
                        _ => line.after = self.rings[USER].position(),
                    }
                }
            }
            self.map.let_go(lba);
        }
    }
}
