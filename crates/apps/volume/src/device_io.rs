//! [`DeviceTransfers`]: transfers in flight on the device. A transfer is split by the device's longest request,
//! and completes when all its parts have; if the device is full, the remaining parts are retried.

use std::collections::VecDeque;

use block::{AtomicLimits, BlockDevice, Completion, Limits, Op, Payload, Request};
use collections::Slab;
use mem::Iova;
use nvme::Status;
use time::Nanos;

use crate::BLOCK;
use crate::invariants::{VolumeViolation, require_eq};
use crate::on_media::layout::BlockRun;

/// Maximum sectors of a request without data.
const DATALESS_SECTORS_MAX: u32 = 1 << 20;

/// Contiguous sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectorRun {
    pub(crate) lba: u64,
    /// Number of sectors.
    pub(crate) sectors: u64,
}

#[derive(Debug)]
struct DeviceTransfer<W> {
    purpose: W,
    remaining: u32,
    status: Status,
}

/// The aligned writes that the device keeps whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AtomicWriteUnit {
    /// Blocks of the longest one, a power of two; 0 if there are none.
    pub(crate) blocks: u32,
    /// The device's limits.
    limits: AtomicLimits,
}

impl AtomicWriteUnit {
    /// Creates a unit that the device keeps whole.
    pub(crate) fn new(blocks: u32, limits: &Limits) -> AtomicWriteUnit {
        AtomicWriteUnit { blocks, limits: limits.atomic }
    }

    /// Returns the length of the first request of a write of `sectors` from `lba` on, so that each
    /// request has whole units and is atomic.
    fn first_request(&self, lba: u64, sectors: u64, unit_sectors: u64, max_sectors: u64) -> u64 {
        let AtomicLimits { sectors: atomic, boundary_sectors } = self.limits;
        let boundary = match u64::from(boundary_sectors) {
            0 => u64::MAX,
            boundary => (lba / boundary + 1) * boundary,
        };
        let longest = u64::from(atomic).min(max_sectors);
        let end = (lba + longest).min(boundary) / unit_sectors * unit_sectors;
        sectors.min(end - lba)
    }
}

/// Transfers in flight, each with a purpose (`W`).
#[derive(Debug)]
pub(crate) struct DeviceTransfers<W> {
    transfers: Slab<Option<DeviceTransfer<W>>>,
    send_queue: VecDeque<Request>,
    block_sectors: u32,
    sector_bytes: u32,
    max_sectors: u32,
    atomic: AtomicWriteUnit,
    /// Requests submitted and not completed.
    in_flight: u32,
    /// Bytes of the writes submitted.
    bytes_written: u64,
}

impl<W> DeviceTransfers<W> {
    pub(crate) fn new(limits: &Limits) -> DeviceTransfers<W> {
        DeviceTransfers {
            transfers: Slab::new(),
            send_queue: VecDeque::new(),
            block_sectors: BLOCK as u32 / limits.sector_bytes,
            sector_bytes: limits.sector_bytes,
            max_sectors: limits.max_sectors.max(1),
            atomic: AtomicWriteUnit::default(),
            in_flight: 0,
            bytes_written: 0,
        }
    }

    /// Returns the bytes of the writes that were submitted to the device.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Sets the aligned writes that [`submit_data`](DeviceTransfers::submit_data) keeps whole.
    pub(crate) fn set_atomic(&mut self, atomic: AtomicWriteUnit) {
        self.atomic = atomic;
    }

    /// Returns the blocks of the longest aligned write that the device keeps whole; 0 for none.
    pub(crate) fn atomic_blocks(&self) -> u32 {
        self.atomic.blocks
    }

    /// Writes blocks of a file. Every aligned unit of [`atomic_blocks`](Self::atomic_blocks), or
    /// part of one at either end, is in one request, which is atomic.
    pub(crate) fn submit_data(&mut self, what: W, blocks: BlockRun, at: Iova, fua: bool) {
        if self.atomic.blocks == 0 {
            return self.submit_blocks(what, Op::Write, blocks, at, fua);
        }
        let block_sectors = u64::from(self.block_sectors);
        let unit_sectors = u64::from(self.atomic.blocks) * block_sectors;
        let tag = self.insert(what, 0);
        let mut lba = u64::from(blocks.first_block) * block_sectors;
        let end = lba + u64::from(blocks.blocks) * block_sectors;
        let (mut at, mut count) = (at, 0);
        while lba < end {
            let max = u64::from(self.max_sectors);
            let sectors = self.atomic.first_request(lba, end - lba, unit_sectors, max);
            let request = Request::atomic_write(lba, sectors as u32, Payload::Contiguous(at), tag);
            self.send_queue.push_back(Request { fua, ..request });
            (lba, count) = (lba + sectors, count + 1);
            at = at.offset(sectors * u64::from(self.sector_bytes));
        }
        if let Some(transfer) = self.transfers.get_mut(tag as u32).and_then(Option::as_mut) {
            transfer.remaining = count;
        }
    }

    /// Returns whether no transfer is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.send_queue.is_empty()
    }

    /// Reads or writes whole blocks.
    pub(crate) fn submit_blocks(&mut self, what: W, op: Op, blocks: BlockRun, at: Iova, fua: bool) {
        let block_sectors = u64::from(self.block_sectors);
        let lba = u64::from(blocks.first_block) * block_sectors;
        let sectors = u64::from(blocks.blocks) * block_sectors;
        self.submit_sectors(what, op, SectorRun { lba, sectors }, at, fua);
    }

    /// Reads, writes or discards at least one sector.
    pub(crate) fn submit_sectors(&mut self, what: W, op: Op, run: SectorRun, at: Iova, fua: bool) {
        let SectorRun { lba, sectors: count } = run;
        let dataless = op == Op::Discard;
        let longest = u64::from(if dataless { DATALESS_SECTORS_MAX } else { self.max_sectors });
        let tag = self.insert(what, count.div_ceil(longest) as u32);
        let mut done = 0;
        while done < count {
            let sectors = (count - done).min(longest) as u32;
            let there = at.offset(done * u64::from(self.sector_bytes));
            let data = if dataless { Payload::BitBucket } else { Payload::Contiguous(there) };
            let (lba, may_unmap) = (lba + done, false);
            self.send_queue.push_back(Request {
                op,
                lba,
                sectors,
                data,
                fua,
                atomic: false,
                deallocate: may_unmap,
                tag,
            });
            done += u64::from(sectors);
        }
    }

    /// Flushes completed writes.
    pub(crate) fn submit_flush(&mut self, what: W) {
        let tag = self.insert(what, 1);
        self.send_queue.push_back(Request::flush(tag));
    }

    fn insert(&mut self, what: W, left: u32) -> u64 {
        let flight =
            Some(DeviceTransfer { purpose: what, remaining: left, status: Status::SUCCESS });
        self.transfers.insert(flight).into()
    }

    /// Submits requests until the device is full. Returns whether it submitted any.
    pub(crate) fn send<D: BlockDevice>(&mut self, device: &mut D, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(request) = self.send_queue.front() {
            if device.submit(now, *request).is_err() {
                break;
            }
            if request.op == Op::Write {
                self.bytes_written += u64::from(request.sectors) * u64::from(self.sector_bytes);
            }
            self.send_queue.pop_front();
            self.in_flight += 1;
            moved = true;
        }
        moved
    }

    /// Handles the completion of a request; returns the transfer that completes with it.
    ///
    /// # Panics
    /// If no transfer in flight has the completion's tag.
    pub(crate) fn on_completion(&mut self, completion: &Completion) -> Option<(W, Status)> {
        let tag = completion.tag;
        let slot = u32::try_from(tag).ok().and_then(|index| self.transfers.get_mut(index));
        let transfer = slot.and_then(|slot| {
            let in_flight = slot.as_mut()?;
            if in_flight.status.is_success() {
                in_flight.status = completion.status;
            }
            in_flight.remaining -= 1;
            Some(if in_flight.remaining > 0 { None } else { slot.take() })
        });
        let Some(transfer) = transfer.filter(|_| self.in_flight > 0) else {
            panic!("transfers: a completion has tag {tag}, and no transfer in flight has it");
        };
        self.in_flight -= 1;
        let transfer = transfer?;
        self.transfers.release(tag as u32);
        Some((transfer.purpose, transfer.status))
    }

    /// Returns the purposes of the transfers in flight.
    pub(crate) fn purposes(&self) -> impl Iterator<Item = &W> {
        self.transfers.iter().flatten().map(|transfer| &transfer.purpose)
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let remaining: u32 = self.transfers.iter().flatten().map(|t| t.remaining).sum();
        require_eq!(
            Transfers,
            "requests of all transfers are queued or submitted",
            "all transfers",
            remaining as usize,
            self.in_flight as usize + self.send_queue.len()
        );
        let unused = self.transfers.iter().filter(|t| t.is_none()).count();
        require_eq!(
            Transfers,
            "an unused tag is free once",
            "all tags",
            unused,
            self.transfers.free_len()
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_in_flight(&mut self) {
        self.in_flight += 1;
    }
}
