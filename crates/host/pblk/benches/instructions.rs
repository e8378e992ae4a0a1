//! Counts the instructions that pblk adds to a request on the host. Unlike a time, the count is
//! independent of noise. ([LightNVM17 §5], CPU utilization, measures 400 ns for a read and 900 ns
//! for a write.)
//!
//! The same 4 KB requests run on the raw path, on pblk and on two shards, over a drive that only
//! completes commands. The case runs in a child process. Between two markers, the parent
//! single-steps the child and counts the steps.
//!
//! Only the host's part of a batch is counted: from submission to doorbell, and from poll to the
//! last completion reaped. Filling the device, drawing addresses and running the drive take place
//! at full speed between the markers. A build has the same count on a busy machine; only the
//! variant of `memcpy` that the processor selects affects it.
//!
//! | case | device |
//! |---|---|
//! | `raw` | a queue pair of the drive |
//! | `pblk` | pblk |
//! | `rules` | pblk whose requests `demo/rules/page.rules` decides about |
//! | `checked` | as `rules`, behind a rule that compares the sector |
//! | `shards` | pblk in two shards |
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-pblk --bench instructions` | counts, and fails if a bound is exceeded |
//! | the command above with `-- run pblk-write 100000` | runs as many batches without a tracer, for timing or a profiler |

// guarantee: B-130

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use block::{BlockDevice, Payload, Raw, Request};
use driver::{ControllerInfo, OpenChannelInfo, QueuePair, RingAddresses};
use ftl::FtlConfig;
use mem::{PAGE_BYTES, SharedRegion};
use nvme::{ChunkDescriptor, ChunkState, Cqe, Geometry, MediaTiming, PpaFormat, Sqe, Status};
use pblk::{Pblk, Sharded, ShardedConfig, TargetRulesConfig};
use rng::Rng;
use rules::RuleLimits;
use rules_lang::{CompileOptions, check};
use testkit::instructions::{
    CountedCase, CountingMethod, DifferenceBound, Failed, InstructionBench, Marker, RepeatCount,
};
use time::Nanos;
use transport::{CqProducer, Port, SqConsumer};

/// Requests of a batch per handle.
const BATCH: u64 = 32;
/// Number of counted batches; of writes, 10 write units.
const BATCHES: u64 = 5;
/// Number of batches before them, until all one-time work is done.
const WARM_UP_BATCHES: u64 = 3;
/// Entries of a queue pair.
const DEPTH: u16 = 1024;
/// Number of sectors that requests access.
const AREA_SECTORS: u64 = 1 << 18;

/// Upper bounds of host instructions per request, the application's part included.
const CASES: [CountedCase; 10] = [
    CountedCase { name: "raw-read", base: "", bound: 530.0, batch: BATCH },
    CountedCase { name: "raw-write", base: "", bound: 530.0, batch: BATCH },
    CountedCase { name: "pblk-read", base: "raw-read", bound: 730.0, batch: BATCH },
    CountedCase { name: "pblk-write", base: "raw-write", bound: 730.0, batch: BATCH },
    CountedCase { name: "rules-read", base: "pblk-read", bound: 850.0, batch: BATCH },
    CountedCase { name: "rules-write", base: "pblk-write", bound: 850.0, batch: BATCH },
    CountedCase { name: "checked-read", base: "pblk-read", bound: 850.0, batch: BATCH },
    CountedCase { name: "checked-write", base: "pblk-write", bound: 850.0, batch: BATCH },
    CountedCase { name: "shards-read", base: "pblk-read", bound: 1030.0, batch: 2 * BATCH },
    CountedCase { name: "shards-write", base: "pblk-write", bound: 1050.0, batch: 2 * BATCH },
];

/// Maximum instructions that rules add to a request: at most 120 if they compare and place.
const DIFFERENCES: [DifferenceBound; 4] = [
    DifferenceBound { case: "rules-read", base: "pblk-read", bound: 120.0 },
    DifferenceBound { case: "rules-write", base: "pblk-write", bound: 120.0 },
    DifferenceBound { case: "checked-read", base: "pblk-read", bound: 120.0 },
    DifferenceBound { case: "checked-write", base: "pblk-write", bound: 120.0 },
];

/// The page-mapped program.
const PAGE: &str = include_str!("../../../../demo/rules/page.rules");

/// A rule that is tried before those of [`PAGE`], and compares the sector.
const CHECK: &str = "rule check priority 5\n  when channel.app == db and header.lba > 1000000000\n  \
    do complete denied\n";

/// The geometry of [LightNVM17 §5], with a sixteenth of its chunks.
fn geometry() -> Geometry {
    Geometry {
        groups: 16,
        pus: 8,
        chunks: 67,
        sectors: 4096,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 16,
        ws_opt: 16,
        mw_cunits: 128,
    }
}

fn info(geometry: Geometry, format: PpaFormat) -> ControllerInfo {
    ControllerInfo {
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
            timing: MediaTiming::default(),
            can_copy: false,
            max_open_chunks: 0,
            extensions: nvme::VendorExtensions::default(),
        }),
    }
}

/// The descriptors of a drive that was never written.
fn chunks(geometry: &Geometry, format: &PpaFormat) -> Vec<ChunkDescriptor> {
    let sectors = u64::from(geometry.sectors);
    let free = |chunk: u64| ChunkDescriptor {
        state: ChunkState::Free.to_bits(),
        kind: ChunkDescriptor::SEQUENTIAL,
        slba: format.pack(geometry.from_flat(chunk * sectors).unwrap_or_default()).0.into(),
        cnlb: sectors.into(),
        ..ChunkDescriptor::default()
    };
    (0..geometry.total_sectors() / sectors).map(free).collect()
}

/// A drive that completes every command at once.
struct Echo {
    sq: SqConsumer,
    cq: CqProducer,
    qid: u16,
}

impl Echo {
    /// Creates both ends of a queue pair, the drive's and the host's.
    fn new(port: &Arc<Port>, qid: u16) -> Result<(Echo, QueuePair), Failed> {
        let bytes = (usize::from(DEPTH) * size_of::<Sqe>()).next_multiple_of(PAGE_BYTES);
        let memory = SharedRegion::anonymous(2 * bytes)?;
        let submission = port.memory().register(&memory)?;
        let completion = submission.offset(bytes as u64);
        let sq = SqConsumer::open(port, qid, submission, DEPTH)?;
        let cq = CqProducer::open(port, qid, completion, DEPTH, None)?;
        let pair =
            QueuePair::open(port, qid, RingAddresses { submission, completion }, DEPTH, None)?;
        Ok((Echo { sq, cq, qid }, pair))
    }

    fn poll(&mut self) -> Result<(), Failed> {
        let (sq_id, status) = (self.qid, Status::SUCCESS);
        self.sq.read_tail().map_err(|e| format!("{e:?}"))?;
        while let Some(sqe) = self.sq.fetch() {
            let (sq_head, cid) = (self.sq.head(), sqe.cid.get());
            let posted = self.cq.post(Cqe { result: 0, sq_head, sq_id, cid, status });
            posted.map_err(|e| format!("{e:?}"))?;
        }
        Ok(())
    }
}

/// The handles of a device, one per core, each with the drive behind it.
struct DeviceEnds<D>(Vec<(D, Echo)>);

impl<D: BlockDevice> DeviceEnds<D> {
    /// Runs a batch on every handle, interleaved, until all requests are complete.
    fn batch(&mut self, requests: &[Request], marker: &mut Marker) -> Result<(), Failed> {
        let mut reaped = 0;
        let mut own: Vec<&[Request]> = requests.chunks(BATCH as usize).collect();
        while reaped < requests.len() {
            for ((device, echo), own) in self.0.iter_mut().zip(&mut own) {
                marker.mark()?;
                for request in std::mem::take(own) {
                    device.submit(Nanos(1), *request)?;
                }
                device.poll(Nanos(1));
                marker.mark()?;
                echo.poll()?;
                marker.mark()?;
                device.poll(Nanos(1));
                while let Some(done) = device.reap() {
                    if !done.status.is_success() {
                        return Err(format!("{done:?}").into());
                    }
                    reaped += 1;
                }
                marker.mark()?;
            }
        }
        Ok(())
    }

    /// Writes the area sequentially, then submits batches of single sectors at random addresses.
    fn run(mut self, writes: bool, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
        let (all, data, mut rng) = (BATCH * self.0.len() as u64, Payload::BitBucket, Rng::new(1));
        for row in (0..AREA_SECTORS).step_by(32 * all as usize) {
            let write = |i: u64| Request::write(row + 32 * i, 32, data, i);
            self.batch(&(0..all).map(write).collect::<Vec<_>>(), &mut Marker::Off)?;
        }
        for i in 0..WARM_UP_BATCHES + batches {
            let mut draw = |tag| match writes {
                true => Request::write(rng.below(AREA_SECTORS), 1, data, tag),
                false => Request::read(rng.below(AREA_SECTORS), 1, data, tag),
            };
            let requests: Vec<Request> = (0..all).map(&mut draw).collect();
            match i < WARM_UP_BATCHES {
                true => self.batch(&requests, &mut Marker::Off)?,
                false => self.batch(&requests, marker)?,
            }
        }
        Ok(())
    }
}

/// Returns the settings with a program, whose application has the whole drive.
fn program(source: &str, geometry: &Geometry) -> Result<TargetRulesConfig, Failed> {
    let units = format!("units = 0-{}", geometry.groups * geometry.pus - 1);
    let source = source.replace("units = 0-63", &units);
    let settings = TargetRulesConfig::default();
    let RuleLimits { grant, sector_bytes, lines } = settings.limits(geometry, 0);
    let options = CompileOptions { grant, sector_bytes, lines };
    let verified = check(Path::new("page.rules"), source.as_bytes(), &options)?;
    Ok(TargetRulesConfig { program: verified.program().encode(), ..settings })
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let (port, geometry) = (Port::new()?, geometry());
    let format = PpaFormat::from_geometry(&geometry)?;
    let (info, chunks) = (info(geometry, format), chunks(&geometry, &format));
    let (echo, pair) = Echo::new(&port, 1)?;
    let (device, op) = case.split_once('-').unwrap_or_default();
    let writes = match op {
        "write" => true,
        "read" => false,
        _ => return Err(format!("no such case: {case}").into()),
    };
    let nothing = &mut || {};
    match device {
        "raw" => {
            let info = ControllerInfo { open_channel: None, oob_bytes: 0, ..info };
            DeviceEnds(vec![(Raw::from_pair(&info, pair, port)?, echo)])
                .run(writes, batches, marker)
        }
        "pblk" => {
            let config = FtlConfig::default();
            let pblk = Pblk::open(&info, &chunks, pair, port, config, nothing, false)?;
            DeviceEnds(vec![(pblk, echo)]).run(writes, batches, marker)
        }
        "rules" | "checked" => {
            let config = FtlConfig::default();
            let mut pblk = Pblk::open(&info, &chunks, pair, port, config, nothing, false)?;
            let check = if device == "checked" { CHECK } else { "" };
            pblk.install_rules(Nanos(0), &program(&format!("{PAGE}{check}"), &geometry)?)?;
            DeviceEnds(vec![(pblk, echo)]).run(writes, batches, marker)
        }
        "shards" => {
            let (other, second) = Echo::new(&port, 2)?;
            let (queues, config) = (vec![pair, second], ShardedConfig::new(2));
            let sharded = Sharded::open(&info, &chunks, queues, port, config, nothing, false)?;
            let handles = sharded.into_shards().into_iter();
            DeviceEnds(handles.zip([echo, other]).collect()).run(writes, batches, marker)
        }
        _ => Err(format!("no such case: {case}").into()),
    }
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &[],
        differences: &DIFFERENCES,
        batches: BATCHES,
        method: CountingMethod::SingleSteps(RepeatCount::Iterations),
        run,
    }
    .main()
}
