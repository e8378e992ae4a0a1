//! The host's complete FTL in real time: 4 KB random overwrites with GC in steady state, over a
//! drive with zero-latency flash.
//!
//! Over-provisioning is 20 %. The device is filled and overwritten twice at random before the
//! measurement. One thread submits, copies and collects garbage, with 128 writes outstanding. The
//! drive has a core of its own, or shares the host's thread. With data in memory, every sector is
//! copied into the write buffer and from there to the flash. Bounds: a million writes per second,
//! and no write of 5 ms or longer.
//!
//! With data, a write of 4 KB at write amplification W is copied once by the host, W times from the
//! write buffer to the flash, and W - 1 times back by the drive. At W = 3.3 this is about 26 KB,
//! most of it by the drive. `host_per_write` is the host's part alone.

use std::sync::Arc;
use std::thread;

use block::{BlockDevice, Payload, Request};
use event::{AllowedCpus, IdlePolicy, RealClock, RealRunner};
use mem::{Iova, SharedRegion};
use pblk::Pblk;
use rng::Rng;
use stack::{CoreQueues, Stack};
use time::{Component, Nanos};
use workload::Histogram;

use super::super::{BenchError, Measurement, RunLength, Sink, on_first_cpu};
use super::harness::{BenchJob, LightnvmHarness};
use super::{BENCH, setup};

/// Number of outstanding writes.
const DEPTH: usize = 128;
/// Size of a sector in bytes.
const SECTOR: u64 = 4096;

/// Whether data is stored.
const DATA: [(&str, &str); 2] = [("memory", "data in memory"), ("none", "no data")];

/// The geometry of a drive with chunks of 2 MiB.
#[derive(Clone, Copy, Debug)]
pub struct DriveShape {
    /// Number of channels.
    pub channels: u32,
    /// Parallel units per channel.
    pub pus: u32,
    /// Chunks per parallel unit.
    pub chunks: u32,
}

/// A drive of 4 GiB, and the smallest one.
const FULL: DriveShape = DriveShape { channels: 8, pus: 4, chunks: 64 };
const SMALL: DriveShape = DriveShape { channels: 2, pus: 2, chunks: 40 };

/// Measures every combination.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let time = effort.choose(Nanos::from_secs(3), Nanos::from_millis(20));
    for (data, words) in DATA {
        for two in [true, false] {
            let stack = steady(data, effort.choose(FULL, SMALL))?;
            let done = overwrite(stack, two, time)?;
            let cores = if two { "drive on a core of its own" } else { "one core" };
            let case =
                format!("host at work, 4 KB random overwrites, QD {DEPTH}, {words}, {cores}");
            let row =
                |metric, value, unit| Measurement::new(BENCH, case.clone(), metric, value, unit);
            sink.push(row("iops", done.iops, "1/s").at_least(1e6))?;
            sink.push(row("latency_p99", done.latency.percentile(99.0).as_micros_f64(), "us"))?;
            let max = done.latency.max().0 as f64 / 1e6;
            sink.push(row("latency_max", max, "ms").at_most(5.0))?;
            sink.push(row("host_per_write", done.host_ns, "ns"))?;
            sink.push(row("write_amplification", done.amplification, ""))?;
        }
    }
    Ok(())
}

/// Returns a device in steady state on a drive of this geometry.
///
/// # Errors
/// If the system refuses memory.
pub fn steady(data: &str, shape: DriveShape) -> Result<Stack, BenchError> {
    let DriveShape { channels, pus, chunks } = shape;
    let mut harness = LightnvmHarness::new(&format!(
        "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"{data}\"\n\
         geometry = {{ channels = {channels}, pus = {pus}, pages = 32, chunks = {chunks} }}\n\
         [target]\nkind = \"pblk\"\nover_provisioning = 0.2\n"
    ))?;
    harness.run_in_zero_time(&[
        BenchJob("fill", "rw=write bs=256k iodepth=8"),
        BenchJob(
            "overwrite",
            "rw=randwrite bs=4k iodepth=64 norandommap=1 stonewall=1 io_size=200%",
        ),
    ])?;
    let mut stack = harness.stack;
    stack.drive.set_zero_latency(true);
    Ok(stack)
}

/// Measurements of a run.
#[derive(Clone, Debug)]
pub struct OverwriteResult {
    /// Writes per second.
    pub iops: f64,
    /// Latencies from submission to reaping.
    pub latency: Histogram,
    /// Sectors programmed per sector written.
    pub amplification: f64,
    /// Nanoseconds per write of the host's iterations that made progress, without waiting times.
    pub host_ns: f64,
}

/// Overwrites a device in steady state for `time`, with the drive on a core of its own or on the
/// host's.
///
/// # Errors
/// If the system refuses memory or a thread, or if a write fails.
pub fn overwrite(stack: Stack, own_core: bool, time: Nanos) -> Result<OverwriteResult, BenchError> {
    let Stack { mut drive, device, port, .. } = stack;
    let writer = Writer::new(device)?;
    let clock = RealClock::start();
    if !own_core {
        let turns = move || step_in_turn(writer, clock, time, Some(&mut drive));
        return on_first_cpu(&AllowedCpus::allowed(), turns);
    }
    let runner = RealRunner::new(clock, IdlePolicy::default())?;
    port.set_drive_waker(runner.waker())?;
    let stopper = runner.stop_handle();
    let cores = AllowedCpus::allowed();
    thread::scope(|scope| {
        let there = &cores;
        let named = thread::Builder::new().name("drive".into());
        let thread = named.spawn_scoped(scope, move || {
            there.pin(1);
            runner.run(&mut drive)
        })?;
        let done = on_first_cpu(&cores, move || step_in_turn(writer, clock, time, None));
        stopper.stop();
        thread.join().map_err(|_| BenchError::Thread("the drive"))??;
        done
    })
}

/// Longest extension of a run in which the drive has programmed nothing yet.
const FIRST_PROGRAM_TIMEOUT: Nanos = Nanos::from_secs(60);

/// Writes until `time`; a local drive is polled after each iteration of the writer.
///
/// On a busy machine the drive's thread may start later than a short run ends: the run goes on until
/// the first program, for at most [`FIRST_PROGRAM_TIMEOUT`].
fn step_in_turn(
    mut writer: Writer,
    clock: RealClock,
    time: Nanos,
    mut drive: Option<&mut ::controller::Controller>,
) -> Result<OverwriteResult, BenchError> {
    let (mut now, mut busy) = (clock.now(), Nanos::ZERO);
    while now < time || (now < time + FIRST_PROGRAM_TIMEOUT && !writer.has_programmed()?) {
        let moved = writer.step(now)?;
        let after = clock.now();
        if moved {
            busy += after.since(now);
        }
        now = match &mut drive {
            Some(drive) => {
                drive.poll(after);
                clock.now()
            }
            None if moved => after,
            None => {
                std::hint::spin_loop();
                after
            }
        };
    }
    writer.into_result(now, busy)
}

/// A closed loop of writes.
struct Writer {
    device: CoreQueues,
    rng: Rng,
    sectors: u64,
    /// Payloads, one sector per slot.
    _memory: Arc<SharedRegion>,
    at: Iova,
    free: Vec<u32>,
    /// Submission time of each slot's write.
    submitted: Vec<Nanos>,
    latency: Histogram,
    before: ftl::FtlStats,
}

impl Writer {
    fn new(device: CoreQueues) -> Result<Writer, BenchError> {
        let memory = SharedRegion::anonymous(DEPTH * SECTOR as usize)?;
        memory.fill(0, DEPTH * SECTOR as usize, 0xa5);
        let at = device.memory().register(&memory)?;
        let sectors = device.limits().sectors;
        let before = stats(&device)?;
        Ok(Writer {
            device,
            rng: Rng::new(2),
            sectors,
            _memory: memory,
            at,
            free: (0..DEPTH as u32).collect(),
            submitted: vec![Nanos::ZERO; DEPTH],
            latency: Histogram::new(),
            before,
        })
    }

    /// Reaps completions and submits as many new writes.
    fn step(&mut self, now: Nanos) -> Result<bool, BenchError> {
        let mut moved = self.device.poll(now);
        while let Some(done) = self.device.reap() {
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            let place = done.tag as usize;
            self.latency.record(now.since(self.submitted[place]));
            self.free.push(place as u32);
        }
        while let Some(place) = self.free.pop() {
            let lba = self.rng.below(self.sectors);
            let data = Payload::Contiguous(self.at.offset(u64::from(place) * SECTOR));
            if self.device.submit(now, Request::write(lba, 1, data, place.into())).is_err() {
                self.free.push(place);
                break;
            }
            self.submitted[place as usize] = now;
            moved = true;
        }
        moved |= self.device.poll(now);
        Ok(moved)
    }

    fn has_programmed(&self) -> Result<bool, BenchError> {
        Ok(stats(&self.device)?.since(&self.before).host_writes > 0)
    }

    fn into_result(self, elapsed: Nanos, busy: Nanos) -> Result<OverwriteResult, BenchError> {
        let amplification = stats(&self.device)?.since(&self.before).write_amplification();
        let mut latency = self.latency;
        // A write that has not completed by the end counts with its time so far.
        let free: Vec<usize> = self.free.iter().map(|place| *place as usize).collect();
        for (_, at) in self.submitted.iter().enumerate().filter(|(i, _)| !free.contains(i)) {
            latency.record(elapsed.since(*at));
        }
        let writes = (latency.count() - (DEPTH - free.len()) as u64) as f64;
        Ok(OverwriteResult {
            iops: writes / elapsed.as_secs_f64(),
            host_ns: busy.0 as f64 / writes.max(1.0),
            latency,
            amplification: amplification.ok_or_else(|| setup("nothing was written"))?,
        })
    }
}

fn stats(device: &CoreQueues) -> Result<ftl::FtlStats, BenchError> {
    let pblk = device.only::<Pblk>().ok_or_else(|| setup("the device is not pblk"))?;
    Ok(*pblk.stats())
}
