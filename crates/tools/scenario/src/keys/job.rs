//! `[[job]]` and `[[process]]`: fio's options, stored unchanged for the workload crate to parse.

use std::ops::Range;
use std::path::PathBuf;

use block::Group;
use workload::{JobError, JobOption, JobSource, JobSpec};

use super::layer_keys::read_group;
use super::process_keys::{ProcessSpec, ProcessStrategy};
use crate::section::{Result, Section, Value};
use crate::source::SourceSpan;

/// A job of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTable {
    /// Name of the job, as a job file's `[section]`; the default is `job1`, `job2` …
    pub name: String,
    /// Line of its first key, from 1.
    pub line: usize,
    /// Name of its drive, with the line of the key; `None` for the first drive.
    pub drive: Option<(String, usize)>,
    /// Name of its path, with the line of the key; `None` if the job names none.
    pub path: Option<(String, usize)>,
    /// Group of the job, for limits and weights.
    pub group: Group,
    /// Key, value and line of every other entry, in order. A key without a value in fio
    /// (`time_based`) has the value `1` if it is `true`.
    pub pairs: Vec<(String, String, usize)>,
    /// Byte ranges of the key and the value of each of `pairs` in the scenario's text.
    pub spans: Vec<[Range<usize>; 2]>,
    /// Byte range of the start of the job in the scenario's text.
    pub span: Range<usize>,
    /// The program that issues the I/Os of a `[[process]]`; `None` for a `[[job]]`.
    pub process: Option<ProcessSpec>,
}

impl JobTable {
    /// Parses the job with the workload crate; returns it with its options that have no effect.
    ///
    /// # Errors
    /// [`JobError`] with its location in `source`, the scenario.
    pub fn spec(
        &self,
        source: &JobSource,
    ) -> std::result::Result<(JobSpec, Vec<String>), JobError> {
        let options = self.pairs.iter().zip(&self.spans);
        let options = options.map(|((key, value, _), [key_span, value_span])| JobOption {
            key: key.clone(),
            value: value.clone(),
            key_span: key_span.clone(),
            value_span: value_span.clone(),
        });
        JobSpec::from_options(&self.name, source, self.span.clone(), options)
    }
}

/// A job's drive and path, and the span of its group.
#[derive(Default)]
pub(crate) struct JobRefs<'a> {
    pub(crate) drive: Option<Value<'a>>,
    pub(crate) path: Option<Value<'a>>,
    /// The application of the drive's rules.
    pub(crate) app: Option<Value<'a>>,
    pub(crate) group: Option<SourceSpan>,
}

/// Reads a process. Its depth follows from its strategy, which is `default` if it names none.
pub(crate) fn read_process<'a>(
    section: &mut Section<'a>,
    index: usize,
    default: Option<ProcessStrategy>,
) -> Result<(JobTable, JobRefs<'a>)> {
    let process = ProcessSpec::read(section, default)?;
    let (mut job, named) = read(section, index, "process")?;
    let own = |key: &String| ProcessSpec::has_key(key) || key == "iodepth";
    let line = job.line;
    let at = job.spans.first().cloned().unwrap_or_else(|| [job.span.clone(), job.span.clone()]);
    let options = job.pairs.into_iter().zip(job.spans);
    (job.pairs, job.spans) = options.filter(|((key, ..), _)| !own(key)).unzip();
    job.pairs.push(("iodepth".to_owned(), process.depth.to_string(), line));
    job.spans.push(at);
    job.process = Some(process);
    Ok((job, named))
}

/// Reads one job; returns it with the names to which it refers. `word` and `index` are its name if it
/// has none.
pub(crate) fn read<'a>(
    section: &Section<'a>,
    index: usize,
    word: &str,
) -> Result<(JobTable, JobRefs<'a>)> {
    let mut job = JobTable {
        name: format!("{word}{}", index + 1),
        line: section.source_span().source.line_column(section.source_span().span.start).0,
        drive: None,
        path: None,
        group: Group(0),
        pairs: Vec::new(),
        spans: Vec::new(),
        span: section.source_span().span,
        process: None,
    };
    let mut named = JobRefs::default();
    for (at, (key, value, span)) in section.pairs().into_iter().enumerate() {
        let line = section.source.line_column(span.start).0;
        if at == 0 {
            job.line = line;
        }
        match key {
            "name" => job.name = value.printable()?.to_owned(),
            "drive" => {
                job.drive = Some((value.string()?.to_owned(), line));
                named.drive = Some(value);
            }
            "path" => {
                job.path = Some((value.string()?.to_owned(), line));
                named.path = Some(value);
            }
            "app" => named.app = Some(value),
            "group" => {
                job.group = read_group(&value)?;
                named.group = Some(value.source_span());
            }
            _ => {
                job.pairs.push((key.to_owned(), value.raw()?, line));
                job.spans.push([span, value.source_span().span]);
            }
        }
    }
    Ok((job, named))
}

/// Reads `job_files = ["mixed.fio"]`: job files relative to the scenario.
pub(crate) fn read_files(value: &Value<'_>) -> Result<Vec<(PathBuf, usize)>> {
    let file = |v: &Value<'_>| {
        let place = v.source_span();
        Ok((place.source.resolve(v.string()?), v.line()))
    };
    match value.items() {
        Some(items) => items.iter().map(file).collect(),
        None if value.string().is_err() => Err(value.wrong_type("a path, or a list of paths")),
        None => Ok(vec![file(value)?]),
    }
}
