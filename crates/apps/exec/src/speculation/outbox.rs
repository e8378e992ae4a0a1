//! [`Outbox`]: data that a program has sent, and that the supervisor sends once its sync is
//! durable.
//!
//! # Invariants
//!
//! - Sends leave the outbox in the order of their numbers, except those to a target that is full.
//!   Sends to one target never overtake each other.
//! - The syncs of sends do not decrease with their numbers.
//! - The outbox has a copy of a target's descriptor exactly while it has a send to it. So the peer
//!   does not see the end before the data.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use event::monotonic_now;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use time::Nanos;

use super::target::{FileId, SendTarget, TargetState};

/// Maximum number of bytes in the outbox of a session.
pub const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes in the outbox for one socket or pipe.
pub const OUTBOX_TARGET_BYTES_MAX: usize = 64 << 10;
/// Maximum number of sends in the outbox of a session.
pub const OUTBOX_SENDS_MAX: usize = 1024;

/// Capacity of an outbox. A call whose data does not fit waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Bytes.
    pub bytes: usize,
    /// Bytes for one socket or pipe.
    pub target_bytes: usize,
    /// Sends.
    pub sends: usize,
}

impl OutboxLimits {
    /// No outbox: every output waits.
    pub const NONE: OutboxLimits = OutboxLimits { bytes: 0, target_bytes: 0, sends: 0 };
}

impl Default for OutboxLimits {
    fn default() -> OutboxLimits {
        OutboxLimits {
            bytes: OUTBOX_BYTES_MAX,
            target_bytes: OUTBOX_TARGET_BYTES_MAX,
            sends: OUTBOX_SENDS_MAX,
        }
    }
}

/// Counters of an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxStats {
    /// Calls that returned when their data was in the outbox.
    pub buffered: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// Calls whose data was sent.
    pub sent: u64,
    /// Calls whose data could not be sent, because the peer has gone.
    pub failed: u64,
    /// Calls whose data was dropped, because a sync failed.
    pub dropped: u64,
    /// Calls that waited, because their data did not fit.
    pub overflows: u64,
    /// Sum of the times in the outbox of all data that was sent.
    pub delay_total: Nanos,
    /// Longest time in the outbox.
    pub delay_max: Nanos,
}

/// Counters of an outbox, which another thread reads.
#[derive(Debug, Default)]
pub(super) struct OutboxCounters {
    buffered: AtomicU64,
    bytes: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    pub(super) overflows: AtomicU64,
    delay_total: AtomicU64,
    delay_max: AtomicU64,
}

impl OutboxCounters {
    pub(super) fn stats(&self) -> OutboxStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OutboxStats {
            buffered: read(&self.buffered),
            bytes: read(&self.bytes),
            sent: read(&self.sent),
            failed: read(&self.failed),
            dropped: read(&self.dropped),
            overflows: read(&self.overflows),
            delay_total: Nanos(read(&self.delay_total)),
            delay_max: Nanos(read(&self.delay_max)),
        }
    }

    fn count_sent(&self, delay: u64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.delay_total.fetch_add(delay, Ordering::Relaxed);
        self.delay_max.fetch_max(delay, Ordering::Relaxed);
    }
}

/// Data of one call.
#[derive(Debug)]
struct BufferedSend {
    number: u64,
    to: FileId,
    bytes: Vec<u8>,
    flags: SendFlags,
    /// The sync that must be durable.
    sync: u64,
    /// Nanoseconds of the monotonic clock.
    since: u64,
    /// Bytes that the target has taken.
    sent: usize,
    /// Its turn has come: it was sent in part, or the target is full.
    was_tried: bool,
}

/// A target of sends in the outbox.
#[derive(Debug)]
struct OutboxTarget {
    target: SendTarget,
    sends: usize,
    /// Sum of the lengths of its sends.
    bytes: usize,
    is_full: bool,
}

/// Sends that the program believes to be done.
#[derive(Debug)]
pub(super) struct Outbox {
    limits: OutboxLimits,
    sends: VecDeque<BufferedSend>,
    targets: BTreeMap<FileId, OutboxTarget>,
    /// Sum of the lengths of all sends.
    bytes: usize,
    /// Number of the send that came last.
    last: u64,
}

impl Outbox {
    pub(super) fn new(limits: OutboxLimits) -> Outbox {
        let (sends, targets) = (VecDeque::new(), BTreeMap::new());
        Outbox { limits, sends, targets, bytes: 0, last: 0 }
    }

    /// Returns whether the outbox takes any data at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.limits.sends > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Returns the number of sends.
    pub(super) fn len(&self) -> usize {
        self.sends.len()
    }

    /// Returns the number of the send that came last.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns whether the target of a new send takes data. With sends to it in the outbox, the
    /// target counts as writable until it was found full.
    pub(super) fn state_of(&self, target: &SendTarget) -> TargetState {
        match (target.state(), self.targets.get(&target.id)) {
            (TargetState::Broken, _) => TargetState::Broken,
            (_, Some(OutboxTarget { is_full: true, .. })) => TargetState::Full,
            (_, Some(_)) => TargetState::Writable,
            (state, None) => state,
        }
    }

    /// Returns whether data of this length fits.
    pub(super) fn has_capacity_for(&self, to: FileId, len: usize) -> bool {
        let of_target = self.targets.get(&to).map_or(0, |target| target.bytes);
        self.sends.len() < self.limits.sends
            && len <= self.limits.bytes.saturating_sub(self.bytes)
            && len <= self.limits.target_bytes.saturating_sub(of_target)
    }

    /// Adds data that [fits](Outbox::has_capacity_for), to be sent when the sync is durable.
    pub(super) fn push(&mut self, target: SendTarget, bytes: Vec<u8>, sync: u64) {
        self.last += 1;
        self.bytes += bytes.len();
        let (to, flags) = (target.id, target.flags());
        let empty = OutboxTarget { target, sends: 0, bytes: 0, is_full: false };
        let of = self.targets.entry(to).or_insert(empty);
        of.sends += 1;
        of.bytes += bytes.len();
        let (number, since) = (self.last, monotonic_now());
        let send =
            BufferedSend { number, to, bytes, flags, sync, since, sent: 0, was_tried: false };
        self.sends.push_back(send);
    }

    /// Removes the data that was added last: its call is made again.
    pub(super) fn pop(&mut self) {
        if let Some(send) = self.sends.pop_back() {
            self.bytes -= send.bytes.len();
            self.forget(&send);
        }
    }

    /// Counts the data that was added last.
    pub(super) fn count_last(&self, counters: &OutboxCounters) {
        let len = self.sends.back().map_or(0, |send| send.bytes.len());
        counters.buffered.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Removes a send from its target.
    fn forget(&mut self, send: &BufferedSend) {
        if let Some(of) = self.targets.get_mut(&send.to) {
            of.sends -= 1;
            of.bytes -= send.bytes.len();
            if of.sends == 0 {
                self.targets.remove(&send.to);
            }
        }
    }

    /// Sends all data whose sync is durable, as far as the targets take it.
    pub(super) fn release(&mut self, durable: u64, counters: &OutboxCounters) {
        self.targets.values_mut().for_each(|of| of.is_full = false);
        let mut at = 0;
        while let Some(send) = self.sends.get_mut(at)
            && send.sync <= durable
        {
            send.was_tried = true;
            let Some(of) = self.targets.get_mut(&send.to) else { break };
            let result = if of.is_full { Err(Errno::AGAIN) } else { send.continue_to(&of.target) };
            match result {
                Ok(()) => {
                    counters.count_sent(monotonic_now().saturating_sub(send.since));
                    if let Some(send) = self.sends.remove(at) {
                        self.bytes -= send.bytes.len();
                        self.forget(&send);
                    }
                }
                Err(Errno::AGAIN) => {
                    of.is_full = true;
                    at += 1;
                }
                Err(_) => {
                    // It is the first one to its target: those before `at` have full targets.
                    let to = send.to;
                    let count = self.drop_sends(|send| send.to == to);
                    counters.failed.fetch_add(count, Ordering::Relaxed);
                }
            }
        }
    }

    /// Drops the data whose sync is not durable.
    pub(super) fn fail(&mut self, durable: u64, counters: &OutboxCounters) {
        let count = self.drop_sends(|send| send.sync > durable);
        counters.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Drops some data. Returns the number of sends.
    fn drop_sends(&mut self, is_dropped: impl Fn(&BufferedSend) -> bool) -> u64 {
        let sends = std::mem::take(&mut self.sends);
        let (dropped, kept) = sends.into_iter().partition::<VecDeque<_>, _>(is_dropped);
        self.sends = kept;
        for send in &dropped {
            self.bytes -= send.bytes.len();
            self.forget(send);
        }
        dropped.len() as u64
    }

    /// Returns whether the turn of every send up to this number has come.
    pub(super) fn has_tried(&self, number: u64) -> bool {
        let untried = self.sends.iter().find(|send| !send.was_tried);
        untried.is_none_or(|send| send.number > number)
    }

    /// Returns whether sends to a target up to this number are in the outbox.
    pub(super) fn has_sends_to(&self, to: FileId, number: u64) -> bool {
        self.targets.contains_key(&to)
            && self.sends.iter().any(|send| send.to == to && send.number <= number)
    }

    /// Returns the targets that are full, to be polled.
    pub(super) fn full_targets(&self) -> impl Iterator<Item = PollFd<'_>> {
        let full = self.targets.values().filter(|of| of.is_full);
        full.map(|of| PollFd::new(&of.target, PollFlags::OUT))
    }
}

impl BufferedSend {
    /// Sends the rest.
    fn continue_to(&mut self, target: &SendTarget) -> Result<(), Errno> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match target.send(rest, self.flags)? {
                0 => return Err(Errno::PIPE),
                len => self.sent += len,
            }
        }
        Ok(())
    }
}
