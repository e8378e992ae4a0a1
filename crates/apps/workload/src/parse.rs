//! Parser of fio job files and of other lists of fio's options, to [`JobSpec`]s.
//!
//! An unsupported option is an error with its file, line and column. An option without effect is
//! listed once in the result. No option is ignored silently.

use std::ops::Range;
use std::path::Path;

use crate::error::{JobError, JobProblem, JobSource, SourceLocation};
use crate::job::JobSpec;

mod expand;
mod key_options;
pub(crate) mod option_tables;
pub(crate) mod options;
mod reference;
mod unit_options;

use expand::expand;
use option_tables::OptionSupport;
pub use reference::fio_reference;

/// Maximum nesting depth of included files.
const INCLUDES_MAX: usize = 16;

/// The content of a job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFile {
    /// The jobs in the order of the file.
    pub jobs: Vec<JobSpec>,
    /// Options that have no effect on a simulated drive, each once, in alphabetical order.
    pub ignored: Vec<String>,
}

/// One `key=value` of a text, such as a line of a `[[job]]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOption {
    /// fio's name of the option.
    pub key: String,
    /// Value of the option; empty for a flag that is set.
    pub value: String,
    /// Byte range of the key in the text.
    pub key_span: Range<usize>,
    /// Byte range of the value in the text.
    pub value_span: Range<usize>,
}

/// An option with the text that contains it.
#[derive(Clone)]
struct OptionLine<'a> {
    source: &'a JobSource,
    option: JobOption,
    /// Line number of an option that does not come from a text.
    line: Option<usize>,
}

impl OptionLine<'_> {
    fn location(&self, span: &Range<usize>) -> SourceLocation {
        let place = self.source.location(span.clone());
        SourceLocation { line: self.line.unwrap_or(place.line), ..place }
    }
}

/// Reads the fio job file at `path`.
///
/// # Errors
/// [`JobError`] for the first problem.
pub fn parse_job_file(path: &Path) -> Result<JobFile, JobError> {
    parse_jobs(path, &read(path)?)
}

fn read(path: &Path) -> Result<String, JobError> {
    let unreadable =
        |e: std::io::Error| JobError::Unreadable { path: path.to_owned(), reason: e.to_string() };
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Parses the text of a fio job file. Errors and relative paths in the text refer to `path`.
///
/// # Errors
/// As [`parse_job_file`].
pub fn parse_jobs(path: &Path, text: &str) -> Result<JobFile, JobError> {
    let mut sources = vec![JobSource::new(path, text)];
    let mut sections = Vec::new();
    scan(&mut sources, 0, 0, &mut sections)?;
    let mut out = JobFile::default();
    // Each `[global]` section adds to the ones before it, for the jobs that follow.
    let mut globals: Vec<OptionLine<'_>> = Vec::new();
    for section in sections {
        let lines = section.lines.into_iter();
        let lines =
            lines.map(|(from, option)| OptionLine { source: &sources[from], option, line: None });
        if section.name == "global" {
            globals.extend(lines);
            continue;
        }
        let mut job = JobReader::new(&sources[0], &section.name, &mut out.ignored);
        for line in &globals {
            job.apply(line)?;
        }
        job.spec.report.globals = std::mem::take(&mut job.spec.report.options);
        for line in lines {
            job.apply(&line)?;
        }
        let spec = job.finish(sources[0].location(section.span))?;
        out.jobs.push(spec);
    }
    if out.jobs.is_empty() {
        return Err(JobError::NoJobs { path: path.to_owned() });
    }
    out.ignored.sort();
    Ok(out)
}

impl JobSpec {
    /// Parses one job from options of `source`, such as a `[[job]]` table of a scenario.
    ///
    /// `span` is the start of the job in the text. Returns the job and its options without effect.
    ///
    /// # Errors
    /// As [`parse_job_file`].
    pub fn from_options(
        name: &str,
        source: &JobSource,
        span: Range<usize>,
        options: impl IntoIterator<Item = JobOption>,
    ) -> Result<(JobSpec, Vec<String>), JobError> {
        let mut ignored = Vec::new();
        let mut job = JobReader::new(source, name, &mut ignored);
        for option in options {
            job.apply(&OptionLine { source, option, line: None })?;
        }
        let spec = job.finish(source.location(span))?;
        ignored.sort();
        Ok((spec, ignored))
    }

    /// Parses one job from pairs of fio's options that do not come from a text, with their line
    /// numbers.
    ///
    /// `path` serves error messages and relative paths. Returns the job and its options without
    /// effect.
    ///
    /// # Errors
    /// As [`parse_job_file`].
    pub fn from_pairs<'a>(
        name: &str,
        path: &Path,
        pairs: impl IntoIterator<Item = (&'a str, &'a str, usize)>,
    ) -> Result<(JobSpec, Vec<String>), JobError> {
        let source = JobSource::new(path, "");
        let mut ignored = Vec::new();
        let mut job = JobReader::new(&source, name, &mut ignored);
        let mut first_line = None;
        for (key, value, line) in pairs {
            first_line.get_or_insert(line);
            let option = JobOption {
                key: key.to_owned(),
                value: value.to_owned(),
                key_span: 0..0,
                value_span: 0..0,
            };
            job.apply(&OptionLine { source: &source, option, line: Some(line) })?;
        }
        let at = SourceLocation { line: first_line.unwrap_or(1), ..source.location(0..0) };
        let spec = job.finish(at)?;
        ignored.sort();
        Ok((spec, ignored))
    }
}

/// Parser state of one job.
struct JobReader<'a> {
    source: &'a JobSource,
    spec: JobSpec,
    /// The options so far, each with its last location.
    given: Vec<(String, SourceLocation)>,
    ignored: &'a mut Vec<String>,
}

impl<'a> JobReader<'a> {
    fn new(source: &'a JobSource, name: &str, ignored: &'a mut Vec<String>) -> JobReader<'a> {
        JobReader { source, spec: JobSpec::new(name), given: Vec::new(), ignored }
    }

    fn ignore(&mut self, option: &str) {
        if !self.ignored.iter().any(|i| i == option) {
            self.ignored.push(option.to_owned());
        }
    }

    fn apply(&mut self, line: &OptionLine<'_>) -> Result<(), JobError> {
        let JobOption { key, value, key_span, value_span } = &line.option;
        let (option, value) = (key.as_str(), value.trim());
        self.spec.report.options.push((option.to_owned(), value.to_owned()));
        self.given.retain(|(name, _)| name != option);
        self.given.push((option.to_owned(), line.location(key_span)));
        let problem = match option_tables::option_support(option) {
            OptionSupport::Ignored => {
                self.ignore(option);
                return Ok(());
            }
            OptionSupport::Refused(refused) if refused.off.contains(&value) => {
                self.ignore(option);
                return Ok(());
            }
            OptionSupport::Refused(refused) => {
                JobProblem::Refused { option: option.to_owned(), why: refused.why }
            }
            OptionSupport::Unknown => JobProblem::UnknownOption {
                option: option.to_owned(),
                nearest: option_tables::nearest_option(option),
            },
            OptionSupport::Supported => match options::apply(&mut self.spec, option, value) {
                Some(Err(allowed)) => {
                    let problem = JobProblem::BadValue {
                        option: option.to_owned(),
                        value: value.to_owned(),
                        allowed: allowed.text,
                        nearest: option_tables::nearest(value, allowed.choices.iter().copied()),
                    };
                    // A flag without a value has only its key.
                    let span = if value_span.is_empty() { key_span } else { value_span };
                    return Err(problem.into_error(line.location(span)));
                }
                // A test checks that every option of the table is understood.
                Some(Ok(())) | None => return Ok(()),
            },
        };
        Err(problem.into_error(line.location(key_span)))
    }

    fn finish(mut self, at: SourceLocation) -> Result<JobSpec, JobError> {
        let has = |option: &str| self.given.iter().any(|(name, _)| name == option);
        let checked = unit_options::check(&self.spec, has)
            .and_then(|()| key_options::complete(&mut self.spec, has));
        if let Err((option, what)) = checked {
            let place = self.given.into_iter().find(|(name, _)| name == option);
            let at = place.map_or(at, |(_, at)| at);
            return Err(JobProblem::Conflict { job: self.spec.name, what }.into_error(at));
        }
        let conflict = match &mut self.spec.replay {
            Some(replay) if replay.path.as_os_str().is_empty() => {
                Some("options of a replay without `read_iolog=FILE`".to_owned())
            }
            Some(replay) => {
                // A path in a file is relative to that file, so that a run does not depend on the
                // current directory.
                if let Some(folder) = self.source.path().parent() {
                    replay.path = folder.join(&replay.path);
                }
                self.spec.schedule.loops = 1;
                self.ignore_options(option_tables::NOT_IN_REPLAYS);
                None
            }
            None => None,
        };
        if !self.spec.report.logs.is_on() {
            self.ignore_options(&["log_avg_msec", "log_max_value", "log_max", "log_offset"]);
        }
        match conflict.or_else(|| self.spec.conflict()) {
            Some(what) => Err(JobProblem::Conflict { job: self.spec.name, what }.into_error(at)),
            None => Ok(self.spec),
        }
    }

    /// Lists the given options of the job as ignored.
    fn ignore_options(&mut self, words: &[&str]) {
        let given: Vec<String> = {
            let all = self.spec.report.globals.iter().chain(&self.spec.report.options);
            all.map(|(key, _)| key.clone()).filter(|key| words.contains(&key.as_str())).collect()
        };
        given.iter().for_each(|key| self.ignore(key));
    }
}

struct Section {
    name: String,
    /// Byte range of the section's heading in the job file.
    span: Range<usize>,
    /// Options, each with the index of its source.
    lines: Vec<(usize, JobOption)>,
}

/// Appends the sections of source `from` to `sections`, and the sources that it includes to
/// `sources`.
fn scan(
    sources: &mut Vec<JobSource>,
    from: usize,
    depth: usize,
    sections: &mut Vec<Section>,
) -> Result<(), JobError> {
    let source = sources[from].clone();
    let mut start = 0;
    for line in source.text().split_inclusive('\n') {
        let at = start;
        start += line.len();
        // As in fio, a comment can start anywhere in a line.
        let line = line.split(['#', ';']).next().unwrap_or("");
        let raw = line.trim();
        let span = at + (line.len() - line.trim_start().len());
        let span = span..span + raw.len();
        let syntax = |what: &str| {
            JobProblem::Syntax { what: what.to_owned() }.into_error(source.location(span.clone()))
        };
        if raw.is_empty() {
            continue;
        }
        if let Some(name) = raw.strip_prefix('[') {
            if depth > 0 {
                return Err(syntax("an included file has options only, no sections"));
            }
            let name = name.strip_suffix(']').map(str::trim).filter(|n| !n.is_empty());
            let name = name.ok_or_else(|| syntax("a section is a name in brackets: [reader]"))?;
            sections.push(Section { name: name.to_owned(), span, lines: Vec::new() });
            continue;
        }
        let included = raw.strip_prefix("include").filter(|r| r.starts_with(char::is_whitespace));
        let (key, value) = raw.split_once('=').unwrap_or((raw, ""));
        let (key, value) = (key.trim_end(), value.trim_start());
        if included.is_none() && (key.is_empty() || key.contains(char::is_whitespace)) {
            return Err(syntax("an option is `name=value` or `name`"));
        }
        if sections.is_empty() {
            return Err(syntax("an option before the first section; add [global]"));
        }
        if let Some(file) = included {
            if depth == INCLUDES_MAX {
                return Err(syntax("files include each other more than 16 deep"));
            }
            let folder = source.path().parent().unwrap_or(Path::new(""));
            let path = folder.join(file.trim());
            let text = std::fs::read_to_string(&path)
                .map_err(|e| syntax(&format!("cannot include {}: {e}", path.display())))?;
            sources.push(JobSource::new(&path, text));
            scan(sources, sources.len() - 1, depth + 1, sections)?;
            continue;
        }
        let value_span = span.end - value.len()..span.end;
        let expanded = expand(value).map_err(|what| {
            JobProblem::Syntax { what }.into_error(source.location(value_span.clone()))
        })?;
        let key_span = span.start..span.start + key.len();
        let option = JobOption { key: key.to_owned(), value: expanded, key_span, value_span };
        if let Some(section) = sections.last_mut() {
            section.lines.push((from, option));
        }
    }
    Ok(())
}
