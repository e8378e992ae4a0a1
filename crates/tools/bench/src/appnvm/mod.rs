//! Group `appnvm`: rules in the drive, AppNVM [Thesis15 ch. 7].
//!
//! The paper has no implementation and no figures. It expects an engine that decides about millions of
//! commands a second.
//!
//! | part | measures | clock |
//! |---|---|---|
//! | `commands` | table 1 at work: a page-mapped drive of three rules beside the block personality | real |
//! | `rules` | commands by the number of rules that are tried | virtual, CPU time |
//! | `misses` | what a flood of misses costs another job | virtual |
//! | `collection` | write amplification of collection by a rule | virtual |
//! | `temperature` | write amplification with a stream for hot data | virtual |
//! | `neighbors` | what an application that writes costs the reads of another one | virtual |
//! | `templates` | tails of `predictable` and wear of `endurance`, beside `throughput` | virtual |
//! | `names` | write amplification and rate of nameless writes, beside a map | real |
//! | `lookups` | lookups in a B+tree by rules, beside those of the host | real |

mod collection;
mod commands;
mod lookups;
mod misses;
mod names;
mod neighbors;
mod rule_count;
mod temperature;
mod templates;

use std::fmt::Display;

use scenario::Scenario;
use sim::{SimOptions, SimOutcome, simulate};
use tempfile::TempDir;

use super::{AppnvmPart, BenchError, BenchFn, RunLength, Sink};

pub(super) const BENCH: &str = "appnvm";

/// The parts in the order of measurement.
const PARTS: &[(AppnvmPart, BenchFn)] = &[
    (AppnvmPart::Commands, commands::run),
    (AppnvmPart::Rules, rule_count::run),
    (AppnvmPart::Misses, misses::run),
    (AppnvmPart::Collection, collection::run),
    (AppnvmPart::Temperature, temperature::run),
    (AppnvmPart::Neighbors, neighbors::run),
    (AppnvmPart::Templates, templates::run),
    (AppnvmPart::Lookups, lookups::run),
    (AppnvmPart::Names, names::run),
];

/// Measures these parts of the group, or all of them if the list is empty.
///
/// # Errors
/// When the system refuses memory or threads, a simulation fails, or the output fails.
pub fn run_parts(
    parts: &[AppnvmPart],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, length, sink)
}

fn setup(error: impl Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}

/// The application of programs, and its map, on a drive of four parallel units.
const APP: &str = "app db { units = 0-3, spare = 0.25 }\ntable map: addr[db.sectors] durable\n";

/// Writes and reads of a page-mapped drive.
const STORE_AND_LOAD: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n\
    rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";

/// The collection of the line with the fewest valid sectors.
const RECLAIM: &str = "rule reclaim when db.free_lines < 4\n  \
    set v = best line of db by line.sectors - line.valid where line.valid < line.sectors\n  \
    do move valid of v to db.gc; erase v\n";

/// Returns keys of a drive with the personality `block`, or with a program.
fn drive(keys: &str, program: Option<&str>) -> String {
    let personality = match program {
        Some(_) => "personality = \"rules\"\nrules.program = \"bench.rules\"\n",
        None => "personality = \"block\"\n",
    };
    format!("[drive]\nftl.over_provisioning = 0.25\n{keys}{personality}")
}

/// Reads a scenario, whose program is `program` behind [`APP`].
fn scenario(text: &str, program: Option<&str>) -> Result<Scenario, BenchError> {
    scenario_of(text, program.map(|program| format!("{APP}{program}")).as_deref())
}

/// Reads a scenario, whose whole program is `program`.
fn scenario_of(text: &str, program: Option<&str>) -> Result<Scenario, BenchError> {
    let folder = TempDir::new()?;
    if let Some(program) = program {
        std::fs::write(folder.path().join("bench.rules"), program)?;
    }
    Scenario::parse(&folder.path().join("bench.toml"), text).map_err(setup)
}

/// Simulates a scenario, whose whole program is `program`.
fn outcome_of(text: &str, program: &str) -> Result<SimOutcome, BenchError> {
    simulate(&scenario_of(text, Some(program))?, SimOptions::default()).map_err(setup)
}

/// Simulates a scenario, whose program is `program` behind [`APP`].
fn outcome(text: &str, program: Option<&str>) -> Result<SimOutcome, BenchError> {
    simulate(&scenario(text, program)?, SimOptions::default()).map_err(setup)
}

/// Returns the requests per second of a job.
fn iops_of(outcome: &SimOutcome, job: &str) -> f64 {
    let jobs = outcome.paths.iter().flat_map(|path| &path.run.jobs);
    let of_job = jobs.filter(|result| result.spec.name == job);
    of_job.flat_map(|result| &result.directions).map(|direction| direction.iops()).sum()
}

/// Returns the 99th percentile of the latency of a job, in nanoseconds.
fn p99_of(outcome: &SimOutcome, job: &str) -> f64 {
    let jobs = outcome.paths.iter().flat_map(|path| &path.run.jobs);
    let of_job = jobs.filter(|result| result.spec.name == job);
    let latencies = of_job.flat_map(|result| &result.directions);
    latencies.map(|direction| direction.clat.percentile(99.0).0 as f64).fold(0.0, f64::max)
}
