//! [`load`]: the scenarios of a command line, with the combinations of `--set` and `--seeds`.

use std::path::{Path, PathBuf};

use scenario::Scenario;
use scenario::format::printable;
use sim::{SimOutcome, to_json};
use sweep::{BaseScenario, Grid, GridPoint, Row, Seeds, Setting, SweepError, replay_command, rows};

use crate::CliError;
use crate::args::SimArgs;
use crate::measured_machine::MeasuredMachine;

impl From<SweepError> for CliError {
    fn from(error: SweepError) -> CliError {
        match error {
            SweepError::Scenario(error) => CliError::Scenario(error),
            SweepError::Run(error) => error.into(),
            SweepError::Store(_) | SweepError::Thread(_) => CliError::Other(error.to_string()),
            error => CliError::Usage(error.to_string()),
        }
    }
}

/// The values of a run.
pub(super) struct SimPoint {
    file: PathBuf,
    point: GridPoint,
    replay: String,
}

impl SimPoint {
    /// Returns the names of the columns of the values.
    pub(super) fn keys(&self) -> Vec<String> {
        let keys = self.point.assignments.iter().map(|assignment| assignment.key.to_string());
        ["scenario".to_owned()].into_iter().chain(keys).collect()
    }

    /// Returns the rows of its outcome.
    pub(super) fn rows(&self, outcome: &SimOutcome) -> Vec<Row> {
        let mut rows = rows(&self.point, &self.replay, &to_json(outcome));
        for row in &mut rows {
            row.parameters.insert(0, self.file.to_string_lossy().into_owned());
        }
        rows
    }
}

/// Returns the arguments of `--set`.
pub(in crate::commands) fn settings(set: &[String]) -> Result<Vec<Setting>, CliError> {
    let settings = set.iter().map(|set| Setting::parse(set));
    Ok(settings.collect::<Result<Vec<_>, _>>().map_err(SweepError::from)?)
}

/// Loads the scenarios at every combination of `--set` and `--seeds`, each a variant of the report
/// with a unique name.
pub(super) fn load(
    files: &[&Path],
    job_files: &[PathBuf],
    args: &SimArgs,
) -> Result<(Vec<SimPoint>, Vec<Scenario>), CliError> {
    let settings = settings(&args.set)?;
    let seeds = args.seeds.as_deref().map(str::parse::<Seeds>).transpose()?;
    let grid = Grid::new(settings, seeds)?;
    let (mut points, mut scenarios): (Vec<SimPoint>, Vec<Scenario>) = (Vec::new(), Vec::new());
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut measured = MeasuredMachine::default();
    for file in files {
        // Loading reports a file that does not exist.
        let path = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
        if seen.contains(&path) {
            return Err(CliError::Usage(format!(
                "{} is given twice, and its two results could not be told apart: give each scenario \
                 once, or change a copy",
                file.display()
            )));
        }
        seen.push(path);
        let first = scenarios.len();
        let mut base = BaseScenario::load(file)?;
        for point in grid.points() {
            let mut scenario = match grid.is_plain() {
                true => Scenario::load(file)?,
                false => base.at(&point, job_files)?,
            };
            if let Some(model) = measured.needed_by(&scenario)? {
                base.set_this_machine(model.clone());
                match grid.is_plain() {
                    true => scenario.set_this_machine(&model)?,
                    false => scenario = base.at(&point, job_files)?,
                }
            }
            scenarios.push(scenario);
            let point = GridPoint { seed: point.seed.or(args.seed), ..point };
            let replay = replay_command(&base, job_files, &point);
            points.push(SimPoint { file: file.to_path_buf(), point, replay });
        }
        for found in scenarios[first..].first().iter().flat_map(|s| &s.former_spellings) {
            eprintln!("warning: {}", printable(&found.to_string()));
        }
    }
    let titles: Vec<String> = scenarios.iter().map(|s| s.title.clone()).collect();
    for scenario in &mut scenarios {
        if titles.iter().filter(|t| **t == scenario.title).count() > 1 {
            scenario.title = format!("{} ({})", scenario.title, scenario.file.display());
        }
    }
    Ok((points, scenarios))
}
