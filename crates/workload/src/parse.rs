//! fio job files, and any other table of fio's words, to [`JobSpec`]s.
//!
//! An option that is not supported is an error with its file and line; one without meaning here is
//! listed once. Nothing is ignored silently.

use std::path::{Path, PathBuf};

use crate::error::{JobError, Place};
use crate::job::JobSpec;
use crate::options::{self, IGNORED};

/// What a job file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Jobs {
    /// The jobs, in the order of the file.
    pub jobs: Vec<JobSpec>,
    /// Options that mean nothing to a simulated drive, each once, in alphabetical order.
    pub ignored: Vec<String>,
}

/// One `key=value`, and its line.
type Line<'a> = (&'a str, &'a str, usize);

/// Reads the fio job file at `path`.
///
/// # Errors
/// [`JobError`]: the first thing that is wrong.
pub fn parse_job_file(path: &Path) -> Result<Jobs, JobError> {
    let unreadable =
        |e: std::io::Error| JobError::Unreadable { path: path.to_owned(), reason: e.to_string() };
    parse_jobs(path, &std::fs::read_to_string(path).map_err(unreadable)?)
}

/// Reads the text of a fio job file; `path` is for errors, and for what the file refers to.
///
/// # Errors
/// As [`parse_job_file`].
pub fn parse_jobs(path: &Path, text: &str) -> Result<Jobs, JobError> {
    let mut out = Jobs::default();
    // Every `[global]` adds to what came before, for the jobs that follow it.
    let mut globals: Vec<Line<'_>> = Vec::new();
    for section in sections(path, text)? {
        if section.name == "global" {
            globals.extend(section.lines);
            continue;
        }
        let mut job = Reader { path, spec: JobSpec::new(section.name), ignored: &mut out.ignored };
        for &line in &globals {
            job.take(line)?;
        }
        job.spec.globals = std::mem::take(&mut job.spec.options);
        for &line in &section.lines {
            job.take(line)?;
        }
        let spec = job.finish(section.line)?;
        out.jobs.push(spec);
    }
    if out.jobs.is_empty() {
        return Err(JobError::NoJobs { path: path.to_owned() });
    }
    out.ignored.sort();
    Ok(out)
}

impl JobSpec {
    /// A job from pairs of fio's words with their lines, such as a `[[job]]` table of a scenario;
    /// `path` is for errors and for relative paths. Returns the ignored options beside it.
    ///
    /// # Errors
    /// As [`parse_job_file`].
    pub fn from_pairs<'a>(
        name: &str,
        path: &Path,
        pairs: impl IntoIterator<Item = (&'a str, &'a str, usize)>,
    ) -> Result<(JobSpec, Vec<String>), JobError> {
        let mut ignored = Vec::new();
        let mut job = Reader { path, spec: JobSpec::new(name), ignored: &mut ignored };
        let mut first_line = None;
        for line in pairs {
            first_line.get_or_insert(line.2);
            job.take(line)?;
        }
        let spec = job.finish(first_line.unwrap_or(1))?;
        ignored.sort();
        Ok((spec, ignored))
    }
}

/// One job being read.
struct Reader<'a> {
    path: &'a Path,
    spec: JobSpec,
    ignored: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn at(&self, line: usize) -> Place {
        Place { path: self.path.to_owned(), line }
    }

    fn take(&mut self, (option, value, line): Line<'_>) -> Result<(), JobError> {
        self.spec.options.push((option.to_owned(), value.to_owned()));
        if IGNORED.contains(&option) {
            if !self.ignored.iter().any(|i| i == option) {
                self.ignored.push(option.to_owned());
            }
            return Ok(());
        }
        match options::apply(&mut self.spec, option, value) {
            Some(outcome) => outcome.map_err(|allowed| JobError::BadValue {
                at: self.at(line),
                option: option.to_owned(),
                value: value.to_owned(),
                allowed,
            }),
            None => Err(JobError::UnknownOption {
                at: self.at(line),
                option: option.to_owned(),
                nearest: options::nearest(option),
            }),
        }
    }

    fn finish(mut self, line: usize) -> Result<JobSpec, JobError> {
        let conflict = match &mut self.spec.replay {
            Some(replay) if replay.path.as_os_str().is_empty() => {
                Some("options of a replay without `read_iolog=FILE`".to_owned())
            }
            Some(replay) => {
                // A path in a file is relative to that file, so that a run does not depend on
                // where it was started.
                if let Some(folder) = self.path.parent() {
                    replay.path = folder.join(&replay.path);
                }
                None
            }
            None => None,
        };
        match conflict.or_else(|| self.spec.conflict()) {
            Some(what) => Err(JobError::Conflict { at: self.at(line), job: self.spec.name, what }),
            None => Ok(self.spec),
        }
    }
}

struct Section<'a> {
    name: &'a str,
    line: usize,
    lines: Vec<Line<'a>>,
}

/// Splits a file into its sections. Comments start a line with `#` or `;`.
fn sections<'a>(path: &Path, text: &'a str) -> Result<Vec<Section<'a>>, JobError> {
    let mut sections: Vec<Section<'a>> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let (line, raw) = (index + 1, raw.trim());
        let syntax = |what: &str| JobError::Syntax {
            at: Place { path: PathBuf::from(path), line },
            what: what.to_owned(),
        };
        if raw.is_empty() || raw.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = raw.strip_prefix('[') {
            let name = name.strip_suffix(']').map(str::trim).filter(|n| !n.is_empty());
            let name = name.ok_or_else(|| syntax("a section is a name in brackets: [reader]"))?;
            sections.push(Section { name, line, lines: Vec::new() });
            continue;
        }
        let (key, value) = raw.split_once('=').unwrap_or((raw, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(syntax("an option is `name=value` or `name`"));
        }
        match sections.last_mut() {
            Some(section) => section.lines.push((key, value, line)),
            None => return Err(syntax("an option before the first section; add [global]")),
        }
    }
    Ok(sections)
}
