//! A null drive in another process: what it costs to go there and back, beside the same drive on a thread of
//! this process (NVMeDirect section 3.1; between processes it is this project's addition).
//!
//! The server is `sluice serve --socket` in a process of its own on the second CPU, the client is on the
//! first; both poll. Reads carry no data: what is measured is rings, doorbells and two cores' caches. The
//! two ways take turns. With a single CPU server and client would take turns, and no row is measured.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clock::{Nanos, RealClock};
use direct::{Device, Handle, Queue, QueueConfig};

use super::super::{BenchError, Cores, Effort, Measurement, Samples, Sink, in_turns};
use super::load::Load;
use super::{BENCH, setup};
use crate::open::OpenOptions;
use crate::scenario::Scenario;

const SCENARIO: &str = "[drive]\npreset = \"nvme-null\"\nnull = { latency = 0, bandwidth = 0 }\n\
                        [[share]]\npartition = \"all\"\nfirst = 0\nsectors = 1048576\n";
/// A round trip to the other process takes no more microseconds than this, half of the time.
const ROUND_TRIP_MOST: f64 = 0.6;
/// Commands per second with many outstanding.
const IOPS_LEAST: f64 = 8e6;

/// The server's process, and what it leaves behind; both go when this is dropped.
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    fn start() -> Result<Server, BenchError> {
        let dir = std::env::temp_dir().join(format!("sluice-bench-direct-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("null.toml");
        std::fs::File::create(&file)?.write_all(SCENARIO.as_bytes())?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&file)
            .arg("--socket")
            .arg(dir.join("null.sock"))
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
        format!("sluice://{}#all", self.dir.join("null.sock").display())
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
pub fn run(effort: Effort, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let cores = Cores::allowed();
    if cores.count() < 2 {
        return Ok(());
    }
    // A process begins where the thread is that starts it, and so do its threads.
    let server = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            cores.pin(1);
            Server::start()
        })?;
        thread.join().map_err(|_| BenchError::Thread("the server"))?
    })?;
    // Opened here: a thread that may use one CPU only would give its drive the same.
    let scenario = Scenario::parse("null.toml".as_ref(), SCENARIO).map_err(setup)?;
    let options = OpenOptions { drive_core: Some(1), ..OpenOptions::default() };
    let (device, _) = crate::open::open_scenario(&scenario, None, &options).map_err(setup)?;
    let rows = cores.on_first(|| measure(effort, &server, &device))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

struct Way {
    handle: Handle<Queue>,
    single: Load,
    many: Load,
}

impl Way {
    fn new(device: &Device) -> Result<Way, BenchError> {
        let config = QueueConfig { depth: 256, interrupts: false };
        let queue = device.create_queue(config).map_err(setup)?;
        let handle = Handle::new(device, queue).map_err(setup)?;
        let load = |depth| Load::new(device, (4096, 1 << 30), depth, false, 1);
        Ok(Way { handle, single: load(1)?, many: load(128)? })
    }
}

fn measure(
    effort: Effort,
    server: &Server,
    device: &Device,
) -> Result<Vec<Measurement>, BenchError> {
    let clock = RealClock::start();
    let served = crate::open(&server.name(), &OpenOptions::default()).map_err(setup)?;
    let connected = clock.now();
    let mut away = Way::new(&served)?;
    let (rounds, count) = (effort.choose(31, 3), effort.choose(20_000, 500));
    let time = effort.choose(Nanos::from_millis(20), Nanos::from_millis(2));
    // A drive here and the server share a CPU: while one is measured the other sleeps, as nobody asks
    // anything of it; each is given time to wake.
    let mut here = Way::new(device)?;
    let mut round_trips = in_turns(rounds, 2, |which| {
        let way = if which == 0 { &mut away } else { &mut here };
        way.single.run(&mut way.handle, count / 10)?;
        let stretch = way.single.run_for(&mut way.handle, time)?;
        Ok(stretch.latency.percentile(50.0).0 as f64 / 1e3)
    })?;
    let mut rates = in_turns(rounds, 2, |which| {
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
    Ok(vec![
        row(case(here, 1), "round_trip_p50", trip_here, "us"),
        row(case(away, 1), "round_trip_p50", trip, "us")
            .against(here, trip_here)
            .at_most(ROUND_TRIP_MOST),
        row(case(here, 128), "iops", rate_here, "1/s"),
        row(case(away, 128), "iops", rate, "1/s").against(here, rate_here).at_least(IOPS_LEAST),
        row("a served drive".into(), "connect", connected.0 as f64 / 1e3, "us"),
    ])
}
