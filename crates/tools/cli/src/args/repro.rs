//! Arguments of `sluice repro`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use repro::FigureClass;

/// Text after the help of commands that judge figures.
const EXIT_CODES: &str = "Exit codes: 0 when every check holds or has a reason why it does not, 3 when one does neither, \
1 when a figure could not be measured or differs from its recorded results, 2 when the request was wrong.";

/// `sluice repro …`: figures of papers.
#[derive(Debug, Subcommand)]
pub enum ReproArgs {
    /// List the figures, their class and the minutes that they take.
    List(ReproFolder),
    /// Run the commands of figures, record their results and charts, and judge them.
    Run(ReproRunArgs),
    /// Halve and double each number of the modeled machines of figures, and record which checks change.
    Vary(ReproVaryArgs),
    /// Judge the recorded results of all figures, and write their charts and `REPRODUCED.md`.
    Report(ReproReportArgs),
}

/// The folder of the figures.
#[derive(Debug, Args)]
pub struct ReproFolder {
    /// Folder with a folder for each paper (`docs/repro.md`).
    #[arg(long, value_name = "DIR", default_value = "repro")]
    pub dir: PathBuf,
}

/// `sluice repro run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ReproRunArgs {
    /// Figures to measure: `all`, all of a paper, or one of them.
    #[arg(value_name = "PAPER[:FIGURE]", required = true)]
    pub figures: Vec<String>,
    /// Measure only figures of this class.
    #[arg(long, value_parser = PossibleValuesParser::new(FigureClass::ALL.map(FigureClass::name)))]
    pub class: Option<String>,
    /// Measure only figures that take no longer than these minutes.
    #[arg(long, value_name = "MINUTES")]
    pub max_minutes: Option<f64>,
    /// Run the benches shorter, to try that the figures can be measured. Nothing is recorded, and
    /// checks that do not hold are told without an error.
    #[arg(long, conflicts_with = "check")]
    pub quick: bool,
    /// Compare with the recorded results byte for byte, and record nothing. For figures of virtual
    /// time.
    #[arg(long)]
    pub check: bool,
    /// Take the rows from this file, which has the output of the figures' commands, instead of running
    /// them. Of several files, one for each run, the medians are taken.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "check"])]
    pub from: Vec<PathBuf>,
    /// Print the rows, and a JSON object with the verdict of each figure.
    #[arg(long)]
    pub json: bool,
    /// The folder.
    #[command(flatten)]
    pub folder: ReproFolder,
}

/// `sluice repro vary`.
#[derive(Debug, Args)]
pub struct ReproVaryArgs {
    /// Figures of modeled machines: `all`, all of a paper, or one of them.
    #[arg(value_name = "PAPER[:FIGURE]", required = true)]
    pub figures: Vec<String>,
    /// The folder.
    #[command(flatten)]
    pub folder: ReproFolder,
}

/// `sluice repro report`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ReproReportArgs {
    /// Write the page to this file. Its paths of charts begin with --dir.
    #[arg(long, value_name = "FILE", default_value = "REPRODUCED.md")]
    pub out: PathBuf,
    /// Fail if the page or a chart is not the one of the recorded results, and write nothing.
    #[arg(long)]
    pub check: bool,
    /// The folder.
    #[command(flatten)]
    pub folder: ReproFolder,
}
