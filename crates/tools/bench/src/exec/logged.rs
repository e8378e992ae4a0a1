//! Programs whose writes are durable in a log in persistent memory: Redis with
//! `appendfsync always`, SQLite and RocksDB with a sync per write, on a drive with the times of NAND
//! whose flushes wait for programs, with the log and without. The log is to hide these times: the
//! bound is a share of the throughput on a drive without timing.
//!
//! Each drive is emulated in the process of `sluice exec`, with its data in memory, and has a volume
//! without files at the start of every program: the region of a served drive is not mapped.

// guarantee: B-111

use std::path::Path;

use super::harness::{ProgramDir, Scratch};
use super::rows::Metric;
use super::{BENCH, redis, rocksdb, sqlite};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// The programs and their packages.
pub(super) const PROGRAMS: [(&str, &str); 3] =
    [("redis-server", "redis-server"), ("sqlite3", "sqlite3"), ("db_bench", "rocksdb-tools")];

/// Least share of the throughput of the drive without timing.
const SHARE_MIN: f64 = 0.9;

/// The drive beneath the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoggedDrive {
    Timeless,
    /// With the times of NAND, and a log.
    Log,
    /// With the times of NAND.
    Nand,
}

impl LoggedDrive {
    /// In the order of samples.
    const ALL: [LoggedDrive; 3] = [LoggedDrive::Timeless, LoggedDrive::Log, LoggedDrive::Nand];

    /// Returns the name in results.
    fn name(self) -> &'static str {
        match self {
            LoggedDrive::Timeless => "drive without timing",
            LoggedDrive::Log => "volatile consumer-nvme with a log",
            LoggedDrive::Nand => "volatile consumer-nvme",
        }
    }

    /// Returns the drive: `consumer-nvme` with fewer blocks, a volatile write buffer, and a region with
    /// the costs of persistent memory on the memory bus.
    fn scenario(self) -> String {
        let pmr = "pmr = { size = \"64M\", store = \"8ns\", persist = \"300ns\" }\n";
        let none = "[drive.timing]\nread = 0\nprogram = 0\nerase = 0\nchannel = 0\n\
                    [drive.controller]\nfetch_latency = 0\ncompletion_latency = 0\ndma_bandwidth = 0\n";
        let (region, timing) = match self {
            LoggedDrive::Timeless => ("", none),
            LoggedDrive::Log => (pmr, ""),
            LoggedDrive::Nand => ("", ""),
        };
        format!(
            "[drive]\npreset = \"consumer-nvme\"\n{region}[drive.geometry]\nchunks = 24\n\
             [drive.write_buffer]\nkind = \"volatile\"\n{timing}"
        )
    }

    fn program_dir(self, scratch: &Path) -> Result<ProgramDir, BenchError> {
        let scenario = scratch.join("drive.toml");
        std::fs::write(&scenario, self.scenario())?;
        let dir = ProgramDir::on_new_volume(scratch.join("volume"), &scenario);
        Ok(if self == LoggedDrive::Log { dir.with_write_log() } else { dir })
    }
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in a program.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let scratch = Scratch::new()?;
    let case = format!("redis, YCSB A, {} clients, appendfsync always", redis::CLIENTS);
    measure(effort, sink, &case, |drive| {
        let dir = drive.program_dir(scratch.path())?;
        Ok(redis::sample(effort, scratch.path(), &dir, "always", 0)?.rate())
    })?;
    for (journal, pragma) in sqlite::JOURNALS {
        let case = format!("sqlite, a transaction per insert, journal {journal}");
        measure(effort, sink, &case, |drive| {
            let dir = drive.program_dir(scratch.path())?;
            Ok(sqlite::sample(&dir, "a.db", pragma, "FULL", effort.choose(1_000, 100))?.rate())
        })?;
    }
    // More than the memtable takes, so that a table is written.
    let load = rocksdb::synced_load(effort.choose(12_000, 10));
    measure(effort, sink, load.case, |drive| {
        let dir = drive.program_dir(scratch.path())?;
        Ok(rocksdb::sample(&dir, &load)?.rate)
    })
}

/// Measures a load on all drives in turn, and writes its rows.
fn measure(
    effort: RunLength,
    sink: &mut Sink<'_>,
    case: &str,
    mut sample: impl FnMut(LoggedDrive) -> Result<f64, BenchError>,
) -> Result<(), BenchError> {
    let all = LoggedDrive::ALL;
    let rates =
        interleave(effort.choose(5, 1), all.len(), |which| sample(LoggedDrive::ALL[which]))?;
    let mut timeless = None;
    for (drive, rates) in all.into_iter().zip(rates) {
        let case = format!("{case}, {}", drive.name());
        let Metric(metric, unit) = Metric("throughput", "1/s");
        let rates = Samples::new(rates)
            .ok_or_else(|| BenchError::NoValue { case: case.clone(), metric })?;
        let row = Measurement::median(BENCH, &case, metric, &rates, unit);
        let reference = *timeless.get_or_insert(rates.median());
        let row = match drive {
            LoggedDrive::Timeless => row,
            _ => row.with_reference(LoggedDrive::Timeless.name(), reference),
        };
        sink.push(match drive {
            LoggedDrive::Log => row.at_least(SHARE_MIN * reference),
            _ => row,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use controller::WriteBuffer;
    use scenario::Scenario;
    use serde_json::Value;

    use super::*;
    use crate::Format;

    #[test]
    fn the_drives_differ_in_their_times_and_the_region() {
        for drive in LoggedDrive::ALL {
            let parsed = Scenario::parse(Path::new("bench"), &drive.scenario()).unwrap();
            let config = &parsed.drives[0].config;
            assert_eq!(config.pmr.is_some(), drive == LoggedDrive::Log);
            assert!(matches!(config.write_buffer, WriteBuffer::Volatile { .. }), "{drive:?}");
        }
    }

    #[test]
    fn the_log_is_compared_with_the_drive_without_timing() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let rate = |drive| match drive {
            LoggedDrive::Timeless => Ok(100.0),
            LoggedDrive::Log => Ok(89.0),
            LoggedDrive::Nand => Ok(10.0),
        };
        measure(RunLength::Quick, &mut sink, "a", rate).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&rows[0]["value"], rows[0].get("reference")), (&100.0.into(), None));
        assert_eq!((&rows[1]["ratio"], &rows[1]["verdict"]), (&0.89.into(), &"fail".into()));
        assert_eq!((&rows[2]["ratio"], rows[2].get("verdict")), (&0.1.into(), None));
        assert_eq!(rows[1]["reference"]["what"], "drive without timing");
    }
}
