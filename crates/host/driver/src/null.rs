//! [`Null`]: a device that completes every request at once ([SYSTOR13 §4.1]).
//!
//! It stores no data and takes no time, so that only the cost of the layers above remains.

use std::any::Any;

use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::Nanos;

use crate::hal::{
    BindError, CompletionEvent, Features, HardwareQueue, Limits, LowLevelDriver, QueueState,
};
use crate::{AtomicLimits, Request, Tag, TagError, TagSet};

/// The null device.
#[derive(Debug)]
pub struct Null {
    limits: Limits,
    memory: AddressSpace,
    taken: Box<[bool]>,
}

impl Null {
    /// Creates a device with `queues` hardware queues of `limits.queue_depth` tags each, 1 to
    /// 65,535.
    pub fn new(limits: Limits, queues: u16) -> Null {
        let queue_depth = limits.queue_depth.clamp(1, u16::MAX.into());
        Null {
            limits: Limits { queue_depth, ..limits },
            memory: AddressSpace::default(),
            taken: vec![false; queues.into()].into(),
        }
    }
}

impl Null {
    /// Creates another hardware queue, which [`take_queue`](LowLevelDriver::take_queue) does not
    /// return.
    pub fn create_queue(&self) -> NullQueue {
        NullQueue::new(self.limits.queue_depth as u16, self.memory.clone())
    }
}

impl Default for Null {
    /// Returns a device with 512-byte sectors, 1 TiB, and one queue of 1,024 tags.
    fn default() -> Null {
        let limits = Limits {
            sector_bytes: 512,
            sectors: 1 << 31,
            max_sectors: 2048,
            optimal_sectors: 8,
            queue_depth: 1024,
            volatile_cache: false,
            atomic: AtomicLimits::NONE,
        };
        Null::new(limits, 1)
    }
}

impl LowLevelDriver for Null {
    type Queue = NullQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn features(&self) -> Features {
        Features {
            segments: 256,
            fua: true,
            discard: true,
            write_zeroes: true,
            extents: false,
            atomic: AtomicLimits::NONE,
        }
    }

    fn queues(&self) -> u16 {
        self.taken.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<NullQueue> {
        let taken = self.taken.get_mut(usize::from(index))?;
        if std::mem::replace(taken, true) {
            return None;
        }
        Some(self.create_queue())
    }
}

/// A hardware queue of the null device: a command completes when it is issued.
#[derive(Debug)]
pub struct NullQueue {
    tags: TagSet,
    memory: AddressSpace,
    /// Bound commands in order. The length is a power of two and at least the number of tags.
    ring: Box<[Tag]>,
    /// Numbers of commands fetched, issued and bound, each modulo 2^32.
    fetched: u32,
    issued: u32,
    bound: u32,
    waker: Option<Waker>,
}

impl NullQueue {
    fn new(depth: u16, memory: AddressSpace) -> NullQueue {
        let places = usize::from(depth).next_power_of_two();
        NullQueue {
            tags: TagSet::new(depth),
            memory,
            ring: vec![Tag(0); places].into(),
            fetched: 0,
            issued: 0,
            bound: 0,
            waker: None,
        }
    }

    #[inline]
    fn ring_index(&self, count: u32) -> usize {
        count as usize & (self.ring.len() - 1)
    }
}

impl HardwareQueue for NullQueue {
    #[inline]
    fn tags(&self) -> &TagSet {
        &self.tags
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    #[inline]
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        self.tags.bind(tag, command.tag, now)?;
        let place = self.ring_index(self.bound);
        self.ring[place] = tag;
        self.bound = self.bound.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn issue_tags(&mut self) -> bool {
        if self.issued == self.bound {
            return false;
        }
        self.issued = self.bound;
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        true
    }

    #[inline]
    fn check_event(&mut self) -> bool {
        self.fetched != self.issued
    }

    #[inline]
    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if self.fetched == self.issued {
            return None;
        }
        let tag = self.ring[self.ring_index(self.fetched)];
        self.fetched = self.fetched.wrapping_add(1);
        Some(CompletionEvent { tag, status: Status::SUCCESS, result: 0 })
    }

    /// Every issued command has completed, so there is nothing to abort.
    fn abort_tag(&mut self, _tag: Tag, _now: Nanos) -> Result<(), TagError> {
        Ok(())
    }

    fn reset(&mut self, _now: Nanos) {
        (self.fetched, self.issued) = (self.bound, self.bound);
    }

    fn state(&self) -> QueueState {
        QueueState::Ready
    }

    fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        self.tags.report_cache_lines(tag, look);
        // Report the first entry of a cache line on behalf of the others.
        const PER_LINE: usize = 64 / size_of::<Tag>();
        let place = self.ring_index(self.bound.wrapping_sub(1));
        look(&self.ring[place - place % PER_LINE]);
    }

    fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Payload};

    #[test]
    fn what_is_issued_has_ended_and_nothing_else() {
        let mut null = Null::new(Limits { queue_depth: 3, ..Null::default().limits() }, 2);
        assert!(null.take_queue(2).is_none(), "there are two");
        let mut queue = null.take_queue(1).unwrap();
        assert!(null.take_queue(1).is_none(), "handed out");
        let mut tags = [Tag(0); 8];
        for round in 0..100u64 {
            assert_eq!(queue.get_free_tags(&mut tags), 3);
            assert_eq!(queue.get_free_tags(&mut tags[3..]), 0, "busy");
            for (i, tag) in tags[..3].iter().enumerate() {
                let command = Request::read(0, 1, Payload::BitBucket, 10 * round + i as u64);
                assert_eq!(command.op, Op::Read);
                queue.bind_tag_cmd(*tag, &command, Nanos(round)).unwrap();
            }
            assert!(!queue.check_event(), "bound is not issued");
            assert!(queue.issue_tags());
            assert!(!queue.issue_tags());
            for i in 0..3 {
                let event = queue.fetch_event().unwrap();
                let command = queue.detach_tag_cmd(event.tag).unwrap();
                assert_eq!(command.user, 10 * round + i);
                assert_eq!(NullQueue::end_cmd(&command, Nanos(round + 5)), Nanos(5));
                queue.release_tags(&[event.tag]).unwrap();
            }
            assert_eq!(queue.fetch_event(), None);
        }
    }
}
