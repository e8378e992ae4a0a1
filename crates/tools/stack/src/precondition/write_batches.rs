//! [`WriteBatches`]: the writes of jobs that only write, given to a drive's FTL without a job runner.
//!
//! The drive gets the writes in the order and at the times at which a job runner on a
//! [`DirectQueue`](super::direct_queue) issues them, as many at a time as the depth of the job
//! allows, so that its state afterwards is the same.

use controller::Controller;
use ftl::BatchWrite;
use nvme::Status;
use time::{Component, Nanos, VirtualRunner};
use workload::{Addressing, ErrorCause, IoFailure, JobWrite, WriteStream};

/// The jobs, one after the other, and the state of the present one.
#[derive(Debug)]
pub(super) struct WriteBatches {
    streams: Vec<WriteStream>,
    /// Index of the present job.
    present: usize,
    /// Its outstanding writes.
    in_flight: u32,
    /// The next batch.
    batch: Vec<BatchWrite>,
    /// The first failed write, after which no more are issued.
    failure: Option<IoFailure>,
}

/// How [`WriteBatches::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteEnd {
    /// All writes are done.
    Done,
    /// The caller stopped it.
    Stopped,
    /// A write failed.
    Failed(IoFailure),
    /// Writes of the job with this index are outstanding, and no event remains.
    Stalled { job: usize, outstanding: u64 },
}

/// Bits of a tag that hold the first sector of a write; the others hold its length.
const LBA_BITS: u32 = 32;

impl WriteBatches {
    pub(super) fn new(streams: Vec<WriteStream>) -> WriteBatches {
        WriteBatches { streams, present: 0, in_flight: 0, batch: Vec::new(), failure: None }
    }

    /// Writes everything. After each batch `tell` is called with the progress, as
    /// [`JobRunner::progress`](workload::JobRunner::progress) has it, and returns whether to
    /// continue.
    pub(super) fn run(
        &mut self,
        runner: &mut VirtualRunner,
        drive: &mut Controller,
        mut tell: impl FnMut(f64) -> bool,
    ) -> WriteEnd {
        let jobs = self.streams.len() as f64;
        let mut batches = 0u32;
        // As a job runner does, it polls the device before the first write.
        drive.run_direct_writes(runner.now());
        while self.present < self.streams.len() {
            let stream = &mut self.streams[self.present];
            fill(stream, self.in_flight, self.failure.is_some(), &mut self.batch);
            self.in_flight += self.batch.len() as u32;
            if self.in_flight == 0 {
                if let Some(failure) = self.failure {
                    return WriteEnd::Failed(failure);
                }
                self.present += 1;
                continue;
            }
            let issued = !self.batch.is_empty();
            let completed = drive.write_batch_directly(runner.now(), &mut self.batch);
            let has_moved = issued | self.reap(runner.now(), completed, drive);
            if !has_moved {
                match drive.deadline() {
                    Nanos::MAX => {
                        let outstanding = self.in_flight.into();
                        return WriteEnd::Stalled { job: self.present, outstanding };
                    }
                    next => runner.advance_to(next),
                }
            }
            batches += 1;
            let done = |stream: &WriteStream| (self.present as f64 + stream.progress()) / jobs;
            if batches.is_multiple_of(super::STRIDE) && !tell(done(&self.streams[self.present])) {
                return WriteEnd::Stopped;
            }
        }
        WriteEnd::Done
    }

    /// Counts `completed` writes and those that it removes from the drive. Returns whether there were
    /// any.
    fn reap(&mut self, now: Nanos, completed: u32, drive: &mut Controller) -> bool {
        let mut reaped = completed;
        while let Some((tag, status)) = drive.pop_direct_write() {
            reaped += 1;
            if !status.is_success() {
                self.failure.get_or_insert_with(|| failure_of(tag, status, now));
            }
        }
        self.in_flight -= reaped;
        reaped > 0
    }
}

/// Fills the next batch of a job that has `in_flight` writes outstanding.
fn fill(stream: &mut WriteStream, in_flight: u32, has_ended: bool, batch: &mut Vec<BatchWrite>) {
    batch.clear();
    if has_ended {
        return;
    }
    for _ in in_flight..stream.depth() {
        let Some(JobWrite { lba, sectors }) = stream.next_write() else { return };
        let tag = lba | u64::from(sectors) << LBA_BITS;
        batch.push(BatchWrite { tag, slba: lba, sectors });
    }
}

/// Returns the failure of a write with this tag.
#[cold]
fn failure_of(tag: u64, status: Status, at: Nanos) -> IoFailure {
    IoFailure {
        op: "write",
        addressing: Addressing::Blocks,
        lba: tag & ((1 << LBA_BITS) - 1),
        sectors: (tag >> LBA_BITS) as u32,
        at,
        cause: ErrorCause::Status(status),
    }
}
