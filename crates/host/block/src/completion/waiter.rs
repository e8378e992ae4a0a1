//! [`BlockingQueue`] and [`Waiter`]: the endpoint of a thread that waits for its requests.
//!
//! A thread has one request at a time. It sleeps ([`ThreadPlatform::park`]); the thread or context that
//! finishes its request, or finds its completion, wakes it. Under a cooperative strategy the thread
//! runs the queues of the whole controller when it submits and when it wakes ([HIOPS14 §3.3]). Under
//! a lazy strategy it wakes on the CPU where it went to sleep.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use driver::{HardwareQueue, Op};
use mem::SharedRegion;
use nvme::Status;
use time::Nanos;

use super::shared::CompletionShared;
use super::stats::WaiterStats;
use super::transfer::Transfer;
use super::waiter_slot::CompletionNotice;
use crate::Completion;
use crate::sync::{Native, Step, ThreadPlatform};

/// Time that waiters sleep between two polls of their own, when there are no contexts.
const SELF_POLL_PERIOD: Nanos = Nanos::from_micros(100);

/// The reason why a request was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The thread's previous request has not completed.
    #[error("the previous request of this thread has not completed: wait for it first")]
    AlreadyInFlight,
    /// The request exceeds the size of a slot.
    #[error("the request has {bytes} bytes: the maximum is {max}")]
    TooLong {
        /// Size of the request, in bytes.
        bytes: u64,
        /// Maximum size of a request, in bytes.
        max: u32,
    },
    /// The data is not within the thread's memory.
    #[error("bytes {at}..+{bytes} exceed the thread's memory of {len} bytes")]
    Buffer {
        /// Offset of the data.
        at: usize,
        /// Length of the data, in bytes.
        bytes: u64,
        /// Size of the thread's memory, in bytes.
        len: usize,
    },
    /// Extent queries are not supported for waiting threads.
    #[error("extent queries are not supported for waiting threads")]
    Query,
}

/// An endpoint for one thread, which no thread has entered yet.
pub struct BlockingQueue<Q: HardwareQueue, P: ThreadPlatform = Native> {
    shared: Arc<CompletionShared<Q, P>>,
    index: u16,
    entered: bool,
}

impl<Q: HardwareQueue, P: ThreadPlatform> std::fmt::Debug for BlockingQueue<Q, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockingQueue").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> BlockingQueue<Q, P> {
    pub(super) fn new(shared: Arc<CompletionShared<Q, P>>, index: u16) -> BlockingQueue<Q, P> {
        BlockingQueue { shared, index, entered: false }
    }

    /// Binds the endpoint to the calling thread, which is woken from now on.
    pub fn enter(mut self) -> Waiter<Q, P> {
        self.entered = true;
        let common = self.shared.clone();
        let desk = &common.waiter_slots[usize::from(self.index)];
        desk.bind_thread();
        let (stats, buffer) = (desk.stats().clone(), desk.lock().buffer().clone());
        Waiter {
            shared: common,
            index: self.index,
            notices: Vec::new(),
            cpus: P::cpus(),
            stats,
            buffer,
            here: PhantomData,
        }
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> Drop for BlockingQueue<Q, P> {
    fn drop(&mut self) {
        if !self.entered {
            self.shared.waiter_slots[usize::from(self.index)].abandon();
        }
    }
}

/// The endpoint of the thread that entered it. Dropping it abandons a request in flight.
pub struct Waiter<Q: HardwareQueue, P: ThreadPlatform = Native> {
    shared: Arc<CompletionShared<Q, P>>,
    index: u16,
    notices: Vec<CompletionNotice>,
    /// CPUs on which the thread may run.
    cpus: P::Cpus,
    stats: Arc<WaiterStats>,
    buffer: Arc<SharedRegion>,
    /// Makes the type neither `Send` nor `Sync`: others wake this thread.
    here: PhantomData<*const ()>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> std::fmt::Debug for Waiter<Q, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> Waiter<Q, P> {
    /// Returns the thread's own memory, which transfers address by offset.
    pub fn buffer(&self) -> &Arc<SharedRegion> {
        &self.buffer
    }

    /// Returns the sector size in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.shared.shape.sector_bytes
    }

    /// Returns the counters of the thread's requests.
    pub fn stats(&self) -> &Arc<WaiterStats> {
        &self.stats
    }

    /// Reads sectors to byte `at` of the thread's memory, and waits for completion.
    ///
    /// # Errors
    /// [`WaitError`] if the request was not started. Later errors are in the completion's status.
    pub fn read_at(&mut self, lba: u64, sectors: u32, at: usize) -> Result<Completion, WaitError> {
        self.submit_and_wait(Transfer::read(lba, sectors, at))
    }

    /// Writes sectors from byte `at` of the thread's memory, and waits for completion.
    ///
    /// # Errors
    /// As [`read_at`](Waiter::read_at).
    pub fn write_at(&mut self, lba: u64, sectors: u32, at: usize) -> Result<Completion, WaitError> {
        self.submit_and_wait(Transfer::write(lba, sectors, at))
    }

    /// Starts a request and waits for its completion.
    ///
    /// # Errors
    /// [`WaitError`] if the request was not started.
    pub fn submit_and_wait(&mut self, transfer: Transfer) -> Result<Completion, WaitError> {
        self.submit(transfer)?;
        loop {
            // Without a time limit the request completes.
            if let Some(completion) = self.wait(Nanos::MAX) {
                return Ok(completion);
            }
        }
    }

    /// Starts a request, whose completion [`wait`](Waiter::wait) returns.
    ///
    /// # Errors
    /// [`WaitError`] if the request was not started.
    #[inline]
    pub fn submit(&mut self, transfer: Transfer) -> Result<(), WaitError> {
        P::work(Step::KernelStart, 1);
        P::work(Step::WaitSubmit, 1);
        let common = &*self.shared;
        common.check(&transfer, self.buffer.len())?;
        let behaviour = common.flags();
        let now = P::now();
        let desk = &common.waiter_slots[usize::from(self.index)];
        let mut papers = desk.lock();
        if !papers.is_idle() {
            return Err(WaitError::AlreadyInFlight);
        }
        if !common.shape.striped.contains(transfer.lba, transfer.sectors.into()) {
            papers.complete_early(transfer.tag, Status::LBA_OUT_OF_RANGE, &self.stats);
            return Ok(());
        }
        if transfer.sectors == 0 && transfer.op != Op::Flush {
            papers.complete_early(transfer.tag, Status::INVALID_FIELD, &self.stats);
            return Ok(());
        }
        let collect =
            if behaviour.is_coop() { common.source.pending(common.all_members()) } else { 0 };
        let (due, is_finished) =
            papers.start(now, transfer, collect, &self.stats, &mut self.notices);
        drop(papers);
        P::work(Step::KernelFinish, is_finished.into());
        common.schedule_watch(now, due);
        self.deliver_notices(now);
        Ok(())
    }

    /// Waits for the started request, for at most `patience` ([`Nanos::MAX`]: no limit). Returns
    /// `None` if there is none, or if it is still in flight.
    pub fn wait(&mut self, patience: Nanos) -> Option<Completion> {
        let until = match patience {
            Nanos::MAX => Nanos::MAX,
            patience => P::now() + patience,
        };
        loop {
            P::work(Step::Resume, 1);
            let now = P::now();
            let desk = &self.shared.waiter_slots[usize::from(self.index)];
            let mut papers = desk.lock();
            let mut is_finished = papers.receive(now, &self.stats, &mut self.notices);
            let closed = self.shared.closed.load(Ordering::Acquire);
            let mut done = papers.pop_completion();
            if closed || (done.is_some() && self.shared.flags().is_coop()) {
                let all = self.shared.all_members();
                let members = if closed { all } else { self.shared.source.pending(all) };
                papers.try_run(now, members, &mut self.notices);
                is_finished |= papers.receive(now, &self.stats, &mut self.notices);
                done = done.or_else(|| papers.pop_completion());
            }
            let over = done.is_some() || papers.is_idle() || now >= until;
            drop(papers);
            P::work(Step::KernelFinish, is_finished.into());
            self.deliver_notices(now);
            if over {
                return done;
            }
            self.sleep(if until == Nanos::MAX { until } else { until.since(now) }, closed);
        }
    }

    /// Delivers the notices that this thread has collected.
    #[inline]
    fn deliver_notices(&mut self, now: Nanos) {
        if !self.notices.is_empty() {
            let woken = self.shared.deliver(now, &mut self.notices);
            self.stats.woken.add(woken.woken);
        }
    }

    /// Sleeps until woken; spurious returns are possible.
    fn sleep(&self, left: Nanos, closed: bool) {
        self.stats.sleeps.add(1);
        let limit = if closed { SELF_POLL_PERIOD } else { left };
        // Wake on the CPU where the thread went to sleep ([HIOPS14 §3.3]).
        P::park(limit, self.shared.flags().is_lazy().then_some(&self.cpus));
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> Drop for Waiter<Q, P> {
    fn drop(&mut self) {
        self.shared.waiter_slots[usize::from(self.index)].abandon();
    }
}
