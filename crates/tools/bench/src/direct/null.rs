//! Nanoseconds per 4 KB command on the null device: the cost of queue and handle, and the overhead
//! of each policy.
//!
//! All paths are interleaved in one run on one core. The result is the lowest quartile of the
//! rounds, because disturbances only add time. Reads have random addresses and registered memory of
//! their own. A cache hit copies 4 KB; its reference is the copy alone, between equal amounts of
//! memory.

use std::hint::black_box;
use std::time::Instant;

use block::sched::SchedulerConfig;
use event::AllowedCpus;
use rng::Rng;
use user_io::{
    Cache, CacheConfig, Handle, IoDevice, MultiQueue, Queue, QueueConfig, QueueSelector, Scheduled,
    ScheduledConfig, SharedQueue,
};

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave, on_first_cpu};
use super::load::{Load, LoadArea};
use super::{BENCH, setup};

/// Size of a command in bytes.
const BLOCK: u32 = 4096;
/// Maximum nanoseconds of a command through queue and handle with 32 outstanding.
const QUEUE_NS_MAX: f64 = 60.0;
/// Maximum nanoseconds of a 4 KB cache hit in memory that fits into the core's second-level cache.
const HIT_NS_MAX: f64 = 150.0;
/// Memory of cache hits in bytes: one area that a core's second-level cache (1 MiB on Zen 4) holds
/// beside the copies, and one that exceeds all caches.
const HIT_AREAS: [(&str, u64); 2] = [("512 KiB", 512 << 10), ("64 MiB", 64 << 20)];

/// A measured path: executes this many commands and returns nanoseconds per command.
type MeasuredPath = Box<dyn FnMut(u64) -> Result<f64, BenchError>>;

/// A path and its row.
struct Row {
    case: String,
    path: MeasuredPath,
    /// Index of the row to compare with.
    against: Option<usize>,
    max: Option<f64>,
}

/// Measures all paths.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let rows = on_first_cpu(&AllowedCpus::allowed(), || measure(effort))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

fn queue(device: &IoDevice) -> Result<Queue, BenchError> {
    device.create_queue(QueueConfig::default()).map_err(setup)
}

/// Returns the path through a handle over a policy.
fn measure_policy<D: block::BlockDevice + 'static>(
    device: &IoDevice,
    policy: D,
    depth: usize,
    area: u64,
) -> Result<MeasuredPath, BenchError> {
    let mut handle = Handle::new(device, policy).map_err(setup)?;
    let mut load = Load::new(device, LoadArea { block_bytes: BLOCK, bytes: area }, depth, true, 1)?;
    Ok(Box::new(move |count| load.run(&mut handle, count)))
}

/// Returns the copy that every cache hit includes.
fn copies(bytes: u64) -> MeasuredPath {
    let blocks = bytes / u64::from(BLOCK);
    let from = vec![1u8; bytes as usize];
    let mut to = vec![0u8; 32 * BLOCK as usize];
    let mut rng = Rng::new(1);
    Box::new(move |count| {
        let begin = Instant::now();
        for i in 0..count {
            let at = rng.below(blocks) as usize * BLOCK as usize;
            let slot = (i % 32) as usize * BLOCK as usize;
            let into = &mut to[slot..slot + BLOCK as usize];
            into.copy_from_slice(&from[at..at + BLOCK as usize]);
            black_box(&into[..1]);
        }
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    })
}

fn rows(device: &IoDevice) -> Result<Vec<Row>, BenchError> {
    let area = 1 << 30;
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |case: &str, way: MeasuredPath, against, most| {
        rows.push(Row { case: case.into(), path: way, against, max: most });
        rows.len() - 1
    };
    let plain = measure_policy(device, queue(device)?, 32, area)?;
    let base = add("queue and handle, QD 32", plain, None, Some(QUEUE_NS_MAX));
    let single = measure_policy(device, queue(device)?, 1, area)?;
    add("queue and handle, QD 1", single, Some(base), None);
    for name in ["none", "deadline", "priority"] {
        let scheduler: SchedulerConfig = name.parse().map_err(setup)?;
        let config = ScheduledConfig { scheduling: scheduler.into(), ..Default::default() };
        let scheduled = Scheduled::new(queue(device)?, &config).map_err(setup)?;
        let way = measure_policy(device, scheduled, 32, area)?;
        add(&format!("scheduler {name}, QD 32"), way, Some(base), None);
    }
    for (name, selector) in
        [("by direction", QueueSelector::ByDirection), ("in turns", QueueSelector::RoundRobin)]
    {
        let lanes =
            MultiQueue::new(vec![queue(device)?, queue(device)?], selector).map_err(setup)?;
        let way = measure_policy(device, lanes, 32, area)?;
        add(&format!("2 lanes {name}, QD 32"), way, Some(base), None);
    }
    let seat = SharedQueue::new(queue(device)?).attach();
    let way = measure_policy(device, seat, 32, area)?;
    add("a seat at a shared queue, QD 32", way, Some(base), None);
    for (name, area) in HIT_AREAS {
        let copy = add(&format!("copies of 4 KB from {name}"), copies(area), None, None);
        let config = CacheConfig { bytes: 2 * area, ..CacheConfig::default() };
        let cache = Cache::new(device, queue(device)?, config).map_err(setup)?;
        let mut handle = Handle::new(device, cache).map_err(setup)?;
        let mut load =
            Load::new(device, LoadArea { block_bytes: BLOCK, bytes: area }, 32, true, 1)?;
        load.warm(&mut handle)?;
        let way: MeasuredPath = Box::new(move |count| {
            let before = handle.device().stats();
            let ns = load.run(&mut handle, count)?;
            let after = handle.device().stats();
            match after.misses - before.misses {
                0 => Ok(ns),
                failed => {
                    let case = "cache hits".into();
                    Err(BenchError::Failed { case, failed, requests: count })
                }
            }
        });
        let most = (area == HIT_AREAS[0].1).then_some(HIT_NS_MAX);
        add(&format!("cache hits in {name}, QD 32"), way, Some(copy), most);
    }
    Ok(rows)
}

fn measure(effort: RunLength) -> Result<Vec<Measurement>, BenchError> {
    // A sample is shorter than a time slice of the scheduler, so most samples are not interrupted.
    let (rounds, count) = (effort.choose(201, 3), effort.choose(10_000, 1_000));
    let device = open::open("null", &Default::default()).map_err(setup)?;
    let mut rows = rows(&device)?;
    let taken = interleave(rounds, rows.len(), |which| (rows[which].path)(count))?;
    let lowest = taken.into_iter().zip(&rows).map(|(values, row)| {
        let none = || BenchError::NoValue { case: row.case.clone(), metric: "ns_per_command" };
        Ok(Samples::new(values).ok_or_else(none)?.quantile(0.25))
    });
    let lowest: Vec<f64> = lowest.collect::<Result<_, BenchError>>()?;
    let measured = rows.iter().zip(&lowest).map(|(row, ns)| {
        let case = format!("null, {}", row.case);
        let mut measured = Measurement::new(BENCH, case, "ns_per_command", *ns, "ns");
        if let Some(other) = row.against {
            measured = measured.with_reference(rows[other].case.clone(), lowest[other]);
        }
        match row.max {
            Some(most) => measured.at_most(most),
            None => measured,
        }
    });
    Ok(measured.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_beside_another() {
        let rows = measure(RunLength::Quick).unwrap();
        assert_eq!(rows.len(), 12);
        assert!(rows.iter().all(|row| row.value > 0.0));
        let alone = rows.iter().filter(|row| row.reference.is_none()).count();
        assert_eq!(alone, 3, "queue and handle, and the copies");
        assert_eq!(rows.iter().filter(|row| row.bound.is_some()).count(), 2);
    }
}
