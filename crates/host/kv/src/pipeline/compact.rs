//! Compaction: reads the packed chunk with the fewest live bytes, relocates its live records, and
//! marks the chunk obsolete. A chunk whose program failed is evacuated likewise, and retired.
//!
//! If a chunk fails while part of a batch is not on flash, the batch is relocated as a batch. That
//! includes records overwritten since, because the records that overwrote them may not be durable
//! either.
//!
//! A current record that is unreadable is replaced by an *uncorrectable* record. Reads of the key
//! then fail, and no older value reappears.

use crate::Kv;
use crate::buffer::streams::{AllocError, AppendClass, ByteSource};
use crate::chunks::RecordSpan;
use crate::compaction::{CompactionJob, CompactionPhase};
use crate::format::key::Key;
use crate::format::record::{
    FIXED_HEADER_BYTES, RecordHeader, RecordKind, header_bytes, record_bytes,
};
use crate::index::{ChunkExtent, KeyVersion, RecordRef};
use crate::pipeline::put::{RecordContents, RecordOffset, ValueSource, single_record_header};

/// A record of a batch that is relocated.
struct BatchMember {
    record: RecordSpan,
    header: RecordHeader,
    key: Key,
    chunk_extents: Vec<ChunkExtent>,
    /// Its inline bytes in the memory of reads.
    inline: ByteRange,
}

/// Bytes in the memory of reads.
#[derive(Clone, Copy, Debug)]
struct ByteRange {
    offset: usize,
    bytes: u32,
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
        for i in 0..self.compaction.len() {
            while self.step_compactor(i) {
                self.progress.moved = true;
            }
            self.progress.out_of_chunks |= self.compaction.get(i).is_out_of_chunks();
        }
    }

    /// Returns whether more chunks must be compacted: too few are free or about to be.
    fn needs_compaction(&self) -> bool {
        let coming = self.reclaim.len();
        (self.chunks.free_count() as usize) + coming < self.layout.budget.compact_below as usize
    }

    /// Executes one step. Returns whether there was one.
    fn step_compactor(&mut self, i: usize) -> bool {
        self.compaction.get_mut(i).set_out_of_chunks(false);
        let moved = match self.compaction.get(i).phase() {
            CompactionPhase::Idle => return self.start_compaction(i),
            CompactionPhase::ReadNext => return self.read_window(i),
            CompactionPhase::Reading => return false,
            CompactionPhase::Finishing => return self.finish_compaction(i),
            CompactionPhase::Relocating => self.relocate_next(i),
            CompactionPhase::FindMissing => self.replace_missing(i),
        };
        moved.unwrap_or_else(|short| {
            self.compaction.get_mut(i).set_out_of_chunks(short == AllocError::NoChunk);
            false
        })
    }

    fn start_compaction(&mut self, i: usize) -> bool {
        let (chunk, failing) = match self.compaction.pop_failing() {
            Some(chunk) => (chunk, true),
            None if !self.needs_compaction() => return false,
            None => match self.chunks.victim(self.layout.compacted_bytes_min) {
                Some(chunk) => (chunk, false),
                None => return false,
            },
        };
        if !failing {
            self.chunks.begin_compaction(chunk);
        }
        let records = self.chunks.get(chunk).records().to_vec();
        let durable_bytes = self.streams.durable_bytes(chunk);
        let job = CompactionJob { chunk, failing, durable_bytes, records };
        self.compaction.get_mut(i).start(job);
        true
    }

    /// Starts to read the next records, as many as fit in memory.
    fn read_window(&mut self, i: usize) -> bool {
        let size = self.layout.sector_bytes;
        let room = self.layout.read_buffer_sectors()[2];
        let c = self.compaction.get_mut(i);
        match c.next_window(size, room) {
            Some(sectors) => self.reads.begin_compaction_read(i as u32, c.chunk(), sectors),
            None if c.phase() == CompactionPhase::FindMissing => self.find_missing(i),
            None => {}
        }
        true
    }

    /// Replaces the next record whose header was unreadable.
    fn replace_missing(&mut self, i: usize) -> Result<bool, AllocError> {
        let c = self.compaction.get(i);
        if let Some(key) = c.missing_key().cloned() {
            self.put_uncorrectable(&key)?;
            self.compaction.get_mut(i).pop_missing_key();
            return Ok(true);
        }
        let chunk = self.chunks.get(c.chunk());
        if chunk.unfinished_records() > 0 {
            // A value is being written: its record may be missing once it is complete.
            return Ok(false);
        }
        if chunk.live_bytes() > 0 {
            self.find_missing(i);
        }
        let c = self.compaction.get_mut(i);
        if c.missing_key().is_none() {
            c.end_search();
        }
        Ok(true)
    }

    /// Handles the next record.
    fn relocate_next(&mut self, i: usize) -> Result<bool, AllocError> {
        let Some(RecordSpan { offset, .. }) = self.compaction.get_mut(i).next_record() else {
            return Ok(true);
        };
        match self.read_header(i, offset) {
            None => self.compaction.get_mut(i).add_unreadable_header(),
            Some((header, key, parts)) => {
                if let Some((start, end)) = header.batch
                    && start == offset
                    && self.compaction.get(i).relocates_batch(end)
                {
                    return self.relocate_batch(i, start, end);
                }
                self.relocate_record(i, offset, &header, key, &parts)?;
            }
        }
        self.compaction.get_mut(i).advance(1);
        Ok(true)
    }

    /// Returns the header of a record in a compactor's memory, if it is readable.
    fn read_header(
        &mut self,
        i: usize,
        offset: u32,
    ) -> Option<(RecordHeader, Key, Vec<ChunkExtent>)> {
        let size = self.layout.sector_bytes;
        let window = self.reads.compaction_read(i as u32);
        let at = window.offset + (offset - window.first * size) as usize;
        let whole = |bytes: u32| !window.has_failed(offset / size, (offset + bytes - 1) / size + 1);
        if !whole(FIXED_HEADER_BYTES) {
            return None;
        }
        self.scratch.header.resize(FIXED_HEADER_BYTES as usize, 0);
        self.reads.memory().read(at, &mut self.scratch.header);
        let parts = u16::from_le_bytes([self.scratch.header[36], self.scratch.header[37]]);
        let bytes = header_bytes(self.scratch.header[38], parts.into());
        if bytes > self.layout.record_bytes || !whole(bytes) {
            return None;
        }
        self.scratch.header.resize(bytes as usize, 0);
        self.reads.memory().read(at, &mut self.scratch.header);
        RecordHeader::decode(&self.scratch.header)
    }

    fn record_status(
        &mut self,
        chunk: u32,
        offset: u32,
        header: &RecordHeader,
        key: &Key,
    ) -> RecordStatus {
        let here = |p: &RecordRef| p.chunk == chunk && p.offset == offset;
        if let Some(entry) = self.index.get(key.as_bytes())
            && entry.seq == header.seq
            && let Some(at) = entry.current.records().iter().position(here)
        {
            return RecordStatus::Current(at);
        }
        let streaming = self.puts.appending().and_then(|place| self.requests.put_state(place));
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
        let chunk = self.compaction.get(i).chunk();
        let standing = self.record_status(chunk, offset, header, &key);
        if let RecordStatus::Superseded = standing {
            if header.kind != RecordKind::Tombstone {
                self.compaction.get_mut(i).add_superseded(key);
            }
            return Ok(());
        }
        let size = self.layout.sector_bytes;
        let window = self.reads.compaction_read(i as u32);
        let start = offset + header_bytes(key.len(), parts.len());
        let at = window.offset + (start - window.first * size) as usize;
        let bad = header.bytes > 0
            && window.has_failed(start / size, (start + header.bytes - 1) / size + 1);
        let damaged = bad
            || self.read_buffer_crc(ByteRange { offset: at, bytes: header.bytes }) != header.crc;
        if damaged && let RecordStatus::Current(_) = standing {
            self.put_uncorrectable(&key)?;
            self.compaction.get_mut(i).add_superseded(key);
            return Ok(());
        }
        // A damaged record of an unfinished value is relocated with the wrong checksum in the
        // index, so that reads of the value fail.
        let alone = RecordHeader { batch: None, ..*header };
        let contents = RecordContents { chunk_extents: parts, inline: ValueSource::ReadBuffer(at) };
        let mut piece = self.append(AppendClass::Relocation, &key, alone, contents)?;
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        self.chunks.sub_live(chunk, bytes);
        match standing {
            RecordStatus::Current(at) => {
                self.index.relocate(key.as_bytes(), at, piece);
                if header.kind != RecordKind::Tombstone {
                    self.index.add_older_record(key.as_bytes());
                    self.compaction.get_mut(i).add_superseded(key);
                }
            }
            RecordStatus::Unfinished(at) => {
                piece.crc = header.crc;
                self.chunks.end_unfinished(chunk);
                self.chunks.begin_unfinished(piece.chunk);
                if let Some(w) =
                    self.puts.appending().and_then(|place| self.requests.put_state(place))
                {
                    w.records[at] = piece;
                }
            }
            RecordStatus::Superseded => {}
        }
        Ok(())
    }

    /// Computes the CRC-32C of bytes in the memory of reads.
    fn read_buffer_crc(&mut self, range: ByteRange) -> u32 {
        let ByteRange { offset, bytes } = range;
        self.stats.work.add_first_pass(bytes);
        ByteSource { region: self.reads.memory(), offset, bytes }.crc(&mut self.scratch.copy)
    }

    /// Relocates a batch as one, if a part of it is not on flash.
    fn relocate_batch(&mut self, i: usize, start: u32, end: u32) -> Result<bool, AllocError> {
        let c = self.compaction.get_mut(i);
        let (chunk, count) = (c.chunk(), c.records_until(end).len());
        let is_in_window = count <= c.window_len();
        let window = self.reads.compaction_read(i as u32);
        let size = self.layout.sector_bytes;
        if !is_in_window && window.first != start / size {
            // It is read again from here on, as a whole.
            c.read_again();
            return Ok(true);
        }
        let members = if is_in_window { self.read_batch(i, end) } else { None };
        let Some(members) = members else {
            // Part of the batch is lost.
            self.compaction.get_mut(i).break_batch(end);
            return Ok(true);
        };
        let (chunks, stats) = (&mut self.chunks, &mut self.stats);
        let spot = self.streams.allocate(AppendClass::Relocation, end - start, chunks, stats)?;
        let batch = Some((spot.offset, spot.offset + (end - start)));
        for BatchMember { record, header, key, chunk_extents, inline } in members {
            let RecordSpan { offset, bytes } = record;
            let to = RecordOffset {
                offset: spot.offset + (offset - start),
                is_last: record.end() == end,
            };
            let standing = self.record_status(chunk, offset, &header, &key);
            let kind = header.kind;
            let header = RecordHeader { batch, ..header };
            let inline = ValueSource::ReadBuffer(inline.offset);
            let contents = RecordContents { chunk_extents: &chunk_extents, inline };
            let piece = self.append_at(&spot, to, &key, header, contents);
            // In both cases there is one more copy.
            if kind != RecordKind::Tombstone {
                self.index.add_older_record(key.as_bytes());
            }
            if let RecordStatus::Current(at) = standing {
                self.index.relocate(key.as_bytes(), at, piece);
                self.chunks.sub_live(chunk, bytes);
            } else {
                self.chunks.sub_live(piece.chunk, bytes);
            }
        }
        self.compaction.get_mut(i).advance(count);
        Ok(true)
    }

    /// Reads the headers of a batch in a compactor's memory; `None` if any record is damaged.
    fn read_batch(&mut self, i: usize, end: u32) -> Option<Vec<BatchMember>> {
        let size = self.layout.sector_bytes;
        let window = self.reads.compaction_read(i as u32);
        let (lane, base) = (window.offset, window.first * size);
        let records = self.compaction.get(i).records_until(end).to_vec();
        let mut members = Vec::with_capacity(records.len());
        let mut whole = true;
        for record in records {
            let (header, key, chunk_extents) = self.read_header(i, record.offset)?;
            let start = record.offset + header_bytes(key.len(), chunk_extents.len());
            let inline = ByteRange { offset: lane + (start - base) as usize, bytes: header.bytes };
            let (first, past) = (record.offset / size, (record.end() - 1) / size + 1);
            let bad = self.reads.compaction_read(i as u32).has_failed(first, past);
            whole &= !bad && self.read_buffer_crc(inline) == header.crc;
            members.push(BatchMember { record, header, key, chunk_extents, inline });
        }
        whole.then_some(members)
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
        let piece = self.append(AppendClass::Relocation, key, header, RecordContents::EMPTY)?;
        self.stats.values_uncorrectable += 1;
        self.set_current(key, seq, KeyVersion::Uncorrectable(piece));
        Ok(())
    }

    /// Finds the keys whose current records are in a chunk, but were not readable there.
    fn find_missing(&mut self, i: usize) {
        let chunk = self.compaction.get(i).chunk();
        let there = |current: &KeyVersion| current.records().iter().any(|p| p.chunk == chunk);
        let missing = self.index.iter().filter(|(_, entry)| there(&entry.current));
        let missing = missing.map(|(key, _)| key.clone()).collect();
        self.compaction.get_mut(i).set_missing_keys(missing);
    }

    /// Finishes a chunk that contains no current records.
    fn finish_compaction(&mut self, i: usize) -> bool {
        let c = self.compaction.get_mut(i);
        let (chunk, failing) = (c.chunk(), c.is_failing());
        if failing && self.chunks.get(chunk).readers() > 0 {
            return false;
        }
        let keys = c.finish();
        if failing {
            self.retire_failed_chunk(chunk);
        } else {
            self.stats.chunks_compacted += 1;
            self.mark_obsolete(chunk, keys);
        }
        true
    }
}
