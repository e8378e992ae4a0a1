//! `read_trace()`: the spans of a trace that `sluice sim --trace` or `run(trace=…)` has written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::columns::{ColumnBytes, ColumnSpec, Columns, from_objects, text, unsigned};

/// Columns of a trace.
const COLUMNS: [ColumnSpec<'static>; 6] = [
    text("process"),
    text("track"),
    text("category"),
    text("name"),
    unsigned("start_ns"),
    unsigned("duration_ns"),
];

/// Reason why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
enum TraceReadError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: not a trace of sluice: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
}

/// Identity of a process or track; a trace names both.
fn id(event: &Value, key: &str) -> u64 {
    event[key].as_u64().unwrap_or(0)
}

/// Converts microseconds with three decimals to nanoseconds.
fn nanoseconds(value: &Value) -> u64 {
    (value.as_f64().unwrap_or(0.0) * 1000.0).round() as u64
}

/// Collects the spans of a trace.
#[derive(Default)]
struct SpanCollector {
    processes: HashMap<u64, Value>,
    tracks: HashMap<(u64, u64), Value>,
    /// Index in `spans` of each span that has begun.
    open: HashMap<(u64, String, u64), Vec<usize>>,
    spans: Vec<Map<String, Value>>,
}

impl SpanCollector {
    fn add(&mut self, event: &Value) {
        let (process, thread) = (id(event, "pid"), id(event, "tid"));
        let category = event["cat"].as_str().unwrap_or("").to_owned();
        let key = (process, category, span_id(&event["id"]));
        match event["ph"].as_str() {
            Some("M") => match event["name"].as_str() {
                Some("process_name") => {
                    self.processes.insert(process, event["args"]["name"].clone());
                }
                Some("thread_name") => {
                    self.tracks.insert((process, thread), event["args"]["name"].clone());
                }
                _ => {}
            },
            Some("X") => self.push(event, (process, thread), nanoseconds(&event["dur"])),
            Some("b") => {
                self.open.entry(key).or_default().push(self.spans.len());
                self.push(event, (process, thread), 0);
            }
            Some("e") => {
                if let Some(begun) = self.open.get_mut(&key).and_then(Vec::pop) {
                    let span = &mut self.spans[begun];
                    let start = span["start_ns"].as_u64().unwrap_or(0);
                    let duration = nanoseconds(&event["ts"]).saturating_sub(start);
                    span.insert("duration_ns".into(), duration.into());
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, event: &Value, track: (u64, u64), duration_ns: u64) {
        let span = json!({
            "process": self.processes.get(&track.0),
            "track": self.tracks.get(&track),
            "category": event["cat"],
            "name": event["name"],
            "start_ns": nanoseconds(&event["ts"]),
            "duration_ns": duration_ns,
        });
        if let Value::Object(span) = span {
            self.spans.push(span);
        }
    }
}

/// The identity of an asynchronous span: a number, or a text with a hexadecimal number.
fn span_id(value: &Value) -> u64 {
    let text = value.as_str().map(|text| text.trim_start_matches("0x"));
    value.as_u64().or_else(|| u64::from_str_radix(text?, 16).ok()).unwrap_or(0)
}

fn read(path: &Path) -> Result<Columns, TraceReadError> {
    let failed = |source| TraceReadError::File { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let invalid = |why: String| TraceReadError::Invalid { path: path.to_owned(), why };
    let mut collector = SpanCollector::default();
    // One event per line: memory holds the spans alone.
    for line in file.lines() {
        let line = line.map_err(failed)?;
        let line = line.trim().trim_end_matches(',');
        if matches!(line, "" | "[" | "]") {
            continue;
        }
        let event: Value = serde_json::from_str(line).map_err(|e| invalid(e.to_string()))?;
        collector.add(&event);
    }
    Ok(from_objects(&COLUMNS, &collector.spans))
}

/// Returns the columns of a trace, one row for each span.
#[pyfunction]
pub(crate) fn read_trace(py: Python<'_>, path: PathBuf) -> PyResult<Vec<ColumnBytes<'_>>> {
    let columns = py.detach(|| read(&path)).map_err(|error| match error {
        TraceReadError::File { source, .. } => PyErr::from(source),
        error => PyValueError::new_err(error.to_string()),
    })?;
    columns.to_python(py)
}
