//! Garbage collection (LightNVM paper section 4.2.4): takes victims while free space is low, reads
//! their valid sectors into a ring of its own, and erases a victim when all of them are durable
//! elsewhere.
//!
//! The reverse map is what was written, not what is valid: a sector is valid if its logical sector
//! still points at it, looked up for a whole write unit at a time so that the cache misses overlap.

use std::collections::VecDeque;
use std::ops::Range;

use clock::Nanos;
use nvme::Status;
use tracepoint::Event;

use crate::durable::{Trims, Waiter};
use crate::flash::OpKind;
use crate::ftl::{GC, STREAMS, USER};
use crate::line_meta::LineList;
use crate::lines::{LineState, NONE};
use crate::program::parts;
use crate::victim_list::Reading;
use crate::yielding::Unit;
use crate::{Entry, Flash, Ftl, Layout, Location, OpId, ReadTarget};

/// Members of a line whose write units are looked up together.
const LOOK_AHEAD: u32 = 16;

#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// Lines being scanned, oldest first.
    pub(crate) victims: VecDeque<Scan>,
    reads: Vec<GcRead>,
    free_reads: Vec<u32>,
    /// Sectors that may be on their way at once.
    window: u32,
    addresses: Vec<(u32, u32)>,
    /// Lines whose sectors are all read but not all durable elsewhere.
    draining: u32,
    /// Victims taken since users last changed something or space was won, and the most free sectors
    /// that there were since.
    in_vain: u32,
    most_free: u64,
    /// What was written in the oldest victim, being read.
    pub(crate) reading_list: Option<Box<Reading>>,
    /// The same, read. The scan's and not the line's, which may be written further meanwhile.
    pub(crate) list: Option<Box<LineList>>,
    /// Its write unit that is looked at next, while its pages of the map are on their way.
    chosen: Option<Unit>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    pub(crate) line: u32,
    /// Next write unit: all members' first units, then all members' second, and so on.
    pub(crate) unit: u32,
    pub(crate) member: u32,
    /// Write units of a chunk that are looked at.
    pub(crate) units: u32,
}

#[derive(Clone, Copy, Debug)]
struct GcRead {
    line: u32,
    first_slot: u32,
    count: u32,
}

impl Collector {
    pub(crate) fn new(layout: &Layout) -> Collector {
        Collector {
            victims: VecDeque::new(),
            reads: Vec::new(),
            free_reads: Vec::new(),
            window: layout.gc_units,
            addresses: Vec::with_capacity(64),
            draining: 0,
            in_vain: 0,
            most_free: 0,
            reading_list: None,
            list: None,
            chosen: None,
        }
    }

    /// Users have written or trimmed: there may be more to be won than before.
    #[inline]
    pub(crate) fn renew(&mut self) {
        (self.in_vain, self.most_free) = (0, 0);
    }

    /// The line being scanned.
    pub(crate) fn scanning(&self) -> Option<u32> {
        self.victims.front().map(|v| v.line)
    }

    /// Reads that may be under way.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Whether sectors are being found or read, so that users will earn quota.
    pub(crate) fn is_moving(&self) -> bool {
        !self.victims.is_empty() || self.reading() > 0
    }

    pub(crate) fn reading(&self) -> u32 {
        let list = self.reading_list.as_ref().map_or(0, |r| r.outstanding());
        (self.reads.len() - self.free_reads.len()) as u32 + list
    }
}

impl Ftl {
    /// Starts reads of victims as far as the window and the ring allow.
    pub(crate) fn collect(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let mut moved = self.erase_kept(now, flash) | self.reclaim_empty(now, flash);
        // A full write unit must always fit: reads are never split.
        while self.rings[GC].free() >= self.shape.unit
            && self.collector.reading() < self.gc_window(&self.collector)
        {
            if self.collector.victims.is_empty() && !self.take_victim() {
                break;
            }
            let Some(&Scan { line, .. }) = self.collector.victims.front() else { break };
            if !self.knows_victim(now, line, flash) || !self.scan_unit(now, flash) {
                break;
            }
            moved = true;
        }
        self.push_tail(flash) || moved
    }

    /// Reclaims lines that have nothing to be moved, as long as space is wanted.
    fn reclaim_empty(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let mut moved = false;
        while self.lines.has_empty() && self.limiter.collects(self.free_sectors() + self.coming()) {
            let Some(line) = self.lines.take_empty(self.collector.scanning()) else { break };
            self.collector.draining += 1;
            self.lines.lines[line as usize].state = LineState::Draining;
            self.reclaim_if_moved(now, line, flash);
            moved = true;
        }
        moved
    }

    /// Space that victims already drained will give back.
    fn coming(&self) -> u64 {
        u64::from(self.collector.draining) * u64::from(self.layout.line_sectors)
    }

    fn take_victim(&mut self) -> bool {
        let hurt = !self.lines.hurt.is_empty();
        let (free, coming) = (self.free_sectors(), self.coming());
        // When users wait, what is still to be written counts as gone: else one victim at a time would
        // be padded to its end, and give nothing back if it has no more to give than the padding takes.
        let waiting = if free <= self.limiter.levels().0 { self.unplaced(GC) } else { 0 };
        let collects = self.limiter.collects((free + coming).saturating_sub(waiting));
        // As good as always: nobody wants a victim.
        if !hurt && !collects && self.collector.draining == 0 && !self.may_refresh() {
            return false;
        }
        // When nothing is under way and no space left, the drained ones wait for users' data that
        // finds no place: a victim without valid sectors may not have to wait, and makes some.
        let stuck = self.collector.draining > 0
            && self.programs == 0
            && self.lines.erasing == 0
            && self.collector.reading() == 0
            && !self.spares_a_unit();
        let room = self.room_to_move();
        if !hurt
            && !stuck
            && let Some(line) = self.take_refresh(collects, room)
        {
            self.begin_scan(line);
            return true;
        }
        if !hurt && !stuck && !collects {
            return false;
        }
        if !hurt && self.is_in_vain(free) {
            return false;
        }
        // A further victim only if its data fits beside what is on its way: else the space would be
        // spread over victims none of which gets done.
        let on_its_way = self.unplaced(GC) + u64::from(self.layout.line_sectors);
        if self.collector.draining > 0 && free < on_its_way && !stuck {
            return false;
        }
        // With less than a line left, only what fits into it can be moved to its end: the emptiest
        // line, whatever the policy says.
        self.lines.policy.scarce(self.limiter.share(free) <= 0.0);
        let line = if room < u64::from(self.layout.line_sectors) {
            self.lines.take_emptiest(room)
        } else {
            self.lines.take_victim()
        };
        let Some(line) = line else { return false };
        self.collector.in_vain += 1;
        self.took_victim();
        self.begin_scan(line);
        true
    }

    /// Sectors that moved data may take, besides what has been promised and what is on its way already.
    pub(crate) fn room_to_move(&self) -> u64 {
        let unit = u64::from(self.shape.unit);
        let promised = self.promised() + self.unplaced(GC).next_multiple_of(unit) + unit;
        self.space(self.lines.free_chunks()).saturating_sub(promised)
    }

    /// Everything that is in a line now is looked at.
    fn begin_scan(&mut self, line: u32) {
        let written = |c: &u32| self.lines.chunks[*c as usize].persisted;
        let most = self.lines.lines[line as usize].chunks.iter().map(written).max().unwrap_or(0);
        let units = most.div_ceil(self.shape.unit);
        let valid = self.lines.lines[line as usize].valid;
        tracepoint::trace(|| Event::GcBegins { line, valid });
        self.collector.victims.push_back(Scan { line, unit: 0, member: 0, units });
    }

    /// Whether collecting wins nothing: every line has been through it, twice, and there is no write
    /// unit more than before. On flash that has lost nearly all of its spare space, padding takes what
    /// victims give; without an end to it the flash would be worn out in vain, and whoever waits for
    /// space would wait for ever in place of being told that there is none ([`Ftl::fail_if_full`]).
    fn is_in_vain(&mut self, free: u64) -> bool {
        let c = &mut self.collector;
        if free >= c.most_free + u64::from(self.shape.unit) {
            (c.in_vain, c.most_free) = (0, free);
        }
        c.in_vain as usize > 2 * self.lines.lines.len()
    }

    /// Looks at one write unit of the oldest victim and reads what is valid in it. Returns whether it
    /// did: not if all that is left is kept back for users' reads.
    fn scan_unit(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let Some(&Scan { line: line_id, unit, member, units }) = self.collector.victims.front()
        else {
            return false;
        };
        let line = &self.lines.lines[line_id as usize];
        let chosen = self.collector.chosen;
        let whole = unit >= units && !self.yielding.has_passed() && chosen.is_none();
        let member = chosen.map_or(member, |u| u.member);
        // One that was being written may have been reclaimed meanwhile, and be another one.
        if line.valid == 0 || whole || member as usize >= line.chunks.len() {
            // What is still being read has been overwritten.
            self.scanned(now, line_id, flash);
            return true;
        }
        let Some(chosen) = chosen.or_else(|| self.next_to_scan(flash)) else { return false };
        if !self.map_for_scan(now, line_id, chosen, flash) {
            self.collector.chosen = Some(chosen);
            return false;
        }
        self.collector.chosen = None;
        let Unit { unit, member, last } = chosen;
        if member.is_multiple_of(LOOK_AHEAD) && self.map.frames.is_none() {
            self.look_ahead(line_id, unit, member);
        }
        let mut found: [(u32, u32); 64] = [(0, 0); 64];
        let mut count = 0;
        for psn in self.sectors_of_unit(line_id, unit, member) {
            if let Some(lba) = self.written_at(line_id, psn) {
                found[count] = (psn, lba);
                count += 1;
            }
        }
        let mut addresses = std::mem::take(&mut self.collector.addresses);
        let mut first_slot = NONE;
        for &(psn, lba) in &found[..count] {
            if !self.map.points_at(lba, psn) {
                continue;
            }
            let (under, under_sequence) = self.newest_on_media(Location::Flash(psn));
            let entry =
                Entry { lba_plus_1: lba + 1, poison: false, under, under_sequence, trim: 0 };
            let slot = self.rings[GC].push(entry, true);
            self.map.hold(lba);
            if first_slot == NONE {
                first_slot = slot;
            }
            addresses.push((psn, slot));
        }
        if !addresses.is_empty() {
            let count = addresses.len() as u32;
            let read = GcRead { line: line_id, first_slot, count };
            let index = match self.collector.free_reads.pop() {
                Some(index) => {
                    self.collector.reads[index as usize] = read;
                    index
                }
                None => {
                    self.collector.reads.push(read);
                    (self.collector.reads.len() - 1) as u32
                }
            };
            self.lines.lines[line_id as usize].moves += count;
            flash.read(now, OpId::new(OpKind::GcRead, index), &addresses, ReadTarget::Slots);
            addresses.clear();
        }
        self.collector.addresses = addresses;
        if last {
            self.scanned(now, line_id, flash);
        }
        true
    }

    /// The sectors of a write unit of a victim; none if it was not written.
    pub(crate) fn sectors_of_unit(&self, line: u32, unit: u32, member: u32) -> Range<u32> {
        let sector = unit * self.shape.unit;
        match self.lines.lines[line as usize].chunks.get(member as usize) {
            Some(chunk) if sector < self.lines.chunks[*chunk as usize].persisted => {
                let first = self.shape.first_psn(*chunk) + sector;
                first..first + self.shape.unit
            }
            _ => 0..0,
        }
    }

    /// The logical sector that was written at a physical one of a victim.
    #[inline]
    pub(crate) fn written_at(&self, line: u32, psn: u32) -> Option<u32> {
        if self.reverse.is_in_memory() {
            return self.reverse.get(psn);
        }
        let list =
            self.lines.lines[line as usize].list.as_ref().or(self.collector.list.as_ref())?;
        let chunk = self.shape.chunk_of(psn);
        let place = self.lines.chunks[chunk as usize].place;
        // Whatever the media says: there is no sector beyond these.
        let sectors = self.layout.logical + self.layout.meta;
        list.lba(place, psn - self.shape.first_psn(chunk)).filter(|lba| *lba < sectors)
    }

    /// The write unit, and which chunk it is of, that comes `ahead` of what is looked at next.
    pub(crate) fn unit_to_scan(&self, ahead: u32) -> Option<(u32, u32)> {
        let scan = self.collector.victims.front()?;
        let members = self.lines.lines[scan.line as usize].chunks.len() as u32;
        let at = scan.unit * members + scan.member + ahead;
        (at < scan.units * members).then(|| (at / members, at % members))
    }

    /// Touches what the scan of the next members will look up, so that those cache misses overlap
    /// instead of following each other.
    fn look_ahead(&self, line: u32, unit: u32, member: u32) {
        let members = self.lines.lines[line as usize].chunks.iter().skip(member as usize);
        let mut touched = 0u32;
        for &chunk in members.take(LOOK_AHEAD as usize) {
            let first_psn = self.shape.first_psn(chunk) + unit * self.shape.unit;
            for psn in first_psn..first_psn + self.shape.unit {
                if let Some(lba) = self.written_at(line, psn) {
                    touched ^= u32::from(self.map.points_at(lba, psn));
                }
            }
        }
        std::hint::black_box(touched);
    }

    /// The oldest victim has nothing left to be read.
    fn scanned(&mut self, now: Nanos, line: u32, flash: &mut impl Flash) {
        self.collector.victims.pop_front();
        self.yielding.scanned();
        (self.collector.chosen, self.collector.list) = (None, None);
        self.end_scan();
        if self.lines.lines[line as usize].state != LineState::Victim {
            if self.lines.lines[line as usize].moves == 0 {
                self.refresher.moved(line);
            }
            return self.lines.swept(line);
        }
        self.collector.draining += 1;
        self.lines.lines[line as usize].state = LineState::Draining;
        self.lines.lines[line as usize].list = None;
        self.reclaim_if_moved(now, line, flash);
    }

    /// Sectors of a victim have been read.
    pub(crate) fn gc_read_done(&mut self, index: u32, failed: u64, flash: &mut impl Flash) {
        let read = self.collector.reads[index as usize];
        self.collector.free_reads.push(index);
        let mut moved = 0;
        for i in 0..read.count {
            let slot = self.gc_slot(read.first_slot, i);
            let unit = self.rings[GC].unit_of_slot(slot);
            let entry = *self.rings[GC].entry_mut(slot);
            let lba = entry.lba_plus_1 - 1;
            let lost = failed >> i & 1 != 0;
            if lost {
                self.note_loss(self.shape.chunk_of(entry.under));
            }
            flash.moved(entry.under, slot);
            if self.map.points_at(lba, entry.under) {
                self.map.set(lba, Location::Buffer(slot));
                self.lines.moved_away(read.line);
                self.reverse.invalidate(entry.under);
                let poison = (lost || self.reverse.poisoned(entry.under))
                    && !self.restore_page(lba, slot, flash);
                self.rings[GC].entry_mut(slot).poison = poison;
                self.stats.lost += u64::from(lost);
                if poison {
                    self.suspect(lba);
                }
                moved += 1;
            } else {
                // Overwritten or trimmed meanwhile: the slot is written as padding.
                self.rings[GC].entry_mut(slot).lba_plus_1 = 0;
                self.stats.padding += 1;
                self.map.let_go(lba);
            }
            self.rings[GC].units[unit].pending -= 1;
        }
        self.stats.gc_moves += moved;
        if self.refresher.is_of(read.line) {
            self.stats.refresh_moves += moved;
        }
        let free = self.free_sectors();
        self.limiter.moved(moved as u32, free);
    }

    /// The `i`-th slot after `first`, around the end of the ring.
    fn gc_slot(&self, first: u32, i: u32) -> u32 {
        let base = self.rings[USER].capacity();
        let slot = first + i;
        if slot >= base + self.rings[GC].capacity() {
            slot - self.rings[GC].capacity()
        } else {
            slot
        }
    }

    /// Pads the ring's last unit when nothing else will fill it and space is short, so that victims
    /// get done.
    fn push_tail(&mut self, flash: &mut impl Flash) -> bool {
        if self.collector.draining == 0 && !self.refresher.is_busy()
            || !self.collector.victims.is_empty()
            || self.collector.reading() > 0
            || !self.refresher.is_busy() && self.limiter.share(self.free_sectors()) > 0.5
        {
            return false;
        }
        let missing = self.rings[GC].missing();
        for _ in 0..missing {
            let slot = self.rings[GC].push(Entry::PADDING, false);
            flash.store(slot, &[]);
            self.stats.padding += 1;
        }
        missing > 0
    }

    /// A unit is durable: the victims that its sectors came from are nearer to their end.
    pub(crate) fn note_moves_durable(&mut self, name: u32, flash: &mut impl Flash, now: Nanos) {
        let (ring, unit) = parts(name);
        if ring != GC {
            return;
        }
        for i in 0..self.shape.unit as usize {
            let source = self.rings[GC].entries(unit)[i].under;
            if source != NONE {
                let line = self.lines.line_of[self.shape.chunk_of(source) as usize];
                self.lines.lines[line as usize].moves -= 1;
                if self.lines.lines[line as usize].moves == 0 {
                    self.swept_if_open(line);
                    self.reclaim_if_moved(now, line, flash);
                }
            }
        }
    }

    /// Erases a victim that has been scanned and whose sectors are all durable elsewhere.
    fn reclaim_if_moved(&mut self, now: Nanos, line: u32, flash: &mut impl Flash) {
        let l = &mut self.lines.lines[line as usize];
        if l.state != LineState::Draining || l.moves > 0 {
            return;
        }
        self.refresher.moved(line);
        // What a lost page of the map said of it is not known.
        let exact = self.stats.map_pages_lost + self.stats.pages_rebuilt == 0;
        debug_assert!(l.valid == 0 || !exact, "line {line} is reclaimed with valid sectors");
        // A drive that keeps the map forgets with the chunk what was in it.
        let trimmed = l.trimmed && self.drive_map.is_none();
        if trimmed || l.after > self.rings[USER].durable() {
            let trims = if trimmed { Trims::Before } else { Trims::None };
            self.wait_durable(Waiter::Line(line), trims);
        } else {
            self.erase_line(now, line, flash);
        }
    }

    /// Erases the chunks of a line that nothing depends on any more.
    pub(crate) fn erase_line(&mut self, now: Nanos, line: u32, flash: &mut impl Flash) {
        tracepoint::trace_at(now, || Event::GcEnds { line });
        self.collector.draining -= 1;
        self.stats.lines_reclaimed += 1;
        self.forget_line(line);
        let chunks = std::mem::take(&mut self.lines.lines[line as usize].chunks);
        for &chunk in &chunks {
            self.lines.emptied(chunk);
            if self.lines.chunks[chunk as usize].bad {
                self.stats.retired_chunks += 1;
                self.lines.line_of[chunk as usize] = NONE;
            } else {
                self.lines.lines[line as usize].erasing += 1;
                self.lines.erasing += 1;
                self.erase_or_keep(now, chunk, flash);
            }
        }
        let l = &mut self.lines.lines[line as usize];
        l.chunks = chunks;
        if l.erasing == 0 {
            self.lines.release(line);
        }
    }

    /// An erase has ended. [`kick`](Ftl::kick) afterwards.
    pub fn erase_done(&mut self, op: OpId, status: Status) {
        if op.kind() == OpKind::Journal {
            return self.journal.erase_done(op.index(), status);
        }
        let chunk = op.index();
        let line = self.lines.line_of[chunk as usize];
        self.lines.erasing -= 1;
        self.blocked = [false; STREAMS];
        self.stats.erases += 1;
        self.lines.wear(chunk);
        if status.is_success() && !self.lines.chunks[chunk as usize].offline {
            self.lines.add_free(chunk);
        } else {
            self.stats.erase_failures += 1;
            self.stats.retired_chunks += 1;
            self.lines.line_of[chunk as usize] = NONE;
            self.lines.chunks[chunk as usize].bad = true;
        }
        let l = &mut self.lines.lines[line as usize];
        l.erasing -= 1;
        if l.erasing == 0 {
            self.lines.release(line);
        }
    }
}
