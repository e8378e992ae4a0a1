//! The write cursor: [`append`](VirtualBlock::append) and [`pad`](VirtualBlock::pad).
//!
//! Units go to the drive as soon as they are full, up to two per chunk at a time, and both calls
//! return when all of them have ended. Invariants: units of a chunk go out in order, and end in
//! order; a slot is used again only when the drive can return what was in it.

use nvme::Status;

use super::{BlockError, Flight, NotWritten, PadTo, VirtualBlock};
use crate::ppa::{Blocking, Ended, Options, PpaError};

impl VirtualBlock {
    /// Appends whole sectors, whose out-of-band bytes are zeros; returns the number of the first.
    /// What does not fill a unit stays in memory until more is appended or the block is padded.
    ///
    /// # Errors
    /// Nothing is taken: [`BlockError::Bytes`], [`BlockError::Full`], [`BlockError::Sealed`], and
    /// [`BlockError::NotWritten`] for a chunk that failed before, with `taken` 0. A program that
    /// fails is [`BlockError::NotWritten`], which says how much was taken and what is not on the
    /// drive. After any other error, [`len`](VirtualBlock::len) says how much was taken.
    pub fn append(&mut self, io: &mut Blocking<'_>, data: &[u8]) -> Result<u64, BlockError> {
        self.append_sectors(io, data, None)
    }

    /// As [`append`](VirtualBlock::append), with the out-of-band bytes of each sector.
    ///
    /// # Errors
    /// As for [`append`](VirtualBlock::append); [`BlockError::OobLength`].
    pub fn append_with_oob(
        &mut self,
        io: &mut Blocking<'_>,
        data: &[u8],
        oob: &[u8],
    ) -> Result<u64, BlockError> {
        self.append_sectors(io, data, Some(oob))
    }

    fn append_sectors(
        &mut self,
        io: &mut Blocking<'_>,
        data: &[u8],
        oob: Option<&[u8]>,
    ) -> Result<u64, BlockError> {
        let g = *self.space.geometry();
        let count = self.whole_sectors(data.len())?;
        if let Some(oob) = oob
            && oob.len() as u64 != count * u64::from(g.oob_bytes)
        {
            let given = oob.len();
            return Err(BlockError::OobLength { given, sectors: count, each: g.oob_bytes });
        }
        self.settle(io)?;
        self.writable(0)?;
        if count > self.left() {
            return Err(BlockError::Full { wanted: count, left: self.left() });
        }
        let (first, mut taken) = (self.len(), 0);
        loop {
            if self.tail == self.unit {
                self.send(io)?;
            }
            if taken == count || self.tail == 0 && !self.claim(io)? {
                break;
            }
            let n = u64::from(self.unit - self.tail).min(count - taken);
            let Some(buffer) = self.slots.get_mut(self.assigned) else { return Err(self.lost()) };
            let bytes = |each: u32| {
                let each = u64::from(each);
                (taken * each) as usize..((taken + n) * each) as usize
            };
            buffer.write(self.tail, &data[bytes(g.sector_bytes)])?;
            match oob {
                Some(oob) => buffer.write_oob(self.tail, &oob[bytes(g.oob_bytes)])?,
                None => buffer.zero_oob(self.tail, n as u32)?,
            }
            self.tail += n as u32;
            taken += n;
            self.stats.appended += n;
        }
        self.settle(io)?;
        self.writable(taken)?;
        Ok(first)
    }

    /// How many sectors a number of bytes is.
    pub(super) fn whole_sectors(&self, bytes: usize) -> Result<u64, BlockError> {
        let each = self.space.geometry().sector_bytes;
        if !bytes.is_multiple_of(each as usize) {
            return Err(BlockError::Bytes { what: "data", bytes, each });
        }
        Ok(bytes as u64 / u64::from(each))
    }

    /// Refuses a block that takes no writes; `taken` is for the message.
    pub(super) fn writable(&self, taken: u64) -> Result<(), BlockError> {
        if self.sealed {
            return Err(BlockError::Sealed { len: self.len() });
        }
        if self.members.iter().all(|m| m.failure.is_none()) {
            return Ok(());
        }
        let (chunks, missing) = (self.failed_chunks(), self.missing());
        Err(BlockError::NotWritten(NotWritten { chunks, missing, taken }))
    }

    /// Makes room in memory for the next unit. Returns `false` when a chunk has failed, so that there
    /// is none.
    pub(super) fn claim(&mut self, io: &mut Blocking<'_>) -> Result<bool, BlockError> {
        let (unit, sectors) = (self.assigned, self.unit);
        loop {
            if self.members.iter().any(|m| m.failure.is_some()) {
                return Ok(false);
            }
            let free = match self.slots.occupant(unit) {
                None => true,
                // With nothing under way, what is not readable by now has all that it waits for.
                Some(before) => self.is_unit_readable(before) || self.flights.is_empty(),
            };
            if free {
                self.slots.claim(unit, sectors, io.buffers())?;
                return Ok(true);
            }
            self.land(io)?;
        }
    }

    /// Sends the unit that has been filled.
    pub(super) fn send(&mut self, io: &mut Blocking<'_>) -> Result<(), BlockError> {
        let unit = self.assigned;
        let (index, first) = self.place(unit);
        let first = nvme::Address { sector: first, ..self.members[index].first };
        self.ppas.clear();
        self.ppas.extend(self.space.run(first, self.unit)?);
        let Some(mut buffer) = self.slots.send(unit) else { return Err(self.lost()) };
        loop {
            match io.session().write(&self.ppas, buffer, Options::default()) {
                Ok(ticket) => {
                    self.flights.push_back(Flight { ticket, unit });
                    self.assigned += 1;
                    self.tail = 0;
                    return Ok(());
                }
                Err(mut refused) => {
                    let again = refused.because.is_busy() && !self.flights.is_empty();
                    match refused.buffer.take() {
                        Some(back) if again => {
                            buffer = back;
                            self.land(io)?;
                        }
                        back => {
                            self.slots.back(unit, back);
                            return Err(refused.into());
                        }
                    }
                }
            }
        }
    }

    /// Waits for the oldest unit that is under way.
    pub(super) fn land(&mut self, io: &mut Blocking<'_>) -> Result<(), BlockError> {
        let Some(Flight { ticket, unit }) = self.flights.front().copied() else { return Ok(()) };
        let gone = |ticket| Ended {
            ticket,
            kind: crate::ppa::VectorKind::Write,
            status: Status::ABORTED_SQ_DELETED,
            failed: [0].into_iter().collect(),
            addresses: self.unit,
            buffer: None,
        };
        let mut ended = match io.wait(ticket) {
            // Its session was closed.
            Err(PpaError::NoSuchVector { ticket }) => gone(ticket),
            ended => ended?,
        };
        self.flights.pop_front();
        self.slots.back(unit, ended.buffer.take());
        self.note(unit, &ended);
        Ok(())
    }

    /// A write of a unit has ended.
    pub(super) fn note(&mut self, unit: u64, ended: &Ended) {
        let (index, first) = self.place(unit);
        let least = self.space.geometry().ws_min;
        let good = match ended.failed.first() {
            _ if ended.is_success() => self.unit,
            Some(failed) => failed / least * least,
            None => 0,
        };
        let m = &mut self.members[index];
        if m.done == first {
            m.done += good;
        }
        if !ended.is_success() {
            self.stats.failed_units += 1;
            m.failure.get_or_insert(ended.status);
            m.closed |= ended.status.is(Status::CHUNK_CLOSED_EARLY);
        }
    }

    /// Waits for all units that are under way.
    pub(super) fn settle(&mut self, io: &mut Blocking<'_>) -> Result<(), BlockError> {
        while !self.flights.is_empty() {
            self.land(io)?;
        }
        Ok(())
    }

    /// Appends zeros, as many as it takes, and returns how many sectors that were: they are part of
    /// the block from then on. A [sealed](VirtualBlock::is_sealed) block is padded behind its end,
    /// which stays.
    ///
    /// # Errors
    /// [`BlockError::NotWritten`], as for [`append`](VirtualBlock::append).
    pub fn pad(&mut self, io: &mut Blocking<'_>, to: PadTo) -> Result<u64, BlockError> {
        self.settle(io)?;
        if self.sealed {
            return self.pad_sealed(io, to);
        }
        self.writable(0)?;
        let before = self.len();
        let full = self.assigned + u64::from(self.tail > 0);
        let target = match to {
            PadTo::Unit => full,
            // Each chunk gets as many more units as a pair takes.
            PadTo::Readable if full > 0 => {
                (full + self.pair_rows * self.width()).min(self.total_units())
            }
            PadTo::Readable => 0,
            PadTo::End => self.total_units(),
        };
        while self.assigned < target {
            if self.tail == 0 && !self.claim(io)? {
                break;
            }
            let Some(buffer) = self.slots.get_mut(self.assigned) else { return Err(self.lost()) };
            buffer.zero(self.tail, self.unit - self.tail)?;
            self.stats.padded += u64::from(self.unit - self.tail);
            self.tail = self.unit;
            self.send(io)?;
        }
        self.settle(io)?;
        self.writable(0)?;
        Ok(self.len() - before)
    }

    /// Pads each chunk behind what it has.
    fn pad_sealed(&mut self, io: &mut Blocking<'_>, to: PadTo) -> Result<u64, BlockError> {
        let g = *self.space.geometry();
        let mut padded = 0;
        for index in 0..self.members.len() {
            let m = self.members[index];
            let rows = self.rows_of(index, self.assigned) as u32;
            let need = match to {
                PadTo::Unit => 0,
                PadTo::Readable if rows == 0 => 0,
                PadTo::Readable => {
                    let need = u64::from(rows) * self.unit_sectors() + u64::from(g.mw_cunits);
                    need.next_multiple_of(g.ws_min.into()).min(g.sectors.into()) as u32
                }
                PadTo::End => g.sectors,
            };
            if m.done >= need || m.closed || m.failure.is_some() {
                continue;
            }
            let count = need - m.done;
            self.ppas.clear();
            self.ppas.extend(self.space.run(nvme::Address { sector: m.done, ..m.first }, count)?);
            let zeros = io.buffers().take(count)?;
            let ticket = io.session().write(&self.ppas, zeros, Options::default())?;
            let ended = io.wait(ticket)?;
            let good = ended.failed.first().map_or(count, |i| i / g.ws_min * g.ws_min);
            let m = &mut self.members[index];
            m.done += good;
            padded += u64::from(good);
            if !ended.is_success() {
                self.stats.failed_units += 1;
                m.failure = Some(ended.status);
                m.closed |= ended.status.is(Status::CHUNK_CLOSED_EARLY);
                // A chunk that has closed early can be read, which is what this is for.
                if !m.closed || to == PadTo::End {
                    return Err(self.not_written());
                }
            }
        }
        self.stats.padded += padded;
        Ok(padded)
    }

    /// The unit that is being filled is not in memory. It always is: a slot that is claimed is left
    /// alone until its unit is readable.
    #[cold]
    fn lost(&self) -> BlockError {
        let start = self.assigned * self.unit_sectors();
        BlockError::Lost(std::iter::once(start..start + u64::from(self.tail)).collect())
    }

    pub(super) fn not_written(&self) -> BlockError {
        let (chunks, missing) = (self.failed_chunks(), self.missing());
        BlockError::NotWritten(NotWritten { chunks, missing, taken: 0 })
    }
}
