//! The waits of doorbells in real time, with hosts that stamp honestly, not at all, or falsely.

// guarantee: B-81

use std::sync::atomic::Ordering;
use std::time::Duration;

use controller::{
    AccessPolicy, AccessScope, Controller, DoorbellToFetch, DoorbellWaitUnknown, Lateness,
    UnmeasuredDoorbells,
};
use event::{RealClock, monotonic_now};
use nvme::Sqe;
use time::{Component, Nanos};
use transport::{DOORBELL_STRIDE, DrivePolls};

use super::harness::{Host, null};

fn all() -> AccessPolicy {
    AccessPolicy::for_scope(AccessScope::All)
}

/// A drive in real time.
struct Drive {
    drive: Controller,
    clock: RealClock,
}

impl Drive {
    fn new() -> Drive {
        let drive = Controller::new(null(Nanos::from_micros(1))).unwrap();
        Drive { drive, clock: RealClock::start() }
    }

    fn measure(&mut self) {
        self.drive.measure_doorbells(DrivePolls::new(self.clock));
    }

    /// Attaches a host whose doorbells the drive's thread sees when it polls.
    fn attach(&mut self, access: Option<AccessPolicy>) -> Host {
        let host = Host::attach(&mut self.drive, access, 33, 8);
        host.port.set_drive_polled_by_host();
        host
    }

    /// Polls until the drive is idle.
    fn poll(&mut self) {
        let clock = self.clock;
        loop {
            self.drive.poll_in_real_time(clock.now(), || clock.now());
            if self.drive.outstanding() == 0 {
                return;
            }
        }
    }

    fn read(&self) -> DoorbellToFetch {
        let record = self.drive.doorbell_waits().unwrap().read();
        assert_eq!(self.drive.stats().doorbell_to_fetch, record);
        record
    }

    fn waits(&self) -> (Lateness, UnmeasuredDoorbells) {
        match self.read() {
            DoorbellToFetch::Measured { waits, unmeasured } => (waits, unmeasured),
            unknown => panic!("{unknown:?}"),
        }
    }
}

/// Submits a read.
fn submit(host: &mut Host) {
    while host.pair.reap().is_some() {}
    let mut sqe = Sqe::read(1, 0, 1);
    sqe.set_sgl(host.block(0, 1));
    host.pair.submit(sqe, 7).unwrap();
    host.pair.ring();
}

#[test]
fn commands_wait_for_a_drive_that_sleeps() {
    for measured_first in [true, false] {
        let mut d = Drive::new();
        if measured_first {
            d.measure();
        }
        let mut h = d.attach(Some(all()));
        if !measured_first {
            d.measure();
        }
        let none = UnmeasuredDoorbells { unstamped: 1, ..UnmeasuredDoorbells::default() };
        submit(&mut h);
        d.poll();
        let unknown = DoorbellToFetch::Unknown(DoorbellWaitUnknown::NoStamps(none));
        assert_eq!(d.read(), unknown, "admin commands do not count, and the first has no stamp");
        let clock = d.clock;
        d.drive.poll_in_real_time(clock.now(), || clock.now());
        let before = d.drive.doorbell_waits().unwrap().clone();
        let begun = d.clock.now();
        submit(&mut h);
        std::thread::sleep(Duration::from_millis(2));
        submit(&mut h);
        d.poll();
        let took = d.clock.now().since(begun);
        let (waits, unmeasured) = d.waits();
        // The record has two significant digits.
        let bounds = Nanos::from_micros(1_980)..=took + Nanos(took.0 / 50);
        assert!(waits.count == 1 && bounds.contains(&waits.max), "{waits:?} {took:?}");
        assert_eq!((unmeasured, waits.machine.max), (none, Nanos::ZERO));
        let last = d.drive.doorbell_waits().unwrap().since(&before);
        assert_eq!(last.waits.read().count, 1);
        assert_eq!(last.unmeasured, UnmeasuredDoorbells::default());
        let both = last.plus(&before);
        assert_eq!((both.waits.read().count, both.unmeasured), (1, none));
        let stats = d.drive.stats();
        assert!(
            !stats.is_on_time(Nanos::from_micros(1_900))
                && stats.is_on_time(took.max(stats.late.p99))
        );
        // Part of the next wait is the machine's.
        d.poll();
        submit(&mut h);
        let from = d.clock.now();
        std::thread::sleep(Duration::from_millis(1));
        d.drive.record_thread_gap(from, d.clock.now());
        d.poll();
        let (waits, _) = d.waits();
        assert!(waits.count == 2 && waits.machine.max >= Nanos::from_micros(980), "{waits:?}");
        d.drive.reset_stats();
        let nothing = DoorbellWaitUnknown::NoStamps(UnmeasuredDoorbells::default());
        assert_eq!(d.read(), DoorbellToFetch::Unknown(nothing));
    }
}

#[test]
fn virtual_time_has_no_waits() {
    let mut d = Controller::new(null(Nanos::from_micros(1))).unwrap();
    let mut h = Host::attach(&mut d, None, 33, 8);
    submit(&mut h);
    while h.pair.reap().is_none() {
        d.poll(h.now);
        h.now = h.now.max(d.deadline());
    }
    assert!(d.doorbell_waits().is_none());
    let unknown = DoorbellToFetch::Unknown(DoorbellWaitUnknown::VirtualTime);
    assert_eq!(d.stats().doorbell_to_fetch, unknown);
    assert!(d.stats().is_on_time(Nanos::ZERO));
}

#[test]
fn false_stamps_spoil_neither_the_figure_nor_other_hosts() {
    let mut d = Drive::new();
    d.measure();
    let (mut honest, mut hostile) = (d.attach(None), d.attach(Some(all())));
    for host in [&mut honest, &mut hostile] {
        submit(host);
        d.poll();
    }
    let ahead = Nanos::from_secs(3_600).0;
    for (round, stamp) in
        [1, u64::MAX, u64::MAX / 2, monotonic_now() + ahead, monotonic_now() - ahead]
            .into_iter()
            .enumerate()
    {
        let clock = d.clock;
        d.drive.poll_in_real_time(clock.now(), || clock.now());
        std::thread::sleep(Duration::from_micros(100));
        d.drive.poll_in_real_time(clock.now(), || clock.now());
        // The stamp of queue 1, as the host may write it.
        let word = hostile.port.doorbells().atomic_u64(2 * DOORBELL_STRIDE + 8);
        word.store(stamp, Ordering::Relaxed);
        submit(&mut hostile);
        submit(&mut honest);
        d.poll();
        let (waits, unmeasured) = d.waits();
        assert_eq!(unmeasured.not_trusted, round as u64 + 1, "stamp {stamp}");
        assert_eq!(waits.count, round as u64 + 1, "those of the honest host");
        assert!(waits.max < Nanos::from_secs(1), "{waits:?}");
    }
    // A host that goes, and one that comes.
    submit(&mut hostile);
    d.drive.detach(&hostile.port).unwrap();
    d.poll();
    let mut next = d.attach(Some(all()));
    submit(&mut next);
    d.poll();
    d.poll();
    let (before, _) = d.waits();
    submit(&mut next);
    d.poll();
    assert_eq!(d.waits().0.count, before.count + 1);
}

#[test]
fn commands_that_rates_hold_back_did_not_wait_for_the_drive() {
    let mut d = Drive::new();
    d.measure();
    let mut h = d.attach(Some(AccessPolicy { iops: Some(500), ..all() }));
    submit(&mut h);
    d.poll();
    // More than a burst, from when the rate holds commands back for milliseconds.
    let clock = d.clock;
    let begun = clock.now();
    let mut sent = 0;
    while clock.now().since(begun) < Nanos::from_millis(100) {
        d.drive.poll_in_real_time(clock.now(), || clock.now());
        while h.pair.reap().is_some() {}
        if h.pair.outstanding() < 3 {
            submit(&mut h);
            sent += 1;
        }
    }
    let (waits, unmeasured) = d.waits();
    assert!(unmeasured.deferred > 5 && unmeasured.not_trusted == 0, "{unmeasured:?}");
    assert!(waits.count + unmeasured.deferred <= sent, "{waits:?} {unmeasured:?} of {sent}");
    assert!(waits.p50 < Nanos::from_micros(500), "the interval of commands is 2 ms: {waits:?}");
}
