//! `sluice serve`: serves the drives of a scenario and reports events.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use open::Target;
use scenario::format::{bytes_binary, count};
use scenario::{ExportAddress, ExportSpec, Scenario};
use stack::StackError;
use stack::named_target::NamedError;

use share_server::Partition;

use super::sim_command::chosen_json_schema;
use crate::args::ServeArgs;
use crate::output::{Output, is_standard};
use crate::progress::Progress;
use crate::serve::{
    LiveStats, ServeError, ServeEvent, ServeOptions, Served, SocketOptions, serve, to_json,
};
use crate::{CliError, print, print_or_stderr, state_line};

/// Default interval between two lines of statistics on a terminal.
const STATS_INTERVAL: Duration = Duration::from_secs(5);

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> CliError {
        if let ServeError::Stack(StackError::Named(NamedError::Scenario(error))) = error {
            return CliError::Scenario(error);
        }
        if error.is_usage() {
            CliError::Usage(error.to_string())
        } else {
            CliError::Other(error.to_string())
        }
    }
}

/// Serves until a signal arrives. The endpoints and the final statistics go to standard output, all
/// other text to standard error.
///
/// # Errors
/// [`CliError`] for an invalid scenario or endpoint, and if the drives cannot be served or shut
/// down cleanly.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    let (file, name) = split_name(&args.scenario);
    let mut scenario = select(crate::load_scenario(&file)?, name)?;
    if let Some(seed) = args.seed {
        scenario.set_seed(seed);
    }
    args.states.apply(&mut scenario);
    let has_socket = |export: &ExportSpec| matches!(export.address, ExportAddress::Socket(_));
    let shares = args.socket.is_some() || scenario.serving.exports.iter().any(has_socket);
    if !shares && !scenario.serving.shares.is_empty() {
        print_line("[[partition]] is for `--socket`, and has no effect without it");
    }
    let socket = |path: &PathBuf, shares| SocketOptions {
        path: path.clone(),
        is_shared: shares,
        mode: args.socket_mode,
        acl: args.acl.clone().or_else(|| {
            let rules = args.rules.clone()?;
            crate::warn_former_option("--rules", "--acl");
            Some(rules)
        }),
    };
    let options = ServeOptions {
        nbd: args.nbd.clone(),
        allow_remote: args.allow_remote,
        socket: match (&args.socket, &args.admin_socket) {
            (Some(path), _) => Some(socket(path, true)),
            (None, Some(path)) => Some(socket(path, false)),
            (None, None) => None,
        },
        threads: args.threads,
        stats_interval: match args.stats {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => std::io::stderr().is_terminal().then_some(STATS_INTERVAL),
        },
    };
    let schema = chosen_json_schema(args.json_schema);
    // Report outputs that cannot be opened before the drives exist.
    let mut json = args.json.as_deref().map(Output::open).transpose()?;
    let mut teller = EventPrinter::default();
    let served = serve(&scenario, &options, &mut |event| teller.print_event(event));
    let readings = teller.final_stats;
    let mut text = String::new();
    for reading in &readings {
        text.push_str(&reading.summary());
    }
    // Print the available results after a failure, too.
    let mut told = print_or_stderr(&text, args.json.as_deref().is_some_and(is_standard));
    if let (Some(output), false) = (&mut json, readings.is_empty()) {
        let result = schema.convert(to_json(&scenario, &readings));
        told = told.and(output.write(&format!("{result:#}\n")));
    }
    served?;
    told
}

/// Splits `FILE.toml#NAME`, as [`open::Target`] does.
fn split_name(file: &Path) -> (PathBuf, Option<String>) {
    match file.to_str().map(str::parse) {
        Some(Ok(Target::Scenario { file, drive })) => (file, drive),
        _ => (file.to_owned(), None),
    }
}

/// Returns the scenario with the path of this name alone, which may be the only one; without a name,
/// the scenario as it is.
fn select(scenario: Scenario, name: Option<String>) -> Result<Scenario, ServeError> {
    if name.is_none() && (scenario.composition.is_empty() || scenario.paths().len() != 1) {
        return Ok(scenario);
    }
    let path = scenario.select_path(name.as_deref())?;
    Ok(scenario.reduced_to(&path))
}

/// Prints events.
#[derive(Default)]
struct EventPrinter {
    /// Progress of the current preconditioning.
    progress: Option<Progress>,
    /// Drives whose host's disk was reported as full.
    full_disks: Vec<String>,
    /// Statistics of drives that are no longer served.
    final_stats: Vec<LiveStats>,
}

impl EventPrinter {
    fn print_event(&mut self, event: ServeEvent<'_>) {
        if let ServeEvent::Preconditioning(name, part) = event {
            let what = format!("preconditioning {name}");
            if self.progress.as_ref().is_none_or(|progress| progress.what() != what) {
                self.progress = Some(Progress::new(what));
            }
            if let Some(line) = self.progress.as_mut().and_then(|progress| progress.set(part)) {
                print_line(&line);
            }
            return;
        }
        // Remove the bar before other output.
        self.progress = None;
        match event {
            ServeEvent::Preconditioning(..) => {}
            ServeEvent::ImageKept(name) => {
                print_line(&format!(
                    "{name}: the image is there already, and is not preconditioned again"
                ));
            }
            ServeEvent::State(name, used) => {
                if let Some(line) = state_line(name, used) {
                    print_line(&line);
                }
            }
            ServeEvent::NotServed(name, why) => {
                print_line(&format!("path {name} is not served over NBD: {why}"));
            }
            ServeEvent::Ready(served) => {
                let Served { name, bytes, endpoints, export, read_only, stores_data } = served;
                let mut lines = String::new();
                for endpoint in endpoints {
                    let size = format!("{} ({} bytes)", bytes_binary(*bytes), count(*bytes));
                    lines.push_str(&format!("serving {name}: {size} at {endpoint}"));
                    if let Some(export) = export {
                        lines.push_str(&format!(", export {export}"));
                    }
                    lines.push_str(if *read_only { ", read-only\n" } else { "\n" });
                }
                // Print the warning first: a client that waits for the line below connects
                // immediately.
                if !stores_data {
                    print_line(&format!(
                        "{name} keeps no data: what is read is not what was written"
                    ));
                }
                // A closed standard output must not end the service.
                let _ = print(&lines);
            }
            ServeEvent::Shared(partition, path) => {
                let Partition { device, name, span, in_use: taken } = partition;
                let by = if *taken { ", over NBD only" } else { "" };
                let at = path.display();
                let _ = print(&format!("sharing {device}/{name}: {span} at {at}{by}\n"));
            }
            ServeEvent::Administrated(path) => {
                let _ = print(&format!("answering `sluice admin stats` at {}\n", path.display()));
            }
            ServeEvent::Stats(now, before) => print_line(&now.status_line(before)),
            ServeEvent::HostDiskFull(name, why) => {
                if !self.full_disks.iter().any(|told| told == name) {
                    self.full_disks.push(name.to_owned());
                    print_line(&format!("{name}: {why}"));
                }
            }
            ServeEvent::Stopped(reading) => self.final_stats.push(reading.clone()),
            ServeEvent::Stopping => {
                print_line("finishing what is under way; once more to end at once")
            }
        }
    }
}

/// Prints a line on standard error, which may be closed.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
