//! [`SimArgs`]: arguments of `sluice sim`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;

use super::StateArgs;

/// `sluice sim`: run scenarios in virtual time.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// Scenarios (`.toml`), each a variant of the comparison, and fio job files to run on every
    /// scenario.
    #[arg(required = true, value_name = "SCENARIO.toml|JOB.fio")]
    pub inputs: Vec<PathBuf>,
    /// Write the results as a list with one entry per scenario, in fio's JSON format with a
    /// `sluice` section. `-` is standard output; the table then goes to standard error.
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Name the keys as schema N of the results: 3, or 2, the former names, for one release.
    #[arg(long, value_name = "N", requires = "json",
        value_parser = crate::commands::sim_command::json_schema)]
    pub json_schema: Option<sim::JsonSchema>,
    /// Write a self-contained page with plots; `-` for standard output.
    #[arg(long, value_name = "FILE.html|-")]
    pub report: Option<PathBuf>,
    /// Write a row for each run, job and direction as CSV (`docs/sweep.md`); `-` for standard output.
    #[arg(long, value_name = "FILE|-")]
    pub csv: Option<PathBuf>,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Set a key of every scenario to a value, or run every scenario with each of several values. May
    /// be given several times, for all combinations (`docs/sweep.md`).
    #[arg(long, value_name = "KEY=VALUE[,VALUE]")]
    pub set: Vec<String>,
    /// Run every scenario, and every combination of `--set`, with each of these seeds: so many from 0
    /// on, or a range such as 0..40.
    #[arg(long, value_name = "N|A..B", conflicts_with = "seed")]
    pub seeds: Option<String>,
    /// Exit with 1 if a result has a note, that is, if it may be misread. All outputs are written
    /// first.
    #[arg(long)]
    pub strict: bool,
    /// Number of scenarios to run at a time; 1 for one after the other. The default is the number of
    /// CPUs that the process may use, and 1 with --log. The results do not depend on it. Scenarios
    /// whose jobs write logs, or that modify images, run alone.
    #[arg(long, short = 'j', value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Modify the images of drives with data = "file", and the files beside them. By default, a
    /// simulation starts from the contents of an image and does not modify it.
    #[arg(long)]
    pub write_image: bool,
    /// Write a trace of all events for Perfetto; with one scenario only. `-` for standard output.
    #[arg(long, value_name = "FILE|-")]
    pub trace: Option<PathBuf>,
    /// Print this many of the slowest requests of each path with their waits, and the latency
    /// breakdown of all requests; also in --json. A report has the ten slowest by default; 0 for
    /// none.
    #[arg(long, value_name = "N")]
    pub slowest: Option<usize>,
    /// Print where the processor time of each run goes, by layer, in percent: a timer samples its
    /// thread. Also in --json. The program needs its line tables.
    #[arg(long)]
    pub profile: bool,
    /// Write the block layer's events of each request to this directory, in the format of blkparse
    /// and btt; with one scenario only.
    #[arg(long, value_name = "DIR")]
    pub blktrace: Option<PathBuf>,
    /// The folder of kept states.
    #[command(flatten)]
    pub states: StateArgs,
}

impl SimArgs {
    /// Returns the scenarios and the job files. A scenario's name ends in `.toml`; all other files
    /// are job files.
    pub fn scenarios_and_jobs(&self) -> (Vec<&Path>, Vec<&Path>) {
        self.inputs
            .iter()
            .map(PathBuf::as_path)
            .partition(|path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_and_job_files_are_told_apart() {
        let args = SimArgs {
            inputs: ["a.toml", "mixed.fio", "b.TOML", "jobs"].map(PathBuf::from).to_vec(),
            json: None,
            json_schema: None,
            report: None,
            csv: None,
            seed: None,
            set: Vec::new(),
            seeds: None,
            strict: false,
            jobs: None,
            write_image: false,
            trace: None,
            slowest: None,
            blktrace: None,
            profile: false,
            states: StateArgs::default(),
        };
        let (scenarios, jobs) = args.scenarios_and_jobs();
        assert_eq!(scenarios, [Path::new("a.toml"), Path::new("b.TOML")]);
        assert_eq!(jobs, [Path::new("mixed.fio"), Path::new("jobs")]);
    }
}
