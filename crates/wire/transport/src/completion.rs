//! The completion ring: [`CqProducer`] posts, [`CqConsumer`] reaps.
//!
//! The host recognizes a new entry by its phase tag, which inverts with every pass over the ring.
//! The half of the entry that holds the tag is written last, with release order.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Cqe;

use crate::doorbell::DoorbellWriter;
use crate::ring_memory::RingMemory;
use crate::shadow_doorbell::{DoorbellStats, ShadowDoorbell, ShadowDoorbells};
use crate::{InvalidDoorbell, Port};
use mem::{Iova, NotRegistered, SharedWord};

type Ring = RingMemory<2>;

/// The drive's end of a completion ring.
#[derive(Debug)]
pub struct CqProducer {
    ring: Ring,
    tail: u16,
    head: u16,
    phase: bool,
    vector: Option<u16>,
    posted: bool,
    /// The register of the head doorbell.
    doorbell: SharedWord,
    /// The head doorbell in the doorbell buffer, if enabled.
    shadow: Option<Box<ShadowDoorbell>>,
}

/// The error for a full completion ring: the drive keeps the completion and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full")]
pub struct CompletionFull;

impl CqProducer {
    /// Returns the addresses of the ring.
    pub fn memory(&self) -> Range<Iova> {
        self.ring.range.clone()
    }

    /// Opens the drive's end of queue `qid`, whose memory is at `at` and must be zero. `vector` is
    /// raised after completions were posted.
    ///
    /// # Errors
    /// [`NotRegistered`] if the memory is not registered, not page aligned, or too small.
    pub fn open(
        port: &Arc<Port>,
        qid: u16,
        at: Iova,
        depth: u16,
        vector: Option<u16>,
    ) -> Result<Self, NotRegistered> {
        let ring = Ring::open(port, qid, at, depth)?;
        let doorbell = SharedWord::new(port.doorbells().clone(), port.cq_doorbell(qid));
        doorbell.get().store(0, Ordering::Relaxed);
        let (phase, posted, shadow) = (true, false, None);
        Ok(CqProducer { ring, tail: 0, head: 0, phase, vector, posted, doorbell, shadow })
    }

    /// Uses the doorbell buffer from now on.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        self.shadow = shadows.completion(self.ring.qid).map(Box::new);
        if let Some(shadow) = &self.shadow {
            shadow.init(self.head);
        }
    }

    /// Posts a completion.
    ///
    /// # Errors
    /// [`CompletionFull`]; an invalid head doorbell value counts as no progress.
    #[inline]
    pub fn post(&mut self, cqe: Cqe) -> Result<(), CompletionFull> {
        let next = if self.tail + 1 == self.ring.depth { 0 } else { self.tail + 1 };
        if next == self.head && !self.read_head().is_ok_and(|head| next != head) {
            return Err(CompletionFull);
        }
        let [low, high] = cqe.to_words(self.phase);
        let entry = self.ring.entry(self.tail);
        entry[0].store(low, Ordering::Relaxed);
        entry[1].store(high, Ordering::Release);
        if next == 0 {
            self.phase = !self.phase;
        }
        self.tail = next;
        self.posted = true;
        Ok(())
    }

    /// Raises the interrupt vector if completions were posted since the last call.
    #[inline]
    pub fn raise_interrupt(&mut self) {
        if self.posted {
            self.posted = false;
            if let Some(vector) = self.vector {
                self.ring.port.interrupt(vector);
            }
        }
    }

    fn read_head(&mut self) -> Result<u16, InvalidDoorbell> {
        if let Some(shadow) = &self.shadow {
            self.head = self.ring.check_index(shadow.load())?;
            if self.head == self.ring.next_index(self.tail) {
                // The ring is full: ask the host for a register write when it frees an entry.
                self.head = self.ring.check_index(shadow.arm_event(self.head))?;
            }
            return Ok(self.head);
        }
        self.head = self.ring.check_index(self.doorbell.get().load(Ordering::Acquire))?;
        Ok(self.head)
    }
}

/// The host's end of a completion ring.
#[derive(Debug)]
pub struct CqConsumer {
    ring: Ring,
    head: u16,
    phase: bool,
    reaped: bool,
    /// The head doorbell.
    doorbell: DoorbellWriter,
}

impl CqConsumer {
    /// Opens the host's end of queue `qid`, whose memory is at `at` and must be zero.
    ///
    /// # Errors
    /// [`NotRegistered`] if the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, NotRegistered> {
        let ring = Ring::open(port, qid, at, depth)?;
        let bell = DoorbellWriter::new(port, port.cq_doorbell(qid));
        Ok(CqConsumer { ring, head: 0, phase: true, reaped: false, doorbell: bell })
    }

    /// Uses the doorbell buffer as well from now on, before the first completion was reaped. A
    /// queue without a doorbell in the buffer keeps its register.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        self.doorbell.enable_shadow(shadows.completion(self.ring.qid));
    }

    /// Takes over the doorbell state of an earlier end of this queue, after the drive has deleted
    /// the queue.
    pub fn take_over_state(&mut self, from: &mut CqConsumer) {
        self.doorbell.take_over_state(&mut from.doorbell);
    }

    /// Returns the doorbell counters, if the doorbell buffer is in use.
    pub fn doorbell_stats(&self) -> Option<DoorbellStats> {
        self.doorbell.stats()
    }

    /// Writes the doorbell register again, if the last write was omitted because of the doorbell
    /// buffer.
    pub fn rewrite_doorbell(&mut self) {
        self.doorbell.rewrite_register();
    }

    /// Whether [`pop`](CqConsumer::pop) would return a completion.
    #[inline]
    pub fn has_completion(&self) -> bool {
        let entry = self.ring.entry(self.head);
        Cqe::phase(entry[1].load(Ordering::Acquire)) == self.phase
    }

    /// Removes the next completion. [`release`](CqConsumer::release) returns its entry to the
    /// drive.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        let entry = self.ring.entry(self.head);
        let high = entry[1].load(Ordering::Acquire);
        if Cqe::phase(high) != self.phase {
            return None;
        }
        let low = entry[0].load(Ordering::Relaxed);
        self.head += 1;
        if self.head == self.ring.depth {
            self.head = 0;
            self.phase = !self.phase;
        }
        self.reaped = true;
        Some(Cqe::from_words([low, high]))
    }

    /// Writes the head doorbell if completions were reaped since the last call, and wakes a drive
    /// that waits for a free entry.
    #[inline]
    pub fn release(&mut self) {
        if self.release_without_wake() {
            self.ring.port.wake_drive();
        }
    }

    /// Writes the head doorbell like [`release`](CqConsumer::release), without waking the drive:
    /// for a caller that next writes another doorbell of this port, which wakes it. Returns whether
    /// there was something to release.
    #[inline]
    pub fn release_without_wake(&mut self) -> bool {
        if !std::mem::replace(&mut self.reaped, false) {
            return false;
        }
        self.doorbell.ring(self.head);
        true
    }
}

#[cfg(test)]
mod tests {
    use nvme::{Sqe, Status};

    use super::*;
    use crate::{SqConsumer, SqProducer, SubmissionFull};
    use mem::{PAGE_BYTES, SharedRegion};

    fn queue(depth: u16) -> (SqProducer, CqConsumer, SqConsumer, CqProducer) {
        let port = Port::new().unwrap();
        let memory = SharedRegion::anonymous(128 * PAGE_BYTES).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let cq = at.offset(64 * PAGE_BYTES as u64);
        (
            SqProducer::open(&port, 1, at, depth).unwrap(),
            CqConsumer::open(&port, 1, cq, depth).unwrap(),
            SqConsumer::open(&port, 1, at, depth).unwrap(),
            CqProducer::open(&port, 1, cq, depth, None).unwrap(),
        )
    }

    #[test]
    fn commands_and_completions_go_round_many_times() {
        for depth in [2, 3, 64, 1000] {
            let (mut sq, mut cq, mut dsq, mut dcq) = queue(depth);
            let (mut sent, mut done) = (0u64, 0u64);
            while done < 5_000 {
                while sent - done < u64::from(depth) && sq.free() > 0 {
                    let mut sqe = Sqe::new(2, 1);
                    sqe.cid = (sent as u16).into();
                    sqe.set_slba(sent);
                    sq.push(&sqe).unwrap();
                    sent += 1;
                }
                sq.ring();
                dsq.read_tail().unwrap();
                while let Some(sqe) = dsq.fetch() {
                    let cqe = Cqe {
                        result: sqe.slba() * 3,
                        sq_head: dsq.head(),
                        sq_id: 1,
                        cid: sqe.cid.get(),
                        status: Status::SUCCESS,
                    };
                    dcq.post(cqe).unwrap();
                }
                while let Some(cqe) = cq.pop() {
                    assert_eq!((cqe.result, cqe.cid), (done * 3, done as u16));
                    sq.update_head(cqe.sq_head);
                    done += 1;
                }
                cq.release();
            }
        }
    }

    #[test]
    fn full_rings_push_back() {
        let (mut sq, mut cq, mut dsq, mut dcq) = queue(4);
        for _ in 0..3 {
            sq.push(&Sqe::default()).unwrap();
        }
        assert_eq!(sq.push(&Sqe::default()), Err(SubmissionFull));
        assert_eq!(dsq.read_tail().unwrap(), 0, "nothing before the doorbell");
        sq.ring();
        assert_eq!(dsq.read_tail().unwrap(), 3);
        for _ in 0..3 {
            dcq.post(Cqe::default()).unwrap();
        }
        assert_eq!(dcq.post(Cqe::default()), Err(CompletionFull));
        assert!(cq.pop().is_some());
        assert_eq!(dcq.post(Cqe::default()), Err(CompletionFull), "popped but not released");
        cq.release();
        dcq.post(Cqe::default()).unwrap();
    }

    #[test]
    fn a_wild_doorbell_is_an_error_and_not_a_wild_read() {
        let (_sq, _cq, mut dsq, _dcq) = queue(4);
        for value in [4, 5, u32::MAX] {
            dsq.ring_for_test(value);
            assert_eq!(dsq.read_tail(), Err(InvalidDoorbell { qid: 1, value, depth: 4 }));
            assert!(dsq.fetch().is_none());
        }
    }

    #[test]
    fn rings_outside_registered_memory_are_refused() {
        let port = Port::new().unwrap();
        let at = port.memory().register(&SharedRegion::anonymous(PAGE_BYTES).unwrap()).unwrap();
        assert!(SqConsumer::open(&port, 1, at, 64).is_ok());
        assert!(SqConsumer::open(&port, 1, at, 65).is_err());
        assert!(SqConsumer::open(&port, 1, at.offset(64), 2).is_err(), "not page aligned");
        assert!(SqConsumer::open(&port, 1, at, 1).is_err(), "a ring of one holds nothing");
        assert!(CqProducer::open(&port, 1, Iova(0), 2, None).is_err());
    }

    #[test]
    fn two_threads_lose_nothing() {
        const COUNT: u64 = 200_000;
        let (mut sq, mut cq, mut dsq, mut dcq) = queue(32);
        let drive = std::thread::spawn(move || {
            let mut left = COUNT;
            while left > 0 {
                dsq.read_tail().unwrap();
                while let Some(sqe) = dsq.fetch() {
                    let cqe = Cqe { result: sqe.slba(), sq_head: dsq.head(), ..Cqe::default() };
                    while dcq.post(cqe).is_err() {
                        std::hint::spin_loop();
                    }
                    left -= 1;
                }
            }
        });
        let (mut sent, mut done) = (0, 0);
        while done < COUNT {
            let mut sqe = Sqe::new(2, 1);
            sqe.set_slba(sent);
            if sent < COUNT && sq.push(&sqe).is_ok() {
                sent += 1;
                sq.ring();
            }
            while let Some(cqe) = cq.pop() {
                assert_eq!(cqe.result, done);
                sq.update_head(cqe.sq_head);
                done += 1;
            }
            cq.release();
        }
        drive.join().unwrap();
    }
}
