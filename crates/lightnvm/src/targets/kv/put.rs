//! A value becomes records: appended to the chunks that take them, named in the index.
//!
//! What a user changed is in the index when its last record has its place in memory, durable or not.
//! A value of several records, or with whole chunks, is *unfinished* until then: its key is busy, and
//! the chunks that hold records of it are pinned, so that cleaning does not take them for garbage.

use ring::{Iova, Region};

use super::chunks::Use;
use super::index::{Current, Part, Piece, Spread};
use super::key::Key;
use super::record::{Header, Kind, header_bytes, record_bytes};
use super::request::{Change, KvOp, Room, Work, Writing};
use super::streams::{Group, Short, Spot};
use super::whole::Job;
use super::{Kv, KvError};

/// How far a change has come.
pub(crate) enum Made {
    /// It is made, and durable when all units below this number are.
    Now(u64),
    /// It takes longer.
    Begun,
    /// It must wait.
    Short(Short),
}

/// Where inline bytes come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    User(Iova),
    /// The memory for reads, from this byte on.
    Lane(usize),
}

/// A value's chunk that is not known yet.
const NOT_YET: Part = Part { chunk: u32::MAX, crc: 0 };

impl Kv {
    /// Appends a record.
    pub(super) fn append(
        &mut self,
        group: Group,
        key: &Key,
        header: Header,
        (parts, from): (&[Part], Source),
    ) -> Result<Piece, Short> {
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot = self.streams.place(group, bytes, chunks, stamp, stats)?;
        Ok(self.append_at(&spot, (spot.offset, true), key, header, (parts, from)))
    }

    /// Puts a record at an offset of a chunk that has a place for it; `last` if no other follows.
    pub(super) fn append_at(
        &mut self,
        spot: &Spot,
        (offset, last): (u32, bool),
        key: &Key,
        mut header: Header,
        (parts, from): (&[Part], Source),
    ) -> Piece {
        let inline = offset + header_bytes(key.len(), parts.len());
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        let buffers = (&mut self.scratch[..], &mut self.order);
        let source: (&Region, usize) = match from {
            Source::Lane(at) => (self.fetches.memory(), at),
            // Checked when the request was taken, and registrations last.
            Source::User(at) => match self.queue.port().memory().find(at, header.bytes.into()) {
                Ok(buffer) => (buffer.region, buffer.offset),
                Err(_) => (self.fetches.memory(), 0),
            },
        };
        header.crc = self.streams.put_inline(spot, inline, source, header.bytes, buffers);
        header.encode(key, parts, &mut self.header);
        self.streams.put_bytes(spot, offset, &self.header, &mut self.order);
        self.streams.commit(spot, (offset, bytes, last), &mut self.order);
        self.chunks.get_mut(spot.chunk).records.push((offset, bytes));
        self.chunks.add_live(spot.chunk, bytes);
        match spot.group() {
            Group::User => self.stats.packed_bytes += u64::from(bytes),
            Group::Moves => self.stats.moved_bytes += u64::from(bytes),
        }
        Piece { chunk: spot.chunk, offset, bytes: header.bytes, crc: header.crc }
    }

    /// Makes what was appended the current version of its key.
    pub(super) fn make_current(&mut self, key: &Key, seq: u64, current: Current) {
        if let Current::Deleted(_) = current {
            self.tombstone_bytes += u64::from(current.record_bytes(key.len(), 0));
            self.tombstones += 1;
        }
        if let Some(old) = self.index.replace(key, seq, current) {
            self.bury(key.len(), &old);
        }
    }

    /// Appends the record of a deletion.
    pub(super) fn put_deleted(
        &mut self,
        group: Group,
        key: &Key,
        seq: u64,
    ) -> Result<Piece, Short> {
        self.append(group, key, alone(seq, 0, Kind::Deleted), (&[], Source::Lane(0)))
    }

    /// Puts a value of one record.
    pub(super) fn put_packed(&mut self, key: &Key, value: Room) -> Made {
        let seq = self.seq + 1;
        let header = alone(seq, value.bytes as u32, Kind::Value);
        match self.append(Group::User, key, header, (&[], Source::User(value.at))) {
            Err(short) => Made::Short(short),
            Ok(piece) => {
                self.seq = seq;
                self.count_put(value.bytes);
                self.make_current(key, seq, Current::Packed(piece));
                Made::Now(self.order.next())
            }
        }
    }

    fn count_put(&mut self, bytes: u64) {
        self.stats.puts += 1;
        self.stats.bytes_put += bytes;
    }

    /// Bytes of the records of a value that has no whole chunks.
    pub(super) fn batch_bytes(&self, key: u8, bytes: u64) -> u64 {
        let Ok(bytes) = u32::try_from(bytes) else { return u64::MAX >> 16 };
        let (count, room) = (self.layout.pieces(key, 0, bytes), self.layout.inline_room(key, 0));
        // All but the last are as long as records can be.
        let last = bytes - (count - 1) * room;
        u64::from(count - 1) * u64::from(self.layout.record_bytes)
            + u64::from(record_bytes(key, 0, last))
    }

    /// Appends the records of a batch, `bytes` in all, and makes them current.
    pub(super) fn put_batch(&mut self, changes: &[Change], bytes: u32) -> Result<(), Short> {
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot = self.streams.place(Group::User, bytes, chunks, stamp, stats)?;
        let batch = Some((spot.offset, spot.offset + bytes));
        let (mut offset, end) = (spot.offset, spot.offset + bytes);
        let mut made = Vec::with_capacity(changes.len());
        for change in changes {
            self.seq += 1;
            let (key, seq) = (change.key(), self.seq);
            let Some(value) = change.value() else {
                let header = Header { batch, ..alone(seq, 0, Kind::Deleted) };
                let next = offset + record_bytes(key.len(), 0, 0);
                let from = (&[][..], Source::Lane(0));
                let piece = self.append_at(&spot, (offset, next == end), key, header, from);
                offset = next;
                made.push(Current::Deleted(piece));
                self.stats.deletes += 1;
                continue;
            };
            let (inline, room) = (value.bytes as u32, self.layout.inline_room(key.len(), 0));
            let count = self.layout.pieces(key.len(), 0, inline);
            let mut pieces = Vec::new();
            for i in 0..count {
                let bytes = room.min(inline - i * room);
                let header = Header {
                    batch,
                    piece: i as u16,
                    pieces: count as u16,
                    ..alone(seq, bytes, Kind::Value)
                };
                let from = Source::User(value.at.offset(u64::from(i) * u64::from(room)));
                let next = offset + record_bytes(key.len(), 0, bytes);
                let at = (offset, next == end);
                pieces.push(self.append_at(&spot, at, key, header, (&[], from)));
                offset = next;
            }
            made.push(whole_value(Vec::new(), pieces));
            self.count_put(value.bytes);
        }
        let first = self.seq + 1 - changes.len() as u64;
        for (i, (change, current)) in (0..).zip(changes.iter().zip(made)) {
            self.make_current(change.key(), first + i, current);
        }
        Ok(())
    }

    /// Begins to write a value of several records, or with whole chunks; `bytes` of records.
    pub(super) fn begin_writing(
        &mut self,
        place: u32,
        key: Key,
        (parts, inline, bytes): (u32, u32, u64),
    ) {
        self.seq += 1;
        let writing = Writing {
            seq: self.seq,
            parts: vec![NOT_YET; parts as usize],
            to_begin: parts,
            to_end: parts,
            pieces: Vec::new(),
            count: self.layout.pieces(key.len(), parts, inline),
            inline,
            taken: 0,
            reserved: bytes,
        };
        let Some(pending) = self.requests.get_mut(place) else { return };
        pending.work = Work::Writing(Box::new(writing));
        self.reserved += bytes;
        self.wholes_held += parts;
        self.unfinished += 1;
        self.set_busy(&key, true);
        if parts > 0 { &mut self.to_begin } else { &mut self.tails }.push_back(place);
        self.went_on = true;
    }

    /// A chunk for a whole chunk of a value.
    fn take_whole(&mut self) -> Option<u32> {
        let free = self.chunks.free_count > self.layout.reserve;
        let chunk = if free { self.chunks.take(Use::Whole) } else { None };
        self.short_of_chunks |= chunk.is_none();
        self.went_on |= chunk.is_some();
        chunk
    }

    /// Begins whole chunks, as many as can be written at a time.
    pub(super) fn begin_wholes(&mut self) {
        while let Some(&job) = self.wholes.orphans.front() {
            let Some(chunk) = self.take_whole() else { return };
            self.wholes.orphans.pop_front();
            self.wholes.begin_again(job, chunk);
        }
        while let Some(&place) = self.to_begin.front()
            && self.wholes.has_room()
        {
            let Some(room) = self.value_of(place) else { return };
            let Some(chunk) = self.take_whole() else { return };
            let Some(w) = self.requests.writing(place) else { return };
            let (part, seq) = (w.parts.len() as u32 - w.to_begin, w.seq);
            w.to_begin -= 1;
            if w.to_begin == 0 {
                self.to_begin.pop_front();
            }
            let bytes = self.layout.chunk_bytes;
            let from = room.at.offset(u64::from(part) * u64::from(bytes));
            let crc = if self.config.checksum_whole { self.crc_of_user(from, bytes) } else { 0 };
            self.wholes.begin((place, part), (chunk, seq), (from, crc));
        }
    }

    fn value_of(&self, place: u32) -> Option<Room> {
        match &self.requests.get(place)?.op {
            KvOp::Change { change, .. } => change.value(),
            _ => None,
        }
    }

    /// CRC-32C of bytes of a user's memory.
    pub(super) fn crc_of_user(&mut self, at: Iova, bytes: u32) -> u32 {
        let Ok(buffer) = self.queue.port().memory().find(at, bytes.into()) else { return 0 };
        crc_of(buffer.region, buffer.offset, bytes, &mut self.scratch)
    }

    /// A whole chunk is written.
    pub(super) fn whole_written(&mut self, job: &Job) {
        self.stats.wholes_written += 1;
        let Some(w) = self.requests.writing(job.request) else { return };
        w.parts[job.part as usize] = Part { chunk: job.chunk, crc: job.crc };
        w.to_end -= 1;
        if w.to_end == 0 {
            self.tails.push_back(job.request);
        }
    }

    /// Puts the records of unfinished values, one value after the other.
    pub(super) fn advance_tails(&mut self) {
        loop {
            if self.streaming.is_none() {
                self.streaming = self.tails.pop_front();
            }
            let Some(place) = self.streaming else { return };
            if !self.stream(place) {
                return;
            }
            self.streaming = None;
            self.went_on = true;
        }
    }

    /// Puts records of a value. Returns whether that was all of them.
    fn stream(&mut self, place: u32) -> bool {
        let Some(pending) = self.requests.get_mut(place) else { return true };
        let (KvOp::Change { change, .. }, Work::Writing(writing)) =
            (&pending.op, &mut pending.work)
        else {
            return true;
        };
        let Some(value) = change.value() else { return true };
        let (key, mut w) = (change.key().clone(), std::mem::take(&mut **writing));
        let whole = w.parts.len() as u64 * u64::from(self.layout.chunk_bytes);
        while (w.pieces.len() as u32) < w.count {
            let first = w.pieces.is_empty();
            let parts = if first { &w.parts[..] } else { &[] };
            let bytes = self.layout.inline_room(key.len(), parts.len()).min(w.inline - w.taken);
            let header = Header {
                piece: w.pieces.len() as u16,
                pieces: w.count as u16,
                ..alone(w.seq, bytes, Kind::Value)
            };
            let from = Source::User(value.at.offset(whole + u64::from(w.taken)));
            match self.append(Group::User, &key, header, (parts, from)) {
                Ok(piece) => {
                    self.chunks.get_mut(piece.chunk).pins += 1;
                    w.pieces.push(piece);
                    w.taken += bytes;
                    self.went_on = true;
                }
                Err(short) => {
                    self.short_of_chunks |= short == Short::Chunk;
                    if let Some(back) = self.requests.writing(place) {
                        *back = w;
                    }
                    return false;
                }
            }
        }
        for piece in &w.pieces {
            self.chunks.get_mut(piece.chunk).pins -= 1;
        }
        self.reserved -= w.reserved;
        self.unfinished -= 1;
        self.count_put(value.bytes);
        self.make_current(&key, w.seq, whole_value(w.parts, w.pieces));
        self.set_busy(&key, false);
        self.changed(place, self.order.next());
        true
    }

    /// Forgets a value that is being written. No command may be under way for it.
    pub(super) fn abandon_writing(&mut self, place: u32) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let (KvOp::Change { change, .. }, Work::Writing(writing)) =
            (&pending.op, &mut pending.work)
        else {
            return;
        };
        let (key, w) = (change.key().clone(), std::mem::take(&mut **writing));
        pending.work = Work::Queued;
        for (i, piece) in w.pieces.iter().enumerate() {
            let parts = if i == 0 { w.parts.len() } else { 0 };
            self.chunks.sub_live(piece.chunk, record_bytes(key.len(), parts, piece.bytes));
            let chunk = self.chunks.get_mut(piece.chunk);
            chunk.pins -= 1;
            // Nobody counts them as older records of the key.
            chunk.records.retain(|(offset, _)| *offset != piece.offset);
        }
        self.reserved -= w.reserved;
        self.wholes_held -= w.parts.len() as u32;
        for part in w.parts.iter().filter(|p| **p != NOT_YET) {
            self.condemn(part.chunk, Vec::new());
        }
        self.unfinished -= 1;
        self.set_busy(&key, false);
    }

    /// Gives up every value that is being written.
    pub(super) fn abandon_all(&mut self, error: KvError) {
        let orphans: Vec<u32> = self.wholes.orphans.drain(..).collect();
        let stuck = orphans.into_iter().filter_map(|job| self.wholes.end(job));
        let mut places: Vec<u32> = stuck.map(|job| job.request).collect();
        places.extend(self.to_begin.drain(..));
        places.extend(self.tails.drain(..));
        places.extend(self.streaming.take());
        places.sort_unstable();
        places.dedup();
        for place in places {
            self.abandon_writing(place);
            self.finish(place, Err(error));
        }
    }
}

/// The header of a record that is in no batch, of a value of one record. Its CRC follows.
pub(super) fn alone(seq: u64, bytes: u32, kind: Kind) -> Header {
    Header { seq, bytes, crc: 0, batch: None, piece: 0, pieces: 1, kind }
}

/// A value in its parts and pieces.
pub(super) fn whole_value(parts: Vec<Part>, pieces: Vec<Piece>) -> Current {
    match pieces[..] {
        [piece] if parts.is_empty() => Current::Packed(piece),
        _ => Current::Spread(Box::new(Spread { parts: parts.into(), pieces: pieces.into() })),
    }
}

/// CRC-32C of bytes of registered memory.
pub(super) fn crc_of(region: &Region, at: usize, bytes: u32, scratch: &mut [u8]) -> u32 {
    let (mut crc, mut done) = (0, 0);
    while done < bytes as usize {
        let n = (bytes as usize - done).min(scratch.len());
        region.read(at + done, &mut scratch[..n]);
        crc = crc32c::crc32c_append(crc, &scratch[..n]);
        done += n;
    }
    crc
}
