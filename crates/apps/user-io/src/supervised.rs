//! [`SupervisedQueue`]: a hardware queue of a controller with registers, which may be slow, fail, or be
//! unplugged: a real one, or an emulated drive with `controller.registers`.
//!
//! A command that exceeds its timeout is aborted. If that does not complete it, the queue is reset,
//! and if necessary the controller ([NVMe1.4 §5.1, §7.3.2, §7.3.3]).
//!
//! Guarantee: every accepted request completes exactly once: with the controller's status, with
//! [`Status::ABORTED`] if its queue was reset, or with [`Status::HOST_PATH_ERROR`] if the
//! controller was removed. In the last two cases the outcome of a write is unknown.
//!
//! Cost: one comparison per poll; commands are checked once per [`TIMEOUT_CHECK_INTERVAL`].

// guarantee: C-08

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, QueueFull, Raw, Request};
use driver::{HardwareQueue, QueueState, Tag};
use nvme::Status;
use time::{Component, Nanos};

/// Timeout of an abort before the queue is reset; the command timeout if that is shorter.
const ABORT_TIMEOUT: Nanos = Nanos::from_millis(5_000);
/// Timeout of commands that are never aborted.
pub(crate) const NO_TIMEOUT: Nanos = Nanos::MAX;
/// Interval of timeout checks.
const TIMEOUT_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);

/// A queue with supervised commands.
pub(crate) struct SupervisedQueue<Q> {
    raw: Raw<Q>,
    /// As of the last poll.
    state: QueueState,
    next_check: Nanos,
    /// Timeout of a command before it is aborted, or [`NO_TIMEOUT`].
    timeout: Nanos,
    /// Completions generated without the controller, or reaped before a reset.
    completed: VecDeque<Completion>,
}

impl<Q: HardwareQueue> SupervisedQueue<Q> {
    pub(crate) fn new(queue: Q, limits: Limits, timeout: Nanos) -> SupervisedQueue<Q> {
        let state = queue.state();
        let raw = Raw::new(queue, limits);
        let completed = VecDeque::with_capacity(2 * raw.limits().queue_depth as usize);
        let next_check = if timeout == NO_TIMEOUT { Nanos::MAX } else { Nanos::ZERO };
        SupervisedQueue { raw, state, next_check, timeout, completed }
    }

    /// Returns the queue, and the completions that were not reaped; outstanding requests are lost.
    pub(crate) fn into_queue(self) -> (Q, Vec<Completion>) {
        let (queue, ended) = self.raw.into_queue();
        (queue, self.completed.into_iter().chain(ended).collect())
    }

    pub(crate) fn queue(&self) -> &Q {
        self.raw.queue()
    }

    /// Reaps the controller's completions.
    fn reap_raw(&mut self) {
        while let Some(completion) = self.raw.reap() {
            self.completed.push_back(completion);
        }
    }

    /// Completes every request that the controller will not complete.
    #[cold]
    fn fail_outstanding(&mut self, status: Status) {
        self.reap_raw();
        let queue = self.raw.queue_mut();
        let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
        for tag in bound {
            let Ok(command) = queue.detach_tag_cmd(tag) else { continue };
            // Detached, so the tag can be released.
            let _ = queue.release_tags(&[tag]);
            self.completed.push_back(Completion { tag: command.user, status, result: 0 });
        }
    }

    /// Handles a change of the queue's state since the last poll.
    #[cold]
    fn on_state_change(&mut self, state: QueueState) {
        match state {
            QueueState::Removed => self.fail_outstanding(Status::HOST_PATH_ERROR),
            // Completions posted before the reset remain valid.
            QueueState::Resetting => self.reap_raw(),
            QueueState::Ready => self.fail_outstanding(Status::ABORTED),
        }
        self.state = state;
    }

    /// Aborts the oldest command if it is late, and resets the queue if the abort did not help.
    #[cold]
    fn check_timeouts(&mut self, now: Nanos) {
        self.next_check = now + TIMEOUT_CHECK_INTERVAL.min(self.timeout);
        let queue = self.raw.queue_mut();
        let Some((tag, since)) = queue.tags().bound_tags().min_by_key(|(_, since)| *since) else {
            return;
        };
        let late = now.since(since);
        if late >= self.timeout + ABORT_TIMEOUT.min(self.timeout) {
            self.reap_raw();
            self.raw.queue_mut().reset(now);
        } else if late >= self.timeout {
            // One abort per check, repeated: the controller may limit concurrent aborts.
            let _ = queue.abort_tag(tag, now);
        }
    }
}

impl<Q: HardwareQueue> BlockDevice for SupervisedQueue<Q> {
    block::delegate_block_device!(self => self.raw; limits, memory, set_waker, can_wake,
        enable_sharing, visit_layers);
    block::answer_block_device!(can_wait: false);

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.state == QueueState::Removed {
            // Bounded, so that memory stays limited if the caller does not reap.
            if self.completed.len() >= 2 * self.raw.limits().queue_depth as usize {
                return Err(QueueFull);
            }
            let (tag, status) = (request.tag, Status::HOST_PATH_ERROR);
            self.completed.push_back(Completion { tag, status, result: 0 });
            return Ok(());
        }
        self.raw.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        if let Some(completion) = self.completed.pop_front() {
            return Some(completion);
        }
        self.raw.reap()
    }
}

impl<Q: HardwareQueue> Component for SupervisedQueue<Q> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = self.raw.poll(now);
        let state = self.raw.queue().state();
        if state != self.state {
            self.on_state_change(state);
            moved = true;
        }
        if now >= self.next_check && state == QueueState::Ready {
            self.check_timeouts(now);
        }
        moved | !self.completed.is_empty()
    }

    /// Returns the time of the next check while requests are outstanding.
    fn deadline(&self) -> Nanos {
        match self.raw.queue().tags().bound() {
            0 => self.raw.deadline(),
            _ => self.raw.deadline().min(self.next_check),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use driver::{BindError, CompletionEvent, Detached, TagError, TagSet};
    use event::Waker;
    use mem::AddressSpace;
    use rng::Rng;

    use super::*;

    const TIMEOUT: Nanos = Nanos::from_millis(30_000);

    /// A controller that completes some commands, as the test directs.
    struct ScriptedController {
        tags: TagSet,
        memory: AddressSpace,
        issued: Vec<Tag>,
        answers: VecDeque<CompletionEvent>,
        state: QueueState,
        aborted: Vec<Tag>,
        resets: u32,
    }

    impl ScriptedController {
        fn new(tags: u16) -> ScriptedController {
            ScriptedController {
                tags: TagSet::new(tags),
                memory: AddressSpace::default(),
                issued: Vec::new(),
                answers: VecDeque::new(),
                state: QueueState::Ready,
                aborted: Vec::new(),
                resets: 0,
            }
        }

        fn answer(&mut self, at: usize, status: Status) {
            let tag = self.issued.swap_remove(at);
            self.answers.push_back(CompletionEvent { tag, status, result: 0 });
        }

        fn drop_commands(&mut self, state: QueueState) {
            self.state = state;
            self.issued.clear();
            self.answers.clear();
        }
    }

    impl HardwareQueue for ScriptedController {
        fn tags(&self) -> &TagSet {
            &self.tags
        }

        fn tags_mut(&mut self) -> &mut TagSet {
            &mut self.tags
        }

        fn memory(&self) -> &AddressSpace {
            &self.memory
        }

        fn bind_tag_cmd(&mut self, tag: Tag, r: &Request, now: Nanos) -> Result<(), BindError> {
            if self.state != QueueState::Ready {
                return Err(BindError::Busy);
            }
            self.tags.bind(tag, r.tag, now)?;
            self.issued.push(tag);
            Ok(())
        }

        fn issue_tags(&mut self) -> bool {
            false
        }

        fn check_event(&mut self) -> bool {
            !self.answers.is_empty()
        }

        fn fetch_event(&mut self) -> Option<CompletionEvent> {
            self.answers.pop_front().filter(|_| self.state == QueueState::Ready)
        }

        fn detach_tag_cmd(&mut self, tag: Tag) -> Result<Detached, TagError> {
            self.tags.detach(tag)
        }

        fn abort_tag(&mut self, tag: Tag, _: Nanos) -> Result<(), TagError> {
            self.aborted.push(tag);
            Ok(())
        }

        fn reset(&mut self, _: Nanos) {
            self.resets += 1;
            self.drop_commands(QueueState::Resetting);
        }

        fn state(&self) -> QueueState {
            self.state
        }

        fn set_waker(&mut self, _: Waker) {}
    }

    fn limits() -> Limits {
        Limits {
            sector_bytes: 512,
            sectors: 1000,
            max_sectors: 8,
            optimal_sectors: 1,
            queue_depth: 8,
            volatile_cache: false,
            atomic: block::AtomicLimits::NONE,
        }
    }

    fn completions(watched: &mut SupervisedQueue<ScriptedController>) -> Vec<(u64, Status)> {
        std::iter::from_fn(|| watched.reap()).map(|c| (c.tag, c.status)).collect()
    }

    #[test]
    fn a_late_command_is_aborted_then_the_queue_is_reset() {
        let mut watched = SupervisedQueue::new(ScriptedController::new(8), limits(), TIMEOUT);
        watched.submit(Nanos(1), Request::flush(7)).unwrap();
        watched.poll(Nanos::from_millis(29_000));
        assert!(watched.raw.queue().aborted.is_empty());
        watched.submit(Nanos::from_millis(29_000), Request::flush(8)).unwrap();
        watched.poll(Nanos::from_millis(30_100));
        assert_eq!(watched.raw.queue().aborted.len(), 1);
        assert_eq!(watched.deadline(), Nanos::from_millis(30_600));
        watched.poll(Nanos::from_millis(35_100));
        assert_eq!(watched.raw.queue().resets, 1);
        watched.poll(Nanos::from_millis(35_101));
        assert_eq!(watched.submit(Nanos::from_millis(35_101), Request::flush(9)), Err(QueueFull));
        watched.raw.queue_mut().state = QueueState::Ready;
        watched.poll(Nanos::from_millis(35_200));
        assert_eq!(completions(&mut watched), [(7, Status::ABORTED), (8, Status::ABORTED)]);
        watched.submit(Nanos::from_millis(35_300), Request::flush(9)).unwrap();
        watched.raw.queue_mut().answer(0, Status::SUCCESS);
        watched.poll(Nanos::from_millis(35_301));
        assert_eq!(completions(&mut watched), [(9, Status::SUCCESS)]);
    }

    #[test]
    fn nothing_waits_for_a_controller_that_is_removed() {
        let mut watched = SupervisedQueue::new(ScriptedController::new(8), limits(), TIMEOUT);
        for tag in 0..3 {
            watched.submit(Nanos(1), Request::flush(tag)).unwrap();
        }
        watched.raw.queue_mut().drop_commands(QueueState::Removed);
        watched.poll(Nanos(2));
        let gone = Status::HOST_PATH_ERROR;
        assert_eq!(completions(&mut watched), [(0, gone), (1, gone), (2, gone)]);
        for tag in 0..16 {
            watched.submit(Nanos(3), Request::flush(tag)).unwrap();
        }
        assert_eq!(watched.submit(Nanos(3), Request::flush(16)), Err(QueueFull), "bounded");
        assert_eq!(completions(&mut watched).len(), 16);
    }

    #[test]
    fn every_request_ends_once_whatever_happens() {
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
        for seed in seed.map_or(0..200, |s: u64| s..s + 1) {
            let mut rng = Rng::new(seed);
            let mut watched = SupervisedQueue::new(ScriptedController::new(6), limits(), TIMEOUT);
            let (mut now, mut next) = (Nanos(1), 0u64);
            let mut open = BTreeMap::new();
            for _ in 0..400 {
                now += Nanos::from_millis(rng.below(4_000));
                match rng.below(12) {
                    0..=4 if watched.submit(now, Request::flush(next)).is_ok() => {
                        open.insert(next, ());
                        next += 1;
                    }
                    5..=8 if !watched.raw.queue().issued.is_empty() => {
                        let queue = watched.raw.queue_mut();
                        let at = rng.below(queue.issued.len() as u64) as usize;
                        queue.answer(at, Status::SUCCESS);
                    }
                    // A reset for another queue.
                    9 if rng.below(8) == 0 => {
                        watched.raw.queue_mut().drop_commands(QueueState::Resetting);
                    }
                    10 if watched.raw.queue().state == QueueState::Resetting => {
                        watched.raw.queue_mut().state = QueueState::Ready;
                    }
                    _ => {}
                }
                watched.poll(now);
                for (tag, _) in completions(&mut watched) {
                    assert!(open.remove(&tag).is_some(), "SLUICE_SEED={seed}: {tag} twice");
                }
            }
            watched.raw.queue_mut().drop_commands(QueueState::Removed);
            watched.poll(now);
            for (tag, _) in completions(&mut watched) {
                assert!(open.remove(&tag).is_some(), "SLUICE_SEED={seed}: {tag} twice");
            }
            assert!(open.is_empty(), "SLUICE_SEED={seed}: {open:?} did not end");
        }
    }
}
