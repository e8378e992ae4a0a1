//! Instruction counts of user-level I/O: a gate that is insensitive to noise.
//!
//! | case | instructions counted, per 4 KB read, 32 outstanding |
//! |---|---|
//! | `queue` | everything, on the null device: submission, doorbell, reaping, the application |
//! | `hit` | a hit of the block cache, including the copy of 4 KB |
//! | `drive` | the drive's iteration for an unrestricted host: fetch, check, completion |
//! | `drive-part` | as `drive`, for a host with a partition, as all hosts in other processes have |
//! | `drive-data` | as `drive-part`, for a read with data that the drive does not have: its memory is checked |
//! | `client` | the host's side of that queue pair |
//!
//! A child process is single-stepped between two markers, and the steps are counted. A build yields
//! the same count however busy the machine is. Of the machine, only the variant of `memcpy` that
//! its processor selects matters. A repeated string instruction counts once.
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-user-io --bench instructions` | counts, and fails if a bound is exceeded |
//! | the same with `-- run hit 100000` | runs that many batches without a tracer, for a profiler |

use std::process::{Command, ExitCode};

use block::{BlockDevice as _, Limits, Raw};
use controller::{
    AccessPolicy, AccessScope, Controller, ControllerConfig, DriveConfig, NullConfig,
    OpenChannelConfig, PersonalityKind, PuScheduling, TransferConfig, WriteBuffer,
};
use driver::{ControllerHandle, NvmeQueue};
use ftl::FtlConfig;
use media::MediaConfig;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rng::Rng;
use time::{Component, Nanos};
use transport::Port;
use user_io::{
    Buffer, Cache, CacheConfig, Completion, Handle, IoDevice, Payload, QueueConfig, Request,
};

/// Any error is printed and fails the gate.
type Failed = Box<dyn std::error::Error>;

/// Requests per batch.
const BATCH: u64 = 32;
/// Batches counted.
const BATCHES: u64 = 8;
/// Warm-up batches, in which one-time work happens.
const WARMUP_BATCHES: u64 = 8;
const SECTOR: u32 = 4096;
/// Range of the requests, in sectors.
const LBA_RANGE_SECTORS: u64 = 128;

/// Maximum instructions, for the workspace's own profile (`lto = "fat"`) as `cargo bench` uses it:
/// 2 % more than counted. A build without link-time optimization is mostly below.
const BOUNDS: [(&str, f64); 6] = [
    ("queue", 366.0),
    ("hit", 552.0),
    ("drive", 775.0),
    ("drive-part", 832.0),
    ("drive-data", 858.0),
    ("client", 368.0),
];

/// Notifies the tracer by a signal, which the tracer does not deliver.
fn mark(traced: bool) -> Result<(), Failed> {
    if traced { Ok(raise(Signal::SIGSTOP)?) } else { Ok(()) }
}

fn check_completion(done: Option<Completion>) -> Result<bool, Failed> {
    match done {
        Some(done) if !done.status.is_success() => Err(format!("{done:?}").into()),
        done => Ok(done.is_some()),
    }
}

/// Reads through a handle over the null device.
fn through_handle<D: block::BlockDevice>(
    mut handle: Handle<D>,
    data: &Buffer,
    (batches, traced): (u64, bool),
) -> Result<(), Failed> {
    let mut rng = Rng::new(1);
    for round in 0..WARMUP_BATCHES + batches {
        let counted = traced && round >= WARMUP_BATCHES;
        let slot = |i: u64| Payload::Contiguous(data.iova().offset(i * u64::from(SECTOR)));
        let lbas: [u64; BATCH as usize] = std::array::from_fn(|_| rng.below(LBA_RANGE_SECTORS));
        mark(counted)?;
        for (i, lba) in (0..).zip(lbas) {
            handle.submit(Request::read(lba, 1, slot(i), i))?;
        }
        let mut left = BATCH;
        while left > 0 {
            handle.poll();
            while check_completion(handle.reap())? {
                left -= 1;
            }
        }
        mark(counted)?;
    }
    Ok(())
}

fn null_device() -> IoDevice {
    IoDevice::null(Limits {
        sector_bytes: SECTOR,
        sectors: 1 << 28,
        max_sectors: 256,
        optimal_sectors: 1,
        queue_depth: 256,
        volatile_cache: false,
    })
}

fn null_drive() -> DriveConfig {
    DriveConfig {
        name: "bench0".into(),
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 64 << 20, sector_bytes: SECTOR },
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig { latency: Nanos::ZERO, bytes_per_sec: 0 },
        open_channel: OpenChannelConfig::default(),
    }
}

/// The side of a queue pair that is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    Drive,
}

/// Runs a drive, and a host with all or a part of it.
fn over_a_drive(
    (restricted, with_data, side): (bool, bool, Side),
    (batches, traced): (u64, bool),
) -> Result<(), Failed> {
    let mut drive = Controller::new(null_drive())?;
    let port = match restricted {
        false => drive.attach()?,
        true => {
            let port = Port::new()?;
            drive.attach_as(
                &port,
                AccessPolicy::for_scope(AccessScope::Sectors {
                    first: 64,
                    count: 2 * LBA_RANGE_SECTORS,
                }),
            )?;
            port
        }
    };
    let progress = &mut || {
        drive.poll(Nanos(1));
    };
    let mut controller = ControllerHandle::connect(port.clone(), progress, 1000)?;
    let pair = controller.create_queue_pair(256, None, progress)?;
    let queue = NvmeQueue::new(controller.info(), pair, port.clone())?;
    let limits = queue.limits();
    let mut raw = Raw::new(queue, limits);
    let (_memory, at) = raw.memory().allocate_registered((BATCH * u64::from(SECTOR)) as usize)?;
    let mut rng = Rng::new(1);
    let mut now = Nanos(1);
    for round in 0..WARMUP_BATCHES + batches {
        let counted = |which| traced && round >= WARMUP_BATCHES && which == side;
        let lbas: [u64; BATCH as usize] = std::array::from_fn(|_| rng.below(LBA_RANGE_SECTORS));
        now += Nanos(1000);
        mark(counted(Side::Host))?;
        for (i, lba) in (0..).zip(lbas) {
            let data = match with_data {
                true => Payload::Contiguous(at.offset(i * u64::from(SECTOR))),
                false => Payload::BitBucket,
            };
            raw.submit(now, Request::read(lba, 1, data, i))?;
        }
        raw.poll(now);
        mark(counted(Side::Host))?;
        mark(counted(Side::Drive))?;
        drive.poll(now);
        mark(counted(Side::Drive))?;
        mark(counted(Side::Host))?;
        let mut left = BATCH;
        while left > 0 {
            raw.poll(now);
            while check_completion(raw.reap())? {
                left -= 1;
            }
        }
        mark(counted(Side::Host))?;
    }
    Ok(())
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, traced: bool) -> Result<(), Failed> {
    let how = (batches, traced);
    match case {
        "queue" | "hit" => {
            let device = null_device();
            let queue = device.create_queue(QueueConfig::default())?;
            let data = device.buffer((BATCH * u64::from(SECTOR)) as usize)?;
            if case == "queue" {
                return through_handle(Handle::new(&device, queue)?, &data, how);
            }
            let config = CacheConfig {
                bytes: 2 * LBA_RANGE_SECTORS * u64::from(SECTOR),
                ..Default::default()
            };
            let mut handle = Handle::new(&device, Cache::new(&device, queue, config)?)?;
            for lba in 0..LBA_RANGE_SECTORS {
                handle.run(Request::read(lba, 1, data.payload(), 0))?;
            }
            through_handle(handle, &data, how)
        }
        "drive" => over_a_drive((false, false, Side::Drive), how),
        "drive-part" => over_a_drive((true, false, Side::Drive), how),
        "drive-data" => over_a_drive((true, true, Side::Drive), how),
        "client" => over_a_drive((true, true, Side::Host), how),
        // Cost of the markers.
        "nothing" => {
            for _ in 0..2 * batches {
                mark(traced)?;
            }
            Ok(())
        }
        _ => Err(format!("no such case: {case}").into()),
    }
}

/// Runs a case in a child; returns the instructions between its markers, and the number of marker
/// pairs.
fn count(case: &str) -> Result<(u64, u64), Failed> {
    let program = std::env::current_exe()?;
    let batches = BATCHES.to_string();
    let child = Command::new(program).args(["traced", case, &batches]).spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (mut counted, mut marks, mut last) = (0, 0, 0);
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                if marks == 0 {
                    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
                }
                marks += 1;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                // A repeated string instruction is stepped once per iteration; count it once.
                let at = ptrace::getregs(pid)?.rip;
                counted += u64::from(at != last);
                last = at;
            }
            WaitStatus::Exited(_, 0) => return Ok((counted, marks / 2)),
            other => return Err(format!("{case}: the child ends with {other:?}").into()),
        }
        if marks % 2 == 1 { ptrace::step(pid, None)? } else { ptrace::cont(pid, None)? }
    }
}

/// Counts all cases; returns whether all bounds hold.
fn gate() -> Result<bool, Failed> {
    // A step needs two context switches: on a single CPU neither process must be woken on another.
    let (this, allowed) = (Pid::from_raw(0), sched_getaffinity(Pid::from_raw(0))?);
    if let Some(cpu) = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)) {
        let mut one = CpuSet::new();
        one.set(cpu)?;
        sched_setaffinity(this, &one)?;
    }
    let (nothing, pairs) = count("nothing")?;
    let per_pair = nothing as f64 / pairs as f64;
    let mut holds = true;
    for (case, bound) in BOUNDS {
        let (counted, pairs) = count(case)?;
        let each = (counted as f64 - per_pair * pairs as f64) / (BATCHES * BATCH) as f64;
        let verdict = if each <= bound { "ok" } else { "FAIL" };
        println!("{case:12} {each:7.1} instructions per request, at most {bound:4.0}: {verdict}");
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
            run(case, batches.parse()?, true).map(|()| true)
        })(),
        ["run", case, batches] => (|| run(case, batches.parse()?, false).map(|()| true))(),
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
