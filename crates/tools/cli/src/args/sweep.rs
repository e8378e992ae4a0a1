//! [`SweepArgs`]: arguments of `sluice sweep`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::StateArgs;

/// Text after the help.
const EXIT_CODES: &str = "Exit codes: 0 when every run has its results, 1 when one failed or differs, 2 when the sweep is \
invalid, 130 when it was interrupted: the finished runs are kept, and the same command continues.";

/// `sluice sweep`: runs a scenario at all combinations of values and seeds.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct SweepArgs {
    /// The sweep: a scenario, keys with lists of values, and seeds (`docs/sweep.md`).
    #[arg(value_name = "SWEEP.toml")]
    pub file: PathBuf,
    /// Keep the finished runs in this folder, and compute only those that it lacks. The default is
    /// the sweep's `store`, or else the folder beside the file with its name and `.runs`.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Set a key of the scenario at all points to a value. May be given several times; a key that the
    /// sweep sets itself is an error (`docs/sweep.md`).
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Number of runs at a time. The default is the number of CPUs that the process may use, and 1
    /// with --log. The rows do not depend on it.
    #[arg(long, short = 'j', value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Write a row for each run, job and direction as CSV; `-` for standard output.
    #[arg(long, value_name = "FILE|-")]
    pub csv: Option<PathBuf>,
    /// Write the rows as a list of JSON objects; `-` for standard output.
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write a self-contained page with plots and all rows; `-` for standard output.
    #[arg(long, value_name = "FILE.html|-")]
    pub report: Option<PathBuf>,
    /// Write the plots to this folder, an SVG file each.
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Where the states of preconditioned drives are kept.
    #[command(flatten)]
    pub states: StateArgs,
    /// Afterwards compute this many of the sweep's stored runs again, without kept states of drives,
    /// and compare them byte for byte.
    #[arg(long, value_name = "N")]
    pub verify: Option<usize>,
    /// Seed that chooses the runs of --verify.
    #[arg(long, value_name = "SEED", default_value_t = 1, requires = "verify")]
    pub verify_seed: u64,
}
