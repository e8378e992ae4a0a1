//! Stamps of submission doorbells: when the host wrote the doorbell, for a drive in real time that
//! measures the wait until it reads it.
//!
//! The stamp is a word in the cache line of a submission queue's tail doorbell, [`STAMP_OFFSET`]
//! bytes after it: a reading of [`event::monotonic_now`], or zero. The host writes it only while it
//! is zero, before the doorbell. The drive zeroes it after it has read a doorbell that announces
//! entries. So it is the stamp of the oldest doorbell write that the drive has not read, and the
//! host reads the clock once for all doorbells that the drive reads at once.
//!
//! Hosts stamp if the drive requests it (`Port::request_stamps`); in virtual time no drive does.
//! Doorbells in memory ([`ShadowDoorbells`](crate::ShadowDoorbells)) have the stamp beside the
//! register. A real controller has none.
//!
//! # Invariants
//!
//! The host may be hostile. A stamp is within the time since the drive last read the doorbell, or it
//! is not trusted: a host can only choose a wait that is at most the interval between two polls. If
//! the host writes a doorbell while the drive zeroes the stamp, the doorbell has no stamp; a doorbell
//! never has the stamp of one that was read before.

// guarantee: B-81

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use event::{RealClock, monotonic_now};
use mem::WordArray;
use time::Nanos;

use crate::Port;

/// Distance of a stamp from its tail doorbell in bytes.
pub(crate) const STAMP_OFFSET: usize = 8;

/// The largest time by which a stamp may precede the last read of its doorbell: a host reads the
/// clock, and its write of the doorbell becomes visible shortly after.
pub(crate) const STAMP_SLACK: Nanos = Nanos::from_micros(10);

/// The clock and the polls of a drive in real time. The drive's ends of all its submission rings
/// share it; only the drive's thread accesses it.
#[derive(Debug)]
pub struct DrivePolls {
    clock: RealClock,
    /// Number of polls.
    number: AtomicU64,
    /// Begin of the last poll, in nanoseconds of `clock`.
    began: AtomicU64,
    /// Whether a ring has a reading.
    has_reading: AtomicBool,
}

impl DrivePolls {
    /// Returns the polls of a drive in the time of `clock`, before the first one.
    pub fn new(clock: RealClock) -> Arc<DrivePolls> {
        let began = AtomicU64::new(clock.now().0);
        let (number, has_reading) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(DrivePolls { clock, number, began, has_reading })
    }

    /// Records that a poll begins at `now`.
    #[inline]
    pub fn begin(&self, now: Nanos) {
        self.number.store(self.number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.began.store(now.0, Ordering::Relaxed);
    }

    /// Returns whether a ring has a reading ([`SqConsumer::take_doorbell_reading`]), and forgets it.
    ///
    /// [`SqConsumer::take_doorbell_reading`]: crate::SqConsumer::take_doorbell_reading
    #[inline]
    pub fn take_has_reading(&self) -> bool {
        let has_reading = self.has_reading.load(Ordering::Relaxed);
        if has_reading {
            self.has_reading.store(false, Ordering::Relaxed);
        }
        has_reading
    }

    /// Returns number and begin of the present poll.
    #[inline]
    fn current(&self) -> (u64, Nanos) {
        (self.number.load(Ordering::Relaxed), Nanos(self.began.load(Ordering::Relaxed)))
    }
}

/// The stamp of a doorbell that the drive has read and that announced entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellReading {
    /// The host wrote the doorbell at `rung`, and the drive read it in the poll that began at
    /// `read`.
    Rung {
        /// Time of the stamp; at least that of the last read of the doorbell.
        rung: Nanos,
        /// Begin of the poll.
        read: Nanos,
    },
    /// The stamp is later than the begin of the poll. If it is not later than the end, the doorbell
    /// was written during the poll and did not wait.
    AfterPollBegan {
        /// Time of the stamp.
        rung: Nanos,
    },
    /// The stamp is earlier than the last read of the doorbell, or than the queue.
    NotTrusted,
    /// The drive read the doorbell late on purpose: it held back earlier entries, for the host's
    /// rates or limits.
    Deferred,
    /// The doorbell has no stamp.
    Unstamped,
}

/// The host's end of a stamp.
#[derive(Debug)]
pub(crate) struct StampWriter {
    word: WordArray<1>,
}

impl StampWriter {
    /// Opens the stamp of queue `qid`.
    pub(crate) fn open(port: &Port, qid: u16) -> StampWriter {
        StampWriter { word: open_word(port, qid) }
    }

    /// Writes the stamp, unless the drive has not read an earlier doorbell.
    pub(crate) fn write(&self) {
        let [word] = self.word.get(0);
        if word.load(Ordering::Relaxed) == 0 {
            // The doorbell is written after it, with release order.
            word.store(monotonic_now().max(1), Ordering::Relaxed);
        }
    }
}

/// The drive's end of a stamp.
#[derive(Debug)]
pub(crate) struct StampReader {
    word: WordArray<1>,
    polls: Arc<DrivePolls>,
    /// The poll in which the doorbell was read last, and its begin.
    last_read: (u64, Nanos),
    /// The reading that was not taken.
    reading: Option<DoorbellReading>,
}

impl StampReader {
    /// Opens the stamp of queue `qid` and zeroes it. Stamps before now are not trusted.
    pub(crate) fn open(port: &Port, qid: u16, polls: Arc<DrivePolls>) -> StampReader {
        let word = open_word(port, qid);
        word.get(0)[0].store(0, Ordering::Relaxed);
        let last_read = polls.current();
        StampReader { word, polls, last_read, reading: None }
    }

    /// Records that the doorbell was read and announced `waiting` entries.
    pub(crate) fn record_read(&mut self, waiting: u16) {
        let (poll, now) = self.polls.current();
        let (last_poll, last) = std::mem::replace(&mut self.last_read, (poll, now));
        if waiting == 0 {
            return;
        }
        let [word] = self.word.get(0);
        let stamp = word.load(Ordering::Relaxed);
        if stamp != 0 {
            word.store(0, Ordering::Relaxed);
        }
        self.reading = Some(match self.polls.clock.at_reading(stamp) {
            _ if poll > last_poll + 1 => DoorbellReading::Deferred,
            _ if stamp == 0 => DoorbellReading::Unstamped,
            rung if rung > now => DoorbellReading::AfterPollBegan { rung },
            rung if rung + STAMP_SLACK < last => DoorbellReading::NotTrusted,
            rung => DoorbellReading::Rung { rung: rung.max(last), read: now },
        });
        self.polls.has_reading.store(true, Ordering::Relaxed);
    }

    /// Removes the last reading.
    pub(crate) fn take_reading(&mut self) -> Option<DoorbellReading> {
        self.reading.take()
    }
}

/// Returns the stamp of queue `qid`.
fn open_word(port: &Port, qid: u16) -> WordArray<1> {
    WordArray::new(port.doorbells().clone(), port.sq_doorbell(qid) + STAMP_OFFSET, 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mem::{Iova, PAGE_BYTES};
    use nvme::Sqe;

    use super::*;
    use crate::{ShadowDoorbells, ShadowPages, SqConsumer, SqProducer};

    const DEPTH: u16 = 5;

    /// Both ends of a queue whose drive reads stamps.
    struct Queue {
        port: Arc<Port>,
        at: Iova,
        polls: Arc<DrivePolls>,
        clock: RealClock,
        host: SqProducer,
        drive: SqConsumer,
    }

    impl Queue {
        fn new() -> Queue {
            let port = Port::new().unwrap();
            let (_, at) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
            let clock = RealClock::start();
            let polls = DrivePolls::new(clock);
            let host = SqProducer::open(&port, 1, at, DEPTH).unwrap();
            let drive = SqConsumer::open(&port, 1, at, DEPTH).unwrap();
            port.request_stamps();
            port.set_drive_polled_by_host();
            let mut queue = Queue { port, at, polls, clock, host, drive };
            queue.drive.read_stamps(&queue.polls);
            // The host learns of the request with its first doorbell.
            assert_eq!((queue.push(), queue.poll()), ((), Some(DoorbellReading::Unstamped)));
            queue
        }

        fn push(&mut self) {
            self.host.push(&Sqe::default()).unwrap();
            self.host.ring();
        }

        /// Polls the drive, which fetches everything.
        fn poll(&mut self) -> Option<DoorbellReading> {
            self.poll_at(self.clock.now())
        }

        fn poll_at(&mut self, now: Nanos) -> Option<DoorbellReading> {
            self.polls.begin(now);
            self.drive.read_tail().unwrap();
            while self.drive.fetch().is_some() {}
            self.host.update_head(self.drive.head());
            let reading = self.drive.take_doorbell_reading();
            assert_eq!(self.polls.take_has_reading(), reading.is_some());
            assert_eq!(self.drive.take_doorbell_reading(), None, "taken");
            reading
        }

        /// Returns the stamp, which the host can change.
        fn stamp(&self) -> &AtomicU64 {
            let at = self.port.sq_doorbell(1) + STAMP_OFFSET;
            self.port.doorbells().atomic_u64(at)
        }

        /// Rings with `stamp` in place of the time.
        fn ring_with(&mut self, stamp: u64) -> Option<DoorbellReading> {
            self.stamp().store(stamp, Ordering::Relaxed);
            self.push();
            self.poll()
        }
    }

    #[test]
    fn a_doorbell_has_the_time_of_the_oldest_write_that_was_not_read() {
        let mut queue = Queue::new();
        // The indexes wrap several times.
        for round in 0..3 * u32::from(DEPTH) {
            assert_eq!(queue.poll(), None, "no doorbell, no reading");
            let before = queue.clock.now();
            queue.push();
            let after = queue.clock.now();
            std::thread::sleep(Duration::from_micros(100));
            (0..round % u32::from(DEPTH - 1)).for_each(|_| queue.push());
            let Some(DoorbellReading::Rung { rung, read }) = queue.poll() else {
                panic!("round {round}")
            };
            assert!((before..=after).contains(&rung), "{before:?} {rung:?} {after:?}");
            assert!(read.since(rung) >= Nanos::from_micros(100), "{rung:?} {read:?}");
            assert_eq!(queue.stamp().load(Ordering::Relaxed), 0, "the drive takes the stamp");
        }
    }

    #[test]
    fn no_stamp_is_written_unless_the_drive_requests_it() {
        for (requests, polls) in [(false, true), (true, false)] {
            let port = Port::new().unwrap();
            let (_, at) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
            let mut host = SqProducer::open(&port, 1, at, DEPTH).unwrap();
            if requests {
                port.request_stamps();
            }
            if polls {
                port.set_drive_polled_by_host();
            }
            (0..3).for_each(|_| host.ring());
            let word = port.doorbells().atomic_u64(port.sq_doorbell(1) + STAMP_OFFSET);
            assert_eq!(word.load(Ordering::Relaxed), 0, "{requests} {polls}");
        }
    }

    #[test]
    fn a_hostile_stamp_is_at_most_the_interval_of_two_polls() {
        let mut queue = Queue::new();
        let start = queue.clock;
        let reading_at = |time: Nanos| {
            let now = monotonic_now();
            now.wrapping_sub(start.at_reading(now).0).wrapping_add(time.0)
        };
        queue.poll();
        let last = queue.polls.current().1;
        // Older than the last read of the doorbell, and older than the clock.
        for stamp in [1, reading_at(Nanos::ZERO), reading_at(Nanos(last.0 / 2))] {
            queue.poll_at(last + Nanos::from_millis(1));
            assert_eq!(queue.ring_with(stamp), Some(DoorbellReading::NotTrusted), "{stamp}");
        }
        // Within the slack: the wait counts from the last read.
        let last = queue.clock.now();
        queue.poll_at(last);
        let stamp = reading_at(Nanos(last.0 - 5_000));
        let Some(DoorbellReading::Rung { rung, .. }) = queue.ring_with(stamp) else {
            panic!("it is within the slack")
        };
        assert_eq!(rung, last);
        // In the future.
        queue.poll();
        let rung = queue.clock.now() + Nanos::from_secs(60);
        let reading = queue.ring_with(reading_at(rung));
        assert_eq!(reading, Some(DoorbellReading::AfterPollBegan { rung }));
        // So far in the future that it seems to be before the clock's start.
        queue.poll_at(queue.clock.now() + Nanos::from_millis(1));
        assert_eq!(queue.ring_with(u64::MAX), Some(DoorbellReading::NotTrusted));
        // No stamp.
        queue.poll();
        queue.drive.read_tail().unwrap();
        queue.push();
        queue.stamp().store(0, Ordering::Relaxed);
        assert_eq!(queue.poll(), Some(DoorbellReading::Unstamped));
    }

    #[test]
    fn a_doorbell_that_was_read_late_on_purpose_did_not_wait() {
        let mut queue = Queue::new();
        queue.poll();
        queue.push();
        // Two polls in which the drive fetches nothing, and does not read the doorbell.
        queue.polls.begin(queue.clock.now());
        queue.polls.begin(queue.clock.now());
        assert_eq!(queue.poll(), Some(DoorbellReading::Deferred));
        queue.push();
        assert!(matches!(queue.poll(), Some(DoorbellReading::Rung { .. })), "it is read again");
    }

    #[test]
    fn a_queue_that_is_made_again_has_no_earlier_stamp() {
        let mut queue = Queue::new();
        let word = queue.port.sq_doorbell(1) + STAMP_OFFSET;
        queue.port.doorbells().atomic_u64(word).store(monotonic_now(), Ordering::Relaxed);
        let mut host = SqProducer::open(&queue.port, 1, queue.at, DEPTH).unwrap();
        host.take_over_state(&mut queue.host);
        queue.host = host;
        queue.drive = SqConsumer::open(&queue.port, 1, queue.at, DEPTH).unwrap();
        queue.drive.read_stamps(&queue.polls);
        assert_eq!(queue.stamp().load(Ordering::Relaxed), 0);
        queue.push();
        assert_eq!(queue.poll(), Some(DoorbellReading::Unstamped), "the first doorbell");
        let made = queue.polls.current().1;
        let reading = monotonic_now() - queue.clock.now().0 + made.0;
        queue.poll();
        queue.push();
        assert!(matches!(queue.poll(), Some(DoorbellReading::Rung { .. })));
        // Stamps from before the queue was made are not trusted.
        std::thread::sleep(Duration::from_millis(1));
        queue.polls.begin(queue.clock.now());
        queue.drive = SqConsumer::open(&queue.port, 1, queue.at, DEPTH).unwrap();
        queue.drive.read_stamps(&queue.polls);
        queue.host = SqProducer::open(&queue.port, 1, queue.at, DEPTH).unwrap();
        assert_eq!(queue.ring_with(reading), Some(DoorbellReading::NotTrusted));
    }

    #[test]
    fn doorbells_in_memory_have_stamps() {
        let mut queue = Queue::new();
        let (_, at) = queue.port.memory().allocate_registered(2 * PAGE_BYTES).unwrap();
        let pages = ShadowPages { values: at, events: at.offset(PAGE_BYTES as u64) };
        let shadows = ShadowDoorbells::open(queue.port.memory(), pages, 4).unwrap();
        let (port, polls) = (&queue.port, &queue.polls);
        queue.host = SqProducer::open(port, 1, queue.at, DEPTH).unwrap();
        queue.drive = SqConsumer::open(port, 1, queue.at, DEPTH).unwrap();
        queue.drive.read_stamps(polls);
        queue.host.enable_shadow(&shadows);
        queue.drive.enable_shadow(&shadows);
        queue.push();
        assert_eq!(queue.poll(), Some(DoorbellReading::Unstamped));
        for _ in 0..2 * DEPTH {
            assert_eq!(queue.poll(), None);
            queue.push();
            assert!(matches!(queue.poll(), Some(DoorbellReading::Rung { .. })));
        }
        assert!(queue.host.doorbell_stats().is_some());
    }
}
