//! Values out of flash, or out of the units that wait in memory.
//!
//! What a value is made of is noted when its read begins; until it ends none of those chunks is
//! erased, so that it may be overwritten or moved meanwhile. Whole chunks go straight to the user's
//! memory; records pass through a lane, because they start anywhere in a sector.

use nvme::Status;

use super::fetch::{Lane, Owner};
use super::index::{Current, Piece};
use super::put::crc_of;
use super::record::header_bytes;
use super::request::{KvAnswer, KvOp, Reading, Work};
use super::{Kv, KvError};

impl Kv {
    /// Begins a read: nothing before it in the line is about its key.
    pub(super) fn begin_read(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        let (key, into) = match &pending.op {
            KvOp::Get { key, into } => (key, *into),
            _ => return self.answer_exists(place),
        };
        let Some(entry) = self.index.existing(key.as_bytes()) else {
            return self.finish(place, Err(KvError::NotFound));
        };
        let bytes = entry.current.value_bytes(self.layout.chunk_bytes);
        let error = match entry.current {
            Current::Lost(_) => Some(KvError::Media { status: Status::UNRECOVERED_READ }),
            _ if bytes > into.bytes => Some(KvError::NoRoom { bytes }),
            _ => None,
        };
        if let Some(error) = error {
            return self.finish(place, Err(error));
        }
        if bytes == 0 {
            self.stats.gets += 1;
            return self.finish(place, Ok(KvAnswer::Value(0)));
        }
        let current = entry.current.clone();
        let steps = (current.parts().len() + current.pieces().len()) as u32;
        let small = match &current {
            Current::Packed(piece) => {
                self.sectors_of(piece, key.len(), 0).1 <= self.layout.lane_sectors()[0]
            }
            _ => false,
        };
        let reading = Reading { key: key.len(), into, next: 0, left: steps, error: None, current };
        self.pin(&reading.current, true);
        if let Some(pending) = self.requests.get_mut(place) {
            pending.work = Work::Reading(reading);
        }
        self.readers[usize::from(!small)].push_back(place);
        self.went_on = true;
    }

    /// Keeps the chunks of a value from being erased, or lets them.
    fn pin(&mut self, current: &Current, pin: bool) {
        let pieces = current.pieces().iter().map(|p| p.chunk);
        for chunk in pieces.chain(current.parts().iter().map(|p| p.chunk)) {
            if self.chunks.is_ours(chunk) {
                let readers = &mut self.chunks.get_mut(chunk).readers;
                *readers = if pin { *readers + 1 } else { *readers - 1 };
            }
        }
    }

    /// First sector and number of sectors of a record's inline bytes.
    fn sectors_of(&self, piece: &Piece, key: u8, parts: usize) -> (u32, u32) {
        let size = self.layout.sector_bytes;
        let start = piece.offset + header_bytes(key, parts);
        let (first, last) = (start / size, (start + piece.bytes.max(1) - 1) / size);
        (first, last - first + 1)
    }

    /// Begins to fetch what the values that are being read are made of.
    pub(super) fn advance_reads(&mut self) {
        for class in 0..self.readers.len() {
            while let Some(&place) = self.readers[class].front() {
                let lane = if class == 0 { Lane::Small } else { Lane::Any };
                if !self.read_next(place, lane) {
                    break;
                }
                let more = self.requests.reading(place).is_some_and(|r| {
                    (r.next as usize) < r.current.parts().len() + r.current.pieces().len()
                });
                if !more {
                    self.readers[class].pop_front();
                }
            }
        }
    }

    /// Begins to fetch the next part or piece of a value. Returns whether there was a lane for it.
    fn read_next(&mut self, place: u32, lane: Lane) -> bool {
        let Some(reading) = self.requests.reading(place) else { return true };
        let (index, parts) = (reading.next, reading.current.parts().len());
        let key = reading.key;
        if let Some(part) = reading.current.parts().get(index as usize).copied() {
            if !self.fetches.has(Lane::Direct) {
                return false;
            }
            let to = reading.into.at.offset(u64::from(index) * u64::from(self.layout.chunk_bytes));
            reading.next += 1;
            if !self.chunks.is_ours(part.chunk) {
                let error = KvError::Media { status: Status::UNRECOVERED_READ };
                self.step_ended(place, Some(error));
                return true;
            }
            let owner = Owner::Part { request: place, index, to };
            let sectors = self.layout.chunk_bytes / self.layout.sector_bytes;
            return self.fetches.begin(Lane::Direct, owner, part.chunk, (0, sectors));
        }
        let i = index as usize - parts;
        let Some(piece) = reading.current.pieces().get(i).copied() else { return true };
        if piece.bytes == 0 {
            reading.next += 1;
            self.step_ended(place, None);
            return true;
        }
        if !self.fetches.has(lane) {
            return false;
        }
        reading.next += 1;
        let sectors = self.sectors_of(&piece, key, if i == 0 { parts } else { 0 });
        let owner = Owner::Piece { request: place, index };
        self.fetches.begin(lane, owner, piece.chunk, sectors)
    }

    /// Takes the fetches that have ended.
    pub(super) fn end_fetches(&mut self) {
        while let Some(fetch) = self.fetches.ended.pop_front() {
            self.went_on = true;
            let failed = self.fetches.get(fetch).failed;
            match self.fetches.get(fetch).owner {
                Owner::Window { cleaner } => {
                    self.fetches.release(fetch);
                    self.window_ended(cleaner);
                }
                Owner::Piece { request, index } => {
                    let error = match failed {
                        Some(status) => Some(KvError::Media { status }),
                        None => self.deliver(fetch, request, index),
                    };
                    self.fetches.release(fetch);
                    self.step_ended(request, error);
                }
                Owner::Part { request, index, to } => {
                    self.fetches.release(fetch);
                    let error = match failed {
                        Some(status) => Some(KvError::Media { status }),
                        None => self.check_part(request, index, to),
                    };
                    self.step_ended(request, error);
                }
                Owner::Nobody => {}
            }
        }
    }

    /// Copies inline bytes from a lane to the user.
    fn deliver(&mut self, fetch: u32, place: u32, index: u32) -> Option<KvError> {
        let reading = self.requests.reading(place)?;
        let parts = reading.current.parts().len();
        let i = index as usize - parts;
        let piece = reading.current.pieces()[i];
        let before: u64 =
            reading.current.pieces()[..i].iter().map(|p| u64::from(p.bytes)).sum::<u64>();
        let whole = parts as u64 * u64::from(self.layout.chunk_bytes);
        let to = reading.into.at.offset(whole + before);
        let header = header_bytes(reading.key, if i == 0 { parts } else { 0 });
        let fetch = self.fetches.get(fetch);
        let start = piece.offset + header - fetch.first * self.layout.sector_bytes;
        let (lanes, from) = (self.fetches.memory(), fetch.offset + start as usize);
        let to = match self.queue.port().memory().find(to, piece.bytes.into()) {
            Ok(buffer) => buffer,
            Err(_) => return Some(KvError::NotRegistered),
        };
        let (mut crc, mut done, bytes) = (0, 0, piece.bytes as usize);
        while done < bytes {
            let n = (bytes - done).min(self.scratch.len());
            lanes.read(from + done, &mut self.scratch[..n]);
            crc = crc32c::crc32c_append(crc, &self.scratch[..n]);
            to.region.write(to.offset + done, &self.scratch[..n]);
            done += n;
        }
        (crc != piece.crc).then_some(KvError::Damaged)
    }

    /// Whether a whole chunk is what was written.
    fn check_part(&mut self, place: u32, index: u32, to: ring::Iova) -> Option<KvError> {
        if !self.config.checksum_whole {
            return None;
        }
        let wanted = self.requests.reading(place)?.current.parts().get(index as usize)?.crc;
        let bytes = self.layout.chunk_bytes;
        let Ok(buffer) = self.queue.port().memory().find(to, bytes.into()) else {
            return Some(KvError::NotRegistered);
        };
        let crc = crc_of(buffer.region, buffer.offset, bytes, &mut self.scratch);
        // 0 was written by a configuration that makes no checksums of whole chunks.
        (crc != wanted && wanted != 0).then_some(KvError::Damaged)
    }

    /// A part or piece has arrived, or cannot.
    fn step_ended(&mut self, place: u32, error: Option<KvError>) {
        let Some(reading) = self.requests.reading(place) else { return };
        reading.left -= 1;
        reading.error = reading.error.or(error);
        if reading.left > 0 {
            return;
        }
        let Some(pending) = self.requests.get_mut(place) else { return };
        let Work::Reading(reading) = std::mem::replace(&mut pending.work, Work::Queued) else {
            return;
        };
        self.pin(&reading.current, false);
        let bytes = reading.current.value_bytes(self.layout.chunk_bytes);
        match reading.error {
            Some(error) => self.finish(place, Err(error)),
            None => {
                self.stats.gets += 1;
                self.stats.bytes_got += bytes;
                self.finish(place, Ok(KvAnswer::Value(bytes)));
            }
        }
    }
}
