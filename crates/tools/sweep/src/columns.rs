//! [`COLUMNS`]: the measured values of a row, and where the JSON of a run has them.

use serde_json::{Number, Value};

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
}

const fn column(name: &'static str, meaning: &'static str, source: Source) -> Column {
    Column { name, meaning, source }
}

/// The measured values of a row, in this order.
pub const COLUMNS: [Column; 14] = [
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
];

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
        };
        value.as_number().cloned()
    }
}
