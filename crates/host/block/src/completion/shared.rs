//! [`CompletionShared`]: the state that threads and contexts share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use driver::{HardwareQueue, Op};
use event::Waker;
use time::Nanos;

use super::hybrid::{Governor, HybridStats, Mode};
use super::interrupt_line::InterruptSource;
use super::strategy::{Interrupt, Issue, Notify, Strategy};
use super::transfer::Transfer;
use super::waiter::WaitError;
use super::waiter_slot::{CompletionNotice, WaiterSlot};
use crate::DispatchStats;
use crate::StripeLayout;
use crate::sync::{Lock, Step, ThreadPlatform};

/// The behavior of a strategy in its current mode, as flags in one atomic load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StrategyFlags(u8);

impl StrategyFlags {
    const LAZY: u8 = 1;
    const COOP: u8 = 1 << 1;
    const NON_BLOCKING: u8 = 1 << 2;
    const SOFT_IRQ: u8 = 1 << 3;
    const THREADED: u8 = 1 << 4;
    const POLLING: u8 = 1 << 5;
    const HYBRID: u8 = 1 << 6;

    /// Returns the flags of a strategy; a hybrid one starts in interrupt mode.
    fn from_strategy(strategy: &Strategy) -> StrategyFlags {
        let notify = match strategy.notify {
            Notify::Interrupt(Interrupt::SoftIrq) => StrategyFlags::SOFT_IRQ,
            Notify::Interrupt(Interrupt::ThreadedIrq) => StrategyFlags::THREADED,
            Notify::Interrupt(Interrupt::Direct) => 0,
            Notify::Poll { .. } => StrategyFlags::POLLING,
            Notify::Hybrid(_) => StrategyFlags::HYBRID,
        };
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        StrategyFlags(
            notify
                | flag(strategy.lazy, StrategyFlags::LAZY)
                | flag(strategy.coop, StrategyFlags::COOP)
                | flag(strategy.issue == Issue::NonBlocking, StrategyFlags::NON_BLOCKING),
        )
    }

    /// Whether waiters post-process their own requests.
    #[inline]
    pub(super) fn is_lazy(self) -> bool {
        self.0 & StrategyFlags::LAZY != 0
    }

    /// Whether waiters do work for others.
    #[inline]
    pub(super) fn is_coop(self) -> bool {
        self.0 & StrategyFlags::COOP != 0
    }

    /// Whether the context that frees a tag issues requests.
    #[inline]
    pub(super) fn is_non_blocking(self) -> bool {
        self.0 & StrategyFlags::NON_BLOCKING != 0
    }

    /// Whether the soft interrupt post-processes.
    #[inline]
    fn is_soft_irq(self) -> bool {
        self.0 & StrategyFlags::SOFT_IRQ != 0
    }

    /// Whether the handler only wakes the interrupt thread.
    #[inline]
    pub(super) fn is_threaded(self) -> bool {
        self.0 & StrategyFlags::THREADED != 0
    }

    /// Whether the poll thread is active.
    #[inline]
    pub(super) fn is_polling(self) -> bool {
        self.0 & StrategyFlags::POLLING != 0
    }

    /// Whether the mode follows the load.
    #[inline]
    pub(super) fn is_hybrid(self) -> bool {
        self.0 & StrategyFlags::HYBRID != 0
    }
}

/// The wakers of the contexts.
#[derive(Debug)]
pub(super) struct Wakers<P: ThreadPlatform> {
    pub(super) hard: Waker,
    pub(super) soft: Waker,
    pub(super) irq_thread: Waker,
    pub(super) queue_run: Waker,
    pub(super) poll: P::Thread,
    pub(super) watch: P::Thread,
}

/// Counts of work done for others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeliveryCounts {
    pub(super) finished: u64,
    pub(super) woken: u64,
}

/// The fixed parameters of a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetShape {
    pub(super) striped: StripeLayout,
    pub(super) sector_bytes: u32,
    /// Maximum size of a request, in bytes.
    pub(super) request_bytes: u32,
    /// Period of the watch.
    pub(super) watch_period: Nanos,
}

/// The state that threads and contexts share.
pub(super) struct CompletionShared<Q: HardwareQueue, P: ThreadPlatform> {
    pub(super) shape: SetShape,
    pub(super) source: InterruptSource,
    /// Slots by thread.
    pub(super) waiter_slots: Box<[WaiterSlot<Q, P>]>,
    /// Counters of the hardware queues, by member.
    pub(super) dispatch: Box<[Arc<DispatchStats>]>,
    /// Whether the contexts have been stopped.
    pub(super) closed: AtomicBool,
    pub(super) wakers: OnceLock<Wakers<P>>,
    /// Latest time of the next check of the watch, in nanoseconds.
    watch_deadline: AtomicU64,
    /// Notices for the soft interrupt.
    soft_irq_notices: P::Lock<Vec<CompletionNotice>>,
    flags: AtomicU8,
    /// Interval of the poll thread, in nanoseconds; 0 if it is inactive.
    poll_interval: AtomicU64,
    governor: P::Lock<Option<Governor>>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> CompletionShared<Q, P> {
    /// Creates the state without contexts or polling;
    /// [`apply_strategy`](CompletionShared::apply_strategy) enables a strategy.
    pub(super) fn new(
        shape: SetShape,
        source: InterruptSource,
        waiter_slots: Box<[WaiterSlot<Q, P>]>,
        dispatch: Box<[Arc<DispatchStats>]>,
    ) -> CompletionShared<Q, P> {
        CompletionShared {
            shape,
            source,
            waiter_slots,
            dispatch,
            closed: AtomicBool::new(false),
            wakers: OnceLock::new(),
            soft_irq_notices: P::Lock::new(Vec::new()),
            watch_deadline: AtomicU64::new(u64::MAX),
            flags: AtomicU8::new(0),
            poll_interval: AtomicU64::new(0),
            governor: P::Lock::new(None),
        }
    }

    /// Returns the set of all members, one bit each.
    pub(super) fn all_members(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.shape.striped.members()).clamp(1, 64))
    }

    #[inline]
    pub(super) fn flags(&self) -> StrategyFlags {
        StrategyFlags(self.flags.load(Ordering::Acquire))
    }

    /// Checks whether a transfer can be started. `buffer` is the size of the thread's memory.
    #[inline]
    pub(super) fn check(&self, transfer: &Transfer, buffer: usize) -> Result<(), WaitError> {
        let bytes = match transfer.op {
            Op::Read | Op::Write => {
                u64::from(transfer.sectors) * u64::from(self.shape.sector_bytes)
            }
            Op::Extents => return Err(WaitError::Query),
            Op::Flush | Op::Discard | Op::WriteZeroes => return Ok(()),
        };
        if bytes > self.shape.request_bytes.into() {
            return Err(WaitError::TooLong { bytes, max: self.shape.request_bytes });
        }
        if (transfer.at as u64).checked_add(bytes).is_none_or(|end| end > buffer as u64) {
            return Err(WaitError::Buffer { at: transfer.at, bytes, len: buffer });
        }
        Ok(())
    }

    /// Delivers notices as the strategy says: wakes the waiters to finish by themselves, leaves
    /// them to the soft interrupt, or finishes them here and wakes them.
    ///
    /// The caller must hold no slot and no lock of the block layer.
    pub(super) fn deliver(&self, now: Nanos, news: &mut Vec<CompletionNotice>) -> DeliveryCounts {
        let mut delivered = DeliveryCounts::default();
        if news.is_empty() {
            return delivered;
        }
        P::work(Step::Notify, news.len() as u32);
        let behaviour = self.flags();
        if behaviour.is_lazy() {
            delivered.woken = news.len() as u64;
            for item in news.drain(..) {
                self.waiter_slot(item).wake();
            }
        } else if behaviour.is_soft_irq() {
            self.soft_irq_notices.lock().append(news);
            if let Some(wakers) = self.wakers.get() {
                wakers.soft.wake();
            }
        } else {
            delivered = self.post_process_all(now, news);
        }
        delivered
    }

    /// Post-processes the waiters' requests and wakes them.
    pub(super) fn post_process_all(
        &self,
        now: Nanos,
        news: &mut Vec<CompletionNotice>,
    ) -> DeliveryCounts {
        let mut delivered = DeliveryCounts::default();
        let mut next = 0;
        // Post-processing one request may add notices for others.
        while let Some(item) = news.get(next).copied() {
            next += 1;
            let desk = self.waiter_slot(item);
            if desk.post_process(now, item.member, news) {
                delivered.finished += 1;
                delivered.woken += 1;
                P::work(Step::KernelFinish, 1);
                desk.wake();
            }
        }
        news.clear();
        delivered
    }

    #[inline]
    fn waiter_slot(&self, news: CompletionNotice) -> &WaiterSlot<Q, P> {
        // Only threads submit requests, so only they get notices.
        &self.waiter_slots[usize::from(news.submitter.0)]
    }

    /// Exchanges the empty list `notices` for the notices of the soft interrupt.
    pub(super) fn take_soft_irq_notices(&self, notices: &mut Vec<CompletionNotice>) {
        std::mem::swap(notices, &mut *self.soft_irq_notices.lock());
    }

    /// Returns the number of completions of all members.
    fn completed_count(&self) -> u64 {
        self.dispatch.iter().map(|stats| stats.completed.get()).sum()
    }

    /// Makes the watch check the members at `due` at the latest: a reset is in progress, or a busy
    /// device has to be tried again.
    #[inline]
    pub(super) fn schedule_watch(&self, now: Nanos, due: Nanos) {
        if due.since(now) < self.shape.watch_period {
            self.wake_watch_by(due);
        }
    }

    #[cold]
    fn wake_watch_by(&self, due: Nanos) {
        if due.0 < self.watch_deadline.fetch_min(due.0, Ordering::AcqRel)
            && let Some(wakers) = self.wakers.get()
        {
            P::unpark(&wakers.watch);
        }
    }

    /// Returns the time until the next check of the watch.
    pub(super) fn watch_interval(&self) -> Nanos {
        let due = Nanos(self.watch_deadline.load(Ordering::Acquire));
        due.since(P::now()).min(self.shape.watch_period)
    }

    /// Returns whether a scheduled check is due, and clears it.
    pub(super) fn consume_watch_deadline(&self, now: Nanos) -> bool {
        let due = self.watch_deadline.load(Ordering::Acquire) <= now.0;
        if due {
            self.watch_deadline.store(u64::MAX, Ordering::Release);
        }
        due
    }

    /// Updates the mode of a hybrid strategy. Contexts call this after each run.
    pub(super) fn govern(&self, now: Nanos) {
        if !self.flags().is_hybrid() {
            return;
        }
        // If it is locked, the holder evaluates the same load.
        let Some(mut governor) = self.governor.try_lock() else { return };
        let depth = || self.waiter_slots.iter().map(|desk| desk.stats().in_flight()).sum();
        let mode = governor
            .as_mut()
            .and_then(|governor| governor.update(now, self.completed_count(), depth));
        if let Some(mode) = mode {
            self.set_polling(mode == Mode::Poll);
        }
    }

    /// Returns the counters of hybrid notification, if the strategy is hybrid.
    pub(super) fn hybrid(&self, now: Nanos) -> Option<HybridStats> {
        self.governor.lock().as_ref().map(|governor| governor.stats(now))
    }

    /// Applies another strategy.
    pub(super) fn apply_strategy(&self, strategy: &Strategy) {
        let mut governor = self.governor.lock();
        *governor = match strategy.notify {
            Notify::Hybrid(hybrid) => Some(Governor::new(hybrid, P::now(), self.completed_count())),
            _ => None,
        };
        let interval = strategy.interval().unwrap_or(Nanos::ZERO);
        self.poll_interval.store(interval.0, Ordering::Release);
        let behaviour = StrategyFlags::from_strategy(strategy);
        self.flags.store(behaviour.0, Ordering::Release);
        self.set_polling(behaviour.is_polling());
    }

    /// Starts or stops polling. The caller holds the lock of the governor.
    fn set_polling(&self, on: bool) {
        let Some(wakers) = self.wakers.get() else { return };
        if on {
            self.flags.fetch_or(StrategyFlags::POLLING, Ordering::AcqRel);
            if let InterruptSource::SharedLine(line) = &self.source {
                line.mask();
            }
            P::unpark(&wakers.poll);
        } else {
            self.flags.fetch_and(!StrategyFlags::POLLING, Ordering::AcqRel);
            match &self.source {
                InterruptSource::SharedLine(line) => line.unmask(),
                // Interrupts raised during polling were ignored.
                InterruptSource::PerQueue => wakers.hard.wake(),
            }
        }
    }

    /// Returns the time until the next poll; `None` while the poll thread is inactive.
    pub(super) fn poll_interval(&self) -> Option<Nanos> {
        let interval = self.poll_interval.load(Ordering::Acquire);
        (self.flags().is_polling() && interval > 0).then_some(Nanos(interval))
    }
}
