//! Chunk-sized values through kv and through pblk, on the same drive with the same values. The
//! comparison is table 4 of [Thesis15 ch. 6]: 1 MB sequential writes on a null device, 44.7 against
//! 28.1 GB/s, and 50.0 against 67.2 % of kernel time.
//!
//! *Throughput in virtual time* is the drive's throughput under each target, first while it fills,
//! then with random overwrites of values. *The host's CPU in real time* is the CPU time of calls
//! into the target, as the median of several interleaved rounds. The drive's work runs between the
//! calls and is not counted. Data is stored, so a target pays for its copies. pblk copies every
//! value into its write buffer. kv writes complete chunks from the caller's memory, and by default
//! computes a checksum of each.

use std::sync::Arc;
use std::time::Duration;

use block::{BlockDevice, Payload, Request};
use controller::Controller;
use ftl::FtlConfig;
use kv::{Key, Kv, KvConfig, KvRequest, ValueBuffer};
use mem::{Iova, SharedRegion};
use rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use scenario::{DriveSpec, HostTarget, Scenario};
use stack::{CoreQueues, Stack};
use time::{Component, Nanos, VirtualRunner};

use super::BENCH;
use super::harness::{KvHarness, VirtualHost, run_to_end, setup};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// Drive used if no scenario is given: that of \[LightNVM17\], with chunks of 1 MB as in \[Thesis15\],
/// and a smaller geometry so that data fits in memory.
pub const DRIVE: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n\
                         geometry = { channels = 4, pus = 4, pages = 16, chunks = 32 }\n";

/// Number of values in flight.
const DEPTH: usize = 32;

/// Table 4 of [Thesis15 ch. 6]: throughput of kv over that of the page-mapped target, and time in
/// the kernel.
const THESIS_THROUGHPUT: f64 = 44.7 / 28.1;
const THESIS_CPU: f64 = 50.01 / 67.20;

/// A store of values.
trait ValueStore: std::fmt::Debug {
    fn put(
        &mut self,
        now: Nanos,
        value: u64,
        from: ValueBuffer,
        tag: u64,
    ) -> Result<(), BenchError>;
    fn sync(&mut self, now: Nanos, tag: u64) -> Result<(), BenchError>;
    fn poll(&mut self, now: Nanos) -> bool;
    /// Returns the tag of a completed request, and whether it succeeded.
    fn reap(&mut self) -> Option<(u64, bool)>;
    fn deadline(&self) -> Nanos;
}

impl ValueStore for Kv {
    fn put(
        &mut self,
        now: Nanos,
        value: u64,
        from: ValueBuffer,
        tag: u64,
    ) -> Result<(), BenchError> {
        let key = Key::new(&value.to_be_bytes()).map_err(setup)?;
        self.submit(now, KvRequest::put(key, from, tag)).map_err(|_| setup("kv is busy"))
    }
    fn sync(&mut self, now: Nanos, tag: u64) -> Result<(), BenchError> {
        self.submit(now, KvRequest::sync(tag)).map_err(|_| setup("kv is busy"))
    }
    fn poll(&mut self, now: Nanos) -> bool {
        Component::poll(self, now)
    }
    fn reap(&mut self) -> Option<(u64, bool)> {
        Kv::reap(self).map(|done| (done.tag, done.result.is_ok()))
    }
    fn deadline(&self) -> Nanos {
        Component::deadline(self)
    }
}

/// Adjacent values on a block device.
#[derive(Debug)]
struct BlockValueStore {
    device: CoreQueues,
    sectors: u32,
}

impl ValueStore for BlockValueStore {
    fn put(
        &mut self,
        now: Nanos,
        value: u64,
        from: ValueBuffer,
        tag: u64,
    ) -> Result<(), BenchError> {
        let lba = value * u64::from(self.sectors);
        let request = Request::write(lba, self.sectors, Payload::Contiguous(from.at), tag);
        self.device.submit(now, request).map_err(|_| setup("pblk is busy"))
    }
    fn sync(&mut self, now: Nanos, tag: u64) -> Result<(), BenchError> {
        self.device.submit(now, Request::flush(tag)).map_err(|_| setup("pblk is busy"))
    }
    fn poll(&mut self, now: Nanos) -> bool {
        self.device.poll(now)
    }
    fn reap(&mut self) -> Option<(u64, bool)> {
        self.device.reap().map(|done| (done.tag, done.status.is_success()))
    }
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

/// Order of values.
#[derive(Debug)]
enum PutOrder {
    /// Sequential.
    Sequence,
    /// Random, out of this many.
    Random(u64, Rng),
}

/// Puts values with a fixed number in flight, and syncs at the end.
#[derive(Debug)]
struct Putter {
    store: Box<dyn ValueStore>,
    memory: Arc<SharedRegion>,
    at: Iova,
    bytes: u64,
    order: PutOrder,
    free: Vec<u64>,
    issued: u64,
    completed: u64,
    total: u64,
    synced: bool,
    failed: u64,
    /// Time in the store's calls, if measured.
    clock: Option<Duration>,
}

/// Returns the CPU time of the calling thread, which excludes other programs.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Tag of the sync.
const SYNC: u64 = DEPTH as u64;

impl Putter {
    fn new(
        store: Box<dyn ValueStore>,
        space: &mem::AddressSpace,
        bytes: u64,
    ) -> Result<Putter, BenchError> {
        let memory = SharedRegion::anonymous(DEPTH * bytes as usize)?;
        for at in (0..memory.len()).step_by(8) {
            memory.write(at, &(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        let at = space.register(&memory)?;
        Ok(Putter {
            order: PutOrder::Sequence,
            free: Vec::new(),
            issued: 0,
            completed: 0,
            total: 0,
            synced: true,
            failed: 0,
            clock: None,
            store,
            memory,
            at,
            bytes,
        })
    }

    fn begin(&mut self, order: PutOrder, total: u64, timed: bool) {
        (self.order, self.total, self.issued, self.completed) = (order, total, 0, 0);
        (self.synced, self.failed) = (false, 0);
        self.free = (0..DEPTH as u64).collect();
        self.clock = timed.then_some(Duration::ZERO);
        debug_assert!(self.memory.len() as u64 >= SYNC * self.bytes);
    }

    fn step(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            while self.issued < self.total
                && let Some(tag) = self.free.pop()
            {
                let value = match &mut self.order {
                    PutOrder::Sequence => self.issued,
                    PutOrder::Random(values, rng) => rng.below(*values),
                };
                self.issued += 1;
                let from = ValueBuffer { at: self.at.offset(tag * self.bytes), bytes: self.bytes };
                self.failed += u64::from(self.store.put(now, value, from, tag).is_err());
            }
            if self.completed == self.total && !self.synced {
                self.synced = true;
                self.failed += u64::from(self.store.sync(now, SYNC).is_err());
                self.total += 1;
                self.issued += 1;
            }
            moved |= self.store.poll(now);
            let mut again = false;
            while let Some((tag, success)) = self.store.reap() {
                self.failed += u64::from(!success);
                self.completed += 1;
                if tag < SYNC {
                    self.free.push(tag);
                }
                again = true;
            }
            if !again {
                return moved;
            }
            moved = true;
        }
    }
}

impl Component for Putter {
    fn poll(&mut self, now: Nanos) -> bool {
        if self.clock.is_none() {
            return self.step(now);
        }
        let begin = cpu_time();
        let moved = self.step(now);
        if let Some(clock) = &mut self.clock {
            *clock += cpu_time().saturating_sub(begin);
        }
        moved
    }
    fn deadline(&self) -> Nanos {
        self.store.deadline()
    }
}

impl VirtualHost for Putter {
    fn is_done(&self) -> bool {
        self.synced && self.completed == self.total
    }
}

/// Kind of store for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    Pblk,
    Kv { checksum: bool },
}

impl StoreKind {
    fn name(self) -> &'static str {
        match self {
            StoreKind::Pblk => "pblk",
            StoreKind::Kv { checksum: true } => "kv",
            StoreKind::Kv { checksum: false } => "kv without checksums of whole chunks",
        }
    }
}

/// Objects that live as long as a store is used.
struct PutHarness {
    putter: Putter,
    drive: Controller,
    /// Number of values that fit into the store, and their size in bytes.
    capacity: u64,
    _controller: Option<driver::ControllerHandle>,
}

fn build_harness(
    plan: &DriveSpec,
    way: StoreKind,
    config: KvConfig,
) -> Result<PutHarness, BenchError> {
    if let StoreKind::Kv { checksum } = way {
        let config = KvConfig { checksum_large_values: checksum, ..config };
        let KvHarness { drive, kv, controller, .. } = KvHarness::build(plan, config)?;
        let (bytes, capacity) =
            (kv.layout().chunk_bytes.into(), kv.layout().budget.capacity.into());
        let space = kv.memory().clone();
        let putter = Putter::new(Box::new(kv), &space, bytes)?;
        return Ok(PutHarness { putter, drive, capacity, _controller: Some(controller) });
    }
    let mut plan = plan.clone();
    plan.target = HostTarget::Pblk(FtlConfig::default());
    let stack = Stack::build(&plan, None).map_err(setup)?;
    let Stack { drive, device, port, .. } = stack;
    let sectors = drive_chunk_sectors(&plan)?;
    let bytes = u64::from(sectors) * u64::from(device.limits().sector_bytes);
    let capacity = device.limits().sectors / u64::from(sectors);
    let blocks = BlockValueStore { device, sectors };
    let putter = Putter::new(Box::new(blocks), port.memory(), bytes)?;
    Ok(PutHarness { putter, drive, capacity, _controller: None })
}

/// Returns the sectors of a chunk as the host sees it.
fn drive_chunk_sectors(plan: &DriveSpec) -> Result<u32, BenchError> {
    match &plan.config.media {
        media::MediaConfig::Nand(nand) => Ok(nand.host_geometry().sectors),
        _ => Err(setup("the drive has no chunks")),
    }
}

/// Times of one store: while the drive fills, and with overwrites.
struct PutTimes {
    fill: f64,
    overwrite: f64,
}

/// Returns seconds per value: of the drive in virtual time, otherwise of the host's calls.
fn measure_times(
    harness: &mut PutHarness,
    live: u64,
    rounds: u64,
    real: bool,
) -> Result<PutTimes, BenchError> {
    let mut runner = VirtualRunner::new();
    harness.drive.set_zero_latency(real);
    let mut phase = |order: PutOrder, total: u64, timed: bool| -> Result<f64, BenchError> {
        harness.putter.begin(order, total, timed);
        let begin = runner.now();
        if !run_to_end(&mut runner, &mut harness.putter, &mut harness.drive) {
            return Err(BenchError::Thread("putting values"));
        }
        if harness.putter.failed > 0 {
            let (case, failed) = ("putting values".to_owned(), harness.putter.failed);
            return Err(BenchError::Failed { case, failed, requests: total });
        }
        let seconds = match harness.putter.clock {
            Some(clock) => clock.as_secs_f64(),
            None => runner.now().since(begin).as_secs_f64(),
        };
        Ok(seconds / total as f64)
    };
    let fill = phase(PutOrder::Sequence, live, real)?;
    // Repeat until the result is the same in each round.
    phase(PutOrder::Random(live, Rng::new(1)), 2 * live, false)?;
    let overwrite = phase(PutOrder::Random(live, Rng::new(2)), rounds * live, real)?;
    Ok(PutTimes { fill, overwrite })
}

/// Compares the stores on the drive of `plan`, or on the default drive.
///
/// # Errors
/// If a harness cannot be initialized, or if a request fails.
pub fn run(
    plan: Option<&DriveSpec>,
    config: KvConfig,
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let own = Scenario::parse(std::path::Path::new("bench"), DRIVE).map_err(setup)?;
    let plan = plan.unwrap_or(&own.drives[0]);
    let ways =
        [StoreKind::Pblk, StoreKind::Kv { checksum: true }, StoreKind::Kv { checksum: false }];
    let bytes = f64::from(drive_chunk_sectors(plan)?) * sector_bytes(plan);
    // The capacity of the smaller store, less a tenth.
    let capacities = [
        build_harness(plan, StoreKind::Pblk, config)?.capacity,
        build_harness(plan, ways[1], config)?.capacity,
    ];
    let live = (capacities[0].min(capacities[1]) * 9 / 10).max(1);
    let live = effort.choose(live, live.min(64));
    let size = format!("{:.2} MB", bytes / f64::from(1 << 20));
    for real in [false, true] {
        let ways = if real { &ways[..] } else { &ways[..2] };
        // Virtual time is the same in each run.
        let repeats = if real { effort.choose(5, 1) } else { 1 };
        let laps = effort.choose(2, 1);
        let measured = match real {
            false => ways
                .iter()
                .map(|way| {
                    Ok(vec![measure_times(
                        &mut build_harness(plan, *way, config)?,
                        live,
                        laps,
                        false,
                    )?])
                })
                .collect::<Result<Vec<_>, BenchError>>()?,
            true => interleave(repeats, ways.len(), |way| {
                measure_times(&mut build_harness(plan, ways[way], config)?, live, laps, true)
            })?,
        };
        for (i, phase) in ["filling", "overwriting at random"].into_iter().enumerate() {
            let mut reference = None;
            for (way, times) in ways.iter().zip(&measured) {
                let case = format!("puts of {size}, {}, {phase}", way.name());
                let seconds = times.iter().map(|t| [t.fill, t.overwrite][i]).collect();
                let seconds = Samples::new(seconds)
                    .ok_or_else(|| BenchError::NoValue { case: case.clone(), metric: "time" })?;
                let row = Row { case, bytes, seconds: seconds.median(), reference, real };
                row.push(sink)?;
                reference.get_or_insert(row.seconds);
            }
        }
    }
    Ok(())
}

/// Measurement of one store in one phase.
struct Row {
    case: String,
    bytes: f64,
    /// Seconds per value.
    seconds: f64,
    /// Value of pblk.
    reference: Option<f64>,
    real: bool,
}

impl Row {
    fn push(&self, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let Row { bytes, seconds, reference, real, .. } = *self;
        let (time, metric) = match real {
            true => ("host's CPU", "host_bound_throughput"),
            false => ("virtual time", "throughput"),
        };
        let case = format!("{}, {time}", self.case);
        let gigabytes = |seconds: f64| bytes / seconds / 1e9;
        let mut push = |metric, unit, value: f64, other: Option<f64>| {
            let row = Measurement::new(BENCH, case.clone(), metric, value, unit);
            sink.push(match other {
                Some(other) => row.with_reference("pblk", other),
                None => row,
            })
        };
        push(metric, "GB/s", gigabytes(seconds), reference.map(gigabytes))?;
        if !real {
            return Ok(());
        }
        push("host_time_per_put", "us", seconds * 1e6, reference.map(|s| s * 1e6))?;
        let Some(other) = reference else { return Ok(()) };
        for (metric, ours, thesis) in [
            ("throughput_over_pblk", other / seconds, THESIS_THROUGHPUT),
            ("cpu_over_pblk", seconds / other, THESIS_CPU),
        ] {
            let row = Measurement::new(BENCH, case.clone(), metric, ours, "");
            sink.push(row.with_reference("thesis, table 4", thesis))?;
        }
        Ok(())
    }
}

fn sector_bytes(plan: &DriveSpec) -> f64 {
    match &plan.config.media {
        media::MediaConfig::Nand(nand) => nand.host_geometry().sector_bytes.into(),
        _ => 0.0,
    }
}
