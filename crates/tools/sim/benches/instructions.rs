//! Counts the instructions of a simulated read at both ends of the curves of `sluice bench scale`.
//!
//! | cases | vary |
//! |---|---|
//! | `qd-1`, `qd-1024` | outstanding requests |
//! | `pus-16`, `pus-1024` | parallel units of a drive |
//! | `jobs-1`, `jobs-256` | jobs that share 256 outstanding requests |
//! | `drives-1`, `drives-16` | drives that share 64 outstanding requests |
//! | `set-4`, `set-64` | drives of a set, whose path has 64 outstanding requests |
//!
//! The second end of each pair may cost at most a multiple of the first one: a scan of all queues,
//! units, jobs or drives for each event would exceed it many times. The drives are filled; building
//! and filling them is not counted. callgrind counts.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use scenario::Scenario;
use sluice_sim::{SimOptions, SimStage, simulate};
use testkit::instructions::{
    CountedCase, CountingMethod, Failed, InstructionBench, Marker, RatioBound,
};

/// Requests per batch.
const BATCH: u64 = 16_384;

const fn case(name: &'static str, base: &'static str, bound: f64) -> CountedCase {
    CountedCase { name, base, bound, batch: BATCH }
}

/// Upper bounds of instructions per request: 5 % more than counted. A run of several drives polls
/// drives and hosts one by one, and a run of one drive polls only the drive as long as its host has
/// nothing to do.
const CASES: [CountedCase; 10] = [
    case("qd-1", "", 5970.0),
    case("qd-1024", "qd-1", 5810.0),
    case("pus-16", "", 5835.0),
    case("pus-1024", "pus-16", 5940.0),
    case("jobs-1", "", 5840.0),
    case("jobs-256", "jobs-1", 7135.0),
    case("drives-1", "", 5820.0),
    case("drives-16", "drives-1", 9045.0),
    case("set-4", "", 11680.0),
    case("set-64", "set-4", 12575.0),
];

/// Upper bounds of one end of a curve as a multiple of the other: 5 % more than counted.
const RATIOS: [RatioBound; 5] = [
    RatioBound { case: "qd-1024", base: "qd-1", bound: 1.05 },
    RatioBound { case: "pus-1024", base: "pus-16", bound: 1.07 },
    RatioBound { case: "jobs-256", base: "jobs-1", bound: 1.28 },
    RatioBound { case: "drives-16", base: "drives-1", bound: 1.63 },
    RatioBound { case: "set-64", base: "set-4", bound: 1.13 },
];

/// The size of a case. The requests are shared by all drives and jobs, and so are those outstanding.
struct Size {
    drives: u64,
    channels: u64,
    /// Parallel units per channel.
    pus: u64,
    /// Chunks per plane.
    chunks: u64,
    /// Pages per chunk and plane.
    pages: u64,
    jobs: u64,
    outstanding: u64,
    /// Whether the drives are one set, with the jobs on it.
    is_set: bool,
}

impl Size {
    fn of_case(case: &str) -> Option<Size> {
        let (curve, n) = case.split_once('-')?;
        let n: u64 = n.parse().ok()?;
        let usual = Size {
            drives: 1,
            channels: 4,
            pus: 4,
            chunks: 64,
            pages: 16,
            jobs: 1,
            outstanding: 256,
            is_set: false,
        };
        Some(match curve {
            "qd" => Size { outstanding: n, ..usual },
            "pus" => Size { pus: n / 4, chunks: 65_536 / n, pages: 4, ..usual },
            "jobs" => Size { jobs: n, ..usual },
            "drives" => Size { drives: n, outstanding: 64, ..usual },
            "set" => Size { drives: n, outstanding: 64, is_set: true, ..usual },
            _ => return None,
        })
    }

    fn scenario(&self, requests: u64) -> Result<Scenario, Failed> {
        let Size { drives, channels, pus, chunks, pages, jobs, outstanding, is_set } = self;
        let paths = if *is_set { 1 } else { *drives };
        let depth = outstanding / (paths * jobs);
        let bytes = requests / (paths * jobs) * 4096;
        let mut text = String::from("[precondition]\nfill = \"sequential\"\n");
        for drive in 0..*drives {
            write!(
                text,
                "[[drive]]\nname = \"drive{drive}\"\npreset = \"mqsim-default\"\ndata = \"none\"\n\
                 geometry = {{ channels = {channels}, pus = {pus}, chunks = {chunks}, pages = {pages} }}\n\
                 write_buffer = {{ size = \"16M\" }}\n"
            )?;
        }
        if *is_set {
            let names: Vec<_> = (0..*drives).map(|drive| format!("\"drive{drive}\"")).collect();
            let names = names.join(", ");
            write!(text, "[[set]]\nname = \"set\"\nmembers = [{names}]\n")?;
            text += "[[path]]\nname = \"path\"\nover = \"set\"\n";
        }
        for path in 0..paths {
            let on = match is_set {
                true => "path = \"path\"".to_owned(),
                false => format!("drive = \"drive{path}\""),
            };
            write!(
                text,
                "[[job]]\nname = \"job{path}\"\n{on}\nrw = \"randread\"\n\
                 bs = \"4k\"\niodepth = {depth}\nnumjobs = {jobs}\nnorandommap = 1\n\
                 io_size = {bytes}\n"
            )?;
        }
        Ok(Scenario::parse(Path::new("bench"), &text)?)
    }
}

/// Runs a case in this process. The marker is called at the start and at the end of the jobs.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let size = Size::of_case(case).ok_or_else(|| format!("no such case: {case}"))?;
    let requests = batches * BATCH;
    let scenario = size.scenario(requests)?;
    let (mut is_running, mut marked) = (false, Ok(()));
    let mut progress = |stage| {
        let SimStage::Running { part, .. } = stage else { return };
        if is_running == (part == 1.0) {
            is_running = part < 1.0;
            marked = marker.mark();
        }
    };
    let options = SimOptions { progress: Some(&mut progress), ..SimOptions::default() };
    let outcome = simulate(&scenario, options)?;
    marked?;
    let jobs = outcome.paths.iter().flat_map(|path| &path.run.jobs);
    let completed: u64 = jobs.map(|job| job.requests.completed).sum();
    match completed == requests && !is_running {
        true => Ok(()),
        false => Err(format!("{completed} of {requests} requests are complete").into()),
    }
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &RATIOS,
        differences: &[],
        batches: 1,
        method: CountingMethod::Callgrind,
        run,
    }
    .main()
}
