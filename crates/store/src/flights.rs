//! [`Flights`]: transfers on their way to the device. One transfer is as many requests as the device's
//! longest one makes of it, and ends when all of them have; a device that is busy is asked again.

use std::collections::VecDeque;

use block::{Completion, Device, Limits, Op, Payload, Request};
use clock::Nanos;
use nvme::Status;
use ring::Iova;

use crate::BLOCK;

/// Sectors of a request without data at most.
const DATALESS: u32 = 1 << 20;

#[derive(Debug)]
struct Flight<W> {
    what: W,
    left: u32,
    status: Status,
}

/// Transfers, each for something (`W`).
#[derive(Debug)]
pub(crate) struct Flights<W> {
    flights: Vec<Option<Flight<W>>>,
    free: Vec<u32>,
    out: VecDeque<Request>,
    block_sectors: u32,
    sector_bytes: u32,
    max_sectors: u32,
    /// Requests sent and not ended.
    sent: u32,
}

impl<W> Flights<W> {
    pub(crate) fn new(limits: &Limits) -> Flights<W> {
        Flights {
            flights: Vec::new(),
            free: Vec::new(),
            out: VecDeque::new(),
            block_sectors: BLOCK as u32 / limits.sector_bytes,
            sector_bytes: limits.sector_bytes,
            max_sectors: limits.max_sectors.max(1),
            sent: 0,
        }
    }

    /// Whether nothing is on its way.
    pub(crate) fn idle(&self) -> bool {
        self.sent == 0 && self.out.is_empty()
    }

    /// Reads or writes whole blocks.
    pub(crate) fn blocks(
        &mut self,
        what: W,
        op: Op,
        (block, count): (u32, u32),
        at: Iova,
        fua: bool,
    ) {
        let lba = u64::from(block) * u64::from(self.block_sectors);
        self.sectors(what, op, (lba, u64::from(count) * u64::from(self.block_sectors)), at, fua);
    }

    /// Reads, writes or discards sectors, 1 or more.
    pub(crate) fn sectors(
        &mut self,
        what: W,
        op: Op,
        (lba, count): (u64, u64),
        at: Iova,
        fua: bool,
    ) {
        let dataless = op == Op::Discard;
        let longest = u64::from(if dataless { DATALESS } else { self.max_sectors });
        let tag = self.file(what, count.div_ceil(longest) as u32);
        let mut done = 0;
        while done < count {
            let sectors = (count - done).min(longest) as u32;
            let there = at.offset(done * u64::from(self.sector_bytes));
            let data = if dataless { Payload::BitBucket } else { Payload::At(there) };
            let (lba, may_unmap) = (lba + done, false);
            self.out.push_back(Request { op, lba, sectors, data, fua, may_unmap, tag });
            done += u64::from(sectors);
        }
    }

    /// Makes what has ended durable.
    pub(crate) fn flush(&mut self, what: W) {
        let tag = self.file(what, 1);
        self.out.push_back(Request::flush(tag));
    }

    fn file(&mut self, what: W, left: u32) -> u64 {
        let flight = Some(Flight { what, left, status: Status::SUCCESS });
        match self.free.pop() {
            Some(index) => {
                self.flights[index as usize] = flight;
                index.into()
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u64 - 1
            }
        }
    }

    /// Gives the device what it takes. Returns whether it took anything.
    pub(crate) fn send<D: Device>(&mut self, device: &mut D, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(request) = self.out.front() {
            if device.submit(now, *request).is_err() {
                break;
            }
            self.out.pop_front();
            self.sent += 1;
            moved = true;
        }
        moved
    }

    /// A request has ended; returns the transfer that ended with it.
    pub(crate) fn ended(&mut self, completion: &Completion) -> Option<(W, Status)> {
        self.sent = self.sent.saturating_sub(1);
        let index = usize::try_from(completion.tag).ok()?;
        let slot = self.flights.get_mut(index)?;
        let flight = slot.as_mut()?;
        if flight.status.is_success() {
            flight.status = completion.status;
        }
        flight.left -= 1;
        if flight.left > 0 {
            return None;
        }
        let flight = slot.take()?;
        self.free.push(index as u32);
        Some((flight.what, flight.status))
    }
}
