//! [`WaiterSlot`]: one thread's request, from its start until somebody has finished it.
//!
//! Post-processing is what is left when the device is done: the data is copied from the memory that
//! the device wrote to into the thread's own, the slot becomes free, and the request is accounted.
//! Who does it is the strategy's choice (HIOPS section 3.3, lazy I/O processing): the thread itself,
//! or a context on its behalf. Both do the same thing under the desk's lock, which nobody contends
//! for while the thread finishes its own.
//!
//! Guarantee: a request that was started is finished once, by whoever comes first, and stays until
//! its thread has taken the outcome. Lock order: a desk, then a path of the block layer; nobody holds
//! two desks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use clock::Nanos;
use driver::HardwareQueue;
use nvme::Status;
use ring::{Iova, SharedRegion};

use super::stats::WaiterStats;
use super::striped::StripeLayout;
use super::transfer::Transfer;
use crate::queue::RunScope;
use crate::{BlockDevice, Completion, Op, Payload, Queue, Request, Submitter};

/// Somebody got a completion: the member that it is of, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletionNotice {
    pub(super) member: u16,
    pub(super) submitter: Submitter,
}

/// Takes the news that a queue of `member` has.
#[inline]
pub(super) fn drain_notices<Q: HardwareQueue>(
    member: usize,
    queue: &mut Queue<Q>,
    into: &mut Vec<CompletionNotice>,
) {
    let member = member as u16;
    into.extend(queue.notices().drain(..).map(|submitter| CompletionNotice { member, submitter }));
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct InFlightRequest {
    transfer: Transfer,
    bytes: usize,
    /// Members that have parts of it, one bit each.
    members: u64,
    /// Parts that have not ended.
    fragments_remaining: u32,
    /// The first that went wrong.
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

/// What a desk is made of.
pub(super) struct SlotResources<Q: HardwareQueue> {
    /// The thread's ends of the members' block layers.
    pub(super) queues: Vec<Queue<Q>>,
    /// What devices read and write, of all desks.
    pub(super) bounce: Arc<SharedRegion>,
    /// Where this desk's slot begins.
    pub(super) slot_offset: usize,
    /// The slot as each member's device names it.
    pub(super) slot_iovas: Box<[Iova]>,
    /// The thread's own memory.
    pub(super) buffer: Arc<SharedRegion>,
    pub(super) striped: StripeLayout,
    pub(super) sector_bytes: u32,
}

/// What is on a desk.
pub(super) struct SlotState<Q: HardwareQueue> {
    resources: SlotResources<Q>,
    state: WaiterState,
}

/// One thread's request.
pub(super) struct WaiterSlot<Q: HardwareQueue> {
    state: Mutex<SlotState<Q>>,
    /// Who sits here.
    thread: OnceLock<Thread>,
    stats: Arc<WaiterStats>,
}

impl<Q: HardwareQueue> WaiterSlot<Q> {
    pub(super) fn new(equipment: SlotResources<Q>) -> WaiterSlot<Q> {
        WaiterSlot {
            state: Mutex::new(SlotState { resources: equipment, state: WaiterState::Idle }),
            thread: OnceLock::new(),
            stats: Arc::default(),
        }
    }

    pub(super) fn stats(&self) -> &Arc<WaiterStats> {
        &self.stats
    }

    /// A panic under the lock leaves a request that is still under way, which others may finish.
    pub(super) fn lock(&self) -> MutexGuard<'_, SlotState<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread sits here from now on.
    pub(super) fn bind_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Wakes the thread, or keeps it from falling asleep next time.
    #[inline]
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Finishes, on the thread's behalf, what has ended of `member`. Returns whether the thread must
    /// be woken.
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

    /// The thread is gone. What is under way is carried out, and nobody hears of it; its slot stays
    /// as it is, for the device.
    pub(super) fn abandon(&self) {
        let mut papers = self.lock();
        self.stats.abandoned.add(papers.is_in_flight().into());
        papers.state = WaiterState::Idle;
        papers.resources.queues = Vec::new();
    }
}

impl<Q: HardwareQueue> SlotState<Q> {
    /// The thread's own memory.
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

    /// Answers a request that no device is asked about.
    pub(super) fn complete_early(&mut self, tag: u64, status: Status, stats: &WaiterStats) {
        stats.started.add(1);
        stats.complete(0, Nanos::ZERO, status.is_success());
        self.state = WaiterState::Completed(Completion { tag, status, result: 0 });
    }

    /// The outcome, once.
    #[inline]
    pub(super) fn pop_completion(&mut self) -> Option<Completion> {
        let WaiterState::Completed(completion) = self.state else { return None };
        self.state = WaiterState::Idle;
        Some(completion)
    }

    /// Starts a checked request: copies what is to be written to where the device reads it, stages a
    /// part with every member that has some of it, and issues as far as there is room; collects, too,
    /// from those of them that are among `collect`.
    /// Returns when one of them must be looked at, whatever else happens.
    pub(super) fn start(
        &mut self,
        now: Nanos,
        transfer: Transfer,
        collect: u64,
        stats: &WaiterStats,
        news: &mut Vec<CompletionNotice>,
    ) -> Nanos {
        let Transfer { op, lba, sectors, at, fua, .. } = transfer;
        let SlotResources { bounce, slot_offset: slot, buffer, striped, sector_bytes, .. } =
            &self.resources;
        let bytes = match op {
            Op::Read | Op::Write => sectors as usize * *sector_bytes as usize,
            _ => 0,
        };
        if op == Op::Write {
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
        // Answered by the block layer itself, or found on the way.
        self.receive(now, stats, news);
        // A request without parts.
        self.complete_fragments(now, 0, Status::SUCCESS, stats);
        due
    }

    fn submit(&mut self, now: Nanos, member: u16, request: Request) {
        let WaiterState::InFlight(flight) = &mut self.state else { return };
        let queue = self.resources.queues.get_mut(usize::from(member));
        // There is room for every part of one request.
        match queue.map(|queue| queue.submit(now, request)) {
            Some(Ok(())) => {
                flight.fragments_remaining += 1;
                flight.members |= 1 << member;
            }
            _ => flight.status = Status::ABORTED,
        }
    }

    /// Takes in what others found for this desk, of any member.
    #[inline]
    pub(super) fn receive(
        &mut self,
        now: Nanos,
        stats: &WaiterStats,
        news: &mut Vec<CompletionNotice>,
    ) {
        for member in self.members() {
            self.receive_from(now, member, stats, news);
        }
    }

    /// The members that have parts of the request under way.
    #[inline]
    fn members(&self) -> impl Iterator<Item = usize> + use<Q> {
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
    ) {
        let Some(queue) = self.resources.queues.get_mut(member) else { return };
        queue.receive_only(now);
        let (mut count, mut status) = (0, Status::SUCCESS);
        while let Some(completion) = queue.reap() {
            count += 1;
            if status.is_success() {
                status = completion.status;
            }
        }
        drain_notices(member, queue, news);
        if count > 0 {
            self.complete_fragments(now, count, status, stats);
        }
    }

    /// Parts have ended. Post-processes the request if they were the last.
    #[inline]
    fn complete_fragments(&mut self, now: Nanos, parts: u32, status: Status, stats: &WaiterStats) {
        let WaiterState::InFlight(flight) = &mut self.state else { return };
        flight.fragments_remaining -= parts.min(flight.fragments_remaining);
        if flight.status.is_success() {
            flight.status = status;
        }
        if flight.fragments_remaining > 0 {
            return;
        }
        let InFlightRequest { transfer, bytes, status, since, .. } = *flight;
        let SlotResources { bounce, slot_offset: slot, buffer, .. } = &self.resources;
        if transfer.op == Op::Read && status.is_success() {
            SharedRegion::copy(bounce, *slot, buffer, transfer.at, bytes);
        }
        stats.complete(bytes as u64, now.since(since), status.is_success());
        self.state = WaiterState::Completed(Completion { tag: transfer.tag, status, result: 0 });
    }

    /// Looks at `members`, on everybody's behalf, where nobody else does (HIOPS section 3.3: polling
    /// is for the whole controller).
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
