//! Latency of one request, also with more threads than cores.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use block::{BlockDevice, Payload, Request};
use event::AllowedCpus;
use hdrhistogram::Histogram;
use time::Nanos;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::BENCH;
use super::variants::{MQ, SQ, block_layer, raw};

/// Numbers of threads, most of them larger than the number of cores.
const THREADS: [u16; 4] = [1, 2, 4, 8];

/// Measures `raw`, `sq` and `mq` with one request outstanding per thread.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let count = effort.choose(400_000, 500);
    for threads in THREADS {
        let mut base = None;
        let measured = [
            ("raw", distribution(raw(threads)?, count)?),
            (
                "mq per-core/per-core",
                distribution(block_layer(MQ, threads, threads, true)?, count)?,
            ),
            ("mq per-core/one", distribution(block_layer(MQ, threads, 1, true)?, count)?),
            ("sq", distribution(block_layer(SQ, threads, 1, true)?, count)?),
        ];
        for (name, latencies) in measured {
            let case = format!("null, {name}, {threads} threads, QD 1");
            let row =
                |metric, value, unit| Measurement::new(BENCH, case.clone(), metric, value, unit);
            let p50 = latencies.value_at_quantile(0.5) as f64;
            let of_raw = *base.get_or_insert(p50);
            sink.push(row("latency_p50", p50, "ns").with_reference("raw", of_raw))?;
            sink.push(row("latency_p99", latencies.value_at_quantile(0.99) as f64, "ns"))?;
            sink.push(row("latency_max", latencies.max() as f64, "ns"))?;
            let late = latencies.count_between(1_000_001, u64::MAX) as f64;
            sink.push(row("share_over_1ms", 100.0 * late / latencies.len() as f64, "%"))?;
        }
    }
    Ok(())
}

/// Returns the latencies of `count` requests on each device, with all devices in parallel.
fn distribution<D: BlockDevice + Send>(
    mut devices: Vec<D>,
    count: u64,
) -> Result<Histogram<u64>, BenchError> {
    let (cores, barrier) = (AllowedCpus::allowed(), Barrier::new(devices.len()));
    let share = (count / devices.len() as u64).max(1);
    let mut all = histogram()?;
    thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter_mut()
            .enumerate()
            .map(|(i, device)| {
                let (cores, barrier) = (&cores, &barrier);
                scope.spawn(move || {
                    cores.pin(i);
                    let mut latencies = histogram()?;
                    barrier.wait();
                    let begin = Instant::now();
                    for tag in 0..share {
                        let start = begin.elapsed();
                        one(device, Nanos(start.as_nanos() as u64 | 1), tag)?;
                        latencies.saturating_record((begin.elapsed() - start).as_nanos() as u64);
                    }
                    // Other cores may wait for completions that only this core's polls find.
                    barrier.wait();
                    Ok(latencies)
                })
            })
            .collect();
        for thread in threads {
            let latencies: Result<_, BenchError> =
                thread.join().map_err(|_| BenchError::Thread("a submitter"))?;
            let added = all.add(latencies?);
            added.map_err(|_| BenchError::Thread("a histogram"))?;
        }
        Ok(all)
    })
}

fn histogram() -> Result<Histogram<u64>, BenchError> {
    // Up to a minute, in nanoseconds.
    Histogram::new_with_max(60_000_000_000, 3).map_err(|_| BenchError::Thread("a histogram"))
}

fn one<D: BlockDevice>(device: &mut D, now: Nanos, tag: u64) -> Result<(), BenchError> {
    let request = Request::read(tag & 0xffff, 1, Payload::BitBucket, tag);
    let mut submitted = device.submit(now, request).is_ok();
    loop {
        device.poll(now);
        if let Some(done) = device.reap() {
            return if done.status.is_success() {
                Ok(())
            } else {
                Err(BenchError::Status(done.status))
            };
        }
        if !submitted {
            submitted = device.submit(now, request).is_ok();
        }
    }
}
