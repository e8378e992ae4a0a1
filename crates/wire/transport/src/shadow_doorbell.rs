//! [`ShadowDoorbells`]: doorbells in memory (Doorbell Buffer Config, [NVMe1.4 §7.13, §5.7]), for a
//! controller whose register writes are expensive: behind a hypervisor, each write stops the guest.
//!
//! The host writes a doorbell's value to one page. The controller writes the *event index* to the
//! other: the value beyond which it wants a register write. Invariant: a controller that reads the
//! doorbell again after it has set an event index misses nothing. Each side writes its own word
//! before it reads the other's, with a full barrier in between.

// guarantee: C-05

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mem::{AddressSpace, Iova, NotRegistered, PAGE_BYTES, SharedRegion};

/// Addresses of the two pages of a doorbell buffer, PRP1 and PRP2 of Doorbell Buffer Config
/// [NVMe1.4 §5.7].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowPages {
    /// The page of the doorbells' values.
    pub values: Iova,
    /// The page of the event indexes.
    pub events: Iova,
}

/// The two pages of a controller's doorbell buffer.
#[derive(Debug)]
pub struct ShadowDoorbells {
    values: (Arc<SharedRegion>, usize),
    events: (Arc<SharedRegion>, usize),
    stride: usize,
}

impl ShadowDoorbells {
    /// Opens the pages, for doorbells with a stride of `stride` bytes.
    ///
    /// # Errors
    /// [`NotRegistered`] for an address that is not registered or not page aligned.
    pub fn open(
        memory: &AddressSpace,
        pages: ShadowPages,
        stride: usize,
    ) -> Result<ShadowDoorbells, NotRegistered> {
        let page = |at: Iova| {
            let found = memory.find(at, PAGE_BYTES as u64)?;
            match at.0.is_multiple_of(PAGE_BYTES as u64) && found.offset.is_multiple_of(4) {
                true => Ok((found.region.clone(), found.offset)),
                false => Err(NotRegistered { iova: at, len: PAGE_BYTES as u64 }),
            }
        };
        Ok(ShadowDoorbells { values: page(pages.values)?, events: page(pages.events)?, stride })
    }

    /// Zeroes all doorbells and event indexes, before the controller uses them.
    pub fn clear(&self) {
        for (region, at) in [&self.values, &self.events] {
            region.fill(*at, PAGE_BYTES, 0);
        }
    }

    /// Zeroes the words of queue `qid`, which the controller does not know.
    pub fn clear_queue(&self, qid: u16) {
        for doorbell in [self.submission(qid), self.completion(qid)].into_iter().flatten() {
            doorbell.value().store(0, Ordering::Relaxed);
            doorbell.event().store(0, Ordering::Relaxed);
        }
    }

    /// Returns a submission queue's tail doorbell; `None` for the admin queue, whose doorbells are
    /// registers, and for queues beyond the page.
    pub(crate) fn submission(&self, qid: u16) -> Option<ShadowDoorbell> {
        self.doorbell(qid, 2 * usize::from(qid))
    }

    /// Returns a completion queue's head doorbell.
    pub(crate) fn completion(&self, qid: u16) -> Option<ShadowDoorbell> {
        self.doorbell(qid, 2 * usize::from(qid) + 1)
    }

    fn doorbell(&self, qid: u16, number: usize) -> Option<ShadowDoorbell> {
        let offset = number * self.stride;
        (qid > 0 && offset + 4 <= PAGE_BYTES).then(|| ShadowDoorbell {
            values: (self.values.0.clone(), self.values.1 + offset),
            events: (self.events.0.clone(), self.events.1 + offset),
            last_written: 0,
            stats: DoorbellStats::default(),
            active: true,
        })
    }
}

/// Counters of doorbell writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellStats {
    /// Register writes.
    pub register_writes: u64,
    /// Register writes omitted because the controller was polling the doorbell buffer.
    pub register_writes_saved: u64,
    /// Register writes repeated after a long time without completions.
    pub register_rewrites: u64,
}

collections::counters!(DoorbellStats { register_writes, register_writes_saved, register_rewrites });

/// One doorbell in the buffer, with its event index.
#[derive(Debug)]
pub(crate) struct ShadowDoorbell {
    values: (Arc<SharedRegion>, usize),
    events: (Arc<SharedRegion>, usize),
    /// The value written last.
    last_written: u16,
    pub(crate) stats: DoorbellStats,
    /// Controller side: the controller polls the doorbell without a register write.
    pub(crate) active: bool,
}

/// The register value that the controller stores after it has consumed a register write.
pub(crate) const REGISTER_CONSUMED: u32 = u32::MAX;

/// Whether an update from `old` to `new` passes `event`, so that the controller needs a register
/// write.
fn needs_event(event: u16, old: u16, new: u16) -> bool {
    match old <= new {
        true => old <= event && event < new,
        false => old <= event || event < new,
    }
}

impl ShadowDoorbell {
    fn value(&self) -> &std::sync::atomic::AtomicU32 {
        self.values.0.atomic_u32(self.values.1)
    }

    fn event(&self) -> &std::sync::atomic::AtomicU32 {
        self.events.0.atomic_u32(self.events.1)
    }

    /// Host side: resets the doorbell of a queue that the controller has deleted.
    pub(crate) fn reset(&mut self) {
        self.last_written = 0;
    }

    /// Host side: counts a repeated register write and returns its value.
    pub(crate) fn record_rewrite(&mut self) -> u16 {
        self.stats.register_rewrites += 1;
        self.last_written
    }

    /// Host side: writes a new value. Returns whether the register must be written as well.
    pub(crate) fn update_and_check_event(&mut self, value: u16) -> bool {
        self.value().store(value.into(), Ordering::Release);
        // The controller writes its event index and then reads the value, so one side sees the
        // other's write.
        fence(Ordering::SeqCst);
        let event = self.event().load(Ordering::Acquire);
        let old = std::mem::replace(&mut self.last_written, value);
        // An invalid event index counts as a request.
        let asks = u16::try_from(event).map_or(true, |event| needs_event(event, old, value));
        match asks {
            true => self.stats.register_writes += 1,
            false => self.stats.register_writes_saved += 1,
        }
        asks
    }

    /// Controller side: reads the host's value.
    pub(crate) fn load(&self) -> u32 {
        self.value().load(Ordering::Acquire)
    }

    /// Controller side: requests a register write beyond `value`, and returns the value read
    /// afterwards.
    pub(crate) fn arm_event(&self, value: u16) -> u32 {
        self.event().store(value.into(), Ordering::Release);
        fence(Ordering::SeqCst);
        self.load()
    }

    /// Controller side: takes over a queue whose doorbell has this value.
    pub(crate) fn init(&self, value: u16) {
        self.value().store(value.into(), Ordering::Release);
        self.event().store(value.into(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nvme::{Cqe, Sqe};
    use rng::Rng;

    use super::*;
    use crate::{CqConsumer, CqProducer, Port, SqConsumer, SqProducer};

    fn pages(port: &Port) -> ShadowDoorbells {
        let (_, at) = port.memory().allocate_registered(2 * PAGE_BYTES).unwrap();
        let pages = ShadowPages { values: at, events: at.offset(PAGE_BYTES as u64) };
        ShadowDoorbells::open(port.memory(), pages, 4).unwrap()
    }

    #[test]
    fn event_indices_are_passed_as_the_specification_says() {
        // Compare with counting: the doorbell passes through every value in between.
        const DEPTH: u16 = 7;
        for old in 0..DEPTH {
            for moved in 1..DEPTH {
                let new = (old + moved) % DEPTH;
                for event in 0..DEPTH {
                    let on_the_way = (0..moved).any(|step| (old + step) % DEPTH == event);
                    assert_eq!(needs_event(event, old, new), on_the_way, "{old} to {new}, {event}");
                }
            }
        }
        assert!(!needs_event(3, 5, 5), "nothing has moved");
    }

    #[test]
    fn pages_are_checked_and_the_admin_queue_has_none() {
        let port = Port::new().unwrap();
        let (_, at) = port.memory().allocate_registered(2 * PAGE_BYTES).unwrap();
        let (second, memory) = (at.offset(PAGE_BYTES as u64), port.memory());
        let open =
            |values, events| ShadowDoorbells::open(memory, ShadowPages { values, events }, 4);
        for (values, events) in [
            (at.offset(8), second),
            (at, second.offset(64)),
            (at, Iova(0)),
            (second.offset(4096), at),
        ] {
            assert!(open(values, events).is_err(), "{values} {events}");
        }
        let shadows = open(at, second).unwrap();
        assert!(shadows.submission(0).is_none() && shadows.completion(0).is_none());
        assert!(shadows.submission(511).is_some() && shadows.completion(511).is_some());
        assert!(shadows.submission(512).is_none());
        let doorbell = shadows.submission(3).unwrap();
        doorbell.init(9);
        let mut word = [0; 4];
        memory.read(at.offset(24), &mut word).unwrap();
        assert_eq!(u32::from_le_bytes(word), 9);
        shadows.clear_queue(3);
        assert_eq!(doorbell.load(), 0);
    }

    /// The host writes a register only when the controller has requested it; an invalid event index
    /// requests every write.
    #[test]
    fn registers_are_written_when_the_controller_asks() {
        let port = Port::new().unwrap();
        let mut doorbell = pages(&port).submission(1).unwrap();
        assert!(doorbell.update_and_check_event(1), "it has asked for what is beyond 0");
        assert!(!doorbell.update_and_check_event(2));
        doorbell.arm_event(3);
        assert!(!doorbell.update_and_check_event(3), "up to 3 it looks by itself");
        assert!(doorbell.update_and_check_event(5));
        doorbell.event().store(70_000, Ordering::Relaxed);
        assert!(doorbell.update_and_check_event(6));
        assert_eq!(
            doorbell.stats,
            DoorbellStats { register_writes: 3, register_writes_saved: 2, register_rewrites: 0 }
        );
    }

    /// Host and drive run on two threads. The drive reads only doorbells that were announced, and
    /// parks at any time. No doorbell is lost.
    #[test]
    fn two_threads_lose_no_doorbell() {
        const COUNT: u64 = 100_000;
        const DEPTH: u16 = 13;
        let port = Port::new().unwrap();
        let (_, sq_at) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
        let (_, cq_at) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
        let shadows = pages(&port);
        let mut sq = SqProducer::open(&port, 1, sq_at, DEPTH).unwrap();
        let mut cq = CqConsumer::open(&port, 1, cq_at, DEPTH).unwrap();
        let mut dsq = SqConsumer::open(&port, 1, sq_at, DEPTH).unwrap();
        let mut dcq = CqProducer::open(&port, 1, cq_at, DEPTH, None).unwrap();
        sq.enable_shadow(&shadows);
        cq.enable_shadow(&shadows);
        dsq.enable_shadow(&shadows);
        dcq.enable_shadow(&shadows);
        let drive = std::thread::spawn(move || {
            let mut left = COUNT;
            let mut rng = Rng::new(5);
            while left > 0 {
                if dsq.read_tail().unwrap() == 0 {
                    std::hint::spin_loop();
                }
                while let Some(sqe) = dsq.fetch() {
                    let cqe = Cqe { result: sqe.slba(), sq_head: dsq.head(), ..Cqe::default() };
                    while dcq.post(cqe).is_err() {
                        std::thread::yield_now();
                    }
                    left -= 1;
                    if rng.below(50) == 0 {
                        std::thread::yield_now();
                    }
                }
            }
        });
        let (mut sent, mut done) = (0, 0);
        let mut rng = Rng::new(6);
        let begun = Instant::now();
        while done < COUNT {
            for _ in 0..rng.below(DEPTH.into()) {
                let mut sqe = Sqe::new(2, 1);
                sqe.set_slba(sent);
                if sent < COUNT && sq.push(&sqe).is_ok() {
                    sent += 1;
                }
            }
            sq.ring();
            while let Some(cqe) = cq.pop() {
                assert_eq!(cqe.result, done);
                sq.update_head(cqe.sq_head);
                done += 1;
            }
            cq.release();
            if sent - done == u64::from(DEPTH) - 1 || sent == COUNT {
                std::thread::yield_now();
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "stuck at {done} of {sent}");
        }
        drive.join().unwrap();
        let counts = sq.doorbell_stats().unwrap();
        assert!(counts.register_writes > 0 && counts.register_rewrites == 0, "{counts:?}");
    }
}
