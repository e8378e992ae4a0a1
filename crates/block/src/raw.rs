//! [`Raw`]: straight to a driver's queue pair.
//!
//! For a drive with the block personality: one request becomes one command, and nothing is kept in
//! between but a tag. This is the path that the multi-queue paper measures its block layers against
//! (SYSTOR'13 section 5: *raw*). A request that cannot be sent (range, length) is answered here
//! with the status that a drive would give; everything that was taken completes exactly once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use clock::{Component, Nanos, Waker};
use driver::{Completed, DriveInfo, QueuePair, Tag};
use nvme::{DsmRange, LbaStatusDescriptor, MAX_BLOCKS, SglDescriptor, Sqe, Status};
use ring::{AddressSpace, Iova, Port, Region, RegisterError};

use crate::{Busy, Completion, Device, Extent, Limits, Op, Payload, Request};

const _: () = assert!(Extent::BYTES == LbaStatusDescriptor::BYTES);

/// A block device that is one queue pair of a drive.
#[derive(Debug)]
pub struct Raw {
    queue: QueuePair,
    port: Arc<Port>,
    limits: Limits,
    nsid: u32,
    /// The range of a discard must stay in memory until the drive has read it: one
    /// [`DsmRange`] per tag.
    ranges: Arc<Region>,
    ranges_at: Iova,
    /// The completion that the last poll found, if it has not been reaped.
    found: Option<Completed>,
    /// Requests that were answered here and not reaped yet.
    refused: VecDeque<Completion>,
    /// Whether a request was refused since the last poll.
    refused_now: bool,
}

/// Why a drive cannot be a raw block device.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The drive's host must manage its flash.
    #[error("drive {serial} is open-channel: its flash needs a target such as pblk")]
    OpenChannel {
        /// The drive.
        serial: String,
    },
    /// No memory.
    #[error("memory for the ranges of discards: {0}")]
    Memory(#[source] io::Error),
    /// No registration left.
    #[error("registering memory for the ranges of discards: {0}")]
    Register(#[from] RegisterError),
}

impl Raw {
    /// The device at the other end of `queue`, on the drive that `info` describes and `port` leads
    /// to. The queue pair is the device's from now on; it must have nothing outstanding.
    ///
    /// # Errors
    /// [`RawError`].
    pub fn new(info: &DriveInfo, queue: QueuePair, port: Arc<Port>) -> Result<Raw, RawError> {
        if info.open_channel.is_some() {
            return Err(RawError::OpenChannel { serial: info.serial.clone() });
        }
        let tags = usize::from(queue.capacity());
        let ranges = Region::anonymous(tags * DsmRange::BYTES).map_err(RawError::Memory)?;
        let ranges_at = port.memory().register(&ranges)?;
        let limits = Limits {
            sector_bytes: info.sector_bytes,
            sectors: info.sectors,
            max_sectors: info.max_sectors,
            optimal_sectors: info.optimal_sectors,
            queue_depth: queue.capacity().into(),
            volatile_cache: info.volatile_cache,
        };
        Ok(Raw {
            nsid: info.nsid,
            refused: VecDeque::with_capacity(tags),
            queue,
            port,
            limits,
            ranges,
            ranges_at,
            found: None,
            refused_now: false,
        })
    }

    /// The queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        &self.queue
    }

    /// Gives the queue pair back, so that its controller can delete it. What is outstanding on it
    /// comes back from there; requests answered here and not reaped are returned.
    pub fn into_queue(self) -> (QueuePair, impl Iterator<Item = Completion>) {
        let found = self.found.map(completion);
        (self.queue, found.into_iter().chain(self.refused))
    }

    /// The command of a request, or the status that the request deserves.
    #[inline]
    fn command(&self, request: &Request, tag: Tag) -> Result<Sqe, Status> {
        let Request { op, lba, sectors, data, fua, .. } = *request;
        if op == Op::Flush {
            return Ok(Sqe::flush(self.nsid));
        }
        let past_end = u64::from(sectors) > self.limits.sectors
            || lba > self.limits.sectors - u64::from(sectors);
        if past_end || sectors == 0 {
            return Err(if past_end { Status::LBA_OUT_OF_RANGE } else { Status::INVALID_FIELD });
        }
        let mut sqe = match op {
            Op::Read => Sqe::read(self.nsid, lba, sectors.min(MAX_BLOCKS)),
            Op::Write => Sqe::write(self.nsid, lba, sectors.min(MAX_BLOCKS), fua),
            _ => return self.command_without_data(request, tag),
        };
        if sectors > self.limits.max_sectors {
            return Err(Status::INVALID_FIELD);
        }
        let Some(length) = sectors.checked_mul(self.limits.sector_bytes) else {
            return Err(Status::INVALID_FIELD);
        };
        sqe.set_sgl(match data {
            Payload::At(at) => SglDescriptor::DataBlock { address: at.0, length },
            Payload::BitBucket => SglDescriptor::BitBucket { length },
        });
        Ok(sqe)
    }

    /// Everything but reads, writes and flushes. The range has been checked.
    fn command_without_data(&self, request: &Request, tag: Tag) -> Result<Sqe, Status> {
        let Request { op, lba, sectors, data, fua, may_unmap, .. } = *request;
        match op {
            Op::WriteZeroes => {
                // The command's count has 16 bits, whatever the transfer limit.
                if sectors > MAX_BLOCKS {
                    return Err(Status::INVALID_FIELD);
                }
                let mut sqe = Sqe::write_zeroes(self.nsid, lba, sectors, may_unmap);
                if fua {
                    sqe.set_fua();
                }
                Ok(sqe)
            }
            Op::Discard => {
                let offset = usize::from(tag.0) * DsmRange::BYTES;
                self.ranges.write(offset, &DsmRange::new(lba, sectors).to_bytes());
                let mut sqe = Sqe::dataset_management(self.nsid, 1, true);
                let address = self.ranges_at.offset(offset as u64).0;
                sqe.set_sgl(SglDescriptor::DataBlock { address, length: DsmRange::BYTES as u32 });
                Ok(sqe)
            }
            Op::Extents => {
                let Payload::At(at) = data else {
                    return Err(Status::INVALID_FIELD);
                };
                let count = Request::extent_capacity();
                let mut sqe = Sqe::lba_status(self.nsid, lba, sectors, count as u32);
                let length = (count * LbaStatusDescriptor::BYTES) as u32;
                sqe.set_sgl(SglDescriptor::DataBlock { address: at.0, length });
                Ok(sqe)
            }
            Op::Read | Op::Write | Op::Flush => Err(Status::INTERNAL),
        }
    }
}

#[inline]
fn completion(done: Completed) -> Completion {
    // Only Extents has a result; it cannot be more than what fits.
    let result = done.result.min(Request::extent_capacity() as u64);
    Completion { tag: done.user, status: done.status, result }
}

impl Device for Raw {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, _now: Nanos, request: Request) -> Result<(), Busy> {
        let tag = self.queue.next_tag().ok_or(Busy)?;
        match self.command(&request, tag) {
            Ok(sqe) => self.queue.submit(sqe, request.tag).map(drop).map_err(|_| Busy),
            Err(status) => self.refuse(request.tag, status),
        }
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        if let Some(done) = self.found.take().or_else(|| self.queue.reap()) {
            return Some(completion(done));
        }
        self.refused.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        self.port.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(vector) = self.queue.vector() {
            self.port.set_vector(vector, waker);
        }
    }
}

impl Raw {
    #[cold]
    fn refuse(&mut self, tag: u64, status: Status) -> Result<(), Busy> {
        // As many as the queue has tags: memory stays bounded when nobody reaps.
        if self.refused.len() >= usize::from(self.queue.capacity()) {
            return Err(Busy);
        }
        self.refused.push_back(Completion { tag, status, result: 0 });
        self.refused_now = true;
        Ok(())
    }
}

impl Component for Raw {
    /// Rings the doorbell once for all requests since the last poll, and looks for a completion.
    /// Completions are reaped from the drive's queue directly, also those that arrive later.
    #[inline]
    fn poll(&mut self, _now: Nanos) -> bool {
        let mut moved = self.queue.ring() | std::mem::take(&mut self.refused_now);
        if self.found.is_none() {
            self.found = self.queue.reap();
            moved |= self.found.is_some();
        }
        moved
    }

    /// Never: only the drive, or who submits, can give this work.
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}
