//! `sluice repro`: figures of papers, their results, and whether they agree.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use repro::{
    Catalog, Figure, FigureClass, FigureVerdict, Judgement, Recorded, ReportedFigure, ReproError,
    ResultRow, RunMode, Runner, Selection, charts, judge, page,
};
use serde_json::json;

use crate::args::{ReproArgs, ReproFolder, ReproReportArgs, ReproRunArgs, ReproVaryArgs};
use crate::{CliError, print};

impl From<ReproError> for CliError {
    fn from(error: ReproError) -> CliError {
        match error {
            ReproError::File { .. } | ReproError::Unknown { .. } | ReproError::NoFigures(_) => {
                CliError::Usage(error.to_string())
            }
            error => CliError::Other(error.to_string()),
        }
    }
}

/// Runs `sluice repro …`.
///
/// # Errors
/// [`CliError`] for an invalid figure or selection, a command that fails, results that differ from the
/// recorded ones, and [`CliError::Bounds`] if a check neither holds nor has a reason.
pub fn run(args: &ReproArgs) -> Result<(), CliError> {
    match args {
        ReproArgs::List(folder) => list(folder),
        ReproArgs::Run(args) => measure(args),
        ReproArgs::Vary(args) => vary(args),
        ReproArgs::Report(args) => report(args),
    }
}

fn list(folder: &ReproFolder) -> Result<(), CliError> {
    let catalog = Catalog::load(&folder.dir)?;
    let names = catalog.figures().iter().map(|figure| figure.name().to_string().len());
    let width = names.max().unwrap_or(0);
    let mut out = String::new();
    for figure in catalog.figures() {
        let measured = match catalog.results_path(figure.name()).exists() {
            true => "",
            false => "  (not measured)",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:width$}  {:7}  {:>5} min  {}{measured}",
            figure.name().to_string(),
            figure.class().name(),
            figure.minutes(),
            figure.title()
        );
    }
    print(&out)
}

fn measure(args: &ReproRunArgs) -> Result<(), CliError> {
    let catalog = Catalog::load(&args.folder.dir)?;
    let selection = Selection {
        names: args.figures.clone(),
        class: args.class.as_deref().and_then(FigureClass::from_name),
        minutes_max: args.max_minutes,
    };
    let figures = catalog.select(&selection)?;
    if figures.is_empty() {
        return Err(CliError::Usage("no figure is of this class and as short".into()));
    }
    if let (true, Some(figure)) =
        (args.check, figures.iter().find(|figure| !figure.class().is_equal_everywhere()))
    {
        return Err(CliError::Usage(format!(
            "{} is in real time, and its results differ from run to run: --check is for --class virtual",
            figure.name()
        )));
    }
    let program = std::env::current_exe()
        .map_err(|error| CliError::Other(format!("the path of this program: {error}")))?;
    let mode = if args.quick { RunMode::Quick } else { RunMode::Full };
    let mut runner = Runner::new(program, catalog.folder(), mode);
    if !args.from.is_empty() {
        runner = runner.with_runs(runs(&args.from)?);
    }
    let mut failures = Vec::new();
    for figure in figures {
        let mut tell = |command: &str| eprintln!("{}: sluice {command}", figure.name());
        let results = runner.results(figure, &mut tell)?;
        let judgement = judge(figure, &results);
        if args.check {
            catalog
                .recorded(figure.name())?
                .ok_or_else(|| ReproError::NotRecorded(figure.name().to_string()))?
                .compare(&results, figure)?;
        } else if !args.quick {
            record(&catalog, figure, &results)?;
        }
        print(&told(figure, &results, &judgement, args.json))?;
        failures
            .extend(judgement.failures.into_iter().map(|why| format!("{}: {why}", figure.name())));
    }
    match failures.is_empty() || args.quick {
        true => Ok(()),
        false => Err(CliError::Bounds(failures.join("\n"))),
    }
}

/// Varies the numbers of the machines of figures, and records which checks change.
fn vary(args: &ReproVaryArgs) -> Result<(), CliError> {
    let catalog = Catalog::load(&args.folder.dir)?;
    let selection = Selection { names: args.figures.clone(), ..Selection::default() };
    let mut figures = catalog.select(&selection)?;
    figures.retain(|figure| !figure.vary().is_empty());
    if figures.is_empty() {
        return Err(CliError::Usage("no such figure has numbers of a machine (`vary`)".into()));
    }
    let program = std::env::current_exe()
        .map_err(|error| CliError::Other(format!("the path of this program: {error}")))?;
    let mut runner = Runner::new(program, catalog.folder(), RunMode::Full);
    for figure in figures {
        let mut tell = |command: &str| eprintln!("{}: sluice {command}", figure.name());
        results_folder(&catalog, figure)?;
        let found = runner.sensitivity(figure, &mut tell)?;
        write(&catalog.sensitivity_path(figure.name()), &found.to_text(figure))?;
        let mut out = format!("{}: {} checks change\n", figure.name(), found.fragile().len());
        for check in found.fragile() {
            let holds = if check.holds { "holds then" } else { "no longer holds" };
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "  {}: {holds}: {} ({})",
                check.variation, check.claim, check.measured
            );
        }
        print(&out)?;
    }
    Ok(())
}

/// Returns the rows of each file.
fn runs(files: &[PathBuf]) -> Result<Vec<Vec<ResultRow>>, CliError> {
    let rows = |file: &PathBuf| {
        let text = fs::read_to_string(file)
            .map_err(|error| CliError::Usage(format!("{}: {error}", file.display())))?;
        Ok(ResultRow::parse_all(&file.display().to_string(), &text)?)
    };
    files.iter().map(rows).collect()
}

/// Returns the text of a figure's verdict, with its rows if they are asked for.
fn told(figure: &Figure, results: &Recorded, judgement: &Judgement, as_json: bool) -> String {
    let name = figure.name().to_string();
    if as_json {
        let checks: Vec<_> = judgement
            .checks
            .iter()
            .map(|check| {
                json!({
                    "claim": check.claim,
                    "measured": check.measured,
                    "asked": check.asked,
                    "holds": check.holds,
                    "not_here": check.not_here,
                })
            })
            .collect();
        let verdict =
            json!({ "figure": name, "verdict": judgement.verdict.word(), "checks": checks });
        return format!("{}{verdict}\n", results.to_text(figure));
    }
    let mut out = format!("{name}: {}\n", judgement.verdict.word());
    for check in &judgement.checks {
        let mark = if check.holds { "holds" } else { "does not hold" };
        // Writing to a string cannot fail.
        let _ =
            writeln!(out, "  {mark}: {} ({}; asked: {})", check.claim, check.measured, check.asked);
        if let (false, Some(reason)) = (check.holds, &check.not_here) {
            let _ = writeln!(out, "    {reason}");
        }
    }
    out
}

/// Returns the folder of a figure's results, and makes it if there is none.
fn results_folder(catalog: &Catalog, figure: &Figure) -> Result<PathBuf, CliError> {
    let folder = catalog.results_folder(figure.name());
    fs::create_dir_all(&folder)
        .map_err(|error| CliError::Other(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

fn record(catalog: &Catalog, figure: &Figure, results: &Recorded) -> Result<(), CliError> {
    let folder = results_folder(catalog, figure)?;
    write(&catalog.results_path(figure.name()), &results.to_text(figure))?;
    for drawing in charts(figure, results) {
        write(&folder.join(&drawing.file), &drawing.svg)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    fs::write(path, text).map_err(|error| CliError::Other(format!("{}: {error}", path.display())))
}

fn report(args: &ReproReportArgs) -> Result<(), CliError> {
    let catalog = Catalog::load(&args.folder.dir)?;
    let mut files = Vec::new();
    let mut all = Vec::new();
    let mut failures = Vec::new();
    for figure in catalog.figures() {
        let results = catalog.recorded(figure.name())?;
        if let Some(results) = &results {
            let folder = catalog.results_folder(figure.name());
            files.extend(charts(figure, results).into_iter().map(|d| (folder.join(d.file), d.svg)));
            let judgement = judge(figure, results);
            if judgement.verdict == FigureVerdict::Failed {
                let of = |why| format!("{}: {why}", figure.name());
                failures.extend(judgement.failures.into_iter().map(of));
            }
        }
        let sensitivity = catalog.sensitivity(figure.name())?;
        all.push(ReportedFigure { figure, results, sensitivity });
    }
    let folder = args.folder.dir.display().to_string();
    files.push((args.out.clone(), page(folder.trim_end_matches('/'), &all, catalog.missing())));
    for (path, text) in &files {
        if !args.check {
            write(path, text)?;
        } else if fs::read_to_string(path).ok().as_ref() != Some(text) {
            return Err(CliError::Other(format!(
                "{} is not the one of the recorded results: run `sluice repro report`",
                path.display()
            )));
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(CliError::Bounds(failures.join("\n"))),
    }
}
