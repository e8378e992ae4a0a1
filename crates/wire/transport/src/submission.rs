//! The submission ring: [`SqProducer`] writes entries, [`SqConsumer`] fetches them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Sqe;

use crate::Port;
use crate::doorbell::DoorbellWriter;
use crate::doorbell_stamp::{DoorbellReading, DrivePolls, StampReader, StampWriter};
use crate::ring_memory::RingMemory;
use crate::shadow_doorbell::{DoorbellStats, REGISTER_CONSUMED, ShadowDoorbell, ShadowDoorbells};
use mem::{Iova, NotRegistered, SharedWord};

type Ring = RingMemory<{ size_of::<Sqe>() / 8 }>;

/// The host's end of a submission ring. A ring of `depth` entries holds `depth - 1` commands.
#[derive(Debug)]
pub struct SqProducer {
    ring: Ring,
    tail: u16,
    /// The drive's head, as last reported by a completion.
    head: u16,
    /// The tail doorbell.
    doorbell: DoorbellWriter,
}

/// The error for a full submission ring: completions that the host reaps report free entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the submission queue is full")]
pub struct SubmissionFull;

impl SqProducer {
    /// Opens the host's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`NotRegistered`] if the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, NotRegistered> {
        let ring = Ring::open(port, qid, at, depth)?;
        let bell = DoorbellWriter::new(port, port.sq_doorbell(qid));
        Ok(SqProducer { ring, tail: 0, head: 0, doorbell: bell })
    }

    /// Uses the doorbell buffer as well from now on, before the first entry was pushed. A queue
    /// without a doorbell in the buffer keeps its register.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        self.doorbell.enable_shadow(shadows.submission(self.ring.qid));
    }

    /// Takes over the doorbell state of an earlier end of this queue, after the drive has deleted
    /// the queue.
    pub fn take_over_state(&mut self, from: &mut SqProducer) {
        self.doorbell.take_over_state(&mut from.doorbell);
    }

    /// Returns the doorbell counters, if the doorbell buffer is in use.
    pub fn doorbell_stats(&self) -> Option<DoorbellStats> {
        self.doorbell.stats()
    }

    /// Writes the doorbell register again: a controller may have missed the value in the doorbell
    /// buffer.
    pub fn rewrite_doorbell(&mut self) {
        self.doorbell.rewrite_register();
    }

    /// Returns the number of free entries.
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

    /// Returns the number of the port in tracepoints.
    pub fn port_number(&self) -> u64 {
        self.ring.port.number()
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
        let entry = self.ring.entry(self.tail);
        for (word, value) in entry.iter().zip(sqe.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = next;
        Ok(())
    }

    /// Writes the doorbell, so that the drive may fetch all pushed entries. Wakes a parked drive.
    #[inline]
    pub fn ring(&mut self) {
        self.doorbell.ring(self.tail);
        // In virtual time no drive requests stamps.
        if self.ring.port.wake_drive() && !self.doorbell.has_stamp() {
            self.stamp_if_requested();
        }
    }

    /// Stamps all later doorbells of an I/O queue, if the drive requests it.
    fn stamp_if_requested(&mut self) {
        let Ring { port, qid, .. } = &self.ring;
        if *qid > 0 && port.requests_stamps() {
            self.doorbell.enable_stamp(StampWriter::open(port, *qid));
        }
    }

    /// Updates the drive's head from a completion's `sq_head`.
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
    /// The register of the tail doorbell.
    doorbell: SharedWord,
    /// The words that the drive reads in addition to the register, if enabled.
    extension: Option<Box<TailExtension>>,
}

/// The words that the drive reads in addition to the register of a tail doorbell.
#[derive(Debug, Default)]
struct TailExtension {
    /// The doorbell in the doorbell buffer.
    shadow: Option<ShadowDoorbell>,
    /// The time of the host's write.
    stamp: Option<StampReader>,
}

/// The error for a tail outside the ring ([NVMe1.4 §5.2]: error event *invalid doorbell write
/// value*). The drive fetches nothing more from the queue until it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue {qid}: doorbell value {value} is outside a ring of {depth} entries")]
pub struct InvalidDoorbell {
    /// Identifier of the queue.
    pub qid: u16,
    /// The value that the host wrote.
    pub value: u32,
    /// Depth of the ring in entries.
    pub depth: u16,
}

impl SqConsumer {
    /// Returns the addresses of the ring.
    pub fn memory(&self) -> Range<Iova> {
        self.ring.range.clone()
    }

    /// Opens the drive's end of queue `qid`, whose memory is at `at`.
    ///
    /// # Errors
    /// [`NotRegistered`] if the memory is not registered, not page aligned, or too small.
    pub fn open(port: &Arc<Port>, qid: u16, at: Iova, depth: u16) -> Result<Self, NotRegistered> {
        let doorbell = SharedWord::new(port.doorbells().clone(), port.sq_doorbell(qid));
        doorbell.get().store(0, Ordering::Relaxed);
        let ring = Ring::open(port, qid, at, depth)?;
        Ok(SqConsumer { ring, head: 0, tail: 0, doorbell, extension: None })
    }

    /// Uses the doorbell buffer from now on. The register then only announces new entries: the
    /// drive reads the buffer again after it has requested a register write and the host has made
    /// it.
    pub fn enable_shadow(&mut self, shadows: &ShadowDoorbells) {
        if let Some(shadow) = shadows.submission(self.ring.qid) {
            shadow.init(self.tail);
            self.extension.get_or_insert_default().shadow = Some(shadow);
        }
    }

    /// Reads the stamps of doorbells from now on, in the polls of a drive in real time. The host
    /// stamps if the port [requests](Port::request_stamps) it.
    pub fn read_stamps(&mut self, polls: &Arc<DrivePolls>) {
        let stamp = StampReader::open(&self.ring.port, self.ring.qid, polls.clone());
        self.extension.get_or_insert_default().stamp = Some(stamp);
    }

    /// Removes the stamp of the last doorbell that announced entries; `None` if it was removed, or
    /// stamps are not [read](SqConsumer::read_stamps).
    pub fn take_doorbell_reading(&mut self) -> Option<DoorbellReading> {
        self.extension.as_mut()?.stamp.as_mut()?.take_reading()
    }

    /// Reads the tail and its stamp.
    #[inline(never)]
    fn read_extended_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        let waiting =
            match self.extension.as_ref().is_some_and(|extension| extension.shadow.is_some()) {
                true => self.read_shadow_tail()?,
                false => self.read_register_tail()?,
            };
        if let Some(TailExtension { stamp: Some(stamp), .. }) = self.extension.as_deref_mut() {
            stamp.record_read(waiting);
        }
        Ok(waiting)
    }

    #[inline]
    fn read_register_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        self.tail = self.ring.check_index(self.doorbell.get().load(Ordering::Acquire))?;
        Ok(self.waiting())
    }

    /// Reads the tail in the doorbell buffer. The drive reads it until the queue is empty, and then
    /// only after the next register write.
    fn read_shadow_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        let Some(TailExtension { shadow: Some(shadow), .. }) = self.extension.as_deref_mut() else {
            return Ok(self.waiting());
        };
        let register = self.doorbell.get();
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

    /// Returns the queue identifier.
    pub fn qid(&self) -> u16 {
        self.ring.qid
    }

    /// Reads the doorbell and returns the number of waiting entries.
    ///
    /// # Errors
    /// [`InvalidDoorbell`].
    #[inline]
    pub fn read_tail(&mut self) -> Result<u16, InvalidDoorbell> {
        if self.extension.is_some() {
            return self.read_extended_tail();
        }
        self.read_register_tail()
    }

    /// Returns the number of waiting entries, as of the last [`read_tail`](SqConsumer::read_tail).
    #[inline]
    pub fn waiting(&self) -> u16 {
        if self.tail >= self.head {
            self.tail - self.head
        } else {
            self.tail + (self.ring.depth - self.head)
        }
    }

    /// Fetches the next entry as a copy, so that later changes by the host have no effect.
    #[inline]
    pub fn fetch(&mut self) -> Option<Sqe> {
        if self.head == self.tail {
            return None;
        }
        let entry = self.ring.entry(self.head);
        let words = std::array::from_fn(|i| entry[i].load(Ordering::Relaxed));
        self.head = self.ring.next_index(self.head);
        Some(Sqe::from_words(words))
    }

    /// Returns the head of the ring, for completions.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }
}

#[cfg(test)]
impl SqConsumer {
    pub(crate) fn ring_for_test(&self, value: u32) {
        self.doorbell.get().store(value, Ordering::Release);
    }
}
