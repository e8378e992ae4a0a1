//! The submission ring: [`SqProducer`] writes entries, [`SqConsumer`] fetches them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Sqe;

use crate::doorbell::DoorbellWriter;
use crate::ring_memory::RingMemory;
use crate::shadow_doorbell::{DoorbellStats, REGISTER_CONSUMED, ShadowDoorbell, ShadowDoorbells};
use crate::{Iova, NotRegistered, Port};

const ENTRY_BYTES: usize = size_of::<Sqe>();

type Ring = RingMemory<ENTRY_BYTES>;

/// The host's end of a submission ring. A ring of `depth` entries holds `depth - 1` commands.
#[derive(Debug)]
pub struct SqProducer {
    ring: Ring,
    tail: u16,
    /// As far as the drive has said that it fetched.
    head: u16,
    /// The tail doorbell.
    doorbell: DoorbellWriter,
}

/// The ring has no free entry: reap completions, they carry the drive's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the submission queue is full")]
pub struct SubmissionFull;

impl SqProducer {
    /// The host's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`NotRegistered`] when the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, NotRegistered> {
        let ring = Ring::open(port, qid, at, depth)?;
        let bell = DoorbellWriter::new(ring.sq_doorbell());
        Ok(SqProducer { ring, tail: 0, head: 0, doorbell: bell })
    }

    /// The doorbell is in memory, too, from now on; nothing was pushed yet. A queue that has none there
    /// keeps to its register.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        self.doorbell.enable_shadow(shadows.submission(self.ring.qid));
    }

    /// Takes over what another end of the same queue had, which the drive has forgotten.
    pub fn take_over_state(&mut self, from: &mut SqProducer) {
        self.doorbell.take_over_state(&mut from.doorbell);
    }

    /// How often the doorbell was rung, if it is in memory.
    pub fn doorbell_stats(&self) -> Option<DoorbellStats> {
        self.doorbell.stats()
    }

    /// Writes the register of a doorbell in memory once more: a controller that was told of everything
    /// may have missed it all the same.
    pub fn rewrite_doorbell(&mut self) {
        self.doorbell.rewrite_register(&self.ring.port);
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

    /// Writes an entry; the drive sees it after [`ring`](SqProducer::ring).
    ///
    /// # Errors
    /// [`SubmissionFull`].
    #[inline]
    pub fn push(&mut self, sqe: &Sqe) -> Result<(), SubmissionFull> {
        let next = self.ring.next_index(self.tail);
        if next == self.head {
            return Err(SubmissionFull);
        }
        let entry = self.ring.entry::<{ ENTRY_BYTES / 8 }>(self.tail);
        for (word, value) in entry.iter().zip(sqe.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = next;
        Ok(())
    }

    /// Rings the doorbell: everything pushed so far is the drive's. Wakes a parked drive.
    #[inline]
    pub fn ring(&mut self) {
        self.doorbell.ring(&self.ring.port, self.tail);
        self.ring.port.wake_drive();
    }

    /// Takes note of the drive's progress, from a completion's `sq_head`.
    #[inline]
    pub fn update_head(&mut self, sq_head: u16) {
        if sq_head < self.ring.depth {
            self.head = sq_head;
        }
    }
}

/// The drive's end of a submission ring.
#[derive(Debug)]
pub struct SqConsumer {
    ring: Ring,
    head: u16,
    tail: u16,
    /// The tail doorbell, if it is in memory.
    shadow: Option<Box<ShadowDoorbell>>,
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

impl SqConsumer {
    /// The drive's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`NotRegistered`] when the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, NotRegistered> {
        let doorbell = port.doorbells().atomic_u32(port.sq_doorbell(qid));
        doorbell.store(0, Ordering::Relaxed);
        let ring = Ring::open(port, qid, at, depth)?;
        Ok(SqConsumer { ring, head: 0, tail: 0, shadow: None })
    }

    /// The doorbell is in memory from now on, and its register only says that there is something: it is
    /// looked at again when the host was asked to write it and has done so.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        self.shadow = shadows.submission(self.ring.qid).map(Box::new);
        if let Some(shadow) = &self.shadow {
            shadow.init(self.tail);
        }
    }

    /// The doorbell of a queue that has it in memory. Without a word from the host it is looked at until
    /// nothing is left, and then not before the register is written.
    #[inline(never)]
    fn read_shadow_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        let Some(shadow) = &mut self.shadow else { return Ok(self.waiting()) };
        let register = self.ring.port.doorbells().atomic_u32(self.ring.sq_doorbell());
        if register.load(Ordering::Acquire) != REGISTER_CONSUMED {
            register.swap(REGISTER_CONSUMED, Ordering::AcqRel);
            shadow.active = true;
        }
        if !shadow.active {
            return Ok(0);
        }
        let mut value = shadow.load();
        if value == u32::from(self.head) {
            value = shadow.arm_event(self.head);
            shadow.active = value != u32::from(self.head);
        }
        self.tail = self.ring.check_index(value)?;
        Ok(self.waiting())
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
    pub fn read_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        if self.shadow.is_some() {
            return self.read_shadow_tail();
        }
        self.tail = self.ring.doorbell(self.ring.sq_doorbell())?;
        Ok(self.waiting())
    }

    /// Entries waiting, as of the last [`look`](SqConsumer::read_tail).
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
        let entry = self.ring.entry::<{ ENTRY_BYTES / 8 }>(self.head);
        let words = std::array::from_fn(|i| entry[i].load(Ordering::Relaxed));
        self.head = self.ring.next_index(self.head);
        Some(Sqe::from_words(words))
    }

    /// How far the ring has been fetched, for completions.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }
}

#[cfg(test)]
impl SqConsumer {
    pub(crate) fn ring_for_test(&self, value: u32) {
        let offset = self.ring.sq_doorbell();
        self.ring.port.doorbells().atomic_u32(offset).store(value, Ordering::Release);
    }
}
