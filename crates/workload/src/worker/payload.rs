//! What verifying adds to a [`Worker`]: payloads with headers on the way out, checks on the way in,
//! and reading back at the end.

use ring::PAGE;

use super::{Shared, Worker};
use crate::area::largest_block;
use crate::job::Direction;
use crate::result::{Cause, Failure};
use crate::source::{Kind, Wanted};
use crate::verify;
use clock::Nanos;

impl Worker {
    /// Takes the bytes from `at` on for payloads; returns how many.
    pub(crate) fn place_buffers(&mut self, at: u64) -> u64 {
        self.buffers_at = at;
        self.slot_bytes = self.slot_bytes.next_multiple_of(PAGE as u64);
        self.slot_bytes * self.slots.len() as u64
    }

    /// The next run of sectors from `next` sectors into the job's area whose contents are known,
    /// at most one block long.
    pub(super) fn written_from(&self, next: u64, shared: &Shared) -> Option<(u64, u32)> {
        let ledger = shared.ledger.as_ref().filter(|_| next != u64::MAX)?;
        let sector = u64::from(shared.limits.sector_bytes);
        let first = self.area.offset / sector;
        let end = first + self.area.bytes / sector;
        let lba = (next.max(first)..end).find(|lba| ledger.is_known(*lba))?;
        let most = (largest_block(&self.spec) / sector).min(end - lba);
        let known = (lba..lba + most).take_while(|lba| ledger.is_known(*lba)).count();
        Some((lba, known as u32))
    }

    /// Prepares payload and ledger of the first part. `false` while another write to the same
    /// sectors is in flight.
    pub(super) fn ready_to_send(&mut self, slot: u32, shared: &mut Shared) -> bool {
        let Shared { ledger: Some(ledger), buffers, limits, .. } = shared else {
            return true;
        };
        let s = &mut self.slots[slot as usize];
        if s.sequence != 0 || s.sent > 0 {
            return true;
        }
        let Wanted { kind, lba, sectors } = s.what;
        match kind {
            Kind::Flush => {}
            Kind::Move(Direction::Read) => {
                let stride = self.expected.len() / self.slots.len();
                let from = slot as usize * stride;
                if stride >= sectors as usize {
                    ledger.snapshot(lba, &mut self.expected[from..from + sectors as usize]);
                }
            }
            Kind::Move(direction) => {
                let Some(sequence) = ledger.begin(lba, sectors) else {
                    return false;
                };
                s.sequence = sequence;
                if let (Direction::Write, true, Some(b)) = (direction, self.spec.verify, buffers) {
                    let at = self.buffers_at + u64::from(slot) * self.slot_bytes;
                    for i in 0..u64::from(sectors) {
                        verify::stamp(&mut b.scratch, lba + i, sequence);
                        let offset = at + i * u64::from(limits.sector_bytes);
                        b.region.write(offset as usize, &b.scratch);
                    }
                }
            }
        }
        true
    }

    /// Ends the request in the ledger; checks what was read.
    pub(super) fn settle(&mut self, slot: u32, at: Nanos, shared: &mut Shared) {
        let Shared { ledger: Some(ledger), buffers, limits, .. } = shared else {
            return;
        };
        let s = self.slots[slot as usize];
        let (lba, sectors) = (s.what.lba, s.what.sectors);
        if s.sequence != 0 {
            let write = s.what.kind == Kind::Move(Direction::Write);
            let known = write && self.spec.verify && s.status.is_success();
            ledger.end(lba, sectors, known.then_some(s.sequence));
            return;
        }
        let read = s.what.kind == Kind::Move(Direction::Read) && s.status.is_success();
        let (Some(b), true) = (buffers, read && self.spec.verify) else {
            return;
        };
        let stride = self.expected.len() / self.slots.len();
        let mut wrong = 0u64;
        for i in 0..u64::from(sectors) {
            let start = self.buffers_at + u64::from(slot) * self.slot_bytes;
            b.region.read((start + i * u64::from(limits.sector_bytes)) as usize, &mut b.scratch);
            let expected = self.expected[slot as usize * stride + i as usize];
            match ledger.check(lba + i, expected, &b.scratch) {
                Ok(checked) => self.recorder.verified += u64::from(checked),
                Err(mismatch) => {
                    wrong += 1;
                    let cause = Cause::Mismatch(mismatch);
                    self.recorder.fail(Failure {
                        what: "read",
                        lba: lba + i,
                        sectors: 1,
                        at,
                        cause,
                    });
                }
            }
        }
        if wrong > 0 {
            self.abort_unless(self.spec.continue_on_error.verify);
        }
    }
}
