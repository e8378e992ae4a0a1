//! Speedup of a sharded pblk by a second core, in real time ([LightNVM17 §4.2.1]). The load is 4 KB
//! requests on one device of two shards: by one thread that alternates between both handles, and by
//! two threads with a handle and a CPU each.
//!
//! The drive is an [`EchoController`] per queue pair with the group's large geometry, polled by the
//! submitting thread. The measurement includes the drive, with 32 outstanding. *Local* requests go
//! to the submitting core's own stripes; half of the *uniform* ones go to the other core. The
//! result is the request rate with two threads over that with one in the same turn: the median of
//! interleaved turns.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use block::{BlockDevice, Payload, Request};
use event::AllowedCpus;
use pblk::{ShardHandle, Sharded, ShardedConfig};
use rng::Rng;
use time::{Component, Nanos};

use super::super::echo::{EchoController, QueuePairMemory};
use super::super::{BenchError, Measurement, RunLength, Samples, Sink, on_first_cpu};
use super::overhead::{chunks, info};
use super::{BENCH, setup};

/// Number of outstanding requests per handle.
const BATCH: u64 = 32;
/// Number of entries of a queue pair.
const DEPTH: u16 = 1024;
/// Number of sectors of the area: 4 GiB.
const AREA: u64 = 1 << 20;
/// Number of shards, and maximum number of threads.
const SHARDS: usize = 2;
/// Minimum speedup of two threads over one.
const SCALES: f64 = 1.8;

/// Address range and kind of requests.
#[derive(Clone, Copy, Debug)]
struct Load {
    writes: bool,
    /// Only the submitting core's own stripes.
    local: bool,
}

/// One core's handle, the drive behind its queue pair, and its requests.
#[derive(Debug)]
pub struct CoreEndpoint {
    handle: ShardHandle,
    echo: EchoController,
    rng: Rng,
    now: Nanos,
    submitted: u64,
    reaped: u64,
}

/// Returns the handles of a device with two shards; its first sectors are written once.
///
/// # Errors
/// If there is no memory, or if a write fails.
pub fn core_endpoints(area: u64) -> Result<Vec<CoreEndpoint>, BenchError> {
    let first = QueuePairMemory::new(DEPTH)?;
    let wires = [first.new_on_same_port()?, first];
    let info = info()?;
    let queues: Vec<_> =
        wires.iter().rev().map(QueuePairMemory::queue_pair).collect::<Result<_, _>>()?;
    let (port, config) = (wires[0].port().clone(), ShardedConfig::new(SHARDS as u32));
    let sharded = Sharded::open(&info, &chunks(&info), queues, port, config, &mut || {}, false);
    let handles = sharded.map_err(setup)?.into_shards();
    let mut ends = Vec::new();
    for ((handle, wire), seed) in handles.into_iter().zip(wires.iter().rev()).zip(1..) {
        let (echo, rng, now) = (wire.echo_controller()?, Rng::new(seed), Nanos(1));
        ends.push(CoreEndpoint { handle, echo, rng, now, submitted: 0, reaped: 0 });
    }
    for lba in (0..area).step_by(64) {
        let (tag, end) = (ends[0].submitted, &mut ends[0]);
        end.submitted += 1;
        let request = Request::write(lba, 64, Payload::BitBucket, tag);
        end.handle.submit(end.now, request).map_err(setup)?;
        while ends[0].reaped < ends[0].submitted {
            ends.iter_mut().try_for_each(CoreEndpoint::step)?;
        }
    }
    Ok(ends)
}

impl CoreEndpoint {
    /// Executes one iteration of the core and of its drive.
    #[inline]
    fn step(&mut self) -> Result<(), BenchError> {
        self.now = Nanos(self.now.0 + 1);
        self.handle.poll(self.now);
        self.echo.poll();
        self.handle.poll(self.now);
        while let Some(done) = self.handle.reap() {
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            self.reaped += 1;
        }
        Ok(())
    }

    /// Submits requests until a batch is outstanding, with at most `until` in total.
    #[inline]
    fn submit(&mut self, load: Load, area: u64, until: u64) -> Result<(), BenchError> {
        while self.submitted < until.min(self.reaped + BATCH) {
            let mut lba = self.rng.below(area);
            if load.local {
                // The corresponding sector in the core's own stripe of the row.
                let stripe = u64::from(self.handle.stripe_sectors());
                let row = stripe * SHARDS as u64;
                lba = lba / row * row + u64::from(self.handle.shard()) * stripe + lba % stripe;
            }
            let tag = self.submitted;
            let data = Payload::BitBucket;
            let request = if load.writes {
                Request::write(lba, 1, data, tag)
            } else {
                Request::read(lba, 1, data, tag)
            };
            self.handle.submit(self.now, request).map_err(setup)?;
            self.submitted += 1;
        }
        Ok(())
    }

    /// Returns the number of requests after `requests` more.
    fn after(&self, requests: u64) -> u64 {
        self.submitted + requests
    }
}

/// Returns requests per nanosecond of one thread with all handles.
fn measure_alone(
    ends: &mut [CoreEndpoint],
    load: Load,
    area: u64,
    batches: u64,
) -> Result<f64, BenchError> {
    let cores = AllowedCpus::allowed();
    on_first_cpu(&cores, || {
        let begin = Instant::now();
        let until: Vec<u64> = ends.iter().map(|end| end.after(batches * BATCH)).collect();
        while ends.iter().zip(&until).any(|(end, until)| end.reaped < *until) {
            for (end, until) in ends.iter_mut().zip(&until) {
                end.submit(load, area, *until)?;
                end.step()?;
            }
        }
        Ok((batches * BATCH * SHARDS as u64) as f64 / begin.elapsed().as_nanos() as f64)
    })
}

/// Returns requests per nanosecond with a thread per handle.
fn measure_together(
    ends: &mut [CoreEndpoint],
    load: Load,
    area: u64,
    batches: u64,
) -> Result<f64, BenchError> {
    let (cores, barrier) = (AllowedCpus::allowed(), Barrier::new(ends.len()));
    let left = AtomicUsize::new(ends.len());
    let rates: Result<Vec<f64>, BenchError> = thread::scope(|scope| {
        let (cores, barrier, left) = (&cores, &barrier, &left);
        let threads: Vec<_> = ends
            .iter_mut()
            .enumerate()
            .map(|(i, end)| {
                scope.spawn(move || {
                    cores.pin(i);
                    barrier.wait();
                    let begin = Instant::now();
                    let mut work = || {
                        let until = end.after(batches * BATCH);
                        while end.reaped < until {
                            end.submit(load, area, until)?;
                            end.step()?;
                        }
                        Ok((batches * BATCH) as f64 / begin.elapsed().as_nanos() as f64)
                    };
                    let rate = work();
                    // The other core may still need this one's shard.
                    left.fetch_sub(1, Ordering::Relaxed);
                    while left.load(Ordering::Relaxed) > 0 {
                        end.step()?;
                    }
                    rate
                })
            })
            .collect();
        let lost = |_| BenchError::Thread("a submitter");
        threads.into_iter().map(|t| t.join().map_err(lost)?).collect()
    });
    Ok(rates?.into_iter().sum())
}

/// Measures one and two threads.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    if !AllowedCpus::allowed().has_two() {
        return Ok(());
    }
    let area = effort.choose(AREA, AREA >> 6);
    let (rounds, batches) = (effort.choose(151, 3), effort.choose(150, 10));
    let mut ends = core_endpoints(area)?;
    for (writes, what) in [(true, "writes"), (false, "reads")] {
        for (local, to) in [(true, "to the core's own stripes"), (false, "uniform, half cross")] {
            let load = Load { writes, local };
            let mut turns = Vec::with_capacity(rounds);
            for round in 0..=rounds {
                let (one, two) = if round % 2 == 0 {
                    let one = 1.0 / measure_alone(&mut ends, load, area, batches)?;
                    (one, 1.0 / measure_together(&mut ends, load, area, batches)?)
                } else {
                    let two = 1.0 / measure_together(&mut ends, load, area, batches)?;
                    (1.0 / measure_alone(&mut ends, load, area, batches)?, two)
                };
                // The first round is for warm-up.
                if round > 0 {
                    turns.push((one, two));
                }
            }
            let case = format!("sharded pblk over an echo, 4 KB {what} {to}");
            let samples = |metric, value: fn(&(f64, f64)) -> f64| {
                let none = BenchError::NoValue { case: case.clone(), metric };
                Samples::new(turns.iter().map(value).collect()).ok_or(none)
            };
            let row = |metric, samples: &Samples, unit| {
                Measurement::new(BENCH, case.clone(), metric, samples.median(), unit)
                    .with_spread(samples)
            };
            let one = samples("one_thread_per_request", |(one, _)| *one)?;
            let two = samples("two_threads_per_request", |(_, two)| *two)?;
            let ratio = samples("two_over_one", |(one, two)| one / two)?;
            sink.push(row("one_thread_per_request", &one, "ns"))?;
            sink.push(row("two_threads_per_request", &two, "ns"))?;
            let ratio = row("two_over_one", &ratio, "x");
            sink.push(if writes { ratio.at_least(SCALES) } else { ratio })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_requests_stay_and_half_of_the_uniform_ones_cross() {
        let mut ends = core_endpoints(1 << 12).unwrap();
        let sent = |ends: &[CoreEndpoint]| ends.iter().map(|e| e.handle.stats().sent).sum::<u64>();
        let before = sent(&ends);
        let local = Load { writes: true, local: true };
        assert!(measure_alone(&mut ends, local, 1 << 12, 20).unwrap() > 0.0);
        assert!(measure_together(&mut ends, local, 1 << 12, 20).unwrap() > 0.0);
        assert_eq!(sent(&ends), before);
        let uniform = Load { writes: true, local: false };
        measure_together(&mut ends, uniform, 1 << 12, 100).unwrap();
        let crossed = (sent(&ends) - before) as f64 / (100 * BATCH * 2) as f64;
        assert!((0.45..0.55).contains(&crossed), "{crossed}");
        assert!(
            ends.iter().all(|e| e.handle.is_idle() || e.handle.pblk().queue().outstanding() == 0)
        );
    }
}
