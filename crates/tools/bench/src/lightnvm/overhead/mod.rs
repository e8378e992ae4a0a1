//! Overhead of pblk per request on the host, in real time ([LightNVM17 §5], CPU utilization;
//! [Thesis15 ch. 6]). It compares pblk with the raw path, both over an echo drive.
//!
//! The drive is the group's [`EchoController`] behind a queue pair of its own, so the result
//! excludes flash and controller. Only the host's side is measured: the submission of a batch of 32
//! including the doorbell and, after the drive's step, the reaping of all completions. The drive's
//! step in between is not counted. Requests are 4 KB at random addresses without data. Reads access
//! written sectors. Writes end long before the end of the drive, so there is no GC, as in the paper
//! ("factory state").
//!
//! | | paper | thesis | bound |
//! |---|---|---|---|
//! | reads | 400 ns | 133 ns | 80 ns |
//! | writes | 900 ns | 308 ns | 150 ns |

pub mod block_backed;
pub mod device;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use block::{BlockDevice, Payload, Raw, Request};
use driver::{ControllerInfo, OpenChannelInfo};
use event::AllowedCpus;
use ftl::FtlConfig;
use nvme::{Address, ChunkDescriptor, ChunkState, Geometry, MediaTiming, PpaFormat};
use pblk::Pblk;
use rng::Rng;
use time::Nanos;

use super::super::echo::{EchoController, QueuePairMemory};
use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave};
use super::{BENCH, setup};

/// Number of requests of a batch.
const BATCH: u64 = 32;
/// Number of entries of the queue pair.
const DEPTH: u16 = 1024;

/// Sectors of the area: with 4 GiB, the map's entries fit into a shared cache; with 64 GiB, they do
/// not.
const AREAS: [(u64, &str); 2] = [(1 << 20, "4 GiB"), (1 << 24, "64 GiB")];

/// Measured operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Read,
    Write,
}

/// Returns the geometry of the paper's complete drive, 2 TB, so that no measurement reaches its
/// end.
fn geometry() -> Geometry {
    Geometry {
        groups: 16,
        pus: 8,
        chunks: 1067,
        sectors: 4096,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 16,
        ws_opt: 16,
        mw_cunits: 128,
    }
}

pub(super) fn info() -> Result<ControllerInfo, BenchError> {
    info_of(geometry())
}

/// Returns a drive with that geometry.
pub(super) fn info_of(geometry: Geometry) -> Result<ControllerInfo, BenchError> {
    let format = PpaFormat::from_geometry(&geometry).map_err(setup)?;
    let timing = MediaTiming::default();
    Ok(ControllerInfo {
        serial: "echo".into(),
        product: driver::ProductIdentity { model: "echo".into(), firmware: String::new() },
        nsid: 1,
        sector_bytes: geometry.sector_bytes,
        oob_bytes: geometry.oob_bytes,
        metadata: None,
        sectors: geometry.total_sectors(),
        max_sectors: 64,
        optimal_sectors: geometry.ws_opt,
        volatile_cache: false,
        io_queues: 1,
        max_outstanding: 0,
        data: driver::DataPointers::Sgl,
        features: driver::Features::default(),
        open_channel: Some(OpenChannelInfo {
            geometry,
            format,
            timing,
            can_copy: false,
            max_open_chunks: 0,
            extensions: nvme::VendorExtensions::default(),
        }),
    })
}

/// Returns the descriptors of an empty drive.
pub(super) fn chunks(info: &ControllerInfo) -> Vec<ChunkDescriptor> {
    let Some(oc) = &info.open_channel else { return Vec::new() };
    let (g, format) = (oc.geometry, oc.format);
    let pus = (0..g.groups).flat_map(|group| (0..g.pus).map(move |pu| (group, pu)));
    let each = pus.flat_map(|(group, pu)| {
        (0..g.chunks).map(move |chunk| Address { group, pu, chunk, sector: 0 })
    });
    let free = |address| ChunkDescriptor {
        state: ChunkState::Free.to_bits(),
        kind: ChunkDescriptor::SEQUENTIAL,
        slba: format.pack(address).0.into(),
        cnlb: u64::from(g.sectors).into(),
        ..ChunkDescriptor::default()
    };
    each.map(free).collect()
}

/// Returns pblk over an echo drive.
///
/// # Errors
/// If there is no memory.
pub fn pblk() -> Result<(Pblk, EchoController), BenchError> {
    pblk_with(FtlConfig::default())
}

/// Returns pblk with these settings over an echo drive.
pub(crate) fn pblk_with(config: FtlConfig) -> Result<(Pblk, EchoController), BenchError> {
    let (wire, info) = (QueuePairMemory::new(DEPTH)?, info()?);
    let (queue, port) = (wire.queue_pair()?, wire.port().clone());
    let pblk = Pblk::open(&info, &chunks(&info), queue, port, config, &mut || {}, false);
    Ok((pblk.map_err(setup)?, wire.echo_controller()?))
}

/// Returns the raw path to an echo drive.
pub(crate) fn raw() -> Result<(Raw, EchoController), BenchError> {
    let wire = QueuePairMemory::new(DEPTH)?;
    Ok((wire.raw()?, wire.echo_controller()?))
}

/// Host time of a batch, or per request. The drive's step is not part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostTime {
    /// From the first submission until the doorbell has been rung.
    pub submission: Duration,
    /// From the drive's step until all completions have been reaped.
    pub completion: Duration,
}

impl HostTime {
    /// Returns the sum of both.
    pub(crate) fn total(&self) -> Duration {
        self.submission + self.completion
    }
}

/// Requests on a device over an echo drive, and the host's time for them.
#[derive(Debug)]
pub struct Batches<D> {
    device: D,
    echo: EchoController,
    rng: Rng,
    area: u64,
    now: Nanos,
}

impl<D: BlockDevice> Batches<D> {
    /// Returns requests to the first `area` sectors.
    pub fn new(device: D, echo: EchoController, area: u64, seed: u64) -> Batches<D> {
        Batches { device, echo, rng: Rng::new(seed), area, now: Nanos(1) }
    }

    /// Writes the area once, in order.
    ///
    /// # Errors
    /// If a write fails.
    pub fn fill(&mut self) -> Result<(), BenchError> {
        for lba in (0..self.area).step_by(64 * BATCH as usize) {
            let starts = (0..BATCH).map(|i| lba + i * 64).filter(|at| at + 64 <= self.area);
            let all: Vec<u64> = starts.collect();
            self.batch(all.len() as u64, |i| {
                Request::write(all[i as usize], 64, Payload::BitBucket, i)
            })?;
        }
        Ok(())
    }

    /// Returns nanoseconds of host time per read, over `count` reads.
    ///
    /// # Errors
    /// If a read fails.
    pub fn reads(&mut self, count: u64) -> Result<f64, BenchError> {
        self.run(count, |lba, tag| Request::read(lba, 1, Payload::BitBucket, tag))
    }

    /// Returns nanoseconds of host time per write, over `count` writes.
    ///
    /// # Errors
    /// If a write fails.
    pub fn writes(&mut self, count: u64) -> Result<f64, BenchError> {
        self.run(count, |lba, tag| Request::write(lba, 1, Payload::BitBucket, tag))
    }

    fn run(&mut self, count: u64, make: impl Fn(u64, u64) -> Request) -> Result<f64, BenchError> {
        let (mut host, batches) = (Duration::ZERO, count.div_ceil(BATCH));
        for _ in 0..batches {
            let mut lbas = [0; BATCH as usize];
            lbas.fill_with(|| self.rng.below(self.area));
            host += self.batch(BATCH, |i| make(lbas[i as usize], i))?.total();
        }
        Ok(host.as_nanos() as f64 / (batches * BATCH) as f64)
    }

    /// Submits and reaps `count` requests; returns the host's time for all of them.
    ///
    /// # Errors
    /// If a request fails.
    #[inline]
    pub(crate) fn batch(
        &mut self,
        count: u64,
        make: impl Fn(u64) -> Request,
    ) -> Result<HostTime, BenchError> {
        let mut host = HostTime::default();
        let (mut submitted, mut reaped) = (0, 0);
        while reaped < count {
            let begin = Instant::now();
            self.now = Nanos(self.now.0 + 1);
            while submitted < count && self.device.submit(self.now, make(submitted)).is_ok() {
                submitted += 1;
            }
            self.device.poll(self.now);
            let rung = Instant::now();
            self.echo.poll();
            let answered = Instant::now();
            self.device.poll(self.now);
            while let Some(done) = self.device.reap() {
                if !done.status.is_success() {
                    return Err(BenchError::Status(done.status));
                }
                reaped += 1;
            }
            host.submission += rung - begin;
            host.completion += answered.elapsed();
        }
        Ok(host)
    }
}

/// Measures one and two threads.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (area, name) in AREAS {
        // The large area takes long to fill, and gives equal results with one thread and with two.
        let large = area > AREAS[0].0;
        let area = effort.choose(area, area >> 6);
        for threads in [1, 2] {
            if large && threads == 2 {
                continue;
            }
            for op in [Op::Read, Op::Write] {
                let rows = measure(effort, op, threads, area, name)?;
                rows.into_iter().try_for_each(|row| sink.push(row))?;
            }
        }
    }
    Ok(())
}

/// Returns the lowest quartile over rounds of each thread's nanoseconds, with and without pblk
/// interleaved, as the mean of the threads.
fn measure(
    effort: RunLength,
    op: Op,
    threads: usize,
    area: u64,
    name: &str,
) -> Result<Vec<Measurement>, BenchError> {
    let (cores, barrier) = (AllowedCpus::allowed(), Barrier::new(threads));
    let per_thread: Vec<[f64; 2]> = thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|i| {
                let (cores, barrier) = (&cores, &barrier);
                scope.spawn(move || {
                    cores.pin(i);
                    let ready = prepare(area, i as u64);
                    // A failed thread must not block the others.
                    barrier.wait();
                    let (mut with, mut without) = ready?;
                    compare(effort, op, &mut with, &mut without)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<[f64; 2], BenchError>>| {
            thread.join().map_err(|_| BenchError::Thread("a submitter"))?
        };
        all.into_iter().map(join).collect::<Result<_, _>>()
    })?;
    let mean =
        |which: usize| per_thread.iter().map(|ns| ns[which]).sum::<f64>() / per_thread.len() as f64;
    let (what, paper, bound) = match op {
        Op::Read => ("reads", 400.0, 80.0),
        Op::Write => ("writes", 900.0, 150.0),
    };
    let many = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    let case = format!("host, 4 KB random {what} in {name}, {many}, 32 at a time");
    let row = |metric, ns| Measurement::new(BENCH, case.clone(), metric, ns, "ns");
    let (with, without) = (mean(0), mean(1));
    Ok(vec![
        row("raw_per_request", without),
        row("pblk_per_request", with),
        row("pblk_adds", with - without).with_reference("paper", paper).at_most(bound),
    ])
}

type Pair = (Batches<Pblk>, Batches<Raw>);

fn prepare(area: u64, seed: u64) -> Result<Pair, BenchError> {
    let (device, echo) = pblk()?;
    let mut with = Batches::new(device, echo, area, seed);
    let (device, echo) = raw()?;
    let without = Batches::new(device, echo, area, seed);
    with.fill()?;
    Ok((with, without))
}

fn compare(
    effort: RunLength,
    op: Op,
    with: &mut Batches<Pblk>,
    without: &mut Batches<Raw>,
) -> Result<[f64; 2], BenchError> {
    // A sample is shorter than a time slice of the scheduler, so most samples are not interrupted.
    let (rounds, count) = (effort.choose(301, 3), effort.choose(10_000, 640));
    let samples = interleave(rounds, 2, |which| match (which, op) {
        (0, Op::Read) => with.reads(count),
        (0, Op::Write) => with.writes(count),
        (_, Op::Read) => without.reads(count),
        (_, Op::Write) => without.writes(count),
    })?;
    // The lowest quartile: disturbances only add time.
    let mut quartiles = samples.into_iter().filter_map(Samples::new).map(|s| s.quantile(0.25));
    match (quartiles.next(), quartiles.next()) {
        (Some(with), Some(without)) => Ok([with, without]),
        _ => Err(BenchError::NoValue { case: format!("{op:?}"), metric: "sample" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_reaches_the_drive_and_is_found_there() {
        let area = 1 << 12;
        let (device, echo) = pblk().unwrap();
        let mut with = Batches::new(device, echo, area, 1);
        with.fill().unwrap();
        assert_eq!(with.device.stats().host_writes, area);
        assert!(with.reads(3200).unwrap() > 0.0);
        let stats = *with.device.stats();
        assert_eq!((stats.host_reads, stats.unmapped_reads), (3200, 0));
        with.writes(32_000).unwrap();
        let stats = *with.device.stats();
        assert_eq!((stats.host_writes, stats.gc_relocations, stats.erases), (area + 32_000, 0, 0));
    }
}
