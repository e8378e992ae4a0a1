//! Columns of tables, made from the JSON of a result.
//!
//! Invariant: all columns of a table have the same length. Values are those of the JSON: a number
//! that is `null` there is NaN here.
//!
//! A column crosses to Python as the bytes of a numpy array, without an object per value.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Map, Value};
use sweep::{Row, columns_of};

/// Values of a column.
enum ColumnValues {
    /// Texts.
    Text(Vec<String>),
    /// Counts, times in nanoseconds and sizes in bytes.
    Unsigned(Vec<u64>),
    /// Rates, means, and numbers that may be absent (NaN).
    Float(Vec<f64>),
}

/// Type of a column.
#[derive(Clone, Copy)]
enum ColumnKind {
    /// Texts.
    Text,
    /// Unsigned integers of 64 bits.
    Unsigned,
    /// Floating-point numbers of 64 bits.
    Float,
}

/// Name and type of a column.
#[derive(Clone, Copy)]
pub(crate) struct ColumnSpec<'a> {
    name: &'a str,
    kind: ColumnKind,
}

/// Returns a column of texts.
pub(crate) const fn text(name: &str) -> ColumnSpec<'_> {
    ColumnSpec { name, kind: ColumnKind::Text }
}

/// Returns a column of counts, times or sizes.
pub(crate) const fn unsigned(name: &str) -> ColumnSpec<'_> {
    ColumnSpec { name, kind: ColumnKind::Unsigned }
}

/// Returns a column of floating-point numbers.
const fn float(name: &str) -> ColumnSpec<'_> {
    ColumnSpec { name, kind: ColumnKind::Float }
}

/// A table: names, and values of equal length.
pub(crate) struct Columns {
    columns: Vec<(String, ColumnValues)>,
}

/// Name, numpy type and bytes of a column.
pub(crate) type ColumnBytes<'py> = (String, String, Bound<'py, PyBytes>);

impl Columns {
    fn new(specs: &[ColumnSpec<'_>]) -> Columns {
        let columns = specs.iter().map(|ColumnSpec { name, kind }| {
            let values = match kind {
                ColumnKind::Text => ColumnValues::Text(Vec::new()),
                ColumnKind::Unsigned => ColumnValues::Unsigned(Vec::new()),
                ColumnKind::Float => ColumnValues::Float(Vec::new()),
            };
            ((*name).to_owned(), values)
        });
        Columns { columns: columns.collect() }
    }

    /// Appends a row. Missing and `null` values are an empty text, zero or NaN, by the column's type.
    fn push<'a>(&mut self, row: impl IntoIterator<Item = &'a Value>) {
        let mut row = row.into_iter();
        for (_, values) in &mut self.columns {
            let value = row.next().unwrap_or(&Value::Null);
            match values {
                ColumnValues::Text(texts) => texts.push(value.as_str().unwrap_or("").to_owned()),
                ColumnValues::Unsigned(numbers) => numbers.push(value.as_u64().unwrap_or(0)),
                ColumnValues::Float(numbers) => numbers.push(value.as_f64().unwrap_or(f64::NAN)),
            }
        }
    }

    /// Returns the columns as bytes of numpy arrays.
    pub(crate) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Vec<ColumnBytes<'py>>> {
        self.columns
            .iter()
            .map(|(name, values)| {
                let (kind, bytes) = values.to_bytes(py)?;
                Ok((name.clone(), kind, bytes))
            })
            .collect()
    }
}

impl ColumnValues {
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyBytes>)> {
        match self {
            ColumnValues::Text(texts) => {
                // numpy pads texts of fixed width with zeros.
                let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
                let bytes = PyBytes::new_with(py, texts.len() * width * 4, |bytes| {
                    for (cell, text) in bytes.chunks_exact_mut(width * 4).zip(texts) {
                        for (place, c) in cell.chunks_exact_mut(4).zip(text.chars()) {
                            place.copy_from_slice(&u32::from(c).to_le_bytes());
                        }
                    }
                    Ok(())
                })?;
                Ok((format!("<U{width}"), bytes))
            }
            ColumnValues::Unsigned(numbers) => Ok((
                "<u8".into(),
                words(py, numbers.len(), numbers.iter().map(|n| n.to_le_bytes()))?,
            )),
            ColumnValues::Float(numbers) => Ok((
                "<f8".into(),
                words(py, numbers.len(), numbers.iter().map(|n| n.to_le_bytes()))?,
            )),
        }
    }
}

fn words(
    py: Python<'_>,
    count: usize,
    values: impl Iterator<Item = [u8; 8]>,
) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, count * 8, |bytes| {
        for (place, value) in bytes.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value);
        }
        Ok(())
    })
}

/// Directions of a job, as keys of fio's format.
const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];

/// Returns the entries of a list, or none.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the directions of a job that had requests.
fn directions(job: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    let used = |direction: &Value| direction["total_ios"].as_u64().unwrap_or(0) > 0;
    DIRECTIONS.iter().map(|name| (*name, &job[*name])).filter(move |(_, entry)| used(entry))
}

/// Returns one row for each job and direction with requests.
pub(crate) fn jobs(result: &Value) -> Columns {
    let latencies = ["slat", "clat", "lat"];
    let parts = ["min", "max", "mean", "stddev"];
    let names = latencies.map(|latency| parts.map(|part| format!("{latency}_{part}_ns")));
    let mut specs = vec![
        text("job"),
        text("direction"),
        unsigned("group"),
        unsigned("error"),
        unsigned("ios"),
        unsigned("bytes"),
        unsigned("runtime_ms"),
        float("iops"),
        unsigned("bytes_per_sec"),
    ];
    for [min, max, mean, stddev] in &names {
        specs.extend([unsigned(min), unsigned(max), float(mean), float(stddev)]);
    }
    let mut columns = Columns::new(&specs);
    for job in items(&result["jobs"]) {
        for (name, entry) in directions(job) {
            let name = Value::from(name);
            let mut row = vec![&job["jobname"], &name, &job["groupid"], &job["error"]];
            let keys = ["total_ios", "io_bytes", "runtime", "iops", "bw_bytes"];
            row.extend(keys.map(|key| &entry[key]));
            for latency in latencies {
                let of = &entry[format!("{latency}_ns")];
                row.extend(parts.map(|part| &of[part]));
            }
            columns.push(row);
        }
    }
    columns
}

/// Returns one row for each job, direction and percentile; flushes are the direction `sync`.
pub(crate) fn latencies(result: &Value) -> Columns {
    let mut columns = Columns::new(&[
        text("job"),
        text("direction"),
        float("percentile"),
        unsigned("latency_ns"),
    ]);
    for job in items(&result["jobs"]) {
        let of_directions = directions(job).map(|(name, entry)| (name, &entry["clat_ns"]));
        for (name, histogram) in of_directions.chain([("sync", &job["sync"]["lat_ns"])]) {
            let name = Value::from(name);
            for (percentile, latency) in histogram["percentile"].as_object().into_iter().flatten() {
                let percentile = Value::from(percentile.parse::<f64>().unwrap_or(f64::NAN));
                columns.push([&job["jobname"], &name, &percentile, latency]);
            }
        }
    }
    columns
}

/// Returns the paths of a result; without named paths, its drives.
fn paths(result: &Value) -> impl Iterator<Item = &Value> {
    let section = &result["sluice"];
    items(section.get("paths").unwrap_or(&section["drives"]))
}

/// Start and length of interval `index` of `count`, in nanoseconds.
fn interval(over_time: &Value, index: usize, count: usize) -> [Value; 2] {
    let width = over_time["interval_ns"].as_u64().unwrap_or(0);
    let length = match index + 1 == count {
        true => over_time["last_interval_ns"].clone(),
        false => Value::from(width),
    };
    [Value::from(width * index as u64), length]
}

/// Returns one row for each job, direction and interval.
pub(crate) fn time_series(result: &Value) -> Columns {
    let rates = ["iops", "bytes_per_sec", "lat_p50_ns", "lat_p99_ns", "lat_max_ns"];
    let mut specs = vec![
        text("path"),
        text("job"),
        text("direction"),
        unsigned("start_ns"),
        unsigned("length_ns"),
        float("queue_depth"),
    ];
    specs.extend(rates.map(float));
    let mut columns = Columns::new(&specs);
    for path in paths(result) {
        for job in items(&path["jobs_over_time"]) {
            let used = DIRECTIONS.iter().filter_map(|name| Some((*name, job.get(*name)?)));
            for (name, entry) in used {
                let name = Value::from(name);
                let depths = job["queue_depth"].as_array().map_or(&[][..], Vec::as_slice);
                for (i, depth) in depths.iter().enumerate() {
                    let [start, length] = interval(job, i, depths.len());
                    let mut row = vec![&path["name"], &job["name"], &name, &start, &length, depth];
                    row.extend(rates.map(|key| &entry[key][i]));
                    columns.push(row);
                }
            }
        }
    }
    columns
}

/// Returns one row for each path with an FTL and each interval.
pub(crate) fn ftl(result: &Value) -> Columns {
    let keys = [
        "free_lines",
        "host_sectors_written",
        "gc_sectors_relocated",
        "lines_reclaimed",
        "write_amplification",
    ];
    let mut specs = vec![text("path"), unsigned("start_ns"), unsigned("length_ns")];
    specs.extend(keys.map(float));
    let mut columns = Columns::new(&specs);
    for path in paths(result) {
        let over_time = &path["over_time"];
        let count = over_time[keys[0]].as_array().map_or(0, Vec::len);
        for i in 0..count {
            let [start, length] = interval(over_time, i, count);
            let mut row = vec![&path["name"], &start, &length];
            row.extend(keys.map(|key| &over_time[key][i]));
            columns.push(row);
        }
    }
    columns
}

/// Returns a table of a list of objects with equal keys.
pub(crate) fn from_objects(specs: &[ColumnSpec<'_>], rows: &[Map<String, Value>]) -> Columns {
    let mut columns = Columns::new(specs);
    for row in rows {
        columns.push(specs.iter().map(|spec| row.get(spec.name).unwrap_or(&Value::Null)));
    }
    columns
}

/// A row of a sweep, with the index of its run.
pub(crate) struct SweepRow {
    pub(crate) run: u64,
    pub(crate) row: Row,
}

/// Returns one row for each run, job and direction of a sweep. A failed run has one row. The seed of an
/// invalid scenario is 0.
pub(crate) fn sweep(rows: &[SweepRow]) -> Columns {
    let mut specs = vec![unsigned("run"), unsigned("seed")];
    specs.extend(["job", "direction", "status", "error", "replay"].map(text));
    let measured = columns_of(rows.iter().map(|row| &row.row));
    specs.extend(measured.iter().map(|(_, column)| float(column.name)));
    let mut columns = Columns::new(&specs);
    for SweepRow { run, row } in rows {
        let fixed = [&row.job, &row.direction, row.status.word(), &row.error, &row.replay];
        let mut cells = vec![Value::from(*run), Value::from(row.seed)];
        cells.extend(fixed.map(Value::from));
        let values = measured.iter().map(|(index, _)| &row.values[*index]);
        cells.extend(values.map(|value| value.clone().map_or(Value::Null, Value::Number)));
        columns.push(&cells);
    }
    columns
}
