//! [`Scan`]: classifies every write unit of the reserved chunks by its first sector.
//!
//! It first reads everything that is readable without padding, so that chunks with other contents
//! are refused unchanged. A journal has at least its snapshot readable, from soon after it was
//! made. Then the scan programs padding behind the write pointers, until the paired pages of all
//! units are programmed [LightNVM17 §4.2.2], and reads the rest. A failed padding program closes
//! its chunk, which makes its contents readable as well.

use nvme::ChunkId;
use time::Nanos;

use super::capacity::JournalCapacity;
use super::chunks::ChunkPool;
use super::frame::{FrameDecode, FrameHeader, FrameKind, HEADER_BYTES, VERSION};
use super::{FoundJournalChunk, JournalChunkReport, JournalError, JournalMedia, OPS_MAX};
use crate::FlashGeometry;
use crate::ids::{ToIndex, ToU32};

/// State of a write unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitContent {
    /// Not read yet.
    Unknown,
    /// It cannot be read, or is no frame.
    Unreadable,
    /// Padding.
    Padding,
    /// A frame whose header is undamaged.
    Frame(FrameHeader),
}

/// A reserved chunk as found.
#[derive(Debug)]
pub(super) struct ScannedChunk {
    pub(super) chunk: ChunkId,
    /// Its written units.
    pub(super) units: Vec<UnitContent>,
    /// Whether it can be written further.
    pub(super) open: bool,
    pub(super) bad: bool,
    pub(super) failed: bool,
    /// Units up to which padding is needed, and whether it is being programmed.
    pad_to: u32,
    padding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reads the units that are readable without padding.
    ReadBeforePadding,
    Pad,
    /// Reads the rest.
    ReadAfterPadding,
    Done,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Read { chunk: usize, unit: usize },
    Pad { chunk: usize },
}

/// The scan of all units.
#[derive(Debug)]
pub(super) struct JournalScan {
    pub(super) chunks: Vec<ScannedChunk>,
    capacity: JournalCapacity,
    owner: u32,
    ws_opt: u32,
    pair_units: u32,
    phase: Phase,
    /// Next chunk and unit of the phase.
    cursor: (usize, usize),
    ops: [Option<Op>; OPS_MAX],
    /// Padding programmed.
    pub(super) padded: u64,
    /// The first chunk with a readable unit that is no frame, and the number of frames found.
    garbage: Option<ChunkId>,
    frames: u64,
    refused: Option<JournalError>,
}

impl JournalScan {
    pub(super) fn new(
        shape: &FlashGeometry,
        capacity: JournalCapacity,
        owner: u32,
        found: &[FoundJournalChunk],
    ) -> Result<JournalScan, JournalError> {
        ChunkPool::new(shape, found.iter().map(|found| found.chunk))?;
        let pair_units = shape.pair_units();
        let mut chunks = Vec::with_capacity(found.len());
        for &FoundJournalChunk { chunk: number, report: state } in found {
            let (sectors, open) = match state {
                JournalChunkReport::Free | JournalChunkReport::Bad => {
                    (0, state == JournalChunkReport::Free)
                }
                JournalChunkReport::Written(sectors) => (sectors, true),
                JournalChunkReport::Closed(sectors) | JournalChunkReport::Failed(sectors) => {
                    (sectors, false)
                }
            };
            if sectors > shape.sectors_per_chunk || !sectors.is_multiple_of(shape.ws_opt) {
                let (unit, limit) = (shape.ws_opt, shape.sectors_per_chunk);
                return Err(JournalError::WritePointer { chunk: number, sectors, unit, limit });
            }
            let written = sectors / shape.ws_opt;
            let full = written == capacity.units;
            let pad = written > 0 && open && !full;
            chunks.push(ScannedChunk {
                chunk: number,
                units: vec![UnitContent::Unknown; written.index()],
                open: open && !full,
                bad: state == JournalChunkReport::Bad,
                failed: matches!(state, JournalChunkReport::Failed(_)),
                pad_to: if pad { (written + pair_units).min(capacity.units) } else { 0 },
                padding: false,
            });
        }
        Ok(JournalScan {
            chunks,
            capacity,
            owner,
            ws_opt: shape.ws_opt,
            pair_units,
            phase: Phase::ReadBeforePadding,
            cursor: (0, 0),
            ops: [None; OPS_MAX],
            padded: 0,
            garbage: None,
            frames: 0,
            refused: None,
        })
    }

    /// Returns the result once everything was read, or once a further scan is pointless.
    pub(super) fn result(&self) -> Option<Result<(), JournalError>> {
        if self.ops.iter().any(Option::is_some) {
            return None;
        }
        match &self.refused {
            Some(error) => Some(Err(error.clone())),
            None => (self.phase == Phase::Done).then_some(Ok(())),
        }
    }

    pub(super) fn kick(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let mut moved = false;
        while self.refused.is_none() && self.phase != Phase::Done {
            let step = match self.phase {
                Phase::Pad => self.pad(now, flash),
                _ => self.read(now, flash),
            };
            moved |= step;
            if !step {
                if self.ops.iter().any(Option::is_some) {
                    break;
                }
                self.next_phase();
            }
        }
        moved
    }

    fn next_phase(&mut self) {
        // No readable unit belongs to a journal, and at least one is not empty. A journal whose
        // snapshot is readable only after padding has no other readable units.
        if let (Some(chunk), 0) = (self.garbage, self.frames) {
            self.refused = Some(JournalError::NotAJournal { chunk });
        }
        self.cursor = (0, 0);
        self.phase = match self.phase {
            Phase::ReadBeforePadding => Phase::Pad,
            Phase::Pad => Phase::ReadAfterPadding,
            Phase::ReadAfterPadding | Phase::Done => Phase::Done,
        };
    }

    /// Starts the next read, if any. Returns whether one was started.
    fn read(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let Some(op) = self.ops.iter().position(Option::is_none) else { return false };
        while let Some(chunk) = self.chunks.get(self.cursor.0) {
            let paired = if chunk.pad_to > 0 { self.pair_units.index() } else { 0 };
            let limit = match self.phase {
                Phase::ReadBeforePadding => chunk.units.len().saturating_sub(paired),
                _ => chunk.units.len(),
            };
            while self.cursor.1 < limit && chunk.units[self.cursor.1] != UnitContent::Unknown {
                self.cursor.1 += 1;
            }
            if self.cursor.1 < limit {
                let (chunk, unit) = self.cursor;
                self.ops[op] = Some(Op::Read { chunk, unit });
                let sector = unit.to_u32() * self.ws_opt;
                flash.read(now, op.to_u32(), self.chunks[chunk].chunk, sector, 1);
                self.cursor.1 += 1;
                return true;
            }
            self.cursor = (self.cursor.0 + 1, 0);
        }
        false
    }

    /// Starts the next program of padding, if any. Returns whether one was started.
    fn pad(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let Some(op) = self.ops.iter().position(Option::is_none) else { return false };
        let wants = |c: &ScannedChunk| !c.padding && c.open && c.units.len() < c.pad_to.index();
        let Some(i) = self.chunks.iter().position(wants) else { return false };
        let chunk = &mut self.chunks[i];
        chunk.padding = true;
        self.ops[op] = Some(Op::Pad { chunk: i });
        let sector = chunk.units.len().to_u32() * self.ws_opt;
        flash.program(now, op.to_u32(), chunk.chunk, sector, &FrameHeader::padding().encode());
        true
    }

    pub(super) fn program_done(&mut self, op: u32, ok: bool) {
        let Some(Op::Pad { chunk }) = self.ops.get_mut(op.index()).and_then(Option::take) else {
            panic!("journal operation {op} is no padding in flight");
        };
        let chunk = &mut self.chunks[chunk];
        chunk.padding = false;
        if ok {
            self.padded += 1;
            chunk.units.push(UnitContent::Padding);
            chunk.open = chunk.units.len() < self.capacity.units.index();
        } else {
            chunk.open = false;
        }
    }

    pub(super) fn read_done(&mut self, op: u32, failed: u64, flash: &mut impl JournalMedia) {
        let in_flight = self.ops.get_mut(op.index()).and_then(Option::take);
        let Some(Op::Read { chunk, unit }) = in_flight else {
            panic!("journal operation {op} is no read in flight");
        };
        let mut bytes = [0; HEADER_BYTES];
        let number = self.chunks[chunk].chunk;
        let mut seen = UnitContent::Unreadable;
        if failed & 1 == 0 {
            flash.read_data(op, &mut bytes);
            match FrameHeader::decode(&bytes, self.capacity.payload_bytes) {
                FrameDecode::Frame(header) if header.kind == FrameKind::Padding => {
                    self.frames += 1;
                    seen = UnitContent::Padding;
                }
                FrameDecode::Frame(header) if header.owner != self.owner => {
                    let (found, wanted) = (header.owner, self.owner);
                    let error = JournalError::Foreign { chunk: number, found, wanted };
                    self.refused.get_or_insert(error);
                }
                FrameDecode::Frame(header) => {
                    self.frames += 1;
                    seen = UnitContent::Frame(header);
                }
                FrameDecode::OtherVersion(found) => {
                    let error = JournalError::Version { chunk: number, found, known: VERSION };
                    self.refused.get_or_insert(error);
                }
                FrameDecode::Garbage => {
                    self.garbage = Some(self.garbage.map_or(number, |chunk| chunk.min(number)));
                }
            }
        }
        self.chunks[chunk].units[unit] = seen;
    }
}
