//! [`Queues`]: the submission and completion queues of all hosts, and the arbitration among them
//! [NVMe1.4 §4.13].
//!
//! Arbitration skips a queue whose host has no tokens ([`time::TokenBucket`]), without delaying
//! other queues. It also skips the queue of a restricted host that does not reap its completions.
//! The controller reads each doorbell once per poll, so that a host that writes doorbells faster
//! than the controller fetches cannot occupy a poll.

use std::sync::Arc;

use nvme::{Cqe, QueuePriority, Sqe, Status};
use time::Nanos;
use transport::{CqProducer, Port, ShadowDoorbells, SqConsumer};

use crate::ArbitrationConfig;
use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::doorbell_wait::DoorbellMeter;
use crate::host_interface::access::AccessCheck;
use crate::host_interface::arbiter::{Arbiter, Burst};
use crate::host_interface::hosts::{HostPort, HostState};
use crate::host_interface::registers::RegisterStats;

/// A submission queue.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) ring: SqConsumer,
    pub(crate) port: usize,
    /// Index of the associated completion queue.
    pub(crate) completion: usize,
    pub(crate) admin: bool,
    pub(crate) outstanding: u32,
    pub(super) priority: QueuePriority,
    /// The host wrote an invalid doorbell value; the controller fetches nothing more.
    pub(super) broken: bool,
    /// The reason for which the controller fetches nothing more, if any.
    pub(crate) teardown: Option<QueueTeardown>,
    /// The poll in which the doorbell was read last.
    last_poll: u64,
    /// Maximum number of commands in flight; unlimited for a host without
    /// [`AccessCheck`](crate::host_interface::access::AccessCheck), and 0 for a stalled queue.
    pub(super) outstanding_max: u32,
    /// The fault that stalls the queue, and the maximum that applies after it.
    pub(super) stall: Option<(usize, u32)>,
    /// The fault for which the next completion is not posted.
    pub(super) loss: Option<usize>,
    /// Commands of this queue consume tokens of the host's rate limits.
    rate_limited: bool,
}

impl SubmissionQueue {
    /// Reads the doorbell of an empty queue, once per poll. Returns whether the queue has commands
    /// now.
    fn poll_doorbell(&mut self, arbiter: &mut Arbiter, invalid: &mut u64) -> bool {
        if self.broken || self.teardown.is_some() || self.last_poll == arbiter.poll_count {
            return false;
        }
        self.last_poll = arbiter.poll_count;
        match self.ring.read_tail() {
            Ok(waiting) => {
                arbiter.waiting += u32::from(waiting);
                arbiter.unread -= 1;
                waiting > 0
            }
            Err(_) => {
                self.broken = true;
                *invalid += 1;
                false
            }
        }
    }

    /// Fetches the next command as a copy, so that later changes by the host have no effect. The
    /// caller [counts it](Queues::count_fetched).
    #[inline]
    pub(crate) fn fetch(&mut self) -> Option<Sqe> {
        let sqe = self.ring.fetch()?;
        self.outstanding += 1;
        Some(sqe)
    }
}

/// The reason for which a queue is torn down; it is removed after its last command has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueTeardown {
    /// Deletion by the command with this identifier, in the admin queue with this index.
    Deleted(usize, u16),
    /// Detach of the host: no completion is posted.
    Detached,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) ring: CqProducer,
    pub(crate) port: usize,
    pub(crate) qid: u16,
    /// Completions that wait because the queue is full.
    stalled: std::collections::VecDeque<Cqe>,
}

/// All queues of the drive. Indexes are stable; the index of a deleted queue is reused.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) submissions: Vec<Option<SubmissionQueue>>,
    pub(crate) completions: Vec<Option<CompletionQueue>>,
    pub(crate) ports: Vec<HostPort>,
    /// Replaces the ports of detached hosts.
    pub(crate) placeholder_port: Arc<Port>,
    arbiter: Arbiter,
    posting: Posting,
    /// Invalid doorbell values.
    pub(crate) invalid_doorbells: u64,
    /// The waits of doorbells, if they are measured.
    pub(crate) doorbells: Option<Box<DoorbellMeter>>,
    /// The faults for which completions were not posted.
    pub(super) lost: Vec<usize>,
    /// Whether a host has registers.
    pub(crate) has_registers: bool,
    pub(crate) register_stats: RegisterStats,
}

/// Completions on their way to the hosts.
#[derive(Debug, Default)]
struct Posting {
    /// Completions that wait for a free entry.
    stalled: usize,
    /// Completion queues whose interrupts are to be raised.
    posted: Vec<usize>,
    /// Completions posted, or waiting for a free entry.
    posts: u64,
}

impl Queues {
    pub(crate) fn new(arbitration: ArbitrationConfig, placeholder_port: Arc<Port>) -> Queues {
        Queues {
            submissions: Vec::new(),
            completions: Vec::new(),
            ports: Vec::new(),
            placeholder_port,
            arbiter: Arbiter::new(arbitration),
            posting: Posting::default(),
            invalid_doorbells: 0,
            doorbells: None,
            lost: Vec::new(),
            has_registers: false,
            register_stats: RegisterStats::default(),
        }
    }

    /// Starts a poll: doorbells may be read again.
    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        self.arbiter.poll_count += 1;
        self.arbiter.throttled_until = Nanos::MAX;
        self.arbiter.unread = self.arbiter.queues;
    }

    /// Counts a command that was fetched.
    #[inline]
    pub(crate) fn count_fetched(&mut self) {
        self.arbiter.waiting -= 1;
    }

    pub(crate) fn set_arbitration(&mut self, arbitration: ArbitrationConfig) {
        self.arbiter.arbitration = arbitration;
        self.arbiter.current_burst = None;
        self.classify();
    }

    /// Sorts the submission queues by class, after one was created or deleted.
    fn classify(&mut self) {
        self.arbiter.classes = self.arbiter.classes_of(&self.submissions);
        self.arbiter.empty_in_poll = [0; 4];
        self.arbiter.drained = false;
        let waiting = self.submissions.iter().flatten().map(|q| u32::from(q.ring.waiting()));
        self.arbiter.waiting = waiting.sum();
        self.arbiter.queues = self.arbiter.classes.iter().map(|class| class.len() as u32).sum();
        // New queues may be read in this poll, too.
        self.arbiter.unread = u32::MAX;
    }

    /// Returns whether every queue was empty when the last poll ended.
    #[inline]
    pub(crate) fn are_drained(&self) -> bool {
        self.arbiter.drained
    }

    /// Counts a change of a register, which its host has not seen.
    pub(crate) fn count_register_change(&mut self) {
        self.posting.posts += 1;
    }

    /// Returns the number of completions posted, or waiting for a free entry.
    #[inline]
    pub(crate) fn posts(&self) -> u64 {
        self.posting.posts
    }

    /// Returns the earliest time at which a rate-limited queue that was skipped has tokens.
    #[inline]
    pub(crate) fn throttled_until(&self) -> Nanos {
        self.arbiter.throttled_until
    }

    /// Recounts the queues and completions; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        let check = DriveCheck { part: DrivePart::Queues, subject: "all queues", index: 0 };
        let stalled = self.completions.iter().flatten().map(|q| q.stalled.len()).sum();
        check.equal("completions that wait are counted", stalled, self.posting.stalled)?;
        let classes = self.arbiter.classes_of(&self.submissions);
        check.equal("every queue is in its class", &classes, &self.arbiter.classes)?;
        let waiting = self.submissions.iter().flatten().map(|q| u32::from(q.ring.waiting())).sum();
        check.equal("commands in rings are counted", waiting, self.arbiter.waiting)?;
        for (index, queue) in (0..).zip(&self.submissions) {
            let Some(queue) = queue else { continue };
            let check = DriveCheck { part: DrivePart::Queues, subject: "queue", index };
            let completion = self.completions.get(queue.completion).and_then(Option::as_ref);
            let is_own = completion.is_some_and(|c| c.port == queue.port);
            let is_torn_down = queue.teardown == Some(QueueTeardown::Detached);
            check.require(
                is_own || is_torn_down,
                "a queue posts to a completion queue of its host",
                "a completion queue of the port",
                queue.completion,
            )?;
        }
        Ok(())
    }

    /// Miscounts the completions that wait.
    #[cfg(test)]
    pub(crate) fn break_stalled_count(&mut self) {
        self.posting.stalled += 1;
    }

    /// Deletes a submission queue.
    pub(crate) fn remove_submission(&mut self, index: usize) {
        if let Some(queue) = self.submissions[index].take() {
            self.clear_doorbells_of(queue.port, queue.ring.qid(), true);
        }
        self.classify();
    }

    pub(crate) fn add_completion(&mut self, ring: CqProducer, port: usize, qid: u16) -> usize {
        let queue = CompletionQueue { ring, port, qid, stalled: std::collections::VecDeque::new() };
        insert_slot(&mut self.completions, queue)
    }

    pub(crate) fn add_submission(
        &mut self,
        mut ring: SqConsumer,
        port: usize,
        completion: usize,
        priority: QueuePriority,
    ) -> usize {
        let admin = ring.qid() == 0;
        if let Some(meter) = &self.doorbells {
            match admin {
                // The host has no other queue yet.
                true => self.ports[port].port.request_stamps(),
                false => ring.read_stamps(&meter.polls),
            }
        }
        let rights = self.ports[port].access.as_deref();
        let most = rights.map_or(u32::MAX, AccessCheck::outstanding_max);
        let metered = rights.is_some_and(|rights| rights.is_rate_limited(admin));
        let queue = SubmissionQueue {
            ring,
            port,
            completion,
            admin,
            outstanding: 0,
            priority,
            broken: false,
            teardown: None,
            last_poll: 0,
            outstanding_max: most,
            stall: None,
            loss: None,
            rate_limited: metered,
        };
        let index = insert_slot(&mut self.submissions, queue);
        self.classify();
        index
    }

    /// Installs a host's doorbell buffer, for its present and future queues.
    pub(crate) fn set_shadow_doorbells(&mut self, port: usize, shadows: ShadowDoorbells) {
        for queue in self.submissions.iter_mut().flatten().filter(|q| q.port == port) {
            queue.ring.enable_shadow(&shadows);
        }
        for queue in self.completions.iter_mut().flatten().filter(|q| q.port == port) {
            queue.ring.enable_shadow(&shadows);
        }
        self.ports[port].shadow_doorbells = Some(shadows);
    }

    pub(crate) fn find_submission(&self, port: usize, qid: u16) -> Option<usize> {
        self.submissions
            .iter()
            .position(|q| q.as_ref().is_some_and(|q| q.port == port && q.ring.qid() == qid))
    }

    pub(crate) fn find_completion(&self, port: usize, qid: u16) -> Option<usize> {
        self.completions
            .iter()
            .position(|q| q.as_ref().is_some_and(|q| q.port == port && q.qid == qid))
    }

    /// Whether a host has I/O queues.
    pub(crate) fn has_io_queues(&self, port: usize) -> bool {
        self.completions.iter().flatten().any(|q| q.port == port && q.qid > 0)
    }

    /// Returns the queue to fetch the next command from: a queue with a command, whose host may
    /// execute it now.
    #[inline]
    pub(crate) fn next_queue(&mut self, now: Nanos) -> Option<usize> {
        let round_robin = matches!(self.arbiter.arbitration, ArbitrationConfig::RoundRobin { .. });
        if round_robin && self.arbiter.waiting == 0 && self.arbiter.unread == 0 {
            self.arbiter.current_burst = None;
            self.arbiter.drained = true;
            return None;
        }
        if let Some(Burst { queue: index, remaining }) = self.arbiter.current_burst {
            if self.has_command(index, now) {
                let remaining = remaining - 1;
                self.arbiter.current_burst =
                    (remaining > 0).then_some(Burst { queue: index, remaining });
                return Some(index);
            }
            self.arbiter.current_burst = None;
        }
        let (burst, weights) = match self.arbiter.arbitration {
            ArbitrationConfig::RoundRobin { burst } => (burst, [u16::MAX; 4]),
            ArbitrationConfig::Weighted { burst, high, medium, low } => {
                (burst, [u16::MAX, high.max(1), medium.max(1), low.max(1)])
            }
        };
        loop {
            let mut passed_over = false;
            for class in 0..4 {
                if self.arbiter.classes[class].is_empty()
                    || self.arbiter.empty_in_poll[class] == self.arbiter.poll_count
                {
                    continue;
                }
                // Urgent queues are always served first; the others have credits.
                if class > 0 && self.arbiter.credits[class] == 0 {
                    passed_over = true;
                    continue;
                }
                if let Some(index) = self.next_in_class(class, now) {
                    if class > 0 {
                        self.arbiter.credits[class] -= 1;
                    }
                    let burst = Burst { queue: index, remaining: burst.saturating_sub(1) };
                    self.arbiter.current_burst = (burst.remaining > 0).then_some(burst);
                    return Some(index);
                }
            }
            if !passed_over {
                let arbiter = &mut self.arbiter;
                let mut classes = arbiter.classes.iter().zip(arbiter.empty_in_poll);
                arbiter.drained =
                    classes.all(|(queues, poll)| queues.is_empty() || poll == arbiter.poll_count);
                return None;
            }
            self.arbiter.credits = weights;
        }
    }

    #[inline]
    fn next_in_class(&mut self, class: usize, now: Nanos) -> Option<usize> {
        if let [only] = self.arbiter.classes[class].as_slice() {
            let index = *only;
            if self.has_command(index, now) {
                self.arbiter.cursors[class] = 0;
                return Some(index);
            }
            if self.is_ring_empty(index) {
                self.arbiter.empty_in_poll[class] = self.arbiter.poll_count;
            }
            return None;
        }
        let count = self.arbiter.classes[class].len();
        let mut at =
            if self.arbiter.cursors[class] < count { self.arbiter.cursors[class] } else { 0 };
        let mut empty = true;
        for _ in 0..count {
            let index = self.arbiter.classes[class][at];
            at = if at + 1 == count { 0 } else { at + 1 };
            if self.has_command(index, now) {
                self.arbiter.cursors[class] = at;
                return Some(index);
            }
            empty &= self.is_ring_empty(index);
        }
        if empty {
            self.arbiter.empty_in_poll[class] = self.arbiter.poll_count;
        }
        None
    }

    #[inline]
    fn is_ring_empty(&self, index: usize) -> bool {
        self.submissions[index].as_ref().is_none_or(|q| q.ring.waiting() == 0)
    }

    /// Whether a queue has a command that the drive may execute now.
    #[inline]
    fn has_command(&mut self, index: usize, now: Nanos) -> bool {
        let Some(queue) = self.submissions[index].as_mut() else { return false };
        if queue.ring.waiting() == 0
            && !queue.poll_doorbell(&mut self.arbiter, &mut self.invalid_doorbells)
        {
            return false;
        }
        if queue.teardown.is_some() || queue.outstanding >= queue.outstanding_max {
            return false;
        }
        let bounded = queue.outstanding_max < u32::MAX;
        !bounded || (self.posting.stalled == 0 && !queue.rate_limited) || self.can_fetch(index, now)
    }

    /// Updates which queues of a host consume tokens, after its rates changed.
    pub(crate) fn update_rate_limits(&mut self, port: usize) {
        let Some(rights) = &self.ports[port].access else { return };
        for queue in self.submissions.iter_mut().flatten().filter(|queue| queue.port == port) {
            queue.rate_limited = rights.is_rate_limited(queue.admin);
        }
    }

    /// Whether the host of a non-empty queue may execute a command now: there is a free entry for
    /// its completion, and a token. Either may become available when commands complete, or when the
    /// host reaps completions and wakes the drive.
    #[inline(never)]
    fn can_fetch(&mut self, index: usize, now: Nanos) -> bool {
        let Some(queue) = &self.submissions[index] else { return false };
        let full = self.completions[queue.completion].as_ref();
        if full.is_some_and(|c| !c.stalled.is_empty()) {
            return false;
        }
        let port = &mut self.ports[queue.port];
        let Some(rights) = &port.access else { return true };
        let ready = rights.ready_at(queue.admin);
        if ready > now {
            port.stats.throttled += 1;
            self.arbiter.throttled_until = self.arbiter.throttled_until.min(ready);
            return false;
        }
        true
    }

    /// Posts the completion of a command of queue `index`.
    #[inline]
    pub(crate) fn post(&mut self, index: usize, cid: u16, status: Status, result: u64) {
        let Some(queue) = self.submissions.get_mut(index).and_then(Option::as_mut) else {
            return self.post_internal(index);
        };
        queue.outstanding -= 1;
        if queue.teardown.is_some() | queue.loss.is_some() {
            return self.post_of_special(index, cid, status, result);
        }
        let (sq_head, sq_id) = (queue.ring.head(), queue.ring.qid());
        let cqe = Cqe { result, sq_head, sq_id, cid, status };
        let at = queue.completion;
        self.post_to(at, cqe);
    }

    /// Posts the completion of a command of a queue that is deleted, whose host has gone, or whose
    /// next completion is lost.
    #[cold]
    fn post_of_special(&mut self, index: usize, cid: u16, status: Status, result: u64) {
        let Some(queue) = self.submissions.get_mut(index).and_then(Option::as_mut) else { return };
        let closed = queue.teardown.filter(|_| queue.outstanding == 0);
        if queue.teardown == Some(QueueTeardown::Detached) {
            if closed.is_some() {
                self.finish_detach(index);
            }
            return;
        }
        if let Some(fault) = queue.loss.take_if(|_| closed.is_none()) {
            return self.lost.push(fault);
        }
        let (sq_head, sq_id) = (queue.ring.head(), queue.ring.qid());
        let cqe = Cqe { result, sq_head, sq_id, cid, status };
        let at = queue.completion;
        self.post_to(at, cqe);
        if let Some(QueueTeardown::Deleted(admin, cid)) = closed {
            self.remove_submission(index);
            self.post(admin, cid, Status::SUCCESS, 0);
        }
    }

    #[inline]
    fn post_to(&mut self, at: usize, cqe: Cqe) {
        let Some(completion) = self.completions[at].as_mut() else { return };
        self.posting.posts += 1;
        if !completion.stalled.is_empty() || completion.ring.post(cqe).is_err() {
            completion.stalled.push_back(cqe);
            self.posting.stalled += 1;
        } else if !self.posting.posted.contains(&at) {
            self.posting.posted.push(at);
        }
    }

    /// Posts completions that waited for a free entry, and raises interrupts. Returns whether it
    /// posted any.
    #[inline(always)]
    pub(crate) fn flush_completions(&mut self) -> bool {
        let posting = &self.posting;
        (posting.stalled > 0 || !posting.posted.is_empty()) && self.flush_all_completions()
    }

    #[inline(never)]
    fn flush_all_completions(&mut self) -> bool {
        let mut moved = false;
        if self.posting.stalled > 0 {
            for at in 0..self.completions.len() {
                let Some(queue) = &mut self.completions[at] else { continue };
                while let Some(cqe) = queue.stalled.front() {
                    if queue.ring.post(*cqe).is_err() {
                        break;
                    }
                    queue.stalled.pop_front();
                    self.posting.posts += 1;
                    self.posting.stalled -= 1;
                    moved = true;
                    if !self.posting.posted.contains(&at) {
                        self.posting.posted.push(at);
                    }
                }
            }
        }
        for at in self.posting.posted.drain(..) {
            if let Some(queue) = &mut self.completions[at] {
                queue.ring.raise_interrupt();
            }
        }
        moved
    }

    /// Tears down the queues of a detached host; queues with commands in flight go with the last
    /// command.
    pub(crate) fn detach(&mut self, port: usize) {
        self.ports[port].state = HostState::Detaching;
        self.abandon(port);
        self.release_port(port);
        self.update_registers();
    }

    /// Tears down the queues of a host as [`detach`](Queues::detach) does; the host stays attached.
    pub(crate) fn abandon(&mut self, port: usize) {
        for at in 0..self.completions.len() {
            if self.completions[at].as_ref().is_some_and(|q| q.port == port) {
                self.remove_completion(at);
            }
        }
        let mine = |q: &SubmissionQueue| q.port == port;
        for at in 0..self.submissions.len() {
            let Some(queue) = self.submissions[at].as_mut().filter(|q| mine(q)) else { continue };
            // The deleting command is a command in flight of the admin queue, and is abandoned.
            if let Some(QueueTeardown::Deleted(admin, _)) =
                queue.teardown.replace(QueueTeardown::Detached)
                && let Some(admin) = &mut self.submissions[admin]
            {
                admin.outstanding -= 1;
            }
        }
        self.arbiter.current_burst = None;
        for at in 0..self.submissions.len() {
            if self.submissions[at].as_ref().is_some_and(|q| mine(q) && q.outstanding == 0) {
                self.submissions[at] = None;
            }
        }
        self.classify();
    }

    /// Removes a queue of a detached host after its last command has completed.
    #[cold]
    fn finish_detach(&mut self, index: usize) {
        if let Some(queue) = self.submissions[index].take() {
            self.arbiter.waiting -= u32::from(queue.ring.waiting());
            self.release_port(queue.port);
        }
    }

    /// Frees the index of a detached host once it has no queues left.
    fn release_port(&mut self, port: usize) {
        let is_detaching = self.ports[port].state == HostState::Detaching;
        if is_detaching && !self.has_submissions(port) {
            self.ports[port] = HostPort::vacant(self.placeholder_port.clone());
        }
    }

    /// Returns a host's numbers of queues, commands in flight, and completions that wait.
    pub(crate) fn port_counts(&self, port: usize) -> (u16, u32, u32) {
        let submissions = self.submissions.iter().flatten().filter(|q| q.port == port);
        let (queues, outstanding) =
            submissions.fold((0, 0), |(n, sum), q| (n + 1, sum + q.outstanding));
        let completions = self.completions.iter().flatten().filter(|q| q.port == port);
        (queues, outstanding, completions.map(|q| q.stalled.len() as u32).sum())
    }

    /// Deletes a completion queue with its waiting completions, as the host requested.
    pub(crate) fn remove_completion(&mut self, at: usize) {
        if let Some(queue) = self.completions[at].take() {
            self.posting.stalled -= queue.stalled.len();
            self.clear_doorbells_of(queue.port, queue.qid, false);
        }
    }
}

fn insert_slot<T>(slots: &mut Vec<Option<T>>, value: T) -> usize {
    match slots.iter().position(Option::is_none) {
        Some(hole) => {
            slots[hole] = Some(value);
            hole
        }
        None => {
            slots.push(Some(value));
            slots.len() - 1
        }
    }
}
