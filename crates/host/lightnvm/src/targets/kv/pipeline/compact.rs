//! Compaction: reads the packed chunk with the fewest live bytes, relocates its live records, and
//! marks the chunk obsolete. A chunk whose program failed is evacuated likewise, and retired.
//!
//! If a chunk fails while part of a batch is not on flash, the batch is relocated as a batch. That
//! includes records overwritten since, because the records that overwrote them may not be durable
//! either.
//!
//! A current record that is unreadable is replaced by an *uncorrectable* record. Reads of the key
//! then fail, and no older value reappears.

use crate::targets::kv::Kv;
use crate::targets::kv::buffer::streams::{AllocError, AppendClass};
use crate::targets::kv::chunks::ChunkRole;
use crate::targets::kv::format::key::Key;
use crate::targets::kv::format::record::{
    FIXED_HEADER_BYTES, RecordHeader, RecordKind, header_bytes,
};
use crate::targets::kv::index::{ChunkExtent, KeyVersion};
use crate::targets::kv::pipeline::put::{ValueSource, region_crc, single_record_header};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompactionPhase {
    Idle,
    /// The next records are to be read.
    ReadNext,
    /// Their reads are in flight.
    Reading,
    /// They are in memory.
    Relocating,
    /// Some headers were unreadable; their keys are determined from the index entries that refer to
    /// this chunk.
    FindMissing,
    /// All records are relocated; reads of buffered units may be in flight.
    Finishing,
}

/// A chunk that is being compacted.
#[derive(Debug)]
pub(crate) struct Compactor {
    phase: CompactionPhase,
    chunk: u32,
    failing: bool,
    /// Number of bytes of the chunk that are on flash.
    durable_bytes: u32,
    /// End of a batch that cannot be relocated as one.
    broken_batch_end: u32,
    records: Vec<(u32, u32)>,
    /// Range of records that are in memory or being read.
    window_start: usize,
    window_end: usize,
    /// Keys of the value records, which count as older records until the chunk is erased.
    superseded_keys: Vec<Key>,
    /// Whether a header was unreadable, and the keys that the unreadable headers must belong to.
    header_unreadable: bool,
    missing_keys: Vec<Key>,
    /// Whether it waits for a free chunk.
    out_of_chunks: bool,
}

impl Compactor {
    pub(crate) fn new() -> Compactor {
        Compactor {
            phase: CompactionPhase::Idle,
            chunk: 0,
            failing: false,
            durable_bytes: u32::MAX,
            broken_batch_end: 0,
            records: Vec::new(),
            window_start: 0,
            window_end: 0,
            superseded_keys: Vec::new(),
            header_unreadable: false,
            missing_keys: Vec::new(),
            out_of_chunks: false,
        }
    }

    /// Returns whether a failed chunk cannot be evacuated because no chunk is free.
    pub(crate) fn is_blocked_on_failed_chunk(&self) -> bool {
        self.failing && self.out_of_chunks && self.phase != CompactionPhase::Idle
    }
}

/// The relation of a record to its key.
enum RecordStatus {
    /// The current version, or a record of it.
    Current(usize),
    /// A record of a value being written.
    Unfinished(usize),
    /// Garbage.
    Superseded,
}

impl Kv {
    /// Advances every compactor as far as possible.
    pub(crate) fn step_compaction(&mut self) {
        for i in 0..self.compactors.len() {
            while self.step_compactor(i) {
                self.progressed = true;
            }
            self.out_of_chunks |= self.compactors[i].out_of_chunks;
        }
    }

    /// Returns whether more chunks must be compacted: too few are free or about to be.
    fn needs_compaction(&self) -> bool {
        let coming = self.obsolete.len() + self.obsolete_durable.len() + self.erasing.len();
        (self.chunks.free_count as usize) + coming < self.layout.compact_below as usize
    }

    /// Executes one step. Returns whether there was one.
    fn step_compactor(&mut self, i: usize) -> bool {
        self.compactors[i].out_of_chunks = false;
        match self.compactors[i].phase {
            CompactionPhase::Idle => self.start_compaction(i),
            CompactionPhase::ReadNext => self.read_window(i),
            CompactionPhase::Reading => false,
            CompactionPhase::Relocating | CompactionPhase::FindMissing => {
                match self.relocate_next(i) {
                    Ok(moved) => moved,
                    Err(short) => {
                        self.compactors[i].out_of_chunks = short == AllocError::NoChunk;
                        false
                    }
                }
            }
            CompactionPhase::Finishing => self.finish_compaction(i),
        }
    }

    fn start_compaction(&mut self, i: usize) -> bool {
        let (chunk, failing) = match self.failing_chunks.pop_front() {
            Some(chunk) => (chunk, true),
            None if !self.needs_compaction() => return false,
            None => match self.chunks.victim(self.layout.compacted_bytes_min) {
                Some(chunk) => (chunk, false),
                None => return false,
            },
        };
        let c = self.chunks.get_mut(chunk);
        if !failing {
            c.role = ChunkRole::Compacting;
        }
        let records = c.records.clone();
        let durable = self.streams.durable_bytes(chunk);
        let fresh = Compactor {
            phase: CompactionPhase::ReadNext,
            chunk,
            failing,
            durable_bytes: durable,
            records,
            ..Compactor::new()
        };
        self.compactors[i] = fresh;
        true
    }

    /// Starts to read the next records, as many as fit in memory.
    fn read_window(&mut self, i: usize) -> bool {
        let size = self.layout.sector_bytes;
        let room = self.layout.read_buffer_sectors()[2];
        let c = &mut self.compactors[i];
        let Some(&(start, _)) = c.records.get(c.window_start) else {
            c.phase = if c.header_unreadable {
                CompactionPhase::FindMissing
            } else {
                CompactionPhase::Finishing
            };
            if c.header_unreadable {
                self.find_missing(i);
            }
            return true;
        };
        let first = start / size;
        let mut end = first;
        while let Some(&(offset, bytes)) = c.records.get(c.window_end.max(c.window_start)) {
            let last = (offset + bytes - 1) / size + 1;
            if last - first > room {
                break;
            }
            (end, c.window_end) = (last, c.window_end.max(c.window_start) + 1);
        }
        c.phase = CompactionPhase::Reading;
        self.read_ops.begin_compaction_read(i as u32, c.chunk, (first, end - first));
        true
    }

    /// Handles the completion of a compactor's read.
    pub(crate) fn on_window_read(&mut self, cleaner: u32) {
        self.compactors[cleaner as usize].phase = CompactionPhase::Relocating;
    }

    /// Handles the next record.
    fn relocate_next(&mut self, i: usize) -> Result<bool, AllocError> {
        let c = &mut self.compactors[i];
        if c.phase == CompactionPhase::FindMissing {
            let chunk = c.chunk;
            let Some(key) = c.missing_keys.last().cloned() else {
                let (pins, live) =
                    (self.chunks.get(chunk).unfinished_records, self.chunks.get(chunk).live_bytes);
                if pins > 0 {
                    // A value is being written: its record may be missing once it is complete.
                    return Ok(false);
                }
                if live > 0 {
                    self.find_missing(i);
                }
                if self.compactors[i].missing_keys.is_empty() {
                    self.compactors[i].phase = CompactionPhase::Finishing;
                }
                return Ok(true);
            };
            self.put_uncorrectable(&key)?;
            self.compactors[i].missing_keys.pop();
            return Ok(true);
        }
        if c.window_start == c.window_end {
            c.phase = CompactionPhase::ReadNext;
            return Ok(true);
        }
        let (offset, _) = c.records[c.window_start];
        match self.read_header(i, offset) {
            None => self.compactors[i].header_unreadable = true,
            Some((header, key, parts)) => {
                let c = &self.compactors[i];
                let batch = header
                    .batch
                    .filter(|(_, end)| *end > c.durable_bytes && *end > c.broken_batch_end);
                if let Some((start, end)) = batch.filter(|(start, _)| *start == offset) {
                    return self.relocate_batch(i, start, end);
                }
                self.relocate_record(i, offset, &header, key, &parts)?;
            }
        }
        self.compactors[i].window_start += 1;
        Ok(true)
    }

    /// Returns the header of a record in a compactor's memory, if it is readable.
    fn read_header(
        &mut self,
        i: usize,
        offset: u32,
    ) -> Option<(RecordHeader, Key, Vec<ChunkExtent>)> {
        let size = self.layout.sector_bytes;
        let window = self.read_ops.compaction_read(i as u32);
        let at = window.offset + (offset - window.first * size) as usize;
        let whole = |bytes: u32| !window.has_failed(offset / size, (offset + bytes - 1) / size + 1);
        if !whole(FIXED_HEADER_BYTES) {
            return None;
        }
        self.header_buffer.resize(FIXED_HEADER_BYTES as usize, 0);
        self.read_ops.memory().read(at, &mut self.header_buffer);
        let parts = u16::from_le_bytes([self.header_buffer[36], self.header_buffer[37]]);
        let bytes = header_bytes(self.header_buffer[38], parts.into());
        if bytes > self.layout.record_bytes || !whole(bytes) {
            return None;
        }
        self.header_buffer.resize(bytes as usize, 0);
        self.read_ops.memory().read(at, &mut self.header_buffer);
        RecordHeader::decode(&self.header_buffer)
    }

    fn record_status(
        &mut self,
        chunk: u32,
        offset: u32,
        header: &RecordHeader,
        key: &Key,
    ) -> RecordStatus {
        let here =
            |p: &crate::targets::kv::index::RecordRef| p.chunk == chunk && p.offset == offset;
        if let Some(entry) = self.index.get(key.as_bytes())
            && entry.seq == header.seq
            && let Some(at) = entry.current.records().iter().position(here)
        {
            return RecordStatus::Current(at);
        }
        let streaming = self.appending.and_then(|place| self.requests.put_state(place));
        match streaming.and_then(|w| w.records.iter().position(here)) {
            Some(at) => RecordStatus::Unfinished(at),
            None => RecordStatus::Superseded,
        }
    }

    /// Relocates a record, if it is current.
    fn relocate_record(
        &mut self,
        i: usize,
        offset: u32,
        header: &RecordHeader,
        key: Key,
        parts: &[ChunkExtent],
    ) -> Result<(), AllocError> {
        let chunk = self.compactors[i].chunk;
        let standing = self.record_status(chunk, offset, header, &key);
        if let RecordStatus::Superseded = standing {
            if header.kind != RecordKind::Tombstone {
                self.compactors[i].superseded_keys.push(key);
            }
            return Ok(());
        }
        let size = self.layout.sector_bytes;
        let window = self.read_ops.compaction_read(i as u32);
        let start = offset + header_bytes(key.len(), parts.len());
        let at = window.offset + (start - window.first * size) as usize;
        let bad = header.bytes > 0
            && window.has_failed(start / size, (start + header.bytes - 1) / size + 1);
        let damaged = bad
            || region_crc(self.read_ops.memory(), at, header.bytes, &mut self.copy_buffer)
                != header.crc;
        if damaged && let RecordStatus::Current(_) = standing {
            self.put_uncorrectable(&key)?;
            self.compactors[i].superseded_keys.push(key);
            return Ok(());
        }
        // A damaged record of an unfinished value is relocated with the wrong checksum in the
        // index, so that reads of the value fail.
        let alone = RecordHeader { batch: None, ..*header };
        let mut piece = self.append(
            AppendClass::Relocation,
            &key,
            alone,
            (parts, ValueSource::ReadBuffer(at)),
        )?;
        let bytes =
            crate::targets::kv::format::record::record_bytes(key.len(), parts.len(), header.bytes);
        self.chunks.sub_live(chunk, bytes);
        match standing {
            RecordStatus::Current(at) => {
                let Some(entry) = self.index.get_mut(key.as_bytes()) else { return Ok(()) };
                entry.current.records_mut()[at] = piece;
                if header.kind != RecordKind::Tombstone {
                    entry.older_records += 1;
                    self.compactors[i].superseded_keys.push(key);
                }
            }
            RecordStatus::Unfinished(at) => {
                piece.crc = header.crc;
                self.chunks.get_mut(chunk).unfinished_records -= 1;
                self.chunks.get_mut(piece.chunk).unfinished_records += 1;
                if let Some(w) = self.appending.and_then(|place| self.requests.put_state(place)) {
                    w.records[at] = piece;
                }
            }
            RecordStatus::Superseded => {}
        }
        Ok(())
    }

    /// Relocates a batch, part of which is not on flash, as a batch.
    fn relocate_batch(&mut self, i: usize, start: u32, end: u32) -> Result<bool, AllocError> {
        let c = &mut self.compactors[i];
        let (chunk, from) = (c.chunk, c.window_start);
        let count = c.records[from..].iter().take_while(|(offset, _)| *offset < end).count();
        let past = from + count;
        let window = self.read_ops.compaction_read(i as u32);
        let size = self.layout.sector_bytes;
        if past > c.window_end && window.first != start / size {
            // It is read again from here on, as a whole.
            (c.window_end, c.phase) = (from, CompactionPhase::ReadNext);
            return Ok(true);
        }
        let lane = window.offset;
        let base = window.first * size;
        let mut members = Vec::with_capacity(count);
        let mut whole = past <= c.window_end;
        for at in from..past.min(c.window_end) {
            let (offset, bytes) = self.compactors[i].records[at];
            let Some((header, key, parts)) = self.read_header(i, offset) else {
                whole = false;
                break;
            };
            let inline = offset + header_bytes(key.len(), parts.len());
            let place = lane + (inline - base) as usize;
            let bad = self
                .read_ops
                .compaction_read(i as u32)
                .has_failed(offset / size, (offset + bytes - 1) / size + 1);
            let crc =
                region_crc(self.read_ops.memory(), place, header.bytes, &mut self.copy_buffer);
            whole &= !bad && crc == header.crc;
            members.push((offset, bytes, header, key, parts, place));
        }
        if !whole {
            // Part of the batch is lost.
            self.compactors[i].broken_batch_end = end;
            return Ok(true);
        }
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot =
            self.streams.allocate(AppendClass::Relocation, end - start, chunks, stamp, stats)?;
        let batch = Some((spot.offset, spot.offset + (end - start)));
        for (offset, bytes, header, key, parts, place) in members {
            let to = (spot.offset + (offset - start), offset + bytes == end);
            let standing = self.record_status(chunk, offset, &header, &key);
            let kind = header.kind;
            let header = RecordHeader { batch, ..header };
            let piece =
                self.append_at(&spot, to, &key, header, (&parts, ValueSource::ReadBuffer(place)));
            // In both cases there is one more copy.
            if let Some(entry) = self.index.get_mut(key.as_bytes()) {
                entry.older_records += u32::from(kind != RecordKind::Tombstone);
                if let RecordStatus::Current(at) = standing {
                    entry.current.records_mut()[at] = piece;
                    self.chunks.sub_live(chunk, bytes);
                    continue;
                }
            }
            self.chunks.sub_live(piece.chunk, bytes);
        }
        self.compactors[i].window_start = past;
        Ok(true)
    }

    /// Replaces a value by an uncorrectable record.
    fn put_uncorrectable(&mut self, key: &Key) -> Result<(), AllocError> {
        let Some(entry) = self.index.get(key.as_bytes()) else { return Ok(()) };
        if !entry.current.is_present() {
            // The tombstone can be rewritten from the index.
            let seq = entry.seq;
            let piece = self.put_tombstone(AppendClass::Relocation, key, seq)?;
            self.set_current(key, seq, KeyVersion::Tombstone(piece));
            return Ok(());
        }
        let header = single_record_header(entry.seq, 0, RecordKind::Uncorrectable);
        let seq = entry.seq;
        let piece =
            self.append(AppendClass::Relocation, key, header, (&[], ValueSource::ReadBuffer(0)))?;
        self.stats.values_uncorrectable += 1;
        self.set_current(key, seq, KeyVersion::Uncorrectable(piece));
        Ok(())
    }

    /// Finds the keys whose current records are in a chunk, but were not readable there.
    fn find_missing(&mut self, i: usize) {
        let chunk = self.compactors[i].chunk;
        let there = |current: &KeyVersion| current.records().iter().any(|p| p.chunk == chunk);
        let missing = self.index.iter().filter(|(_, entry)| there(&entry.current));
        self.compactors[i].missing_keys = missing.map(|(key, _)| key.clone()).collect();
    }

    /// Finishes a chunk that contains no current records.
    fn finish_compaction(&mut self, i: usize) -> bool {
        let c = &mut self.compactors[i];
        let (chunk, failing) = (c.chunk, c.failing);
        if failing && self.chunks.get(chunk).readers > 0 {
            return false;
        }
        let keys = std::mem::take(&mut c.superseded_keys);
        c.phase = CompactionPhase::Idle;
        if failing {
            self.retire_failed_chunk(chunk);
        } else {
            self.stats.chunks_compacted += 1;
            self.mark_obsolete(chunk, keys);
        }
        true
    }
}
