//! `[[job]]`: fio's words, kept as they are for the workload crate to parse.

use std::ops::Range;
use std::path::PathBuf;

use block::Group;
use workload::{JobError, JobOption, JobSource, JobSpec};

use super::layer_keys::read_group;
use super::section::{Result, Section, Value};
use super::source::SourceSpan;

/// A job as the scenario gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTable {
    /// Its name, as a job file's `[section]`; `job1`, `job2` … where it has none.
    pub name: String,
    /// Line of its first key, from 1.
    pub line: usize,
    /// The drive it runs on, by name; `None` for the first. With the line of the key.
    pub drive: Option<(String, usize)>,
    /// The group whose limits and weight hold for it.
    pub group: Group,
    /// Key, value and line of every other entry, in the order they were written. A key that fio
    /// gives no value (`time_based`) has the value `1` when it is `true`.
    pub pairs: Vec<(String, String, usize)>,
    /// Bytes of the scenario's text that are the key and the value of each of `pairs`.
    pub spans: Vec<[Range<usize>; 2]>,
    /// Bytes of the scenario's text where the job begins.
    pub span: Range<usize>,
}

impl JobTable {
    /// The job in words of the workload crate, and its options without effect.
    ///
    /// # Errors
    /// [`JobError`], with its place in `source`, the scenario.
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

/// Where a job names its drive and its group.
#[derive(Default)]
pub(super) struct JobRefs<'a> {
    pub(super) drive: Option<Value<'a>>,
    pub(super) group: Option<SourceSpan>,
}

/// Reads one job; returns it with where it names its drive and its group.
pub(super) fn read<'a>(section: &Section<'a>, index: usize) -> Result<(JobTable, JobRefs<'a>)> {
    let mut job = JobTable {
        name: format!("job{}", index + 1),
        line: section.source_span().source.line_column(section.source_span().span.start).0,
        drive: None,
        group: Group(0),
        pairs: Vec::new(),
        spans: Vec::new(),
        span: section.source_span().span,
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

/// `job_files = ["mixed.fio"]`: job files beside the scenario.
pub(super) fn read_files(value: &Value<'_>) -> Result<Vec<(PathBuf, usize)>> {
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
