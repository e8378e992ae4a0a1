//! [`Replay`]: reads the snapshot and the records of one generation from its frames in order, each
//! from a readable copy.

use crate::ids::{ToIndex, ToU32};
use nvme::ChunkId;

use time::Nanos;

use super::capacity::{JournalCapacity, RECORD_HEADER};
use super::frame::{FrameDecode, FrameHeader, FrameKind, HEADER_BYTES};
use super::scan::{ScannedChunk, UnitContent};
use super::{JournalMedia, OPS_MAX};

/// A copy of a frame.
#[derive(Clone, Copy, Debug)]
struct FrameCopy {
    header: FrameHeader,
    chunk: ChunkId,
    sector: u32,
}

/// A frame being fetched; its index is the operation number modulo `OPS_MAX`.
#[derive(Debug, Default)]
struct FrameFetch {
    state: State,
    /// Number of the copy being read.
    copy: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not read yet.
    #[default]
    Pending,
    Reading,
    Ready,
    /// No copy can be read.
    Missing,
}

/// The frames of one generation.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) generation: u64,
    capacity: JournalCapacity,
    ws_opt: u32,
    sector_bytes: u32,
    /// All copies, by frame number.
    copies: Vec<FrameCopy>,
    /// The frame that comes next.
    pub(super) next: u32,
    fetches: [FrameFetch; OPS_MAX],
    complete: bool,
    /// Frames up to the end of the snapshot, once that was found.
    pub(super) base_frames: Option<u32>,
    has_snapshot: bool,
    pub(super) snapshot: Vec<u8>,
    pub(super) records: Vec<Vec<u8>>,
    /// The first bytes of a record that continues in later frames, after its length.
    partial: Vec<u8>,
}

impl Replay {
    pub(super) fn new(
        generation: u64,
        capacity: JournalCapacity,
        ws_opt: u32,
        sector_bytes: u32,
        chunks: &[ScannedChunk],
    ) -> Replay {
        let mut copies = Vec::new();
        for chunk in chunks {
            for (seen, sector) in chunk.units.iter().zip((0..).step_by(ws_opt.index())) {
                if let UnitContent::Frame(header) = *seen
                    && header.generation == generation
                {
                    copies.push(FrameCopy { header, chunk: chunk.chunk, sector });
                }
            }
        }
        copies.sort_by_key(|copy| (copy.header.index, copy.header.replica));
        Replay {
            generation,
            capacity,
            ws_opt,
            sector_bytes,
            copies,
            next: 0,
            fetches: Default::default(),
            complete: false,
            base_frames: None,
            has_snapshot: false,
            snapshot: Vec::new(),
            records: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Whether all frames up to the first that is missing were read.
    pub(super) fn is_complete(&self) -> bool {
        self.complete && self.fetches.iter().all(|f| f.state != State::Reading)
    }

    /// The snapshot, if there was one, and the records.
    pub(super) fn take_contents(&mut self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let snapshot = std::mem::take(&mut self.snapshot);
        (self.has_snapshot.then_some(snapshot), std::mem::take(&mut self.records))
    }

    /// Copy number `i` of a frame.
    fn copy(&self, index: u32, i: usize) -> Option<FrameCopy> {
        let first = self.copies.partition_point(|copy| copy.header.index < index);
        self.copies.get(first + i).copied().filter(|copy| copy.header.index == index)
    }

    /// Starts reads of the next frames.
    pub(super) fn kick(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let mut moved = false;
        loop {
            moved |= self.deliver();
            if self.complete {
                return moved;
            }
            let mut started = false;
            for index in self.next..self.next.saturating_add(OPS_MAX.to_u32()) {
                let op = index.index() % OPS_MAX;
                match self.fetches[op].state {
                    State::Pending => {}
                    State::Reading | State::Ready => continue,
                    State::Missing => break,
                }
                let Some(copy) = self.copy(index, self.fetches[op].copy) else {
                    self.fetches[op].state = State::Missing;
                    break;
                };
                self.fetches[op].state = State::Reading;
                let sectors = copy.header.frame_bytes().div_ceil(self.sector_bytes.index());
                let sectors = sectors.to_u32().min(self.ws_opt);
                flash.read(now, op.to_u32(), copy.chunk, copy.sector, sectors);
                started = true;
            }
            let front = self.fetches[self.next.index() % OPS_MAX].state;
            moved |= started;
            if front != State::Ready && front != State::Missing {
                return moved;
            }
        }
    }

    pub(super) fn read_done(&mut self, op: u32, failed: u64, flash: &mut impl JournalMedia) {
        let Some(fetch) = self.fetches.get(op.index()).filter(|f| f.state == State::Reading) else {
            panic!("journal operation {op} is no read in flight");
        };
        // The window starts at `next`, and holds one frame of each remainder.
        let ahead = (op.index() + OPS_MAX - self.next.index() % OPS_MAX) % OPS_MAX;
        let index = self.next + ahead.to_u32();
        let copy = self.copy(index, fetch.copy);
        let payload_bytes = self.capacity.payload_bytes;
        let fetch = &mut self.fetches[op.index()];
        fetch.state = State::Pending;
        fetch.copy += 1;
        if let (Some(copy), 0) = (copy, failed) {
            fetch.bytes.resize(copy.header.frame_bytes(), 0);
            flash.read_data(op, &mut fetch.bytes);
            if FrameHeader::decode(&fetch.bytes, payload_bytes) == FrameDecode::Frame(copy.header)
                && copy.header.payload(&fetch.bytes).is_some()
            {
                fetch.state = State::Ready;
            }
        }
    }

    /// Processes the fetched frames in order.
    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while !self.complete {
            let op = self.next.index() % OPS_MAX;
            match self.fetches[op].state {
                State::Ready => {
                    let bytes = std::mem::take(&mut self.fetches[op].bytes);
                    self.complete = !self.frame(&bytes);
                    if !self.complete {
                        self.next += 1;
                    }
                    self.fetches[op] = FrameFetch { bytes, ..FrameFetch::default() };
                }
                State::Missing => self.complete = true,
                State::Pending | State::Reading => break,
            }
            moved = true;
        }
        moved
    }

    /// Processes one frame. Returns `false` if it does not continue the generation.
    fn frame(&mut self, bytes: &[u8]) -> bool {
        let FrameDecode::Frame(header) = FrameHeader::decode(bytes, self.capacity.payload_bytes)
        else {
            return false;
        };
        let payload = &bytes[HEADER_BYTES..];
        match (header.kind, self.base_frames) {
            (FrameKind::Start, None) if self.next == 0 => {}
            (FrameKind::SnapshotPart | FrameKind::SnapshotEnd, None) => {
                self.snapshot.extend_from_slice(payload);
                self.has_snapshot = true;
            }
            (FrameKind::Records, Some(_)) => self.parse_records(payload, header.continues.index()),
            _ => return false,
        }
        if header.kind.is_base_end() {
            self.base_frames = Some(self.next + 1);
        }
        true
    }

    /// Parses the payload of a frame of records. A record whose rest never became durable is dropped
    /// when the next frame does not continue it.
    fn parse_records(&mut self, payload: &[u8], continues: usize) {
        let start = if self.partial.is_empty() { continues.min(payload.len()) } else { 0 };
        if continues == 0 {
            self.partial.clear();
        }
        self.partial.extend_from_slice(&payload[start..]);
        let mut at = 0;
        while let Some((length, rest)) = self.partial[at..].split_first_chunk::<RECORD_HEADER>()
            && let Some(record) = rest.get(..u32::from_le_bytes(*length).index())
        {
            self.records.push(record.to_vec());
            at += RECORD_HEADER + record.len();
        }
        self.partial.drain(..at);
    }
}
