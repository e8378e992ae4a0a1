//! `sluice bench block|hiops --device WHAT`: overhead of the block layer and of each completion
//! strategy on a device of this machine.
//!
//! The device is any target: a controller (`vfio:ADDRESS`), a namespace through the kernel's driver
//! (`/dev/ng0n1`), a file or block device, or a scenario's drive. The load is 4 KB random reads;
//! nothing is written. `block` measures one owner of a queue, sleeping and busy-polling, on *raw*
//! and under the *mq* block layer ([SYSTOR13 §5] compares layers with *raw*). `hiops` measures
//! waiting threads by strategy (\[HIOPS14\], figure 9). CPU time is that of the complete process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::completion::{Blocking, BlockingConfig, InterruptSource, Strategy, StripeMember};
use block::{BlockLayer, BlockLayerConfig, Raw};
use driver::{LowLevelDriver, Passthrough, Uring, UringConfig};
use event::RealClock;
use open::{OpenOptions, Target, TargetOpenError, open_target};
use rng::Rng;
use time::Nanos;
use user_io::{DirectError, QueueConfig};

use super::uring::{Cost, LoopWait, closed_loop, cpu_time};
use super::{BenchError, Measurement, RunLength, Sink};

/// Size of a read in bytes.
const BLOCK: u32 = 4096;
/// Number of waiting threads.
const THREADS: u16 = 4;
/// Poll interval of polling strategies.
const INTERVAL: Nanos = Nanos::from_micros(50);

/// Action on a device's driver after it was opened.
trait DeviceAction {
    /// Result of the action.
    type Result;

    /// Returns whether the action needs interrupts.
    fn needs_interrupts(&self) -> bool;

    fn run<D>(self, driver: &mut D) -> Result<Self::Result, BenchError>
    where
        D: LowLevelDriver,
        D::Queue: 'static;
}

/// Opens the target `what` as a driver with a queue of `depth` tags.
fn with_device<U: DeviceAction>(
    what: &str,
    depth: u16,
    action: U,
) -> Result<U::Result, BenchError> {
    let target: Target = what.parse()?;
    if let Target::File(path) = &target {
        let config = UringConfig { depth, read_only: true, ..UringConfig::default() };
        return match Passthrough::is_nvme_char_device(path) {
            true => action.run(&mut Passthrough::open(path, config)?),
            false => action.run(&mut Uring::open(path, config)?),
        };
    }
    let device = open_target(&target, &OpenOptions::default())?;
    // An action that needs interrupts is refused on a device without them.
    let interrupts = action.needs_interrupts() || device.has_interrupts();
    let config = QueueConfig { depth: depth.saturating_add(1), interrupts };
    let mut queues = device.queue_factory(1, config).map_err(open::TargetOpenError::from)?;
    action.run(&mut queues)
}

/// Returns a measurement, or `None` with a message if it needs interrupts that the device does not
/// have.
fn if_supported<T>(measured: Result<T, BenchError>) -> Result<Option<T>, BenchError> {
    match measured {
        Err(BenchError::Open(TargetOpenError::Device(
            error @ DirectError::NoInterrupts { .. },
        ))) => {
            eprintln!("not measured: {error}");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// One owner of a queue.
struct PolledLoop {
    mq: bool,
    wait: LoopWait,
    depth: u16,
    runtime: Nanos,
}

impl DeviceAction for PolledLoop {
    type Result = Cost;

    fn needs_interrupts(&self) -> bool {
        self.wait == LoopWait::Sleep
    }

    fn run<D>(self, driver: &mut D) -> Result<Cost, BenchError>
    where
        D: LowLevelDriver,
        D::Queue: 'static,
    {
        let PolledLoop { mq, wait, depth, runtime } = self;
        if mq {
            let config =
                BlockLayerConfig { queue_depth: depth.into(), ..BlockLayerConfig::default() };
            let (_layer, queues) = BlockLayer::open(driver, &config)?;
            let mut queue = queues.into_iter().next().ok_or(BenchError::Thread("a queue"))?;
            return closed_loop(&mut queue, depth, runtime, wait);
        }
        let limits = driver.limits();
        let queue = driver.take_queue(0).ok_or(BenchError::Thread("a queue"))?;
        closed_loop(&mut Raw::new(queue, limits), depth, runtime, wait)
    }
}

/// Measures the cost of the block layer on the device.
///
/// # Errors
/// If the device cannot be opened or read, or if the output fails.
pub(super) fn block(what: &str, effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let runtime = effort.choose(Nanos::from_millis(2000), Nanos::from_millis(100));
    for depth in [1, 8] {
        for (wait, how) in [(LoopWait::Sleep, "sleeping"), (LoopWait::Spin, "spinning")] {
            let measure = |mq| with_device(what, depth, PolledLoop { mq, wait, depth, runtime });
            let Some((raw, mq)) =
                if_supported(measure(false).and_then(|raw| Ok((raw, measure(true)?))))?
            else {
                continue;
            };
            let case =
                |way: &str| format!("{way} over {what}, {how}, 4 KB random reads, QD {depth}");
            let of = |way, metric, value, unit| {
                Measurement::new("block", case(way), metric, value, unit)
            };
            sink.push(of("raw", "iops", raw.iops, "1/s"))?;
            sink.push(of("raw", "cpu_per_io", raw.cpu_ns, "ns"))?;
            sink.push(of("mq", "iops", mq.iops, "1/s").with_reference("raw", raw.iops))?;
            sink.push(of("mq", "cpu_per_io", mq.cpu_ns, "ns").with_reference("raw", raw.cpu_ns))?;
        }
    }
    Ok(())
}

/// Threads that wait for their reads.
struct BlockingThreads {
    strategy: Strategy,
    runtime: Nanos,
}

impl DeviceAction for BlockingThreads {
    type Result = Cost;

    fn needs_interrupts(&self) -> bool {
        self.strategy.needs_interrupts()
    }

    fn run<D>(self, driver: &mut D) -> Result<Cost, BenchError>
    where
        D: LowLevelDriver,
        D::Queue: 'static,
    {
        let config = BlockingConfig {
            threads: THREADS,
            request_bytes: BLOCK.max(driver.limits().sector_bytes),
            strategy: self.strategy,
            ..BlockingConfig::default()
        };
        let (blocking, queues) =
            Blocking::open(StripeMember::take_all(driver), InterruptSource::PerQueue, &config)?;
        let sectors = (BLOCK / blocking.sector_bytes()).max(1);
        let places = blocking.striped().sectors() / u64::from(sectors);
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..).zip(queues).map(|(seed, queue)| {
            let stop = stop.clone();
            std::thread::spawn(move || -> Result<u64, &'static str> {
                let (mut waiter, mut rng) = (queue.enter(), Rng::new(seed));
                let mut done = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let lba = rng.below(places) * u64::from(sectors);
                    let read = waiter.read_at(lba, sectors, 0).map_err(|_| "a read")?;
                    if !read.status.is_success() {
                        return Err("a read");
                    }
                    done += 1;
                }
                Ok(done)
            })
        });
        let threads: Vec<_> = threads.collect();
        let (clock, cpu) = (RealClock::start(), cpu_time());
        std::thread::sleep(std::time::Duration::from_nanos(self.runtime.0));
        stop.store(true, Ordering::Relaxed);
        let mut done = 0;
        for thread in threads {
            let ended = thread.join().map_err(|_| BenchError::Thread("a reader"))?;
            done += ended.map_err(BenchError::Thread)?;
        }
        let (time, used) = (clock.now(), cpu_time().since(cpu));
        drop(blocking);
        let done = done.max(1) as f64;
        Ok(Cost { iops: done * 1e9 / time.0.max(1) as f64, cpu_ns: used.0 as f64 / done })
    }
}

/// Measures every completion strategy on the device.
///
/// # Errors
/// As for [`block`].
pub(super) fn strategies(
    what: &str,
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let runtime = effort.choose(Nanos::from_millis(2000), Nanos::from_millis(100));
    for name in Strategy::NAMES {
        let strategy = Strategy::from_name(name, INTERVAL)?;
        let measured = with_device(what, 2 * THREADS, BlockingThreads { strategy, runtime });
        let Some(cost) = if_supported(measured)? else { continue };
        let case = format!("{name} over {what}, {THREADS} threads, 4 KB random reads");
        sink.push(Measurement::new("hiops", &case, "iops", cost.iops, "1/s"))?;
        sink.push(Measurement::new("hiops", &case, "cpu_per_io", cost.cpu_ns, "ns"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn a_file_is_measured_as_any_device_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let what = file.path().to_str().unwrap();
        type Run = fn(&str, RunLength, &mut Sink<'_>) -> Result<(), BenchError>;
        let runs: [(Run, usize); 2] = [(block, 16), (strategies, 2 * Strategy::NAMES.len())];
        for (run, rows) in runs {
            let mut out = Vec::new();
            let mut sink = Sink::new(&mut out, Format::Json);
            run(what, RunLength::Quick, &mut sink).unwrap();
            sink.finish().unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().filter(|line| line.contains(what)).count(), rows, "{text}");
        }
        let mut out = Vec::new();
        let refused = block("null", RunLength::Quick, &mut Sink::new(&mut out, Format::Json));
        assert!(refused.unwrap_err().to_string().contains("is not a drive"));
    }
}
