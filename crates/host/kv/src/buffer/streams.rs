//! [`AppendStreams`]: the chunks that are open for records, each on its own parallel unit.
//!
//! A record is contiguous in one chunk. Units are programmed in order as they fill. The memory of a
//! unit is kept until the unit is readable from media, which is after its paired units are
//! programmed [LightNVM17 §4.2.1]; earlier reads use the memory. A chunk whose program failed keeps
//! the memory of units that are not on flash until they are relocated.

mod invariants;
mod programs;

use std::collections::VecDeque;

use mem::SharedRegion;

use crate::buffer::durable_prefix::DurablePrefix;
use crate::buffer::unit_memory::UnitMemory;
use crate::chunks::{KvChunkRole, KvChunks, RecordSpan};
use crate::config::KvLayout;
use crate::format::oob::SectorTag;
use crate::stats::KvStats;

/// The class of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendClass {
    /// Host changes.
    Host,
    /// Records relocated by compaction.
    Relocation,
}

/// Why a location for a record cannot be allocated now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocError {
    /// No unit memory is free; programs must complete first.
    NoMemory,
    /// No chunk is free.
    NoChunk,
}

/// An allocated location of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLocation {
    class: AppendClass,
    stream: usize,
    pub(crate) chunk: u32,
    pub(crate) offset: u32,
}

impl RecordLocation {
    /// Returns the class of the append.
    pub(crate) fn class(&self) -> AppendClass {
        self.class
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum AppendUnitState {
    Filling,
    Ready,
    Sent,
    Programmed,
}

#[derive(Clone, Copy, Debug)]
struct AppendUnit {
    /// `None`: all padding.
    slot: Option<u32>,
    seq: Option<u64>,
    state: AppendUnitState,
}

#[derive(Debug)]
struct AppendStream {
    chunk: u32,
    stamp: u64,
    /// Number of bytes allocated.
    fill_bytes: u32,
    /// Offset of the last record.
    last_record_start: Option<u32>,
    /// Index of the first entry of `units`; earlier units are readable from flash.
    first_unit: u32,
    units: VecDeque<AppendUnit>,
    /// Number of units programmed, and number of units submitted.
    units_programmed: u32,
    units_sent: u32,
    outstanding: u32,
    failed: bool,
}

/// A chunk that was open at the power loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenChunk {
    pub(crate) chunk: u32,
    pub(crate) fill_bytes: u32,
    pub(crate) stamp: u64,
}

/// Bytes in registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSource<'a> {
    pub(crate) region: &'a SharedRegion,
    /// Offset of the first byte in the region.
    pub(crate) offset: usize,
    /// Number of bytes.
    pub(crate) bytes: u32,
}

impl ByteSource<'_> {
    /// Copies the bytes block by block through `scratch` to `each`, which receives every block with
    /// its offset from the first byte. Returns the CRC-32C of all bytes.
    #[inline]
    pub(crate) fn copy_blocks(
        &self,
        scratch: &mut [u8],
        mut block_bytes_max: impl FnMut(u32) -> u32,
        mut each: impl FnMut(u32, &[u8]),
    ) -> u32 {
        let (mut done, mut crc) = (0, 0);
        while done < self.bytes {
            let n = (self.bytes - done).min(block_bytes_max(done)).min(scratch.len() as u32);
            let block = &mut scratch[..n as usize];
            self.region.read(self.offset + done as usize, block);
            crc = crc32c::crc32c_append(crc, block);
            each(done, block);
            done += n;
        }
        crc
    }

    /// Computes the CRC-32C of the bytes.
    pub(crate) fn crc(&self, scratch: &mut [u8]) -> u32 {
        self.copy_blocks(scratch, |_| u32::MAX, |_, _| {})
    }
}

/// A record that is complete in its units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommittedRecord {
    /// Offset and length in the chunk.
    pub(crate) record: RecordSpan,
    /// Whether it is the last record of a batch, or outside a batch.
    pub(crate) is_last: bool,
}

/// A unit whose program completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgrammedUnit {
    pub(crate) chunk: u32,
    /// Index in the chunk.
    pub(crate) unit: u32,
}

/// The consequence of a program's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramOutcome {
    Continue,
    /// The chunk is full and completely readable.
    ChunkFull,
    /// The chunk failed, and has no more commands in flight.
    ChunkFailed,
}

#[derive(Debug)]
pub(crate) struct AppendStreams {
    streams: Vec<Option<AppendStream>>,
    /// Failed chunks, with their units that are not on flash.
    failed: Vec<AppendStream>,
    classes: [Vec<Option<usize>>; 2],
    next_stream: [usize; 2],
    memory: UnitMemory,
    layout: KvLayout,
    /// Chunks that were open at the power loss and are not open yet.
    open_chunks: VecDeque<OpenChunk>,
    /// Stamp of the chunk that was opened last.
    last_stamp: u64,
    /// Sequence numbers of the units.
    order: DurablePrefix,
    /// Number of units that wait to be submitted.
    ready_units: u32,
}

impl AppendStreams {
    /// Returns the number of unit buffers that `layout` needs. While no program is in flight, a
    /// stream keeps the units that wait for their pairs and the one being filled; the others
    /// suffice for a batch.
    pub(crate) fn slots_needed(layout: &KvLayout) -> u32 {
        layout.concurrency.streams_max * (layout.pair_units + 3)
            + layout.batch_bytes.div_ceil(layout.unit_bytes)
    }

    /// Creates the streams, with no chunk open. The chunk opened next gets the stamp after
    /// `last_stamp`.
    pub(crate) fn new(layout: KvLayout, memory: UnitMemory, last_stamp: u64) -> AppendStreams {
        let none = |n: u32| vec![None; n as usize];
        AppendStreams {
            streams: (0..layout.concurrency.streams_max).map(|_| None).collect(),
            failed: Vec::new(),
            classes: [none(layout.concurrency.active_chunks), none(layout.concurrency.compactors)],
            next_stream: [0; 2],
            memory,
            layout,
            open_chunks: VecDeque::new(),
            last_stamp,
            order: DurablePrefix::default(),
            ready_units: 0,
        }
    }

    /// Adds a chunk that was open at the power loss, and is to be written further.
    pub(crate) fn resume_later(&mut self, chunk: OpenChunk) {
        self.open_chunks.push_back(chunk);
    }

    /// Returns the sequence number of the next unit. Everything appended so far is in units with
    /// smaller ones.
    #[inline]
    pub(crate) fn next_unit_seq(&self) -> u64 {
        self.order.next_seq()
    }

    /// Returns whether all units with smaller sequence numbers are durable.
    #[inline]
    pub(crate) fn is_durable_below(&self, unit_seq: u64) -> bool {
        self.order.is_durable_below(unit_seq)
    }

    /// Allocates a location for a record, or for a batch, of `bytes`.
    pub(crate) fn allocate(
        &mut self,
        group: AppendClass,
        bytes: u32,
        chunks: &mut KvChunks,
        stats: &mut KvStats,
    ) -> Result<RecordLocation, AllocError> {
        let g = group as usize;
        let count = self.classes[g].len();
        loop {
            let turn = self.next_stream[g];
            let mut short = AllocError::NoChunk;
            if self.classes[g][turn].is_none() {
                match self.open(group, chunks) {
                    Ok(stream) => self.classes[g][turn] = Some(stream),
                    Err(why) => short = why,
                }
            }
            for i in 0..count {
                let Some(stream) = self.classes[g][(turn + i) % count] else { continue };
                let Some(s) = &self.streams[stream] else { continue };
                if s.fill_bytes + bytes > self.layout.chunk_bytes {
                    continue;
                }
                let unit = self.layout.unit_bytes;
                let new = (s.fill_bytes + bytes).div_ceil(unit) - s.fill_bytes.div_ceil(unit);
                let spot =
                    RecordLocation { class: group, stream, chunk: s.chunk, offset: s.fill_bytes };
                if new > self.memory.free_count() && !self.grow_memory(group) {
                    return Err(AllocError::NoMemory);
                }
                return Ok(spot);
            }
            let Some(stream) = self.classes[g][turn] else { return Err(short) };
            self.can_open(group, chunks)?;
            self.close(stream, stats);
            self.classes[g][turn] = None;
        }
    }

    /// Adds unit memory if failed chunks occupy it and only their evacuation would free it.
    #[cold]
    fn grow_memory(&mut self, group: AppendClass) -> bool {
        let running =
            self.streams.iter().flatten().any(|s| s.outstanding > 0) || self.ready_units > 0;
        group == AppendClass::Relocation
            && !self.failed.is_empty()
            && !running
            && self.memory.try_grow()
    }

    fn can_open(&self, group: AppendClass, chunks: &KvChunks) -> Result<(), AllocError> {
        if self.streams.iter().all(Option::is_some) {
            return Err(AllocError::NoMemory);
        }
        let kept = if group == AppendClass::Host { self.layout.budget.reserve_chunks } else { 0 };
        let free = !self.open_chunks.is_empty() || chunks.free_count() > kept;
        if free { Ok(()) } else { Err(AllocError::NoChunk) }
    }

    fn open(&mut self, group: AppendClass, chunks: &mut KvChunks) -> Result<usize, AllocError> {
        self.can_open(group, chunks)?;
        let stream = self.streams.iter().position(Option::is_none).ok_or(AllocError::NoMemory)?;
        let OpenChunk { chunk, fill_bytes: fill, stamp } = match self.open_chunks.pop_front() {
            Some(resumable) => resumable,
            None => {
                self.last_stamp += 1;
                let chunk = chunks.allocate(KvChunkRole::Open).ok_or(AllocError::NoChunk)?;
                OpenChunk { chunk, fill_bytes: 0, stamp: self.last_stamp }
            }
        };
        chunks.set_stamp(chunk, stamp);
        let base = fill / self.layout.unit_bytes;
        self.streams[stream] = Some(AppendStream {
            chunk,
            stamp,
            fill_bytes: fill,
            last_record_start: None,
            first_unit: base,
            units: VecDeque::new(),
            units_programmed: base,
            units_sent: base,
            outstanding: 0,
            failed: false,
        });
        Ok(stream)
    }

    /// Copies a record's inline bytes to offset `at` of the location from
    /// [`allocate`](AppendStreams::allocate). Returns their CRC-32C for the header.
    pub(crate) fn put_inline(
        &mut self,
        spot: &RecordLocation,
        at: u32,
        from: ByteSource<'_>,
        scratch: &mut [u8],
    ) -> u32 {
        let unit_bytes = self.layout.unit_bytes;
        from.copy_blocks(
            scratch,
            |done| unit_bytes - (at + done) % unit_bytes,
            |done, block| self.write(spot, at + done, block),
        )
    }

    /// Copies bytes of a record to its location.
    pub(crate) fn put_bytes(&mut self, spot: &RecordLocation, at: u32, bytes: &[u8]) {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let left = (self.layout.unit_bytes - at % self.layout.unit_bytes) as usize;
            let (now, rest) = bytes.split_at(left.min(bytes.len()));
            self.write(spot, at, now);
            (at, bytes) = (at + now.len() as u32, rest);
        }
    }

    /// Copies bytes within one unit.
    fn write(&mut self, spot: &RecordLocation, at: u32, bytes: &[u8]) {
        let (unit, within) = (at / self.layout.unit_bytes, at % self.layout.unit_bytes);
        if let Some(slot) = self.slot_for(spot.stream, unit) {
            let (region, to) = self.memory.locate(slot, within);
            region.write(to, bytes);
        }
    }

    /// Returns the buffer of a unit, and starts the unit if necessary.
    fn slot_for(&mut self, stream: usize, unit: u32) -> Option<u32> {
        let sectors = self.layout.unit_bytes / self.layout.sector_bytes;
        let s = self.streams[stream].as_mut()?;
        while unit >= s.first_unit + s.units.len() as u32 {
            // `allocate` has ensured that there are enough.
            let slot = self.memory.allocate()?;
            self.memory.clear(slot);
            for sector in 0..sectors {
                self.memory.set_tag(
                    slot,
                    sector,
                    SectorTag::Packed { first: None, stamp: s.stamp },
                );
            }
            let unit = AppendUnit {
                slot: Some(slot),
                seq: Some(self.order.assign_seq()),
                state: AppendUnitState::Filling,
            };
            s.units.push_back(unit);
        }
        s.units.get((unit - s.first_unit) as usize)?.slot
    }

    /// Commits a record, which belongs to the chunk from now on.
    pub(crate) fn commit(&mut self, spot: &RecordLocation, committed: CommittedRecord) {
        let CommittedRecord { record: RecordSpan { offset, bytes }, is_last } = committed;
        let KvLayout { sector_bytes, unit_bytes, .. } = self.layout;
        let sector = offset / sector_bytes;
        let slot = self.slot_for(spot.stream, offset / unit_bytes);
        // The zero padding after the inline bytes may start a new unit.
        self.slot_for(spot.stream, (offset + bytes - 1) / unit_bytes);
        let Some(s) = &mut self.streams[spot.stream] else { return };
        let first = s.last_record_start.is_none_or(|start| start / sector_bytes < sector);
        if let (Some(slot), true) = (slot, first) {
            let label = SectorTag::Packed { first: Some(offset % sector_bytes), stamp: s.stamp };
            self.memory.set_tag(slot, sector % (unit_bytes / sector_bytes), label);
        }
        s.last_record_start = Some(offset);
        s.fill_bytes = offset + bytes;
        let mut filled = false;
        for i in offset / unit_bytes..s.fill_bytes / unit_bytes {
            if let Some(unit) = s.units.get_mut((i - s.first_unit) as usize)
                && unit.state == AppendUnitState::Filling
            {
                (unit.state, filled) = (AppendUnitState::Ready, true);
                self.ready_units += 1;
            }
        }
        if filled && is_last {
            let g = spot.class as usize;
            self.next_stream[g] = (self.next_stream[g] + 1) % self.classes[g].len();
        }
    }

    /// Pads the unit being filled in every stream, if its sequence number is below `number`, so
    /// that its contents become durable. Returns whether there was any.
    pub(crate) fn pad_below(&mut self, number: u64, stats: &mut KvStats) -> bool {
        let mut padded = false;
        for stream in 0..self.streams.len() {
            let Some(s) = &self.streams[stream] else { continue };
            let filling =
                s.units.back().filter(|u| u.state == AppendUnitState::Filling && !s.failed);
            if filling.and_then(|u| u.seq).is_some_and(|order| order < number) {
                self.pad(stream, stats);
                padded = true;
            }
        }
        padded
    }

    fn pad(&mut self, stream: usize, stats: &mut KvStats) {
        let KvLayout { sector_bytes, unit_bytes, .. } = self.layout;
        let Some(s) = &mut self.streams[stream] else { return };
        let used = s.fill_bytes % unit_bytes;
        let Some(unit) =
            s.units.back_mut().filter(|u| u.state == AppendUnitState::Filling && used > 0)
        else {
            return;
        };
        if let Some(slot) = unit.slot {
            for sector in used.div_ceil(sector_bytes)..unit_bytes / sector_bytes {
                self.memory.set_tag(slot, sector, SectorTag::Padding { stamp: s.stamp });
            }
        }
        unit.state = AppendUnitState::Ready;
        self.ready_units += 1;
        s.fill_bytes += unit_bytes - used;
        stats.padded_bytes += u64::from(unit_bytes - used);
    }

    /// Pads a chunk to its end, because no further record fits.
    fn close(&mut self, stream: usize, stats: &mut KvStats) {
        self.pad(stream, stats);
        let Some(s) = &mut self.streams[stream] else { return };
        while s.first_unit + (s.units.len() as u32) < self.layout.units {
            s.units.push_back(AppendUnit { slot: None, seq: None, state: AppendUnitState::Ready });
            self.ready_units += 1;
            stats.padded_bytes += u64::from(self.layout.unit_bytes);
        }
        s.fill_bytes = self.layout.chunk_bytes;
    }

    fn find(&self, chunk: u32) -> Option<usize> {
        self.streams.iter().position(|s| s.as_ref().is_some_and(|s| s.chunk == chunk))
    }

    /// Returns the number of bytes of a failed chunk that are on flash; all, if it failed before
    /// this power-on.
    pub(crate) fn durable_bytes(&self, chunk: u32) -> u32 {
        let failed = self.failed.iter().find(|s| s.chunk == chunk);
        failed.map_or(u32::MAX, |s| s.units_programmed * self.layout.unit_bytes)
    }

    /// Returns the memory of a unit, if it is buffered.
    pub(crate) fn buffered_unit(&self, chunk: u32, unit: u32) -> Option<(&SharedRegion, usize)> {
        let s = match self.find(chunk) {
            Some(stream) => self.streams[stream].as_ref()?,
            None => self.failed.iter().find(|s| s.chunk == chunk)?,
        };
        let unit = s.units.get(unit.checked_sub(s.first_unit)? as usize)?;
        Some(self.memory.locate(unit.slot?, 0))
    }

    /// Returns whether no unit waits to be submitted.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready_units == 0
    }
}
