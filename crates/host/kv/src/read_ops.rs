//! [`ReadOps`]: reads sectors into memory, from flash or from buffered units.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mem::{AddressSpace, Iova, SharedRegion};
use nvme::{ChunkId, FlashGeometry, Status};

use super::buffer::streams::AppendStreams;
use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::chunks::{KvChunkRole, KvChunks};
use super::config::KvLayout;
use super::device::KvDevice;
use super::format::command_tag::KvCommandTag;
use ocssd::vector::{Addresses, DataSegments, MemoryError, VectorQueue, register};

/// Maximum number of commands in flight per read operation; its sectors are on one parallel unit.
const COMMANDS_MAX: u32 = 8;

/// The owner of a read operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOwner {
    None,
    /// A record of a value that is being read.
    Record {
        request: u32,
        index: u32,
    },
    /// A whole chunk of a value, read directly to the value's destination.
    LargeValueChunk {
        request: u32,
        index: u32,
        to: Iova,
    },
    /// A compactor.
    Compactor {
        compactor: u32,
    },
}

/// The buffer class of a read operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadClass {
    /// A buffer for small records.
    Small = 0,
    /// A buffer for any record.
    Any = 1,
    /// No buffer: read directly into the client's memory.
    Direct = 2,
}

#[derive(Debug)]
pub(crate) struct ReadOp {
    pub(crate) owner: ReadOwner,
    chunk: u32,
    pub(crate) first: u32,
    next: u32,
    end: u32,
    outstanding: u32,
    queued: bool,
    /// Status of a failed sector.
    pub(crate) failed: Option<Status>,
    /// Bit mask of the failed sectors.
    failed_sectors: Box<[u64]>,
    /// Offset of its buffer in the memory.
    pub(crate) offset: usize,
    class: Option<ReadClass>,
}

impl ReadOp {
    /// Returns whether any of the sectors `from` up to `to` failed.
    pub(crate) fn has_failed(&self, from: u32, to: u32) -> bool {
        self.failed.is_some()
            && (from..to).any(|sector| {
                let i = (sector - self.first) as usize;
                self.failed_sectors.get(i / 64).is_some_and(|word| word >> (i % 64) & 1 != 0)
            })
    }
}

/// The destination of a command.
#[derive(Clone, Copy, Debug)]
struct ReadTarget {
    /// Address of the memory of all buffers.
    buffers: Iova,
    /// Offset from the operation's first sector in bytes.
    offset: usize,
}

/// A fixed number of read operations with their buffers.
#[derive(Debug)]
pub(crate) struct ReadOps {
    ops: Vec<ReadOp>,
    free: [Vec<u32>; 3],
    buffers: Arc<SharedRegion>,
    at: Iova,
    sending: VecDeque<u32>,
    /// Operations with all their sectors read.
    completed: VecDeque<u32>,
    /// Values with records or chunks to read: those of one small record, and others.
    values: [VecDeque<u32>; 2],
    /// Index of the first compactor's operation.
    first_compaction_read: u32,
}

impl ReadOps {
    /// Creates `counts` operations with small buffers, with buffers for any record, and without
    /// buffers; and one per compactor.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        layout: &KvLayout,
        counts: [u32; 3],
    ) -> Result<ReadOps, MemoryError> {
        let [small, any, window] = layout.read_buffer_sectors();
        let sizes = [
            (small, counts[0]),
            (any, counts[1]),
            (0, counts[2]),
            (window, layout.concurrency.compactors),
        ];
        let sectors: u64 =
            sizes.iter().map(|(size, count)| u64::from(*size) * u64::from(*count)).sum();
        let bytes = sectors as usize * layout.sector_bytes as usize;
        let (lanes, at) = register(space, bytes, "memory for reads")?;
        let mut fetches = ReadOps {
            ops: Vec::new(),
            free: [Vec::new(), Vec::new(), Vec::new()],
            buffers: lanes,
            at,
            sending: VecDeque::new(),
            completed: VecDeque::new(),
            values: [VecDeque::new(), VecDeque::new()],
            first_compaction_read: counts.iter().sum(),
        };
        let mut offset = 0;
        for (class, (size, count)) in sizes.into_iter().enumerate() {
            for _ in 0..count {
                let lane =
                    [ReadClass::Small, ReadClass::Any, ReadClass::Direct].get(class).copied();
                if let Some(lane) = lane {
                    fetches.free[lane as usize].push(fetches.ops.len() as u32);
                }
                fetches.ops.push(ReadOp {
                    owner: ReadOwner::None,
                    chunk: 0,
                    first: 0,
                    next: 0,
                    end: 0,
                    outstanding: 0,
                    queued: false,
                    failed: None,
                    failed_sectors: vec![0; size.div_ceil(64) as usize].into(),
                    offset,
                    class: lane,
                });
                offset += size as usize * layout.sector_bytes as usize;
            }
        }
        Ok(fetches)
    }

    /// Queues a value to be read.
    pub(crate) fn queue_value(&mut self, place: u32, is_small: bool) {
        self.values[usize::from(!is_small)].push_back(place);
    }

    /// Returns the next value to read, of one small record or of any length.
    #[inline]
    pub(crate) fn front_value(&self, is_small: bool) -> Option<u32> {
        self.values[usize::from(!is_small)].front().copied()
    }

    /// Removes the next value: all its reads are started.
    pub(crate) fn pop_value(&mut self, is_small: bool) {
        self.values[usize::from(!is_small)].pop_front();
    }

    /// Removes and returns an operation with all its sectors read.
    #[inline]
    pub(crate) fn pop_completed(&mut self) -> Option<u32> {
        self.completed.pop_front()
    }

    /// Returns whether an operation of this class is free.
    pub(crate) fn has_free(&self, lane: ReadClass) -> bool {
        !self.free[lane as usize].is_empty()
    }

    /// Starts to read sectors of a chunk. Returns whether an operation was free.
    pub(crate) fn begin(
        &mut self,
        lane: ReadClass,
        owner: ReadOwner,
        chunk: u32,
        sectors: Range<u32>,
    ) -> bool {
        let Some(fetch) = self.free[lane as usize].pop() else { return false };
        self.start(fetch, owner, chunk, sectors);
        true
    }

    /// Starts a read of a compactor, which has its own operation.
    pub(crate) fn begin_compaction_read(
        &mut self,
        compactor: u32,
        chunk: u32,
        sectors: Range<u32>,
    ) {
        self.start(
            self.first_compaction_read + compactor,
            ReadOwner::Compactor { compactor },
            chunk,
            sectors,
        );
    }

    fn start(&mut self, fetch: u32, owner: ReadOwner, chunk: u32, sectors: Range<u32>) {
        let f = &mut self.ops[fetch as usize];
        let Range { start: first, end } = sectors;
        (f.owner, f.chunk, f.first, f.next, f.end) = (owner, chunk, first, first, end);
        (f.outstanding, f.failed, f.queued) = (0, None, true);
        f.failed_sectors.fill(0);
        self.sending.push_back(fetch);
    }

    pub(crate) fn get(&self, fetch: u32) -> &ReadOp {
        &self.ops[fetch as usize]
    }

    /// Returns the read operation of a compactor.
    pub(crate) fn compaction_read(&self, compactor: u32) -> &ReadOp {
        &self.ops[(self.first_compaction_read + compactor) as usize]
    }

    /// Returns the memory of all buffers.
    pub(crate) fn memory(&self) -> &Arc<SharedRegion> {
        &self.buffers
    }

    /// Frees an operation.
    pub(crate) fn release(&mut self, fetch: u32) {
        let f = &mut self.ops[fetch as usize];
        f.owner = ReadOwner::None;
        if let Some(lane) = f.class {
            self.free[lane as usize].push(fetch);
        }
    }

    /// Submits commands until the queue is full, and copies buffered sectors.
    pub(crate) fn send(
        &mut self,
        device: &mut KvDevice,
        chunks: &KvChunks,
        streams: &AppendStreams,
    ) {
        let KvDevice { queue, addresses, .. } = device;
        let shape = *addresses.shape();
        while let Some(&fetch) = self.sending.front() {
            let f = &mut self.ops[fetch as usize];
            let chunk = f.chunk;
            let may_be_here =
                matches!(chunks.get(chunk).role(), KvChunkRole::Open | KvChunkRole::Failing);
            while f.next < f.end && f.outstanding < COMMANDS_MAX {
                let here = |sector: u32| match may_be_here {
                    true => streams.buffered_unit(chunk, sector / shape.ws_opt),
                    false => None,
                };
                let to = (f.next - f.first) as usize * shape.sector_bytes as usize;
                let unit_end = (f.next / shape.ws_opt + 1) * shape.ws_opt;
                if let Some((region, at)) = here(f.next) {
                    let n = f.end.min(unit_end) - f.next;
                    let at = at + (f.next % shape.ws_opt * shape.sector_bytes) as usize;
                    let bytes = (n * shape.sector_bytes) as usize;
                    SharedRegion::copy(region, at, &self.buffers, f.offset + to, bytes);
                    f.next += n;
                    continue;
                }
                let mut end = f.end.min(f.next + queue.max_sectors());
                if may_be_here {
                    let mut unit = unit_end;
                    while unit < end && here(unit).is_none() {
                        unit += shape.ws_opt;
                    }
                    end = end.min(unit);
                }
                let to = ReadTarget { buffers: self.at, offset: to };
                if !f.submit_read(fetch, end, to, queue, addresses) {
                    return;
                }
            }
            f.queued = false;
            if f.next == f.end && f.outstanding == 0 {
                self.completed.push_back(fetch);
            }
            self.sending.pop_front();
        }
    }

    /// Handles the completion of a command.
    pub(crate) fn on_command_complete(
        &mut self,
        fetch: u32,
        sector: u32,
        failed: u64,
        status: Status,
    ) {
        let Some(f) = self.ops.get_mut(fetch as usize) else { return };
        f.outstanding = f.outstanding.saturating_sub(1);
        if failed != 0 {
            f.failed = Some(status);
            for i in (0..64).filter(|i| failed >> i & 1 != 0) {
                let at = (sector - f.first + i) as usize;
                if let Some(word) = f.failed_sectors.get_mut(at / 64) {
                    *word |= 1 << (at % 64);
                }
            }
        }
        if f.next < f.end {
            if !f.queued {
                f.queued = true;
                self.sending.push_back(fetch);
            }
        } else if f.outstanding == 0 {
            self.completed.push_back(fetch);
        }
    }

    /// Returns whether nothing is to be submitted or handled.
    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.completed.is_empty()
    }

    /// Compares the lists with the operations; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Reads);
        for (i, op) in (0..).zip(&self.ops) {
            let subject = || KvSubject::Operation(i);
            if let Some(class) = op.class {
                let is_free = self.free[class as usize].contains(&i);
                let has_owner = op.owner != ReadOwner::None;
                check.equal(
                    "an operation is free or has an owner",
                    subject(),
                    !has_owner,
                    is_free,
                )?;
            }
            let is_listed = self.sending.contains(&i);
            check.equal("a queued operation is listed", subject(), op.queued, is_listed)?;
            check.require(
                op.first <= op.next && op.next <= op.end && op.outstanding <= COMMANDS_MAX,
                "sectors and commands of an operation are limited",
                subject(),
                format_args!("ascending sectors, at most {COMMANDS_MAX} commands"),
                op,
            )?;
        }
        Ok(())
    }

    /// Returns the values that are queued.
    pub(crate) fn queued_values(&self) -> impl Iterator<Item = u32> {
        self.values.iter().flatten().copied()
    }

    /// Frees an operation that is in use.
    #[cfg(test)]
    pub(crate) fn break_free_list(&mut self) {
        let used = self.ops.iter().position(|op| op.owner != ReadOwner::None);
        let used = used.expect("an operation in use");
        let class = self.ops[used].class.expect("an operation of a class");
        self.free[class as usize].push(used as u32);
    }
}

impl ReadOp {
    /// Submits one command for the sectors up to `end`. Returns whether the queue accepted it.
    fn submit_read(
        &mut self,
        fetch: u32,
        end: u32,
        to: ReadTarget,
        queue: &mut VectorQueue,
        addresses: &Addresses,
    ) -> bool {
        let shape: &FlashGeometry = addresses.shape();
        let phys = shape.first_sector_of(ChunkId(self.chunk)) + self.next;
        let ppas = (0..(end - self.next) as usize).map(|i| addresses.sector(phys + i as u32));
        let at = match self.owner {
            ReadOwner::LargeValueChunk { to: user, .. } => user.offset(to.offset as u64),
            _ => to.buffers.offset((self.offset + to.offset) as u64),
        };
        let user = KvCommandTag::Read { fetch, sector: self.next }.to_bits();
        if queue.read(ppas, DataSegments::Contiguous(at), None, user).is_err() {
            return false;
        }
        self.next = end;
        self.outstanding += 1;
        true
    }
}
