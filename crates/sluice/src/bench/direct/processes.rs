//! A null drive in another process: what it costs to go there and back, beside the same drive on a thread of
//! this process (NVMeDirect section 3.1; between processes it is this project's addition).
//!
//! The server is `sluice serve --socket` in a process of its own on the second CPU, the client is on the
//! first; both poll. Reads carry no data: what is measured is rings, doorbells and two cores' caches. The
//! two ways take turns. With a single CPU server and client would take turns, and no row is measured.
//!
//! # With data
//!
//! The last row is a drive that takes no time either and keeps its data: 4 KB reads from anywhere in more
//! memory than caches hold, copied by the drive's thread into memory of this process. It stands beside the
//! rate at which this machine copies 4 KB (`sluice calibrate`, measured in the same run). The drive's
//! thread copies and serves commands one after the other, so what it can do at most is
//! `1 / (copy + command)`, the command being that of the null drive beside it: the bound is 90 percent of
//! that, the rest being what a drive with data has to do more for a command than one without.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clock::{Nanos, RealClock};
use direct::{Handle, IoDevice, Queue, QueueConfig};

use super::super::{AllowedCpus, BenchError, Measurement, RunLength, Samples, Sink, interleave};
use super::load::Load;
use super::{BENCH, setup};
use crate::calibrate::copies;
use crate::open::OpenOptions;
use crate::scenario::Scenario;

const NULL: &str = "[drive]\npreset = \"nvme-null\"\nnull = { latency = 0, bandwidth = 0 }\n\
                        [[partition]]\nname = \"all\"\nfirst = 0\nsectors = 1048576\n";
/// Of `bytes` of memory, each access of which takes no time.
fn memory_drive_scenario(bytes: u64) -> String {
    format!(
        "[drive]\npreset = \"pcm\"\ndata = \"memory\"\ncapacity = {bytes}\n\
         timing = {{ read = 0, program = 0, channel = 0 }}\n\
         [[partition]]\nname = \"all\"\nfirst = 0\nsectors = {}\n",
        bytes / 4096
    )
}

/// A round trip to the other process takes no more microseconds than this, half of the time.
const ROUND_TRIP_US_MAX: f64 = 0.6;
/// Commands per second with many outstanding.
const IOPS_MIN: f64 = 8e6;
/// Of what copies and commands take together, one after the other.
const COPY_FRACTION_MIN: f64 = 0.9;
/// Bytes of a write that fills the drive.
const FILL_BYTES: usize = 256 << 10;

/// The server's process, and what it leaves behind; both go when this is dropped.
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
                // What else it says goes nowhere, and does not stop it.
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
/// As for [`run`](super::run).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let cores = AllowedCpus::allowed();
    if cores.count() < 2 {
        return Ok(());
    }
    let bytes = effort.choose(256 << 20, 4 << 20);
    // A process begins where the thread is that starts it, and so do its threads.
    let (server, with_data) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            cores.pin(1);
            let with_data = Server::start("data", &memory_drive_scenario(bytes))?;
            Ok::<_, BenchError>((Server::start("null", NULL)?, with_data))
        })?;
        thread.join().map_err(|_| BenchError::Thread("the server"))?
    })?;
    // Opened here: a thread that may use one CPU only would give its drive the same.
    let scenario = Scenario::parse("null.toml".as_ref(), NULL).map_err(setup)?;
    let options = OpenOptions { drive_core: Some(1), ..OpenOptions::default() };
    let (device, _) = crate::open::open_scenario(&scenario, None, &options).map_err(setup)?;
    let (rows, rate) = cores.on_first(|| measure(effort, &server, &device))?;
    rows.into_iter().try_for_each(|row| sink.push(row))?;
    // Nobody else measures now.
    let copy = copies::measure(effort, &cores)?.cold;
    sink.push(cores.on_first(|| measure_data(effort, &with_data, (copy, rate)))?)
}

/// Reads with data, beside the time of a copy of 4 KB and the rate of commands without.
fn measure_data(
    effort: RunLength,
    server: &Server,
    (copy, commands): (Nanos, f64),
) -> Result<Measurement, BenchError> {
    let device = crate::open(&server.name(), &OpenOptions::default()).map_err(setup)?;
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
    let mut load = Load::new(&device, (4096, u64::MAX), 128, true, 1)?;
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
        let load = |depth| Load::new(device, (4096, 1 << 30), depth, false, 1);
        Ok(RemotePath { handle, single: load(1)?, many: load(128)? })
    }
}

fn measure(
    effort: RunLength,
    server: &Server,
    device: &IoDevice,
) -> Result<(Vec<Measurement>, f64), BenchError> {
    let clock = RealClock::start();
    let served = crate::open(&server.name(), &OpenOptions::default()).map_err(setup)?;
    let connected = clock.now();
    let mut away = RemotePath::new(&served)?;
    let (rounds, count) = (effort.choose(31, 3), effort.choose(20_000, 500));
    // Shorter, and on a busy machine a stretch may have no round trip at all.
    let time = Nanos::from_millis(20);
    // A drive here and the server share a CPU: while one is measured the other sleeps, as nobody asks
    // anything of it; each is given time to wake.
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
    // What disturbs the machine only ever adds.
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
