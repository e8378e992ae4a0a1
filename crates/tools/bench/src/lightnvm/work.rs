//! A complete FTL in real time: 4 KB random overwrites with GC in steady state, over flash without
//! latency.
//!
//! Over-provisioning is 20 %. The device is filled and overwritten twice at random before the
//! measurement, and then written and overwritten with data, so that every sector has its memory. One thread submits, with 128 writes outstanding. The drive has a core of its own, or
//! shares the host's thread. The FTL runs on the host (pblk over an open-channel drive), or in the
//! drive. Bounds: no write of 5 ms or longer; a million writes per second with pblk; and with the
//! FTL in the drive, 0.8 of the rate of bare copies in the same run.
//!
//! With pblk and data in memory, a write of 4 KB at write amplification W is copied once by the
//! host, W times from the write buffer to the flash, and W - 1 times back by the drive: host and
//! drive share no buffers. At W = 3.3 this is about 26 KB, most of it by the drive. `host_per_write`
//! is the host's part alone.
//!
//! Where the drive copies what pblk relocates, pblk's part is one copy by the host, and one by the
//! drive into its memory; the drive moves relocated sectors by reference. The drive has no paired
//! pages then.
//!
//! A drive with its own FTL copies a write once, from the host's memory. The sector's buffer then
//! moves by reference ([`media::SectorBufferStats`]); `copies_per_write` counts.

use std::ops::Range;
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

/// The side that manages the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashManager {
    /// pblk, over an open-channel drive.
    Host,
    /// pblk, over an open-channel drive that copies the sectors that pblk relocates.
    HostWithCopies,
    /// The drive's own FTL.
    Drive,
}

/// Maximum number of sectors that the drive copies per write, if it copies what pblk relocates. More
/// than one: pblk writes translation pages and the metadata of lines.
const DRIVE_COPIES_MAX: f64 = 1.3;

/// Least share of the rate of bare copies, with the FTL in the drive.
const COPY_SHARE_MIN: f64 = 0.8;

/// Measures every combination.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let time = effort.choose(Nanos::from_secs(3), Nanos::from_millis(20));
    let shape = effort.choose(FULL, SMALL);
    let cores = |two| if two { "drive on a core of its own" } else { "one core" };
    let case = |manager, words, two| {
        let manager = match manager {
            FlashManager::Host => "host",
            FlashManager::HostWithCopies => "host with copies by the drive",
            FlashManager::Drive => "drive",
        };
        let cores = cores(two);
        format!("{manager} at work, 4 KB random overwrites, QD {DEPTH}, {words}, {cores}")
    };
    for (data, words) in DATA {
        for two in [true, false] {
            let stack = steady(FlashManager::Host, data, shape)?;
            let done = overwrite(stack, two, time)?;
            let case = case(FlashManager::Host, words, two);
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
    for two in [true, false] {
        let (data, words) = DATA[0];
        let without = overwrite(steady(FlashManager::Host, data, shape)?, two, time)?;
        let done = overwrite(steady(FlashManager::HostWithCopies, data, shape)?, two, time)?;
        let case = case(FlashManager::HostWithCopies, words, two);
        let row = |metric, value, unit| Measurement::new(BENCH, case.clone(), metric, value, unit);
        sink.push(row("iops", done.iops, "1/s").with_reference("without them", without.iops))?;
        let copies = row("copies_per_write", done.drive_copies, "");
        let copies = copies.with_reference("without them", without.drive_copies);
        sink.push(copies.at_most(DRIVE_COPIES_MAX))?;
        sink.push(row("host_per_write", done.host_ns, "ns"))?;
        sink.push(row("write_amplification", done.amplification, ""))?;
    }
    for two in [true, false] {
        let (data, words) = DATA[0];
        let stack = steady(FlashManager::Drive, data, shape)?;
        let done = overwrite(stack, two, time)?;
        let copies = copies_per_second(effort)?;
        let case = case(FlashManager::Drive, words, two);
        let row = |metric, value, unit| Measurement::new(BENCH, case.clone(), metric, value, unit);
        sink.push(row("iops", done.iops, "1/s").with_reference("bare copies of 4 KB", copies))?;
        sink.push(row("copy_share", done.iops / copies, "").at_least(COPY_SHARE_MIN))?;
        sink.push(row("latency_p99", done.latency.percentile(99.0).as_micros_f64(), "us"))?;
        let max = done.latency.max().0 as f64 / 1e6;
        sink.push(row("latency_max", max, "ms").at_most(5.0))?;
        sink.push(row("copies_per_write", done.drive_copies, ""))?;
        sink.push(row("write_amplification", done.amplification, ""))?;
    }
    Ok(())
}

/// Returns the rate of copies of 4 KB from the memory of as many writes as are outstanding to random
/// sectors of memory that exceeds all caches, on the first CPU.
fn copies_per_second(effort: RunLength) -> Result<f64, BenchError> {
    let (bytes, count) = effort.choose((1 << 30, 1_000_000), (4 << 20, 1_000));
    on_first_cpu(&AllowedCpus::allowed(), move || {
        let (from, to) = (
            SharedRegion::anonymous(DEPTH * SECTOR as usize)?,
            SharedRegion::anonymous(bytes as usize)?,
        );
        from.fill(0, from.len(), 0xa5);
        to.fill(0, to.len(), 1);
        let mut rng = Rng::new(3);
        let clock = RealClock::start();
        for number in 0..count {
            let target = rng.below(bytes / SECTOR) * SECTOR;
            let source = number % DEPTH * SECTOR as usize;
            SharedRegion::copy(&from, source, &to, target as usize, SECTOR as usize);
        }
        Ok(count as f64 / clock.now().as_secs_f64())
    })
}

/// Returns a device in steady state on a drive of this geometry.
///
/// # Errors
/// If the system refuses memory.
pub fn steady(manager: FlashManager, data: &str, shape: DriveShape) -> Result<Stack, BenchError> {
    let DriveShape { channels, pus, chunks } = shape;
    let over = "over_provisioning = 0.2";
    let manager = match manager {
        FlashManager::Host => format!("[target]\nkind = \"pblk\"\n{over}\n"),
        FlashManager::HostWithCopies => format!(
            "paired_page_distance = 0\n[target]\nkind = \"pblk\"\nvector_copy = true\n{over}\n"
        ),
        FlashManager::Drive => format!("personality = \"block\"\n[drive.ftl]\n{over}\n"),
    };
    let mut harness = LightnvmHarness::new(&format!(
        "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"{data}\"\n\
         geometry = {{ channels = {channels}, pus = {pus}, pages = 32, chunks = {chunks} }}\n\
         {manager}"
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
    /// Sectors that the drive copied into a buffer in memory, per write submitted.
    pub drive_copies: f64,
}

/// Overwrites a device in steady state for `time`, with the drive on a core of its own or on the
/// host's.
///
/// # Errors
/// If the system refuses memory or a thread, or if a write fails.
pub fn overwrite(stack: Stack, own_core: bool, time: Nanos) -> Result<OverwriteResult, BenchError> {
    let Stack { mut drive, device, port, .. } = stack;
    let mut writer = Writer::new(device)?;
    let cores = &AllowedCpus::allowed();
    let clock = RealClock::start();
    on_first_cpu(cores, || writer.warm_up(clock, &mut drive))?;
    let (ftl_before, copies_before) = (drive.stats().ftl, copies(&mut drive));
    writer.restart(clock.now());
    let run = if own_core {
        let runner = RealRunner::new(clock, IdlePolicy::default())?;
        port.set_drive_waker(runner.waker())?;
        let stopper = runner.stop_handle();
        thread::scope(|scope| {
            let named = thread::Builder::new().name("drive".into());
            let thread = named.spawn_scoped(scope, || {
                cores.pin(1);
                runner.run(&mut drive)
            })?;
            let done = on_first_cpu(cores, move || step_in_turn(writer, clock, time, None));
            stopper.stop();
            thread.join().map_err(|_| BenchError::Thread("the drive"))??;
            done
        })?
    } else {
        on_first_cpu(cores, || step_in_turn(writer, clock, time, Some(&mut drive)))?
    };
    let in_drive = drive.stats().ftl.zip(ftl_before);
    let in_drive = in_drive.and_then(|(now, before)| now.since(&before).write_amplification());
    let writes = run.writes.max(1) as f64;
    Ok(OverwriteResult {
        iops: run.writes as f64 / run.elapsed.as_secs_f64(),
        host_ns: run.busy.0 as f64 / writes,
        latency: run.latency,
        amplification: run
            .host_amplification
            .or(in_drive)
            .ok_or_else(|| setup("nothing was written"))?,
        drive_copies: (copies(&mut drive) - copies_before) as f64 / run.submitted.max(1) as f64,
    })
}

/// Returns the sectors that a drive has copied into buffers in memory.
fn copies(drive: &mut ::controller::Controller) -> u64 {
    drive.nand_mut().map_or(0, |nand| nand.buffer_stats().copies)
}

/// Longest extension of a run in which the drive has programmed nothing yet.
const FIRST_PROGRAM_TIMEOUT: Nanos = Nanos::from_secs(60);

/// Writes for `time`; a local drive is polled after each iteration of the writer.
///
/// On a busy machine the drive's thread may start later than a short run ends: the run goes on until
/// the first program, for at most [`FIRST_PROGRAM_TIMEOUT`].
fn step_in_turn(
    mut writer: Writer,
    clock: RealClock,
    time: Nanos,
    mut drive: Option<&mut ::controller::Controller>,
) -> Result<WriterResult, BenchError> {
    let (mut now, mut busy) = (clock.now(), Nanos::ZERO);
    let end = now + time;
    while now < end || (now < end + FIRST_PROGRAM_TIMEOUT && !writer.has_programmed()) {
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
    Ok(writer.into_result(now, busy))
}

/// A closed loop of writes.
struct Writer {
    device: CoreQueues,
    rng: Rng,
    sectors: u64,
    /// Sectors that are written before those at random.
    sequential: Range<u64>,
    /// Payloads, one sector per slot.
    _memory: Arc<SharedRegion>,
    at: Iova,
    free: Vec<u32>,
    /// Submission time of each slot's write.
    submitted: Vec<Nanos>,
    /// Start of the measurement.
    begin: Nanos,
    latency: Histogram,
    /// Counters of pblk at the start, if the host manages the flash.
    before: Option<ftl::FtlStats>,
}

/// The host's part of a run.
struct WriterResult {
    elapsed: Nanos,
    /// Time of the host's iterations that made progress.
    busy: Nanos,
    /// Completed writes.
    writes: u64,
    submitted: u64,
    latency: Histogram,
    /// Sectors programmed per sector written, if the host manages the flash.
    host_amplification: Option<f64>,
}

impl Writer {
    fn new(device: CoreQueues) -> Result<Writer, BenchError> {
        let memory = SharedRegion::anonymous(DEPTH * SECTOR as usize)?;
        memory.fill(0, DEPTH * SECTOR as usize, 0xa5);
        let at = device.memory().register(&memory)?;
        let sectors = device.limits().sectors;
        let before = pblk_stats(&device);
        Ok(Writer {
            device,
            rng: Rng::new(2),
            sectors,
            sequential: 0..0,
            _memory: memory,
            at,
            free: (0..DEPTH as u32).collect(),
            submitted: vec![Nanos::ZERO; DEPTH],
            begin: Nanos::ZERO,
            latency: Histogram::new(),
            before,
        })
    }

    /// Writes the whole device, and then as much at random: the preconditioning jobs write no data, and
    /// the first write to the memory of a sector is a page fault. One of 2 MiB takes 5 ms in a virtual
    /// machine whose host has not provided that memory yet.
    fn warm_up(
        &mut self,
        clock: RealClock,
        drive: &mut ::controller::Controller,
    ) -> Result<(), BenchError> {
        self.sequential = 0..self.sectors;
        while self.latency.count() < 2 * self.sectors {
            self.step(clock.now())?;
            drive.poll(clock.now());
        }
        Ok(())
    }

    /// Begins the measurement. Outstanding writes count as submitted now.
    fn restart(&mut self, now: Nanos) {
        self.latency = Histogram::new();
        self.submitted.fill(now);
        self.begin = now;
        self.before = pblk_stats(&self.device);
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
            let next = self.sequential.next();
            let lba = next.unwrap_or_else(|| self.rng.below(self.sectors));
            let data = Payload::Contiguous(self.at.offset(u64::from(place) * SECTOR));
            if self.device.submit(now, Request::write(lba, 1, data, place.into())).is_err() {
                self.free.push(place);
                self.sequential.start -= u64::from(next.is_some());
                break;
            }
            self.submitted[place as usize] = now;
            moved = true;
        }
        moved |= self.device.poll(now);
        Ok(moved)
    }

    /// Whether a write has reached the flash; with the FTL in the drive, whether one has completed.
    fn has_programmed(&self) -> bool {
        match self.since_start() {
            Some(stats) => stats.host_writes > 0,
            None => self.latency.count() > 0,
        }
    }

    /// Returns the changes of pblk's counters.
    fn since_start(&self) -> Option<ftl::FtlStats> {
        Some(pblk_stats(&self.device)?.since(&self.before?))
    }

    fn into_result(self, now: Nanos, busy: Nanos) -> WriterResult {
        let host_amplification = self.since_start().and_then(|stats| stats.write_amplification());
        let writes = self.latency.count();
        let mut latency = self.latency;
        // A write that has not completed by the end counts with its time so far.
        let free: Vec<usize> = self.free.iter().map(|place| *place as usize).collect();
        for (_, at) in self.submitted.iter().enumerate().filter(|(i, _)| !free.contains(i)) {
            latency.record(now.since(*at));
        }
        let (submitted, elapsed) = (latency.count(), now.since(self.begin));
        WriterResult { elapsed, busy, writes, submitted, latency, host_amplification }
    }
}

/// Returns the counters of pblk, if the device is one.
fn pblk_stats(device: &CoreQueues) -> Option<ftl::FtlStats> {
    device.only::<Pblk>().map(|pblk| *pblk.stats())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_with_its_own_ftl_copies_a_write_once_and_one_below_pblk_more_often() {
        for own_core in [false, true] {
            let of = |manager| {
                let stack = steady(manager, "memory", SMALL).unwrap();
                overwrite(stack, own_core, Nanos::from_millis(100)).unwrap()
            };
            let drive = of(FlashManager::Drive);
            // More than one: metadata of lines.
            assert!(drive.drive_copies < 1.05, "{}", drive.drive_copies);
            let host = of(FlashManager::Host);
            assert!(host.drive_copies > 1.5, "{}", host.drive_copies);
            let copying = of(FlashManager::HostWithCopies);
            assert!(copying.drive_copies < DRIVE_COPIES_MAX, "{}", copying.drive_copies);
            assert!(copying.amplification > 1.2, "{}", copying.amplification);
        }
    }
}
