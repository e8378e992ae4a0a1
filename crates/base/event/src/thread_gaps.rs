//! [`ThreadGapMeter`]: finds the times in which the machine did not run a polling thread.
//!
//! A gap is found where two polls begin far apart. Two cases differ in how own work is told from a
//! stop:
//!
//! - The earlier poll did nothing. Then the thread had nothing to do in between, and all but the
//!   usual length of such an interval is a gap: a preemption, an interrupt, a stop by the
//!   hypervisor, or a park that ended late. An interval counts from [`IDLE_GAP_MIN`] more than
//!   eight times the usual length, which is the shortest one of the previous [`WINDOW`].
//! - The earlier poll did work, or other components run on the thread. Then the gap is the time in
//!   which the CPU clock of the thread stood still, and only intervals of [`BUSY_GAP_MIN`] and more
//!   are examined, because that clock takes up to a microsecond to read.
//!
//! Error: the CPU clock counts interrupts, and stops by a hypervisor that does not report them, as
//! run. During work, these and all gaps below [`BUSY_GAP_MIN`] count as the thread's own time, unless
//! a longer interval of the same window follows, which gets the time of such gaps. The two clocks
//! may also diverge by some 50 ns per millisecond between two readings, at most [`WINDOW`] apart. On a busy virtual machine with two CPUs, a thread that did nothing but read
//! the clock had 13,000 intervals over 2 us in 8 s. 100 of them were preemptions and had 96 % of
//! the time, which the CPU clock showed to 3 per mille.
//!
//! Cost: a subtraction, two comparisons and a minimum per poll.

use time::Nanos;

/// Minimum length of a gap after a poll that did nothing.
pub const IDLE_GAP_MIN: Nanos = Nanos::from_micros(2);
/// Minimum length of an interval after a poll that did work, to be examined.
pub const BUSY_GAP_MIN: Nanos = Nanos::from_micros(50);
/// Time after which the CPU clock is read again, and the usual length is that of the last window.
const WINDOW: Nanos = Nanos::from_millis(10);

/// A time in which the machine did not run a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadGap {
    /// Its begin.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
}

/// The work of the thread of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadUse {
    /// The thread polls only the component that has the meter.
    OneComponent,
    /// The thread polls other components too, so intervals may have work that the meter cannot see.
    Shared,
}

/// Finds the times in which the machine did not run a thread that polls.
#[derive(Clone, Debug)]
pub struct ThreadGapMeter {
    cpu_clock: fn() -> Nanos,
    thread_use: ThreadUse,
    /// Begin of the last poll.
    last: Nanos,
    /// Whether the last poll did nothing, and nothing else runs on the thread.
    was_idle: bool,
    /// The last readings of both clocks; `None` before the first poll.
    base: Option<(Nanos, Nanos)>,
    /// End of the window.
    window_end: Nanos,
    /// Shortest interval after a poll without work in this window.
    shortest: Nanos,
    /// Shortest interval of an earlier window; `None` if there was none.
    usual: Option<Nanos>,
    /// Length from which an interval after a poll without work has a gap.
    idle_limit: Nanos,
}

impl ThreadGapMeter {
    /// Creates the meter of a thread whose CPU time `cpu_clock` returns, such as
    /// [`thread_cpu_time`](crate::thread_cpu_time).
    pub fn new(thread_use: ThreadUse, cpu_clock: fn() -> Nanos) -> ThreadGapMeter {
        ThreadGapMeter {
            cpu_clock,
            thread_use,
            last: Nanos::ZERO,
            was_idle: false,
            base: None,
            window_end: Nanos::ZERO,
            shortest: Nanos::MAX,
            usual: None,
            idle_limit: BUSY_GAP_MIN,
        }
    }

    /// Records that a poll begins at `now`. Returns the gap since the last one, if there is one.
    #[inline]
    pub fn poll_begins(&mut self, now: Nanos) -> Option<ThreadGap> {
        let last = std::mem::replace(&mut self.last, now);
        let length = now.since(last);
        let limit = if self.was_idle {
            self.shortest = self.shortest.min(length);
            self.idle_limit
        } else {
            BUSY_GAP_MIN
        };
        if length < limit && now < self.window_end {
            return None;
        }
        self.examine(last, now, limit)
    }

    /// Records that the poll ends, and whether it did work.
    #[inline]
    pub fn poll_ends(&mut self, did_work: bool) {
        self.was_idle = !did_work && self.thread_use == ThreadUse::OneComponent;
    }

    /// Looks for a gap in an interval that is long, or in which a window ends.
    #[cold]
    fn examine(&mut self, last: Nanos, now: Nanos, limit: Nanos) -> Option<ThreadGap> {
        let length = now.since(last);
        if length < BUSY_GAP_MIN && now < self.window_end {
            // Too short to matter for the CPU clock, whose reading would delay the poll.
            return self.idle_gap(last, now);
        }
        let cpu = (self.cpu_clock)();
        let (base, base_cpu) = self.base.replace((now, cpu)).unwrap_or((now, cpu));
        let gap = match () {
            () if length < limit || base == now => None,
            () if self.was_idle && self.usual.is_some() => self.idle_gap(last, now),
            () => {
                let stopped = now.since(base).since(cpu.since(base_cpu)).min(length);
                let gap = ThreadGap { from: last, to: last + stopped };
                // The work is after the gap: it never seems shorter than it is.
                (stopped >= IDLE_GAP_MIN).then_some(gap)
            }
        };
        if now >= self.window_end {
            self.window_end = now + WINDOW;
            if self.shortest < Nanos::MAX {
                self.usual = Some(self.shortest);
                self.idle_limit = IDLE_GAP_MIN + Nanos(8 * self.shortest.0);
                self.shortest = Nanos::MAX;
            }
        }
        gap
    }

    /// Returns the gap in an interval after a poll without work, whose begin has the usual length.
    fn idle_gap(&self, last: Nanos, now: Nanos) -> Option<ThreadGap> {
        let from = last + self.usual?;
        (from < now).then_some(ThreadGap { from, to: now })
    }
}

// guarantee: B-51
#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static CPU: Cell<u64> = const { Cell::new(0) };
        static READINGS: Cell<u64> = const { Cell::new(0) };
    }

    fn cpu() -> Nanos {
        READINGS.set(READINGS.get() + 1);
        Nanos(CPU.get())
    }

    /// A thread that runs and is stopped, and its meter.
    struct Thread {
        meter: ThreadGapMeter,
        now: u64,
    }

    impl Thread {
        /// Returns a thread that has done nothing for two windows, 100 ns per poll.
        fn idle_for_a_while(thread_use: ThreadUse) -> Thread {
            let mut thread = Thread { meter: ThreadGapMeter::new(thread_use, cpu), now: 1_000 };
            for _ in 0..2 * WINDOW.0 / 100 {
                assert_eq!(thread.poll(false), None);
                thread.run(100);
            }
            thread
        }

        fn poll(&mut self, does_work: bool) -> Option<(u64, u64)> {
            let gap = self.meter.poll_begins(Nanos(self.now));
            self.meter.poll_ends(does_work);
            gap.map(|gap| (gap.from.0, gap.to.0))
        }

        fn run(&mut self, ns: u64) {
            CPU.set(CPU.get() + ns);
            self.now += ns;
        }

        fn stop(&mut self, ns: u64) {
            self.now += ns;
        }
    }

    #[test]
    fn after_a_poll_without_work_all_but_the_usual_time_is_a_gap() {
        let mut thread = Thread::idle_for_a_while(ThreadUse::OneComponent);
        thread.poll(false);
        let begin = thread.now;
        // An interrupt: the CPU clock counts it as run.
        thread.run(100 + 7_000);
        let readings = READINGS.get();
        assert_eq!(thread.poll(false), Some((begin + 100, begin + 7_100)));
        assert_eq!(READINGS.get(), readings, "no clock is read for a short gap");
        thread.run(2_799);
        assert_eq!(thread.poll(false), None, "below the limit of 2.8 us");
        let begin = thread.now;
        thread.run(100);
        thread.stop(4_000_000);
        assert_eq!(thread.poll(false), Some((begin + 100, begin + 4_000_100)));
    }

    #[test]
    fn after_work_the_gap_is_where_the_cpu_clock_stood_still() {
        for thread_use in [ThreadUse::OneComponent, ThreadUse::Shared] {
            let mut thread = Thread::idle_for_a_while(thread_use);
            thread.poll(true);
            thread.run(49_000);
            let readings = READINGS.get();
            assert_eq!((thread.poll(true), READINGS.get()), (None, readings), "work, unexamined");
            thread.run(400_000);
            assert_eq!(thread.poll(true), None, "long work is no gap");
            let begin = thread.now;
            thread.run(30_000);
            thread.stop(5_000_000);
            thread.run(20_000);
            assert_eq!(thread.poll(true), Some((begin, begin + 5_000_000)), "the work is own time");
            // A gap is no longer than its interval.
            thread.stop(40_000);
            assert_eq!(thread.poll(true), None);
            let begin = thread.now;
            thread.stop(60_000);
            assert_eq!(thread.poll(true), Some((begin, begin + 60_000)));
        }
    }

    #[test]
    fn on_a_shared_thread_work_of_others_is_no_gap() {
        let mut thread = Thread::idle_for_a_while(ThreadUse::Shared);
        thread.poll(false);
        thread.run(300_000);
        assert_eq!(thread.poll(false), None);
    }

    #[test]
    fn polls_that_always_take_long_have_no_gaps() {
        let meter = ThreadGapMeter::new(ThreadUse::OneComponent, cpu);
        let mut thread = Thread { meter, now: 1_000 };
        for _ in 0..10_000 {
            assert_eq!(thread.poll(false), None);
            thread.run(20_000);
        }
        let begin = thread.now;
        thread.poll(false);
        thread.run(20_000);
        thread.stop(300_000);
        assert_eq!(thread.poll(false), Some((begin + 20_000, begin + 320_000)));
    }
}
