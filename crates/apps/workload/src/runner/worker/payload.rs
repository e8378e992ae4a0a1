//! Verification in a [`JobThread`] on blocks: payloads with headers, checks of reads, and reading
//! back at the end.

use mem::PAGE_BYTES;

use super::{JobThread, RunContext};
use crate::io_range::largest_block;
use crate::job::Direction;
use crate::results::result::{ErrorCause, IoFailure};
use crate::runner::source::{IoKind, NextIo, RequestSource};
use crate::runner::verify;
use time::Nanos;

/// Memory for the payloads of a job.
#[derive(Debug)]
pub(super) struct Payloads {
    /// Bytes of payload per slot; 0 without payloads.
    slot_bytes: u64,
    /// Offset of the first slot's payload.
    offset: u64,
    /// Expected content of each sector of each slot's read.
    expected: Vec<u32>,
    slot_sectors: usize,
}

impl Payloads {
    /// Creates payloads of `slot_bytes`, which are `slot_sectors` sectors, for `depth` slots.
    pub(super) fn new(slot_bytes: u64, slot_sectors: u64, depth: u32) -> Payloads {
        let slot_sectors = slot_sectors as usize;
        let expected = vec![0; slot_sectors * depth as usize];
        Payloads { slot_bytes, offset: 0, expected, slot_sectors }
    }

    /// Returns whether slots have payloads.
    #[inline]
    pub(super) fn has_buffers(&self) -> bool {
        self.slot_bytes > 0
    }

    /// Returns the offset of a slot's payload.
    #[inline]
    pub(super) fn offset(&self, slot: u32) -> u64 {
        self.offset + u64::from(slot) * self.slot_bytes
    }

    /// Returns the expected contents of the sectors of a slot's read.
    pub(super) fn expected_mut(&mut self, slot: u32) -> &mut [u32] {
        let from = slot as usize * self.slot_sectors;
        &mut self.expected[from..from + self.slot_sectors]
    }
}

impl JobThread {
    /// Returns the bytes of a sector or of a record's value.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.io_range.unit_bytes
    }

    /// Assigns the bytes from `at` on to payloads; returns their number.
    pub(crate) fn assign_buffers(&mut self, at: u64) -> u64 {
        let payloads = &mut self.payloads;
        payloads.offset = at;
        payloads.slot_bytes = payloads.slot_bytes.next_multiple_of(PAGE_BYTES as u64);
        payloads.slot_bytes * self.slots.len() as u64
    }

    /// Returns the next extent with known contents, from `next` sectors into the job's region, at
    /// most one block long.
    pub(super) fn next_written_range(&self, next: u64, shared: &RunContext) -> Option<(u64, u32)> {
        let ledger = shared.verify_state.as_ref().filter(|_| next != u64::MAX)?;
        let unit = self.io_range.unit_bytes;
        if let (RequestSource::Units(units), Some(chunks)) = (&self.source, &shared.chunks) {
            return units.next_written(next, largest_block(&self.spec) / unit, ledger, chunks);
        }
        let first = self.io_range.offset / unit;
        let end = first + self.io_range.bytes / unit;
        let lba = (next.max(first)..end).find(|lba| ledger.is_known(*lba))?;
        let most = (largest_block(&self.spec) / unit).min(end - lba);
        let known = (lba..lba + most).take_while(|lba| ledger.is_known(*lba)).count();
        Some((lba, known as u32))
    }

    /// Prepares the payload and the verify state of the first fragment. Returns `false` while
    /// another write to the same sectors is in flight.
    pub(super) fn prepare_payload(&mut self, slot: u32, shared: &mut RunContext) -> bool {
        let RunContext { verify_state: Some(ledger), buffers, limits, .. } = shared else {
            return true;
        };
        let s = self.slots.get_mut(slot);
        if s.seq != 0 || s.sectors_submitted > 0 {
            return true;
        }
        let NextIo { kind, lba, sectors } = s.io;
        match kind {
            IoKind::Flush => {}
            IoKind::Transfer(Direction::Read) => {
                let expected = self.payloads.expected_mut(slot);
                if let Some(expected) = expected.get_mut(..sectors as usize) {
                    ledger.snapshot(lba, expected);
                }
            }
            IoKind::Transfer(direction) => {
                let Some(sequence) = ledger.begin_write(lba, sectors) else {
                    return false;
                };
                s.seq = sequence;
                if let (Direction::Write, true, Some(b)) =
                    (direction, self.spec.integrity.verify, buffers)
                {
                    let at = self.payloads.offset(slot);
                    for i in 0..u64::from(sectors) {
                        verify::fill_sector(&mut b.scratch, lba + i, sequence);
                        let offset = at + i * u64::from(limits.sector_bytes);
                        b.region.write(offset as usize, &b.scratch);
                    }
                }
            }
        }
        true
    }

    /// Completes the request in the verify state and checks the data of a read.
    pub(super) fn finish_verify(&mut self, slot: u32, at: Nanos, shared: &mut RunContext) {
        let RunContext { verify_state: Some(ledger), buffers, limits, .. } = shared else {
            return;
        };
        let s = *self.slots.get(slot);
        let (lba, sectors) = (s.io.lba, s.io.sectors);
        if s.seq != 0 {
            let write = s.io.kind == IoKind::Transfer(Direction::Write);
            let known = write && self.spec.integrity.verify && s.status.is_success();
            ledger.complete_write(lba, sectors, known.then_some(s.seq));
            return;
        }
        let read = s.io.kind == IoKind::Transfer(Direction::Read) && s.status.is_success();
        let (Some(b), true) = (buffers, read && self.spec.integrity.verify) else {
            return;
        };
        let mut wrong = 0u64;
        for i in 0..u64::from(sectors) {
            let start = self.payloads.offset(slot);
            b.region.read((start + i * u64::from(limits.sector_bytes)) as usize, &mut b.scratch);
            let expected = self.payloads.expected_mut(slot)[i as usize];
            match ledger.check(lba + i, expected, &b.scratch) {
                Ok(checked) => self.recorder.verified += u64::from(checked),
                Err(mismatch) => {
                    wrong += 1;
                    let cause = ErrorCause::Mismatch(mismatch);
                    self.recorder.fail(IoFailure {
                        op: "read",
                        addressing: self.spec.addressing(),
                        lba: lba + i,
                        sectors: 1,
                        at,
                        cause,
                    });
                }
            }
        }
        if wrong > 0 {
            self.abort_unless(self.spec.integrity.continue_on_error.verify);
        }
    }
}
