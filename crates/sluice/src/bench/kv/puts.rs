//! Values of one chunk through kv and through pblk, on the same drive with the same values: what the
//! thesis compares in Table 4 (1 MB sequential writes on a null device: 44.7 against 28.1 GB/s, 50.0
//! against 67.2 % of kernel time).
//!
//! Two questions. *Throughput in virtual time*: what the drive can do when one or the other manages it,
//! first while it fills up, then when values are overwritten at random. *The host's CPU in real time*:
//! the CPU time of the calls into the target, with the drive's own work done between them and not
//! counted, the median of several rounds in turns; contents are kept, so that whoever copies pays for it. pblk copies every value into its
//! write buffer; kv writes whole chunks from where they are, and makes a checksum of each unless it is
//! told not to.

use std::sync::Arc;
use std::time::Duration;

use block::{BlockDevice, Payload, Request};
use clock::{Component, Nanos, VirtualRunner};
use drive::Controller;
use ftl::FtlConfig;
use lightnvm::{Key, Kv, KvConfig, KvRequest, ValueBuffer};
use ring::{Iova, SharedRegion};
use rng::Rng;
use rustix::time::{ClockId, clock_gettime};

use super::BENCH;
use super::harness::{KvHarness, VirtualHost, run_to_end, setup};
use crate::bench::{BenchError, Measurement, RunLength, Samples, Sink, interleave};
use crate::scenario::{DriveSpec, Scenario, Target};
use crate::stack::{Stack, StackDevice};

/// The drive, unless a scenario gives one: the LightNVM paper's, with chunks of 1 MB as the thesis has
/// them, and fewer of everything so that contents fit in memory.
pub const DRIVE: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n\
                         geometry = { channels = 4, pus = 4, pages = 16, chunks = 32 }\n";

/// Values at a time.
const DEPTH: usize = 32;

/// Table 4: throughput of kv over that of the page-mapped target, and time in the kernel.
const THESIS_THROUGHPUT: f64 = 44.7 / 28.1;
const THESIS_CPU: f64 = 50.01 / 67.20;

/// What takes values.
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
    /// A request's tag, and whether it succeeded.
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

/// Values side by side on a block device.
#[derive(Debug)]
struct BlockValueStore {
    device: StackDevice,
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

/// Which value is put next.
#[derive(Debug)]
enum PutOrder {
    /// One after the other.
    Sequence,
    /// Any of so many.
    Random(u64, Rng),
}

/// Puts values, so many at a time, and syncs at the end.
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
    /// Time in the store's calls, if it is measured.
    clock: Option<Duration>,
}

/// CPU time of the calling thread: what others do on the machine does not count.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The tag of the sync.
const SYNC: u64 = DEPTH as u64;

impl Putter {
    fn new(
        store: Box<dyn ValueStore>,
        space: &ring::AddressSpace,
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

/// One of the ways to put values.
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

/// What is held as long as a way is used.
struct PutHarness {
    putter: Putter,
    drive: Controller,
    /// Values that can be there at a time, of so many bytes.
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
        let (bytes, capacity) = (kv.layout().chunk_bytes.into(), kv.layout().capacity.into());
        let space = kv.memory().clone();
        let putter = Putter::new(Box::new(kv), &space, bytes)?;
        return Ok(PutHarness { putter, drive, capacity, _controller: Some(controller) });
    }
    let mut plan = plan.clone();
    plan.target = Target::Pblk(FtlConfig::default());
    let stack = Stack::build(&plan, None).map_err(setup)?;
    let Stack { drive, device, port, .. } = stack;
    let sectors = drive_chunk_sectors(&plan)?;
    let bytes = u64::from(sectors) * u64::from(device.limits().sector_bytes);
    let capacity = device.limits().sectors / u64::from(sectors);
    let blocks = BlockValueStore { device, sectors };
    let putter = Putter::new(Box::new(blocks), port.memory(), bytes)?;
    Ok(PutHarness { putter, drive, capacity, _controller: None })
}

/// Sectors of a chunk, as the host sees it.
fn drive_chunk_sectors(plan: &DriveSpec) -> Result<u32, BenchError> {
    match &plan.config.media {
        media::MediaConfig::Nand(nand) => Ok(nand.host_geometry().sectors),
        _ => Err(setup("the drive has no chunks")),
    }
}

/// Times of one way: while the drive fills up, and when values are overwritten.
struct PutTimes {
    fill: f64,
    overwrite: f64,
}

/// Seconds per value. In virtual time those of the drive, else those of the host's calls.
fn measure_times(
    bed: &mut PutHarness,
    live: u64,
    rounds: u64,
    real: bool,
) -> Result<PutTimes, BenchError> {
    let mut runner = VirtualRunner::new();
    bed.drive.set_zero_latency(real);
    let mut phase = |order: PutOrder, total: u64, timed: bool| -> Result<f64, BenchError> {
        bed.putter.begin(order, total, timed);
        let begin = runner.now();
        if !run_to_end(&mut runner, &mut bed.putter, &mut bed.drive) {
            return Err(BenchError::Thread("putting values"));
        }
        if bed.putter.failed > 0 {
            let (case, failed) = ("putting values".to_owned(), bed.putter.failed);
            return Err(BenchError::Failed { case, failed, requests: total });
        }
        let seconds = match bed.putter.clock {
            Some(clock) => clock.as_secs_f64(),
            None => runner.now().since(begin).as_secs_f64(),
        };
        Ok(seconds / total as f64)
    };
    let fill = phase(PutOrder::Sequence, live, real)?;
    // Until it is the same from round to round.
    phase(PutOrder::Random(live, Rng::new(1)), 2 * live, false)?;
    let overwrite = phase(PutOrder::Random(live, Rng::new(2)), rounds * live, real)?;
    Ok(PutTimes { fill, overwrite })
}

/// Compares the ways on the drive of `plan`, or on the thesis's.
///
/// # Errors
/// When a rig does not come up, or a request fails.
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
    // As much as the smaller of them holds, and a tenth less.
    let capacities = [
        build_harness(plan, StoreKind::Pblk, config)?.capacity,
        build_harness(plan, ways[1], config)?.capacity,
    ];
    let live = (capacities[0].min(capacities[1]) * 9 / 10).max(1);
    let live = effort.choose(live, live.min(64));
    let size = format!("{:.2} MB", bytes / f64::from(1 << 20));
    for real in [false, true] {
        let ways = if real { &ways[..] } else { &ways[..2] };
        // Virtual time is the same every time.
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

/// What was measured of one way in one phase.
struct Row {
    case: String,
    bytes: f64,
    /// Per value.
    seconds: f64,
    /// pblk's.
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
