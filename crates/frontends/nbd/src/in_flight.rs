//! [`InFlightRequest`]: one client request in execution, split into as many device requests as the device's
//! limits require. It may outlive its client: it ends when its last fragment has completed.

use std::collections::VecDeque;

use block::{Completion, Extent, ExtentState, Limits, Payload, Request};
use collections::Slab;
use mem::Iova;
use nvme::Status;
use time::Nanos;

use crate::connection::ConnectionId;
#[cfg(debug_assertions)]
use crate::invariants::{ServerViolation, require_eq};
use crate::pool::PayloadBuffer;
use crate::protocol::command::{CommandAction, NbdCommand};
use crate::protocol::wire::state;

/// Maximum number of fragments of one request in the device, so that a trim of 4 GiB does not block
/// other requests.
const FRAGMENTS_IN_FLIGHT_MAX: u32 = 16;
/// A block-status reply may stop early (NBD "NBD_CMD_BLOCK_STATUS"); it does after this many
/// descriptors or device queries.
const DESCRIPTORS_MAX: usize = 1024;
const QUERIES_MAX: u32 = 256;

/// An extent of a block-status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusDescriptor {
    pub(super) bytes: u32,
    /// NBD "base:allocation metadata context".
    pub(super) state: u32,
}

/// A payload buffer, and its address for the device.
#[derive(Debug)]
pub(super) struct DeviceBuffer {
    pub(super) buffer: PayloadBuffer,
    pub(super) iova: Iova,
}

/// One request in flight.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    pub(super) client: ConnectionId,
    /// Time at which the request was complete in the server.
    pub(super) received_at: Nanos,
    pub(super) command: NbdCommand,
    pub(super) structured: bool,
    pub(super) buffer: Option<PayloadBuffer>,
    /// The first error of any fragment.
    pub(super) error: Option<Status>,
    /// For a block status: contiguous extents, starting at the command's offset.
    pub(super) descriptors: Vec<StatusDescriptor>,
    /// Whether it is in the device backlog.
    is_queued: bool,
    /// Address of the buffer for the device.
    iova: Iova,
    /// Next sector to request from the device, and the end.
    next: u64,
    end: u64,
    /// Sectors of the block-status query in flight.
    queried_sectors: u32,
    fragments: u32,
    fragments_in_flight: u32,
    /// A flush must follow: the request is a flush, or a trim or write zeroes with FUA, which
    /// devices do not guarantee to be durable.
    flush_due: bool,
}

impl InFlightRequest {
    pub(super) fn new(
        client: ConnectionId,
        command: NbdCommand,
        structured: bool,
        buffer: Option<DeviceBuffer>,
        limits: &Limits,
        received_at: Nanos,
    ) -> InFlightRequest {
        let sector = u64::from(limits.sector_bytes);
        let next = command.offset / sector;
        let (buffer, iova) = match buffer {
            Some(DeviceBuffer { buffer, iova }) => (Some(buffer), iova),
            None => (None, Iova(0)),
        };
        InFlightRequest {
            client,
            received_at,
            command,
            structured,
            buffer,
            error: None,
            descriptors: Vec::new(),
            is_queued: false,
            iova,
            next,
            end: next + u64::from(command.length) / sector,
            queried_sectors: 0,
            fragments: 0,
            fragments_in_flight: 0,
            flush_due: command.action == CommandAction::Flush
                || (command.fua && command.action != CommandAction::Write && limits.volatile_cache),
        }
    }

    /// Returns the next fragment for the device, with `slot` in its tag; `None` if none is due.
    pub(super) fn next_fragment(&self, slot: u32, limits: &Limits) -> Option<Request> {
        if self.error.is_some() {
            return None;
        }
        // The fragment index makes the tags of concurrent fragments distinct.
        let tag = u64::from(self.fragments) << 32 | u64::from(slot);
        if self.next == self.end {
            return (self.flush_due && self.fragments_in_flight == 0).then(|| Request::flush(tag));
        }
        let limit = match self.command.action {
            CommandAction::BlockStatus { .. } => 1,
            _ => FRAGMENTS_IN_FLIGHT_MAX,
        };
        if self.fragments_in_flight >= limit {
            return None;
        }
        let sectors = (self.end - self.next).min(u64::from(limits.max_sectors.max(1))) as u32;
        let done = self.next * u64::from(limits.sector_bytes) - self.command.offset;
        let data = Payload::Contiguous(self.iova.offset(done));
        let lba = self.next;
        Some(match self.command.action {
            CommandAction::Read => Request::read(lba, sectors, data, tag),
            CommandAction::Write => {
                Request { fua: self.command.fua, ..Request::write(lba, sectors, data, tag) }
            }
            CommandAction::Trim => Request::discard(lba, sectors, tag),
            CommandAction::WriteZeroes { may_unmap } => Request {
                fua: self.command.fua,
                ..Request::write_zeroes(lba, sectors, may_unmap, tag)
            },
            CommandAction::BlockStatus { .. } => Request::extents(lba, sectors, self.iova, tag),
            CommandAction::Flush => Request::flush(tag),
        })
    }

    /// Records that the device accepted the fragment from
    /// [`next_fragment`](InFlightRequest::next_fragment).
    pub(super) fn on_fragment_issued(&mut self, request: &Request) {
        self.fragments = self.fragments.wrapping_add(1);
        self.fragments_in_flight += 1;
        if self.next == self.end {
            self.flush_due = false;
        } else {
            self.queried_sectors = request.sectors;
            self.next += u64::from(request.sectors);
        }
    }

    /// Completes a fragment. `extents` reads the result of a query from the buffer.
    pub(super) fn on_fragment_complete(
        &mut self,
        completion: &Completion,
        limits: &Limits,
        extents: impl FnOnce(&PayloadBuffer, u64) -> Vec<Extent>,
    ) {
        assert!(
            self.fragments_in_flight > 0,
            "nbd: a completion has tag {:#x}, and its request has no fragment in flight",
            completion.tag
        );
        self.fragments_in_flight -= 1;
        let failed = crate::protocol::reply::error_code_for(completion.status, self.command.action)
            .is_some();
        if let CommandAction::BlockStatus { one } = self.command.action {
            if failed && completion.status.is(Status::INVALID_OPCODE) {
                // "a server MAY always safely report a status of 0 for any block".
                self.push_descriptor(
                    self.end - (self.next - u64::from(self.queried_sectors)),
                    0,
                    limits,
                );
                self.next = self.end;
                return;
            }
            if !failed {
                let found = match &self.buffer {
                    Some(buffer) => extents(buffer, completion.result),
                    None => Vec::new(),
                };
                return self.push_extents(&found, one, limits);
            }
        }
        if failed && self.error.is_none() {
            self.error = Some(completion.status);
        }
    }

    /// Returns whether no fragment is in flight and none will follow.
    pub(super) fn is_complete(&self) -> bool {
        self.fragments_in_flight == 0
            && (self.error.is_some() || (self.next == self.end && !self.flush_due))
    }

    /// Cancels the fragments that were not issued; the client is gone.
    pub(super) fn abandon(&mut self) {
        self.next = self.end;
        self.flush_due = false;
    }

    fn push_descriptor(&mut self, sectors: u64, state: u32, limits: &Limits) {
        let bytes = (sectors * u64::from(limits.sector_bytes)) as u32;
        match self.descriptors.last_mut() {
            Some(last) if last.state == state => last.bytes += bytes,
            _ => self.descriptors.push(StatusDescriptor { bytes, state }),
        }
    }

    /// Appends the extents returned by the query of the sectors before `next`.
    fn push_extents(&mut self, found: &[Extent], one: bool, limits: &Limits) {
        let mut cursor = self.next - u64::from(self.queried_sectors);
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
            if one && self.descriptors.last().is_some_and(|last| last.state != state) {
                self.next = cursor;
                self.end = cursor;
                return;
            }
            self.push_descriptor(end - cursor, state, limits);
            cursor = end;
        }
        if cursor == self.next - u64::from(self.queried_sectors) {
            // An empty answer is reported as allocated data, so that the client makes progress.
            self.push_descriptor(u64::from(self.queried_sectors), 0, limits);
            cursor = self.next;
        }
        // An answer truncated by its capacity is continued after the last extent.
        self.next = cursor;
        let enough = self.descriptors.len() >= DESCRIPTORS_MAX || self.fragments >= QUERIES_MAX;
        if enough || (one && self.descriptors.len() > 1) {
            self.end = self.next;
        }
    }
}

/// All requests in flight, by slot; the slot is part of a device request's tag.
#[derive(Debug, Default)]
pub(super) struct InFlightRequests {
    slots: Slab<Option<InFlightRequest>>,
    open: usize,
    /// Requests that the device could not accept yet, in order.
    backlog: VecDeque<u32>,
}

impl InFlightRequests {
    pub(super) fn insert(&mut self, flight: InFlightRequest) -> u32 {
        self.open += 1;
        self.slots.insert(Some(flight))
    }

    /// Mutable access to a request.
    ///
    /// # Panics
    /// If no request in flight has the slot.
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut InFlightRequest {
        let flight = self.slots.get_mut(slot).and_then(Option::as_mut);
        flight.unwrap_or_else(|| panic!("nbd: slot {slot} has no request in flight"))
    }

    /// Removes a complete request, also from the backlog, because it has nothing to issue.
    ///
    /// # Panics
    /// If no request in flight has the slot.
    pub(super) fn remove(&mut self, slot: u32) -> InFlightRequest {
        if self.get_mut(slot).is_queued {
            self.backlog.retain(|queued| *queued != slot);
        }
        self.open -= 1;
        self.slots.remove(slot).expect("nbd: a request that was just found")
    }

    /// Queues a request that the device could not accept yet.
    pub(super) fn enqueue(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.get_mut(slot).is_queued, true) {
            self.backlog.push_back(slot);
        }
    }

    /// Returns whether a request is in the backlog.
    pub(super) fn is_queued(&mut self, slot: u32) -> bool {
        self.get_mut(slot).is_queued
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns the first request of the backlog.
    pub(super) fn first_queued(&self) -> Option<u32> {
        self.backlog.front().copied()
    }

    /// Removes the first request of the backlog.
    pub(super) fn dequeue(&mut self) {
        if let Some(slot) = self.backlog.pop_front() {
            self.get_mut(slot).is_queued = false;
        }
    }

    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) -> Result<(), ServerViolation> {
        let open = self.iter().count();
        require_eq("in flight", "requests in flight", "all slots", open, self.open)?;
        let used = self.slots.in_use();
        require_eq("in flight", "a slot is free or has a request", "all slots", used, open)?;
        for (slot, flight) in (0..).zip(&self.slots) {
            let expected = flight.as_ref().is_some_and(|flight| flight.is_queued);
            let found = self.backlog.iter().filter(|queued| **queued == slot).count();
            let subject = format_args!("slot {slot}");
            let expected = usize::from(expected);
            require_eq("in flight", "a request is in the backlog once", subject, expected, found)?;
        }
        Ok(())
    }

    /// Returns all requests in flight.
    #[cfg(debug_assertions)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &InFlightRequest> {
        self.slots.iter().flatten()
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
        atomic: block::AtomicLimits::NONE,
    };

    fn in_flight_request(action: CommandAction, sectors: u32, fua: bool) -> InFlightRequest {
        let command = NbdCommand { action, cookie: 1, offset: 4096, length: sectors * 4096, fua };
        InFlightRequest::new(ConnectionId::default(), command, true, None, &LIMITS, Nanos::ZERO)
    }

    fn run(flight: &mut InFlightRequest, status: Status) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(request) = flight.next_fragment(3, &LIMITS) {
            flight.on_fragment_issued(&request);
            let completion = Completion { tag: request.tag, status, result: 0 };
            flight.on_fragment_complete(&completion, &LIMITS, |_, _| Vec::new());
            requests.push(request);
        }
        assert!(flight.is_complete());
        requests
    }

    #[test]
    fn a_long_request_is_cut_and_every_sector_asked_once() {
        let requests =
            run(&mut in_flight_request(CommandAction::Write, 200, true), Status::SUCCESS);
        let shape: Vec<_> = requests.iter().map(|r| (r.lba, r.sectors, r.fua)).collect();
        assert_eq!(shape, [(1, 64, true), (65, 64, true), (129, 64, true), (193, 8, true)]);
        assert_eq!(requests[2].data, Payload::Contiguous(Iova(128 * 4096)));
        assert!(requests.iter().all(|r| r.tag as u32 == 3));
    }

    #[test]
    fn a_durable_trim_is_followed_by_a_flush_and_an_error_ends_it_all() {
        let requests = run(&mut in_flight_request(CommandAction::Trim, 65, true), Status::SUCCESS);
        let ops: Vec<_> = requests.iter().map(|r| r.op).collect();
        assert_eq!(ops, [block::Op::Discard, block::Op::Discard, block::Op::Flush]);
        let mut failing = in_flight_request(CommandAction::Trim, 65, true);
        assert_eq!(run(&mut failing, Status::WRITE_FAULT).len(), 1);
        assert_eq!(failing.error, Some(Status::WRITE_FAULT));
        assert_eq!(
            run(&mut in_flight_request(CommandAction::Flush, 0, false), Status::SUCCESS).len(),
            1
        );
    }

    #[test]
    fn extents_are_merged_clamped_and_continued() {
        use ExtentState::{Mapped, Unmapped};
        let extent = |lba, sectors, state| Extent { lba, sectors, state };
        let mut f = in_flight_request(CommandAction::BlockStatus { one: false }, 100, false);
        f.next = 65;
        f.queried_sectors = 64;
        let found = [extent(0, 11, Mapped), extent(11, 20, Unmapped)];
        f.push_extents(&found, false, &LIMITS);
        assert_eq!(f.next, 31, "goes on where the answer ended");
        f.queried_sectors = 64;
        f.next = 95;
        f.push_extents(&[extent(31, 1000, Unmapped)], false, &LIMITS);
        let descriptor = |bytes, state| StatusDescriptor { bytes, state };
        assert_eq!(f.descriptors, [descriptor(10 * 4096, 0), descriptor(84 * 4096, 3)]);
        let mut f = in_flight_request(CommandAction::BlockStatus { one: true }, 100, false);
        f.next = 65;
        f.queried_sectors = 64;
        f.push_extents(&found, true, &LIMITS);
        assert_eq!(
            (f.descriptors.as_slice(), f.is_complete()),
            (&[descriptor(10 * 4096, 0)][..], true)
        );
    }
}
