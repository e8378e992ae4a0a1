//! The command line: parses arguments, runs commands and reports errors.
//!
//! [`args`] has the arguments, and [`CliError`] the errors with their exit codes. Each command has
//! a module of [`commands`]; [`mod@serve`] runs the drives of `sluice serve`.

#![forbid(unsafe_code)]

pub mod args;
pub mod commands;
mod device_table;
mod error;
mod log;
mod measured_machine;
mod output;
mod progress;
pub mod serve;
mod sweep_line;
mod target_table;
mod volume_lock;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use scenario::format::{printable, printable_lines};
use scenario::{Scenario, ScenarioError};
use stack::StateUse;

pub use error::CliError;
pub use log::LogFilter;

/// A software-defined SSD and the user-space I/O stack that drives it.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, arg_required_else_help = true)]
struct Cli {
    /// Print events of the control plane on standard error: a level (error, warn, info, debug,
    /// trace), or levels by crate, as in `warn,ftl=debug`. SLUICE_LOG has the same effect.
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<LogFilter>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios in virtual time.
    Sim(args::SimArgs),
    /// Run a scenario in virtual time at all combinations of values and seeds, and keep the results.
    Sweep(args::SweepArgs),
    /// Serve a scenario's drives and paths to other programs in real time, until SIGINT or SIGTERM.
    Serve(args::ServeArgs),
    /// Set the access rules of a running server, list its clients, and print statistics of its
    /// drives.
    Admin(args::AdminArgs),
    /// List NVMe controllers of this machine, and bind them to drivers.
    #[command(subcommand)]
    Device(args::DeviceArgs),
    /// Show the drives that Sluice includes, and those of a scenario.
    #[command(subcommand)]
    Drive(args::DriveArgs),
    /// Manage the targets of an open-channel drive, and show the health of its flash.
    #[command(subcommand)]
    Target(args::TargetArgs),
    /// Print which front ends, drives, targets, block layers and schedulers combine, and why others do
    /// not.
    Matrix(args::MatrixArgs),
    /// Measure the costs of this machine, and whether it keeps up with a scenario in real time.
    Calibrate(args::CalibrateArgs),
    /// Measure Sluice itself.
    Bench(args::BenchArgs),
    /// Measure figures of papers, and compare them with the paper's values.
    #[command(subcommand)]
    Repro(args::ReproArgs),
    /// Check and explain rule programs (`docs/rules.md`).
    #[command(subcommand)]
    Rules(args::RulesArgs),
    /// Benchmark the key-value target on host-managed flash.
    #[command(subcommand)]
    Kv(args::KvArgs),
    /// Manage volumes of files on any device.
    #[command(subcommand)]
    Volume(args::VolumeArgs),
    /// Run a program whose files below one directory are on a volume; its exit status is the program's.
    Exec(args::ExecArgs),
    /// Run a program under an emulator, and measure how long it could go on before it needs the result of
    /// an I/O; its exit status is the program's.
    Profile(args::ProfileArgs),
    /// Write man pages and shell completions of this program, as `make install` does.
    #[command(subcommand, hide = true)]
    Generate(commands::generate_command::GenerateArgs),
}

/// Returns the definitions of all commands, from which man pages, completions and `docs/commands.md`
/// are generated.
pub fn definitions() -> clap::Command {
    Cli::command()
}

/// Runs one command. The exit code is 0 for success, 1 for a failure, 2 for invalid arguments or an
/// invalid scenario, 3 for a benchmark result out of its bound, and 130 for an interrupted run,
/// which prints the results so far.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output; errors of a closed terminal are ignored.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    if let Err(problem) = log::start(cli.log) {
        eprintln!("error: {problem}");
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::Sim(args) => commands::sim_command::run(&args),
        Command::Sweep(args) => commands::sweep_command::run(&args),
        Command::Serve(args) => commands::serve_command::run(&args),
        Command::Admin(args) => commands::admin::run(&args),
        Command::Device(args) => commands::device_command::run(&args),
        Command::Drive(args) => commands::drive_command::run(&args),
        Command::Target(args) => commands::target_command::run(&args),
        Command::Matrix(args) => commands::matrix_command::run(&args),
        Command::Calibrate(args) => commands::measure::calibrate_command::run(&args),
        Command::Bench(args) => commands::measure::bench_command::run(&args),
        Command::Repro(args) => commands::repro_command::run(&args),
        Command::Rules(args) => commands::rules_command::run(&args),
        Command::Kv(args) => commands::kv_command::run(&args),
        Command::Volume(args) => commands::volume_command::run(&args),
        Command::Generate(args) => commands::generate_command::run(&args, definitions()),
        Command::Exec(args) => match commands::exec_command::run(&args) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Profile(args) => match commands::measure::profile_command::run(&args) {
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

/// Returns a line for the user that says how a drive came to its state; `None` if nothing is
/// remarkable about it.
pub(crate) fn state_line(drive: &str, used: &StateUse) -> Option<String> {
    match used {
        StateUse::Loaded(_) => None,
        StateUse::Kept(path, bytes) => {
            let size = scenario::format::bytes_binary(*bytes);
            Some(format!("{drive}: the state is kept in {} ({size})", path.display()))
        }
        StateUse::NotKept(why) => Some(format!("warning: {drive}: the state is not kept: {why}")),
    }
}

/// Loads a scenario, and warns of former spellings in it.
///
/// # Errors
/// [`ScenarioError`].
pub(crate) fn load_scenario(file: &Path) -> Result<Scenario, ScenarioError> {
    let scenario = Scenario::load(file)?;
    for found in &scenario.former_spellings {
        eprintln!("warning: {}", printable(&found.to_string()));
    }
    Ok(scenario)
}

pub(crate) fn warn_former_option(old: &str, new: &str) {
    eprintln!("warning: `{old}` is now `{new}`; the former option is accepted for one release");
}

/// Writes to standard output and escapes control characters of names and titles. A closed pipe (`|
/// head`) is not an error.
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

/// Writes to standard output, or to standard error if standard output has other contents (`--json
/// -`).
///
/// # Errors
/// As [`print`].
pub(crate) fn print_or_stderr(text: &str, is_taken: bool) -> Result<(), CliError> {
    if !is_taken {
        return print(text);
    }
    // Standard error may be closed.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_describes_the_program() {
        let about = Cli::command().get_about().map(ToString::to_string);
        let expected = "A software-defined SSD and the user-space I/O stack that drives it";
        assert_eq!(about.as_deref(), Some(expected));
    }
}
