//! `sluice sim`: runs scenarios, prints the table, writes the files.

mod points;
mod run_bars;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use report::explain::{render_bands, render_slowest};
use report::{Report, html, table};
use scenario::Scenario;
use scenario::format::printable_lines;
use serde_json::Value;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use sim::{JsonSchema, SCHEMA, SimError, SimOutcome, to_json, to_text, to_variant};
use stack::StackError;
use stack::named_target::NamedError;
use sweep::{Row, RunSettings, run_all};
use tracing::level_filters::LevelFilter;

use points::SimPoint;
pub(super) use points::settings;
use run_bars::RunBars;

use crate::args::SimArgs;
use crate::output::{Output, is_standard};
use crate::{CliError, print, state_line};

/// Number of slowest requests in a report.
const SLOWEST_REPORTED: usize = 10;

/// Exit code of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

impl From<SimError> for CliError {
    fn from(error: SimError) -> CliError {
        match error {
            SimError::Scenario(error)
            | SimError::Stack(StackError::Named(NamedError::Scenario(error))) => {
                CliError::Scenario(error)
            }
            SimError::Job(error) => CliError::Job(error),
            error if error.is_usage() => CliError::Usage(error.to_string()),
            error => CliError::Other(error.to_string()),
        }
    }
}

/// Runs the scenarios, several at a time; each is a variant of the report. All outputs are those of
/// one run after the other.
///
/// The first SIGINT ends the jobs, and the results so far are printed and written; the second ends
/// the process.
///
/// # Errors
/// [`CliError`] for invalid scenarios or jobs, outputs that cannot be opened, runs with invalid
/// results, failed requests, an interruption, and notes with `--strict`. Outputs are opened before
/// any run.
pub fn run(args: &SimArgs) -> Result<(), CliError> {
    let (files, jobs) = args.scenarios_and_jobs();
    if files.is_empty() {
        return Err(CliError::Usage("no scenario: give at least one file ending in .toml".into()));
    }
    let job_files: Vec<PathBuf> = jobs.iter().map(|job| job.to_path_buf()).collect();
    check_single(args, files.len())?;
    let (points, mut scenarios) = points::load(&files, &job_files, args)?;
    check_single(args, scenarios.len())?;
    for scenario in &mut scenarios {
        if let Some(seed) = args.seed {
            scenario.set_seed(seed);
        }
        args.states.apply(scenario);
    }
    let mut outputs = Outputs::open(args)?;
    let settings = RunSettings {
        blktrace: args.blktrace.clone(),
        slowest: args.slowest.unwrap_or(match args.report {
            Some(_) => SLOWEST_REPORTED,
            None => 0,
        }),
        profile: args.profile,
        write_image: args.write_image,
        ..RunSettings::new(job_files, args.jobs.unwrap_or_else(default_jobs), catch_interrupt()?)
    };
    let trace = outputs.trace.as_ref().map(Output::trace).transpose()?;
    let bars = RunBars::new(scenarios.len());
    let observe = move |scenario: &Scenario, index: usize| -> sweep::StageObserver {
        let mut bar = bars.start(scenario, index);
        Box::new(move |stage| bar.update(stage))
    };
    let ended = run_all(&scenarios, &settings, &observe, trace)
        .map_err(|e| CliError::Other(format!("cannot start a thread for a run: {e}")))?;
    let results = Results { outcomes: ended.outcomes, print_slowest: args.slowest.is_some() };
    if !results.outcomes.is_empty() {
        // After a failure or an interruption, write the results that there are.
        results.write(&scenarios, &points, &mut outputs)?;
    }
    for (drive, used) in results.outcomes.iter().flat_map(|outcome| &outcome.diagnostics.states) {
        if let Some(line) = state_line(drive, used) {
            eprintln!("{}", printable_lines(&line));
        }
    }
    if let Some(failed) = ended.failed {
        return Err(failed.into());
    }
    if ended.is_interrupted {
        return Err(interrupted(results.outcomes.len()));
    }
    results.judge(args.strict)
}

/// Refuses outputs that take one run, if there are more.
fn check_single(args: &SimArgs, count: usize) -> Result<(), CliError> {
    let single = [("--trace", args.trace.is_some()), ("--blktrace", args.blktrace.is_some())];
    match single.into_iter().find(|(_, is_given)| *is_given && count > 1) {
        Some((option, _)) => Err(CliError::Usage(format!("{option} takes one scenario"))),
        None => Ok(()),
    }
}

/// Returns the number of runs at a time without `--jobs`: the number of CPUs that the process may
/// use, or 1 if events are logged, so that those of a run are together.
pub(super) fn default_jobs() -> NonZeroUsize {
    match LevelFilter::current() {
        LevelFilter::OFF => available_parallelism().unwrap_or(NonZeroUsize::MIN),
        _ => NonZeroUsize::MIN,
    }
}

/// Returns the title of a report: those of its scenarios.
fn join_titles(titles: &[&str]) -> String {
    match titles {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] if all.len() < 3 => format!("{} and {last}", all.join(", ")),
        [a, b, rest @ ..] => format!("{a}, {b} and {} more", rest.len()),
    }
}

/// Returns the latency explanations for a terminal; empty if not requested.
fn explanation_text(outcome: &SimOutcome) -> String {
    let mut out = String::new();
    for path in &outcome.paths {
        let (Some(explanation), Some(drive)) = (&path.explanation, path.drive(outcome)) else {
            continue;
        };
        if explanation.slowest.is_empty() {
            continue;
        }
        let names = drive.names(explanation);
        out += &format!("\n{}, {}: the slowest requests\n", outcome.title, path.name);
        out += &render_slowest(&explanation.slowest, names);
        out.push('\n');
        out += &render_bands(&explanation.breakdowns, names);
    }
    out
}

/// Returns the profile of a run for a terminal, if it was requested.
fn profile_text(outcome: &SimOutcome) -> Option<String> {
    Some(format!("\n{}\n{}", outcome.title, outcome.diagnostics.profile?.table()))
}

/// Results so far.
struct Results {
    outcomes: Vec<SimOutcome>,
    /// Whether the slowest requests were requested.
    print_slowest: bool,
}

impl Results {
    fn report(&self, scenarios: &[Scenario]) -> Report {
        let titles: Vec<&str> = scenarios.iter().map(|s| s.title.as_str()).collect();
        let mut questions: Vec<&str> = scenarios.iter().map(|s| s.question.as_str()).collect();
        questions.retain(|question| !question.is_empty());
        let mut seen = Vec::new();
        questions.retain(|question| {
            let new = !seen.contains(question);
            seen.push(*question);
            new
        });
        Report {
            title: join_titles(&titles),
            subtitle: questions.join(" "),
            variants: self.outcomes.iter().map(to_variant).collect(),
        }
    }

    /// Prints the table and writes every output; a failing output does not prevent the others.
    fn write(
        &self,
        scenarios: &[Scenario],
        points: &[SimPoint],
        outputs: &mut Outputs,
    ) -> Result<(), CliError> {
        let report = self.report(scenarios);
        let stories: String = match self.print_slowest {
            true => self.outcomes.iter().map(explanation_text).collect(),
            false => String::new(),
        };
        let profiles: String = self.outcomes.iter().filter_map(profile_text).collect();
        let table = table::render(&report) + &stories + &profiles;
        let mut first = if outputs.is_standard_taken() {
            let _ = std::io::stderr().write_all(printable_lines(&table).as_bytes());
            None
        } else {
            print(&table).err()
        };
        if let Some(output) = &mut outputs.json {
            // Omit the explanations that only the report requested.
            let json = |outcome: &SimOutcome| {
                outputs.json_schema.convert(match self.print_slowest {
                    true => to_json(outcome),
                    false => to_json(&outcome.without_explanations()),
                })
            };
            let ways = Value::Array(self.outcomes.iter().map(json).collect());
            first = first.or(output.write(&to_text(&ways)).err());
        }
        if let Some(output) = &mut outputs.report {
            first = first.or(output.write(&html::render(&report)).err());
        }
        if let Some(output) = &mut outputs.csv {
            let keys = points.first().map(SimPoint::keys).unwrap_or_default();
            let rows: Vec<Row> = self
                .outcomes
                .iter()
                .flat_map(|outcome| {
                    // Titles are unique, and an interrupted run may have no outcome.
                    let at = scenarios.iter().position(|scenario| scenario.title == outcome.title);
                    at.map_or_else(Vec::new, |index| points[index].rows(outcome))
                })
                .collect();
            first = first.or(output.write(&sweep::csv(&keys, &rows)).err());
        }
        first.map_or(Ok(()), Err)
    }

    /// Returns an error if a run failed or, with `strict`, has notes.
    fn judge(&self, strict: bool) -> Result<(), CliError> {
        let failures: Vec<String> = self.outcomes.iter().flat_map(SimOutcome::failures).collect();
        let notes: Vec<_> = self.outcomes.iter().flat_map(|o| &o.notes).collect();
        if let Some(first) = failures.first() {
            return Err(CliError::Other(format!(
                "{} requests failed; the first: {first}",
                failures.len()
            )));
        }
        match notes.first() {
            Some(first) if strict => Err(CliError::Other(format!(
                "--strict, and there are notes, {} in all; the first: {} [{}]",
                notes.len(),
                first.text,
                first.code.as_str()
            ))),
            _ => Ok(()),
        }
    }
}

/// Parses the version of the keys of JSON results.
pub(crate) fn json_schema(text: &str) -> Result<JsonSchema, String> {
    let schema = text.parse().ok().and_then(JsonSchema::of_version);
    schema.ok_or_else(|| format!("expected {} or {SCHEMA}", SCHEMA - 1))
}

/// Returns the version of the keys of JSON results, and warns of the former one.
pub(crate) fn chosen_json_schema(option: Option<JsonSchema>) -> JsonSchema {
    let schema = option.unwrap_or_default();
    if schema == JsonSchema::Former {
        let former = SCHEMA - 1;
        eprintln!(
            "warning: schema {former} of the results is now {SCHEMA}; the former names of keys are \
             written for one release"
        );
    }
    schema
}

fn interrupted(outcomes: usize) -> CliError {
    CliError::Interrupted(match outcomes {
        0 => "interrupted before there was a result".into(),
        _ => "interrupted: the results are partial".into(),
    })
}

/// Outputs in addition to the table.
#[derive(Default)]
struct Outputs {
    json: Option<Output>,
    json_schema: JsonSchema,
    report: Option<Output>,
    csv: Option<Output>,
    trace: Option<Output>,
    standard: usize,
}

impl Outputs {
    /// Opens all outputs, or none.
    fn open(args: &SimArgs) -> Result<Outputs, CliError> {
        let given = distinct_outputs(&[
            OutputOption { name: "--json", path: &args.json },
            OutputOption { name: "--report", path: &args.report },
            OutputOption { name: "--csv", path: &args.csv },
            OutputOption { name: "--trace", path: &args.trace },
        ])?;
        if let Some(dir) = &args.blktrace {
            if is_standard(dir) {
                return Err(CliError::Usage("--blktrace takes a folder, not `-`".into()));
            }
            std::fs::create_dir_all(dir)
                .map_err(|e| CliError::Other(format!("cannot make {}: {e}", dir.display())))?;
        }
        let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
        Ok(Outputs {
            json: open(&args.json)?,
            json_schema: chosen_json_schema(args.json_schema),
            report: open(&args.report)?,
            csv: open(&args.csv)?,
            trace: open(&args.trace)?,
            standard: given.into_iter().filter(|path| is_standard(path)).count(),
        })
    }

    /// Returns whether standard output is used for machine-readable results, so that the table goes
    /// elsewhere.
    fn is_standard_taken(&self) -> bool {
        self.standard > 0
    }
}

/// An option that names an output.
pub(super) struct OutputOption<'a> {
    /// The option.
    pub(super) name: &'static str,
    /// The path that it has, if it is given.
    pub(super) path: &'a Option<PathBuf>,
}

/// Returns the paths of the outputs that are requested.
///
/// # Errors
/// A usage error if two write to the same path.
pub(super) fn distinct_outputs<'a>(
    options: &[OutputOption<'a>],
) -> Result<Vec<&'a PathBuf>, CliError> {
    let mut given: Vec<&PathBuf> = Vec::new();
    for (i, option) in options.iter().enumerate() {
        let Some(path) = option.path else { continue };
        if let Some(other) = options[..i].iter().find(|other| other.path.as_ref() == Some(path)) {
            return Err(CliError::Usage(format!(
                "{} and {} both write to {}",
                other.name,
                option.name,
                path.display()
            )));
        }
        given.push(path);
    }
    Ok(given)
}

/// Returns a flag that the first SIGINT sets; the second ends the process immediately.
pub(super) fn catch_interrupt() -> Result<Arc<AtomicBool>, CliError> {
    let failed = |e| CliError::Other(format!("cannot catch SIGINT: {e}"));
    let asked = Arc::new(AtomicBool::new(false));
    // The order matters: the first signal finds the flag cleared, the second finds it set.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, asked.clone()).map_err(failed)?;
    flag::register(SIGINT, asked.clone()).map_err(failed)?;
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_joined_as_far_as_they_fit_a_heading() {
        assert_eq!(join_titles(&["a"]), "a");
        assert_eq!(join_titles(&["a", "b"]), "a and b");
        assert_eq!(join_titles(&["a", "b", "c"]), "a, b and c");
        assert_eq!(join_titles(&["a", "b", "c", "d"]), "a, b and 2 more");
    }
}
