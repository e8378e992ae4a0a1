//! A null drive in another process: the round-trip cost, compared with a drive of equal
//! configuration on a thread of this process ([NVMeDirect16 §3.1]; sharing between processes is an
//! extension of this project).
//!
//! The server is `sluice serve --socket` in a process on the second CPU. The client is on the first
//! CPU; both poll. Reads carry no data: the measurement covers rings, doorbells and two cores'
//! caches. The two paths are interleaved. With a single CPU, server and client would alternate, and
//! no row is measured.
//!
//! # With data
//!
//! The last row is a zero-latency drive that stores data. The load is 4 KB reads at random
//! addresses of more memory than caches hold; the drive's thread copies them to memory of this
//! process. The reference is the rate at which this machine copies 4 KB (`sluice calibrate`,
//! measured in the same run). The drive's thread copies and serves commands one after the other, so
//! its maximum rate is `1 / (copy + command)`, with the command time of the null drive. The bound
//! is 90 percent of that; the remainder is the additional work per command of a drive with data.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use event::{AllowedCpus, RealClock};
use open::OpenOptions;
use scenario::Scenario;
use time::Nanos;
use user_io::{Handle, IoDevice, Queue, QueueConfig};

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave, on_first_cpu};
use super::load::{Load, LoadArea};
use super::{BENCH, setup};
use crate::calibrate::copies;

const NULL: &str = "[drive]\npreset = \"nvme-null\"\nnull = { latency = 0, bandwidth = 0 }\n\
                        [[partition]]\nname = \"all\"\nfirst = 0\nsectors = 1048576\n";
/// Returns a scenario with a zero-latency drive of `bytes` of memory.
fn memory_drive_scenario(bytes: u64) -> String {
    format!(
        "[drive]\npreset = \"pcm\"\ndata = \"memory\"\ncapacity = {bytes}\n\
         timing = {{ read = 0, program = 0, channel = 0 }}\n\
         [[partition]]\nname = \"all\"\nfirst = 0\nsectors = {}\n",
        bytes / 4096
    )
}

/// Maximum median round trip to the other process, in microseconds.
const ROUND_TRIP_US_MAX: f64 = 0.6;
/// Minimum commands per second with many outstanding.
const IOPS_MIN: f64 = 8e6;
/// Minimum share of the rate at which copies and commands can be executed one after the other.
const COPY_FRACTION_MIN: f64 = 0.9;
/// Size of a write that fills the drive, in bytes.
const FILL_BYTES: usize = 256 << 10;

/// The server's process and its files; dropping it removes both.
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    fn start(name: &str, scenario: &str) -> Result<Server, BenchError> {
        let own = format!("sluice-bench-direct-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("drive.toml");
        std::fs::File::create(&file)?.write_all(scenario.as_bytes())?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&file)
            .arg("--socket")
            .arg(dir.join("drive.sock"))
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()?;
        let mut server = Server { child, dir };
        let out = server.child.stdout.take().ok_or_else(|| setup("the server has no output"))?;
        let mut lines = BufReader::new(out).lines();
        while let Some(line) = lines.next().transpose()? {
            if line.starts_with("sharing ") {
                // Discard further output, so that it does not block the server.
                std::thread::Builder::new().spawn(move || lines.for_each(drop))?;
                return Ok(server);
            }
        }
        Err(setup("the server ended before it shared its drive"))
    }

    fn name(&self) -> String {
        format!("sluice://{}#all", self.dir.join("drive.sock").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Measures the part.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let cores = AllowedCpus::allowed();
    if cores.count() < 2 {
        return Ok(());
    }
    let bytes = effort.choose(256 << 20, 4 << 20);
    // A process starts on the CPU of the thread that starts it, and so do its threads.
    let (server, with_data) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            cores.pin(1);
            let with_data = Server::start("data", &memory_drive_scenario(bytes))?;
            Ok::<_, BenchError>((Server::start("null", NULL)?, with_data))
        })?;
        thread.join().map_err(|_| BenchError::Thread("the server"))?
    })?;
    // Open the drive here: a thread that is pinned to one CPU would start the drive on it, too.
    let scenario = Scenario::parse("null.toml".as_ref(), NULL).map_err(setup)?;
    let options = OpenOptions { drive_core: Some(1), ..OpenOptions::default() };
    let (device, _) = open::open_scenario(&scenario, None, &options).map_err(setup)?;
    let (rows, rate) = on_first_cpu(&cores, || measure(effort, &server, &device))?;
    rows.into_iter().try_for_each(|row| sink.push(row))?;
    // No other measurement runs now.
    let copy = copies::measure(effort, &cores)?.cold;
    sink.push(on_first_cpu(&cores, || measure_data(effort, &with_data, (copy, rate)))?)
}

/// Measures reads with data; `copy` is the time of a 4 KB copy, and the reference is the command
/// rate without data.
fn measure_data(
    effort: RunLength,
    server: &Server,
    (copy, commands): (Nanos, f64),
) -> Result<Measurement, BenchError> {
    let device = open::open(&server.name(), &OpenOptions::default()).map_err(setup)?;
    let queue =
        device.create_queue(QueueConfig { depth: 256, interrupts: false }).map_err(setup)?;
    let mut handle = Handle::new(&device, queue).map_err(setup)?;
    let limits = *handle.limits();
    let fill = device.buffer(FILL_BYTES).map_err(setup)?;
    fill.fill(0, FILL_BYTES, 0x5a);
    let step = (FILL_BYTES / limits.sector_bytes as usize) as u64;
    for lba in (0..limits.sectors).step_by(step as usize) {
        handle.write(lba, &fill, false).map_err(setup)?;
    }
    let mut load =
        Load::new(&device, LoadArea { block_bytes: 4096, bytes: u64::MAX }, 128, true, 1)?;
    let count = effort.choose(200_000, 2_000);
    load.run(&mut handle, count / 10)?;
    let rates: Result<Vec<f64>, BenchError> =
        (0..effort.choose(15, 3)).map(|_| Ok(1e9 / load.run(&mut handle, count)?)).collect();
    let case = "a drive in another process, 4 KB reads with data, QD 128";
    let none = || BenchError::NoValue { case: case.into(), metric: "iops" };
    let rate = Samples::new(rates?).ok_or_else(none)?.quantile(0.75);
    let (copy, command) = (copy.0 as f64, 1e9 / commands);
    let row = Measurement::new(BENCH, case, "iops", rate, "1/s");
    let row = row.with_reference("copies of 4 KB per second", 1e9 / copy.max(1.0));
    Ok(row.at_least(COPY_FRACTION_MIN * 1e9 / (copy + command)))
}

struct RemotePath {
    handle: Handle<Queue>,
    single: Load,
    many: Load,
}

impl RemotePath {
    fn new(device: &IoDevice) -> Result<RemotePath, BenchError> {
        let config = QueueConfig { depth: 256, interrupts: false };
        let queue = device.create_queue(config).map_err(setup)?;
        let handle = Handle::new(device, queue).map_err(setup)?;
        let load = |depth| {
            Load::new(device, LoadArea { block_bytes: 4096, bytes: 1 << 30 }, depth, false, 1)
        };
        Ok(RemotePath { handle, single: load(1)?, many: load(128)? })
    }
}

fn measure(
    effort: RunLength,
    server: &Server,
    device: &IoDevice,
) -> Result<(Vec<Measurement>, f64), BenchError> {
    let clock = RealClock::start();
    let served = open::open(&server.name(), &OpenOptions::default()).map_err(setup)?;
    let connected = clock.now();
    let mut away = RemotePath::new(&served)?;
    let (rounds, count) = (effort.choose(31, 3), effort.choose(20_000, 500));
    // With a shorter interval, a busy machine may complete no round trip at all.
    let time = Nanos::from_millis(20);
    // The local drive and the server share a CPU. While one is measured the other is idle and
    // sleeps; each gets time to wake up.
    let mut here = RemotePath::new(device)?;
    let mut round_trips = interleave(rounds, 2, |which| {
        let way = if which == 0 { &mut away } else { &mut here };
        way.single.run(&mut way.handle, count / 10)?;
        let stretch = way.single.run_for(&mut way.handle, time)?;
        Ok(stretch.latency.percentile(50.0).0 as f64 / 1e3)
    })?;
    let mut rates = interleave(rounds, 2, |which| {
        let way = if which == 0 { &mut away } else { &mut here };
        way.many.run(&mut way.handle, count)?;
        Ok(1e9 / way.many.run(&mut way.handle, 10 * count)?)
    })?;
    let quantile = |taken: &mut Vec<Vec<f64>>, which: usize, at: f64| {
        let none = || BenchError::NoValue { case: "processes".into(), metric: "any" };
        Ok::<f64, BenchError>(
            Samples::new(std::mem::take(&mut taken[which])).ok_or_else(none)?.quantile(at),
        )
    };
    // Disturbances only add time.
    let (trip, trip_here) =
        (quantile(&mut round_trips, 0, 0.25)?, quantile(&mut round_trips, 1, 0.25)?);
    let (rate, rate_here) = (quantile(&mut rates, 0, 0.75)?, quantile(&mut rates, 1, 0.75)?);
    let case = |way: &str, depth| format!("null drive {way}, 4 KB reads without data, QD {depth}");
    let (here, away) = ("on a thread of this process", "in another process");
    let row =
        |case: String, metric, value, unit| Measurement::new(BENCH, case, metric, value, unit);
    let rows = vec![
        row(case(here, 1), "round_trip_p50", trip_here, "us"),
        row(case(away, 1), "round_trip_p50", trip, "us")
            .with_reference(here, trip_here)
            .at_most(ROUND_TRIP_US_MAX),
        row(case(here, 128), "iops", rate_here, "1/s"),
        row(case(away, 128), "iops", rate, "1/s")
            .with_reference(here, rate_here)
            .at_least(IOPS_MIN),
        row("a served drive".into(), "connect", connected.0 as f64 / 1e3, "us"),
    ];
    Ok((rows, rate))
}
