//! [`COLUMNS`]: the measured values of a row, and where the JSON of a run has them.

use serde_json::{Number, Value};

use crate::Row;

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, with its unit.
    pub name: &'static str,
    /// Its meaning, for an axis.
    pub meaning: &'static str,
    source: Source,
}

/// Location of a value in the JSON of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Keys in one direction of a job.
    Direction(&'static [&'static str]),
    /// Key of the `sluice` section.
    Run(&'static str),
    /// Key of the only drive or path that has it.
    Device(&'static str),
    /// Keys in the section of a modeled machine; the sum of an object's values.
    Machine(&'static [&'static str]),
}

const fn column(name: &'static str, meaning: &'static str, source: Source) -> Column {
    Column { name, meaning, source }
}

/// The measured values of a row, in this order.
pub const COLUMNS: [Column; 16] = [
    column("elapsed_ns", "time of the run, in ns", Source::Run("elapsed_ns")),
    column("runtime_ms", "time of the direction, in ms", Source::Direction(&["runtime"])),
    column("requests", "requests", Source::Direction(&["total_ios"])),
    column("bytes", "bytes moved", Source::Direction(&["io_bytes"])),
    column("iops", "requests per second", Source::Direction(&["iops"])),
    column("bandwidth_bytes_per_s", "bytes per second", Source::Direction(&["bw_bytes"])),
    column(
        "clat_mean_ns",
        "mean completion latency, in ns",
        Source::Direction(&["clat_ns", "mean"]),
    ),
    column(
        "clat_min_ns",
        "smallest completion latency, in ns",
        Source::Direction(&["clat_ns", "min"]),
    ),
    column(
        "clat_p50_ns",
        "median completion latency, in ns",
        Source::Direction(&["clat_ns", "percentile", "50.000000"]),
    ),
    column(
        "clat_p99_ns",
        "completion latency, 99 %, in ns",
        Source::Direction(&["clat_ns", "percentile", "99.000000"]),
    ),
    column(
        "clat_p99_9_ns",
        "completion latency, 99.9 %, in ns",
        Source::Direction(&["clat_ns", "percentile", "99.900000"]),
    ),
    column(
        "clat_p99_99_ns",
        "completion latency, 99.99 %, in ns",
        Source::Direction(&["clat_ns", "percentile", "99.990000"]),
    ),
    column(
        "clat_max_ns",
        "largest completion latency, in ns",
        Source::Direction(&["clat_ns", "max"]),
    ),
    column(
        "write_amplification",
        "sectors programmed per sector written",
        Source::Device("write_amplification"),
    ),
    column(
        "host_busy_percent",
        "work of the busiest hardware thread, in %",
        Source::Machine(&["busiest", "busy_percent"]),
    ),
    column(
        "host_ns_per_request",
        "work of the host per request, in ns",
        Source::Machine(&["ns_per_request"]),
    ),
];

/// Returns the columns that rows have: all but those of a modeled machine, if no row has one. Each is
/// given with its index in [`COLUMNS`].
pub fn columns_of<'a>(
    rows: impl Iterator<Item = &'a Row> + Clone,
) -> Vec<(usize, &'static Column)> {
    let has = |index: usize| rows.clone().any(|row| row.values[index].is_some());
    let is_shown = |(index, column): &(usize, &Column)| {
        !matches!(column.source, Source::Machine(_)) || has(*index)
    };
    COLUMNS.iter().enumerate().filter(is_shown).collect()
}

impl Column {
    /// Returns the index of the column with this name.
    pub fn index_of(name: &str) -> Option<usize> {
        COLUMNS.iter().position(|column| column.name == name)
    }

    /// Returns the value of a run, and of one direction of its jobs.
    pub(crate) fn value(&self, run: &Value, direction: Option<&Value>) -> Option<Number> {
        let value = match self.source {
            Source::Direction(keys) => {
                keys.iter().try_fold(direction?, |value, key| value.get(*key))?
            }
            Source::Run(key) => run.get("sluice")?.get(key)?,
            Source::Device(key) => {
                let lists = ["drives", "paths"].into_iter();
                let lists = lists.filter_map(|list| run.get("sluice")?.get(list)?.as_array());
                let mut found = lists.flatten().filter_map(|device| device.get(key));
                let only = found.next()?;
                if found.next().is_some() {
                    return None;
                }
                only
            }
            Source::Machine(keys) => {
                let machine = run.get("sluice")?.get("machine")?;
                let value = keys.iter().try_fold(machine, |value, key| value.get(*key))?;
                if let Some(parts) = value.as_object() {
                    return Number::from_f64(parts.values().filter_map(Value::as_f64).sum());
                }
                value
            }
        };
        value.as_number().cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{GridPoint, failed_row};

    #[test]
    fn a_modeled_machine_has_columns_that_other_runs_lack() {
        let busy = &COLUMNS[Column::index_of("host_busy_percent").unwrap()];
        let time = &COLUMNS[Column::index_of("host_ns_per_request").unwrap()];
        let machine = json!({
            "busiest": { "busy_percent": 12.5 },
            "ns_per_request": { "block": 60.25, "driver": 51.0 },
        });
        let run = json!({ "sluice": { "machine": machine } });
        assert_eq!(busy.value(&run, None), Number::from_f64(12.5));
        assert_eq!(time.value(&run, None), Number::from_f64(111.25));
        assert_eq!(time.value(&json!({ "sluice": {} }), None), None);
        let mut row = failed_row(&GridPoint::default(), None, "", "");
        assert_eq!(columns_of([row.clone()].iter()).len(), COLUMNS.len() - 2);
        row.values[Column::index_of("host_busy_percent").unwrap()] = Some(Number::from(1));
        let shown = columns_of([row].iter());
        assert_eq!(shown.len(), COLUMNS.len() - 1);
        assert_eq!(shown.last().unwrap().1.name, "host_busy_percent");
    }
}
