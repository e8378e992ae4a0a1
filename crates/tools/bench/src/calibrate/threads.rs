//! Measures the scheduler and the timers: clock reads, wake-ups, sleeps and stalls.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use event::{AllowedCpus, Parker, RealClock};
use time::Nanos;

use super::queue::whole_nanos;
use crate::{BenchError, Quantiles, RunLength, Samples, on_first_cpu};

/// Requested length of each measured sleep, about that of a flash read.
const SLEEP: Nanos = Nanos::from_micros(100);

/// Costs of the scheduler and the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCosts {
    /// One reading of the clock.
    pub clock_read: Nanos,
    /// From the call of a waker until the parked thread returns, on another CPU if there is one.
    pub wake: Quantiles,
    /// CPU time of that call in the waking thread.
    pub wake_call: Quantiles,
    /// Overshoot of `nanosleep(2)`.
    pub sleep_late: Quantiles,
    /// Overshoot of a parked runner.
    pub park_late: Quantiles,
    /// The longest time for which a spinning thread, one on every CPU, did not run.
    pub stall: Nanos,
    /// Length of the observation.
    pub observed: Nanos,
}

/// Measures the costs.
///
/// # Errors
/// [`BenchError`] if the system refuses descriptors or threads.
pub fn measure(effort: RunLength, cores: &AllowedCpus) -> Result<ThreadCosts, BenchError> {
    let clock_read = on_first_cpu(cores, move || Ok(clock_read(effort.choose(100_000, 1_000))))?;
    let (wake, wake_call) = wakes(cores, effort.choose(2_000, 20))?;
    let sleeps = effort.choose(500, 10);
    let watched = Nanos::from_millis(effort.choose(500, 5));
    Ok(ThreadCosts {
        clock_read,
        wake: wake.minus(clock_read),
        wake_call: wake_call.minus(clock_read),
        sleep_late: on_first_cpu(cores, move || {
            lateness(sleeps, || {
                thread::sleep(Duration::from_nanos(SLEEP.0));
                Ok(())
            })
        })?,
        park_late: on_first_cpu(cores, move || {
            let parker = Parker::new()?;
            lateness(sleeps, || {
                parker.prepare();
                Ok(parker.park(&[], SLEEP)?)
            })
        })?,
        stall: longest_stall(cores, watched)?,
        observed: watched,
    })
}

fn clock_read(count: usize) -> Nanos {
    let clock = RealClock::start();
    let samples = (0..9).map(|_| {
        let start = clock.now();
        for _ in 0..count {
            black_box(clock.now());
        }
        clock.now().since(start).0 as f64 / count as f64
    });
    whole_nanos(Samples::new(samples.collect()).map_or(0.0, |s| s.median()))
}

/// Returns the overshoot over [`SLEEP`] of each of `count` sleeps.
fn lateness(
    count: usize,
    mut sleep: impl FnMut() -> Result<(), BenchError>,
) -> Result<Quantiles, BenchError> {
    let clock = RealClock::start();
    let mut late = Vec::with_capacity(count);
    for _ in 0..count {
        let start = clock.now();
        sleep()?;
        late.push(clock.now().since(start + SLEEP));
    }
    Quantiles::from_durations(late).ok_or(BenchError::Thread("a sleeper"))
}

/// Measures `count` wake-ups: the time to wake a parked thread, and the time of the call.
fn wakes(cores: &AllowedCpus, count: u64) -> Result<(Quantiles, Quantiles), BenchError> {
    let clock = RealClock::start();
    let parker = Parker::new()?;
    let waker = parker.waker();
    // The number of wake-ups that the sleeper is ready for, and the time of its last return, 0
    // before the first.
    let (ready, returned) = (AtomicU64::new(0), AtomicU64::new(0));
    // The waking thread busy-polls if the sleeper has a CPU of its own.
    let rest = || if cores.has_two() { spin_loop() } else { thread::yield_now() };
    let sleep = || {
        let mut result = Ok(());
        for number in 1..=count {
            parker.prepare();
            ready.store(number, Ordering::Release);
            let parked = parker.park(&[], Nanos::MAX);
            returned.store(clock.now().0, Ordering::Release);
            // The other thread waits for every wake-up, so a failure must not end the loop.
            result = result.and(parked);
            while returned.load(Ordering::Acquire) != 0 {
                rest();
            }
        }
        result
    };
    let wake = || {
        let (mut latencies, mut calls) = (Vec::new(), Vec::new());
        for number in 1..=count {
            while ready.load(Ordering::Acquire) < number {
                rest();
            }
            // Wait until the thread is asleep, and its CPU too.
            let until = clock.now() + Nanos::from_micros(100);
            while clock.now() < until {
                rest();
            }
            let start = clock.now();
            waker.wake();
            calls.push(clock.now().since(start));
            let woken = loop {
                match returned.load(Ordering::Acquire) {
                    0 => rest(),
                    at => break Nanos(at),
                }
            };
            latencies.push(woken.since(start));
            returned.store(0, Ordering::Release);
        }
        (latencies, calls)
    };
    let (latencies, calls) = on_first_cpu(cores, || {
        thread::scope(|scope| {
            let sleeper = thread::Builder::new().spawn_scoped(scope, || {
                cores.pin(1);
                sleep()
            })?;
            let measured = wake();
            sleeper.join().map_err(|_| BenchError::Thread("the sleeper"))??;
            Ok(measured)
        })
    })?;
    Quantiles::from_durations(latencies)
        .zip(Quantiles::from_durations(calls))
        .ok_or(BenchError::Thread("the waking thread"))
}

/// Returns the longest gap between two readings of the clock on any CPU.
fn longest_stall(cores: &AllowedCpus, watched: Nanos) -> Result<Nanos, BenchError> {
    let clock = RealClock::start();
    let go = AtomicBool::new(false);
    let until = |end: Nanos| {
        let (mut last, mut longest) = (clock.now(), Nanos::ZERO);
        while last < end {
            let now = clock.now();
            longest = longest.max(now.since(last));
            last = now;
        }
        longest
    };
    thread::scope(|scope| {
        let (go, until) = (&go, &until);
        let mut watchers = Vec::new();
        for cpu in 0..cores.count() {
            watchers.push(thread::Builder::new().spawn_scoped(scope, move || {
                cores.pin(cpu);
                while !go.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                until(clock.now() + watched)
            })?);
        }
        go.store(true, Ordering::Release);
        let mut longest = Nanos::ZERO;
        for watcher in watchers {
            longest = longest.max(watcher.join().map_err(|_| BenchError::Thread("a watcher"))?);
        }
        Ok(longest)
    })
}
