//! Polling periods (\[NVMeDirect16\], figure 3). A thread polls for completions periodically and
//! wakes an application with outstanding reads of 4, 8 or 16 KB. The rows are the IOPS relative to
//! continuous polling, and the thread's share of a core.
//!
//! The drive responds as the paper's drive (2.2 GB/s, `consumer-nvme`; 80 us), without media, so
//! that it keeps up in real time; its lateness is a row of its own. Large reads are limited by the
//! drive's bandwidth. Polling is then unnecessary for the time of all outstanding reads minus one
//! latency.
//!
//! # Threads and cores
//!
//! The drive's thread has a core of its own. The polling thread and the application share the other
//! core. Sharing is free while the application sleeps, but a thread that polls *continuously*
//! prevents it from running. The reference is therefore an application that polls itself
//! (`Wait::Poll`), without delay and without a second thread.
//!
//! # Limits of the timers
//!
//! A sleep of p takes p + e. The first rows measure e, for a thread that requests precise wake-ups,
//! as the polling thread does, and for one that does not. At most all outstanding reads can
//! complete during a sleep, so at most `depth * time per read / (p + e)` of the IOPS can be
//! achieved. A fixed period cannot exceed this limit, which is the reference of its rows
//! `iops_left`.
//!
//! The dynamic period chooses p. The drive is always busy if a sleep and the latency of a single
//! read together take no longer than all outstanding reads. The thread aims at the remainder of
//! that time, a third to three fifths of it ([`user_io`], `pace`). A sleep costs CPU time
//! independent of its length: arming the timer, its interrupt and two context switches. The first
//! rows measure this cost, too.
//!
//! There are two conditions. If a latency and e take at most two thirds of the time of all
//! outstanding reads, all IOPS must be achieved, less 5 percent. If, in addition, the required
//! sleeps cost at most seven tenths of a quarter of a core, the thread must use less than a quarter
//! of a core. Only rows that satisfy the conditions have bounds; for the others, sleeping is
//! impossible or has no benefit. The conditions depend only on the drive's closed form and on the
//! first rows. A run that reaches less than 90 percent of the closed form fails, so a slow
//! reference cannot make a row pass.

use std::path::Path;
use std::time::Duration;

use event::{AllowedCpus, RealClock};
use open::{DriveControl, OpenOptions, open_scenario};
use scenario::Scenario;
use time::Nanos;
use user_io::{
    CompletionPoller, Handle, IoDevice, PollPeriod, PollerConfig, QueueConfig, SharedQueue,
    WaitMode,
};

use super::super::{
    BenchError, Measurement, Quantiles, RunLength, Samples, Sink, interleave, on_first_cpu,
};
use super::load::{Load, LoadArea, LoadInterval};
use super::{BENCH, setup};

/// The drive of the paper, as far as large reads show it.
const DRIVE: &str =
    "[drive]\npreset = \"nvme-null\"\nnull = { latency = \"80us\", bandwidth = \"2.2GB/s\" }\n";
/// Sizes of a read in bytes.
const SIZES: [u32; 3] = [4096, 8192, 16_384];
/// Numbers of outstanding reads.
const DEPTHS: [usize; 2] = [32, 128];
/// Fixed periods.
const PERIODS_US: [u64; 5] = [10, 50, 100, 200, 400];
/// Minimum share of the IOPS with the dynamic period, if the timers permit it. A share that exceeds
/// 1 by as much means that the reference was disturbed.
const IOPS_FRACTION_MIN: f64 = 0.95;
/// Maximum CPU time with the dynamic period, in percent of a core.
const CPU_PERCENT_MAX: f64 = 25.0;

/// Maximum share of that CPU time for sleeps; the rest is for polling.
const SLEEP_FRACTION_MAX: f64 = 0.7;

/// Minimum share of the closed form that continuous polling must reach. Below it, other programs
/// used the cores, and the run is invalid.
const UNDISTURBED_MIN: f64 = 0.9;

/// Returns the drive's reads per second, limited by its bandwidth or by the outstanding reads per
/// latency.
fn closed_form(depth: usize, size: u32) -> f64 {
    let transfer = f64::from(size) / 2.2e9;
    (1.0 / transfer).min(depth as f64 / (80e-6 + transfer))
}

/// Returns whether a thread whose sleeps overshoot by `late` can achieve all IOPS. A read takes 80
/// us and its transfer.
fn is_timer_fast_enough(depth: usize, size: u32, late: Nanos) -> bool {
    let window = depth as f64 / closed_form(depth, size);
    let latency = 80e-6 + f64::from(size) / 2.2e9;
    latency + late.as_secs_f64() <= window * 2.0 / 3.0
}

/// Returns whether the required sleeps, at `each` of CPU time, are cheap enough.
fn is_cpu_sufficient(depth: usize, size: u32, each: Nanos) -> bool {
    let window = depth as f64 / closed_form(depth, size);
    // As in the polling thread: all but a latency and a sixteenth, a third to three fifths.
    let latency = 80e-6 + f64::from(size) / 2.2e9;
    let period = (window * 15.0 / 16.0 - latency).clamp(window / 3.0, window * 0.6);
    each.as_secs_f64() <= period * SLEEP_FRACTION_MAX * CPU_PERCENT_MAX / 100.0
}

/// The thread that polls for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollingThread {
    Application,
    Thread(PollPeriod),
}

/// Measurements of an interval, and the CPU time of the polling thread.
struct PolledInterval {
    interval: LoadInterval,
    thread_cpu: Nanos,
    sleeps: u64,
}

/// Measures all sizes.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let cores = AllowedCpus::allowed();
    let count = effort.choose(400, 20);
    let others = on_first_cpu(&cores, || sleeps(count))?;
    let exact = on_first_cpu(&cores, || {
        event::disable_timer_slack();
        sleeps(count)
    })?;
    for (case, Sleeps { late, cpu }) in [
        ("a sleep of 50 us", &exact),
        ("a sleep of 50 us, of a thread that asks for nothing", &others),
    ] {
        let row = |metric, value| Measurement::new(BENCH, case, metric, value, "us");
        sink.push(row("late_p50", late.p50.as_micros_f64()))?;
        sink.push(row("late_p99", late.p99.as_micros_f64()))?;
        sink.push(row("cpu", cpu.as_micros_f64()))?;
    }
    let scenario = Scenario::parse(Path::new("bench"), DRIVE).map_err(setup)?;
    let options = OpenOptions { drive_core: Some(1), ..OpenOptions::default() };
    let (device, view) = open_scenario(&scenario, None, &options).map_err(setup)?;
    for depth in effort.choose(&DEPTHS[..], &DEPTHS[..1]) {
        for size in SIZES {
            let rows = on_first_cpu(&cores, || measure(effort, &device, (*depth, size), &exact))?;
            rows.into_iter().try_for_each(|row| sink.push(row))?;
        }
    }
    push_drive_lateness(&view, cores.has_two(), sink)
}

/// Properties of sleeps: their overshoot, and the CPU time of one.
struct Sleeps {
    late: Quantiles,
    cpu: Nanos,
}

fn sleeps(count: usize) -> Result<Sleeps, BenchError> {
    let (clock, asked) = (RealClock::start(), Nanos::from_micros(50));
    let before = event::thread_cpu_time();
    let late = (0..count).map(|_| {
        let begin = clock.now();
        std::thread::sleep(Duration::from_nanos(asked.0));
        clock.now().since(begin + asked)
    });
    let late = Quantiles::from_durations(late.collect()).ok_or(BenchError::Thread("a sleeper"))?;
    let cpu = Nanos(event::thread_cpu_time().since(before).0 / count.max(1) as u64);
    Ok(Sleeps { late, cpu })
}

/// Writes the lateness of the drive over the complete run (ARCHITECTURE.md, R6).
fn push_drive_lateness(
    view: &DriveControl,
    apart: bool,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let Some(stats) = view.stats() else { return Err(BenchError::Thread("the drive")) };
    let case = match apart {
        true => "the drive, on a core of its own",
        false => "the drive, on the only core",
    };
    for (metric, late) in
        [("late_p50", stats.late.p50), ("late_p99", stats.late.p99), ("late_max", stats.late.max)]
    {
        sink.push(Measurement::new(BENCH, case, metric, late.as_micros_f64(), "us"))?;
    }
    Ok(())
}

fn measure(
    effort: RunLength,
    device: &IoDevice,
    (depth, size): (usize, u32),
    sleeps: &Sleeps,
) -> Result<Vec<Measurement>, BenchError> {
    let late = sleeps.late.p50;
    let time = effort.choose(Nanos::from_millis(300), Nanos::from_millis(10));
    let dynamic = PollPeriod::Dynamic { wakeup_latency: late, sleep_max: Nanos::from_millis(1) };
    let mut ways = vec![
        (PollingThread::Application, "the application looks".to_owned(), Nanos::ZERO),
        (
            PollingThread::Thread(PollPeriod::Busy),
            "a thread looks all the time, same core".into(),
            Nanos::ZERO,
        ),
    ];
    for us in effort.choose(&PERIODS_US[..], &PERIODS_US[..2]) {
        let period = Nanos::from_micros(*us);
        ways.push((
            PollingThread::Thread(PollPeriod::Fixed(period)),
            format!("every {us} us"),
            period + late,
        ));
    }
    // The thread chooses its period.
    ways.push((PollingThread::Thread(dynamic), "dynamic".into(), Nanos::ZERO));
    let said = interleave(effort.choose(3, 1), ways.len(), |which| {
        measure_polling(device, depth, size, ways[which].0, time)
    })?;
    let mut rows = Vec::new();
    let (mut all_iops, mut all_cpu) = (None, None);
    for ((looks, name, sleep), said) in ways.into_iter().zip(said) {
        let case = format!("{} KB reads, QD {depth}, {name}", size / 1024);
        let median = |metric, value: &dyn Fn(&PolledInterval) -> f64| {
            let none = BenchError::NoValue { case: case.clone(), metric };
            Samples::new(said.iter().map(value).collect()).map(|s| s.median()).ok_or(none)
        };
        let iops = median("iops", &|l| l.interval.iops())?;
        let share =
            |cpu: Nanos, l: &PolledInterval| 100.0 * cpu.0 as f64 / l.interval.time.0 as f64;
        let thread = median("thread_cpu", &|l| share(l.thread_cpu, l))?;
        let host = median("host_cpu", &|l| share(l.thread_cpu + l.interval.cpu, l))?;
        let naps = median("naps", &|l| l.sleeps as f64 / l.interval.time.as_secs_f64())?;
        let of_all = *all_iops.get_or_insert(iops);
        let of_cpu = *all_cpu.get_or_insert(host);
        // All outstanding reads complete in this time at the rate of the reference.
        let window = depth as f64 * 1e9 / of_all;
        let most = (window / sleep.0.max(1) as f64).min(1.0);
        let row = |metric, value, unit| Measurement::new(BENCH, case.clone(), metric, value, unit);
        let left = 100.0 * iops / of_all;
        let dynamic = matches!(looks, PollingThread::Thread(PollPeriod::Dynamic { .. }));
        let judged = dynamic && is_timer_fast_enough(depth, size, late);
        let cheap = judged && is_cpu_sufficient(depth, size, sleeps.cpu);
        let all = row("iops", iops, "1/s");
        rows.push(if looks == PollingThread::Application {
            let closed = closed_form(depth, size);
            all.with_reference("closed form of the drive", closed)
                .at_least(UNDISTURBED_MIN * closed)
        } else {
            all.with_reference("looking all the time", of_all)
        });
        let left =
            row("iops_left", left, "%").with_reference("what the timer allows", 100.0 * most);
        rows.push(if judged { left.within(1.0 - IOPS_FRACTION_MIN, 100.0) } else { left });
        if looks != PollingThread::Application {
            let cpu = row("thread_cpu", thread, "%").with_reference("a core", 100.0);
            rows.push(if cheap { cpu.at_most(CPU_PERCENT_MAX) } else { cpu });
            rows.push(row("naps", naps, "1/s"));
            rows.push(row("sleeping_alone", naps * sleeps.cpu.as_secs_f64() * 100.0, "%"));
        }
        rows.push(row("host_cpu", host, "%").with_reference("looking all the time", of_cpu));
    }
    Ok(rows)
}

/// Keeps `depth` reads outstanding for `time`, with the given polling thread.
fn measure_polling(
    device: &IoDevice,
    depth: usize,
    size: u32,
    looks: PollingThread,
    time: Nanos,
) -> Result<PolledInterval, BenchError> {
    let queue =
        device.create_queue(QueueConfig { depth: 256, interrupts: false }).map_err(setup)?;
    let mut load =
        Load::new(device, LoadArea { block_bytes: size, bytes: u64::MAX }, depth, false, 1)?;
    let PollingThread::Thread(period) = looks else {
        let mut handle = Handle::new(device, queue).map_err(setup)?;
        let stretch = load.run_for(&mut handle, time)?;
        return Ok(PolledInterval { interval: stretch, thread_cpu: Nanos::ZERO, sleeps: 0 });
    };
    let shared = SharedQueue::new(queue);
    let poller = CompletionPoller::start(device.clock(), PollerConfig { period }).map_err(setup)?;
    poller.watch(&shared);
    let mut handle = Handle::new(device, shared.attach()).map_err(setup)?;
    handle.set_wait(WaitMode::Interrupt).map_err(setup)?;
    let stretch = load.run_for(&mut handle, time)?;
    // The thread records its time when it goes to sleep, at the latest.
    while shared.outstanding() > 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(2));
    let stats = poller.stats();
    poller.unwatch(&shared);
    Ok(PolledInterval { interval: stretch, thread_cpu: stats.cpu_time, sleeps: stats.sleeps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_period_is_measured_beside_looking_all_the_time() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, crate::Format::Json);
        run(RunLength::Quick, &mut sink).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!(count("\"iops\""), 3 * 5, "{text}");
        assert_eq!((count("\"iops_left\""), count("\"thread_cpu\"")), (15, 12), "{text}");
        assert_eq!(count("a sleep of 50 us"), 6, "{text}");
        assert_eq!(count("the drive, on "), 3, "{text}");
    }

    #[test]
    fn there_is_a_bound_where_there_is_time_to_sleep() {
        let late = Nanos::from_micros(10);
        let judged = |late| {
            let all = DEPTHS.iter().flat_map(|depth| SIZES.map(|size| (*depth, size)));
            all.filter(|(depth, size)| is_timer_fast_enough(*depth, *size, late))
                .collect::<Vec<_>>()
        };
        let deep = [(128, 4096), (128, 8192), (128, 16_384)];
        assert_eq!(judged(late), [&[(32, 16_384)], &deep[..]].concat());
        assert_eq!(
            judged(Nanos::from_micros(60)),
            [(32, 16_384), (128, 4096), (128, 8192), (128, 16_384)]
        );
        assert_eq!(judged(Nanos::from_micros(500)), [(128, 16_384)]);
        assert_eq!(judged(Nanos::from_millis(1)), []);
        let cheap = |us| {
            let each = Nanos::from_micros(us);
            let all = DEPTHS.iter().flat_map(|depth| SIZES.map(|size| (*depth, size)));
            all.filter(|(depth, size)| is_cpu_sufficient(*depth, *size, each)).collect::<Vec<_>>()
        };
        assert_eq!(cheap(20), [&[(32, 16_384)], &deep[..]].concat());
        assert_eq!(cheap(30), [(128, 8192), (128, 16_384)]);
    }
}
