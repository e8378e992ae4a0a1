//! [`LargeValues`]: whole chunks of values on their way to flash, straight from the user's memory.
//!
//! A value fills as many chunks as it can, each written from one end to the other and named by the
//! value's first record, which is written after them. So a whole chunk is never moved: it is erased
//! once its value is gone (thesis section 6.4.3, *a key-value delete request is similar to a block
//! erase*). One whose program fails is written again, somewhere else, from the user's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use nvme::MAX_VECTOR_ADDRESSES;
use ring::{AddressSpace, Iova, SharedRegion};

use super::command_tag::KvCommandTag;
use super::config::Layout;
use super::oob::SectorTag;
use crate::vector::{Addresses, DataSegments, MemoryError, VectorQueue, register};

/// Commands of one chunk on the drive at most.
const COMMANDS_MAX: u32 = 4;

/// A whole chunk that is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWrite {
    pub(crate) request: u32,
    pub(crate) chunk_index: u32,
    pub(crate) chunk: u32,
    pub(crate) crc: u32,
    /// Where its data is.
    from: Iova,
    next: u32,
    outstanding: u32,
    failed: bool,
    queued: bool,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkWriteOutcome {
    Written,
    /// The chunk is to be retired, and the job needs another.
    Failed,
}

/// A fixed number of jobs.
#[derive(Debug)]
pub(crate) struct LargeValues {
    writes: Vec<Option<ChunkWrite>>,
    free: Vec<u32>,
    tags: Arc<SharedRegion>,
    tags_at: Iova,
    oob_bytes: usize,
    sending: VecDeque<u32>,
    /// Jobs whose chunk failed.
    pub(crate) failed_writes: VecDeque<u32>,
    sectors: u32,
}

impl LargeValues {
    /// Room for `layout.large_value_writes` jobs.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        layout: &Layout,
        oob_bytes: u32,
    ) -> Result<LargeValues, MemoryError> {
        let count = layout.large_value_writes;
        let bytes = count as usize * usize::from(MAX_VECTOR_ADDRESSES) * oob_bytes as usize;
        let (labels, labels_at) = register(space, bytes, "whole chunks' out-of-band bytes")?;
        Ok(LargeValues {
            writes: vec![None; count as usize],
            free: (0..count).rev().collect(),
            tags: labels,
            tags_at: labels_at,
            oob_bytes: oob_bytes as usize,
            sending: VecDeque::new(),
            failed_writes: VecDeque::new(),
            sectors: layout.chunk_bytes / layout.sector_bytes,
        })
    }

    pub(crate) fn has_capacity(&self) -> bool {
        !self.free.is_empty()
    }

    /// Begins to write a chunk.
    pub(crate) fn begin(
        &mut self,
        (request, part): (u32, u32),
        (chunk, seq): (u32, u64),
        (from, crc): (Iova, u32),
    ) {
        let Some(job) = self.free.pop() else { return };
        let label = SectorTag::LargeValue { chunk_index: part, seq }.encode();
        for i in 0..usize::from(MAX_VECTOR_ADDRESSES) {
            let at = (job as usize * usize::from(MAX_VECTOR_ADDRESSES) + i) * self.oob_bytes;
            self.tags.write(at, &label);
        }
        self.writes[job as usize] = Some(ChunkWrite {
            request,
            chunk_index: part,
            chunk,
            crc,
            from,
            next: 0,
            outstanding: 0,
            failed: false,
            queued: true,
        });
        self.sending.push_back(job);
    }

    /// Begins a job again on another chunk.
    pub(crate) fn restart(&mut self, job: u32, chunk: u32) {
        if let Some(j) = &mut self.writes[job as usize] {
            (j.chunk, j.next, j.outstanding) = (chunk, 0, 0);
            (j.failed, j.queued) = (false, true);
            self.sending.push_back(job);
        }
    }

    /// Sends what can be sent.
    pub(crate) fn send(&mut self, queue: &mut VectorQueue, addresses: &Addresses) {
        let shape = *addresses.shape();
        let most = queue.max_sectors() / shape.ws_opt * shape.ws_opt;
        while let Some(&job) = self.sending.front() {
            if let Some(j) = &mut self.writes[job as usize] {
                while j.next < self.sectors && j.outstanding < COMMANDS_MAX && !j.failed {
                    let count = most.min(self.sectors - j.next);
                    let psn = shape.first_sector_of(j.chunk) + j.next;
                    let ppas = (0..count as usize).map(|i| addresses.sector(psn + i as u32));
                    let offset = u64::from(j.next) * u64::from(shape.sector_bytes);
                    let data = DataSegments::Contiguous(j.from.offset(offset));
                    let stride = usize::from(MAX_VECTOR_ADDRESSES) * self.oob_bytes;
                    let oob = self.tags_at.offset((job as usize * stride) as u64);
                    let user = KvCommandTag::LargeValue { job, sector: j.next }.to_bits();
                    if queue.write(ppas, data, Some(oob), user).is_err() {
                        return;
                    }
                    j.next += count;
                    j.outstanding += 1;
                }
                j.queued = false;
            }
            self.sending.pop_front();
        }
    }

    /// A command has ended. Says how the job ended, if it did.
    pub(crate) fn on_command_complete(
        &mut self,
        job: u32,
        success: bool,
    ) -> Option<(ChunkWrite, ChunkWriteOutcome)> {
        let j = self.writes.get_mut(job as usize)?.as_mut()?;
        j.outstanding = j.outstanding.saturating_sub(1);
        j.failed |= !success;
        if j.failed {
            return (j.outstanding == 0).then_some((*j, ChunkWriteOutcome::Failed));
        }
        if j.next < self.sectors {
            if !j.queued {
                j.queued = true;
                self.sending.push_back(job);
            }
            return None;
        }
        (j.outstanding == 0).then_some((*j, ChunkWriteOutcome::Written))
    }

    /// Forgets a job.
    pub(crate) fn remove(&mut self, job: u32) -> Option<ChunkWrite> {
        let ended = self.writes[job as usize].take()?;
        self.free.push(job);
        Some(ended)
    }

    /// Whether no job has commands to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_empty()
    }
}
