//! Reads values from flash, or from buffered units.
//!
//! A read captures the location of its value when it starts. Until it completes, none of the
//! value's chunks is erased, so the value may be overwritten or relocated meanwhile. Whole chunks
//! are read directly into the client's memory; records are read through a buffer, because they
//! start at any byte of a sector.

use std::ops::Range;

use nvme::Status;

use crate::buffer::streams::ByteSource;
use crate::format::record::header_bytes;
use crate::index::{KeyVersion, RecordRef};
use crate::read_ops::{ReadClass, ReadOwner};
use crate::request::{GetState, KvAnswer, KvOp, KvRequestState};
use crate::{Kv, KvError};

impl Kv {
    /// Starts a read; no earlier request for its key is queued.
    pub(crate) fn begin_read(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        self.stats.work.lookups += 1;
        let (key, into) = match &pending.op {
            KvOp::Get { key, into } => (key, *into),
            _ => return self.complete_exists(place),
        };
        let Some(entry) = self.index.get_present(key.as_bytes()) else {
            return self.complete(place, Err(KvError::NotFound));
        };
        let bytes = entry.current.value_bytes(self.layout.chunk_bytes);
        let error = match entry.current {
            KeyVersion::Uncorrectable(_) => {
                Some(KvError::Media { status: Status::UNRECOVERED_READ })
            }
            _ if bytes > into.bytes => Some(KvError::BufferTooSmall { bytes }),
            _ => None,
        };
        if let Some(error) = error {
            return self.complete(place, Err(error));
        }
        if bytes == 0 {
            self.stats.gets += 1;
            return self.complete(place, Ok(KvAnswer::Value(0)));
        }
        let current = entry.current.clone();
        let steps = (current.chunk_extents().len() + current.records().len()) as u32;
        let small = match &current {
            KeyVersion::Packed(piece) => {
                self.record_sectors(piece, key.len(), 0).len() as u32
                    <= self.layout.read_buffer_sectors()[0]
            }
            _ => false,
        };
        let reading = GetState {
            key_bytes: key.len(),
            into,
            next_step: 0,
            remaining_steps: steps,
            error: None,
            current,
        };
        self.begin_chunk_reads(&reading.current);
        if let Some(pending) = self.requests.get_mut(place) {
            pending.state = KvRequestState::Get(reading);
        }
        self.reads.queue_value(place, small);
        self.progress.moved = true;
    }

    /// Defers the erases of a value's chunks.
    fn begin_chunk_reads(&mut self, current: &KeyVersion) {
        for chunk in current.chunks() {
            if self.chunks.is_owned(chunk) {
                self.chunks.begin_read(chunk);
            }
        }
    }

    /// Allows the erases of a value's chunks.
    fn end_chunk_reads(&mut self, current: &KeyVersion) {
        for chunk in current.chunks() {
            if self.chunks.is_owned(chunk) {
                self.chunks.end_read(chunk);
            }
        }
    }

    /// Returns the sectors of a record's inline bytes.
    fn record_sectors(&self, piece: &RecordRef, key: u8, parts: usize) -> Range<u32> {
        let size = self.layout.sector_bytes;
        let start = piece.offset + header_bytes(key, parts);
        start / size..(start + piece.bytes.max(1) - 1) / size + 1
    }

    /// Starts reads of chunks and records, as far as buffers are free.
    pub(crate) fn step_reads(&mut self) {
        for (is_small, lane) in [(true, ReadClass::Small), (false, ReadClass::Any)] {
            while let Some(place) = self.reads.front_value(is_small) {
                if !self.read_next(place, lane) {
                    break;
                }
                let more = self.requests.get_state(place).is_some_and(|r| {
                    (r.next_step as usize)
                        < r.current.chunk_extents().len() + r.current.records().len()
                });
                if !more {
                    self.reads.pop_value(is_small);
                }
            }
        }
    }

    /// Starts to read the next whole chunk or record of a value. Returns whether a buffer was free.
    fn read_next(&mut self, place: u32, lane: ReadClass) -> bool {
        let Some(reading) = self.requests.get_state(place) else { return true };
        let (index, parts) = (reading.next_step, reading.current.chunk_extents().len());
        let key = reading.key_bytes;
        if let Some(part) = reading.current.chunk_extents().get(index as usize).copied() {
            if !self.reads.has_free(ReadClass::Direct) {
                return false;
            }
            let to = reading.into.at.offset(u64::from(index) * u64::from(self.layout.chunk_bytes));
            reading.next_step += 1;
            if !self.chunks.is_owned(part.chunk) {
                let error = KvError::Media { status: Status::UNRECOVERED_READ };
                self.on_read_step_complete(place, Some(error));
                return true;
            }
            let owner = ReadOwner::LargeValueChunk { request: place, index, to };
            let sectors = self.layout.chunk_bytes / self.layout.sector_bytes;
            return self.reads.begin(ReadClass::Direct, owner, part.chunk, 0..sectors);
        }
        let i = index as usize - parts;
        let Some(piece) = reading.current.records().get(i).copied() else { return true };
        if piece.bytes == 0 {
            reading.next_step += 1;
            self.on_read_step_complete(place, None);
            return true;
        }
        if !self.reads.has_free(lane) {
            return false;
        }
        reading.next_step += 1;
        let sectors = self.record_sectors(&piece, key, if i == 0 { parts } else { 0 });
        let owner = ReadOwner::Record { request: place, index };
        self.reads.begin(lane, owner, piece.chunk, sectors)
    }

    /// Handles completed reads.
    pub(crate) fn complete_reads(&mut self) {
        while let Some(fetch) = self.reads.pop_completed() {
            self.progress.moved = true;
            let failed = self.reads.get(fetch).failed;
            match self.reads.get(fetch).owner {
                ReadOwner::Compactor { compactor } => {
                    self.reads.release(fetch);
                    self.compaction.get_mut(compactor as usize).on_window_read();
                }
                ReadOwner::Record { request, index } => {
                    let error = match failed {
                        Some(status) => Some(KvError::Media { status }),
                        None => self.copy_to_host(fetch, request, index),
                    };
                    self.reads.release(fetch);
                    self.on_read_step_complete(request, error);
                }
                ReadOwner::LargeValueChunk { request, index, to } => {
                    self.reads.release(fetch);
                    let error = match failed {
                        Some(status) => Some(KvError::Media { status }),
                        None => self.verify_chunk_extent(request, index, to),
                    };
                    self.on_read_step_complete(request, error);
                }
                ReadOwner::None => {}
            }
        }
    }

    /// Copies inline bytes from a read buffer to the client.
    fn copy_to_host(&mut self, fetch: u32, place: u32, index: u32) -> Option<KvError> {
        let reading = self.requests.get_state(place)?;
        let parts = reading.current.chunk_extents().len();
        let i = index as usize - parts;
        let piece = reading.current.records()[i];
        let before: u64 =
            reading.current.records()[..i].iter().map(|p| u64::from(p.bytes)).sum::<u64>();
        let whole = parts as u64 * u64::from(self.layout.chunk_bytes);
        let to = reading.into.at.offset(whole + before);
        let header = header_bytes(reading.key_bytes, if i == 0 { parts } else { 0 });
        let fetch = self.reads.get(fetch);
        let start = piece.offset + header - fetch.first * self.layout.sector_bytes;
        let (lanes, from) = (self.reads.memory(), fetch.offset + start as usize);
        let to = match self.device.queue.port().memory().find(to, piece.bytes.into()) {
            Ok(buffer) => buffer,
            Err(_) => return Some(KvError::NotRegistered),
        };
        let source = ByteSource { region: lanes, offset: from, bytes: piece.bytes };
        self.stats.work.add_first_pass(piece.bytes);
        let write = |done: u32, block: &[u8]| to.region.write(to.offset + done as usize, block);
        let crc = source.copy_blocks(&mut self.scratch.copy, |_| u32::MAX, write);
        (crc != piece.crc).then_some(KvError::ChecksumMismatch)
    }

    /// Verifies the checksum of a whole chunk.
    fn verify_chunk_extent(&mut self, place: u32, index: u32, to: mem::Iova) -> Option<KvError> {
        if !self.puts.has_chunk_checksums() {
            return None;
        }
        let wanted =
            self.requests.get_state(place)?.current.chunk_extents().get(index as usize)?.crc;
        let bytes = self.layout.chunk_bytes;
        let Ok(buffer) = self.device.queue.port().memory().find(to, bytes.into()) else {
            return Some(KvError::NotRegistered);
        };
        let source = ByteSource { region: buffer.region, offset: buffer.offset, bytes };
        self.stats.work.add_first_pass(bytes);
        let crc = source.crc(&mut self.scratch.copy);
        // 0 was written by a configuration without checksums of whole chunks.
        (crc != wanted && wanted != 0).then_some(KvError::ChecksumMismatch)
    }

    /// Handles a chunk or record that was read, or that is unreadable.
    fn on_read_step_complete(&mut self, place: u32, error: Option<KvError>) {
        let Some(reading) = self.requests.get_state(place) else { return };
        reading.remaining_steps -= 1;
        reading.error = reading.error.or(error);
        if reading.remaining_steps > 0 {
            return;
        }
        let Some(pending) = self.requests.get_mut(place) else { return };
        let KvRequestState::Get(reading) =
            std::mem::replace(&mut pending.state, KvRequestState::Queued)
        else {
            return;
        };
        self.end_chunk_reads(&reading.current);
        let bytes = reading.current.value_bytes(self.layout.chunk_bytes);
        match reading.error {
            Some(error) => self.complete(place, Err(error)),
            None => {
                self.stats.gets += 1;
                self.stats.bytes_got += bytes;
                self.complete(place, Ok(KvAnswer::Value(bytes)));
            }
        }
    }
}
