//! `sluice bench lightnvm --part overhead --device WHAT --destroy`: overhead of pblk per request on
//! a device of this machine.
//!
//! Such devices have no physical addresses, so pblk's vector commands are executed on the device's
//! sectors ([`BlockBackedDrive`]): pblk, a queue pair, and the driver of *raw*. The reference of
//! every row is *raw* on the device: 4 KB requests at random addresses, 32 outstanding, by the same
//! loop, directly on a queue. Time is that of the thread in iterations that made progress, so it
//! excludes waiting for the device.
//!
//! The overhead includes the conversion of commands, which a drive with physical addresses would
//! not need. Each round ends with a flush, so that pblk has written its buffer. pblk writes in
//! units of 64 KB while raw writes are issued one by one, so the overhead of a write can be
//! negative. There is no GC, as in the paper.

use std::time::{Duration, Instant};

use block::{BlockDevice as _, Completion, Payload, QueueFull, Request};
use ftl::FtlConfig;
use nvme::{Geometry, Status};
use open::{OpenOptions, open};
use pblk::Pblk;
use rng::Rng;
use time::{Component, Nanos};
use user_io::{IoDevice, Queue, QueueConfig};

use super::block_backed::BlockBackedDrive;
use super::{chunks, info_of};
use crate::echo::QueuePairMemory;
use crate::lightnvm::{BENCH, setup};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// Number of outstanding requests.
const DEPTH: u64 = 32;
/// Number of entries of the queue pair, and of the drive's queue.
const ENTRIES: u16 = 256;
/// Size of a sector of pblk in bytes.
const SECTOR_BYTES: u64 = 4096;
/// Number of sectors of a chunk.
const CHUNK: u64 = 256;
/// Number of parallel units.
const PUS: u64 = 4;
/// Range of the number of chunks per parallel unit: 240 MiB to 4 GiB.
const CHUNKS: std::ops::RangeInclusive<u64> = 60..=1024;
/// Maximum time without progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the geometry for a device of `bytes`.
fn geometry(bytes: u64) -> Result<Geometry, BenchError> {
    let chunks = (bytes / (PUS * CHUNK * SECTOR_BYTES)).min(*CHUNKS.end());
    if !CHUNKS.contains(&chunks) {
        let least = (CHUNKS.start() * PUS * CHUNK * SECTOR_BYTES) >> 20;
        return Err(setup(format!("a device of {bytes} bytes is too small: {least} MiB at least")));
    }
    Ok(Geometry {
        groups: 2,
        pus: (PUS / 2) as u32,
        chunks: chunks as u32,
        sectors: CHUNK as u32,
        sector_bytes: SECTOR_BYTES as u32,
        oob_bytes: 16,
        ws_min: 16,
        ws_opt: 16,
        // Written data is readable immediately: there are no paired pages.
        mw_cunits: 0,
    })
}

/// A path for requests.
trait RequestPath {
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull>;
    fn step(&mut self, now: Nanos) -> bool;
    fn reap(&mut self) -> Option<Completion>;
    /// Returns the error for a failed request.
    fn error_of(&self, status: Status) -> BenchError {
        BenchError::Status(status)
    }
}

/// A queue of the device.
struct Raw(Queue);

impl RequestPath for Raw {
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.0.submit(now, request)
    }

    fn step(&mut self, now: Nanos) -> bool {
        self.0.poll(now)
    }

    fn reap(&mut self) -> Option<Completion> {
        self.0.reap()
    }
}

/// pblk over another queue of the device.
struct PblkPath {
    pblk: Pblk,
    drive: BlockBackedDrive<Queue>,
}

impl RequestPath for PblkPath {
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.pblk.submit(now, request)
    }

    fn step(&mut self, now: Nanos) -> bool {
        let asked = self.pblk.poll(now);
        let answered = self.drive.poll(now);
        asked | answered | (answered && self.pblk.poll(now))
    }

    fn reap(&mut self) -> Option<Completion> {
        self.pblk.reap()
    }

    /// The status that pblk returns has little information on the drive's error.
    fn error_of(&self, status: Status) -> BenchError {
        match self.drive.failed() {
            None => BenchError::Status(status),
            Some((opcode, first)) => setup(format!(
                "a request of pblk ended with: {status}; before that a command {opcode:#04x} of its \
                 own with: {first}"
            )),
        }
    }
}

/// Cost of a request.
#[derive(Clone, Copy, Debug)]
struct RequestCost {
    cpu_ns: f64,
    total_ns: f64,
}

/// A closed loop with a fixed number of outstanding requests.
struct Requests {
    device: IoDevice,
    rng: Rng,
}

impl Requests {
    /// Executes `count` requests created by `make`, which receives their index.
    fn run(
        &mut self,
        path: &mut dyn RequestPath,
        count: u64,
        make: &mut dyn FnMut(&mut Rng, u64) -> Request,
    ) -> Result<RequestCost, BenchError> {
        let clock = self.device.clock();
        let (mut sent, mut done, mut busy) = (0, 0, Duration::ZERO);
        // Ends with a flush, so that buffered writes count as well.
        let total = count + 1;
        let begun = Instant::now();
        let mut last = begun;
        let mut next = None;
        while done < total {
            let (begin, now) = (Instant::now(), clock.now());
            let mut moved = false;
            while sent < total && sent - done < DEPTH && (sent < count || done == count) {
                let request = next.take().unwrap_or_else(|| match sent < count {
                    true => make(&mut self.rng, sent),
                    false => Request::flush(sent),
                });
                if path.submit(now, request).is_err() {
                    next = Some(request);
                    break;
                }
                (sent, moved) = (sent + 1, true);
            }
            moved |= path.step(now);
            while let Some(ended) = path.reap() {
                if !ended.status.is_success() {
                    return Err(path.error_of(ended.status));
                }
                (done, moved) = (done + 1, true);
            }
            if moved {
                last = Instant::now();
                busy += last - begin;
            } else if begin - last > STALL_TIMEOUT {
                return Err(setup("the device does not answer"));
            }
        }
        let per = |time: Duration| time.as_nanos() as f64 / count.max(1) as f64;
        Ok(RequestCost { cpu_ns: per(busy), total_ns: per(begun.elapsed()) })
    }
}

/// Measures raw and pblk on the device, interleaved. Overwrites the data on the device.
///
/// # Errors
/// If the device cannot be opened or is too small, if a request fails, or if the output fails.
pub fn run(what: &str, effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let device = open(what, &OpenOptions::default())?;
    let geometry = geometry(device.limits().bytes())?;
    let info = info_of(geometry)?;
    let most = device.limits().queue_depth.saturating_add(1).min(ENTRIES.into());
    // The depth of a file's queues was set when it was opened; this setting has no effect.
    let config = QueueConfig { depth: most as u16, interrupts: false };
    let queue = || device.create_queue(config).map_err(setup);
    let data = device
        .buffer(nvme::MAX_VECTOR_ADDRESSES as usize * SECTOR_BYTES as usize)
        .map_err(setup)?;
    let mut raw = Raw(queue()?);
    let wire = QueuePairMemory::new(ENTRIES)?;
    let (pair, port) = (wire.queue_pair()?, wire.port().clone());
    let ftl = FtlConfig::default();
    let pblk = Pblk::open(&info, &chunks(&info), pair, port, ftl, &mut || {}, false);
    let drive = BlockBackedDrive::new(&wire, &info, queue()?, data.payload())?;
    let mut layer = PblkPath { pblk: pblk.map_err(setup)?, drive };

    let total = geometry.total_sectors();
    // An eighth is written once, and all write measurements together write as much again.
    let area = total / 8;
    let (rounds, most) = (effort.choose(11, 1), effort.choose(20_000, 640));
    let count = most.min(area / rounds as u64);
    let ratio = SECTOR_BYTES / u64::from(device.limits().sector_bytes);
    let mut requests = Requests { device: device.clone(), rng: Rng::new(1) };
    let unit = |_: &mut Rng, i: u64| Request::write(i * 64, 64, Payload::BitBucket, i);
    requests.run(&mut layer, area / 64, &mut { unit })?;
    let area = area / 64 * 64;
    for writes in [false, true] {
        let mut took = [Vec::new(), Vec::new()];
        interleave(rounds, 2, |which| {
            let at = data.payload();
            let mut on_device = |rng: &mut Rng, i| {
                let lba = rng.below(area) * ratio;
                match writes {
                    false => Request::read(lba, ratio as u32, at, i),
                    true => Request::write(lba, ratio as u32, at, i),
                }
            };
            let mut on_layer = |rng: &mut Rng, i| {
                let lba = rng.below(area);
                match writes {
                    false => Request::read(lba, 1, Payload::BitBucket, i),
                    true => Request::write(lba, 1, Payload::BitBucket, i),
                }
            };
            let ended = match which {
                0 => requests.run(&mut raw, count, &mut on_device)?,
                _ => requests.run(&mut layer, count, &mut on_layer)?,
            };
            took[which].push(ended);
            Ok(ended.cpu_ns)
        })?;
        let op = if writes { "writes" } else { "reads" };
        let case = |way: &str| format!("{way} over {what}, 4 KB random {op}, {DEPTH} outstanding");
        // The lowest quartile: disturbances only add time.
        let low = |which: usize, of: fn(&RequestCost) -> f64| {
            let samples = Samples::new(took[which].iter().map(of).collect());
            samples
                .map(|s| s.quantile(0.25))
                .ok_or(BenchError::NoValue { case: case("raw"), metric: "sample" })
        };
        let (raw_ns, pblk_ns) = (low(0, |t| t.cpu_ns)?, low(1, |t| t.cpu_ns)?);
        let iops = |which| Ok::<_, BenchError>(1e9 / low(which, |t| t.total_ns)?.max(1.0));
        let (raw_iops, pblk_iops) = (iops(0)?, iops(1)?);
        let row =
            |way, metric, value, unit| Measurement::new(BENCH, case(way), metric, value, unit);
        sink.push(row("raw", "iops", raw_iops, "1/s"))?;
        sink.push(row("raw", "cpu_per_request", raw_ns, "ns"))?;
        sink.push(row("pblk", "iops", pblk_iops, "1/s").with_reference("raw", raw_iops))?;
        sink.push(row("pblk", "cpu_per_request", pblk_ns, "ns").with_reference("raw", raw_ns))?;
        sink.push(row("pblk", "pblk_adds", pblk_ns - raw_ns, "ns").with_reference("raw", raw_ns))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    #[test]
    fn pblk_runs_on_a_file_and_on_the_null_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(256 << 20).unwrap();
        for what in ["null:8G", file.path().to_str().unwrap()] {
            let mut out = Vec::new();
            let mut sink = Sink::new(&mut out, Format::Json);
            run(what, RunLength::Quick, &mut sink).unwrap();
            sink.finish().unwrap();
            let text = String::from_utf8(out).unwrap();
            let rows: Vec<&str> = text.lines().filter(|line| line.contains(what)).collect();
            assert_eq!(rows.len(), 10, "{text}");
            assert_eq!(rows.iter().filter(|row| row.contains("pblk_adds")).count(), 2);
        }
        // pblk's units have reached the file: it has blocks.
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.as_file().metadata().unwrap());
        assert!(blocks * 512 >= 16 << 20, "{blocks}");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused() {
        let mut out = Vec::new();
        let refused = run("null:64M", RunLength::Quick, &mut Sink::new(&mut out, Format::Json));
        assert!(refused.unwrap_err().to_string().contains("too small"));
        assert!(geometry(u64::MAX).unwrap().total_bytes() == 4 << 30);
    }
}
