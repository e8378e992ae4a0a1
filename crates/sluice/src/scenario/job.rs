//! `[[job]]`: fio's words, kept as they are for the workload crate to parse.

use std::path::PathBuf;

use super::section::{Result, Section, Value};

/// A job as the scenario gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTable {
    /// Its name, as a job file's `[section]`; `job1`, `job2` … where it has none.
    pub name: String,
    /// Line of its first key, from 1.
    pub line: usize,
    /// The drive it runs on, by name; `None` for the first. With the line of the key.
    pub drive: Option<(String, usize)>,
    /// Key, value and line of every other entry, in the order they were written. A key that fio
    /// gives no value (`time_based`) has the value `1` when it is `true`.
    pub pairs: Vec<(String, String, usize)>,
}

/// Reads one job; returns it with where it names its drive.
pub(super) fn read<'a>(
    section: &Section<'a>,
    index: usize,
) -> Result<(JobTable, Option<Value<'a>>)> {
    let mut job = JobTable {
        name: format!("job{}", index + 1),
        line: section.place().source.line_column(section.place().span.start).0,
        drive: None,
        pairs: Vec::new(),
    };
    let mut drive = None;
    for (at, (key, value, span)) in section.pairs().into_iter().enumerate() {
        let line = section.source.line_column(span.start).0;
        if at == 0 {
            job.line = line;
        }
        match key {
            "name" => job.name = value.string()?.to_owned(),
            "drive" => {
                job.drive = Some((value.string()?.to_owned(), line));
                drive = Some(value);
            }
            _ => job.pairs.push((key.to_owned(), value.raw()?, line)),
        }
    }
    Ok((job, drive))
}

/// `job_files = ["mixed.fio"]`: job files beside the scenario.
pub(super) fn read_files(value: &Value<'_>) -> Result<Vec<(PathBuf, usize)>> {
    let file = |v: &Value<'_>| {
        let place = v.place();
        Ok((place.source.resolve(v.string()?), v.line()))
    };
    match value.items() {
        Some(items) => items.iter().map(file).collect(),
        None => Ok(vec![file(value)?]),
    }
}
