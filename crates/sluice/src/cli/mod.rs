//! The command line: what can be asked, and how failures are told.
//!
//! | file | noun |
//! |---|---|
//! | [`args`] | what each command takes |
//! | `bench_part` | the parts of `sluice bench`'s groups |
//! | [`failure`](CliError) | why a command failed, its exit code, its message with the place in the source |
//! | [`sim_command`] | `sluice sim` |
//! | `output` | a file that results are written to, opened before there are any |
//! | [`serve_command`] | `sluice serve` |
//! | [`admin_command`] | `sluice admin` |
//! | [`device_command`] | `sluice device list`, `bind`, `unbind` |
//! | [`drive_command`] | `sluice drive show`, `sluice drive presets` |
//! | [`target_command`] | `sluice target create`, `list`, `info`, `remove` |
//! | `target_table` | what those print |
//! | [`kv_command`] | `sluice kv bench` |
//! | [`plot_command`] | `sluice plot` |
//! | [`exec_command`] | `sluice exec` |
//! | `progress` | how far something is, on a terminal and elsewhere |
//! | `stats_command` | `sluice admin stats` |
//! | `volume_lock` | what a process has on a volume's device while it changes the volume |
//! | [`volume_command`] | `sluice volume format`, `info`, `fsck`, `ls`, `get`, `put` |

pub mod admin_command;
pub mod args;
mod bench_part;
pub mod device_command;
mod device_table;
pub mod drive_command;
mod error;
pub mod exec_command;
mod generate_command;
pub mod kv_command;
pub(crate) mod output;
pub mod plot_command;
mod progress;
pub mod serve_command;
pub mod sim_command;
mod stats_command;
pub mod target_command;
mod target_table;
pub mod volume_command;
mod volume_lock;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use error::CliError;

use crate::format::{printable, printable_lines};
use crate::scenario::{Scenario, ScenarioError};

/// A software-defined SSD and the user-space I/O stack that drives it.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios in virtual time.
    Sim(args::SimArgs),
    /// Put a scenario's drives in front of real programs, in real time, until SIGINT or SIGTERM.
    Serve(args::ServeArgs),
    /// Say who may use what of a running server, see who does, and what its drives do.
    Admin(args::AdminArgs),
    /// Real NVMe controllers of this machine: which there are, and whose they are.
    #[command(subcommand)]
    Device(args::DeviceArgs),
    /// Look at drives: those that come with Sluice, and those of a scenario.
    #[command(subcommand)]
    Drive(args::DriveArgs),
    /// Share an open-channel drive out: its targets, and the health of its flash.
    #[command(subcommand)]
    Target(args::TargetArgs),
    /// Measure what this machine costs, and whether it keeps up with a scenario in real time.
    Calibrate(args::CalibrateArgs),
    /// Measure Sluice itself.
    Bench(args::BenchArgs),
    /// Draw figures of what `sluice bench lightnvm --json` has measured.
    Plot(args::PlotArgs),
    /// Keys and values on flash that the host manages.
    #[command(subcommand)]
    Kv(args::KvArgs),
    /// Volumes of files on any device.
    #[command(subcommand)]
    Volume(args::VolumeArgs),
    /// Run a program whose files below one directory are on a volume; its exit status is the program's.
    Exec(args::ExecArgs),
    /// Write man pages and shell completions of this program, as `make install` does.
    #[command(subcommand, hide = true)]
    Generate(generate_command::GenerateArgs),
}

/// Runs one command. The exit code is 0 when it did what it was asked, 1 when it failed, 2 when the
/// request was wrong: the arguments, or a scenario; 130 when it was interrupted and has given what there
/// was.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; a terminal that is gone hears neither.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Sim(args) => sim_command::run(&args),
        Command::Serve(args) => serve_command::run(&args),
        Command::Admin(args) => admin_command::run(&args),
        Command::Device(args) => device_command::run(&args),
        Command::Drive(args) => drive_command::run(&args),
        Command::Target(args) => target_command::run(&args),
        Command::Calibrate(args) => crate::calibrate::run(&args),
        Command::Bench(args) => crate::bench::run(&args),
        Command::Plot(args) => plot_command::run(&args),
        Command::Kv(args) => kv_command::run(&args),
        Command::Volume(args) => volume_command::run(&args),
        Command::Generate(args) => generate_command::run(&args, Cli::command()),
        Command::Exec(args) => match exec_command::run(&args) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprint!("{}", failure.render());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Reads a scenario, and warns on standard error of each former spelling in it.
///
/// # Errors
/// The first problem of the file.
pub(crate) fn load_scenario(file: &Path) -> Result<Scenario, ScenarioError> {
    let scenario = Scenario::load(file)?;
    for found in &scenario.former_spellings {
        eprintln!("warning: {}", printable(&found.to_string()));
    }
    Ok(scenario)
}

/// Warns that an option has another name now.
pub(crate) fn warn_former_option(old: &str, new: &str) {
    eprintln!("warning: `{old}` is now `{new}`; the former option is accepted for one release");
}

/// Writes to standard output, with control characters of names and titles escaped; a reader that has left (`| head`) is no failure.
///
/// # Errors
/// Any other error of the output.
pub fn print(text: &str) -> Result<(), CliError> {
    let text = printable_lines(text);
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::Other(format!("cannot write the answer: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes to standard output, or to standard error if something else is written there (`--json -`).
///
/// # Errors
/// As [`print`].
pub(crate) fn print_or_stderr(text: &str, is_taken: bool) -> Result<(), CliError> {
    if !is_taken {
        return print(text);
    }
    // Nobody may be there to read it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}
