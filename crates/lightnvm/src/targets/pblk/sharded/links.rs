//! [`Link`]: one core's end of the rings to another core.
//!
//! For every pair of cores there are two rings in each direction: parts of requests to the shard's
//! owner, and answers back. Each ring has one producer and one consumer (`rtrb`, wait-free, no
//! allocation) and as many places as the submitting core can have requests, each of which has one
//! part on a shard, so that a place is always free. What is sent is published at once; who it is
//! for is woken once per poll, and only if it is parked.

use std::sync::{Arc, OnceLock};

use block::Request;
use clock::Waker;
use nvme::Status;
use rtrb::{Consumer, Producer, RingBuffer};

use super::super::spread::Spread;

/// A part of a request on its way to the shard's owner. Its tag is its place at the sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errand {
    pub(crate) request: Request,
    pub(crate) spread: Spread,
}

/// How a part ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) place: u32,
    pub(crate) status: Status,
    pub(crate) result: u64,
}

/// One core's end of the rings to and from a peer.
#[derive(Debug)]
pub(crate) struct Link {
    /// Parts for the peer's shard, and their answers.
    errands_out: Producer<Errand>,
    answers_in: Consumer<Answer>,
    /// Parts for this core's shard, and their answers.
    errands_in: Consumer<Errand>,
    answers_out: Producer<Answer>,
    /// Whether something was sent since the peer was last woken.
    sent: bool,
    /// Parts that the peer has and has not answered.
    pub(crate) away: u32,
    /// Dropped last, so that a peer that it wakes finds the rings abandoned.
    peer: Peer,
}

/// Who wakes the peer: also when this end goes, because then nothing it waits for will come.
#[derive(Debug)]
struct Peer(Arc<OnceLock<Waker>>);

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(waker) = self.0.get() {
            waker.wake();
        }
    }
}

impl Link {
    /// Sends a part. `false` if there is no place, or nobody will ever look.
    #[inline]
    pub(crate) fn send(&mut self, errand: Errand) -> bool {
        let sent = self.errands_out.push(errand).is_ok();
        self.away += u32::from(sent);
        self.sent |= sent;
        sent
    }

    /// Sends an answer.
    #[inline]
    pub(crate) fn answer(&mut self, answer: Answer) {
        // The sender has room for the answers of all its requests, or is gone.
        let sent = self.answers_out.push(answer);
        debug_assert!(sent.is_ok() || self.answers_out.is_abandoned());
        self.sent = true;
    }

    /// Hands parts of the peer's requests to `carry_out`, which says whether it took one.
    #[inline]
    pub(crate) fn errands(&mut self, mut carry_out: impl FnMut(&Errand) -> bool) -> u64 {
        let mut taken = 0;
        // A peer that sends faster than this takes does not keep it here.
        for _ in 0..self.errands_in.slots() {
            let took = self.errands_in.peek().is_ok_and(&mut carry_out);
            if !took || self.errands_in.pop().is_err() {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// The next answer of the peer.
    #[inline]
    pub(crate) fn take_answer(&mut self) -> Option<Answer> {
        let answer = self.answers_in.pop().ok()?;
        self.away = self.away.saturating_sub(1);
        Some(answer)
    }

    /// Whether the peer is gone, with parts of this core's requests.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.away > 0 && self.answers_in.is_abandoned() && self.answers_in.is_empty()
    }

    /// Whether something has come that was not taken.
    pub(crate) fn has_come(&self) -> bool {
        !self.errands_in.is_empty() || !self.answers_in.is_empty()
    }

    /// Whether the peer has not been told of something.
    pub(crate) fn has_news(&self) -> bool {
        self.sent
    }

    /// Wakes the peer, if it sleeps and there is something for it. Returns whether there was.
    #[inline]
    pub(crate) fn tell(&mut self) -> bool {
        let sent = std::mem::take(&mut self.sent);
        if sent && let Some(waker) = self.peer.0.get() {
            waker.wake();
        }
        sent
    }
}

/// The ends of every core: for each its links by peer, none to itself, and where it says who wakes it.
pub(crate) type Ends = (Vec<Option<Link>>, Arc<OnceLock<Waker>>);

/// Rings between `cores` cores, of which each has up to `requests` requests.
pub(crate) fn mesh(cores: u32, requests: u32) -> Vec<Ends> {
    let cores = cores as usize;
    let wakers: Vec<Arc<OnceLock<Waker>>> = (0..cores).map(|_| Arc::default()).collect();
    let mut all: Vec<Vec<Option<Link>>> =
        (0..cores).map(|_| (0..cores).map(|_| None).collect()).collect();
    for (a, b) in (0..cores).flat_map(|a| (a + 1..cores).map(move |b| (a, b))) {
        let (to_b, from_a) = RingBuffer::new(requests as usize);
        let (to_a, from_b) = RingBuffer::new(requests as usize);
        let (answer_a, answers_of_b) = RingBuffer::new(requests as usize);
        let (answer_b, answers_of_a) = RingBuffer::new(requests as usize);
        let link = |errands_out, answers_in, errands_in, answers_out, peer: usize| Link {
            errands_out,
            answers_in,
            errands_in,
            answers_out,
            sent: false,
            away: 0,
            peer: Peer(wakers[peer].clone()),
        };
        all[a][b] = Some(link(to_b, answers_of_b, from_b, answer_b, b));
        all[b][a] = Some(link(to_a, answers_of_a, from_a, answer_a, a));
    }
    all.into_iter().zip(wakers).collect()
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
                    assert!(ends[a].0[b].is_none());
                    continue;
                }
                let tag = (a * 10 + b) as u64;
                let request = Request::flush(tag);
                let there = ends[a].0[b].as_mut().unwrap();
                assert!(there.send(Errand { request, spread: Spread::NONE }) && there.tell());
                let here = ends[b].0[a].as_mut().unwrap();
                assert!(here.has_come());
                let mut seen = None;
                assert_eq!(here.errands(|_| false), 0, "not taken");
                let taken = here.errands(|errand| {
                    seen = Some(errand.request.tag);
                    true
                });
                assert_eq!((taken, seen), (1, Some(tag)));
                here.answer(Answer { place: 5, status: Status::SUCCESS, result: tag });
                let there = ends[a].0[b].as_mut().unwrap();
                assert_eq!(there.take_answer().map(|a| a.result), Some(tag));
                assert_eq!((there.away, there.is_lost()), (0, false));
            }
        }
        let request = Request::flush(0);
        assert!(ends[0].0[1].as_mut().unwrap().send(Errand { request, spread: Spread::NONE }));
        drop(ends.remove(1));
        assert!(ends[0].0[1].as_ref().unwrap().is_lost());
    }
}
