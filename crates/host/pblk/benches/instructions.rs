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
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-pblk --bench instructions` | counts, and fails if a bound is exceeded |
//! | the command above with `-- run pblk-write 100000` | runs as many batches without a tracer, for timing or a profiler |

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{BlockDevice, Payload, Raw, Request};
use driver::{ControllerInfo, OpenChannelInfo, QueuePair, RingAddresses};
use ftl::FtlConfig;
use mem::{PAGE_BYTES, SharedRegion};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use nvme::{ChunkDescriptor, ChunkState, Cqe, Geometry, MediaTiming, PpaFormat, Sqe, Status};
use pblk::{Pblk, Sharded, ShardedConfig};
use rng::Rng;
use time::Nanos;
use transport::{CqProducer, Port, SqConsumer};

/// Any error; it is printed, and the benchmark fails.
type Failed = Box<dyn std::error::Error>;

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

/// Upper bounds of host instructions per request, the application's part included, and the case to
/// compare with. The bound applies to the total, not to the difference, so that a regression of the
/// compared case hides nothing.
const BOUNDS: [(&str, &str, f64); 6] = [
    ("raw-read", "", 530.0),
    ("raw-write", "", 530.0),
    ("pblk-read", "raw-read", 730.0),
    ("pblk-write", "raw-write", 730.0),
    ("shards-read", "pblk-read", 1030.0),
    ("shards-write", "pblk-write", 1050.0),
];

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

/// Is called where the host's part of a batch begins and where it ends.
trait Marker {
    fn mark(&mut self) -> Result<(), Failed>;
}

/// Notifies the tracer, by a signal that the tracer does not deliver.
struct Traced;

impl Marker for Traced {
    fn mark(&mut self) -> Result<(), Failed> {
        Ok(raise(Signal::SIGSTOP)?)
    }
}

/// Measures the time between markers.
#[derive(Default)]
struct Timed {
    begun: Option<Instant>,
    total: Duration,
}

impl Marker for Timed {
    fn mark(&mut self) -> Result<(), Failed> {
        match self.begun.take() {
            Some(begun) => self.total += begun.elapsed(),
            None => self.begun = Some(Instant::now()),
        }
        Ok(())
    }
}

/// The handles of a device, one per core, each with the drive behind it.
struct DeviceEnds<D>(Vec<(D, Echo)>);

impl<D: BlockDevice> DeviceEnds<D> {
    /// Runs a batch on every handle, interleaved, until all requests are complete.
    fn batch(&mut self, requests: &[Request], marker: &mut impl Marker) -> Result<(), Failed> {
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
    fn run(mut self, writes: bool, batches: u64, marker: &mut impl Marker) -> Result<(), Failed> {
        let (all, data, mut rng) = (BATCH * self.0.len() as u64, Payload::BitBucket, Rng::new(1));
        for row in (0..AREA_SECTORS).step_by(32 * all as usize) {
            let write = |i: u64| Request::write(row + 32 * i, 32, data, i);
            self.batch(&(0..all).map(write).collect::<Vec<_>>(), &mut Timed::default())?;
        }
        for i in 0..WARM_UP_BATCHES + batches {
            let mut draw = |tag| match writes {
                true => Request::write(rng.below(AREA_SECTORS), 1, data, tag),
                false => Request::read(rng.below(AREA_SECTORS), 1, data, tag),
            };
            let requests: Vec<Request> = (0..all).map(&mut draw).collect();
            match i < WARM_UP_BATCHES {
                true => self.batch(&requests, &mut Timed::default())?,
                false => self.batch(&requests, marker)?,
            }
        }
        Ok(())
    }
}

/// Returns the number of handles of a case's device.
fn ends(case: &str) -> u64 {
    if case.starts_with("shards") { 2 } else { 1 }
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut impl Marker) -> Result<(), Failed> {
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
        "shards" => {
            let (other, second) = Echo::new(&port, 2)?;
            let (queues, config) = (vec![pair, second], ShardedConfig::new(2));
            let sharded = Sharded::open(&info, &chunks, queues, port, config, nothing, false)?;
            let handles = sharded.into_shards().into_iter();
            DeviceEnds(handles.zip([echo, other]).collect()).run(writes, batches, marker)
        }
        // The cost of the markers themselves.
        "nothing" => {
            for _ in 0..2 * batches {
                marker.mark()?;
            }
            Ok(())
        }
        _ => Err(format!("no such case: {case}").into()),
    }
}

/// Runs a case in a child. Returns the number of instructions between markers, and the number of
/// marker pairs.
fn count(case: &str) -> Result<(u64, u64), Failed> {
    let program = std::env::current_exe()?;
    let batches = BATCHES.to_string();
    let child = Command::new(program).args(["traced", case, &batches]).spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (mut counted, mut marks) = (0, 0);
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                if marks == 0 {
                    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
                }
                marks += 1;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => counted += 1,
            WaitStatus::Exited(_, 0) => return Ok((counted, marks / 2)),
            other => return Err(format!("{case}: the child ends with {other:?}").into()),
        }
        if marks % 2 == 1 { ptrace::step(pid, None)? } else { ptrace::cont(pid, None)? }
    }
}

/// Counts all cases. Returns whether all bounds hold.
fn gate() -> Result<bool, Failed> {
    // A step takes two context switches; on a single CPU they need no wakeup of another CPU.
    let (this, allowed) = (Pid::from_raw(0), sched_getaffinity(Pid::from_raw(0))?);
    if let Some(cpu) = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)) {
        let mut one = CpuSet::new();
        one.set(cpu)?;
        sched_setaffinity(this, &one)?;
    }
    let (nothing, pairs) = count("nothing-read")?;
    let per_pair = nothing as f64 / pairs as f64;
    let (mut holds, mut found) = (true, Vec::new());
    for (case, base, bound) in BOUNDS {
        let (counted, pairs) = count(case)?;
        let requests = (BATCHES * BATCH * ends(case)) as f64;
        let each = (counted as f64 - per_pair * pairs as f64) / requests;
        let verdict = if each <= bound { "ok" } else { "FAIL" };
        print!("{case:12} {each:7.1} instructions per request, at most {bound:4.0}: {verdict}");
        match found.iter().find(|(other, _)| *other == base) {
            Some((_, other)) => println!("; {:+.1} over {base}", each - other),
            None => println!(),
        }
        found.push((case, each));
        holds &= each <= bound;
    }
    Ok(holds)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => gate(),
        ["traced", case, batches] => (|| {
            ptrace::traceme()?;
            run(case, batches.parse()?, &mut Traced).map(|()| true)
        })(),
        ["run", case, batches] => (|| {
            let (mut timed, batches) = (Timed::default(), batches.parse()?);
            run(case, batches, &mut timed)?;
            let requests = batches * BATCH * ends(case);
            println!("{case}: {:.1} ns", timed.total.as_nanos() as f64 / requests as f64);
            Ok(true)
        })(),
        _ => Err("no arguments, or: run CASE BATCHES".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
