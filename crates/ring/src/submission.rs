//! The submission ring: [`SubmissionHost`] writes entries, [`SubmissionDrive`] fetches them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Sqe;

use crate::entries::Entries;
use crate::{Iova, Port, Unregistered};

const ENTRY: usize = size_of::<Sqe>();

type Ring = Entries<ENTRY>;

/// The host's end of a submission ring. A ring of `depth` entries holds `depth - 1` commands.
#[derive(Debug)]
pub struct SubmissionHost {
    ring: Ring,
    tail: u16,
    /// As far as the drive has said that it fetched.
    head: u16,
}

/// The ring has no free entry: reap completions, they carry the drive's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the submission queue is full")]
pub struct SubmissionFull;

impl SubmissionHost {
    /// The host's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`Unregistered`] when the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, Unregistered> {
        Ok(SubmissionHost { ring: Ring::open(port, qid, at, depth)?, tail: 0, head: 0 })
    }

    /// Entries that can be pushed before the ring is full.
    #[inline]
    pub fn free(&self) -> u16 {
        let depth = self.ring.depth;
        let used = if self.tail >= self.head {
            self.tail - self.head
        } else {
            self.tail + (depth - self.head)
        };
        depth - 1 - used
    }

    /// Writes an entry; the drive sees it after [`ring`](SubmissionHost::ring).
    ///
    /// # Errors
    /// [`SubmissionFull`].
    #[inline]
    pub fn push(&mut self, sqe: &Sqe) -> Result<(), SubmissionFull> {
        let next = self.ring.next(self.tail);
        if next == self.head {
            return Err(SubmissionFull);
        }
        let entry = self.ring.entry::<{ ENTRY / 8 }>(self.tail);
        for (word, value) in entry.iter().zip(sqe.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = next;
        Ok(())
    }

    /// Rings the doorbell: everything pushed so far is the drive's. Wakes a parked drive.
    #[inline]
    pub fn ring(&self) {
        let doorbells = self.ring.port.doorbells();
        doorbells.half_word(self.ring.sq_doorbell()).store(self.tail.into(), Ordering::Release);
        self.ring.port.wake_drive();
    }

    /// Takes note of the drive's progress, from a completion's `sq_head`.
    #[inline]
    pub fn fetched(&mut self, sq_head: u16) {
        if sq_head < self.ring.depth {
            self.head = sq_head;
        }
    }
}

/// The drive's end of a submission ring.
#[derive(Debug)]
pub struct SubmissionDrive {
    ring: Ring,
    head: u16,
    tail: u16,
}

/// The host wrote a tail that is outside of the ring (NVMe section 5.2: an error event of type
/// *invalid doorbell write value*). The queue stands still until it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue {qid}: doorbell value {value} is outside of a ring of {depth}")]
pub struct InvalidDoorbell {
    /// The queue.
    pub qid: u16,
    /// What the host wrote.
    pub value: u32,
    /// Entries in the ring.
    pub depth: u16,
}

impl SubmissionDrive {
    /// The drive's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`Unregistered`] when the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, Unregistered> {
        let doorbell = port.doorbells().half_word(port.sq_doorbell(qid));
        doorbell.store(0, Ordering::Relaxed);
        Ok(SubmissionDrive { ring: Ring::open(port, qid, at, depth)?, head: 0, tail: 0 })
    }

    /// The queue's identifier.
    pub fn qid(&self) -> u16 {
        self.ring.qid
    }

    /// Entries waiting, as of a fresh look at the doorbell.
    ///
    /// # Errors
    /// [`InvalidDoorbell`].
    #[inline]
    pub fn look(&mut self) -> Result<u16, InvalidDoorbell> {
        self.tail = self.ring.doorbell(self.ring.sq_doorbell())?;
        Ok(self.waiting())
    }

    /// Entries waiting, as of the last [`look`](SubmissionDrive::look).
    #[inline]
    pub fn waiting(&self) -> u16 {
        if self.tail >= self.head {
            self.tail - self.head
        } else {
            self.tail + (self.ring.depth - self.head)
        }
    }

    /// Takes the next entry, copied once: what the host does to the ring afterwards changes nothing.
    #[inline]
    pub fn fetch(&mut self) -> Option<Sqe> {
        if self.head == self.tail {
            return None;
        }
        let entry = self.ring.entry::<{ ENTRY / 8 }>(self.head);
        let words = std::array::from_fn(|i| entry[i].load(Ordering::Relaxed));
        self.head = self.ring.next(self.head);
        Some(Sqe::from_words(words))
    }

    /// How far the ring has been fetched, for completions.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }
}

#[cfg(test)]
impl SubmissionDrive {
    pub(crate) fn ring_for_test(&self, value: u32) {
        let offset = self.ring.sq_doorbell();
        self.ring.port.doorbells().half_word(offset).store(value, Ordering::Release);
    }
}
