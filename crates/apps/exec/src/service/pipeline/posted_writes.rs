//! Posted writes ([`exec_proto::posted`]): their order, their reserved blocks, and their errors.
//!
//! **Order of posted writes.** A posted write executes before every call or posted write issued
//! after it, by any thread. The service collects calls first and posted writes second, so none
//! posted before a collected call is missed. It scans twice and executes, in ticket order, all
//! writes up to the largest ticket of the first scan; later tickets wait for the next iteration.
//!
//! **Order of syncs.** A write that was posted after acknowledged syncs starts after the barrier that
//! covers them ([`syncs`](crate::service::pipeline::syncs)).

use std::collections::VecDeque;

use block::BlockDevice;
use exec_proto::{Call, CallOp, posted, slot_protocol};
use rustix::io::Errno;
use volume::{BLOCK, OpResult, Time, VolumeOp};

use crate::Service;
use crate::invariants::{ServicePart, ServiceViolation, require_eq};
use crate::open_files::{OpenFile, flags as f};
use crate::service::pipeline::calls::{negative_errno, offset};
use crate::service::pipeline::completion::OnComplete;
use crate::service::{CallId, ReceivedCall, StartResult};

/// Free space required to grant a reservation, as a multiple of its size.
const GRANT_HEADROOM: u64 = 8;

/// A posted write with an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedWrite {
    handle: u64,
    len: u32,
    /// Blocks reserved for it.
    reserved_blocks: u64,
    /// The open file's offset is at its end.
    moves_offset: bool,
}

/// A posted write, and its ticket.
#[derive(Clone, Copy, Debug)]
struct TicketedWrite {
    ticket: u64,
    received: ReceivedCall,
}

/// Posted writes without an operation yet.
#[derive(Debug, Default)]
pub(crate) struct PostedWriteQueue {
    /// Found; one with an earlier ticket may not have been found yet.
    found: Vec<TicketedWrite>,
    /// In ticket order.
    ready: VecDeque<ReceivedCall>,
    /// Programs were told to stop posting.
    posting_disabled: bool,
}

impl PostedWriteQueue {
    /// Returns the slots of posted writes without an operation.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = CallId> + '_ {
        let found = self.found.iter().map(|found| found.received.from);
        found.chain(self.ready.iter().map(|received| received.from))
    }

    pub(crate) fn check_invariants(&self) -> Result<(), ServiceViolation> {
        let tickets: Vec<u64> = self.found.iter().map(|found| found.ticket).collect();
        let mut sorted = tickets.clone();
        sorted.sort_unstable();
        let (part, invariant) = (ServicePart::PostedWrites, "writes wait in the order of tickets");
        require_eq(part, invariant, "the writes found", sorted, tickets)
    }
}

impl<D: BlockDevice> Service<D> {
    /// Collects posted writes and starts as many as possible. Returns whether there were any.
    pub(crate) fn drain_posted(&mut self) -> bool {
        let mut found = std::mem::take(&mut self.posted_writes.found);
        self.scan_posted(&mut found);
        if let Some(last) = found.iter().map(|found| found.ticket).max() {
            self.scan_posted(&mut found);
            found.sort_unstable_by_key(|found| found.ticket);
            let ready = found.partition_point(|found| found.ticket <= last);
            self.posted_writes.ready.extend(found.drain(..ready).map(|found| found.received));
            self.posted_writes.found = found;
            self.start_posted();
            return true;
        }
        self.posted_writes.found = found;
        false
    }

    fn scan_posted(&mut self, found: &mut Vec<TicketedWrite>) {
        for (session, of) in self.sessions.iter_mut().enumerate() {
            let mut bits = of.take_posted_writes();
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                let writes = |call: &Call| matches!(call.op, CallOp::Write | CallOp::WriteAt);
                let call = of.call(slot).filter(writes);
                let ticket = call.map_or(0, |call| call.args[2]);
                let received = ReceivedCall { from: CallId { session, slot }, call };
                found.push(TicketedWrite { ticket, received });
                bits &= bits - 1;
            }
        }
    }

    /// Starts ready writes until one must wait. Returns whether any was started.
    pub(crate) fn start_posted(&mut self) -> bool {
        let mut moved = false;
        while let Some(ReceivedCall { from, call }) = self.posted_writes.ready.front().copied() {
            let syncs = call.map_or(0, |call| call.args[3]);
            if !self.cover_syncs(syncs) {
                break;
            }
            match call.map(|call| (call.handle, self.start_posted_write(from, &call))) {
                Some((_, Ok(StartResult::Retry))) => break,
                Some((_, Ok(_))) => {}
                Some((handle, Err(error))) => {
                    self.fail_posted_write(handle, error);
                    self.free_slot(from);
                }
                None => {
                    self.count_refused();
                    self.free_slot(from);
                }
            }
            self.posted_writes.ready.pop_front();
            moved = true;
        }
        moved
    }

    fn start_posted_write(&mut self, from: CallId, call: &Call) -> Result<StartResult, i64> {
        let Call { op, handle, args: [at, time, ..], len } = *call;
        let file = self.file(handle)?;
        if !file.writable() {
            return Err(negative_errno(Errno::BADF));
        }
        let moves = op == CallOp::Write;
        if moves && file.busy {
            return Ok(StartResult::Retry);
        }
        let (ino, appends) = (file.ino, file.flags & f::APPEND != 0);
        let at = if moves { file.offset } else { offset(at)? };
        let session = &self.sessions[from.session];
        let data = session.buffer(from.slot, len);
        // A write posted beyond the reservation may fail with ENOSPC.
        let room = Some(posted::blocks_touched_max(len))
            .filter(|room| *room <= session.reserved_blocks)
            .unwrap_or(0);
        let time = Time((time as i64).min(self.clock.time.0));
        let asked = if appends {
            VolumeOp::Append { ino, data }
        } else {
            VolumeOp::Write { ino, offset: at, data }
        };
        let left = PostedWrite {
            handle,
            len: data.len,
            reserved_blocks: room,
            moves_offset: moves && appends,
        };
        let begun = self.submit_op_with(from, asked, OnComplete::PostedWrite(left), time, room);
        if begun == StartResult::Pending {
            self.sessions[from.session].reserved_blocks -= room;
            if let Some(file) = self.files.get_mut(&handle) {
                file.posted_writes += 1;
                // The write will be complete, so the next one need not wait for it.
                file.offset += if moves && !appends { len as u64 } else { 0 };
            }
        }
        Ok(begun)
    }

    pub(crate) fn on_posted_write_complete(
        &mut self,
        from: CallId,
        left: PostedWrite,
        result: Result<OpResult, i64>,
    ) {
        let PostedWrite { handle, len, reserved_blocks: room, moves_offset: moves } = left;
        let mut hung_up = false;
        let written = match result {
            Ok(OpResult::Bytes { offset, len: written }) if written == len => Ok(offset),
            Ok(_) => Err(negative_errno(Errno::NOSPC)),
            Err(error) => Err(error),
        };
        if let Some(file) = self.files.get_mut(&handle) {
            file.posted_writes -= 1;
            if let Ok(offset) = written {
                file.offset = if moves { offset + u64::from(len) } else { file.offset };
            }
            hung_up = file.hung_up;
        }
        if let Err(error) = written {
            self.fail_posted_write(handle, error);
        }
        self.free_slot(from);
        if room > 0 && !self.sessions[from.session].is_reusable() && self.volume.reserve(room) {
            self.sessions[from.session].grant(room);
        }
        if hung_up {
            self.close_if_unused(handle);
        }
    }

    /// Records the error of a posted write, for the next sync of the open file.
    fn fail_posted_write(&mut self, handle: u64, error: i64) {
        if let Some(file) = self.files.get_mut(&handle) {
            file.posted_write_error.get_or_insert(error);
        }
        if let Some(speculation) = &mut self.durability.speculation {
            speculation.on_posted_write_error();
        }
    }

    /// Returns whether writes of an open file are durable before they return.
    pub(crate) fn syncs_writes(&self, file: &OpenFile) -> bool {
        self.durability.has_sync_writes || file.flags & f::SYNC != 0
    }

    /// Returns the value added to a write's reply: whether the client may post the next ones.
    pub(crate) fn grant_posting(&mut self, from: CallId, handle: u64, offset: u64) -> i64 {
        let synced = self.files.get(&handle).is_none_or(|file| self.syncs_writes(file));
        if synced || offset >= posted::POSTED_END_MAX {
            return 0;
        }
        let session = &mut self.sessions[from.session];
        if session.reserved_blocks == 0
            && self.volume.has_free_blocks(GRANT_HEADROOM * posted::RESERVATION_MAX)
            && self.volume.reserve(posted::RESERVATION_MAX)
        {
            session.grant(posted::RESERVATION_MAX);
        }
        posted::MAY_POST
    }

    /// Returns whether all posted writes that were found have been started.
    pub(crate) fn has_started_posted(&self) -> bool {
        self.posted_writes.ready.is_empty()
    }

    /// Returns whether a call must wait for a write or a sync that was posted before it.
    pub(crate) fn must_wait_for_posted(&self, call: &Call) -> bool {
        if !self.posted_writes.ready.is_empty() {
            return true;
        }
        match call.op {
            CallOp::Flags | CallOp::SetFlags | CallOp::Release | CallOp::Lock | CallOp::Flock => {
                false
            }
            CallOp::Read
            | CallOp::ReadAt
            | CallOp::Write
            | CallOp::WriteAt
            | CallOp::WriteAtomic
            | CallOp::Seek
            | CallOp::Sync
            | CallOp::Truncate
            | CallOp::Allocate
            | CallOp::Mmap => {
                let file = self.files.get(&call.handle);
                self.has_due_syncs()
                    || file.is_some_and(|file| self.calls.pending.has_posted_write(Some(file.ino)))
            }
            _ => self.has_due_syncs() || self.calls.pending.has_posted_write(None),
        }
    }

    /// Revokes reservations if these calls may need the blocks.
    pub(in crate::service) fn revoke_reservations(&mut self, received: &[ReceivedCall]) {
        let needs = |call: &Call| match call.op {
            CallOp::Allocate => call.args[2] / BLOCK as u64 + 1,
            _ => posted::blocks_touched_max(call.len),
        };
        let needed = received.iter().filter_map(|received| received.call.as_ref()).map(needs);
        let needed = needed.fold(posted::RESERVATION_MAX, u64::saturating_add);
        if !self.volume.has_free_blocks(needed) {
            for session in &mut self.sessions {
                self.volume.unreserve(session.revoke());
            }
        }
    }

    /// Releases the reservation of a session whose process has ended, once nothing of it is in
    /// flight.
    pub(crate) fn release_reservation(&mut self, session: usize) {
        if self.sessions[session].is_reusable() {
            self.volume.unreserve(self.sessions[session].revoke());
        }
    }

    /// Tells programs to stop posting, because a mapping is about to see file data without a call.
    /// Returns whether all writes posted before have been started.
    pub(crate) fn disable_posting(&mut self) -> bool {
        if !self.posted_writes.posting_disabled {
            self.posted_writes.posting_disabled = true;
            slot_protocol::set_mmap_active(self.doorbell.atomic_u32(exec_proto::MMAP_ACTIVE));
            self.drain_posted();
        }
        self.posted_writes.ready.is_empty()
    }

    /// Allows posting again when no mapping is left.
    pub(crate) fn reenable_posting(&mut self) {
        if self.posted_writes.posting_disabled
            && self.shared_mappings.is_empty()
            && self.mapping_sync.is_empty()
        {
            self.posted_writes.posting_disabled = false;
            let word = self.doorbell.atomic_u32(exec_proto::MMAP_ACTIVE);
            word.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_are_not_in_the_order_of_tickets_are_reported() {
        let write = |ticket| {
            let from = CallId { session: 0, slot: ticket as usize };
            TicketedWrite { ticket, received: ReceivedCall { from, call: None } }
        };
        let mut queue = PostedWriteQueue::default();
        queue.found.extend([write(2), write(3)]);
        queue.check_invariants().expect("nothing is broken yet");
        queue.found.push(write(1));
        let found = queue.check_invariants().expect_err("the tickets are not in order");
        let broken = (ServicePart::PostedWrites, "writes wait in the order of tickets");
        assert_eq!((found.part, found.invariant), broken, "{found}");
    }
}
