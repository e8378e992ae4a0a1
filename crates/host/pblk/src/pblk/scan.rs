//! [`recover`]: executes the operations of a recovery [LightNVM17 §4.2.2] on the queue pair that
//! the target uses afterwards.

use std::sync::Arc;

use driver::QueueFull;
use ftl::{Ftl, Oob, Recovery, RecoveryOp, RecoveryOpKind, RecoveryOpResult};
use mem::{Iova, SharedRegion};
use nvme::{MAX_VECTOR_ADDRESSES, Status};

use super::PblkError;
use ocssd::vector::{Addresses, DataSegments, VectorCompletion, VectorQueue, register};

/// Number of polls without a completion after which the drive counts as failed.
const POLL_LIMIT: u64 = 30_000_000;

/// Maximum number of operations in flight.
const JOBS_MAX: usize = 64;

/// Maximum number of sectors of an operation.
const JOB_SECTORS_MAX: usize = MAX_VECTOR_ADDRESSES as usize;

/// An operation in flight, and the results of its commands so far.
#[derive(Debug)]
struct JobSlot {
    job: RecoveryOp,
    /// Sectors whose command was not submitted yet, and sectors whose command has not completed.
    sectors_unsubmitted: u32,
    sectors_outstanding: u32,
    failed: u64,
    status: Status,
}

/// Executes recovery operations, one per slot.
struct RecoveryRunner<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    progress: &'a mut dyn FnMut(),
    slots: Vec<Option<JobSlot>>,
    data: Arc<SharedRegion>,
    data_at: Iova,
    oob: Arc<SharedRegion>,
    oob_at: Iova,
    /// Out-of-band bytes of padding, for as many sectors as an operation may have.
    padding_at: Iova,
    sector_bytes: usize,
    oob_bytes: usize,
}

/// Runs a recovery to completion.
///
/// # Errors
/// [`PblkError::Recovery`], [`PblkError::Memory`], [`PblkError::Command`], [`PblkError::Timeout`].
/// An unreadable sector or a failed program is not an error.
pub(crate) fn recover(
    mut recovery: Recovery,
    queue: &mut VectorQueue,
    addresses: &Addresses,
    progress: &mut dyn FnMut(),
) -> Result<(Ftl, ftl::RecoveryStats), PblkError> {
    let mut scan = RecoveryRunner::new(queue, addresses, progress)?;
    loop {
        let jobs = recovery.next_ops();
        if jobs.is_empty() {
            let stats = recovery.stats();
            let named = |e| PblkError::from_recovery(e, addresses);
            return Ok((recovery.finish().map_err(named)?, stats));
        }
        scan.run(jobs, &mut recovery)?;
    }
}

impl<'a> RecoveryRunner<'a> {
    fn new(
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        progress: &'a mut dyn FnMut(),
    ) -> Result<RecoveryRunner<'a>, PblkError> {
        let lanes = JOBS_MAX.min(queue.queue().capacity().into());
        let (sector_bytes, oob_bytes) =
            (addresses.shape().sector_bytes as usize, addresses.oob_bytes() as usize);
        let port = queue.port().clone();
        let space = port.memory();
        let (data, data_at) =
            register(space, lanes * JOB_SECTORS_MAX * sector_bytes, "the recovery")?;
        let what = "the recovery's out-of-band bytes";
        let (oob, oob_at) = register(space, (lanes + 1) * JOB_SECTORS_MAX * oob_bytes, what)?;
        let padding = lanes * JOB_SECTORS_MAX * oob_bytes;
        for i in 0..JOB_SECTORS_MAX {
            oob.write(padding + i * oob_bytes, &RecoveryOp::PADDING.encode());
        }
        Ok(RecoveryRunner {
            slots: (0..lanes).map(|_| None).collect(),
            padding_at: oob_at.offset(padding as u64),
            queue,
            addresses,
            progress,
            data,
            data_at,
            oob,
            oob_at,
            sector_bytes,
            oob_bytes,
        })
    }

    /// Executes a batch of operations, in order on each parallel unit.
    fn run(&mut self, jobs: Vec<RecoveryOp>, recovery: &mut Recovery) -> Result<(), PblkError> {
        let mut jobs = jobs.into_iter();
        let mut in_vain = 0;
        loop {
            self.submit_all(&mut jobs);
            self.queue.ring(true);
            while let Some(done) = self.queue.reap() {
                in_vain = 0;
                self.on_command_complete(&done, recovery)?;
            }
            self.queue.ring(true);
            if self.slots.iter().all(Option::is_none) && jobs.len() == 0 {
                return Ok(());
            }
            if in_vain == POLL_LIMIT {
                let outstanding = self.queue.outstanding();
                return Err(PblkError::Timeout { outstanding, polls: in_vain });
            }
            in_vain += 1;
            (self.progress)();
        }
    }

    fn submit_all(&mut self, jobs: &mut std::vec::IntoIter<RecoveryOp>) {
        for at in 0..self.slots.len() {
            if self.slots[at].is_none()
                && let Some(job) = jobs.next()
            {
                self.stage_data(at, &job);
                let status = Status::SUCCESS;
                let lane = JobSlot {
                    job,
                    sectors_unsubmitted: 0,
                    sectors_outstanding: 0,
                    failed: 0,
                    status,
                };
                self.slots[at] = Some(lane);
            }
            if self.submit(at).is_err() {
                return;
            }
        }
    }

    /// Copies the data that an operation programs to the memory of its slot.
    fn stage_data(&self, lane: usize, job: &RecoveryOp) {
        if let RecoveryOpKind::Pad { bytes, .. } = &job.action {
            let (at, len) =
                (lane * JOB_SECTORS_MAX * self.sector_bytes, JOB_SECTORS_MAX * self.sector_bytes);
            self.data.write(at, &bytes[..bytes.len().min(len)]);
            self.data.fill(at + bytes.len().min(len), len - bytes.len().min(len), 0);
        }
    }

    /// Submits the remaining sectors of a slot's operation, in several commands if the drive's
    /// maximum transfer is smaller.
    fn submit(&mut self, at: usize) -> Result<(), QueueFull> {
        let most = self.queue.max_sectors();
        let Some(lane) = &mut self.slots[at] else { return Ok(()) };
        while lane.sectors_unsubmitted < lane.job.count {
            let (first, count) =
                (lane.sectors_unsubmitted, most.min(lane.job.count - lane.sectors_unsubmitted));
            let place = (at * JOB_SECTORS_MAX) as u64 + u64::from(first);
            let data =
                DataSegments::Contiguous(self.data_at.offset(place * self.sector_bytes as u64));
            let oob = self.oob_at.offset(place * self.oob_bytes as u64);
            let shape = self.addresses.shape();
            let phys = match &lane.job.action {
                RecoveryOpKind::Pad { chunk, sector, .. } => {
                    shape.first_sector_of(*chunk) + *sector
                }
                RecoveryOpKind::ReadOob { phys } | RecoveryOpKind::ReadData { phys } => *phys,
            };
            let ppas = (0..count as usize).map(|i| self.addresses.sector(phys + first + i as u32));
            let user = (at as u64) << 8 | u64::from(first);
            match &lane.job.action {
                RecoveryOpKind::Pad { .. } => {
                    self.queue.write(ppas, data, Some(self.padding_at), user)
                }
                RecoveryOpKind::ReadOob { .. } => {
                    self.queue.read(ppas, DataSegments::BitBucket, Some(oob), user)
                }
                RecoveryOpKind::ReadData { .. } => self.queue.read(ppas, data, None, user),
            }?;
            lane.sectors_unsubmitted += count;
            lane.sectors_outstanding += 1;
        }
        Ok(())
    }

    /// Handles the completion of a command.
    fn on_command_complete(
        &mut self,
        done: &VectorCompletion,
        recovery: &mut Recovery,
    ) -> Result<(), PblkError> {
        let (at, first) = ((done.user_data >> 8) as usize, done.user_data & 0xff);
        let Some(lane) = &mut self.slots[at] else { return Ok(()) };
        if !done.status.is_success() && !done.status.is_media_error() {
            let (command, phys) = match &lane.job.action {
                RecoveryOpKind::Pad { chunk, sector, .. } => {
                    ("Vector Chunk Write", self.addresses.shape().first_sector_of(*chunk) + *sector)
                }
                RecoveryOpKind::ReadOob { phys } | RecoveryOpKind::ReadData { phys } => {
                    ("Vector Chunk Read", *phys)
                }
            };
            let address = self.addresses.components(phys);
            return Err(PblkError::Command { command, address, status: done.status });
        }
        lane.failed |= done.failed << first;
        if !done.status.is_success() {
            lane.status = done.status;
        }
        lane.sectors_outstanding -= 1;
        if lane.sectors_outstanding > 0 || lane.sectors_unsubmitted < lane.job.count {
            return Ok(());
        }
        if let Some(lane) = self.slots[at].take() {
            self.report(at, &lane, recovery);
        }
        Ok(())
    }

    fn report(&self, at: usize, lane: &JobSlot, recovery: &mut Recovery) {
        let (count, failed) = (lane.job.count as usize, lane.failed);
        match &lane.job.action {
            RecoveryOpKind::Pad { .. } => {
                recovery.complete(lane.job.id, RecoveryOpResult::Padded(lane.status))
            }
            RecoveryOpKind::ReadOob { .. } => {
                let mut oob = [[0; Oob::BYTES]; JOB_SECTORS_MAX];
                for (i, bytes) in oob[..count].iter_mut().enumerate() {
                    self.oob.read((at * JOB_SECTORS_MAX + i) * self.oob_bytes, bytes);
                }
                recovery.complete(
                    lane.job.id,
                    RecoveryOpResult::Read { failed, oob: &oob[..count], data: &[] },
                );
            }
            RecoveryOpKind::ReadData { .. } => {
                let mut data = vec![0; count * self.sector_bytes];
                self.data.read(at * JOB_SECTORS_MAX * self.sector_bytes, &mut data);
                recovery.complete(
                    lane.job.id,
                    RecoveryOpResult::Read { failed, oob: &[], data: &data },
                );
            }
        }
    }
}
