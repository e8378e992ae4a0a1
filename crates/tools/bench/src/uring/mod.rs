//! Group `uring`: 4 KB random reads of a file, and of a loop device over it, through io_uring and
//! `raw` or the `mq` block layer. fio on the same file is interleaved in the same run.
//!
//! Sluice is measured with an owner that *sleeps* when idle, as fio does, and with one that
//! *busy-polls*. CPU time is user and system time of the complete process. A busy-polling owner
//! uses the complete CPU, so its CPU time per I/O is its time per I/O.
//!
//! No result has a bound: what is promised of files beside fio is promised of the library, and judged by the group
//! `direct`, part `file`. Rates are medians over rounds, with their spread.

mod fio;
pub(super) mod test_files;

use std::cell::RefCell;
use std::path::Path;

use ::mem::{Iova, SharedRegion};
use block::{BlockDevice, BlockLayer, BlockLayerConfig, Payload, Raw, Request};
use driver::{LowLevelDriver, Uring, UringConfig};
use event::{Parker, RealClock};
use rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use time::Nanos;

use self::fio::Fio;
use self::test_files::{LoopDevice, ScratchFile};
use super::{BenchError, Measurement, RunLength, Samples, Sink, interleaved};

const BENCH: &str = "uring";

/// Size of a read in bytes.
const BLOCK: u32 = 4096;

/// Cost of an I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// I/Os per second.
    pub(super) iops: f64,
    /// CPU time per I/O, in nanoseconds.
    pub(super) cpu_ns: f64,
}

/// Behavior of a device's owner when nothing makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopWait {
    Sleep,
    Spin,
}

/// Path to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverPath {
    Raw,
    Mq,
}

/// Sluice's variants in the order of measurement.
const OURS: [(DriverPath, LoopWait, &str); 4] = [
    (DriverPath::Raw, LoopWait::Sleep, "raw over uring, sleeping"),
    (DriverPath::Raw, LoopWait::Spin, "raw over uring, spinning"),
    (DriverPath::Mq, LoopWait::Sleep, "mq over uring, sleeping"),
    (DriverPath::Mq, LoopWait::Spin, "mq over uring, spinning"),
];

/// Measures the group.
///
/// # Errors
/// If fio is not installed, if the system refuses the file or a ring, or if the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let fio = Fio::find()?;
    let file = ScratchFile::new(effort.choose(1 << 30, 16 << 20))?;
    for depth in [1, 32] {
        measure(effort, &fio, ("file", file.path()), depth, effort.choose(5, 1), sink)?;
    }
    match LoopDevice::new(file.path()) {
        Ok(device) => {
            for depth in [1, 32] {
                let rounds = effort.choose(3, 1);
                measure(effort, &fio, ("loop device", device.path()), depth, rounds, sink)?;
            }
        }
        Err(why) => eprintln!("no loop device here, which is not measured: {why}"),
    }
    Ok(())
}

/// Measures all variants of reading `path`, interleaved.
fn measure(
    effort: RunLength,
    fio: &Fio,
    (what, path): (&str, &Path),
    depth: u16,
    rounds: usize,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let runtime = effort.choose(Nanos::from_millis(1000), Nanos::from_millis(100));
    let config = UringConfig { depth, read_only: true, ..UringConfig::default() };
    // CPU time per I/O of each round, in the order of the candidates; the first round is for
    // warm-up.
    let cpu: [RefCell<Vec<f64>>; 6] = Default::default();
    let note = |which: usize, cost: Cost| {
        cpu[which].borrow_mut().push(cost.cpu_ns);
        cost.iops
    };
    let ours = |which: usize| {
        let (way, wait, _) = OURS[which];
        let mut device = Uring::open(path, config)?;
        let cost = match way {
            DriverPath::Raw => {
                let limits = device.limits();
                let queue = device.take_queue(0).ok_or(BenchError::Thread("a queue"))?;
                closed_loop(&mut Raw::new(queue, limits), depth, runtime, wait)
            }
            DriverPath::Mq => closed_loop(&mut mq(&mut device)?, depth, runtime, wait),
        };
        Ok::<f64, BenchError>(note(which, cost?))
    };
    let theirs = |which: usize, engine| {
        fio.random_reads(path, engine, BLOCK, depth, runtime).map(|cost| note(which, cost))
    };
    let [raw_sleeping, raw_spinning, mq_sleeping, mq_spinning, libaio, io_uring] = interleaved(
        rounds,
        [
            &mut || ours(0),
            &mut || ours(1),
            &mut || ours(2),
            &mut || ours(3),
            &mut || theirs(4, "libaio"),
            &mut || theirs(5, "io_uring"),
        ],
    )?;
    let mut costs = Vec::with_capacity(cpu.len());
    for rounds in cpu {
        let rounds = rounds.into_inner().split_off(1);
        let case = format!("{what}, QD {depth}");
        let samples = Samples::new(rounds);
        costs.push(samples.ok_or(BenchError::NoValue { case, metric: "cpu_per_io" })?.median());
    }
    let rates = [&raw_sleeping, &raw_spinning, &mq_sleeping, &mq_spinning];
    for (which, iops) in rates.into_iter().enumerate() {
        let (_, _, ours) = OURS[which];
        let case = format!("{ours}, {what}, 4 KB random reads, QD {depth}");
        for (other, name, fio_iops) in [(4, "fio libaio", &libaio), (5, "fio io_uring", &io_uring)]
        {
            let rate = Measurement::median(BENCH, &case, "iops", iops, "1/s");
            sink.push(rate.with_reference(name, fio_iops.median()))?;
            let cpu = Measurement::new(BENCH, &case, "cpu_per_io", costs[which], "ns");
            sink.push(cpu.with_reference(name, costs[other]))?;
        }
        let spread = iops.spread() * 100.0;
        sink.push(Measurement::new(BENCH, &case, "iops_spread", spread, "%"))?;
    }
    Ok(())
}

/// Returns `mq` with one core over the device, with merging and without a scheduler.
fn mq(device: &mut Uring) -> Result<block::Queue<driver::UringQueue>, BenchError> {
    let (_, queues) = BlockLayer::open(device, &BlockLayerConfig::default())?;
    queues.into_iter().next().ok_or(BenchError::Thread("a queue"))
}

/// Reads at random with `depth` requests in flight for `runtime`, with or without a block layer.
pub(super) fn closed_loop<D: BlockDevice>(
    device: &mut D,
    depth: u16,
    runtime: Nanos,
    wait: LoopWait,
) -> Result<Cost, BenchError> {
    let limits = *device.limits();
    let sectors = (BLOCK / limits.sector_bytes).max(1);
    let blocks = limits.sectors / u64::from(sectors);
    let memory = SharedRegion::anonymous(usize::from(depth) * BLOCK as usize)?;
    let at = device.memory().register(&memory)?;
    let parker = Parker::new()?;
    if wait == LoopWait::Sleep {
        device.set_waker(parker.waker());
    }
    let mut rng = Rng::new(1);
    let mut next = |slot: u64| {
        let data = Payload::Contiguous(Iova(at.0 + slot * u64::from(BLOCK)));
        Request::read(rng.below(blocks) * u64::from(sectors), sectors, data, slot)
    };
    let clock = RealClock::start();
    let (mut free, mut done): (Vec<u64>, u64) = ((0..depth.into()).collect(), 0);
    // Measured from when every slot has been used once, which pins its memory.
    let mut begin = None;
    loop {
        let now = clock.now();
        if begin.is_none() && done >= u64::from(depth) {
            begin = Some((now, cpu_time(), done));
        }
        let over = begin.is_some_and(|(start, ..)| now.since(start) >= runtime);
        if let Some((start, cpu, before)) = begin
            && over
            && free.len() == usize::from(depth)
        {
            let (ios, used) = ((done - before) as f64, cpu_time().since(cpu).0 as f64);
            return Ok(Cost { iops: ios * 1e9 / now.since(start).0 as f64, cpu_ns: used / ios });
        }
        while !over && let Some(slot) = free.pop() {
            if device.submit(now, next(slot)).is_err() {
                free.push(slot);
                break;
            }
        }
        let mut moved = device.poll(now);
        if !moved && wait == LoopWait::Sleep {
            parker.prepare();
            if device.poll(clock.now()) {
                parker.unpark();
                moved = true;
            } else {
                parker.park(&[], Nanos::from_millis(1000))?;
            }
        }
        if !moved && wait == LoopWait::Spin {
            std::hint::spin_loop();
        }
        while let Some(completion) = device.reap() {
            if !completion.status.is_success() {
                return Err(BenchError::Status(completion.status));
            }
            free.push(completion.tag);
            done += 1;
        }
    }
}

/// Returns the CPU time of the process so far: user and system, all threads.
pub(super) fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use driver::Null;

    use super::*;

    #[test]
    fn a_closed_loop_measures_any_device() {
        let mut null = Null::default();
        let limits = null.limits();
        let mut raw = Raw::new(null.take_queue(0).unwrap(), limits);
        for wait in [LoopWait::Sleep, LoopWait::Spin] {
            let cost = closed_loop(&mut raw, 4, Nanos::from_millis(20), wait).unwrap();
            assert!(cost.iops > 1000.0 && cost.cpu_ns > 0.0 && cost.cpu_ns.is_finite(), "{cost:?}");
        }
    }

    #[test]
    fn a_file_is_read_through_the_whole_stack() {
        let file = ScratchFile::new(1 << 20).unwrap();
        for (depth, wait) in [(1, LoopWait::Sleep), (8, LoopWait::Sleep), (8, LoopWait::Spin)] {
            let config = UringConfig { depth, read_only: true, ..UringConfig::default() };
            let mut device = Uring::open(file.path(), config).unwrap();
            let limits = device.limits();
            let mut raw = Raw::new(device.take_queue(0).unwrap(), limits);
            let cost = closed_loop(&mut raw, depth, Nanos::from_millis(50), wait).unwrap();
            assert!(cost.iops > 10.0, "{cost:?}");
            assert!(raw.queue().stats().completions > 0);

            let mut device = Uring::open(file.path(), config).unwrap();
            let mut queue = mq(&mut device).unwrap();
            let cost = closed_loop(&mut queue, depth, Nanos::from_millis(50), wait).unwrap();
            assert!(cost.iops > 10.0, "{cost:?}");
            assert!(queue.dispatch_stats().completed.get() > 0);
        }
    }
}
