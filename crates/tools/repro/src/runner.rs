//! [`Runner`]: runs the commands of figures, each once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sensitivity::{FACTORS, varied};
use crate::{Figure, Recorded, ReproError, ResultOrigin, ResultRow, Sensitivity, judge};

/// Exit code of a command whose results are outside of a bound. They are results all the same.
const OUT_OF_BOUNDS: i32 = 3;

/// Exit code of a command that was asked for something that cannot be.
const USAGE: i32 = 2;

/// Length of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// As the figure's file says.
    Full,
    /// Shorter, to try that a figure can be measured.
    Quick,
}

/// Runs the commands of figures. Figures with the same command share its rows.
#[derive(Debug)]
pub struct Runner {
    program: PathBuf,
    folder: PathBuf,
    mode: RunMode,
    origin: ResultOrigin,
    rows: BTreeMap<String, Vec<ResultRow>>,
    given: Option<Vec<ResultRow>>,
}

impl Runner {
    /// Returns a runner of the program `sluice`, whose commands have the folder that `repro` is in as
    /// their working directory.
    pub fn new(program: PathBuf, repro: &Path, mode: RunMode) -> Runner {
        let folder = match repro.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let (commit, date) = commit(&folder);
        let origin = ResultOrigin { commit, date, machine: Some(machine()) };
        Runner { program, folder, mode, origin, rows: BTreeMap::new(), given: None }
    }

    /// Takes rows that commands have printed before; then no command is run. Of several runs, the medians
    /// are taken.
    #[must_use]
    pub fn with_runs(mut self, runs: Vec<Vec<ResultRow>>) -> Runner {
        self.given = Some(ResultRow::medians(runs));
        self
    }

    /// Returns the results of a figure. `tell` is called with each command before it runs.
    ///
    /// # Errors
    /// [`ReproError`] if a command cannot be run or fails, and if it does not print all rows of the
    /// figure.
    pub fn results(
        &mut self,
        figure: &Figure,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Recorded, ReproError> {
        let mut all = self.given.clone().unwrap_or_default();
        if self.given.is_none() {
            for command in figure.commands() {
                if !self.rows.contains_key(command) {
                    tell(command);
                    let rows = self.run(command)?;
                    self.rows.insert(command.clone(), rows);
                }
                all.extend(self.rows[command].iter().cloned());
            }
        }
        let mut origin = self.origin.clone();
        if figure.class().is_equal_everywhere() {
            origin.machine = None;
        }
        Recorded::select(figure, &all, origin)
    }

    /// Halves and doubles each number of a figure's machine, one at a time, and returns the checks that
    /// change. `tell` is called with each command before it runs.
    ///
    /// # Errors
    /// As [`results`](Runner::results). A command that refuses a varied number does not fail:
    /// [`Sensitivity::impossible`] has it. But commands that refuse every one have no such numbers:
    /// [`ReproError::Usage`].
    pub fn sensitivity(
        &mut self,
        figure: &Figure,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Sensitivity, ReproError> {
        let usual = judge(figure, &self.results(figure, tell)?);
        let mut found = Sensitivity::new(figure, self.origin.clone());
        let variations = figure
            .vary()
            .iter()
            .flat_map(|number| FACTORS.iter().map(move |factor| format!("{number}*{factor}")));
        let mut refused = None;
        'variations: for variation in variations {
            let mut all = Vec::new();
            for command in figure.commands().iter().filter_map(|c| varied(c, &variation)) {
                if !self.rows.contains_key(&command) {
                    tell(&command);
                    match self.run(&command) {
                        Ok(rows) => self.rows.insert(command.clone(), rows),
                        Err(error @ ReproError::Usage { .. }) => {
                            found.impossible.push(variation);
                            refused = Some(error);
                            continue 'variations;
                        }
                        Err(error) => return Err(error),
                    };
                }
                all.extend(self.rows[&command].iter().cloned());
            }
            let results = Recorded::select(figure, &all, self.origin.clone())?;
            found.add(&variation, &usual, &judge(figure, &results));
        }
        match refused.filter(|_| found.impossible.len() == FACTORS.len() * figure.vary().len()) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    fn run(&self, command: &str) -> Result<Vec<ResultRow>, ReproError> {
        let failed = |problem: String| ReproError::Command { command: command.to_owned(), problem };
        let words: Vec<&str> = command.split_whitespace().collect();
        let mut process = Command::new(&self.program);
        process.args(&words).current_dir(&self.folder);
        match words.first() {
            // Without a store, the runs of a sweep are kept beside its file.
            Some(&"sweep") => process.args(["--json", "-"]),
            _ => process.arg("--json"),
        };
        if self.mode == RunMode::Quick && words.first() == Some(&"bench") {
            process.arg("--quick");
        }
        let output = process.output().map_err(|error| failed(error.to_string()))?;
        let code = output.status.code();
        if code != Some(0) && code != Some(OUT_OF_BOUNDS) {
            let text = String::from_utf8_lossy(&output.stderr);
            let end: Vec<&str> = text.lines().rev().take(5).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            let problem = format!("{}: {}", output.status, end.join("; "));
            return Err(match code {
                Some(USAGE) => ReproError::Usage { command: command.to_owned(), problem },
                _ => failed(problem),
            });
        }
        ResultRow::parse_all(command, &String::from_utf8_lossy(&output.stdout))
    }
}

/// Returns the commit of the code in a folder, with `+changes` if the code differs from it, and its
/// date.
fn commit(folder: &Path) -> (String, String) {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some((commit, date)) = git(&["log", "-1", "--abbrev=8", "--format=%h %cs"])
        .and_then(|text| text.split_once(' ').map(|(c, d)| (c.to_owned(), d.to_owned())))
    else {
        return ("unknown".into(), String::new());
    };
    let changed = ["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"];
    match git(&changed) {
        Some(text) if text.is_empty() => (commit, date),
        _ => (format!("{commit}+changes"), date),
    }
}

/// Returns the name of the processor and their number.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models =
        || text.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = models().next().map_or("unknown processor", |(_, model)| model.trim());
    format!("{model}, {} CPUs", models().count().max(1))
}
