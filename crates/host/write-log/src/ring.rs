//! [`LogRing`]: the records in persistent memory.
//!
//! A *position* counts bytes since the log was created and never repeats. The byte at a position is
//! at the position modulo the ring's size, after the header. Positions of records are multiples of a
//! line.
//!
//! Invariants: `head <= persisted <= tail <= head + ring size`. Records from the head to `persisted`
//! are persistent.

use std::collections::VecDeque;

use crate::format::{HEADER_BYTES, LINE_BYTES, LogHeader, LogRecord, LogRecordKind};
use crate::index::{SectorIndex, SectorRange};
use crate::{LogIdentity, LogMemory, WriteLogError};

const LINE: u64 = LINE_BYTES as u64;

/// The ring of records.
#[derive(Debug)]
pub(crate) struct LogRing<M> {
    memory: M,
    header: LogHeader,
    ring_bytes: u64,
    tail: u64,
    persisted: u64,
    /// Position of the last record.
    last: u64,
    /// The records from the head to the tail.
    records: VecDeque<LogRecord>,
    /// Device sectors that may be logged.
    capacity: u64,
    /// One record's data.
    scratch: Vec<u8>,
    /// The last number of power cuts of the memory.
    power_cuts: u64,
    /// Whether the memory was removed, or does not have the log any more.
    is_lost: bool,
}

impl<M: LogMemory> LogRing<M> {
    /// Reads the header. The first copy that is intact is the newer one.
    ///
    /// # Errors
    /// [`WriteLogError::Version`].
    pub(crate) fn read_header(memory: &M) -> Result<Option<LogHeader>, WriteLogError> {
        for copy in 0..2 {
            let mut bytes = [0; LINE_BYTES];
            memory.read(copy * LINE_BYTES, &mut bytes);
            if let Some(header) = LogHeader::decode(&bytes)? {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Creates a ring with a header that is not stored yet, and without records. `capacity` is the
    /// number of sectors of the device that can be logged.
    pub(crate) fn new(memory: M, header: LogHeader, capacity: u64, record_bytes: usize) -> Self {
        LogRing {
            power_cuts: memory.power_cuts(),
            is_lost: false,
            memory,
            header,
            ring_bytes: u64::from(header.lines) * LINE,
            tail: header.head,
            persisted: header.head,
            last: header.previous,
            records: VecDeque::new(),
            capacity,
            scratch: vec![0; record_bytes],
        }
    }

    pub(crate) fn into_memory(self) -> M {
        self.memory
    }

    pub(crate) fn header(&self) -> &LogHeader {
        &self.header
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.tail - self.header.head
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.ring_bytes - self.used_bytes()
    }

    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Returns the record with this index, counted from the head.
    pub(crate) fn record(&self, index: usize) -> Option<&LogRecord> {
        self.records.get(index)
    }

    /// Returns the sectors of all records.
    pub(crate) fn logged_ranges(&self) -> impl Iterator<Item = SectorRange> + '_ {
        self.records.iter().map(|record| record.range)
    }

    /// Returns whether all stored records are persistent.
    pub(crate) fn is_persistent(&self) -> bool {
        self.persisted == self.tail
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.header.sector_bytes
    }

    /// Returns the bytes of a record.
    pub(crate) fn record_bytes(&self, kind: LogRecordKind, sectors: u32) -> u64 {
        LogRecord::total_bytes(kind, sectors, self.header.sector_bytes)
    }

    /// Calls `each` with the memory's offset of each contiguous part of a range of positions, and
    /// with its first byte and its length relative to the range.
    fn parts(&self, position: u64, len: usize, mut each: impl FnMut(usize, usize, usize)) {
        let at = (position % self.ring_bytes) as usize;
        let first = len.min(self.ring_bytes as usize - at);
        each(HEADER_BYTES + at, 0, first);
        if first < len {
            each(HEADER_BYTES, first, len - first);
        }
    }

    pub(crate) fn read(&self, position: u64, into: &mut [u8]) {
        let len = into.len();
        self.parts(position, len, |at, from, len| {
            self.memory.read(at, &mut into[from..from + len])
        });
    }

    fn store(&self, position: u64, data: &[u8]) {
        self.parts(position, data.len(), |at, from, len| {
            self.memory.store(at, &data[from..from + len]);
        });
    }

    /// Stores a record at the tail. `data` fills in its data. Returns the number of lines.
    ///
    /// # Panics
    /// If the record does not fit.
    pub(crate) fn append(
        &mut self,
        kind: LogRecordKind,
        range: SectorRange,
        data: impl FnOnce(&mut [u8]),
    ) -> u64 {
        let bytes = self.record_bytes(kind, range.sectors);
        let free = self.free_bytes();
        assert!(bytes <= free, "a record of {bytes} bytes, and {free} are free");
        let len = bytes as usize - LINE_BYTES;
        let mut scratch = std::mem::take(&mut self.scratch);
        data(&mut scratch[..len]);
        let record = LogRecord {
            kind,
            range,
            position: self.tail,
            generation: self.header.generation,
            previous: self.last,
            persisted: self.persisted,
            data_crc: crc32c::crc32c(&scratch[..len]),
        };
        self.store(record.position, &record.encode());
        self.store(record.data_position(), &scratch[..len]);
        self.scratch = scratch;
        self.records.push_back(record);
        self.last = self.tail;
        self.tail += bytes;
        bytes / LINE
    }

    /// Persists all stored records.
    pub(crate) fn persist(&mut self) {
        let len = (self.tail - self.persisted) as usize;
        let mut result = Ok(());
        self.parts(self.persisted, len, |at, _, len| {
            result = result.and(self.memory.persist(at, len));
        });
        self.is_lost |= result.is_err();
        self.persisted = self.tail;
    }

    /// Frees the records before `head`. The device has the sectors. Each freed record is passed to
    /// `freed`, after the header is persistent.
    pub(crate) fn advance_head(&mut self, head: u64, mut freed: impl FnMut(&LogRecord)) {
        let count = self.records.partition_point(|record| record.position < head);
        if let Some(last) = count.checked_sub(1).and_then(|index| self.records.get(index)) {
            self.header.previous = last.position;
        }
        self.header.head = head;
        self.persisted = self.persisted.max(head);
        self.write_header();
        self.records.drain(..count).for_each(|record| freed(&record));
    }

    /// Stores and persists both copies of the header, one after the other.
    fn write_header(&mut self) {
        self.write_header_copies([0, 1]);
    }

    fn write_header_copies(&mut self, copies: [usize; 2]) {
        let bytes = self.header.encode();
        for copy in copies {
            self.memory.store(copy * LINE_BYTES, &bytes);
            self.is_lost |= self.memory.persist(copy * LINE_BYTES, LINE_BYTES).is_err();
        }
    }

    /// Makes both copies of the header equal after a crash that may have torn one of them: first the
    /// one that was not read.
    pub(crate) fn repair_header(&mut self) {
        let mut first = [0; LINE_BYTES];
        self.memory.read(0, &mut first);
        let is_first_intact = first == self.header.encode();
        self.write_header_copies(if is_first_intact { [1, 0] } else { [0, 1] });
    }

    /// Begins a generation. No record of it is stored before
    /// [`end_opening`](LogRing::end_opening).
    pub(crate) fn begin_opening(&mut self, identity: LogIdentity, generation: u64) {
        self.header = LogHeader { is_opening: true, identity, generation, ..self.header };
        self.write_header();
    }

    pub(crate) fn end_opening(&mut self) {
        self.header.is_opening = false;
        self.write_header();
    }

    /// Stores and persists zeros, so that no record of a former log is found.
    pub(crate) fn erase(&mut self) {
        const ERASED_BYTES: usize = 4096;
        let end = HEADER_BYTES + self.ring_bytes as usize;
        for at in (0..end).step_by(ERASED_BYTES) {
            self.memory.store(at, &[0; ERASED_BYTES][..ERASED_BYTES.min(end - at)]);
        }
        self.is_lost |= self.memory.persist(0, end).is_err();
    }

    /// Erases the header: the memory has no log.
    pub(crate) fn erase_header(&mut self) {
        self.memory.store(0, &[0; HEADER_BYTES]);
        self.is_lost |= self.memory.persist(0, HEADER_BYTES).is_err();
    }

    /// Returns whether the memory was removed, or does not have the log any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns the number of power cuts that the log has handled.
    pub(crate) fn power_cuts(&self) -> u64 {
        self.power_cuts
    }

    /// Returns whether the memory has lost its power since the last replay.
    pub(crate) fn lost_power(&self) -> bool {
        self.memory.power_cuts() != self.power_cuts
    }

    /// Replays the log after the memory has lost its power, and erases what is behind the tail.
    /// Returns the number of records.
    pub(crate) fn replay_after_power_cut(&mut self, index: &mut SectorIndex) -> u64 {
        loop {
            self.power_cuts = self.memory.power_cuts();
            index.clear();
            self.records.clear();
            let replayed = match LogRing::read_header(&self.memory) {
                Ok(Some(header)) if header.identity == self.header.identity => {
                    self.header = header;
                    (self.tail, self.last) = (header.head, header.previous);
                    self.replay(index)
                }
                _ => Err(WriteLogError::Damaged { position: 0 }),
            };
            self.repair_header();
            self.erase_free();
            if self.lost_power() {
                continue;
            }
            return replayed.unwrap_or_else(|error| {
                tracing::error!(%error, "the log is lost after a loss of power");
                self.is_lost = true;
                0
            });
        }
    }

    /// Stores and persists zeros behind the tail.
    fn erase_free(&mut self) {
        let (mut at, end) = (self.tail, self.header.head + self.ring_bytes);
        while at < end {
            let len = (end - at).min(self.scratch.len() as u64) as usize;
            self.scratch[..len].fill(0);
            self.store(at, &self.scratch[..len]);
            at += len as u64;
        }
        let mut result = Ok(());
        self.parts(self.tail, (end - self.tail) as usize, |at, _, len| {
            result = result.and(self.memory.persist(at, len));
        });
        self.is_lost |= result.is_err();
    }

    /// Reads the records up to the first one that does not check, and builds the index.
    ///
    /// # Errors
    /// [`WriteLogError::Damaged`] if that record was persistent.
    pub(crate) fn replay(&mut self, index: &mut SectorIndex) -> Result<u64, WriteLogError> {
        let mut generation = 0;
        while let Some(record) = self.next_record(generation) {
            generation = record.generation;
            match record.kind {
                LogRecordKind::Data => {
                    let mut position = record.data_position();
                    for lba in record.range.lba..record.range.end() {
                        index.set(lba, position);
                        position += u64::from(self.header.sector_bytes);
                    }
                }
                LogRecordKind::Superseded { bound } => {
                    index.remove_range_before(record.range, bound, self.logged_ranges());
                }
            }
            self.last = record.position;
            self.tail += self.record_bytes(record.kind, record.range.sectors);
            self.records.push_back(record);
        }
        if self.was_persistent(self.tail) {
            return Err(WriteLogError::Damaged { position: self.tail });
        }
        // The processor's caches may have lines that a killed process stored.
        self.persisted = self.header.head;
        self.persist();
        Ok(self.records.len() as u64)
    }

    /// Returns the record at the tail, if it checks.
    fn next_record(&mut self, generation: u64) -> Option<LogRecord> {
        if self.free_bytes() < LINE {
            return None;
        }
        let mut bytes = [0; LINE_BYTES];
        self.read(self.tail, &mut bytes);
        let record = LogRecord::decode(&bytes, self.tail)?;
        let LogRecord { kind, range, .. } = record;
        let is_next = record.previous == self.last
            && (generation..=self.header.generation).contains(&record.generation)
            && range.sectors > 0
            && u64::from(range.sectors) <= self.capacity
            && range.lba <= self.capacity - u64::from(range.sectors)
            && self.record_bytes(kind, range.sectors) <= self.free_bytes();
        if !is_next {
            return None;
        }
        if kind == LogRecordKind::Data {
            let len = range.sectors as usize * self.header.sector_bytes as usize;
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(scratch.len().max(len), 0);
            self.read(record.data_position(), &mut scratch[..len]);
            let is_intact = crc32c::crc32c(&scratch[..len]) == record.data_crc;
            self.scratch = scratch;
            if !is_intact {
                return None;
            }
        }
        Some(record)
    }

    /// Returns whether a later record says that the record at `position` was persistent.
    fn was_persistent(&self, position: u64) -> bool {
        let mut bytes = [0; LINE_BYTES];
        let end = self.header.head + self.ring_bytes;
        let mut at = position + LINE;
        while at < end {
            self.read(at, &mut bytes);
            let record = LogRecord::decode(&bytes, at);
            if record
                .is_some_and(|r| r.persisted > position && r.generation <= self.header.generation)
            {
                return true;
            }
            at += LINE;
        }
        false
    }
}
