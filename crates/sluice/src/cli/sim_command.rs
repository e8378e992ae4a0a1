//! `sluice sim`: runs scenarios, prints the table, writes the files.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::args::SimArgs;
use super::{Failure, print};
use crate::report::{Report, html, table};
use crate::scenario::Scenario;
use crate::sim::{Preconditioned, SimError, SimOptions, Stage, simulate, to_json, to_way};
use crate::stack::StackError;
use crate::stack::named::NamedError;

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        if let SimError::Stack(StackError::Named(NamedError::Scenario(error))) = error {
            return Failure::Scenario(error);
        }
        if error.is_usage() {
            Failure::Usage(error.to_string())
        } else {
            Failure::Other(error.to_string())
        }
    }
}

/// Runs the scenarios one after the other; each is one way of the report.
///
/// # Errors
/// What is wrong with the scenarios or jobs; a run that cannot be trusted; requests that failed.
pub fn run(args: &SimArgs) -> Result<(), Failure> {
    let (files, jobs) = args.scenarios_and_jobs();
    if files.is_empty() {
        return Err(Failure::Usage("no scenario: give at least one file ending in .toml".into()));
    }
    if args.trace.is_some() && files.len() > 1 {
        return Err(Failure::Usage("--trace takes one scenario".into()));
    }
    if args.blktrace.is_some() && files.len() > 1 {
        return Err(Failure::Usage("--blktrace takes one scenario".into()));
    }
    let mut scenarios = Vec::new();
    for file in files {
        let mut scenario = Scenario::load(file)?;
        if let Some(seed) = args.seed {
            scenario.set_seed(seed);
        }
        scenarios.push(scenario);
    }
    let mut report = Report {
        title: match scenarios.as_slice() {
            [one] => one.title.clone(),
            many => format!("{} ways", many.len()),
        },
        ..Report::default()
    };
    let mut preconditioned = Preconditioned::new(&scenarios);
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for scenario in &scenarios {
        let bar = Bar::new(&scenario.title);
        let mut progress = |stage| bar.tell(stage);
        let options = SimOptions {
            job_files: jobs.iter().map(|j| j.to_path_buf()).collect(),
            trace: args.trace.clone(),
            blktrace: args.blktrace.clone(),
            preconditioned: Some(&mut preconditioned),
            progress: Some(&mut progress),
        };
        let outcome = simulate(scenario, options)?;
        bar.finish();
        failures.extend(outcome.failures());
        report.ways.push(to_way(&outcome));
        results.push(to_json(&outcome));
    }
    print(&table::render(&report))?;
    if let Some(path) = &args.json {
        // One scenario: what fio would have written. Several: a list of such.
        let value = if results.len() == 1 { results.remove(0) } else { Value::Array(results) };
        write(path, &format!("{value:#}\n"))?;
    }
    if let Some(path) = &args.report {
        write(path, &html::render(&report))?;
    }
    match failures.len() {
        0 => Ok(()),
        n => Err(Failure::Other(format!("{n} requests failed; the first: {}", failures[0]))),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|e| Failure::Other(format!("cannot write {}: {e}", path.display())))
}

/// A progress bar on a terminal, nothing when standard error is piped.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new(title: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(1_000);
        // The template is a constant that parses.
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:40} {percent:>3} % {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar { bar }
    }

    fn tell(&self, stage: Stage) {
        let (part, what) = match stage {
            Stage::Preconditioning(part) => (part, "preconditioning"),
            Stage::Running(part) => (part, "running"),
        };
        self.bar.set_position((part * 1_000.0) as u64);
        self.bar.set_message(what);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
