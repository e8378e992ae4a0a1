//! [`DeviceTransfers`]: transfers in flight on the device. A transfer is split by the device's longest request,
//! and completes when all its parts have; if the device is full, the remaining parts are retried.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, Op, Payload, Request};
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

/// Transfers in flight, each with a purpose (`W`).
#[derive(Debug)]
pub(crate) struct DeviceTransfers<W> {
    transfers: Slab<Option<DeviceTransfer<W>>>,
    send_queue: VecDeque<Request>,
    block_sectors: u32,
    sector_bytes: u32,
    max_sectors: u32,
    /// Requests submitted and not completed.
    in_flight: u32,
}

impl<W> DeviceTransfers<W> {
    pub(crate) fn new(limits: &Limits) -> DeviceTransfers<W> {
        DeviceTransfers {
            transfers: Slab::new(),
            send_queue: VecDeque::new(),
            block_sectors: BLOCK as u32 / limits.sector_bytes,
            sector_bytes: limits.sector_bytes,
            max_sectors: limits.max_sectors.max(1),
            in_flight: 0,
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
