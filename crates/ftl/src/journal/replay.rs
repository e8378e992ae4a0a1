//! [`Replay`]: the snapshot and the records of one generation, from its frames in order; of each
//! frame the copy that can be read.

use clock::Nanos;

use super::capacity::{Capacity, RECORD_HEADER};
use super::frame::{Decoded, HEADER_BYTES, Header, Kind};
use super::scan::{Chunk, Unit};
use super::{JournalMedia, MAX_OPS};

/// A copy of a frame.
#[derive(Clone, Copy, Debug)]
struct Copy {
    header: Header,
    chunk: u32,
    sector: u32,
}

/// A frame that is being fetched; its number is that of the operation, modulo `MAX_OPS`.
#[derive(Debug, Default)]
struct Fetch {
    state: State,
    /// Which copy is being read.
    copy: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// To be read.
    #[default]
    Wanted,
    Reading,
    Ready,
    /// No copy can be read.
    Missing,
}

/// One generation.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) generation: u64,
    capacity: Capacity,
    unit: u32,
    sector_bytes: u32,
    /// All copies, by frame number.
    copies: Vec<Copy>,
    /// The frame that comes next.
    pub(super) next: u32,
    fetches: [Fetch; MAX_OPS],
    ended: bool,
    /// Frames up to the end of the snapshot, once that was found.
    pub(super) base_frames: Option<u32>,
    has_snapshot: bool,
    pub(super) snapshot: Vec<u8>,
    pub(super) records: Vec<Vec<u8>>,
    /// A record of which more is to come, its length in front.
    partial: Vec<u8>,
}

impl Replay {
    pub(super) fn new(
        generation: u64,
        capacity: Capacity,
        unit: u32,
        sector_bytes: u32,
        chunks: &[Chunk],
    ) -> Replay {
        let mut copies = Vec::new();
        for chunk in chunks {
            for (seen, sector) in chunk.units.iter().zip((0..).step_by(unit as usize)) {
                if let Unit::Frame(header) = *seen
                    && header.generation == generation
                {
                    copies.push(Copy { header, chunk: chunk.number, sector });
                }
            }
        }
        copies.sort_by_key(|copy| (copy.header.index, copy.header.replica));
        Replay {
            generation,
            capacity,
            unit,
            sector_bytes,
            copies,
            next: 0,
            fetches: Default::default(),
            ended: false,
            base_frames: None,
            has_snapshot: false,
            snapshot: Vec::new(),
            records: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Whether all frames up to the first that is missing were read.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.fetches.iter().all(|f| f.state != State::Reading)
    }

    /// The snapshot, if there was one, and the records.
    pub(super) fn take(&mut self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let snapshot = std::mem::take(&mut self.snapshot);
        (self.has_snapshot.then_some(snapshot), std::mem::take(&mut self.records))
    }

    /// Copy number `i` of a frame.
    fn copy(&self, index: u32, i: usize) -> Option<Copy> {
        let first = self.copies.partition_point(|copy| copy.header.index < index);
        self.copies.get(first + i).copied().filter(|copy| copy.header.index == index)
    }

    /// Starts reads of the frames that come next.
    pub(super) fn kick(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let mut moved = false;
        loop {
            moved |= self.deliver();
            if self.ended {
                return moved;
            }
            let mut started = false;
            for index in self.next..self.next.saturating_add(MAX_OPS as u32) {
                let op = index as usize % MAX_OPS;
                match self.fetches[op].state {
                    State::Wanted => {}
                    State::Reading | State::Ready => continue,
                    State::Missing => break,
                }
                let Some(copy) = self.copy(index, self.fetches[op].copy) else {
                    self.fetches[op].state = State::Missing;
                    break;
                };
                self.fetches[op].state = State::Reading;
                let sectors = copy.header.frame_bytes().div_ceil(self.sector_bytes as usize);
                let sectors = (sectors as u32).min(self.unit);
                flash.read(now, op as u32, copy.chunk, copy.sector, sectors);
                started = true;
            }
            let front = self.fetches[self.next as usize % MAX_OPS].state;
            moved |= started;
            if front != State::Ready && front != State::Missing {
                return moved;
            }
        }
    }

    pub(super) fn read_done(&mut self, op: u32, failed: u64, flash: &mut impl JournalMedia) {
        let Some(fetch) = self.fetches.get(op as usize) else { return };
        if fetch.state != State::Reading {
            return;
        }
        // The window starts at `next`, and holds one frame of each remainder.
        let ahead = (op as usize + MAX_OPS - self.next as usize % MAX_OPS) % MAX_OPS;
        let index = self.next + ahead as u32;
        let copy = self.copy(index, fetch.copy);
        let payload_bytes = self.capacity.payload_bytes;
        let fetch = &mut self.fetches[op as usize];
        fetch.state = State::Wanted;
        fetch.copy += 1;
        if let (Some(copy), 0) = (copy, failed) {
            fetch.bytes.resize(copy.header.frame_bytes(), 0);
            flash.data(op, &mut fetch.bytes);
            if Header::decode(&fetch.bytes, payload_bytes) == Decoded::Frame(copy.header)
                && copy.header.payload(&fetch.bytes).is_some()
            {
                fetch.state = State::Ready;
            }
        }
    }

    /// Takes the frames that are there, in order.
    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while !self.ended {
            let op = self.next as usize % MAX_OPS;
            match self.fetches[op].state {
                State::Ready => {
                    let bytes = std::mem::take(&mut self.fetches[op].bytes);
                    self.ended = !self.frame(&bytes);
                    if !self.ended {
                        self.next += 1;
                    }
                    self.fetches[op] = Fetch { bytes, ..Fetch::default() };
                }
                State::Missing => self.ended = true,
                State::Wanted | State::Reading => break,
            }
            moved = true;
        }
        moved
    }

    /// Takes one frame, unless it is one that cannot come here.
    fn frame(&mut self, bytes: &[u8]) -> bool {
        let Decoded::Frame(header) = Header::decode(bytes, self.capacity.payload_bytes) else {
            return false;
        };
        let payload = &bytes[HEADER_BYTES..];
        match (header.kind, self.base_frames) {
            (Kind::Start, None) if self.next == 0 => {}
            (Kind::SnapshotPart | Kind::SnapshotEnd, None) => {
                self.snapshot.extend_from_slice(payload);
                self.has_snapshot = true;
            }
            (Kind::Records, Some(_)) => self.take_records(payload, header.continues as usize),
            _ => return false,
        }
        if header.kind.ends_base() {
            self.base_frames = Some(self.next + 1);
        }
        true
    }

    /// Takes the payload of a frame of records. A record whose rest never was durable is dropped
    /// when the next frame does not continue it.
    fn take_records(&mut self, payload: &[u8], continues: usize) {
        let start = if self.partial.is_empty() { continues.min(payload.len()) } else { 0 };
        if continues == 0 {
            self.partial.clear();
        }
        self.partial.extend_from_slice(&payload[start..]);
        let mut at = 0;
        while let Some((length, rest)) = self.partial[at..].split_first_chunk::<RECORD_HEADER>()
            && let Some(record) = rest.get(..u32::from_le_bytes(*length) as usize)
        {
            self.records.push(record.to_vec());
            at += RECORD_HEADER + record.len();
        }
        self.partial.drain(..at);
    }
}
