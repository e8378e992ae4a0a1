//! [`Flight`]: one client request on its way through the device, cut into as many device requests
//! as the device's limits ask for. A flight outlives its client: it ends when its last part has
//! completed, and not before.

use block::{Completion, Extent, ExtentState, Limits, Payload, Request};
use clock::Nanos;
use nvme::Status;
use ring::Iova;

use super::command::{Action, Command};
use super::connection::ConnectionId;
use super::pool::Buffer;
use super::wire::state;

/// Parts of one request that are with the device at a time, so that a trim of 4 GiB leaves room
/// for others.
const PARTS_OUT_MAX: u32 = 16;
/// A block-status reply may stop early (NBD "NBD_CMD_BLOCK_STATUS"); it does after this many
/// descriptors or device queries.
const DESCRIPTORS_MAX: usize = 1024;
const QUERIES_MAX: u32 = 256;

/// One request under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) client: ConnectionId,
    /// When it had come in.
    pub(super) since: Nanos,
    pub(super) command: Command,
    pub(super) structured: bool,
    pub(super) buffer: Option<Buffer>,
    /// The first error of any part.
    pub(super) error: Option<Status>,
    /// For a block status: bytes and state, adjacent, from the command's offset on.
    pub(super) descriptors: Vec<(u32, u32)>,
    /// Whether it stands in line for the device.
    pub(super) queued: bool,
    /// Where the buffer is, for the device.
    iova: Iova,
    /// Next sector to ask the device for, and the end.
    next: u64,
    end: u64,
    /// Sectors of a block-status query that is out.
    asked: u32,
    parts: u32,
    parts_out: u32,
    /// A flush must follow: the request is one, or is a trim or zeroes with FUA, of which devices
    /// promise nothing.
    flush_due: bool,
}

impl Flight {
    pub(super) fn new(
        client: ConnectionId,
        command: Command,
        structured: bool,
        buffer: Option<(Buffer, Iova)>,
        (limits, since): (&Limits, Nanos),
    ) -> Flight {
        let sector = u64::from(limits.sector_bytes);
        let next = command.offset / sector;
        let (buffer, iova) = match buffer {
            Some((buffer, iova)) => (Some(buffer), iova),
            None => (None, Iova(0)),
        };
        Flight {
            client,
            since,
            command,
            structured,
            buffer,
            error: None,
            descriptors: Vec::new(),
            queued: false,
            iova,
            next,
            end: next + u64::from(command.length) / sector,
            asked: 0,
            parts: 0,
            parts_out: 0,
            flush_due: command.action == Action::Flush
                || (command.fua && command.action != Action::Write && limits.volatile_cache),
        }
    }

    /// The next part for the device, with `slot` in its tag; `None` if there is none now.
    pub(super) fn next_part(&self, slot: u32, limits: &Limits) -> Option<Request> {
        if self.error.is_some() {
            return None;
        }
        // A part's number keeps the tags of parts that are out together distinct.
        let tag = u64::from(self.parts) << 32 | u64::from(slot);
        if self.next == self.end {
            return (self.flush_due && self.parts_out == 0).then(|| Request::flush(tag));
        }
        let limit = match self.command.action {
            Action::BlockStatus { .. } => 1,
            _ => PARTS_OUT_MAX,
        };
        if self.parts_out >= limit {
            return None;
        }
        let sectors = (self.end - self.next).min(u64::from(limits.max_sectors.max(1))) as u32;
        let done = self.next * u64::from(limits.sector_bytes) - self.command.offset;
        let data = Payload::At(self.iova.offset(done));
        let lba = self.next;
        Some(match self.command.action {
            Action::Read => Request::read(lba, sectors, data, tag),
            Action::Write => {
                Request { fua: self.command.fua, ..Request::write(lba, sectors, data, tag) }
            }
            Action::Trim => Request::discard(lba, sectors, tag),
            Action::WriteZeroes { may_unmap } => Request {
                fua: self.command.fua,
                ..Request::write_zeroes(lba, sectors, may_unmap, tag)
            },
            Action::BlockStatus { .. } => Request::extents(lba, sectors, self.iova, tag),
            Action::Flush => Request::flush(tag),
        })
    }

    /// The device has taken what [`next_part`](Flight::next_part) gave.
    pub(super) fn issued(&mut self, request: &Request) {
        self.parts = self.parts.wrapping_add(1);
        self.parts_out += 1;
        if self.next == self.end {
            self.flush_due = false;
        } else {
            self.asked = request.sectors;
            self.next += u64::from(request.sectors);
        }
    }

    /// A part has completed. `extents` reads what a query has put into the buffer.
    pub(super) fn landed(
        &mut self,
        completion: &Completion,
        limits: &Limits,
        extents: impl FnOnce(&Buffer, u64) -> Vec<Extent>,
    ) {
        self.parts_out = self.parts_out.saturating_sub(1);
        let failed = super::reply::code_of(completion.status, self.command.action).is_some();
        if let Action::BlockStatus { one } = self.command.action {
            if failed && completion.status.is(Status::INVALID_OPCODE) {
                // "a server MAY always safely report a status of 0 for any block".
                self.describe(self.end - (self.next - u64::from(self.asked)), 0, limits);
                self.next = self.end;
                return;
            }
            if !failed {
                let found = match &self.buffer {
                    Some(buffer) => extents(buffer, completion.result),
                    None => Vec::new(),
                };
                return self.describe_found(&found, one, limits);
            }
        }
        if failed && self.error.is_none() {
            self.error = Some(completion.status);
        }
    }

    /// Whether no part is out and none is to come.
    pub(super) fn is_over(&self) -> bool {
        self.parts_out == 0 && (self.error.is_some() || (self.next == self.end && !self.flush_due))
    }

    /// Gives up what is not with the device yet: nobody waits for it any more.
    pub(super) fn abandon(&mut self) {
        self.next = self.end;
        self.flush_due = false;
    }

    fn describe(&mut self, sectors: u64, state: u32, limits: &Limits) {
        let bytes = (sectors * u64::from(limits.sector_bytes)) as u32;
        match self.descriptors.last_mut() {
            Some((length, last)) if *last == state => *length += bytes,
            _ => self.descriptors.push((bytes, state)),
        }
    }

    /// Appends the extents that a query of `asked` sectors before `next` has found.
    fn describe_found(&mut self, found: &[Extent], one: bool, limits: &Limits) {
        let mut cursor = self.next - u64::from(self.asked);
        for extent in found {
            let end = extent.lba.saturating_add(u64::from(extent.sectors)).min(self.next);
            if extent.lba > cursor {
                break;
            }
            if end <= cursor {
                continue;
            }
            let state = match extent.state {
                ExtentState::Mapped => 0,
                ExtentState::Unmapped => state::HOLE | state::ZERO,
            };
            if one && self.descriptors.last().is_some_and(|(_, last)| *last != state) {
                self.next = cursor;
                self.end = cursor;
                return;
            }
            self.describe(end - cursor, state, limits);
            cursor = end;
        }
        if cursor == self.next - u64::from(self.asked) {
            // An answer that says nothing: nothing is known, and the client makes progress.
            self.describe(u64::from(self.asked), 0, limits);
            cursor = self.next;
        }
        // An answer cut short by its capacity is continued after the last extent.
        self.next = cursor;
        let enough = self.descriptors.len() >= DESCRIPTORS_MAX || self.parts >= QUERIES_MAX;
        if enough || (one && self.descriptors.len() > 1) {
            self.end = self.next;
        }
    }
}

/// All requests under way, by slot; a slot is part of a device request's tag.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
    open: usize,
}

impl Flights {
    pub(super) fn insert(&mut self, flight: Flight) -> u32 {
        self.open += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(flight);
                slot
            }
            None => {
                self.slots.push(Some(flight));
                self.slots.len() as u32 - 1
            }
        }
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Flight> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Flight> {
        let flight = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.open -= 1;
        Some(flight)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        sector_bytes: 4096,
        sectors: 1 << 20,
        max_sectors: 64,
        optimal_sectors: 1,
        queue_depth: 8,
        volatile_cache: true,
    };

    fn flight(action: Action, sectors: u32, fua: bool) -> Flight {
        let command = Command { action, cookie: 1, offset: 4096, length: sectors * 4096, fua };
        Flight::new(ConnectionId::default(), command, true, None, (&LIMITS, Nanos::ZERO))
    }

    fn run(flight: &mut Flight, status: Status) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(request) = flight.next_part(3, &LIMITS) {
            flight.issued(&request);
            let completion = Completion { tag: request.tag, status, result: 0 };
            flight.landed(&completion, &LIMITS, |_, _| Vec::new());
            requests.push(request);
        }
        assert!(flight.is_over());
        requests
    }

    #[test]
    fn a_long_request_is_cut_and_every_sector_asked_once() {
        let requests = run(&mut flight(Action::Write, 200, true), Status::SUCCESS);
        let shape: Vec<_> = requests.iter().map(|r| (r.lba, r.sectors, r.fua)).collect();
        assert_eq!(shape, [(1, 64, true), (65, 64, true), (129, 64, true), (193, 8, true)]);
        assert_eq!(requests[2].data, Payload::At(Iova(128 * 4096)));
        assert!(requests.iter().all(|r| r.tag as u32 == 3));
    }

    #[test]
    fn a_durable_trim_is_followed_by_a_flush_and_an_error_ends_it_all() {
        let requests = run(&mut flight(Action::Trim, 65, true), Status::SUCCESS);
        let ops: Vec<_> = requests.iter().map(|r| r.op).collect();
        assert_eq!(ops, [block::Op::Discard, block::Op::Discard, block::Op::Flush]);
        let mut failing = flight(Action::Trim, 65, true);
        assert_eq!(run(&mut failing, Status::WRITE_FAULT).len(), 1);
        assert_eq!(failing.error, Some(Status::WRITE_FAULT));
        assert_eq!(run(&mut flight(Action::Flush, 0, false), Status::SUCCESS).len(), 1);
    }

    #[test]
    fn extents_are_merged_clamped_and_continued() {
        use ExtentState::{Mapped, Unmapped};
        let extent = |lba, sectors, state| Extent { lba, sectors, state };
        let mut f = flight(Action::BlockStatus { one: false }, 100, false);
        f.next = 65;
        f.asked = 64;
        let found = [extent(0, 11, Mapped), extent(11, 20, Unmapped)];
        f.describe_found(&found, false, &LIMITS);
        assert_eq!(f.next, 31, "goes on where the answer ended");
        f.asked = 64;
        f.next = 95;
        f.describe_found(&[extent(31, 1000, Unmapped)], false, &LIMITS);
        assert_eq!(f.descriptors, [(10 * 4096, 0), (84 * 4096, 3)]);
        let mut f = flight(Action::BlockStatus { one: true }, 100, false);
        f.next = 65;
        f.asked = 64;
        f.describe_found(&found, true, &LIMITS);
        assert_eq!((f.descriptors.as_slice(), f.is_over()), (&[(10 * 4096, 0)][..], true));
    }
}
