//! [`Common`]: what threads and contexts share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;

use clock::{Nanos, RealClock, Waker};
use driver::{HardwareQueue, Op};

use super::desk::{Desk, News};
use super::hybrid::{Governor, Mode};
use super::line::Source;
use super::strategy::{Interrupt, Issue, Notify, Strategy};
use super::striped::Striped;
use super::transfer::Transfer;
use super::waiter::WaitError;
use crate::DispatchStats;

/// What a strategy, in its present mode, means to who passes by: one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behaviour(u8);

impl Behaviour {
    const LAZY: u8 = 1;
    const COOP: u8 = 1 << 1;
    const NON_BLOCKING: u8 = 1 << 2;
    const SOFT: u8 = 1 << 3;
    const THREADED: u8 = 1 << 4;
    const POLLING: u8 = 1 << 5;
    const HYBRID: u8 = 1 << 6;

    /// The behaviour of a strategy; a hybrid one begins with interrupts.
    fn of(strategy: &Strategy) -> Behaviour {
        let notify = match strategy.notify {
            Notify::Interrupt(Interrupt::SoftIrq) => Behaviour::SOFT,
            Notify::Interrupt(Interrupt::ThreadedIrq) => Behaviour::THREADED,
            Notify::Interrupt(Interrupt::Direct) => 0,
            Notify::Poll { .. } => Behaviour::POLLING,
            Notify::Hybrid(_) => Behaviour::HYBRID,
        };
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        Behaviour(
            notify
                | flag(strategy.lazy, Behaviour::LAZY)
                | flag(strategy.coop, Behaviour::COOP)
                | flag(strategy.issue == Issue::NonBlocking, Behaviour::NON_BLOCKING),
        )
    }

    /// Waiters post-process their own requests.
    #[inline]
    pub(super) fn lazy(self) -> bool {
        self.0 & Behaviour::LAZY != 0
    }

    /// Waiters look after others.
    #[inline]
    pub(super) fn coop(self) -> bool {
        self.0 & Behaviour::COOP != 0
    }

    /// Whoever frees a tag issues.
    #[inline]
    pub(super) fn non_blocking(self) -> bool {
        self.0 & Behaviour::NON_BLOCKING != 0
    }

    /// The soft interrupt post-processes.
    #[inline]
    fn soft(self) -> bool {
        self.0 & Behaviour::SOFT != 0
    }

    /// The handler only wakes its thread.
    #[inline]
    pub(super) fn threaded(self) -> bool {
        self.0 & Behaviour::THREADED != 0
    }

    /// The poll thread looks.
    #[inline]
    pub(super) fn polling(self) -> bool {
        self.0 & Behaviour::POLLING != 0
    }

    /// The mode changes by itself.
    #[inline]
    pub(super) fn hybrid(self) -> bool {
        self.0 & Behaviour::HYBRID != 0
    }
}

/// Whom contexts tell to go on.
#[derive(Debug)]
pub(super) struct Wakers {
    pub(super) hard: Waker,
    pub(super) soft: Waker,
    pub(super) irq_thread: Waker,
    pub(super) queue_run: Waker,
    pub(super) poll: Thread,
    pub(super) watch: Thread,
}

/// What somebody did for others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    pub(super) finished: u64,
    pub(super) woken: u64,
}

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) striped: Striped,
    pub(super) sector_bytes: u32,
    /// Bytes of a request at most.
    pub(super) request_bytes: u32,
    /// How often the watch looks by itself.
    pub(super) watch_period: Nanos,
}

/// What threads and contexts share.
pub(super) struct Common<Q: HardwareQueue> {
    pub(super) clock: RealClock,
    pub(super) shape: Shape,
    pub(super) source: Source,
    /// By thread.
    pub(super) desks: Box<[Desk<Q>]>,
    /// By member: what the hardware has done.
    pub(super) dispatch: Box<[Arc<DispatchStats>]>,
    /// There are no contexts any more.
    pub(super) closed: AtomicBool,
    pub(super) wakers: OnceLock<Wakers>,
    /// When it must look at the latest, in nanoseconds.
    remind_at: AtomicU64,
    /// What the soft interrupt is to see to.
    pub(super) soft_mail: Mutex<Vec<News>>,
    behaviour: AtomicU8,
    /// Of the poll thread, in nanoseconds; 0 if it does not poll.
    poll_interval: AtomicU64,
    governor: Mutex<Option<Governor>>,
}

impl<Q: HardwareQueue> Common<Q> {
    /// Nobody polls, and there are no contexts, until a strategy is adopted.
    pub(super) fn new(
        shape: Shape,
        source: Source,
        desks: Box<[Desk<Q>]>,
        dispatch: Box<[Arc<DispatchStats>]>,
    ) -> Common<Q> {
        Common {
            clock: RealClock::start(),
            shape,
            source,
            desks,
            dispatch,
            closed: AtomicBool::new(false),
            wakers: OnceLock::new(),
            soft_mail: Mutex::default(),
            remind_at: AtomicU64::new(u64::MAX),
            behaviour: AtomicU8::new(0),
            poll_interval: AtomicU64::new(0),
            governor: Mutex::new(None),
        }
    }

    /// Every member, one bit each.
    pub(super) fn all(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.shape.striped.members()).clamp(1, 64))
    }

    #[inline]
    pub(super) fn behaviour(&self) -> Behaviour {
        Behaviour(self.behaviour.load(Ordering::Acquire))
    }

    /// Whether a request can be started at all.
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
            return Err(WaitError::TooLong { bytes, most: self.shape.request_bytes });
        }
        if (transfer.at as u64).checked_add(bytes).is_none_or(|end| end > buffer as u64) {
            return Err(WaitError::Buffer { at: transfer.at, bytes, len: buffer });
        }
        Ok(())
    }

    /// Sees to those who got something, as the strategy has it: they are woken to finish by
    /// themselves, or left to the soft interrupt, or finished here and woken. The caller sits at no
    /// desk and holds no lock of the block layer.
    pub(super) fn deliver(&self, now: Nanos, news: &mut Vec<News>) -> Delivered {
        let mut delivered = Delivered::default();
        if news.is_empty() {
            return delivered;
        }
        let behaviour = self.behaviour();
        if behaviour.lazy() {
            delivered.woken = news.len() as u64;
            for item in news.drain(..) {
                self.desk(item).wake();
            }
        } else if behaviour.soft() {
            self.mail().append(news);
            if let Some(wakers) = self.wakers.get() {
                wakers.soft.wake();
            }
        } else {
            delivered = self.finish_all(now, news);
        }
        delivered
    }

    /// Finishes what the threads got, and wakes them.
    pub(super) fn finish_all(&self, now: Nanos, news: &mut Vec<News>) -> Delivered {
        let mut delivered = Delivered::default();
        let mut next = 0;
        // Finishing one can be news for another.
        while let Some(item) = news.get(next).copied() {
            next += 1;
            let desk = self.desk(item);
            if desk.finish(now, item.member, news) {
                delivered.finished += 1;
                delivered.woken += 1;
                desk.wake();
            }
        }
        news.clear();
        delivered
    }

    #[inline]
    fn desk(&self, news: News) -> &Desk<Q> {
        // Only threads submit, so only they get something.
        &self.desks[usize::from(news.submitter.0)]
    }

    pub(super) fn mail(&self) -> MutexGuard<'_, Vec<News>> {
        self.soft_mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completions so far, of all members.
    fn ended(&self) -> u64 {
        self.dispatch.iter().map(|stats| stats.ended.get()).sum()
    }

    /// A member must be looked at by `due`, whatever else happens: a reset goes on, or a device that
    /// was busy is asked again.
    #[inline]
    pub(super) fn remind(&self, now: Nanos, due: Nanos) {
        if due.since(now) < self.shape.watch_period {
            self.remind_soon(due);
        }
    }

    #[cold]
    fn remind_soon(&self, due: Nanos) {
        if due.0 < self.remind_at.fetch_min(due.0, Ordering::AcqRel)
            && let Some(wakers) = self.wakers.get()
        {
            wakers.watch.unpark();
        }
    }

    /// After how long the watch looks again.
    pub(super) fn watch_interval(&self) -> Nanos {
        let due = Nanos(self.remind_at.load(Ordering::Acquire));
        due.since(self.clock.now()).min(self.shape.watch_period)
    }

    /// Whether the watch was reminded of something that is due.
    pub(super) fn take_reminder(&self, now: Nanos) -> bool {
        let due = self.remind_at.load(Ordering::Acquire) <= now.0;
        if due {
            self.remind_at.store(u64::MAX, Ordering::Release);
        }
        due
    }

    /// Changes the mode of a hybrid strategy if the load asks for it; for contexts, after each run.
    pub(super) fn govern(&self, now: Nanos) {
        if !self.behaviour().hybrid() {
            return;
        }
        // Whoever has it looks at the same load.
        let mut governor = match self.governor.try_lock() {
            Ok(governor) => governor,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let depth = || self.desks.iter().map(|desk| desk.stats().under_way()).sum();
        let mode = governor.as_mut().and_then(|governor| governor.look(now, self.ended(), depth));
        if let Some(mode) = mode {
            self.set_polling(mode == Mode::Poll);
        }
    }

    pub(super) fn governor(&self) -> MutexGuard<'_, Option<Governor>> {
        self.governor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows another strategy from now on.
    pub(super) fn adopt(&self, strategy: &Strategy) {
        let mut governor = self.governor();
        *governor = match strategy.notify {
            Notify::Hybrid(hybrid) => Some(Governor::new(hybrid, self.clock.now(), self.ended())),
            _ => None,
        };
        let interval = strategy.interval().unwrap_or(Nanos::ZERO);
        self.poll_interval.store(interval.0, Ordering::Release);
        let behaviour = Behaviour::of(strategy);
        self.behaviour.store(behaviour.0, Ordering::Release);
        self.set_polling(behaviour.polling());
    }

    /// Begins or ends polling. The caller has the governor.
    fn set_polling(&self, on: bool) {
        let Some(wakers) = self.wakers.get() else { return };
        if on {
            self.behaviour.fetch_or(Behaviour::POLLING, Ordering::AcqRel);
            if let Source::Line(line) = &self.source {
                line.mask();
            }
            wakers.poll.unpark();
        } else {
            self.behaviour.fetch_and(!Behaviour::POLLING, Ordering::AcqRel);
            match &self.source {
                Source::Line(line) => line.unmask(),
                // What was raised meanwhile was not heeded.
                Source::Queues => wakers.hard.wake(),
            }
        }
    }

    /// After how long the poll thread looks again; `None` while there is none to look.
    pub(super) fn poll_interval(&self) -> Option<Nanos> {
        let interval = self.poll_interval.load(Ordering::Acquire);
        (self.behaviour().polling() && interval > 0).then_some(Nanos(interval))
    }
}
