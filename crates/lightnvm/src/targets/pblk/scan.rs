//! [`recover`]: carries out what a recovery wants (LightNVM paper section 4.2.2), through the queue
//! that the target will have.

use std::sync::Arc;

use driver::QueueFull;
use ftl::{Ftl, Job, JobDone, Oob, Recovery, Work};
use nvme::{MAX_VECTOR, Status};
use ring::{Iova, Region};

use super::PblkError;
use crate::vector::{Addresses, Sectors, VectorEnded, VectorQueue, register};

/// Calls of the pump without any answer after which a drive counts as dead.
const PATIENCE: u64 = 30_000_000;

/// Jobs under way at most.
const LANES: usize = 64;

/// Sectors of a job at most.
const SECTORS: usize = MAX_VECTOR as usize;

/// A lane's job, and what its commands have said so far.
#[derive(Debug)]
struct Lane {
    job: Job,
    /// Sectors whose command was not submitted yet, and those whose command has not ended.
    submitted: u32,
    outstanding: u32,
    failed: u64,
    status: Status,
}

/// Carries out jobs, one per lane.
struct Scan<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    pump: &'a mut dyn FnMut(),
    lanes: Vec<Option<Lane>>,
    data: Arc<Region>,
    data_at: Iova,
    oob: Arc<Region>,
    oob_at: Iova,
    /// Out-of-band bytes of padding, as many sectors of them as a job has.
    padding_at: Iova,
    sector_bytes: usize,
    oob_bytes: usize,
}

/// Runs a recovery to its end.
///
/// # Errors
/// [`PblkError::Recovery`], [`PblkError::Memory`], [`PblkError::Command`], [`PblkError::Timeout`]. A
/// sector that cannot be read, or a program that fails, is no error.
pub(crate) fn recover(
    mut recovery: Recovery,
    queue: &mut VectorQueue,
    addresses: &Addresses,
    pump: &mut dyn FnMut(),
) -> Result<(Ftl, ftl::RecoveryStats), PblkError> {
    let mut scan = Scan::new(queue, addresses, pump)?;
    loop {
        let jobs = recovery.jobs();
        if jobs.is_empty() {
            let stats = recovery.stats();
            let named = |e| PblkError::of_recovery(e, addresses);
            return Ok((recovery.finish().map_err(named)?, stats));
        }
        scan.run(jobs, &mut recovery)?;
    }
}

impl<'a> Scan<'a> {
    fn new(
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        pump: &'a mut dyn FnMut(),
    ) -> Result<Scan<'a>, PblkError> {
        let lanes = LANES.min(queue.queue().capacity().into());
        let (sector_bytes, oob_bytes) =
            (addresses.shape().sector_bytes as usize, addresses.oob_bytes() as usize);
        let port = queue.port().clone();
        let space = port.memory();
        let (data, data_at) = register(space, lanes * SECTORS * sector_bytes, "the recovery")?;
        let what = "the recovery's out-of-band bytes";
        let (oob, oob_at) = register(space, (lanes + 1) * SECTORS * oob_bytes, what)?;
        let padding = lanes * SECTORS * oob_bytes;
        for i in 0..SECTORS {
            oob.write(padding + i * oob_bytes, &Job::PADDING.encode());
        }
        Ok(Scan {
            lanes: (0..lanes).map(|_| None).collect(),
            padding_at: oob_at.offset(padding as u64),
            queue,
            addresses,
            pump,
            data,
            data_at,
            oob,
            oob_at,
            sector_bytes,
            oob_bytes,
        })
    }

    /// Carries out a batch of jobs, in order on each parallel unit.
    fn run(&mut self, jobs: Vec<Job>, recovery: &mut Recovery) -> Result<(), PblkError> {
        let mut jobs = jobs.into_iter();
        let mut in_vain = 0;
        loop {
            self.submit_all(&mut jobs);
            self.queue.ring(true);
            while let Some(done) = self.queue.reap() {
                in_vain = 0;
                self.ended(&done, recovery)?;
            }
            self.queue.ring(true);
            if self.lanes.iter().all(Option::is_none) && jobs.len() == 0 {
                return Ok(());
            }
            if in_vain == PATIENCE {
                let outstanding = self.queue.outstanding();
                return Err(PblkError::Timeout { outstanding, polls: in_vain });
            }
            in_vain += 1;
            (self.pump)();
        }
    }

    fn submit_all(&mut self, jobs: &mut std::vec::IntoIter<Job>) {
        for at in 0..self.lanes.len() {
            if self.lanes[at].is_none()
                && let Some(job) = jobs.next()
            {
                self.write_data(at, &job);
                let status = Status::SUCCESS;
                let lane = Lane { job, submitted: 0, outstanding: 0, failed: 0, status };
                self.lanes[at] = Some(lane);
            }
            if self.submit(at).is_err() {
                return;
            }
        }
    }

    /// Puts what a job programs into its lane.
    fn write_data(&self, lane: usize, job: &Job) {
        if let Work::Pad { bytes, .. } = &job.what {
            let (at, len) = (lane * SECTORS * self.sector_bytes, SECTORS * self.sector_bytes);
            self.data.write(at, &bytes[..bytes.len().min(len)]);
            self.data.fill(at + bytes.len().min(len), len - bytes.len().min(len), 0);
        }
    }

    /// Submits what is left of a lane's job: several commands, if the drive takes short ones only.
    fn submit(&mut self, at: usize) -> Result<(), QueueFull> {
        let most = self.queue.max_sectors();
        let Some(lane) = &mut self.lanes[at] else { return Ok(()) };
        while lane.submitted < lane.job.count {
            let (first, count) = (lane.submitted, most.min(lane.job.count - lane.submitted));
            let place = (at * SECTORS) as u64 + u64::from(first);
            let data = Sectors::Run(self.data_at.offset(place * self.sector_bytes as u64));
            let oob = self.oob_at.offset(place * self.oob_bytes as u64);
            let shape = self.addresses.shape();
            let psn = match &lane.job.what {
                Work::Pad { chunk, sector, .. } => shape.first_psn(*chunk) + sector,
                Work::ReadOob { psn } | Work::ReadData { psn } => *psn,
            };
            let ppas = (0..count as usize).map(|i| self.addresses.sector(psn + first + i as u32));
            let user = (at as u64) << 8 | u64::from(first);
            match &lane.job.what {
                Work::Pad { .. } => self.queue.write(ppas, data, Some(self.padding_at), user),
                Work::ReadOob { .. } => self.queue.read(ppas, Sectors::Nowhere, Some(oob), user),
                Work::ReadData { .. } => self.queue.read(ppas, data, None, user),
            }?;
            lane.submitted += count;
            lane.outstanding += 1;
        }
        Ok(())
    }

    /// A command has ended.
    fn ended(&mut self, done: &VectorEnded, recovery: &mut Recovery) -> Result<(), PblkError> {
        let (at, first) = ((done.user >> 8) as usize, done.user & 0xff);
        let Some(lane) = &mut self.lanes[at] else { return Ok(()) };
        if !done.status.is_success() && !done.status.is_media_error() {
            let (command, psn) = match &lane.job.what {
                Work::Pad { chunk, sector, .. } => {
                    ("Vector Chunk Write", self.addresses.shape().first_psn(*chunk) + sector)
                }
                Work::ReadOob { psn } | Work::ReadData { psn } => ("Vector Chunk Read", *psn),
            };
            let address = self.addresses.components(psn);
            return Err(PblkError::Command { command, address, status: done.status });
        }
        lane.failed |= done.failed << first;
        if !done.status.is_success() {
            lane.status = done.status;
        }
        lane.outstanding -= 1;
        if lane.outstanding > 0 || lane.submitted < lane.job.count {
            return Ok(());
        }
        if let Some(lane) = self.lanes[at].take() {
            self.report(at, &lane, recovery);
        }
        Ok(())
    }

    fn report(&self, at: usize, lane: &Lane, recovery: &mut Recovery) {
        let (count, failed) = (lane.job.count as usize, lane.failed);
        match &lane.job.what {
            Work::Pad { .. } => recovery.done(lane.job.id, JobDone::Padded(lane.status)),
            Work::ReadOob { .. } => {
                let mut oob = [[0; Oob::BYTES]; SECTORS];
                for (i, bytes) in oob[..count].iter_mut().enumerate() {
                    self.oob.read((at * SECTORS + i) * self.oob_bytes, bytes);
                }
                recovery.done(lane.job.id, JobDone::Read { failed, oob: &oob[..count], data: &[] });
            }
            Work::ReadData { .. } => {
                let mut data = vec![0; count * self.sector_bytes];
                self.data.read(at * SECTORS * self.sector_bytes, &mut data);
                recovery.done(lane.job.id, JobDone::Read { failed, oob: &[], data: &data });
            }
        }
    }
}
