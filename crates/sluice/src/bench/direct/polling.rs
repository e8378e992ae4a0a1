//! Polling periods (NVMeDirect figure 3): a thread looks for completions every so often, and an application
//! that it wakes keeps 4, 8 or 16 KB reads outstanding; how much of the IOPS is left against looking all the
//! time, and how much of a core the thread uses.
//!
//! The drive answers as the paper's would (2.2 GB/s, `consumer-nvme`; 80 us), without media, so that it keeps
//! up in real time; how late it was is a row of its own. Large reads are bound by its bandwidth: then there
//! is time in which nothing needs to be looked for, the time of all that is outstanding less one latency.
//!
//! # Who is where
//!
//! The drive's thread has a core of its own. The polling thread and the application share the other: while
//! the application sleeps until it is woken, that costs nothing, but a thread that looks *all* the time keeps
//! it from running; the reference is therefore an application that looks itself (`Wait::Poll`), which is
//! polling without delay and without a second thread.
//!
//! # What the timers allow
//!
//! A sleep of p takes p + e; e is measured by the first rows, of a thread that asks to be woken in time, as
//! the polling thread does, and of one that does not. No more than all that is outstanding can end in
//! between, so that at most `depth * time per read / (p + e)` of the IOPS can be left: nobody with a fixed
//! period is above that, and it is the reference of their rows `iops_left`.
//!
//! The dynamic period chooses p. The drive has work all the time as long as a sleep, and the latency of a
//! read alone on top of it, take no longer than all that is outstanding; the thread aims at what is left of
//! that time, a third to three fifths of it ([`direct`], `pace`). A sleep costs processor time, however long it is:
//! arming the timer, its interrupt and two switches; that is measured by the first rows, too. So
//! where a latency and e take no more than two thirds of the time of all that is outstanding, everything
//! must be left, less 5 percent; and where, besides, the sleeps that this takes cost no more than
//! seven tenths of a quarter of a core, which leaves the rest for looking, for less than a quarter: the rows
//! with a bound. Elsewhere there is nothing to be slept through, or nothing to be won by it, and no bound. Both
//! sides of the conditions are the drive's closed form and the first rows: a run that reaches less than 90
//! percent of the closed form fails by itself, so that a slow reference makes nothing pass.

use std::path::Path;
use std::time::Duration;

use clock::{Nanos, RealClock};
use direct::{
    CompletionPoller, Handle, IoDevice, PollPeriod, PollerConfig, QueueConfig, SharedQueue,
    WaitMode,
};

use super::super::{
    AllowedCpus, BenchError, Measurement, Quantiles, RunLength, Samples, Sink, interleave,
};
use super::load::{Load, LoadInterval};
use super::{BENCH, setup};
use crate::open::{DriveStatsReader, OpenOptions, open_scenario};
use crate::scenario::Scenario;

/// The paper's drive as far as a host can tell by large reads.
const DRIVE: &str =
    "[drive]\npreset = \"nvme-null\"\nnull = { latency = \"80us\", bandwidth = \"2.2GB/s\" }\n";
/// Bytes of a read.
const SIZES: [u32; 3] = [4096, 8192, 16_384];
/// Reads outstanding.
const DEPTHS: [usize; 2] = [32, 128];
/// Fixed periods.
const PERIODS_US: [u64; 5] = [10, 50, 100, 200, 400];
/// The dynamic period leaves this much of the IOPS where the timers allow it (as much more, and the
/// reference was disturbed),
const IOPS_FRACTION_MIN: f64 = 0.95;
/// and uses less than this of a core, in percent.
const CPU_PERCENT_MAX: f64 = 25.0;

/// Of which so much may be the sleeps themselves; the rest is for looking.
const SLEEP_FRACTION_MAX: f64 = 0.7;

/// Looking all the time reaches this much of the closed form, or others had the cores, and the run says
/// nothing.
const UNDISTURBED_MIN: f64 = 0.9;

/// Reads per second of the drive: bound by its bandwidth, or by all that is outstanding in the time of one.
fn closed_form(depth: usize, size: u32) -> f64 {
    let transfer = f64::from(size) / 2.2e9;
    (1.0 / transfer).min(depth as f64 / (80e-6 + transfer))
}

/// Whether everything can be kept by who sleeps `late` longer than asked for: a read takes 80 us and its
/// transfer alone.
fn is_timer_fast_enough(depth: usize, size: u32, late: Nanos) -> bool {
    let window = depth as f64 / closed_form(depth, size);
    let latency = 80e-6 + f64::from(size) / 2.2e9;
    latency + late.as_secs_f64() <= window * 2.0 / 3.0
}

/// Whether the sleeps that this takes, which cost `each` of processor time, are cheap enough.
fn is_cpu_sufficient(depth: usize, size: u32, each: Nanos) -> bool {
    let window = depth as f64 / closed_form(depth, size);
    // As the polling thread has it: all but a latency and a sixteenth, a third to three fifths.
    let latency = 80e-6 + f64::from(size) / 2.2e9;
    let period = (window * 15.0 / 16.0 - latency).clamp(window / 3.0, window * 0.6);
    each.as_secs_f64() <= period * SLEEP_FRACTION_MAX * CPU_PERCENT_MAX / 100.0
}

/// Who looks for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollingThread {
    Application,
    Thread(PollPeriod),
}

/// What a stretch was like, and the CPU time of the thread that looked.
struct PolledInterval {
    interval: LoadInterval,
    thread_cpu: Nanos,
    sleeps: u64,
}

/// Measures all sizes.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let cores = AllowedCpus::allowed();
    let count = effort.choose(400, 20);
    let others = cores.on_first(|| sleeps(count))?;
    let exact = cores.on_first(|| {
        clock::disable_timer_slack();
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
            let rows = cores.on_first(|| measure(effort, &device, (*depth, size), &exact))?;
            rows.into_iter().try_for_each(|row| sink.push(row))?;
        }
    }
    push_drive_lateness(&view, cores.has_two(), sink)
}

/// What sleeps are like: how much longer than asked for they take, and the processor time of one.
struct Sleeps {
    late: Quantiles,
    cpu: Nanos,
}

fn sleeps(count: usize) -> Result<Sleeps, BenchError> {
    let (clock, asked) = (RealClock::start(), Nanos::from_micros(50));
    let before = clock::thread_cpu_time();
    let late = (0..count).map(|_| {
        let begin = clock.now();
        std::thread::sleep(Duration::from_nanos(asked.0));
        clock.now().since(begin + asked)
    });
    let late = Quantiles::from_durations(late.collect()).ok_or(BenchError::Thread("a sleeper"))?;
    let cpu = Nanos(clock::thread_cpu_time().since(before).0 / count.max(1) as u64);
    Ok(Sleeps { late, cpu })
}

/// How late the drive was over all (rule R6).
fn push_drive_lateness(
    view: &DriveStatsReader,
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
    // It sleeps as long as it likes.
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
        // All that is outstanding ends in this time, at the rate of the reference.
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

/// Keeps `depth` reads outstanding for `time`, somebody looking for completions.
fn measure_polling(
    device: &IoDevice,
    depth: usize,
    size: u32,
    looks: PollingThread,
    time: Nanos,
) -> Result<PolledInterval, BenchError> {
    let queue =
        device.create_queue(QueueConfig { depth: 256, interrupts: false }).map_err(setup)?;
    let mut load = Load::new(device, (size, u64::MAX), depth, false, 1)?;
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
    // It notes its time when it goes to sleep, at the latest.
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
        let mut sink = Sink::new(&mut out, crate::bench::Format::Json);
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
