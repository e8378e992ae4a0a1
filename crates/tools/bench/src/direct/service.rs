//! Distribution of service (\[NVMeDirect16\], figure 4) in virtual time. The host takes no time, and
//! the results are the same on every machine.
//!
//! **Priorities.** Four applications write 4 KB at random with 4 outstanding each, on a drive that
//! is busy with GC. There are three configurations: each application has a queue of its own; the
//! first has a queue and the others share one of equal depth; all share one queue with a scheduler
//! that prefers the class of the first. The paper's prioritized thread "outperforms the other
//! threads remarkably", without a loss of total throughput.
//!
//! **Rates.** An application reads 4 KB with 1 outstanding; a neighbor reads with 1,024. Both have
//! a handle on one queue, and a token bucket limits the neighbor's reads per second. A read that
//! finds its parallel unit busy waits for a complete read. If the neighbor keeps more than one in a
//! hundred units busy, the 99th percentile is that wait, whatever the bucket does. The first rate
//! keeps 0.4 % busy and has the bound.

use block::sched::{
    DirectionThrottle, GroupThrottle, PriorityConfig, RateLimit, SchedulerConfig, Scheduling,
    ThrottleConfig,
};
use time::Nanos;
use user_io::{Group, Scheduled, ScheduledConfig, SharedQueue};

use super::super::{BenchError, MeasuredInterval, Measurement, RunLength, Sink};
use super::harness::{Application, DirectHarness, Job};
use super::{BENCH, setup};

/// The drive of the paper with fewer dies, and fewer and smaller chunks: nearly full, overwritten
/// once.
const WRITTEN: &str = "[drive]\npreset = \"consumer-nvme\"\ndata = \"none\"\n\
    geometry = { channels = 4, pus = 2, chunks = 40, pages = 64 }\n\
    write_buffer = { kind = \"power-loss-protected\", size = \"2M\" }\n\
    ftl = { over_provisioning = 0.28 }\n\
    [precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";
/// The drive of the paper with all its dies: filled.
const FILLED: &str = "[drive]\npreset = \"consumer-nvme\"\ndata = \"none\"\n\
    geometry = { chunks = 24, pages = 32 }\nftl = { over_provisioning = 0.5 }\n\
    [precondition]\nfill = \"sequential\"\n";

/// Number of outstanding requests of each writer.
const WRITERS_DEPTH: u64 = 4;
/// Minimum ratio of the first writer's throughput to that of each other writer.
const BOOST_MIN: f64 = 2.0;
/// Minimum share of the total write throughput.
const TOTAL_FRACTION_MIN: f64 = 0.9;

/// Number of outstanding requests of the neighbor.
const NEIGHBOR_DEPTH: u64 = 1024;
/// Reads per second of the token bucket; the first rate has the bound.
const RATES: [u64; 3] = [2_000, 20_000, 100_000];
/// Maximum relative change of the 99th percentile.
const P99_SHIFT_MAX: f64 = 0.20;

/// Measures both.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    priorities(effort, sink)?;
    rates(effort, sink)
}

/// Queues between the writers and the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterQueues {
    Own,
    OthersShare,
    Classes,
}

fn priorities(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let time = effort.choose(Nanos::from_secs(4), Nanos::from_millis(200));
    let mut all = None;
    for (way, name) in [
        (WriterQueues::Own, "a queue each"),
        (WriterQueues::OthersShare, "the first has a queue, the others share one"),
        (WriterQueues::Classes, "one queue, the first in a better class"),
    ] {
        let counts = writers(way, time)?;
        let [first, others @ ..] = counts;
        let others = others.iter().sum::<u64>() as f64 / others.len() as f64;
        let per_sec = |count: f64| count / time.as_secs_f64();
        let case = format!("4 writers of 4 KB, QD {WRITERS_DEPTH}, {name}");
        let row =
            |metric, count| Measurement::new(BENCH, case.clone(), metric, per_sec(count), "1/s");
        let first_row =
            row("first_iops", first as f64).with_reference("each other", per_sec(others));
        sink.push(match way {
            WriterQueues::Own => first_row.within(0.1, per_sec(others)),
            WriterQueues::OthersShare | WriterQueues::Classes => {
                first_row.at_least(BOOST_MIN * per_sec(others))
            }
        })?;
        let sum = counts.iter().sum::<u64>() as f64;
        let of_own = *all.get_or_insert(sum);
        let sum_row = row("all_iops", sum).with_reference("a queue each", per_sec(of_own));
        sink.push(sum_row.at_least(TOTAL_FRACTION_MIN * per_sec(of_own)))?;
    }
    Ok(())
}

/// Returns the number of writes of each of four writers in `time`.
fn writers(way: WriterQueues, time: Nanos) -> Result<[u64; 4], BenchError> {
    let mut harness = DirectHarness::new(WRITTEN)?;
    let job = Job { writes: true, depth: WRITERS_DEPTH };
    let depth = WRITERS_DEPTH as u16;
    let scheduled = |queue, scheduler: SchedulerConfig, device_depth| {
        let scheduling = scheduler.into();
        let config = ScheduledConfig { scheduling, device_depth, ..ScheduledConfig::default() };
        Scheduled::new(queue, &config).map(SharedQueue::new).map_err(setup)
    };
    let mut writers = Vec::new();
    match way {
        WriterQueues::Own => {
            for seed in 1..=4 {
                writers.push(Application::new(harness.queue(depth)?, job, seed));
            }
        }
        WriterQueues::OthersShare => {
            writers.push(Application::new(harness.queue(depth)?, job, 1));
            let shared = scheduled(harness.queue(depth)?, SchedulerConfig::None, depth)?;
            writers.extend((2..=4).map(|seed| Application::new(shared.attach(), job, seed)));
        }
        WriterQueues::Classes => {
            let classes = vec![(Group(1), 0)];
            let scheduler =
                SchedulerConfig::Priority(PriorityConfig { classes, ..Default::default() });
            let shared = scheduled(harness.queue(depth)?, scheduler, depth)?;
            for seed in 1..=4 {
                let seat = shared.attach_group(Group(u16::from(seed == 1)));
                writers.push(Application::new(seat, job, seed));
            }
        }
    }
    harness.measure(&mut writers, MeasuredInterval { ramp: Nanos(time.0 / 4), time })?;
    let mut counts = [0; 4];
    for (count, writer) in counts.iter_mut().zip(&writers) {
        *count = writer.latency.count();
    }
    Ok(counts)
}

fn rates(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let time = effort.choose(Nanos::from_secs(2), Nanos::from_millis(100));
    let alone = readers(None, None, time)?;
    let p99 = |histogram: &workload::Histogram| histogram.percentile(99.0).as_micros_f64();
    let case = |what: &str| format!("a reader of 4 KB, QD 1, {what}");
    let base = p99(&alone.0);
    sink.push(Measurement::new(BENCH, case("alone"), "latency_p99", base, "us"))?;
    let row = |what: &str, value| {
        Measurement::new(BENCH, case(what), "latency_p99", value, "us")
            .with_reference("alone", base)
    };
    let beside = readers(Some(NEIGHBOR_DEPTH), None, time)?;
    sink.push(row("beside one at QD 1024", p99(&beside.0)))?;
    for (index, rate) in RATES.into_iter().enumerate() {
        let (reader, neighbour) = readers(Some(NEIGHBOR_DEPTH), Some(rate), time)?;
        let what = format!("beside one at QD 1024 with {rate} tokens a second");
        let moved = row(&what, p99(&reader));
        sink.push(if index == 0 { moved.within(P99_SHIFT_MAX, base) } else { moved })?;
        let got = neighbour.count() as f64 / time.as_secs_f64();
        let got = Measurement::new(BENCH, case(&what), "neighbour_iops", got, "1/s");
        sink.push(got.with_reference("tokens a second", rate as f64).within(0.02, rate as f64))?;
    }
    Ok(())
}

/// Returns the latencies of a reader, and of its neighbor if it has one.
fn readers(
    neighbour: Option<u64>,
    rate: Option<u64>,
    time: Nanos,
) -> Result<(workload::Histogram, workload::Histogram), BenchError> {
    let mut harness = DirectHarness::new(FILLED)?;
    let depth = NEIGHBOR_DEPTH as u16 + 1;
    let limits = rate.map(|per_sec| {
        let operations = Some(RateLimit { per_sec, burst: 1 });
        let read = DirectionThrottle { operations, bytes: None };
        let groups = vec![(Group(1), GroupThrottle { read, ..GroupThrottle::default() })];
        ThrottleConfig { sector_bytes: 4096, groups }
    });
    let scheduling = Scheduling { scheduler: SchedulerConfig::None, limits };
    let config = ScheduledConfig { scheduling, device_depth: depth, depth: 4096 };
    let shared = SharedQueue::new(Scheduled::new(harness.queue(depth)?, &config).map_err(setup)?);
    let job = Job { writes: false, depth: 1 };
    let mut all = vec![Application::new(shared.attach(), job, 1)];
    if let Some(depth) = neighbour {
        all.push(Application::new(shared.attach_group(Group(1)), Job { depth, ..job }, 2));
    }
    harness.measure(&mut all, MeasuredInterval { ramp: Nanos::from_millis(20), time })?;
    let mut latencies = all.into_iter().map(|application| application.latency);
    Ok((latencies.next().unwrap_or_default(), latencies.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_writers_do_the_same() {
        let time = Nanos::from_millis(20);
        for way in [WriterQueues::Own, WriterQueues::OthersShare, WriterQueues::Classes] {
            let counts = writers(way, time).unwrap();
            assert_eq!(counts, writers(way, time).unwrap(), "{way:?}");
            assert!(counts.iter().all(|count| *count > 0), "{way:?}: {counts:?}");
        }
    }
}
