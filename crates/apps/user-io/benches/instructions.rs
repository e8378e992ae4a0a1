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

use std::process::ExitCode;

use block::{BlockDevice as _, Limits, Raw};
use controller::{
    AccessPolicy, AccessScope, Controller, ControllerConfig, DriveConfig, NullConfig,
    OpenChannelConfig, PersonalityKind, PuScheduling, TransferConfig, WriteBuffer,
};
use driver::{ControllerHandle, NvmeQueue};
use ftl::FtlConfig;
use media::MediaConfig;
use rng::Rng;
use testkit::instructions::{
    CountedCase, CountingMethod, Failed, InstructionBench, Marker, RepeatCount,
};
use time::{Component, Nanos};
use transport::Port;
use user_io::{
    Buffer, Cache, CacheConfig, Completion, Handle, IoDevice, Payload, QueueConfig, Request,
};

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
/// 2 to 5 % more than counted. A build without link-time optimization is mostly below.
const CASES: [CountedCase; 6] = [
    case("queue", 366.0),
    case("hit", 552.0),
    case("drive", 785.0),
    case("drive-part", 836.0),
    case("drive-data", 862.0),
    case("client", 321.0),
];

const fn case(name: &'static str, bound: f64) -> CountedCase {
    CountedCase { name, base: "", bound, batch: BATCH }
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
    batches: u64,
    marker: &mut Marker,
) -> Result<(), Failed> {
    let mut rng = Rng::new(1);
    for round in 0..WARMUP_BATCHES + batches {
        let off = &mut Marker::Off;
        let marker = if round >= WARMUP_BATCHES { &mut *marker } else { off };
        let slot = |i: u64| Payload::Contiguous(data.iova().offset(i * u64::from(SECTOR)));
        let lbas: [u64; BATCH as usize] = std::array::from_fn(|_| rng.below(LBA_RANGE_SECTORS));
        marker.mark()?;
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
        marker.mark()?;
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
        atomic: block::AtomicLimits::NONE,
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
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
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
    batches: u64,
    marker: &mut Marker,
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
        let is_counted = round >= WARMUP_BATCHES;
        let mut mark = |which| match is_counted && which == side {
            true => marker.mark(),
            false => Ok(()),
        };
        let lbas: [u64; BATCH as usize] = std::array::from_fn(|_| rng.below(LBA_RANGE_SECTORS));
        now += Nanos(1000);
        mark(Side::Host)?;
        for (i, lba) in (0..).zip(lbas) {
            let data = match with_data {
                true => Payload::Contiguous(at.offset(i * u64::from(SECTOR))),
                false => Payload::BitBucket,
            };
            raw.submit(now, Request::read(lba, 1, data, i))?;
        }
        raw.poll(now);
        mark(Side::Host)?;
        mark(Side::Drive)?;
        drive.poll(now);
        mark(Side::Drive)?;
        mark(Side::Host)?;
        let mut left = BATCH;
        while left > 0 {
            raw.poll(now);
            while check_completion(raw.reap())? {
                left -= 1;
            }
        }
        mark(Side::Host)?;
    }
    Ok(())
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    match case {
        "queue" | "hit" => {
            let device = null_device();
            let queue = device.create_queue(QueueConfig::default())?;
            let data = device.buffer((BATCH * u64::from(SECTOR)) as usize)?;
            if case == "queue" {
                return through_handle(Handle::new(&device, queue)?, &data, batches, marker);
            }
            let config = CacheConfig {
                bytes: 2 * LBA_RANGE_SECTORS * u64::from(SECTOR),
                ..Default::default()
            };
            let mut handle = Handle::new(&device, Cache::new(&device, queue, config)?)?;
            for lba in 0..LBA_RANGE_SECTORS {
                handle.run(Request::read(lba, 1, data.payload(), 0))?;
            }
            through_handle(handle, &data, batches, marker)
        }
        "drive" => over_a_drive((false, false, Side::Drive), batches, marker),
        "drive-part" => over_a_drive((true, false, Side::Drive), batches, marker),
        "drive-data" => over_a_drive((true, true, Side::Drive), batches, marker),
        "client" => over_a_drive((true, true, Side::Host), batches, marker),
        _ => Err(format!("no such case: {case}").into()),
    }
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &[],
        differences: &[],
        batches: BATCHES,
        method: CountingMethod::SingleSteps(RepeatCount::Once),
        run,
    }
    .main()
}
