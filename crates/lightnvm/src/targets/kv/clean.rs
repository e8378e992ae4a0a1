//! Cleaning: the packed chunk with the least live bytes is read, what lives is moved, and the chunk is
//! condemned. A chunk whose program failed is moved out of the same way, and retired.
//!
//! A batch of which not everything is on flash when its chunk fails is moved as a batch: all of it, what
//! has been overwritten since as well, because what did that may not be durable either.
//!
//! A record that cannot be read any more, but is current, is not forgotten: a record of its loss takes
//! its place, so that reads of the key fail and no older value comes back.

use super::Kv;
use super::chunks::Use;
use super::index::{Current, Part};
use super::key::Key;
use super::put::{Source, alone, crc_of};
use super::record::{FIXED, Header, Kind, header_bytes};
use super::streams::{Group, Short};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The next records are to be read.
    Next,
    /// They are on their way.
    Reading,
    /// They are in memory.
    Moving,
    /// Some headers could not be read: whose they were is found out by what is missing.
    Missing,
    /// Everything is moved; reads of units in memory may be under way.
    Leaving,
}

/// One chunk that is being cleaned.
#[derive(Debug)]
pub(crate) struct Cleaner {
    phase: Phase,
    chunk: u32,
    failing: bool,
    /// Bytes of the chunk that are on flash.
    durable: u32,
    /// A batch up to this byte cannot be moved as one.
    apart: u32,
    records: Vec<(u32, u32)>,
    /// Records from `at` to `to` are in memory, or on their way.
    at: usize,
    to: usize,
    /// Keys of the values' records, which count as older ones until the chunk is erased.
    keys: Vec<Key>,
    /// Whether a header could not be read, and then the keys that must be among those lost.
    unreadable: bool,
    missing: Vec<Key>,
    /// Whether it waits for a free chunk.
    stuck: bool,
}

impl Cleaner {
    pub(crate) fn new() -> Cleaner {
        Cleaner {
            phase: Phase::Idle,
            chunk: 0,
            failing: false,
            durable: u32::MAX,
            apart: 0,
            records: Vec::new(),
            at: 0,
            to: 0,
            keys: Vec::new(),
            unreadable: false,
            missing: Vec::new(),
            stuck: false,
        }
    }

    /// Whether it cannot move out of a chunk that failed, because no other is free.
    pub(crate) fn is_stuck_failing(&self) -> bool {
        self.failing && self.stuck && self.phase != Phase::Idle
    }
}

/// What a record is to its key.
enum Standing {
    /// The current version, or a piece of it.
    Current(usize),
    /// A piece of a value that is being written.
    Unfinished(usize),
    /// Garbage.
    Older,
}

impl Kv {
    /// Lets every cleaner do what it can.
    pub(super) fn clean(&mut self) {
        for i in 0..self.cleaners.len() {
            while self.step_cleaner(i) {
                self.went_on = true;
            }
            self.short_of_chunks |= self.cleaners[i].stuck;
        }
    }

    /// Whether more chunks should be cleaned: fewer are free, or about to be, than should.
    fn should_clean(&self) -> bool {
        let coming = self.dead.len() + self.read_dead.len() + self.erasing.len();
        (self.chunks.free_count as usize) + coming < self.layout.clean_below as usize
    }

    /// One step. Returns whether there was one to take.
    fn step_cleaner(&mut self, i: usize) -> bool {
        self.cleaners[i].stuck = false;
        match self.cleaners[i].phase {
            Phase::Idle => self.pick(i),
            Phase::Next => self.read_window(i),
            Phase::Reading => false,
            Phase::Moving | Phase::Missing => match self.move_next(i) {
                Ok(moved) => moved,
                Err(short) => {
                    self.cleaners[i].stuck = short == Short::Chunk;
                    false
                }
            },
            Phase::Leaving => self.leave(i),
        }
    }

    fn pick(&mut self, i: usize) -> bool {
        let (chunk, failing) = match self.failing.pop_front() {
            Some(chunk) => (chunk, true),
            None if !self.should_clean() => return false,
            None => match self.chunks.victim(self.layout.fill_bytes) {
                Some(chunk) => (chunk, false),
                None => return false,
            },
        };
        let c = self.chunks.get_mut(chunk);
        if !failing {
            c.usage = Use::Cleaning;
        }
        let records = c.records.clone();
        let durable = self.streams.durable_bytes(chunk);
        let fresh =
            Cleaner { phase: Phase::Next, chunk, failing, durable, records, ..Cleaner::new() };
        self.cleaners[i] = fresh;
        true
    }

    /// Begins to read the next records: as many as there is memory for.
    fn read_window(&mut self, i: usize) -> bool {
        let size = self.layout.sector_bytes;
        let room = self.layout.lane_sectors()[2];
        let c = &mut self.cleaners[i];
        let Some(&(start, _)) = c.records.get(c.at) else {
            c.phase = if c.unreadable { Phase::Missing } else { Phase::Leaving };
            if c.unreadable {
                self.find_missing(i);
            }
            return true;
        };
        let first = start / size;
        let mut end = first;
        while let Some(&(offset, bytes)) = c.records.get(c.to.max(c.at)) {
            let last = (offset + bytes - 1) / size + 1;
            if last - first > room {
                break;
            }
            (end, c.to) = (last, c.to.max(c.at) + 1);
        }
        c.phase = Phase::Reading;
        self.fetches.begin_window(i as u32, c.chunk, (first, end - first));
        true
    }

    /// The records of a cleaner are in memory.
    pub(super) fn window_ended(&mut self, cleaner: u32) {
        self.cleaners[cleaner as usize].phase = Phase::Moving;
    }

    /// Deals with the next record.
    fn move_next(&mut self, i: usize) -> Result<bool, Short> {
        let c = &mut self.cleaners[i];
        if c.phase == Phase::Missing {
            let chunk = c.chunk;
            let Some(key) = c.missing.last().cloned() else {
                let (pins, live) = (self.chunks.get(chunk).pins, self.chunks.get(chunk).live);
                if pins > 0 {
                    // A value that is being written: it is one of those missing once it is written.
                    return Ok(false);
                }
                if live > 0 {
                    self.find_missing(i);
                }
                if self.cleaners[i].missing.is_empty() {
                    self.cleaners[i].phase = Phase::Leaving;
                }
                return Ok(true);
            };
            self.put_lost(&key)?;
            self.cleaners[i].missing.pop();
            return Ok(true);
        }
        if c.at == c.to {
            c.phase = Phase::Next;
            return Ok(true);
        }
        let (offset, _) = c.records[c.at];
        match self.read_header(i, offset) {
            None => self.cleaners[i].unreadable = true,
            Some((header, key, parts)) => {
                let c = &self.cleaners[i];
                let batch = header.batch.filter(|(_, end)| *end > c.durable && *end > c.apart);
                if let Some((start, end)) = batch.filter(|(start, _)| *start == offset) {
                    return self.move_batch(i, start, end);
                }
                self.move_record(i, offset, &header, key, &parts)?;
            }
        }
        self.cleaners[i].at += 1;
        Ok(true)
    }

    /// The header of a record in a cleaner's memory, if it can be read.
    fn read_header(&mut self, i: usize, offset: u32) -> Option<(Header, Key, Vec<Part>)> {
        let size = self.layout.sector_bytes;
        let window = self.fetches.window(i as u32);
        let at = window.offset + (offset - window.first * size) as usize;
        let whole = |bytes: u32| !window.is_bad(offset / size, (offset + bytes - 1) / size + 1);
        if !whole(FIXED) {
            return None;
        }
        self.header.resize(FIXED as usize, 0);
        self.fetches.memory().read(at, &mut self.header);
        let parts = u16::from_le_bytes([self.header[36], self.header[37]]);
        let bytes = header_bytes(self.header[38], parts.into());
        if bytes > self.layout.record_bytes || !whole(bytes) {
            return None;
        }
        self.header.resize(bytes as usize, 0);
        self.fetches.memory().read(at, &mut self.header);
        Header::decode(&self.header)
    }

    fn standing(&mut self, chunk: u32, offset: u32, header: &Header, key: &Key) -> Standing {
        let here = |p: &super::index::Piece| p.chunk == chunk && p.offset == offset;
        if let Some(entry) = self.index.get(key.as_bytes())
            && entry.seq == header.seq
            && let Some(at) = entry.current.pieces().iter().position(here)
        {
            return Standing::Current(at);
        }
        let streaming = self.streaming.and_then(|place| self.requests.writing(place));
        match streaming.and_then(|w| w.pieces.iter().position(here)) {
            Some(at) => Standing::Unfinished(at),
            None => Standing::Older,
        }
    }

    /// Moves a record, if it is current.
    fn move_record(
        &mut self,
        i: usize,
        offset: u32,
        header: &Header,
        key: Key,
        parts: &[Part],
    ) -> Result<(), Short> {
        let chunk = self.cleaners[i].chunk;
        let standing = self.standing(chunk, offset, header, &key);
        if let Standing::Older = standing {
            if header.kind != Kind::Deleted {
                self.cleaners[i].keys.push(key);
            }
            return Ok(());
        }
        let size = self.layout.sector_bytes;
        let window = self.fetches.window(i as u32);
        let start = offset + header_bytes(key.len(), parts.len());
        let at = window.offset + (start - window.first * size) as usize;
        let bad =
            header.bytes > 0 && window.is_bad(start / size, (start + header.bytes - 1) / size + 1);
        let damaged =
            bad || crc_of(self.fetches.memory(), at, header.bytes, &mut self.scratch) != header.crc;
        if damaged && let Standing::Current(_) = standing {
            self.put_lost(&key)?;
            self.cleaners[i].keys.push(key);
            return Ok(());
        }
        // A piece of an unfinished value that is damaged is written on with the wrong checksum in
        // the index, so that reads of the value fail.
        let alone = Header { batch: None, ..*header };
        let mut piece = self.append(Group::Moves, &key, alone, (parts, Source::Lane(at)))?;
        let bytes = super::record::record_bytes(key.len(), parts.len(), header.bytes);
        self.chunks.sub_live(chunk, bytes);
        match standing {
            Standing::Current(at) => {
                let Some(entry) = self.index.get_mut(key.as_bytes()) else { return Ok(()) };
                entry.current.pieces_mut()[at] = piece;
                if header.kind != Kind::Deleted {
                    entry.older += 1;
                    self.cleaners[i].keys.push(key);
                }
            }
            Standing::Unfinished(at) => {
                piece.crc = header.crc;
                self.chunks.get_mut(chunk).pins -= 1;
                self.chunks.get_mut(piece.chunk).pins += 1;
                if let Some(w) = self.streaming.and_then(|place| self.requests.writing(place)) {
                    w.pieces[at] = piece;
                }
            }
            Standing::Older => {}
        }
        Ok(())
    }

    /// Moves a batch, of which not everything is on flash, as a batch.
    fn move_batch(&mut self, i: usize, start: u32, end: u32) -> Result<bool, Short> {
        let c = &mut self.cleaners[i];
        let (chunk, from) = (c.chunk, c.at);
        let count = c.records[from..].iter().take_while(|(offset, _)| *offset < end).count();
        let past = from + count;
        let window = self.fetches.window(i as u32);
        let size = self.layout.sector_bytes;
        if past > c.to && window.first != start / size {
            // It is read again from here, and then as a whole.
            (c.to, c.phase) = (from, Phase::Next);
            return Ok(true);
        }
        let lane = window.offset;
        let base = window.first * size;
        let mut members = Vec::with_capacity(count);
        let mut whole = past <= c.to;
        for at in from..past.min(c.to) {
            let (offset, bytes) = self.cleaners[i].records[at];
            let Some((header, key, parts)) = self.read_header(i, offset) else {
                whole = false;
                break;
            };
            let inline = offset + header_bytes(key.len(), parts.len());
            let place = lane + (inline - base) as usize;
            let bad = self
                .fetches
                .window(i as u32)
                .is_bad(offset / size, (offset + bytes - 1) / size + 1);
            let crc = crc_of(self.fetches.memory(), place, header.bytes, &mut self.scratch);
            whole &= !bad && crc == header.crc;
            members.push((offset, bytes, header, key, parts, place));
        }
        if !whole {
            // Some of it is lost.
            self.cleaners[i].apart = end;
            return Ok(true);
        }
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot = self.streams.place(Group::Moves, end - start, chunks, stamp, stats)?;
        let batch = Some((spot.offset, spot.offset + (end - start)));
        for (offset, bytes, header, key, parts, place) in members {
            let to = (spot.offset + (offset - start), offset + bytes == end);
            let standing = self.standing(chunk, offset, &header, &key);
            let kind = header.kind;
            let header = Header { batch, ..header };
            let piece = self.append_at(&spot, to, &key, header, (&parts, Source::Lane(place)));
            // One copy more either way.
            if let Some(entry) = self.index.get_mut(key.as_bytes()) {
                entry.older += u32::from(kind != Kind::Deleted);
                if let Standing::Current(at) = standing {
                    entry.current.pieces_mut()[at] = piece;
                    self.chunks.sub_live(chunk, bytes);
                    continue;
                }
            }
            self.chunks.sub_live(piece.chunk, bytes);
        }
        self.cleaners[i].at = past;
        Ok(true)
    }

    /// Puts a record of a loss in the place of a value.
    fn put_lost(&mut self, key: &Key) -> Result<(), Short> {
        let Some(entry) = self.index.get(key.as_bytes()) else { return Ok(()) };
        if !entry.current.exists() {
            // The record of a deletion can be made again.
            let seq = entry.seq;
            let piece = self.put_deleted(Group::Moves, key, seq)?;
            self.make_current(key, seq, Current::Deleted(piece));
            return Ok(());
        }
        let header = alone(entry.seq, 0, Kind::Lost);
        let seq = entry.seq;
        let piece = self.append(Group::Moves, key, header, (&[], Source::Lane(0)))?;
        self.stats.values_lost += 1;
        self.make_current(key, seq, Current::Lost(piece));
        Ok(())
    }

    /// Finds the keys whose records are in a chunk, although they could not be read there.
    fn find_missing(&mut self, i: usize) {
        let chunk = self.cleaners[i].chunk;
        let there = |current: &Current| current.pieces().iter().any(|p| p.chunk == chunk);
        let missing = self.index.all().filter(|(_, entry)| there(&entry.current));
        self.cleaners[i].missing = missing.map(|(key, _)| key.clone()).collect();
    }

    /// Nothing in the chunk is needed any more.
    fn leave(&mut self, i: usize) -> bool {
        let c = &mut self.cleaners[i];
        let (chunk, failing) = (c.chunk, c.failing);
        if failing && self.chunks.get(chunk).readers > 0 {
            return false;
        }
        let keys = std::mem::take(&mut c.keys);
        c.phase = Phase::Idle;
        if failing {
            self.give_failed_up(chunk);
        } else {
            self.stats.chunks_cleaned += 1;
            self.condemn(chunk, keys);
        }
        true
    }
}
