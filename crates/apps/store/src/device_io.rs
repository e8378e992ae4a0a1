//! [`DeviceTransfers`]: transfers in flight on the device. A transfer is split by the device's longest request,
//! and completes when all its parts have; if the device is full, the remaining parts are retried.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, Op, Payload, Request};
use clock::Nanos;
use nvme::Status;
use ring::Iova;

use crate::BLOCK;

/// Maximum sectors of a request without data.
const DATALESS_SECTORS_MAX: u32 = 1 << 20;

#[derive(Debug)]
struct DeviceTransfer<W> {
    purpose: W,
    remaining: u32,
    status: Status,
}

/// Transfers in flight, each with a purpose (`W`).
#[derive(Debug)]
pub(crate) struct DeviceTransfers<W> {
    transfers: Vec<Option<DeviceTransfer<W>>>,
    free: Vec<u32>,
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
            transfers: Vec::new(),
            free: Vec::new(),
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
    pub(crate) fn submit_blocks(
        &mut self,
        what: W,
        op: Op,
        (block, count): (u32, u32),
        at: Iova,
        fua: bool,
    ) {
        let lba = u64::from(block) * u64::from(self.block_sectors);
        self.submit_sectors(
            what,
            op,
            (lba, u64::from(count) * u64::from(self.block_sectors)),
            at,
            fua,
        );
    }

    /// Reads, writes or discards at least one sector.
    pub(crate) fn submit_sectors(
        &mut self,
        what: W,
        op: Op,
        (lba, count): (u64, u64),
        at: Iova,
        fua: bool,
    ) {
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
        match self.free.pop() {
            Some(index) => {
                self.transfers[index as usize] = flight;
                index.into()
            }
            None => {
                self.transfers.push(flight);
                self.transfers.len() as u64 - 1
            }
        }
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
    pub(crate) fn on_completion(&mut self, completion: &Completion) -> Option<(W, Status)> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let index = usize::try_from(completion.tag).ok()?;
        let slot = self.transfers.get_mut(index)?;
        let flight = slot.as_mut()?;
        if flight.status.is_success() {
            flight.status = completion.status;
        }
        flight.remaining -= 1;
        if flight.remaining > 0 {
            return None;
        }
        let flight = slot.take()?;
        self.free.push(index as u32);
        Some((flight.purpose, flight.status))
    }
}
