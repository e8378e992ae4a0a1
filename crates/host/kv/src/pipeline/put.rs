//! Writes values as records: appends them to open chunks, and updates the index.
//!
//! A host change is in the index once its last record has a location in memory, durable or not. A
//! value of several records, or with whole chunks, is *unfinished* until then: its key is busy, and
//! the chunks with its records are pinned, so that compaction does not treat them as garbage.

use mem::Iova;

use crate::buffer::streams::{
    AllocError, AppendClass, ByteSource, CommittedRecord, RecordLocation,
};
use crate::chunks::{KvChunkRole, RecordSpan};
use crate::format::key::Key;
use crate::format::record::{RecordHeader, RecordKind, header_bytes, record_bytes};
use crate::index::{ChunkExtent, ExtentList, KeyVersion, RecordRef};
use crate::puts::large_value::{ChunkWrite, ChunkWriteStart};
use crate::request::{KvMutation, KvOp, KvRequestState, PutState, ValueBuffer};
use crate::{Kv, KvError};

/// The progress of a mutation.
pub(crate) enum PutProgress {
    /// Applied; durable when all units below this sequence number are.
    Done(u64),
    /// In progress.
    InProgress,
    /// Blocked.
    Blocked(AllocError),
}

/// The source of inline bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueSource {
    Host(Iova),
    /// The memory of reads, from this byte on.
    ReadBuffer(usize),
}

/// The contents of a record after its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordContents<'a> {
    /// Whole chunks of the value, if this is its first record.
    pub(crate) chunk_extents: &'a [ChunkExtent],
    /// Inline bytes.
    pub(crate) inline: ValueSource,
}

impl RecordContents<'_> {
    /// Contents without whole chunks and inline bytes.
    pub(crate) const EMPTY: RecordContents<'static> =
        RecordContents { chunk_extents: &[], inline: ValueSource::ReadBuffer(0) };

    /// Contents without whole chunks.
    pub(crate) fn inline(inline: ValueSource) -> RecordContents<'static> {
        RecordContents { chunk_extents: &[], inline }
    }
}

/// The place of a record in an allocated location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordOffset {
    /// Offset in the chunk.
    pub(crate) offset: u32,
    /// Whether no other record follows.
    pub(crate) is_last: bool,
}

/// The space of a value of several records, or with whole chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargePutSize {
    /// Number of whole chunks.
    pub(crate) chunks: u32,
    /// Bytes of the value in records.
    pub(crate) inline_bytes: u32,
    /// Bytes of all records.
    pub(crate) record_bytes: u64,
}

/// A whole chunk of a value that is not assigned yet.
const UNASSIGNED: ChunkExtent = ChunkExtent { chunk: u32::MAX, crc: 0 };

impl Kv {
    /// Appends a record.
    pub(crate) fn append(
        &mut self,
        group: AppendClass,
        key: &Key,
        header: RecordHeader,
        contents: RecordContents<'_>,
    ) -> Result<RecordRef, AllocError> {
        let bytes = record_bytes(key.len(), contents.chunk_extents.len(), header.bytes);
        let spot = self.streams.allocate(group, bytes, &mut self.chunks, &mut self.stats)?;
        let place = RecordOffset { offset: spot.offset, is_last: true };
        Ok(self.append_at(&spot, place, key, header, contents))
    }

    /// Writes a record at a place of an allocated location.
    pub(crate) fn append_at(
        &mut self,
        spot: &RecordLocation,
        place: RecordOffset,
        key: &Key,
        mut header: RecordHeader,
        contents: RecordContents<'_>,
    ) -> RecordRef {
        let RecordOffset { offset, is_last } = place;
        let RecordContents { chunk_extents: parts, inline: from } = contents;
        let inline = offset + header_bytes(key.len(), parts.len());
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        let source = |region, offset| ByteSource { region, offset, bytes: header.bytes };
        let source = match from {
            ValueSource::ReadBuffer(at) => source(self.reads.memory(), at),
            // Checked when the request was accepted; registrations are permanent.
            ValueSource::Host(at) => {
                match self.device.queue.port().memory().find(at, header.bytes.into()) {
                    Ok(buffer) => source(buffer.region, buffer.offset),
                    Err(_) => source(self.reads.memory(), 0),
                }
            }
        };
        self.stats.work.add_pass(header.bytes);
        header.crc = self.streams.put_inline(spot, inline, source, &mut self.scratch.copy);
        header.encode(key, parts, &mut self.scratch.header);
        self.streams.put_bytes(spot, offset, &self.scratch.header);
        let record = RecordSpan { offset, bytes };
        self.streams.commit(spot, CommittedRecord { record, is_last });
        self.chunks.add_record(spot.chunk, record);
        match spot.class() {
            AppendClass::Host => {
                self.stats.packed_bytes += u64::from(bytes);
                self.stats.work.records_put += 1;
            }
            AppendClass::Relocation => {
                self.stats.relocated_bytes += u64::from(bytes);
                self.stats.work.records_relocated += 1;
            }
        }
        RecordRef { chunk: spot.chunk, offset, bytes: header.bytes, crc: header.crc }
    }

    /// Makes an appended version the current one of its key.
    pub(crate) fn set_current(&mut self, key: &Key, seq: u64, current: KeyVersion) {
        if let Some(old) = self.index.replace(key, seq, current) {
            self.discard_version(key.len(), &old);
        }
    }

    /// Appends a tombstone.
    pub(crate) fn put_tombstone(
        &mut self,
        group: AppendClass,
        key: &Key,
        seq: u64,
    ) -> Result<RecordRef, AllocError> {
        let header = single_record_header(seq, 0, RecordKind::Tombstone);
        self.append(group, key, header, RecordContents::EMPTY)
    }

    /// Puts a value of one record.
    pub(crate) fn put_packed(&mut self, key: &Key, value: ValueBuffer) -> PutProgress {
        let seq = self.index.last_seq() + 1;
        let header = single_record_header(seq, value.bytes as u32, RecordKind::Value);
        let contents = RecordContents::inline(ValueSource::Host(value.at));
        match self.append(AppendClass::Host, key, header, contents) {
            Err(short) => PutProgress::Blocked(short),
            Ok(piece) => {
                self.index.assign_seq();
                self.count_put(value.bytes);
                self.set_current(key, seq, KeyVersion::Packed(piece));
                PutProgress::Done(self.streams.next_unit_seq())
            }
        }
    }

    fn count_put(&mut self, bytes: u64) {
        self.stats.puts += 1;
        self.stats.bytes_put += bytes;
    }

    /// Returns the bytes of the records of a value without whole chunks.
    pub(crate) fn batch_bytes(&self, key: u8, bytes: u64) -> u64 {
        let Ok(bytes) = u32::try_from(bytes) else { return u64::MAX >> 16 };
        let (count, room) =
            (self.layout.record_count(key, 0, bytes), self.layout.inline_bytes_max(key, 0));
        // All records but the last have the maximum length.
        let last = bytes - (count - 1) * room;
        u64::from(count - 1) * u64::from(self.layout.record_bytes)
            + u64::from(record_bytes(key, 0, last))
    }

    /// Appends the records of a batch, `bytes` in total, and makes them current.
    pub(crate) fn put_batch(
        &mut self,
        changes: &[KvMutation],
        bytes: u32,
    ) -> Result<(), AllocError> {
        let (chunks, stats) = (&mut self.chunks, &mut self.stats);
        let spot = self.streams.allocate(AppendClass::Host, bytes, chunks, stats)?;
        let batch = Some((spot.offset, spot.offset + bytes));
        let (mut offset, end) = (spot.offset, spot.offset + bytes);
        let mut made = Vec::with_capacity(changes.len());
        for change in changes {
            let (key, seq) = (change.key(), self.index.assign_seq());
            let Some(value) = change.value() else {
                let header =
                    RecordHeader { batch, ..single_record_header(seq, 0, RecordKind::Tombstone) };
                let next = offset + record_bytes(key.len(), 0, 0);
                let place = RecordOffset { offset, is_last: next == end };
                let piece = self.append_at(&spot, place, key, header, RecordContents::EMPTY);
                offset = next;
                made.push(KeyVersion::Tombstone(piece));
                self.stats.deletes += 1;
                continue;
            };
            let (inline, room) = (value.bytes as u32, self.layout.inline_bytes_max(key.len(), 0));
            let count = self.layout.record_count(key.len(), 0, inline);
            let mut pieces = Vec::new();
            for i in 0..count {
                let bytes = room.min(inline - i * room);
                let header = RecordHeader {
                    batch,
                    record_index: i as u16,
                    record_count: count as u16,
                    ..single_record_header(seq, bytes, RecordKind::Value)
                };
                let from = ValueSource::Host(value.at.offset(u64::from(i) * u64::from(room)));
                let next = offset + record_bytes(key.len(), 0, bytes);
                let place = RecordOffset { offset, is_last: next == end };
                let contents = RecordContents::inline(from);
                pieces.push(self.append_at(&spot, place, key, header, contents));
                offset = next;
            }
            made.push(build_version(Vec::new(), pieces));
            self.count_put(value.bytes);
        }
        let first = self.index.last_seq() + 1 - changes.len() as u64;
        for (i, (change, current)) in (0..).zip(changes.iter().zip(made)) {
            self.set_current(change.key(), first + i, current);
        }
        Ok(())
    }

    /// Starts to write a value of several records, or with whole chunks.
    pub(crate) fn begin_large_put(&mut self, place: u32, key: Key, size: LargePutSize) {
        let LargePutSize { chunks, inline_bytes, record_bytes } = size;
        let writing = PutState {
            seq: self.index.assign_seq(),
            chunk_extents: vec![UNASSIGNED; chunks as usize],
            chunks_to_begin: chunks,
            chunks_to_complete: chunks,
            records: Vec::new(),
            record_count: self.layout.record_count(key.len(), chunks, inline_bytes),
            inline_bytes,
            inline_appended: 0,
            reserved_bytes: record_bytes,
        };
        let Some(pending) = self.requests.get_mut(place) else { return };
        self.puts.begin(place, &writing);
        pending.state = KvRequestState::Put(Box::new(writing));
        self.write_order.begin_busy(&key);
        self.progress.moved = true;
    }

    /// Allocates a chunk for a whole chunk of a value.
    fn allocate_large_value_chunk(&mut self) -> Option<u32> {
        let free = self.chunks.free_count() > self.layout.budget.reserve_chunks;
        let chunk = if free { self.chunks.allocate(KvChunkRole::LargeValue) } else { None };
        self.progress.out_of_chunks |= chunk.is_none();
        self.progress.moved |= chunk.is_some();
        chunk
    }

    /// Starts writes of whole chunks, up to the maximum.
    pub(crate) fn begin_large_value_chunks(&mut self) {
        while self.puts.writes().has_failed_write() {
            let Some(chunk) = self.allocate_large_value_chunk() else { return };
            self.puts.writes_mut().restart_failed(chunk);
        }
        while let Some(place) = self.puts.next_chunk_put() {
            let Some(room) = self.request_value(place) else { return };
            let Some(chunk) = self.allocate_large_value_chunk() else { return };
            let Some(w) = self.requests.put_state(place) else { return };
            let (part, seq) = (w.chunk_extents.len() as u32 - w.chunks_to_begin, w.seq);
            w.chunks_to_begin -= 1;
            if w.chunks_to_begin == 0 {
                self.puts.pop_chunk_put();
            }
            let bytes = self.layout.chunk_bytes;
            let from = room.at.offset(u64::from(part) * u64::from(bytes));
            let crc = if self.puts.has_chunk_checksums() { self.host_crc(from, bytes) } else { 0 };
            let start =
                ChunkWriteStart { request: place, chunk_index: part, chunk, seq, from, crc };
            self.puts.writes_mut().begin(start);
        }
    }

    fn request_value(&self, place: u32) -> Option<ValueBuffer> {
        match &self.requests.get(place)?.op {
            KvOp::Mutation { mutation: change, .. } => change.value(),
            _ => None,
        }
    }

    /// Computes the CRC-32C of bytes in the client's memory.
    pub(crate) fn host_crc(&mut self, at: Iova, bytes: u32) -> u32 {
        let memory = self.device.queue.port().memory();
        let Ok(buffer) = memory.find(at, bytes.into()) else { return 0 };
        let source = ByteSource { region: buffer.region, offset: buffer.offset, bytes };
        self.stats.work.add_pass(bytes);
        source.crc(&mut self.scratch.copy)
    }

    /// Handles the completion of a whole chunk.
    pub(crate) fn on_large_value_chunk_written(&mut self, job: &ChunkWrite) {
        self.stats.large_value_chunks_written += 1;
        let Some(w) = self.requests.put_state(job.request) else { return };
        w.chunk_extents[job.chunk_index as usize] = ChunkExtent { chunk: job.chunk, crc: job.crc };
        w.chunks_to_complete -= 1;
        if w.chunks_to_complete == 0 {
            self.puts.queue_records(job.request);
        }
    }

    /// Appends the records of unfinished values, one value after the other.
    pub(crate) fn step_record_queue(&mut self) {
        while let Some(place) = self.puts.next_record_put() {
            if !self.append_value_records(place) {
                return;
            }
            self.puts.end_appending();
            self.progress.moved = true;
        }
    }

    /// Appends records of a value. Returns whether all are appended.
    fn append_value_records(&mut self, place: u32) -> bool {
        let Some(pending) = self.requests.get_mut(place) else { return true };
        let (KvOp::Mutation { mutation: change, .. }, KvRequestState::Put(writing)) =
            (&pending.op, &mut pending.state)
        else {
            return true;
        };
        let Some(value) = change.value() else { return true };
        let (key, mut w) = (change.key().clone(), std::mem::take(&mut **writing));
        let whole = w.chunk_extents.len() as u64 * u64::from(self.layout.chunk_bytes);
        while (w.records.len() as u32) < w.record_count {
            let first = w.records.is_empty();
            let parts = if first { &w.chunk_extents[..] } else { &[] };
            let bytes = self
                .layout
                .inline_bytes_max(key.len(), parts.len())
                .min(w.inline_bytes - w.inline_appended);
            let header = RecordHeader {
                record_index: w.records.len() as u16,
                record_count: w.record_count as u16,
                ..single_record_header(w.seq, bytes, RecordKind::Value)
            };
            let from = ValueSource::Host(value.at.offset(whole + u64::from(w.inline_appended)));
            let contents = RecordContents { chunk_extents: parts, inline: from };
            match self.append(AppendClass::Host, &key, header, contents) {
                Ok(piece) => {
                    self.chunks.begin_unfinished(piece.chunk);
                    w.records.push(piece);
                    w.inline_appended += bytes;
                    self.progress.moved = true;
                }
                Err(short) => {
                    self.progress.out_of_chunks |= short == AllocError::NoChunk;
                    if let Some(back) = self.requests.put_state(place) {
                        *back = w;
                    }
                    return false;
                }
            }
        }
        for piece in &w.records {
            self.chunks.end_unfinished(piece.chunk);
        }
        self.puts.end(&w);
        self.count_put(value.bytes);
        self.set_current(&key, w.seq, build_version(w.chunk_extents, w.records));
        self.write_order.end_busy(&key);
        self.complete_mutation(place, self.streams.next_unit_seq());
        true
    }

    /// Aborts a value that is being written; it must have no command in flight.
    pub(crate) fn abort_put(&mut self, place: u32) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let (KvOp::Mutation { mutation: change, .. }, KvRequestState::Put(writing)) =
            (&pending.op, &mut pending.state)
        else {
            return;
        };
        let (key, w) = (change.key().clone(), std::mem::take(&mut **writing));
        pending.state = KvRequestState::Queued;
        for (i, piece) in w.records.iter().enumerate() {
            let parts = if i == 0 { w.chunk_extents.len() } else { 0 };
            let bytes = record_bytes(key.len(), parts, piece.bytes);
            self.chunks.remove_unfinished(piece.chunk, RecordSpan { offset: piece.offset, bytes });
        }
        self.puts.end(&w);
        for part in w.chunk_extents.iter().filter(|p| **p != UNASSIGNED) {
            self.discard_extent(part.chunk);
        }
        self.write_order.end_busy(&key);
    }

    /// Aborts all values that are being written.
    pub(crate) fn abort_all_puts(&mut self, error: KvError) {
        for place in self.puts.take_all() {
            self.abort_put(place);
            self.complete(place, Err(error));
        }
    }
}

/// Returns the header of a record outside a batch, for a value of one record. The CRC is set later.
pub(crate) fn single_record_header(seq: u64, bytes: u32, kind: RecordKind) -> RecordHeader {
    RecordHeader { seq, bytes, crc: 0, batch: None, record_index: 0, record_count: 1, kind }
}

/// Builds a version from whole chunks and records.
pub(crate) fn build_version(parts: Vec<ChunkExtent>, pieces: Vec<RecordRef>) -> KeyVersion {
    match pieces[..] {
        [piece] if parts.is_empty() => KeyVersion::Packed(piece),
        _ => KeyVersion::Extents(Box::new(ExtentList {
            chunk_extents: parts.into(),
            records: pieces.into(),
        })),
    }
}
