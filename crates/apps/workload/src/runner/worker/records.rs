//! Operations on records in a [`JobThread`]: their submission, their counts, and their verification;
//! and the steps at which they leave the path of blocks.
//!
//! A value that a verifying job puts starts with the header of [`verify`], with the index of the
//! record as the address. Two operations that change a record are never in flight at the same time.

use mem::Iova;
use nvme::Status;
use time::Nanos;
use tracepoint::Event;

use super::{JobThread, PayloadMemory, RunContext, request_op, tag};
use crate::device::{Addressing, JobDevice, JobOperation, RecordOp, RecordRequest};
use crate::job::Direction;
use crate::key_spec::KeyBuffers;
use crate::results::result::{ErrorCause, IoFailure};
use crate::runner::source::{IoKind, NextIo, RequestSource};
use crate::runner::verify::{self, Mismatch};
use crate::ycsb::{OperationKind, record_key};

impl JobThread {
    /// Prepares a request of a trace or on records in `slot`. Returns the time at which it was
    /// wanted. Apart from the path of jobs that generate requests for blocks, which stays short.
    #[inline(never)]
    pub(super) fn prepare_not_generated(&mut self, slot: u32, chained: bool, at: Nanos) -> Nanos {
        match &mut self.source {
            RequestSource::Generated(_) => {}
            RequestSource::Replay(replay) => {
                if let Some(due) = replay.due.take() {
                    self.recorder.delayed += u64::from(due < at);
                    return due;
                }
            }
            RequestSource::Keys(keys) => keys.assign(slot, chained),
            RequestSource::Units(_) => {}
        }
        at
    }

    /// Executes the steps of a completed request besides its accounting.
    #[inline(never)]
    pub(super) fn finish_steps(&mut self, slot: u32, at: Nanos, shared: &mut RunContext) {
        match self.source {
            RequestSource::Keys(_) => self.finish_record(slot, at, shared),
            RequestSource::Generated(_) | RequestSource::Replay(_) | RequestSource::Units(_) => {
                let s = self.slots.get(slot);
                shared.finish_vector(s.io, s.status.is_success());
                if shared.verify_state.is_some() {
                    self.finish_verify(slot, at, shared);
                }
            }
        }
    }

    /// Returns the operation of the request in `slot`.
    fn record_op(&self, slot: u32) -> RecordOp {
        let kind = match &self.source {
            RequestSource::Keys(keys) => keys.kind(slot),
            RequestSource::Generated(_) | RequestSource::Replay(_) | RequestSource::Units(_) => {
                None
            }
        };
        match (self.slots.get(slot).io.kind, kind) {
            (IoKind::Flush, _) => RecordOp::Sync,
            (IoKind::Transfer(Direction::Trim), _) => RecordOp::Delete,
            (IoKind::Transfer(Direction::Read), Some(OperationKind::Scan)) => RecordOp::Scan,
            (IoKind::Transfer(Direction::Read), _) => RecordOp::Get,
            (IoKind::Transfer(Direction::Write), Some(OperationKind::Update)) => RecordOp::Update,
            (IoKind::Transfer(Direction::Write), Some(OperationKind::ReadModifyWrite)) => {
                RecordOp::ReadModifyWrite
            }
            (IoKind::Transfer(Direction::Write), _) => RecordOp::Put,
        }
    }

    /// Returns the offset of the value that the operation in `slot` writes.
    fn written_offset(&self, slot: u32) -> u64 {
        let KeyBuffers { read, written } = self.spec.key_buffers();
        let skip = if written > 0 { u64::from(read) } else { 0 };
        self.payloads.offset(slot) + skip * self.io_range.unit_bytes
    }

    /// Submits the pending operation to the device. Returns `false` if the device or a change of the
    /// same record blocks it.
    pub(super) fn send_record<D: JobDevice>(
        &mut self,
        now: Nanos,
        index: u64,
        slot: u32,
        device: &mut D,
        shared: &mut RunContext,
    ) -> bool {
        let op = self.record_op(slot);
        if shared.verify_state.is_some() && !self.prepare_record(slot, op, shared) {
            return false;
        }
        let base = shared.buffers.as_ref().map_or(Iova(0), |buffers| buffers.base);
        let (tag, value_bytes) = (tag(index, slot), self.io_range.unit_bytes);
        let NextIo { lba: record, sectors: count, .. } = self.slots.get(slot).io;
        let request = RecordRequest {
            op,
            record,
            count,
            value_bytes,
            read_into: base.offset(self.payloads.offset(slot)),
            read_stride: if self.spec.key_buffers().read > 1 { value_bytes } else { 0 },
            write_from: base.offset(self.written_offset(slot)),
            tag,
        };
        if device.submit(now, JobOperation::Record(request)).is_err() {
            return false;
        }
        let s = self.slots.get_mut(slot);
        (s.sectors_submitted, s.fragments) = (count, 1);
        let (kind, wanted, ready) = (s.io.kind, s.wanted, s.issued);
        tracepoint::trace_at(now, || {
            let op = request_op(kind);
            let (lba, sectors) = (record, count);
            Event::RequestIssued { tag, op, lba, sectors, intended_at: wanted, ready }
        });
        s.issued = now;
        self.slots.end_pending();
        self.recorder.issue(self.slots.outstanding());
        true
    }

    /// Prepares the verify state and the value of an operation. Returns `false` while another change
    /// of the record is in flight.
    fn prepare_record(&mut self, slot: u32, op: RecordOp, shared: &mut RunContext) -> bool {
        let written_at = self.written_offset(slot) as usize;
        let unit = self.io_range.unit_bytes as usize;
        let RunContext { verify_state: Some(ledger), buffers, .. } = shared else { return true };
        let s = self.slots.get_mut(slot);
        if s.seq != 0 {
            return true;
        }
        let record = s.io.lba;
        match op {
            RecordOp::Sync => return true,
            RecordOp::Scan => {
                self.payloads.expected_mut(slot).fill(ledger.changes());
                return true;
            }
            RecordOp::Get | RecordOp::ReadModifyWrite => {
                ledger.snapshot(record, &mut self.payloads.expected_mut(slot)[..1]);
            }
            RecordOp::Put | RecordOp::Update | RecordOp::Delete => {}
        }
        if op == RecordOp::Get {
            return true;
        }
        let Some(sequence) = ledger.begin_write(record, 1) else { return false };
        s.seq = sequence;
        if let (true, Some(PayloadMemory { region, scratch, .. })) =
            (self.spec.integrity.verify && op != RecordOp::Delete, buffers)
        {
            verify::fill_sector(&mut scratch[..unit], record, sequence);
            region.write(written_at, &scratch[..unit]);
        }
        true
    }

    /// Processes the number of records that a completed operation found. A scan can find fewer than
    /// it asked for.
    pub(crate) fn on_records_found(&mut self, slot: u32, status: Status, found: u64) {
        let RequestSource::Keys(keys) = &mut self.source else { return };
        let Some(s) = self.slots.find_mut(slot) else { return };
        let deleted_none =
            s.io.kind == IoKind::Transfer(Direction::Trim) && status.is_success() && found == 0;
        keys.not_found += u64::from(status.is(Status::KEY_NOT_FOUND) || deleted_none);
        if keys.kind(slot) == Some(OperationKind::Scan) {
            s.io.sectors = s.io.sectors.min(found as u32);
        }
    }

    /// Completes an operation in the counts and in the verify state, and checks its values.
    pub(super) fn finish_record(&mut self, slot: u32, at: Nanos, shared: &mut RunContext) {
        let (op, s) = (self.record_op(slot), *self.slots.get(slot));
        let success = s.status.is_success();
        if let (RequestSource::Keys(keys), true) = (&mut self.source, success) {
            keys.on_success(slot, s.io.lba);
        }
        let RunContext { verify_state: Some(ledger), buffers: Some(memory), .. } = shared else {
            return;
        };
        if s.seq != 0 {
            let known = success && self.spec.integrity.verify && op != RecordOp::Delete;
            ledger.complete_put(s.io.lba, known.then_some(s.seq));
        }
        if !success || !self.spec.integrity.verify {
            return;
        }
        let (offset, unit) = (self.payloads.offset(slot), self.io_range.unit_bytes);
        let expected = self.payloads.expected_mut(slot)[0];
        let (mut wrong, mut before) = (false, None);
        let values = match op {
            RecordOp::Get | RecordOp::ReadModifyWrite => 1,
            RecordOp::Scan => s.io.sectors,
            RecordOp::Put | RecordOp::Update | RecordOp::Delete | RecordOp::Sync => 0,
        };
        for i in 0..u64::from(values) {
            let value = &mut memory.scratch[..unit as usize];
            memory.region.read((offset + i * unit) as usize, value);
            let checked = match op {
                RecordOp::Scan => match ledger.check_scanned(expected, value) {
                    Ok(Some((record, checked))) => {
                        let key = record_key(record);
                        let least = before.replace(key);
                        let is_next = match least {
                            Some(least) => key.as_bytes() > least.as_bytes(),
                            None => key.as_bytes() >= record_key(s.io.lba).as_bytes(),
                        };
                        if is_next {
                            Ok(checked)
                        } else {
                            Err(Mismatch::WrongSector { lba: record })
                        }
                    }
                    Ok(None) => Ok(false),
                    Err(mismatch) => Err(mismatch),
                },
                RecordOp::ReadModifyWrite => ledger.check_before_update(s.io.lba, expected, value),
                _ => ledger.check(s.io.lba, expected, value),
            };
            match checked {
                Ok(checked) => self.recorder.verified += u64::from(checked),
                Err(mismatch) => {
                    wrong = true;
                    self.recorder.fail(IoFailure {
                        op: "read",
                        addressing: Addressing::Keys,
                        lba: s.io.lba,
                        sectors: 1,
                        at,
                        cause: ErrorCause::Mismatch(mismatch),
                    });
                }
            }
        }
        if wrong {
            self.abort_unless(self.spec.integrity.continue_on_error.verify);
        }
    }
}
