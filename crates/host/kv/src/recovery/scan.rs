//! [`ScanRunner`]: executes the commands of the power-on scan concurrently: padding, tags, headers
//! [LightNVM17 §4.2.2].
//!
//! The scan itself can be interrupted by a power cut: it writes only filler and seals, at write
//! pointers.

use std::sync::Arc;

use mem::{Iova, SharedRegion};
use nvme::{ChunkId, MAX_VECTOR_ADDRESSES};

use crate::KvOpenError;
use crate::format::oob::SectorTag;
use ocssd::vector::{Addresses, DataSegments, VectorCompletion, VectorQueue, register};

/// Number of polls without a completion after which the drive counts as failed.
pub(crate) const POLL_LIMIT: u64 = 30_000_000;

/// Maximum number of jobs in flight.
const JOBS_MAX: u16 = 64;

/// The operation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanTask {
    /// Writes filler.
    Pad,
    /// Writes a seal, with the number of intact sectors.
    Seal(u32),
    /// Reads sector tags.
    ReadTags,
    /// Reads data.
    Read,
}

/// Consecutive sectors of one chunk: at most 64; for writes, one write unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanJob {
    pub(crate) task: ScanTask,
    pub(crate) chunk: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A job in flight.
#[derive(Clone, Copy, Debug)]
struct RunningJob {
    job: ScanJob,
    /// Number of sectors submitted, and of commands that have not completed.
    sectors_sent: u32,
    commands_outstanding: u32,
    failed: u64,
}

/// The memory of a completed job.
pub(crate) struct ScannedSectors<'a> {
    data: &'a SharedRegion,
    data_at: usize,
    tags: &'a SharedRegion,
    tags_at: usize,
    oob_bytes: usize,
    /// Bit mask of the failed sectors.
    pub(crate) failed: u64,
}

impl ScannedSectors<'_> {
    /// Returns the tag of the job's `i`-th sector; `None` if another target wrote it.
    pub(crate) fn tag(&self, i: u32) -> Option<SectorTag> {
        let mut bytes = [0; SectorTag::BYTES];
        self.tags.read(self.tags_at + i as usize * self.oob_bytes, &mut bytes);
        SectorTag::decode(&bytes)
    }

    /// Copies the job's data, starting at byte `at`.
    pub(crate) fn data(&self, at: usize, into: &mut [u8]) {
        self.data.read(self.data_at + at, into);
    }
}

/// Executes jobs on a drive.
pub(crate) struct ScanRunner<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    progress: &'a mut dyn FnMut(),
    data: Arc<SharedRegion>,
    data_at: Iova,
    tags: Arc<SharedRegion>,
    tags_at: Iova,
    jobs_max: u16,
    oob_bytes: usize,
}

impl<'a> ScanRunner<'a> {
    /// Creates a runner on `queue`, which has no outstanding commands.
    ///
    /// # Errors
    /// [`KvOpenError::Memory`].
    pub(crate) fn new(
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        progress: &'a mut dyn FnMut(),
    ) -> Result<ScanRunner<'a>, KvOpenError> {
        let oob_bytes = addresses.oob_bytes() as usize;
        let lanes = queue.queue().capacity().min(JOBS_MAX);
        let sectors = usize::from(lanes) * usize::from(MAX_VECTOR_ADDRESSES);
        let port = queue.port().clone();
        let sector_bytes = addresses.shape().sector_bytes as usize;
        let space = port.memory();
        let (data, data_at) = register(space, sectors * sector_bytes, "the recovery's data")?;
        let what = "the recovery's out-of-band bytes";
        let (labels, labels_at) = register(space, sectors * oob_bytes, what)?;
        Ok(ScanRunner {
            queue,
            addresses,
            progress,
            data,
            data_at,
            tags: labels,
            tags_at: labels_at,
            jobs_max: lanes,
            oob_bytes,
        })
    }

    /// Executes jobs concurrently, in order on each parallel unit. `ended` receives each job with
    /// its data and failed sectors.
    ///
    /// # Errors
    /// [`KvOpenError::Command`] if a command failed for another reason than the media;
    /// [`KvOpenError::Timeout`].
    pub(crate) fn run(
        &mut self,
        jobs: &mut dyn Iterator<Item = ScanJob>,
        ended: &mut dyn FnMut(&ScanJob, &ScannedSectors<'_>),
    ) -> Result<(), KvOpenError> {
        let mut running: Vec<Option<RunningJob>> = vec![None; self.jobs_max.into()];
        let mut free: Vec<u16> = (0..self.jobs_max).rev().collect();
        // The slot whose job is partly submitted. Jobs are submitted one after the other, so that
        // writes of a chunk stay in order.
        let mut sending: Option<u16> = None;
        let mut next = jobs.next();
        let mut in_vain = 0;
        loop {
            loop {
                if sending.is_none() {
                    let (Some(job), Some(lane)) = (next, free.last()) else { break };
                    sending = Some(*lane);
                    free.pop();
                    self.prepare(sending.unwrap_or(0), &job);
                    let fresh =
                        RunningJob { job, sectors_sent: 0, commands_outstanding: 0, failed: 0 };
                    running[usize::from(sending.unwrap_or(0))] = Some(fresh);
                    next = jobs.next();
                }
                let Some(lane) = sending else { break };
                let Some(r) = &mut running[usize::from(lane)] else { break };
                if !self.send(lane, r) {
                    break;
                }
                if r.sectors_sent == r.job.count {
                    sending = None;
                }
            }
            self.queue.ring(true);
            while let Some(done) = self.queue.reap() {
                in_vain = 0;
                let (lane, first) = (done.user_data as u16, (done.user_data >> 16) as u32);
                let Some(r) = &mut running[usize::from(lane)] else { continue };
                r.failed |= self.media_failures(&r.job, first, &done)?;
                r.commands_outstanding -= 1;
                if r.commands_outstanding > 0 || r.sectors_sent < r.job.count {
                    continue;
                }
                let per_lane = usize::from(lane) * usize::from(MAX_VECTOR_ADDRESSES);
                let seen = ScannedSectors {
                    data: &self.data,
                    data_at: per_lane * self.addresses.shape().sector_bytes as usize,
                    tags: &self.tags,
                    tags_at: per_lane * self.oob_bytes,
                    oob_bytes: self.oob_bytes,
                    failed: r.failed,
                };
                ended(&r.job, &seen);
                running[usize::from(lane)] = None;
                free.push(lane);
            }
            self.queue.ring(true);
            let outstanding = self.queue.outstanding();
            if next.is_none() && outstanding == 0 && sending.is_none() {
                return Ok(());
            }
            if in_vain == POLL_LIMIT {
                return Err(KvOpenError::Timeout { outstanding, polls: in_vain });
            }
            in_vain += 1;
            (self.progress)();
        }
    }

    /// Writes the data and tags of a job to its memory.
    fn prepare(&mut self, lane: u16, job: &ScanJob) {
        let label = match job.task {
            ScanTask::Pad => SectorTag::Filler,
            ScanTask::Seal(intact) => SectorTag::Seal { intact },
            ScanTask::ReadTags | ScanTask::Read => return,
        };
        let first = usize::from(lane) * usize::from(MAX_VECTOR_ADDRESSES);
        let size = self.addresses.shape().sector_bytes as usize;
        self.data.fill(first * size, job.count as usize * size, 0);
        for i in 0..job.count as usize {
            self.tags.write((first + i) * self.oob_bytes, &label.encode());
        }
    }

    /// Submits one command of a job. Returns whether the queue accepted it.
    fn send(&mut self, lane: u16, r: &mut RunningJob) -> bool {
        let ScanJob { task, chunk, first, count } = r.job;
        let n = (count - r.sectors_sent).min(self.queue.max_sectors());
        let phys = self.addresses.shape().first_sector_of(ChunkId(chunk)) + first + r.sectors_sent;
        let ppas = (0..n as usize).map(|i| self.addresses.sector(phys + i as u32));
        let place = u64::from(lane) * u64::from(MAX_VECTOR_ADDRESSES) + u64::from(r.sectors_sent);
        let size = u64::from(self.addresses.shape().sector_bytes);
        let data = DataSegments::Contiguous(self.data_at.offset(place * size));
        let labels = self.tags_at.offset(place * self.oob_bytes as u64);
        let user = u64::from(r.sectors_sent) << 16 | u64::from(lane);
        let sent = match task {
            ScanTask::Pad | ScanTask::Seal(_) => self.queue.write(ppas, data, Some(labels), user),
            ScanTask::ReadTags => {
                self.queue.read(ppas, DataSegments::BitBucket, Some(labels), user)
            }
            ScanTask::Read => self.queue.read(ppas, data, None, user),
        };
        if sent.is_err() {
            return false;
        }
        r.sectors_sent += n;
        r.commands_outstanding += 1;
        true
    }

    /// Returns the sectors of a job that failed with a media error.
    fn media_failures(
        &self,
        job: &ScanJob,
        first: u32,
        done: &VectorCompletion,
    ) -> Result<u64, KvOpenError> {
        if done.status.is_success() || done.status.is_media_error() {
            return Ok(done.failed << first);
        }
        let command = match job.task {
            ScanTask::Pad | ScanTask::Seal(_) => "Vector Chunk Write",
            ScanTask::ReadTags | ScanTask::Read => "Vector Chunk Read",
        };
        let phys = self.addresses.shape().first_sector_of(ChunkId(job.chunk)) + job.first;
        let address = self.addresses.components(phys);
        Err(KvOpenError::Command { command, address, status: done.status })
    }
}
