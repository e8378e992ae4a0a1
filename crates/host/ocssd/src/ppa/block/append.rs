//! The write cursor: [`append`](VirtualBlock::append), [`pad`](VirtualBlock::pad) and
//! [`erase`](VirtualBlock::erase).
//!
//! Full units are submitted at once, up to two per chunk in flight; both functions return when all
//! of them have completed.
//!
//! Invariants: units of a chunk are submitted and complete in order. A buffer is reused only when
//! its unit is readable from media.

use std::collections::VecDeque;

use nvme::Status;

use super::{
    BlockChunk, FailedChunk, InFlightUnit, PadMode, UnwrittenSectors, VirtualBlock,
    VirtualBlockError,
};
use crate::ppa::{BlockingSession, PpaError, RequestCompletion, RequestId, VectorOptions};

impl VirtualBlock {
    /// Appends whole sectors with zeroed out-of-band bytes, and returns the index of the first.
    /// Sectors that do not fill a unit stay in memory until more is appended or the block is
    /// padded.
    ///
    /// # Errors
    /// - Nothing was accepted: [`VirtualBlockError::PartialSector`], [`VirtualBlockError::Full`],
    ///   [`VirtualBlockError::Sealed`], and [`VirtualBlockError::Unwritten`] with `accepted` 0 for a chunk that
    ///   failed earlier.
    /// - A program failed: [`VirtualBlockError::Unwritten`] reports how many sectors were accepted and
    ///   which are not on the drive.
    /// - After any other error, [`len`](VirtualBlock::len) shows how many sectors were accepted.
    pub fn append(
        &mut self,
        io: &mut BlockingSession<'_>,
        data: &[u8],
    ) -> Result<u64, VirtualBlockError> {
        self.append_sectors(io, data, None)
    }

    /// Appends whole sectors with their out-of-band bytes; otherwise as
    /// [`append`](VirtualBlock::append).
    ///
    /// # Errors
    /// As for [`append`](VirtualBlock::append); [`VirtualBlockError::OobLength`].
    pub fn append_with_oob(
        &mut self,
        io: &mut BlockingSession<'_>,
        data: &[u8],
        oob: &[u8],
    ) -> Result<u64, VirtualBlockError> {
        self.append_sectors(io, data, Some(oob))
    }

    fn append_sectors(
        &mut self,
        io: &mut BlockingSession<'_>,
        data: &[u8],
        oob: Option<&[u8]>,
    ) -> Result<u64, VirtualBlockError> {
        let g = *self.space.geometry();
        let count = self.sector_count(data.len())?;
        if let Some(oob) = oob
            && oob.len() as u64 != count * u64::from(g.oob_bytes)
        {
            let given = oob.len();
            return Err(VirtualBlockError::OobLength { given, sectors: count, each: g.oob_bytes });
        }
        self.wait_all(io)?;
        self.check_writable(0)?;
        if count > self.remaining_sectors() {
            return Err(VirtualBlockError::Full {
                wanted: count,
                remaining: self.remaining_sectors(),
            });
        }
        let (first, mut taken) = (self.len(), 0);
        loop {
            if self.tail_sectors == self.unit_sectors {
                self.submit_unit(io)?;
            }
            if taken == count || self.tail_sectors == 0 && !self.claim_unit_buffer(io)? {
                break;
            }
            let n = u64::from(self.unit_sectors - self.tail_sectors).min(count - taken);
            let Some(buffer) = self.unit_buffers.get_mut(self.units_submitted) else {
                return Err(self.unit_missing_error());
            };
            let bytes = |each: u32| {
                let each = u64::from(each);
                (taken * each) as usize..((taken + n) * each) as usize
            };
            buffer.write(self.tail_sectors, &data[bytes(g.sector_bytes)])?;
            match oob {
                Some(oob) => buffer.write_oob(self.tail_sectors, &oob[bytes(g.oob_bytes)])?,
                None => buffer.zero_oob(self.tail_sectors, n as u32)?,
            }
            self.tail_sectors += n as u32;
            taken += n;
            self.stats.appended += n;
        }
        self.wait_all(io)?;
        self.check_writable(taken)?;
        Ok(first)
    }

    /// Converts bytes to whole sectors.
    pub(super) fn sector_count(&self, bytes: usize) -> Result<u64, VirtualBlockError> {
        let each = self.space.geometry().sector_bytes;
        if !bytes.is_multiple_of(each as usize) {
            return Err(VirtualBlockError::PartialSector { what: "data", bytes, each });
        }
        Ok(bytes as u64 / u64::from(each))
    }

    /// Returns an error if the block accepts no writes; `taken` is reported as `accepted`.
    pub(super) fn check_writable(&self, taken: u64) -> Result<(), VirtualBlockError> {
        if self.sealed {
            return Err(VirtualBlockError::Sealed { len: self.len() });
        }
        if self.members.iter().all(|m| m.failure.is_none()) {
            return Ok(());
        }
        let (chunks, missing) = (self.failed_chunks(), self.unwritten_ranges());
        Err(VirtualBlockError::Unwritten(UnwrittenSectors { chunks, missing, accepted: taken }))
    }

    /// Claims a buffer for the next unit. Returns `false` if a chunk has failed, so that no buffer
    /// becomes free.
    pub(super) fn claim_unit_buffer(
        &mut self,
        io: &mut BlockingSession<'_>,
    ) -> Result<bool, VirtualBlockError> {
        let (unit, sectors) = (self.units_submitted, self.unit_sectors);
        loop {
            if self.members.iter().any(|m| m.failure.is_some()) {
                return Ok(false);
            }
            let free = match self.unit_buffers.occupant(unit) {
                None => true,
                // With no unit in flight, every unit that can become readable is readable.
                Some(before) => self.is_unit_readable(before) || self.in_flight.is_empty(),
            };
            if free {
                self.unit_buffers.claim(unit, sectors, io.buffers())?;
                return Ok(true);
            }
            self.wait_oldest(io)?;
        }
    }

    /// Submits the unit that was filled.
    pub(super) fn submit_unit(
        &mut self,
        io: &mut BlockingSession<'_>,
    ) -> Result<(), VirtualBlockError> {
        let unit = self.units_submitted;
        let (index, first) = self.locate_unit(unit);
        let first = nvme::Address { sector: first, ..self.members[index].first };
        self.ppas.clear();
        self.ppas.extend(self.space.extent(first, self.unit_sectors)?);
        let Some(mut buffer) = self.unit_buffers.take_for_write(unit) else {
            return Err(self.unit_missing_error());
        };
        loop {
            match io.session().write(&self.ppas, buffer, VectorOptions::default()) {
                Ok(ticket) => {
                    self.in_flight.push_back(InFlightUnit { request: ticket, unit });
                    self.units_submitted += 1;
                    self.tail_sectors = 0;
                    return Ok(());
                }
                Err(mut refused) => {
                    let again = refused.reason.is_busy() && !self.in_flight.is_empty();
                    match refused.buffer.take() {
                        Some(back) if again => {
                            buffer = back;
                            self.wait_oldest(io)?;
                        }
                        back => {
                            self.unit_buffers.return_buffer(unit, back);
                            return Err(refused.into());
                        }
                    }
                }
            }
        }
    }

    /// Waits for the oldest unit in flight.
    pub(super) fn wait_oldest(
        &mut self,
        io: &mut BlockingSession<'_>,
    ) -> Result<(), VirtualBlockError> {
        let Some(InFlightUnit { request: ticket, unit }) = self.in_flight.front().copied() else {
            return Ok(());
        };
        let gone = |ticket| RequestCompletion {
            request: ticket,
            kind: crate::ppa::VectorKind::Write,
            status: Status::ABORTED_SQ_DELETED,
            failed: [0].into_iter().collect(),
            addresses: self.unit_sectors,
            buffer: None,
        };
        let mut ended = match io.wait(ticket) {
            // The unit's session was closed.
            Err(PpaError::NoSuchVector { request: ticket }) => gone(ticket),
            ended => ended?,
        };
        self.in_flight.pop_front();
        self.unit_buffers.return_buffer(unit, ended.buffer.take());
        self.on_unit_complete(unit, &ended);
        Ok(())
    }

    /// Handles the completion of a unit's write.
    pub(super) fn on_unit_complete(&mut self, unit: u64, ended: &RequestCompletion) {
        let (index, first) = self.locate_unit(unit);
        let least = self.space.geometry().ws_min;
        let good = match ended.failed.first() {
            _ if ended.is_success() => self.unit_sectors,
            Some(failed) => failed / least * least,
            None => 0,
        };
        let m = &mut self.members[index];
        if m.sectors_written == first {
            m.sectors_written += good;
        }
        if !ended.is_success() {
            self.stats.failed_units += 1;
            m.failure.get_or_insert(ended.status);
            m.closed |= ended.status.is(Status::CHUNK_CLOSED_EARLY);
        }
    }

    /// Waits for all units in flight.
    pub(super) fn wait_all(
        &mut self,
        io: &mut BlockingSession<'_>,
    ) -> Result<(), VirtualBlockError> {
        while !self.in_flight.is_empty() {
            self.wait_oldest(io)?;
        }
        Ok(())
    }

    /// Appends zeroed sectors up to `to`, and returns their number; they become part of the block.
    /// A [sealed](VirtualBlock::is_sealed) block is padded after its end, which does not change.
    ///
    /// # Errors
    /// [`VirtualBlockError::Unwritten`], as for [`append`](VirtualBlock::append).
    pub fn pad(
        &mut self,
        io: &mut BlockingSession<'_>,
        to: PadMode,
    ) -> Result<u64, VirtualBlockError> {
        self.wait_all(io)?;
        if self.sealed {
            return self.pad_sealed(io, to);
        }
        self.check_writable(0)?;
        let before = self.len();
        let full = self.units_submitted + u64::from(self.tail_sectors > 0);
        let target = match to {
            PadMode::Unit => full,
            // Each chunk gets as many further units as the page pairing requires.
            PadMode::Readable if full > 0 => {
                (full + self.pair_rows * self.width()).min(self.total_units())
            }
            PadMode::Readable => 0,
            PadMode::End => self.total_units(),
        };
        while self.units_submitted < target {
            if self.tail_sectors == 0 && !self.claim_unit_buffer(io)? {
                break;
            }
            let Some(buffer) = self.unit_buffers.get_mut(self.units_submitted) else {
                return Err(self.unit_missing_error());
            };
            buffer.zero(self.tail_sectors, self.unit_sectors - self.tail_sectors)?;
            self.stats.padded += u64::from(self.unit_sectors - self.tail_sectors);
            self.tail_sectors = self.unit_sectors;
            self.submit_unit(io)?;
        }
        self.wait_all(io)?;
        self.check_writable(0)?;
        Ok(self.len() - before)
    }

    /// Pads each chunk after its write pointer.
    fn pad_sealed(
        &mut self,
        io: &mut BlockingSession<'_>,
        to: PadMode,
    ) -> Result<u64, VirtualBlockError> {
        let g = *self.space.geometry();
        let mut padded = 0;
        for index in 0..self.members.len() {
            let m = self.members[index];
            let rows = self.rows_of(index, self.units_submitted) as u32;
            let need = match to {
                PadMode::Unit => 0,
                PadMode::Readable if rows == 0 => 0,
                PadMode::Readable => {
                    let need = u64::from(rows) * self.unit_sectors() + u64::from(g.mw_cunits);
                    need.next_multiple_of(g.ws_min.into()).min(g.sectors.into()) as u32
                }
                PadMode::End => g.sectors,
            };
            if m.sectors_written >= need || m.closed || m.failure.is_some() {
                continue;
            }
            let count = need - m.sectors_written;
            self.ppas.clear();
            self.ppas.extend(
                self.space.extent(nvme::Address { sector: m.sectors_written, ..m.first }, count)?,
            );
            let zeros = io.buffers().allocate(count)?;
            let ticket = io.session().write(&self.ppas, zeros, VectorOptions::default())?;
            let ended = io.wait(ticket)?;
            let good = ended.failed.first().map_or(count, |i| i / g.ws_min * g.ws_min);
            let m = &mut self.members[index];
            m.sectors_written += good;
            padded += u64::from(good);
            if !ended.is_success() {
                self.stats.failed_units += 1;
                m.failure = Some(ended.status);
                m.closed |= ended.status.is(Status::CHUNK_CLOSED_EARLY);
                // A chunk that closed early is readable, which is the purpose of the padding.
                if !m.closed || to == PadMode::End {
                    return Err(self.unwritten_error());
                }
            }
        }
        self.stats.padded += padded;
        Ok(padded)
    }

    /// Erases all chunks that are not free, in parallel. The block is then empty, with its read
    /// cursor at the start. A power cut may leave some chunks erased and others not; the owner then
    /// [opens](VirtualBlock::open) the block and erases it again.
    ///
    /// # Errors
    /// [`VirtualBlockError::NotErased`] names the chunks whose erase failed, which are bad. The block is
    /// empty nevertheless, and writable once they are replaced.
    pub fn erase(&mut self, io: &mut BlockingSession<'_>) -> Result<(), VirtualBlockError> {
        self.wait_all(io)?;
        let used = |m: &BlockChunk| m.sectors_written > 0 || m.closed || m.failure.is_some();
        let mut flying: VecDeque<(usize, RequestId)> = VecDeque::new();
        let mut outcome: Vec<(usize, Status)> = Vec::new();
        // One vector per chunk: a drive that rejects one chunk of a vector erases none of it.
        for index in (0..self.members.len()).filter(|i| used(&self.members[*i])) {
            let ppa = self.space.ppa(self.members[index].first)?;
            let ticket = loop {
                match io.session().reset(&[ppa]) {
                    Ok(ticket) => break ticket,
                    Err(refused) => match flying.pop_front().filter(|_| refused.reason.is_busy()) {
                        Some((index, ticket)) => outcome.push((index, io.wait(ticket)?.status)),
                        None => return Err(refused.into()),
                    },
                }
            };
            flying.push_back((index, ticket));
        }
        for (index, ticket) in flying {
            outcome.push((index, io.wait(ticket)?.status));
        }
        for (index, status) in &outcome {
            let m = &mut self.members[*index];
            *m = BlockChunk::new(m.first);
            if !status.is_success() {
                (m.closed, m.failure) = (true, Some(*status));
            } else {
                self.stats.erased += 1;
            }
        }
        (self.units_submitted, self.tail_sectors, self.read_cursor, self.sealed) = (0, 0, 0, false);
        self.unit_buffers.clear();
        self.torn.clear();
        let failed: Vec<FailedChunk> = self.failed_chunks();
        if failed.is_empty() { Ok(()) } else { Err(VirtualBlockError::NotErased(failed)) }
    }

    /// Writes a buffered unit to its location, if its chunk still accepts it.
    pub(super) fn write_unit(
        &mut self,
        io: &mut BlockingSession<'_>,
        unit: u64,
    ) -> Result<(), VirtualBlockError> {
        let (index, first) = self.locate_unit(unit);
        let m = &self.members[index];
        if m.failure.is_some() || m.sectors_written != first {
            return Ok(());
        }
        let ppas = self.unit_ppas(unit)?;
        let Some(buffer) = self.unit_buffers.take_for_write(unit) else { return Ok(()) };
        match io.session().write(&ppas, buffer, VectorOptions::default()) {
            Ok(ticket) => {
                self.in_flight.push_back(InFlightUnit { request: ticket, unit });
                Ok(())
            }
            Err(mut refused) => {
                self.unit_buffers.return_buffer(unit, refused.buffer.take());
                Err(refused.into())
            }
        }
    }

    /// Returns the error for a unit that is not in memory. This cannot happen: a claimed buffer is
    /// not reused until its unit is readable.
    #[cold]
    fn unit_missing_error(&self) -> VirtualBlockError {
        let start = self.units_submitted * self.unit_sectors();
        VirtualBlockError::DataLost(
            std::iter::once(start..start + u64::from(self.tail_sectors)).collect(),
        )
    }

    pub(super) fn unwritten_error(&self) -> VirtualBlockError {
        let (chunks, missing) = (self.failed_chunks(), self.unwritten_ranges());
        VirtualBlockError::Unwritten(UnwrittenSectors { chunks, missing, accepted: 0 })
    }
}
