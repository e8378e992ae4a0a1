//! Writes values as records: appends them to open chunks, and updates the index.
//!
//! A host change is in the index once its last record has a location in memory, durable or not. A
//! value of several records, or with whole chunks, is *unfinished* until then: its key is busy, and
//! the chunks with its records are pinned, so that compaction does not treat them as garbage.

use ring::{Iova, SharedRegion};

use crate::targets::kv::buffer::streams::{AllocError, AppendClass, RecordLocation};
use crate::targets::kv::chunks::ChunkRole;
use crate::targets::kv::format::key::Key;
use crate::targets::kv::format::record::{RecordHeader, RecordKind, header_bytes, record_bytes};
use crate::targets::kv::index::{ChunkExtent, ExtentList, KeyVersion, RecordRef};
use crate::targets::kv::puts::large_value::ChunkWrite;
use crate::targets::kv::request::{KvMutation, KvOp, KvRequestState, PutState, ValueBuffer};
use crate::targets::kv::{Kv, KvError};

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

/// A whole chunk of a value that is not assigned yet.
const UNASSIGNED: ChunkExtent = ChunkExtent { chunk: u32::MAX, crc: 0 };

impl Kv {
    /// Appends a record.
    pub(crate) fn append(
        &mut self,
        group: AppendClass,
        key: &Key,
        header: RecordHeader,
        (parts, from): (&[ChunkExtent], ValueSource),
    ) -> Result<RecordRef, AllocError> {
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot = self.streams.allocate(group, bytes, chunks, stamp, stats)?;
        Ok(self.append_at(&spot, (spot.offset, true), key, header, (parts, from)))
    }

    /// Writes a record at an offset of an allocated location; `last` if no other record follows.
    pub(crate) fn append_at(
        &mut self,
        spot: &RecordLocation,
        (offset, last): (u32, bool),
        key: &Key,
        mut header: RecordHeader,
        (parts, from): (&[ChunkExtent], ValueSource),
    ) -> RecordRef {
        let inline = offset + header_bytes(key.len(), parts.len());
        let bytes = record_bytes(key.len(), parts.len(), header.bytes);
        let buffers = (&mut self.copy_buffer[..], &mut self.durable_prefix);
        let source: (&SharedRegion, usize) = match from {
            ValueSource::ReadBuffer(at) => (self.read_ops.memory(), at),
            // Checked when the request was accepted; registrations are permanent.
            ValueSource::Host(at) => match self.queue.port().memory().find(at, header.bytes.into())
            {
                Ok(buffer) => (buffer.region, buffer.offset),
                Err(_) => (self.read_ops.memory(), 0),
            },
        };
        header.crc = self.streams.put_inline(spot, inline, source, header.bytes, buffers);
        header.encode(key, parts, &mut self.header_buffer);
        self.streams.put_bytes(spot, offset, &self.header_buffer, &mut self.durable_prefix);
        self.streams.commit(spot, (offset, bytes, last), &mut self.durable_prefix);
        self.chunks.get_mut(spot.chunk).records.push((offset, bytes));
        self.chunks.add_live(spot.chunk, bytes);
        match spot.class() {
            AppendClass::Host => self.stats.packed_bytes += u64::from(bytes),
            AppendClass::Relocation => self.stats.relocated_bytes += u64::from(bytes),
        }
        RecordRef { chunk: spot.chunk, offset, bytes: header.bytes, crc: header.crc }
    }

    /// Makes an appended version the current one of its key.
    pub(crate) fn set_current(&mut self, key: &Key, seq: u64, current: KeyVersion) {
        if let KeyVersion::Tombstone(_) = current {
            self.tombstone_bytes += u64::from(current.record_bytes(key.len(), 0));
            self.tombstones += 1;
        }
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
        self.append(
            group,
            key,
            single_record_header(seq, 0, RecordKind::Tombstone),
            (&[], ValueSource::ReadBuffer(0)),
        )
    }

    /// Puts a value of one record.
    pub(crate) fn put_packed(&mut self, key: &Key, value: ValueBuffer) -> PutProgress {
        let seq = self.seq + 1;
        let header = single_record_header(seq, value.bytes as u32, RecordKind::Value);
        match self.append(AppendClass::Host, key, header, (&[], ValueSource::Host(value.at))) {
            Err(short) => PutProgress::Blocked(short),
            Ok(piece) => {
                self.seq = seq;
                self.count_put(value.bytes);
                self.set_current(key, seq, KeyVersion::Packed(piece));
                PutProgress::Done(self.durable_prefix.next_seq())
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
        let (chunks, stamp, stats) = (&mut self.chunks, &mut self.stamp, &mut self.stats);
        let spot = self.streams.allocate(AppendClass::Host, bytes, chunks, stamp, stats)?;
        let batch = Some((spot.offset, spot.offset + bytes));
        let (mut offset, end) = (spot.offset, spot.offset + bytes);
        let mut made = Vec::with_capacity(changes.len());
        for change in changes {
            self.seq += 1;
            let (key, seq) = (change.key(), self.seq);
            let Some(value) = change.value() else {
                let header =
                    RecordHeader { batch, ..single_record_header(seq, 0, RecordKind::Tombstone) };
                let next = offset + record_bytes(key.len(), 0, 0);
                let from = (&[][..], ValueSource::ReadBuffer(0));
                let piece = self.append_at(&spot, (offset, next == end), key, header, from);
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
                let at = (offset, next == end);
                pieces.push(self.append_at(&spot, at, key, header, (&[], from)));
                offset = next;
            }
            made.push(build_version(Vec::new(), pieces));
            self.count_put(value.bytes);
        }
        let first = self.seq + 1 - changes.len() as u64;
        for (i, (change, current)) in (0..).zip(changes.iter().zip(made)) {
            self.set_current(change.key(), first + i, current);
        }
        Ok(())
    }

    /// Starts to write a value of several records, or with whole chunks; `bytes` is the size of its
    /// records.
    pub(crate) fn begin_large_put(
        &mut self,
        place: u32,
        key: Key,
        (parts, inline, bytes): (u32, u32, u64),
    ) {
        self.seq += 1;
        let writing = PutState {
            seq: self.seq,
            chunk_extents: vec![UNASSIGNED; parts as usize],
            chunks_to_begin: parts,
            chunks_to_complete: parts,
            records: Vec::new(),
            record_count: self.layout.record_count(key.len(), parts, inline),
            inline_bytes: inline,
            inline_appended: 0,
            reserved_bytes: bytes,
        };
        let Some(pending) = self.requests.get_mut(place) else { return };
        pending.state = KvRequestState::Put(Box::new(writing));
        self.reserved_bytes += bytes;
        self.large_value_chunks += parts;
        self.unfinished_puts += 1;
        self.set_key_busy(&key, true);
        if parts > 0 { &mut self.large_value_queue } else { &mut self.record_queue }
            .push_back(place);
        self.progressed = true;
    }

    /// Allocates a chunk for a whole chunk of a value.
    fn allocate_large_value_chunk(&mut self) -> Option<u32> {
        let free = self.chunks.free_count > self.layout.reserve_chunks;
        let chunk = if free { self.chunks.allocate(ChunkRole::LargeValue) } else { None };
        self.out_of_chunks |= chunk.is_none();
        self.progressed |= chunk.is_some();
        chunk
    }

    /// Starts writes of whole chunks, up to the maximum.
    pub(crate) fn begin_large_value_chunks(&mut self) {
        while let Some(&job) = self.large_values.failed_writes.front() {
            let Some(chunk) = self.allocate_large_value_chunk() else { return };
            self.large_values.failed_writes.pop_front();
            self.large_values.restart(job, chunk);
        }
        while let Some(&place) = self.large_value_queue.front()
            && self.large_values.has_capacity()
        {
            let Some(room) = self.request_value(place) else { return };
            let Some(chunk) = self.allocate_large_value_chunk() else { return };
            let Some(w) = self.requests.put_state(place) else { return };
            let (part, seq) = (w.chunk_extents.len() as u32 - w.chunks_to_begin, w.seq);
            w.chunks_to_begin -= 1;
            if w.chunks_to_begin == 0 {
                self.large_value_queue.pop_front();
            }
            let bytes = self.layout.chunk_bytes;
            let from = room.at.offset(u64::from(part) * u64::from(bytes));
            let crc =
                if self.config.checksum_large_values { self.host_crc(from, bytes) } else { 0 };
            self.large_values.begin((place, part), (chunk, seq), (from, crc));
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
        let Ok(buffer) = self.queue.port().memory().find(at, bytes.into()) else { return 0 };
        region_crc(buffer.region, buffer.offset, bytes, &mut self.copy_buffer)
    }

    /// Handles the completion of a whole chunk.
    pub(crate) fn on_large_value_chunk_written(&mut self, job: &ChunkWrite) {
        self.stats.large_value_chunks_written += 1;
        let Some(w) = self.requests.put_state(job.request) else { return };
        w.chunk_extents[job.chunk_index as usize] = ChunkExtent { chunk: job.chunk, crc: job.crc };
        w.chunks_to_complete -= 1;
        if w.chunks_to_complete == 0 {
            self.record_queue.push_back(job.request);
        }
    }

    /// Appends the records of unfinished values, one value after the other.
    pub(crate) fn step_record_queue(&mut self) {
        loop {
            if self.appending.is_none() {
                self.appending = self.record_queue.pop_front();
            }
            let Some(place) = self.appending else { return };
            if !self.append_value_records(place) {
                return;
            }
            self.appending = None;
            self.progressed = true;
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
            match self.append(AppendClass::Host, &key, header, (parts, from)) {
                Ok(piece) => {
                    self.chunks.get_mut(piece.chunk).unfinished_records += 1;
                    w.records.push(piece);
                    w.inline_appended += bytes;
                    self.progressed = true;
                }
                Err(short) => {
                    self.out_of_chunks |= short == AllocError::NoChunk;
                    if let Some(back) = self.requests.put_state(place) {
                        *back = w;
                    }
                    return false;
                }
            }
        }
        for piece in &w.records {
            self.chunks.get_mut(piece.chunk).unfinished_records -= 1;
        }
        self.reserved_bytes -= w.reserved_bytes;
        self.unfinished_puts -= 1;
        self.count_put(value.bytes);
        self.set_current(&key, w.seq, build_version(w.chunk_extents, w.records));
        self.set_key_busy(&key, false);
        self.complete_mutation(place, self.durable_prefix.next_seq());
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
            self.chunks.sub_live(piece.chunk, record_bytes(key.len(), parts, piece.bytes));
            let chunk = self.chunks.get_mut(piece.chunk);
            chunk.unfinished_records -= 1;
            // They are not counted as older records of the key.
            chunk.records.retain(|(offset, _)| *offset != piece.offset);
        }
        self.reserved_bytes -= w.reserved_bytes;
        self.large_value_chunks -= w.chunk_extents.len() as u32;
        for part in w.chunk_extents.iter().filter(|p| **p != UNASSIGNED) {
            self.mark_obsolete(part.chunk, Vec::new());
        }
        self.unfinished_puts -= 1;
        self.set_key_busy(&key, false);
    }

    /// Aborts all values that are being written.
    pub(crate) fn abort_all_puts(&mut self, error: KvError) {
        let orphans: Vec<u32> = self.large_values.failed_writes.drain(..).collect();
        let stuck = orphans.into_iter().filter_map(|job| self.large_values.remove(job));
        let mut places: Vec<u32> = stuck.map(|job| job.request).collect();
        places.extend(self.large_value_queue.drain(..));
        places.extend(self.record_queue.drain(..));
        places.extend(self.appending.take());
        places.sort_unstable();
        places.dedup();
        for place in places {
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

/// Computes the CRC-32C of bytes in registered memory.
pub(crate) fn region_crc(region: &SharedRegion, at: usize, bytes: u32, scratch: &mut [u8]) -> u32 {
    let (mut crc, mut done) = (0, 0);
    while done < bytes as usize {
        let n = (bytes as usize - done).min(scratch.len());
        region.read(at + done, &mut scratch[..n]);
        crc = crc32c::crc32c_append(crc, &scratch[..n]);
        done += n;
    }
    crc
}
