//! Measures submit, complete and poll: a raw block device over a queue pair, with an echo drive.
//!
//! Host and drive busy-poll on a CPU each, as in real time; on a machine with one CPU they
//! alternate. Single calls are timed individually, and the cost of reading the clock is subtracted.

use std::hint::{black_box, spin_loop};

use block::{BlockDevice, Payload, Raw, Request};
use event::{AllowedCpus, RealClock};
use mem::Iova;
use time::{Component, Nanos};

use crate::echo::{EchoController, QueuePairMemory, read};
use crate::{BenchError, Quantiles, RunLength, Samples, on_first_cpu};

const DEPTH: u16 = 256;
/// Number of outstanding commands when throughput is measured.
const OUTSTANDING: u64 = 32;
/// Number of commands of a throughput sample.
const WINDOW: u64 = 1024;

/// Costs of a queue pair in process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCosts {
    /// Conversion of a request to a command, its submission queue entry, and the doorbell.
    pub submit: Quantiles,
    /// Finding and reaping an available completion.
    pub complete: Quantiles,
    /// Polling an empty queue.
    pub idle_poll: Nanos,
    /// Round trip of one request, with nothing else outstanding.
    pub round_trip: Quantiles,
    /// Time per command with 32 outstanding, with host and drive in parallel.
    pub pipelined: Nanos,
    /// CPU time of the echo drive per command.
    pub echo: Nanos,
}

/// Durations of single calls.
#[derive(Debug, Default)]
struct Calls {
    /// Timings of an empty call: the overhead of timing.
    empty: Vec<Nanos>,
    submit: Vec<Nanos>,
    complete: Vec<Nanos>,
    round_trip: Vec<Nanos>,
}

/// Measures the costs.
///
/// # Errors
/// [`BenchError`] if the system refuses memory or threads.
pub fn measure(effort: RunLength, cores: &AllowedCpus) -> Result<QueueCosts, BenchError> {
    let calls = effort.choose(100_000, 500);
    let windows = effort.choose(1_000, 4);
    let wire = QueuePairMemory::new(DEPTH)?;
    let (mut raw, echo) = (wire.raw()?, wire.echo_controller()?);
    let host = |idle: &mut dyn FnMut()| -> (Calls, Vec<f64>, Vec<f64>) {
        let timed = time_calls(&mut raw, calls, &mut *idle);
        let pipelined = pipelined(&mut raw, windows, idle);
        (timed, pipelined, (0..9).map(|_| idle_polls(&mut raw, calls)).collect())
    };
    let (timed, pipelined, idle) = if cores.has_two() {
        let mut host = host;
        echo.run_beside(cores, move || Ok(host(&mut spin_loop)))?
    } else {
        let (mut host, mut echo) = (host, echo);
        on_first_cpu(cores, move || {
            Ok(host(&mut || {
                echo.poll();
            }))
        })?
    };
    let quantiles = |calls: Vec<Nanos>| {
        Quantiles::from_durations(calls).ok_or(BenchError::Thread("the queue pair"))
    };
    let empty = quantiles(timed.empty)?.p50;
    let net = |calls| Ok::<_, BenchError>(quantiles(calls)?.minus(empty).at_least(Nanos(1)));
    let median = |values: Vec<f64>| Samples::new(values).map_or(0.0, |s| s.median());
    let echo = on_first_cpu(cores, move || echo_polls(effort.choose(2_000, 20)))?;
    Ok(QueueCosts {
        submit: net(timed.submit)?,
        complete: net(timed.complete)?,
        round_trip: net(timed.round_trip)?,
        idle_poll: whole_nanos(median(idle)),
        pipelined: whole_nanos(median(pipelined)),
        echo: whole_nanos(median(echo)),
    })
}

/// Rounds to whole nanoseconds, at least one because no operation is free.
pub(super) fn whole_nanos(nanos: f64) -> Nanos {
    Nanos(nanos.round().max(1.0) as u64)
}

fn request(number: u64) -> Request {
    Request::read(black_box(number % 1024), 1, Payload::Contiguous(Iova(1 << 40)), number)
}

/// Times `count` requests one at a time, after a warm-up of a tenth as many.
fn time_calls(raw: &mut Raw, count: usize, idle: &mut dyn FnMut()) -> Calls {
    let clock = RealClock::start();
    let mut calls = Calls::default();
    for number in 0..count + count / 10 {
        let nothing = clock.now();
        let asked = clock.now();
        // Nothing is outstanding, so the submission succeeds.
        let taken = raw.submit(asked, request(number as u64));
        raw.poll(asked);
        let submitted = clock.now();
        if taken.is_err() {
            continue;
        }
        let (found, done) = loop {
            let before = clock.now();
            raw.poll(before);
            if let Some(completion) = raw.reap() {
                black_box(completion);
                break (before, clock.now());
            }
            idle();
        };
        if number >= count / 10 {
            calls.empty.push(asked.since(nothing));
            calls.submit.push(submitted.since(asked));
            calls.complete.push(done.since(found));
            calls.round_trip.push(done.since(asked));
        }
    }
    calls
}

/// Returns nanoseconds per request with [`OUTSTANDING`] outstanding, for each window of a long run.
/// Windows are short, so that most are not interrupted.
fn pipelined(raw: &mut Raw, windows: u64, idle: &mut dyn FnMut()) -> Vec<f64> {
    let count = windows * WINDOW;
    let clock = RealClock::start();
    let (mut sent, mut done, mut began) = (0, 0, Nanos::ZERO);
    let mut samples = Vec::new();
    while done < count {
        while sent < count && sent - done < OUTSTANDING {
            if raw.submit(Nanos::ZERO, request(sent)).is_err() {
                break;
            }
            sent += 1;
        }
        raw.poll(Nanos::ZERO);
        let before = done;
        while let Some(completion) = raw.reap() {
            black_box(completion);
            done += 1;
            if done % WINDOW == 0 {
                let now = clock.now();
                samples.push(now.since(began).0 as f64 / WINDOW as f64);
                began = now;
            }
        }
        if done == before {
            idle();
        }
    }
    samples
}

/// Returns nanoseconds per poll with nothing outstanding.
fn idle_polls(raw: &mut Raw, count: usize) -> f64 {
    let clock = RealClock::start();
    for _ in 0..count {
        black_box(raw.poll(Nanos::ZERO));
    }
    clock.now().0 as f64 / count.max(1) as f64
}

/// Returns nanoseconds per command of an echo drive, for each of `batches` batches.
fn echo_polls(batches: usize) -> Result<Vec<f64>, BenchError> {
    let wire = QueuePairMemory::new(DEPTH)?;
    let (mut pair, mut echo): (_, EchoController) = (wire.queue_pair()?, wire.echo_controller()?);
    let clock = RealClock::start();
    let mut samples = Vec::with_capacity(batches);
    for _ in 0..batches {
        for user in 0..OUTSTANDING {
            if pair.submit(read(user), user).is_err() {
                break;
            }
        }
        pair.ring();
        let start = clock.now();
        let answered = echo.poll();
        let took = clock.now().since(start);
        samples.push(took.0 as f64 / answered.max(1) as f64);
        while let Some(done) = pair.reap() {
            black_box(done);
        }
    }
    Ok(samples)
}
