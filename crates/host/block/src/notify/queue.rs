//! [`NotifiedQueue`]: a hardware queue whose completions are noticed later than they arrive, in
//! virtual time.
//!
//! A command holds its tag until its completion is noticed. Each queue has a handler of its own; the
//! CPU time that the handler takes from submitters is not modelled.

use std::any::Any;
use std::collections::VecDeque;

use driver::{
    BindError, CompletionEvent, Features, HardwareQueue, Limits, LowLevelDriver, QueueState,
    Request, Tag, TagError, TagSet,
};
use event::Waker;
use mem::AddressSpace;
use time::Nanos;

use super::{CompletionMethod, HYBRID_POLL_TIME, NotifyConfig};

/// Counters of the notification of a hardware queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyStats {
    /// Number of interrupts.
    pub interrupts: u64,
    /// Number of polls of the timer that found a completion.
    pub polls: u64,
    /// Number of times that a submitter noticed completions before the handler ran.
    pub by_submitter: u64,
    /// Number of completions.
    pub completions: u64,
}

impl NotifyStats {
    /// Adds the counters of another queue.
    pub fn add(&mut self, other: &NotifyStats) {
        self.interrupts += other.interrupts;
        self.polls += other.polls;
        self.by_submitter += other.by_submitter;
        self.completions += other.completions;
    }
}

/// A hardware queue with the delay of its notifications.
#[derive(Debug)]
pub struct NotifiedQueue<Q> {
    queue: Q,
    config: NotifyConfig,
    /// Completions that have arrived and that the owner has not fetched.
    arrived: VecDeque<CompletionEvent>,
    /// When the first of them can be fetched.
    notice_at: Nanos,
    /// Until when the handler finishes requests that it has fetched.
    handler_free_at: Nanos,
    /// Time of the last request or fetched completion.
    active_at: Nanos,
    /// Time of the last call that had one.
    now: Nanos,
    stats: NotifyStats,
}

impl<Q: HardwareQueue> NotifiedQueue<Q> {
    /// Adds a delay to `queue`. No command may be outstanding.
    pub fn new(queue: Q, config: NotifyConfig) -> NotifiedQueue<Q> {
        let tags = queue.tags().count();
        NotifiedQueue {
            queue,
            config,
            arrived: VecDeque::with_capacity(tags.into()),
            notice_at: Nanos::MAX,
            handler_free_at: Nanos::ZERO,
            active_at: Nanos::ZERO,
            now: Nanos::ZERO,
            stats: NotifyStats::default(),
        }
    }

    /// Returns when the completion that has just arrived is noticed.
    fn announce(&mut self) -> Nanos {
        let now = self.now;
        match (self.config.policy.method, self.config.policy.poll_interval) {
            (CompletionMethod::Poll, Some(interval)) => {
                self.stats.polls += 1;
                Nanos(now.0.checked_next_multiple_of(interval.0.max(1)).unwrap_or(now.0))
            }
            (CompletionMethod::Poll, None) => now,
            (CompletionMethod::Hybrid, _) if now.since(self.active_at) <= HYBRID_POLL_TIME => {
                self.stats.by_submitter += 1;
                now
            }
            _ => {
                self.stats.interrupts += 1;
                now.max(self.handler_free_at) + self.config.interrupt_cost + self.handler_cost()
            }
        }
    }

    /// Returns the time for which the handler finishes a request.
    fn handler_cost(&self) -> Nanos {
        match self.config.policy.method {
            CompletionMethod::Interrupt => self.config.finish_cost,
            _ => Nanos::ZERO,
        }
    }
}

impl<Q: HardwareQueue> HardwareQueue for NotifiedQueue<Q> {
    const MUST_POLL: bool = true;

    #[inline]
    fn tags(&self) -> &TagSet {
        self.queue.tags()
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        self.queue.tags_mut()
    }

    fn memory(&self) -> &AddressSpace {
        self.queue.memory()
    }

    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        self.queue.bind_tag_cmd(tag, command, now)?;
        (self.now, self.active_at) = (now, now);
        Ok(())
    }

    fn issue_tags(&mut self) -> bool {
        let issued = self.queue.issue_tags();
        // The submitter runs, so that it looks for completions as well.
        let looks = issued && self.config.policy.method == CompletionMethod::Coop;
        if looks && !self.arrived.is_empty() && self.notice_at > self.now {
            self.stats.by_submitter += 1;
            self.notice_at = self.now;
        }
        issued
    }

    fn check_event(&mut self) -> bool {
        self.notice_at <= self.now && !self.arrived.is_empty()
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if self.notice_at > self.now {
            return None;
        }
        let event = self.arrived.pop_front()?;
        self.stats.completions += 1;
        (self.handler_free_at, self.active_at) = (self.now, self.now);
        // The context that looks fetches what has arrived meanwhile as well.
        self.notice_at = match self.arrived.is_empty() {
            true => Nanos::MAX,
            false => self.now + self.handler_cost(),
        };
        Some(event)
    }

    fn abort_tag(&mut self, tag: Tag, now: Nanos) -> Result<(), TagError> {
        self.queue.abort_tag(tag, now)
    }

    fn reset(&mut self, now: Nanos) {
        self.now = now;
        self.arrived.clear();
        self.notice_at = Nanos::MAX;
        self.queue.reset(now);
    }

    fn state(&self) -> QueueState {
        self.queue.state()
    }

    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        let moved = self.queue.poll(now);
        // A device that is not trusted may send more events than there are commands.
        while self.arrived.len() < usize::from(self.tags().count()) {
            let Some(event) = self.queue.fetch_event() else { break };
            self.arrived.push_back(event);
        }
        if self.notice_at == Nanos::MAX && !self.arrived.is_empty() {
            self.notice_at = self.announce();
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.notice_at.min(self.queue.deadline())
    }

    fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        self.queue.report_cache_lines(tag, look);
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        visit(&mut self.stats);
        self.queue.visit_layers(visit);
    }

    fn set_waker(&mut self, waker: Waker) {
        self.queue.set_waker(waker);
    }
}

/// A driver whose hardware queues are [`NotifiedQueue`]s.
#[derive(Debug)]
pub struct NotifiedDriver<D> {
    driver: D,
    config: NotifyConfig,
}

impl<D: LowLevelDriver> NotifiedDriver<D> {
    /// Adds the delay of notifications to the queues of `driver`.
    pub fn new(driver: D, config: NotifyConfig) -> NotifiedDriver<D> {
        NotifiedDriver { driver, config }
    }
}

impl<D: LowLevelDriver> LowLevelDriver for NotifiedDriver<D> {
    type Queue = NotifiedQueue<D::Queue>;

    fn limits(&self) -> Limits {
        self.driver.limits()
    }

    fn features(&self) -> Features {
        self.driver.features()
    }

    fn queues(&self) -> u16 {
        self.driver.queues()
    }

    fn memory(&self) -> &AddressSpace {
        self.driver.memory()
    }

    fn map_queue(&self, software: u16, count: u16) -> u16 {
        self.driver.map_queue(software, count)
    }

    fn take_queue(&mut self, index: u16) -> Option<NotifiedQueue<D::Queue>> {
        Some(NotifiedQueue::new(self.driver.take_queue(index)?, self.config))
    }
}
