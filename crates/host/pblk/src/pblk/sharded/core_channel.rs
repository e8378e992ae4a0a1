//! [`CoreChannel`]: one core's end of the rings to another core.
//!
//! Every pair of cores has three rings in each direction: for request fragments to the shard's
//! owner, for replies, and for media events to the owner of the affected chunk. A ring has one
//! producer and one consumer (`rtrb`, wait-free, no allocation).
//!
//! A core's outstanding requests have at most one fragment per shard each, and the request and
//! reply rings have as many entries as a core may have requests. An entry is therefore always free.
//! The core that receives events checks for a free entry before it takes an event from the drive.
//!
//! Messages are collected and published together by the next poll, so that the ring's cache lines
//! move between the cores once per batch. The peer is woken at most once per poll, and only if it
//! is parked.

use std::sync::{Arc, PoisonError, RwLock};

use block::Request;
use driver::MediaEvent;
use event::Waker;
use nvme::Status;
use rtrb::{Consumer, Producer, RingBuffer};

use super::super::stripe_layout::StripeMap;
use crate::invariants::{PblkViolation, require};

/// Maximum number of events in transit to a core; further events stay in the drive.
const EVENTS_MAX: usize = 64;

/// A request fragment for the shard's owner. Its tag is the request's index at the sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardRequest {
    pub(crate) request: Request,
    pub(crate) stripe_map: StripeMap,
}

/// The result of a fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardReply {
    pub(crate) slot: u32,
    pub(crate) status: Status,
    pub(crate) result: u64,
}

impl ShardReply {
    /// A placeholder for buffers.
    pub(crate) const EMPTY: ShardReply = ShardReply { slot: 0, status: Status::SUCCESS, result: 0 };
}

/// One core's end of the rings to and from a peer.
#[derive(Debug)]
pub(crate) struct CoreChannel {
    /// Ring of fragments for the peer's shard.
    requests_out: Producer<ShardRequest>,
    /// Fragments that are not published yet.
    unpublished_requests: Vec<ShardRequest>,
    /// Lower bound of the free entries of the request ring, not counting unpublished fragments.
    free_slots: usize,
    replies_in: Consumer<ShardReply>,
    /// Ring of fragments for this core's shard.
    requests_in: Consumer<ShardRequest>,
    replies_out: Producer<ShardReply>,
    /// Replies that are not published yet.
    unpublished_replies: Vec<ShardReply>,
    /// Media events for the peer's shard, and events that the peer forwards.
    events_out: Producer<MediaEvent>,
    events_in: Consumer<MediaEvent>,
    /// Whether something was sent since the peer was last woken.
    needs_wake: bool,
    /// Fragments sent to the peer that have no reply yet.
    pub(crate) outstanding: u32,
    /// Dropped last, so that the peer finds the rings abandoned when it wakes.
    peer_waker: PeerWaker,
}

/// The waker of a core, if the core may sleep. Its owner may change: a queue is leased to one handle
/// after the other.
pub(crate) type CoreWaker = Arc<RwLock<Option<Waker>>>;

/// Wakes the peer. Dropping it wakes the peer as well, because no further reply will arrive.
#[derive(Debug)]
struct PeerWaker(CoreWaker);

impl PeerWaker {
    fn wake(&self) {
        if let Some(waker) = &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }
}

impl Drop for PeerWaker {
    fn drop(&mut self) {
        self.wake();
    }
}

impl CoreChannel {
    /// Queues a fragment for the next [`publish`](CoreChannel::publish). Returns `false` if the
    /// ring is full, which means that the peer is gone.
    #[inline]
    pub(crate) fn send_request(&mut self, errand: ShardRequest) -> bool {
        if self.unpublished_requests.len() >= self.free_slots {
            // Reads the peer's cache line only when the known free entries are used up.
            self.free_slots = self.requests_out.slots();
            if self.unpublished_requests.len() >= self.free_slots {
                return false;
            }
        }
        self.unpublished_requests.push(errand);
        self.outstanding += 1;
        self.needs_wake = true;
        true
    }

    /// Queues a reply for the next [`publish`](CoreChannel::publish).
    #[inline]
    pub(crate) fn send_reply(&mut self, answer: ShardReply) {
        self.unpublished_replies.push(answer);
        self.needs_wake = true;
    }

    /// Returns whether there is a free entry for an event, or the peer is gone.
    pub(crate) fn can_send_event(&self) -> bool {
        !self.events_out.is_full() || self.events_out.is_abandoned()
    }

    /// Sends an event. After [`can_send_event`](CoreChannel::can_send_event) returned `true`, the
    /// event is lost only if the peer is gone.
    pub(crate) fn send_event(&mut self, event: MediaEvent) {
        self.needs_wake |= self.events_out.push(event).is_ok();
    }

    /// Returns the next event that the peer forwarded.
    #[inline]
    pub(crate) fn pop_event(&mut self) -> Option<MediaEvent> {
        if self.events_in.is_empty() { None } else { self.events_in.pop().ok() }
    }

    /// Publishes the queued fragments and replies.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if !self.unpublished_requests.is_empty() {
            let (sent, unsent) = self.requests_out.push_partial_slice(&self.unpublished_requests);
            debug_assert!(unsent.is_empty(), "places were counted");
            self.free_slots -= sent.len();
            self.unpublished_requests.clear();
        }
        if !self.unpublished_replies.is_empty() {
            // The sender has entries for the replies of all its requests, unless it is gone.
            let (_, unsent) = self.replies_out.push_partial_slice(&self.unpublished_replies);
            debug_assert!(unsent.is_empty() || self.replies_out.is_abandoned());
            self.unpublished_replies.clear();
        }
    }

    /// Passes the peer's fragments to `execute`, until it returns `false` for a fragment that it
    /// did not accept. Returns the number of accepted fragments.
    #[inline]
    pub(crate) fn process_requests(
        &mut self,
        mut execute: impl FnMut(&ShardRequest) -> bool,
    ) -> u64 {
        // Takes only the entries that are present now, so that a fast peer cannot keep the core
        // here.
        let Ok(chunk) = self.requests_in.read_chunk(self.requests_in.slots()) else { return 0 };
        let (first, second) = chunk.as_slices();
        let taken = first.iter().chain(second).take_while(|errand| execute(errand)).count();
        chunk.commit(taken);
        taken as u64
    }

    /// Returns the next replies of the peer, as many as fit `into`.
    #[inline]
    pub(crate) fn pop_replies<'a>(&mut self, into: &'a mut [ShardReply]) -> &'a [ShardReply] {
        let (answers, _) = self.replies_in.pop_partial_slice(into);
        self.outstanding = self.outstanding.saturating_sub(answers.len() as u32);
        answers
    }

    /// Returns whether the peer is gone and fragments of this core's requests have no reply.
    #[inline]
    pub(crate) fn is_disconnected(&self) -> bool {
        self.outstanding > 0 && self.replies_in.is_abandoned() && self.replies_in.is_empty()
    }

    /// Returns whether received messages wait to be processed.
    pub(crate) fn has_received(&self) -> bool {
        !self.requests_in.is_empty() || !self.replies_in.is_empty() || !self.events_in.is_empty()
    }

    /// Returns whether the peer has not been woken for a message.
    pub(crate) fn has_unpublished(&self) -> bool {
        self.needs_wake
    }

    /// Publishes queued messages and wakes the peer if there are any and it sleeps. Returns whether
    /// messages were sent.
    #[inline]
    pub(crate) fn publish_and_wake(&mut self) -> bool {
        self.publish();
        let sent = std::mem::take(&mut self.needs_wake);
        if sent {
            self.peer_waker.wake();
        }
        sent
    }

    /// Returns whether the peer is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.replies_in.is_abandoned()
    }

    /// Compares the messages that are not published with the rings; `peer` is the peer's shard.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self, peer: u32) -> Result<(), PblkViolation> {
        let subject = format_args!("core {peer}");
        let (free, requests) = (self.free_slots, self.unpublished_requests.len());
        let entries = self.requests_out.slots();
        let name = "free entries of the request ring";
        require!(free <= entries, CoreChannels, name, subject, entries, free);
        let name = "a fragment that is not published has an entry";
        require!(requests <= free, CoreChannels, name, subject, free, requests);
        let awaited = self.outstanding as usize;
        let name = "a fragment that is not published is awaited";
        let is_awaited = requests <= awaited || self.is_abandoned();
        require!(is_awaited, CoreChannels, name, subject, awaited, requests);
        let (replies, entries) = (self.unpublished_replies.len(), self.replies_out.slots());
        let name = "a reply that is not published has an entry";
        let has_entry = replies <= entries || self.replies_out.is_abandoned();
        require!(has_entry, CoreChannels, name, subject, entries, replies);
        require!(
            self.needs_wake || requests + replies == 0,
            CoreChannels,
            "the peer is woken for what is not published",
            subject,
            "needs_wake",
            (requests, replies)
        );
        Ok(())
    }
}

/// The ends of one core.
#[derive(Debug)]
pub(crate) struct ChannelEnds {
    /// Channels by peer; `None` for the core itself.
    pub(crate) channels: Vec<Option<CoreChannel>>,
    /// The cell for its waker.
    pub(crate) waker: CoreWaker,
}

/// Creates channels between `cores` cores with up to `requests` requests each.
pub(crate) fn mesh(cores: u32, requests: u32) -> Vec<ChannelEnds> {
    let cores = cores as usize;
    let wakers: Vec<CoreWaker> = (0..cores).map(|_| Arc::default()).collect();
    let mut all: Vec<Vec<Option<CoreChannel>>> =
        (0..cores).map(|_| (0..cores).map(|_| None).collect()).collect();
    for (a, b) in (0..cores).flat_map(|a| (a + 1..cores).map(move |b| (a, b))) {
        let (to_b, from_a) = RingBuffer::new(requests as usize);
        let (to_a, from_b) = RingBuffer::new(requests as usize);
        let (answer_a, answers_of_b) = RingBuffer::new(requests as usize);
        let (answer_b, answers_of_a) = RingBuffer::new(requests as usize);
        let (events_to_b, events_of_a) = RingBuffer::new(EVENTS_MAX);
        let (events_to_a, events_of_b) = RingBuffer::new(EVENTS_MAX);
        let link = |errands_out,
                    answers_in,
                    errands_in,
                    answers_out,
                    (events_out, events_in),
                    peer: usize| CoreChannel {
            requests_out: errands_out,
            unpublished_requests: Vec::with_capacity(requests as usize),
            free_slots: 0,
            replies_in: answers_in,
            requests_in: errands_in,
            replies_out: answers_out,
            unpublished_replies: Vec::with_capacity(requests as usize),
            events_out,
            events_in,
            needs_wake: false,
            outstanding: 0,
            peer_waker: PeerWaker(wakers[peer].clone()),
        };
        let events = (events_to_b, events_of_b);
        all[a][b] = Some(link(to_b, answers_of_b, from_b, answer_b, events, b));
        let events = (events_to_a, events_of_a);
        all[b][a] = Some(link(to_a, answers_of_a, from_a, answer_a, events, a));
    }
    let ends = all.into_iter().zip(wakers);
    ends.map(|(channels, waker)| ChannelEnds { channels, waker }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_cores_is_linked_both_ways() {
        let mut ends = mesh(3, 4);
        for a in 0..3usize {
            for b in 0..3usize {
                if a == b {
                    assert!(ends[a].channels[b].is_none());
                    continue;
                }
                let tag = (a * 10 + b) as u64;
                let request = Request::flush(tag);
                let there = ends[a].channels[b].as_mut().unwrap();
                assert!(
                    there.send_request(ShardRequest { request, stripe_map: StripeMap::CONTIGUOUS })
                        && there.publish_and_wake()
                );
                let here = ends[b].channels[a].as_mut().unwrap();
                assert!(here.has_received());
                let mut seen = None;
                assert_eq!(here.process_requests(|_| false), 0, "not taken");
                let taken = here.process_requests(|errand| {
                    seen = Some(errand.request.tag);
                    true
                });
                assert_eq!((taken, seen), (1, Some(tag)));
                here.send_reply(ShardReply { slot: 5, status: Status::SUCCESS, result: tag });
                assert!(
                    here.has_unpublished() && here.publish_and_wake() && !here.has_unpublished()
                );
                let there = ends[a].channels[b].as_mut().unwrap();
                let mut answers = [ShardReply::EMPTY; 2];
                let answered = there.pop_replies(&mut answers).iter().map(|a| a.result);
                assert_eq!(answered.collect::<Vec<_>>(), [tag]);
                assert_eq!((there.outstanding, there.is_disconnected()), (0, false));
                assert!(there.pop_replies(&mut answers).is_empty());
            }
        }
        let errand = ShardRequest { request: Request::flush(0), stripe_map: StripeMap::CONTIGUOUS };
        assert!(ends[0].channels[1].as_mut().unwrap().send_request(errand));
        drop(ends.remove(1));
        let there = ends[0].channels[1].as_mut().unwrap();
        assert!(there.is_disconnected());
        // The ring is not emptied any more: it has four entries, however often it is published.
        let took: Vec<bool> = (0..5)
            .map(|i| {
                if i == 2 {
                    there.publish();
                }
                there.send_request(errand)
            })
            .collect();
        assert_eq!(took, [true, true, true, false, false]);
    }

    #[test]
    fn batches_arrive_whole_and_in_order_round_the_ring_many_times() {
        let mut rng = rng::Rng::new(1);
        let (mut ends, [mut sent, mut seen, mut answered]) = (mesh(2, 8), [0; 3]);
        while seen < 10_000 {
            let there = ends[0].channels[1].as_mut().unwrap();
            let batch = rng.below(9).min(8 - (sent - answered));
            for _ in 0..batch {
                let request = Request::flush(sent);
                assert!(
                    there.send_request(ShardRequest { request, stripe_map: StripeMap::CONTIGUOUS })
                );
                sent += 1;
            }
            if rng.below(3) > 0 {
                there.publish();
            }
            let here = ends[1].channels[0].as_mut().unwrap();
            let most = rng.below(9);
            let mut taken = Vec::new();
            let count = here.process_requests(|errand| {
                let takes = (taken.len() as u64) < most;
                if takes {
                    taken.push(errand.request.tag);
                }
                takes
            });
            assert_eq!(taken, (seen..seen + count).collect::<Vec<_>>());
            for tag in taken {
                here.send_reply(ShardReply { slot: 0, status: Status::SUCCESS, result: tag });
                seen += 1;
            }
            here.publish_and_wake();
            let there = ends[0].channels[1].as_mut().unwrap();
            let mut answers = [ShardReply::EMPTY; 3];
            while let taken @ [_, ..] = there.pop_replies(&mut answers) {
                for answer in taken {
                    assert_eq!(answer.result, answered);
                    answered += 1;
                }
            }
            assert_eq!(u64::from(there.outstanding), sent - answered);
        }
    }

    #[test]
    fn a_fragment_that_is_not_awaited_is_reported() {
        let mut ends = mesh(2, 4);
        let there = ends[0].channels[1].as_mut().unwrap();
        let request = Request::flush(0);
        assert!(there.send_request(ShardRequest { request, stripe_map: StripeMap::CONTIGUOUS }));
        assert_eq!(there.check_invariants(1), Ok(()));
        there.outstanding = 0;
        let broken = there.check_invariants(1).expect_err("a fragment that is not awaited");
        assert_eq!(broken.invariant, "a fragment that is not published is awaited");
        assert_eq!(broken.subject, "core 1");
    }
}
