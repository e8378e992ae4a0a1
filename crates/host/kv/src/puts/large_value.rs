//! [`LargeValues`]: writes whole chunks of values to flash, directly from the client's memory.
//!
//! A value fills as many chunks as it can. Each is written from start to end and referenced by the
//! value's first record, which is written afterwards. A whole chunk is never relocated; it is
//! erased once its value is superseded ([Thesis15 ch. 6 §4.4], *a key-value delete request is
//! similar to a block erase*). If a program fails, the chunk is rewritten to another one from the
//! client's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use collections::Slab;
use mem::{AddressSpace, Iova, SharedRegion};
use nvme::{ChunkId, MAX_VECTOR_ADDRESSES};

use crate::check::{KvPart, KvSubject, KvViolation, PartCheck};
use crate::config::KvLayout;
use crate::device::KvDevice;
use crate::format::command_tag::KvCommandTag;
use crate::format::oob::SectorTag;
use ocssd::vector::{DataSegments, MemoryError, register};

/// Maximum number of commands in flight per chunk.
const COMMANDS_MAX: u32 = 4;

/// A whole chunk that is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWrite {
    pub(crate) request: u32,
    pub(crate) chunk_index: u32,
    pub(crate) chunk: u32,
    pub(crate) crc: u32,
    /// Address of its data.
    from: Iova,
    next: u32,
    outstanding: u32,
    failed: bool,
    queued: bool,
}

/// A whole chunk to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWriteStart {
    pub(crate) request: u32,
    /// Index of the chunk in the value.
    pub(crate) chunk_index: u32,
    pub(crate) chunk: u32,
    /// Sequence number of the value.
    pub(crate) seq: u64,
    /// Address of the data in the client's memory, and its CRC-32C or 0.
    pub(crate) from: Iova,
    pub(crate) crc: u32,
}

/// The outcome of a chunk write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkWriteOutcome {
    Written,
    /// The chunk is to be retired, and the write needs another chunk.
    Failed,
}

/// A table of chunk writes with fixed capacity.
#[derive(Debug)]
pub(crate) struct LargeValues {
    writes: Slab<Option<ChunkWrite>>,
    tags: Arc<SharedRegion>,
    tags_at: Iova,
    oob_bytes: usize,
    sending: VecDeque<u32>,
    /// Writes whose chunk failed.
    failed_writes: VecDeque<u32>,
    sectors: u32,
}

impl LargeValues {
    /// Creates a table for `layout.concurrency.large_value_writes` writes.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        layout: &KvLayout,
        oob_bytes: u32,
    ) -> Result<LargeValues, MemoryError> {
        let count = layout.concurrency.large_value_writes;
        let bytes = count as usize * usize::from(MAX_VECTOR_ADDRESSES) * oob_bytes as usize;
        let (labels, labels_at) = register(space, bytes, "whole chunks' out-of-band bytes")?;
        Ok(LargeValues {
            writes: Slab::with_free(vec![None; count as usize]),
            tags: labels,
            tags_at: labels_at,
            oob_bytes: oob_bytes as usize,
            sending: VecDeque::new(),
            failed_writes: VecDeque::new(),
            sectors: layout.chunk_bytes / layout.sector_bytes,
        })
    }

    pub(crate) fn has_capacity(&self) -> bool {
        self.writes.has_free()
    }

    /// Starts to write a chunk.
    pub(crate) fn begin(&mut self, start: ChunkWriteStart) {
        let ChunkWriteStart { request, chunk_index: part, chunk, seq, from, crc } = start;
        let Some(job) = self.writes.take() else { return };
        let label = SectorTag::LargeValue { chunk_index: part, seq }.encode();
        for i in 0..usize::from(MAX_VECTOR_ADDRESSES) {
            let at = (job as usize * usize::from(MAX_VECTOR_ADDRESSES) + i) * self.oob_bytes;
            self.tags.write(at, &label);
        }
        self.writes[job] = Some(ChunkWrite {
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

    /// Returns whether a write needs another chunk.
    pub(crate) fn has_failed_write(&self) -> bool {
        !self.failed_writes.is_empty()
    }

    /// Restarts the first write that needs another chunk.
    pub(crate) fn restart_failed(&mut self, chunk: u32) {
        let Some(job) = self.failed_writes.pop_front() else { return };
        if let Some(j) = &mut self.writes[job] {
            (j.chunk, j.next, j.outstanding) = (chunk, 0, 0);
            (j.failed, j.queued) = (false, true);
            self.sending.push_back(job);
        }
    }

    /// Submits commands until the queue is full.
    pub(crate) fn send(&mut self, device: &mut KvDevice) {
        let KvDevice { queue, addresses, .. } = device;
        let shape = *addresses.shape();
        let most = queue.max_sectors() / shape.ws_opt * shape.ws_opt;
        while let Some(&job) = self.sending.front() {
            if let Some(j) = &mut self.writes[job] {
                while j.next < self.sectors && j.outstanding < COMMANDS_MAX && !j.failed {
                    let count = most.min(self.sectors - j.next);
                    let phys = shape.first_sector_of(ChunkId(j.chunk)) + j.next;
                    let ppas = (0..count as usize).map(|i| addresses.sector(phys + i as u32));
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

    /// Handles the completion of a command. Returns the outcome of the write, if this was its last
    /// command.
    pub(crate) fn on_command_complete(
        &mut self,
        job: u32,
        success: bool,
    ) -> Option<(ChunkWrite, ChunkWriteOutcome)> {
        let j = self.writes.get_mut(job)?.as_mut()?;
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

    /// Queues a write whose chunk failed until it gets another chunk.
    pub(crate) fn add_failed(&mut self, job: u32) {
        self.failed_writes.push_back(job);
    }

    /// Removes a write.
    pub(crate) fn remove(&mut self, job: u32) -> Option<ChunkWrite> {
        let ended = self.writes.remove(job)?;
        Some(ended)
    }

    /// Removes the writes that need another chunk. Returns their requests.
    pub(crate) fn take_failed_requests(&mut self) -> Vec<u32> {
        let failed = std::mem::take(&mut self.failed_writes);
        failed.into_iter().filter_map(|job| Some(self.remove(job)?.request)).collect()
    }

    /// Returns the requests of all writes.
    pub(crate) fn requests(&self) -> impl Iterator<Item = u32> {
        self.writes.iter().flatten().map(|w| w.request)
    }

    /// Compares the queues with the writes; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Puts);
        for (job, write) in (0..).zip(&self.writes) {
            let subject = || KvSubject::Operation(job);
            let is_free = self.writes.is_free(job);
            check.equal("a write is free or in use", subject(), write.is_none(), is_free)?;
            let Some(w) = write else { continue };
            let is_sending = self.sending.contains(&job);
            let is_listed = is_sending || !w.queued;
            check.equal("a queued write is listed", subject(), true, is_listed)?;
            let is_over = w.failed && w.outstanding == 0;
            let is_waiting = self.failed_writes.contains(&job);
            check.equal("a failed write waits for a chunk", subject(), is_over, is_waiting)?;
            check.require(
                w.next <= self.sectors && w.outstanding <= COMMANDS_MAX,
                "sectors and commands of a write are limited",
                subject(),
                format_args!("at most {} and {COMMANDS_MAX}", self.sectors),
                w,
            )?;
        }
        Ok(())
    }

    /// Returns whether no write has commands to submit.
    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_empty()
    }
}
