//! Host and drive busy-poll on a CPU each, as in real time. At queue depth 1 the cost is that of
//! cache lines moving between CPUs; at larger depths it is that of the slower end.

use std::hint::spin_loop;
use std::thread;

use event::{AllowedCpus, RealClock};
use time::Nanos;

use super::BENCH;
use super::hand_off::{LockedQueues, channels};
use crate::echo::{QueuePairMemory, read};
use crate::{BenchError, Measurement, Quantiles, RunLength, Sink, interleaved, on_first_cpu};

const DEPTH: u16 = 256;

/// Measures the round trip of one command with nothing else outstanding. It includes the time of
/// one clock reading.
///
/// # Errors
/// If the system refuses memory or threads, or if the output fails.
pub fn round_trip(
    effort: RunLength,
    cores: &AllowedCpus,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let trips = effort.choose(200_000, 500);
    let spinning = spinning_round_trips(cores, trips)?;
    // Each of these takes tens of microseconds.
    let sleeping = sleeping_round_trips(cores, trips / 20)?;
    let case = "queue pair, two threads, depth 1";
    let reference = "Mutex<VecDeque> and Condvar";
    for (metric, pair, locked) in [
        ("round_trip_p50", spinning.p50, sleeping.p50),
        ("round_trip_p99", spinning.p99, sleeping.p99),
    ] {
        let measurement = Measurement::new(BENCH, case, metric, pair.0 as f64, "ns");
        let measurement = measurement.with_reference(reference, locked.0 as f64);
        sink.push(measurement.at_most(locked.0 as f64))?;
    }
    Ok(())
}

fn spinning_round_trips(cores: &AllowedCpus, trips: u64) -> Result<Quantiles, BenchError> {
    let wire = QueuePairMemory::new(DEPTH)?;
    let mut pair = wire.queue_pair()?;
    let durations = wire.echo_controller()?.run_beside(cores, move || {
        Ok(timed(trips, |number| {
            // Nothing is outstanding, so the submission succeeds.
            let submitted = pair.submit(read(number), number);
            debug_assert!(submitted.is_ok());
            pair.ring();
            while pair.reap().is_none() {
                spin_loop();
            }
        }))
    })?;
    Quantiles::from_durations(durations).ok_or(BenchError::Thread("the queue pair"))
}

fn sleeping_round_trips(cores: &AllowedCpus, trips: u64) -> Result<Quantiles, BenchError> {
    let queues = LockedQueues::default();
    // The number of commands that `timed` sends, including warm-up.
    let all = trips + warm_up(trips);
    let durations = on_first_cpu(cores, || {
        thread::scope(|scope| {
            thread::Builder::new().spawn_scoped(scope, || {
                cores.pin(1);
                queues.serve(all);
            })?;
            Ok(timed(trips, |number| {
                std::hint::black_box(queues.round_trip(number));
            }))
        })
    })?;
    Quantiles::from_durations(durations).ok_or(BenchError::Thread("the locked queues"))
}

fn warm_up(trips: u64) -> u64 {
    trips / 10
}

/// Returns the duration of each of `trips` calls, after a warm-up of a tenth as many.
fn timed(trips: u64, mut trip: impl FnMut(u64)) -> Vec<Nanos> {
    let clock = RealClock::start();
    for number in 0..warm_up(trips) {
        trip(number);
    }
    let mut last = clock.now();
    (0..trips)
        .map(|number| {
            trip(number);
            let now = clock.now();
            let took = now.since(last);
            last = now;
            took
        })
        .collect()
}

/// Measures commands per second with `depth` of them outstanding.
///
/// # Errors
/// When the system refuses memory or threads, or the output fails.
pub fn throughput(
    effort: RunLength,
    cores: &AllowedCpus,
    depth: u16,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let commands = effort.choose(200_000, 1_000);
    let rounds = effort.choose(15, 3);
    let [paired, sent] = interleaved(
        rounds,
        [&mut || pipelined(cores, commands, depth), &mut || {
            through_channels(cores, commands, depth)
        }],
    )?;
    let case = format!("queue pair, two threads, depth {depth}");
    let reference = "std::sync::mpsc, spinning";
    super::push(sink, &case, &paired, (reference, &sent), Some(sent.median()))?;
    let rate = |ns: f64| if ns > 0.0 { 1e9 / ns } else { 0.0 };
    let value = rate(paired.median());
    let measurement = Measurement::new(BENCH, case, "commands_per_second", value, "1/s");
    sink.push(measurement.with_reference(reference, rate(sent.median())))
}

/// Returns nanoseconds per command through a queue pair with `depth` outstanding, over `commands`
/// commands.
///
/// # Errors
/// If the system refuses memory or threads.
pub fn pipelined(cores: &AllowedCpus, commands: u64, depth: u16) -> Result<f64, BenchError> {
    let wire = QueuePairMemory::new(DEPTH)?;
    let mut pair = wire.queue_pair()?;
    wire.echo_controller()?.run_beside(cores, move || {
        let mut through = |count: u64| {
            let (mut sent, mut done) = (0, 0);
            while done < count {
                while sent < count && pair.outstanding() < depth {
                    if pair.submit(read(sent), sent).is_err() {
                        break;
                    }
                    sent += 1;
                }
                pair.ring();
                let before = done;
                while pair.reap().is_some() {
                    done += 1;
                }
                if done == before {
                    spin_loop();
                }
            }
        };
        // The drive's thread runs by the time that this returns.
        through(depth.into());
        let clock = RealClock::start();
        through(commands);
        Ok(clock.now().0 as f64 / commands as f64)
    })
}

fn through_channels(cores: &AllowedCpus, commands: u64, depth: u16) -> Result<f64, BenchError> {
    let (host, drive) = channels();
    thread::scope(|scope| {
        thread::Builder::new().spawn_scoped(scope, move || {
            cores.pin(1);
            drive.serve();
        })?;
        on_first_cpu(cores, move || {
            let depth = depth.into();
            let warm = host.drive_through(depth, depth);
            let clock = RealClock::start();
            if !warm || !host.drive_through(commands, depth) {
                return Err(BenchError::Thread("the channels"));
            }
            Ok(clock.now().0 as f64 / commands as f64)
        })
    })
}
