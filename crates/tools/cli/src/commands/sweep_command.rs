//! `sluice sweep`: runs a sweep file, keeps the runs, prints and writes their rows.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use report::sweep::SweepPage;
use scenario::format::{printable, printable_lines};
use stack::StateUse;
use sweep::{
    NamedChart, Row, RunStatus, RunStore, SweepError, SweepFile, SweepResults, SweepSettings,
    charts, csv, json, summary, verify,
};

use super::sim_command::{OutputOption, catch_interrupt, default_jobs, distinct_outputs, settings};
use crate::args::SweepArgs;
use crate::measured_machine::MeasuredMachine;
use crate::output::{Output, is_standard};
use crate::sweep_line::SweepLine;
use crate::{CliError, print_or_stderr, state_line};

/// Runs `sluice sweep SWEEP.toml`.
///
/// # Errors
/// [`CliError`] for an invalid sweep, outputs that cannot be opened or written, a store that cannot
/// be used, failed runs, runs that differ from the stored ones, and an interruption. All outputs are
/// written first.
pub fn run(args: &SweepArgs) -> Result<(), CliError> {
    let mut file = SweepFile::load(&args.file)?;
    file.sweep.base =
        file.sweep.base.with_settings(settings(&args.set)?).map_err(SweepError::from)?;
    let planned = file.sweep.points()?;
    let mut measured = MeasuredMachine::default();
    for scenario in planned.iter().filter_map(|run| run.scenario.as_ref().ok()) {
        if let Some(model) = measured.needed_by(scenario)? {
            file.sweep.base.set_this_machine(model);
            file.sweep.points()?;
            break;
        }
    }
    let mut outputs = Outputs::open(args)?;
    let folder = args.store.as_deref().unwrap_or(&file.store);
    let store = RunStore::open(folder).map_err(SweepError::from)?;
    let interrupt = catch_interrupt()?;
    let results = file.sweep.run(Some(&store), run_settings(args, &interrupt, ""))?;
    for (path, problem) in &results.damaged {
        let path = path.to_string_lossy();
        eprintln!("warning: {}: {problem}; it was computed again", printable(&path));
    }
    print_states(&results.states);
    outputs.write(args, &file, &results)?;
    if let Some(error) = results.store_error {
        return Err(SweepError::Store(error).into());
    }
    if results.is_interrupted() {
        let (done, total) = (results.progress.done, results.progress.total);
        return Err(CliError::Interrupted(format!(
            "interrupted: {done} of {total} runs are done, and kept in {}; the same command continues",
            folder.display()
        )));
    }
    if let Some(count) = args.verify {
        let found = verify(
            &file.sweep,
            &store,
            count,
            args.verify_seed,
            run_settings(args, &interrupt, "verified "),
        )?;
        if let Some((path, replay)) = found.different.first() {
            return Err(CliError::Other(format!(
                "{} of {} stored runs differ from the same runs now; the first: {}; to repeat it: \
                 {replay}",
                found.different.len(),
                found.checked,
                path.display()
            )));
        }
        if interrupt.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(CliError::Interrupted("interrupted before all runs were verified".into()));
        }
        eprintln!("{} stored runs are equal to the same runs now", found.checked);
    }
    judge(&results)
}

fn run_settings(
    args: &SweepArgs,
    interrupt: &Arc<AtomicBool>,
    what: &'static str,
) -> SweepSettings {
    let mut line = SweepLine::new(what);
    let states = args.states.clone();
    SweepSettings {
        at_a_time: args.jobs.unwrap_or_else(default_jobs),
        interrupt: interrupt.clone(),
        progress: Box::new(move |progress| {
            if let Some(text) = line.update(progress) {
                eprintln!("{text}");
            }
        }),
        states: Box::new(move |folder| states.choose(folder)),
    }
}

/// Prints how drives came to their states, each line once.
fn print_states(used: &[(String, StateUse)]) {
    let mut printed = BTreeSet::new();
    for line in used.iter().filter_map(|(drive, used)| state_line(drive, used)) {
        if printed.insert(line.clone()) {
            eprintln!("{}", printable_lines(&line));
        }
    }
}

/// Returns an error if a run failed.
fn judge(results: &SweepResults) -> Result<(), CliError> {
    let Some(first) = results.rows.iter().find(|row| row.status == RunStatus::Failed) else {
        return Ok(());
    };
    Err(CliError::Other(format!(
        "{} of {} runs failed; the first: {}; to repeat it: {}",
        results.progress.failed, results.progress.total, first.error, first.replay
    )))
}

/// Returns the rows as a table for a terminal.
fn table(keys: &[String], rows: &[Row]) -> String {
    let (headings, cells) = summary(keys, rows);
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in std::iter::once(&headings).chain(&cells) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Outputs in addition to the table.
struct Outputs {
    csv: Option<Output>,
    json: Option<Output>,
    report: Option<Output>,
    is_standard_taken: bool,
}

impl Outputs {
    /// Opens all outputs, or none.
    fn open(args: &SweepArgs) -> Result<Outputs, CliError> {
        let given = distinct_outputs(&[
            OutputOption { name: "--csv", path: &args.csv },
            OutputOption { name: "--json", path: &args.json },
            OutputOption { name: "--report", path: &args.report },
        ])?;
        if let Some(folder) = &args.plot {
            fs::create_dir_all(folder).map_err(|e| cannot_write(folder, &e))?;
        }
        let open =
            |path: &Option<std::path::PathBuf>| path.as_deref().map(Output::open).transpose();
        Ok(Outputs {
            csv: open(&args.csv)?,
            json: open(&args.json)?,
            report: open(&args.report)?,
            is_standard_taken: given.into_iter().any(|path| is_standard(path)),
        })
    }

    /// Prints the table and writes every output; a failing output does not prevent the others.
    fn write(
        &mut self,
        args: &SweepArgs,
        file: &SweepFile,
        results: &SweepResults,
    ) -> Result<(), CliError> {
        let (keys, rows) = (&results.keys, &results.rows);
        let mut first = print_or_stderr(&table(keys, rows), self.is_standard_taken).err();
        let charts = charts(keys, rows, &file.plot);
        if let Some(output) = &mut self.csv {
            first = first.or(output.write(&csv(keys, rows)).err());
        }
        if let Some(output) = &mut self.json {
            first = first.or(output.write(&json(keys, rows)).err());
        }
        if let Some(output) = &mut self.report {
            first = first.or(output.write(&page(args, results, &charts)).err());
        }
        if let Some(folder) = &args.plot {
            for NamedChart { name, chart } in &charts {
                let path = folder.join(format!("{name}.svg"));
                let written = fs::write(&path, chart.svg());
                first = first.or(written.err().map(|e| cannot_write(&path, &e)));
            }
        }
        first.map_or(Ok(()), Err)
    }
}

fn page(args: &SweepArgs, results: &SweepResults, charts: &[NamedChart]) -> String {
    let (headings, rows) = summary(&results.keys, &results.rows);
    let title =
        args.file.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    let (total, failed) = (results.progress.total, results.progress.failed);
    let mut subtitle = format!("{total} runs, {failed} of them failed.");
    if !args.set.is_empty() {
        subtitle += &format!(" With {}.", args.set.join(", "));
    }
    let charts = charts.iter().map(|named| named.chart.clone()).collect();
    SweepPage { title, subtitle, charts, headings, rows }.render()
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Other(format!("cannot write {}: {error}", path.display()))
}
