//! [`WaiterSlot`]: one thread's request, from its start until its completion is taken.
//!
//! Post-processing is the work after the device's completion: the data is copied from the memory
//! that the device wrote into the thread's own, the slot becomes free, and the request is
//! accounted. The strategy decides whether the thread itself does this or a context on its behalf
//! ([HIOPS14 §3.3], lazy I/O processing). Both use the slot's lock, which is uncontended when the
//! thread finishes its own request.
//!
//! Guarantee: a started request is finished once, by the first to find it complete, and its
//! completion stays until the thread has taken it.
//!
//! Lock order: a slot, then a path of the block layer. No thread holds two slots.

use std::sync::{Arc, OnceLock};

use driver::HardwareQueue;
use mem::{Iova, SharedRegion};
use nvme::Status;
use time::Nanos;

use super::stats::WaiterStats;
use super::transfer::Transfer;
use crate::StripeLayout;
use crate::queue::RunScope;
use crate::sync::{Lock, Platform, Step, ThreadPlatform};
use crate::{BlockDevice, Completion, Op, Payload, Queue, Request, Submitter};

/// Notice that a submitter was sent a completion of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletionNotice {
    pub(super) member: u16,
    pub(super) submitter: Submitter,
}

/// Drains the notices of a queue of `member`.
#[inline]
pub(super) fn drain_notices<Q: HardwareQueue, P: ThreadPlatform>(
    member: usize,
    queue: &mut Queue<Q, P>,
    into: &mut Vec<CompletionNotice>,
) {
    let member = member as u16;
    into.extend(queue.notices().drain(..).map(|submitter| CompletionNotice { member, submitter }));
}

/// Returns the number of cache lines of a copy.
fn lines(bytes: usize) -> u32 {
    bytes.div_ceil(64) as u32
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct InFlightRequest {
    transfer: Transfer,
    bytes: usize,
    /// Members that have fragments of it, one bit each.
    members: u64,
    /// Number of fragments that have not completed.
    fragments_remaining: u32,
    /// First error of a fragment.
    status: Status,
    since: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
enum WaiterState {
    #[default]
    Idle,
    InFlight(InFlightRequest),
    Completed(Completion),
}

/// The resources of a slot.
pub(super) struct SlotResources<Q: HardwareQueue, P: ThreadPlatform> {
    /// The thread's endpoints of the members' block layers.
    pub(super) queues: Vec<Queue<Q, P>>,
    /// The memory that devices access, for all slots.
    pub(super) bounce: Arc<SharedRegion>,
    /// Offset of this slot in that memory.
    pub(super) slot_offset: usize,
    /// Address of the slot in each member's address space.
    pub(super) slot_iovas: Box<[Iova]>,
    /// The thread's own memory.
    pub(super) buffer: Arc<SharedRegion>,
    pub(super) striped: StripeLayout,
    pub(super) sector_bytes: u32,
}

/// The state of a slot, under its lock.
pub(super) struct SlotState<Q: HardwareQueue, P: ThreadPlatform> {
    resources: SlotResources<Q, P>,
    state: WaiterState,
}

/// Access to the state of a slot.
pub(super) type SlotGuard<'a, Q, P> =
    <<P as Platform>::Lock<SlotState<Q, P>> as Lock<SlotState<Q, P>>>::Guard<'a>;

/// The slot of one thread's request.
pub(super) struct WaiterSlot<Q: HardwareQueue, P: ThreadPlatform> {
    state: P::Lock<SlotState<Q, P>>,
    /// The thread that is bound to the slot.
    thread: OnceLock<P::Thread>,
    stats: Arc<WaiterStats>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> WaiterSlot<Q, P> {
    pub(super) fn new(equipment: SlotResources<Q, P>) -> WaiterSlot<Q, P> {
        WaiterSlot {
            state: P::Lock::new(SlotState { resources: equipment, state: WaiterState::Idle }),
            thread: OnceLock::new(),
            stats: Arc::default(),
        }
    }

    pub(super) fn stats(&self) -> &Arc<WaiterStats> {
        &self.stats
    }

    /// Locks the slot. Ignores poisoning: after a panic the request is still in flight, and others
    /// may finish it.
    pub(super) fn lock(&self) -> SlotGuard<'_, Q, P> {
        self.state.lock()
    }

    /// Binds the calling thread to the slot.
    pub(super) fn bind_thread(&self) {
        let _ = self.thread.set(P::current());
    }

    /// Wakes the thread, or makes its next sleep return at once.
    #[inline]
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            P::unpark(thread);
        }
    }

    /// Post-processes, on the thread's behalf, completions of `member`. Returns whether the thread
    /// must be woken.
    pub(super) fn post_process(
        &self,
        now: Nanos,
        member: u16,
        news: &mut Vec<CompletionNotice>,
    ) -> bool {
        let mut papers = self.lock();
        let flying = papers.is_in_flight();
        papers.receive_from(now, member.into(), &self.stats, news);
        let done = flying && !papers.is_in_flight();
        self.stats.finished_by_others.add(done.into());
        done
    }

    /// Abandons the slot, because its thread is gone. A request in flight is executed and its
    /// completion dropped; the slot's memory stays registered for the device.
    pub(super) fn abandon(&self) {
        let mut papers = self.lock();
        self.stats.abandoned.add(papers.is_in_flight().into());
        papers.state = WaiterState::Idle;
        papers.resources.queues = Vec::new();
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> SlotState<Q, P> {
    /// Returns the thread's own memory.
    pub(super) fn buffer(&self) -> &Arc<SharedRegion> {
        &self.resources.buffer
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, WaiterState::Idle)
    }

    #[inline]
    fn is_in_flight(&self) -> bool {
        matches!(self.state, WaiterState::InFlight(_))
    }

    /// Completes a request without a device.
    pub(super) fn complete_early(&mut self, tag: u64, status: Status, stats: &WaiterStats) {
        stats.started.add(1);
        stats.complete(0, Nanos::ZERO, status.is_success());
        self.state = WaiterState::Completed(Completion { tag, status, result: 0 });
    }

    /// Removes and returns the completion.
    #[inline]
    pub(super) fn pop_completion(&mut self) -> Option<Completion> {
        let WaiterState::Completed(completion) = self.state else { return None };
        self.state = WaiterState::Idle;
        Some(completion)
    }

    /// Starts a checked request.
    ///
    /// Copies data to be written to the device's memory, submits a fragment to every member
    /// concerned, and issues as far as there are tags. Also reaps completions of those members that
    /// are in `collect`. Returns the time at which one of the members must be checked, and whether
    /// the request has been finished.
    pub(super) fn start(
        &mut self,
        now: Nanos,
        transfer: Transfer,
        collect: u64,
        stats: &WaiterStats,
        news: &mut Vec<CompletionNotice>,
    ) -> (Nanos, bool) {
        let Transfer { op, lba, sectors, at, fua, .. } = transfer;
        let SlotResources { bounce, slot_offset: slot, buffer, striped, sector_bytes, .. } =
            &self.resources;
        let bytes = match op {
            Op::Read | Op::Write => sectors as usize * *sector_bytes as usize,
            _ => 0,
        };
        if op == Op::Write {
            P::work(Step::CopyLine, lines(bytes));
            SharedRegion::copy(buffer, at, bounce, *slot, bytes);
        }
        let (striped, sector_bytes) = (*striped, u64::from(*sector_bytes));
        let flight = InFlightRequest {
            transfer,
            bytes,
            members: 0,
            fragments_remaining: 0,
            status: Status::SUCCESS,
            since: now,
        };
        self.state = WaiterState::InFlight(flight);
        stats.started.add(1);
        if op == Op::Flush {
            for member in 0..striped.members() {
                self.submit(now, member, Request::flush(0));
            }
        } else if bytes == 0 {
            for part in striped.member_extents(lba, sectors) {
                let read = Request::read(part.lba, part.sectors, Payload::BitBucket, 0);
                self.submit(now, part.member, Request { op, fua, ..read });
            }
        } else {
            for part in striped.fragments(lba, sectors) {
                let name = self.resources.slot_iovas[usize::from(part.member)];
                let data = Payload::Contiguous(name.offset(u64::from(part.offset) * sector_bytes));
                let read = Request::read(part.lba, part.sectors, data, 0);
                self.submit(now, part.member, Request { op, fua, ..read });
            }
        }
        let mut due = Nanos::MAX;
        for member in self.members() {
            if let Some(queue) = self.resources.queues.get_mut(member) {
                let scope = if collect >> member & 1 != 0 { RunScope::ALL } else { RunScope::RUN };
                queue.run_scope(now, scope);
                due = due.min(queue.due);
                drain_notices(member, queue, news);
            }
        }
        // Completed by the block layer itself, or found during the run.
        let mut is_finished = self.receive(now, stats, news);
        // A request without fragments.
        is_finished |= self.complete_fragments(now, 0, Status::SUCCESS, stats);
        (due, is_finished)
    }

    fn submit(&mut self, now: Nanos, member: u16, request: Request) {
        let WaiterState::InFlight(flight) = &mut self.state else { return };
        let queue = self.resources.queues.get_mut(usize::from(member));
        // The queue depth suffices for every fragment of one request.
        match queue.map(|queue| queue.submit(now, request)) {
            Some(Ok(())) => {
                flight.fragments_remaining += 1;
                flight.members |= 1 << member;
            }
            _ => flight.status = Status::ABORTED,
        }
    }

    /// Receives completions of any member that others found for this slot. Returns whether that
    /// finished the request.
    #[inline]
    pub(super) fn receive(
        &mut self,
        now: Nanos,
        stats: &WaiterStats,
        news: &mut Vec<CompletionNotice>,
    ) -> bool {
        let mut is_finished = false;
        for member in self.members() {
            is_finished |= self.receive_from(now, member, stats, news);
        }
        is_finished
    }

    /// Returns the members that have fragments of the request in flight.
    #[inline]
    fn members(&self) -> impl Iterator<Item = usize> + use<Q, P> {
        let mut left =
            if let WaiterState::InFlight(flight) = &self.state { flight.members } else { 0 };
        std::iter::from_fn(move || {
            let member = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(member)
        })
    }

    #[inline]
    fn receive_from(
        &mut self,
        now: Nanos,
        member: usize,
        stats: &WaiterStats,
        news: &mut Vec<CompletionNotice>,
    ) -> bool {
        let Some(queue) = self.resources.queues.get_mut(member) else { return false };
        P::work(Step::Collect, 1);
        queue.receive_only(now);
        let (mut count, mut status) = (0, Status::SUCCESS);
        while let Some(completion) = queue.reap() {
            count += 1;
            if status.is_success() {
                status = completion.status;
            }
        }
        drain_notices(member, queue, news);
        count > 0 && self.complete_fragments(now, count, status, stats)
    }

    /// Records that fragments have completed. Post-processes the request after the last one; returns
    /// whether it was.
    #[inline]
    fn complete_fragments(
        &mut self,
        now: Nanos,
        parts: u32,
        status: Status,
        stats: &WaiterStats,
    ) -> bool {
        let WaiterState::InFlight(flight) = &mut self.state else { return false };
        flight.fragments_remaining -= parts.min(flight.fragments_remaining);
        if flight.status.is_success() {
            flight.status = status;
        }
        if flight.fragments_remaining > 0 {
            return false;
        }
        let InFlightRequest { transfer, bytes, status, since, .. } = *flight;
        let SlotResources { bounce, slot_offset: slot, buffer, .. } = &self.resources;
        if transfer.op == Op::Read && status.is_success() {
            P::work(Step::CopyLine, lines(bytes));
            SharedRegion::copy(bounce, *slot, buffer, transfer.at, bytes);
        }
        P::work(Step::Finish, 1);
        stats.complete(bytes as u64, now.since(since), status.is_success());
        self.state = WaiterState::Completed(Completion { tag: transfer.tag, status, result: 0 });
        true
    }

    /// Runs the queues of `members` that no other thread is running, on behalf of all submitters
    /// (polling is for the whole controller, [HIOPS14 §3.3]).
    #[inline]
    pub(super) fn try_run(&mut self, now: Nanos, members: u64, news: &mut Vec<CompletionNotice>) {
        let mut left = members;
        while left != 0 {
            let member = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(queue) = self.resources.queues.get_mut(member) else { return };
            queue.try_run(now);
            drain_notices(member, queue, news);
        }
    }
}
