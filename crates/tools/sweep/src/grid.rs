//! [`Grid`]: all combinations of values and seeds, and the scenario of each.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use scenario::{MachineModel, Scenario, ScenarioError};
use sim::{RunNeeds, SimError};
use workload::JobError;

use crate::set::edit::EditedText;
use crate::{KeyPath, SetError, SetOrigin, SetProblem, Setting, SettingValue, SweepError};

/// Largest number of runs of a sweep.
pub const RUNS_MAX: usize = 20_000;

/// The seeds of every point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Range<u64>);

impl Seeds {
    /// Returns the seeds from `start` up to but without `end`; `None` if there are none.
    pub fn new(range: Range<u64>) -> Option<Seeds> {
        (!range.is_empty()).then_some(Seeds(range))
    }
}

/// Parses `40`, the seeds from 0 to 39, or `10..40`, those from 10 to 39.
impl FromStr for Seeds {
    type Err = SweepError;

    fn from_str(text: &str) -> Result<Seeds, SweepError> {
        let range = match text.split_once("..") {
            Some((start, end)) => start.trim().parse().ok().zip(end.trim().parse().ok()),
            None => Some(0).zip(text.trim().parse().ok()),
        };
        let seeds = range.and_then(|(start, end)| Seeds::new(start..end));
        seeds.ok_or_else(|| SweepError::Seeds { text: text.to_owned() })
    }
}

/// A key with one of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The key.
    pub key: KeyPath,
    /// The value.
    pub value: SettingValue,
    /// The text that set it.
    pub origin: SetOrigin,
}

impl Assignment {
    /// Returns the key and the value as an argument of `--set`.
    pub fn text(&self) -> String {
        format!("{}={}", self.key, self.value.text())
    }
}

/// One point of a grid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridPoint {
    /// The values, in the order of the keys.
    pub assignments: Vec<Assignment>,
    /// The seed, instead of the scenario's.
    pub seed: Option<u64>,
}

impl GridPoint {
    /// Returns the values and the seed for a title: `a=1, b=2, seed 3`.
    pub fn text(&self) -> String {
        let seed = self.seed.map(|seed| format!("seed {seed}"));
        let texts = self.assignments.iter().map(Assignment::text).chain(seed);
        texts.collect::<Vec<_>>().join(", ")
    }
}

/// All combinations of the values of keys, and of seeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    settings: Vec<Setting>,
    seeds: Option<Seeds>,
}

impl Grid {
    /// Returns a grid; without `seeds` each point has the scenario's seed.
    ///
    /// # Errors
    /// [`SweepError`] if a key is set twice, if the seed is, or if there are more than [`RUNS_MAX`]
    /// points.
    pub fn new(settings: Vec<Setting>, seeds: Option<Seeds>) -> Result<Grid, SweepError> {
        for (index, setting) in settings.iter().enumerate() {
            if settings[..index].iter().any(|earlier| earlier.key == setting.key) {
                let problem = SetProblem::RepeatedKey { key: setting.key.to_string() };
                return Err(SetError { origin: setting.origin.clone(), problem }.into());
            }
            if seeds.is_some() && setting.key.parts() == ["seed"] {
                return Err(SweepError::SeedsAndSet);
            }
        }
        let counts = settings.iter().map(|setting| setting.values.len() as u128);
        let seed_count =
            seeds.as_ref().map_or(1, |Seeds(range)| u128::from(range.end - range.start));
        let runs = counts.fold(seed_count, u128::saturating_mul);
        if runs > RUNS_MAX as u128 {
            return Err(SweepError::TooMany { runs, max: RUNS_MAX });
        }
        Ok(Grid { settings, seeds })
    }

    /// Returns the keys with their values.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns whether the only point is the scenario as it is.
    pub fn is_plain(&self) -> bool {
        self.settings.is_empty() && self.seeds.is_none()
    }

    /// Returns all points. The first key changes last, and the seed first.
    pub fn points(&self) -> Vec<GridPoint> {
        let mut points = vec![GridPoint::default()];
        for setting in &self.settings {
            let values = |point: GridPoint| {
                setting.values.iter().map(move |value| {
                    let mut point = point.clone();
                    let (key, origin) = (setting.key.clone(), setting.origin.clone());
                    point.assignments.push(Assignment { key, value: value.clone(), origin });
                    point
                })
            };
            points = points.into_iter().flat_map(values).collect();
        }
        let Some(Seeds(range)) = &self.seeds else { return points };
        let seeded = |point: GridPoint| {
            range.clone().map(move |seed| GridPoint { seed: Some(seed), ..point.clone() })
        };
        points.into_iter().flat_map(seeded).collect()
    }
}

/// A scenario that a sweep changes, as text.
#[derive(Clone, Debug)]
pub struct BaseScenario {
    /// Path of the file as given.
    pub file: PathBuf,
    text: Arc<str>,
    /// Values of all points, which are set before those of a point.
    settings: Vec<Assignment>,
    /// The numbers of the machine that runs the program, if they are known.
    this_machine: Option<Arc<MachineModel>>,
}

impl BaseScenario {
    /// Reads a scenario. It is not parsed: it may be complete only with the settings.
    ///
    /// # Errors
    /// [`ScenarioError::Read`].
    pub fn load(file: &Path) -> Result<BaseScenario, ScenarioError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ScenarioError::Read { path: file.to_path_buf(), source })?;
        Ok(BaseScenario::new(file, &text))
    }

    /// Returns a scenario with this text; relative paths in it refer to `file`.
    pub fn new(file: &Path, text: &str) -> BaseScenario {
        let (file, text) = (file.to_path_buf(), text.into());
        BaseScenario { file, text, settings: Vec::new(), this_machine: None }
    }

    /// Gives the numbers of the machine that runs the program to the points whose host is that
    /// machine (`machine = "this"`).
    pub fn set_this_machine(&mut self, model: Arc<MachineModel>) {
        self.this_machine = Some(model);
    }

    /// Parses the text of a point.
    fn parse(&self, text: &str) -> Result<Scenario, ScenarioError> {
        let mut scenario = Scenario::parse(&self.file, text)?;
        if let Some(model) = &self.this_machine {
            scenario.set_this_machine(model)?;
        }
        Ok(scenario)
    }

    /// Returns the scenario with keys set at all points, one value each. They are no keys of the
    /// sweep: its rows do not have them.
    ///
    /// # Errors
    /// [`SetError`] for a setting with several values, and for a key that is set twice.
    pub fn with_settings(mut self, settings: Vec<Setting>) -> Result<BaseScenario, SetError> {
        for Setting { key, mut values, origin } in settings {
            let (Some(value), true) = (values.pop(), values.is_empty()) else {
                let problem = SetProblem::SeveralValues { key: key.to_string() };
                return Err(SetError { origin, problem });
            };
            if self.settings.iter().any(|earlier| earlier.key == key) {
                let problem = SetProblem::RepeatedKey { key: key.to_string() };
                return Err(SetError { origin, problem });
            }
            self.settings.push(Assignment { key, value, origin });
        }
        Ok(self)
    }

    /// Returns the values of all points.
    pub fn settings(&self) -> &[Assignment] {
        &self.settings
    }

    /// Returns the values of all points, and then those of a point.
    fn assignments<'a>(&'a self, point: &'a GridPoint) -> Vec<&'a Assignment> {
        self.settings.iter().chain(&point.assignments).collect()
    }

    /// Returns the values of a point for a title.
    fn values(&self, point: &GridPoint) -> String {
        let point = Some(point.text()).filter(|text| !text.is_empty());
        let texts = self.settings.iter().map(Assignment::text).chain(point);
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Returns the scenario of a point. Its title says the values.
    ///
    /// # Errors
    /// [`SweepError::Set`] for an error at a value, and for a key of all points that the point sets,
    /// too; [`SweepError::SeedsAndSet`] if that is the seed; [`SweepError::Combination`] for an error
    /// elsewhere that the scenario has only with the values; and else the scenario's own error.
    pub fn at(&self, point: &GridPoint, job_files: &[PathBuf]) -> Result<Scenario, SweepError> {
        if point.seed.is_some() && self.settings.iter().any(|set| set.key.parts() == ["seed"]) {
            return Err(SweepError::SeedsAndSet);
        }
        let assignments = self.assignments(point);
        let pairs = assignments.iter().map(|assignment| (&assignment.key, &assignment.value));
        let edited = match EditedText::new(&self.text, pairs) {
            Ok(edited) => edited,
            Err(Some((index, problem))) => {
                let origin = assignments[index].origin.clone();
                return Err(SetError { origin, problem }.into());
            }
            Err(None) => return Err(self.own_error(job_files).unwrap_or(SweepError::Empty)),
        };
        if let Some((of_all, of_point)) = edited.overlap(self.settings.len()) {
            let (set, other) = (assignments[of_all], assignments[of_point]);
            let by = format!("{} ({})", other.key, other.origin);
            let problem = SetProblem::OfSweep { key: set.key.to_string(), by };
            return Err(SetError { origin: set.origin.clone(), problem }.into());
        }
        let text = match assignments.is_empty() {
            true => &self.text,
            false => edited.text.as_str(),
        };
        let parsed = self.parse(text).map_err(SimError::Scenario);
        let checked = parsed.and_then(|scenario| {
            RunNeeds::of_run(&scenario, job_files, false)?;
            Ok(scenario)
        });
        let mut scenario =
            checked.map_err(|error| self.locate(error, &edited, point, job_files))?;
        if let Some(seed) = point.seed {
            scenario.set_seed(seed);
        }
        let values = self.values(point);
        if !values.is_empty() {
            scenario.title = format!("{} ({values})", scenario.title);
        }
        Ok(scenario)
    }

    /// Returns the error of the scenario without settings, if it has one.
    fn own_error(&self, job_files: &[PathBuf]) -> Option<SweepError> {
        let scenario = match self.parse(&self.text) {
            Ok(scenario) => scenario,
            Err(error) => return Some(error.into()),
        };
        RunNeeds::of_run(&scenario, job_files, false).err().map(SweepError::from)
    }

    /// Returns the error with the setting that it is about.
    fn locate(
        &self,
        error: SimError,
        edited: &EditedText,
        point: &GridPoint,
        job_files: &[PathBuf],
    ) -> SweepError {
        let assignments = self.assignments(point);
        let at = |span: &Range<usize>| Some(assignments[edited.assignment_at(span)?]);
        let text = Assignment::text;
        let (found, message, help) = match &error {
            SimError::Scenario(ScenarioError::Invalid(invalid)) => {
                let problem = &invalid.problem;
                let set = at(&invalid.span).map(|set| SetError {
                    origin: set.origin.clone(),
                    problem: SetProblem::Scenario {
                        assignment: text(set),
                        problem: Box::new(problem.clone()),
                    },
                });
                (set, problem.to_string(), problem.help())
            }
            SimError::Job(JobError::Invalid(invalid)) if invalid.location.path == self.file => {
                let problem = &invalid.problem;
                let set = at(&invalid.location.span).map(|set| SetError {
                    origin: set.origin.clone(),
                    problem: SetProblem::Job {
                        assignment: text(set),
                        problem: Box::new(problem.clone()),
                    },
                });
                (set, problem.title(), problem.help())
            }
            error => (None, error.to_string(), None),
        };
        if let Some(set) = found {
            return set.into();
        }
        if let Some(own) = self.own_error(job_files) {
            return own;
        }
        let (file, values) = (self.file.clone(), self.values(point));
        SweepError::Combination { file, values, message, help }
    }
}

/// Returns the scenarios of all points, or the error of each.
///
/// # Errors
/// The error of a value that no point can have, and the first error if all points have one.
pub fn scenarios(
    base: &BaseScenario,
    points: &[GridPoint],
    job_files: &[PathBuf],
) -> Result<Vec<Result<Scenario, SweepError>>, SweepError> {
    let mut built: Vec<Result<Scenario, SweepError>> =
        points.iter().map(|point| base.at(point, job_files)).collect();
    let is_set = |i: usize| matches!(built[i], Err(SweepError::Set(_)));
    // The values with errors, each with its first point.
    let mut bad: Vec<(&Assignment, usize)> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let Err(SweepError::Set(SetError { origin, .. })) = &built[index] else { continue };
        let value = point.assignments.iter().find(|a| a.origin == *origin);
        if let Some(value) = value.filter(|value| bad.iter().all(|(known, _)| known != value)) {
            bad.push((value, index));
        }
    }
    let at_all_points = |value: &Assignment| {
        (0..points.len()).filter(|i| points[*i].assignments.contains(value)).all(is_set)
    };
    let hopeless = bad.iter().find(|(value, _)| at_all_points(value)).map(|(_, index)| *index);
    let all_fail = built.iter().all(Result::is_err);
    match hopeless.or(if all_fail && !built.is_empty() { Some(0) } else { None }) {
        Some(index) => Err(built.swap_remove(index).err().unwrap_or(SweepError::Empty)),
        None => Ok(built),
    }
}

#[cfg(test)]
mod tests;
