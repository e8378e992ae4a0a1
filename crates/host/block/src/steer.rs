//! Steering: sends a completion that one core found to the core that submitted the request.
//!
//! Each mailbox is a single-producer, single-consumer ring with two 64-bit words per completion.
//! The producer is the holder of the dispatch queue's lock; the consumer is the submitter's core.
//!
//! Invariant: every completion sent is received once, in order. The ring has as many slots as the
//! submitter can have requests, so a slot is always free.

// guarantee: B-07

use std::sync::Arc;

use nvme::Status;

use crate::Submitter;
use crate::dispatch::ReapedRequest;
use crate::sync::Platform;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WORDS: usize = 2;

#[derive(Debug)]
struct Mailbox {
    slots: Box<[[AtomicU64; WORDS]]>,
    /// Number of completions ever sent.
    sent: Aligned<AtomicU64>,
    /// Whether the consumer has been dropped.
    closed: AtomicBool,
}

/// A value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Aligned<T>(T);

/// The producer's endpoint.
#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Mailbox>,
    sent: u64,
}

/// The consumer's endpoint.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<Mailbox>,
    received: u64,
    submitter: Submitter,
}

/// Creates a ring to `submitter`, which has at most `requests` requests.
pub(crate) fn completion_mailbox(submitter: Submitter, requests: usize) -> (Sender, Receiver) {
    let places = requests.next_power_of_two();
    let shared = Arc::new(Mailbox {
        slots: (0..places).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
        sent: Aligned(AtomicU64::new(0)),
        closed: AtomicBool::new(false),
    });
    (Sender { shared: shared.clone(), sent: 0 }, Receiver { shared, received: 0, submitter })
}

impl Mailbox {
    #[inline]
    fn slot(&self, count: u64) -> &[AtomicU64; WORDS] {
        &self.slots[count as usize & (self.slots.len() - 1)]
    }
}

impl Sender {
    /// Sends a completion. A slot is free: there are at least as many slots as requests of the
    /// submitter, and each request completes once.
    #[inline]
    pub(crate) fn send<P: Platform>(&mut self, ended: &ReapedRequest) {
        let place = self.shared.slot(self.sent);
        P::wrote(place);
        let first = u64::from(ended.id) | u64::from(ended.status.to_bits()) << 32;
        place[0].store(first, Ordering::Relaxed);
        place[1].store(ended.result, Ordering::Relaxed);
        self.sent += 1;
        P::wrote(&self.shared.sent);
        self.shared.sent.0.store(self.sent, Ordering::Release);
    }

    /// Returns whether the consumer has been dropped.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }
}

impl Receiver {
    /// Receives the next completion, if there is one.
    #[inline]
    pub(crate) fn receive<P: Platform>(&mut self) -> Option<ReapedRequest> {
        P::read(&self.shared.sent);
        if self.shared.sent.0.load(Ordering::Acquire) == self.received {
            return None;
        }
        let place = self.shared.slot(self.received);
        P::read(place);
        let first = place[0].load(Ordering::Relaxed);
        let ended = ReapedRequest {
            id: first as u32,
            status: Status::from_bits((first >> 32) as u16),
            result: place[1].load(Ordering::Relaxed),
            submitter: self.submitter,
        };
        self.received += 1;
        Some(ended)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;

    #[test]
    fn what_is_sent_is_received_once_and_in_order_by_another_thread() {
        const COUNT: u64 = 100_000;
        let (mut sender, mut receiver) = completion_mailbox(Submitter(7), 60);
        let window = Arc::new(AtomicU64::new(0));
        let received = window.clone();
        let thread = std::thread::spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let Some(ended) = receiver.receive::<Native>() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(ended, completion_msg(next));
                next += 1;
                received.store(next, Ordering::Release);
            }
        });
        for count in 0..COUNT {
            while count - window.load(Ordering::Acquire) >= 60 {
                std::thread::yield_now();
            }
            sender.send::<Native>(&completion_msg(count));
        }
        thread.join().unwrap();
        assert!(sender.is_closed());
    }

    fn completion_msg(count: u64) -> ReapedRequest {
        let status = if count.is_multiple_of(3) { Status::WRITE_FAULT } else { Status::SUCCESS };
        ReapedRequest { submitter: Submitter(7), id: count as u32, status, result: count << 40 }
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p sluice-block --lib --release loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::Native;

    #[test]
    fn loom_every_interleaving_receives_each_completion_once_and_whole() {
        loom::model(|| {
            let (mut sender, mut receiver) = completion_mailbox(Submitter(7), 2);
            let thread = loom::thread::spawn(move || {
                for id in 0..2 {
                    sender.send::<Native>(&ReapedRequest {
                        id,
                        status: Status::from_bits(id as u16 + 1),
                        result: u64::from(id) + 10,
                        submitter: Submitter(7),
                    });
                }
                sender
            });
            let mut next = 0;
            while next < 2 {
                let Some(ended) = receiver.receive::<Native>() else {
                    loom::thread::yield_now();
                    continue;
                };
                assert_eq!(ended.id, next);
                assert_eq!(ended.status.to_bits(), next as u16 + 1);
                assert_eq!(ended.result, u64::from(next) + 10);
                next += 1;
            }
            assert!(receiver.receive::<Native>().is_none());
            let sender = thread.join().unwrap();
            drop(receiver);
            assert!(sender.is_closed());
        });
    }
}
