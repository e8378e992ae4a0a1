//! RocksDB's `db_bench`: fill with a sync per write, fill, and two threads that read at random
//! during writes at a fixed rate.
//!
//! Reads are direct, so the page cache is not measured. The write buffer is small, so that there
//! are tables to read from.

use time::Nanos;

use super::child_process::run_to_end;
use super::harness::{BackingDevice, ExecHarness, IoPath, ProgramDir};
use super::rows::{Metric, Rows, pair, without_bound};
use super::{resource_usage, setup};
use crate::{BenchError, RunLength, Sink, interleave};

const OPTIONS: [&str; 6] = [
    "--value_size=400",
    "--compression_type=none",
    "--write_buffer_size=4194304",
    "--cache_size=1048576",
    "--use_direct_reads=1",
    "--seed=1",
];

/// A run of the program: its name in results, and its benchmark.
pub(super) struct Load {
    pub(super) case: &'static str,
    benchmark: &'static str,
    arguments: Vec<String>,
}

/// Measurements: microseconds per operation, operations per second, and the total CPU time.
pub(super) struct Sample {
    op: f64,
    pub(super) rate: f64,
    cpu: Nanos,
}

/// Case of [`synced_load`].
pub(super) const SYNCED_FILL: &str = "rocksdb, fill with a sync per write";

/// No lines about the progress: a program that speculates would wait for each.
const SILENT: &str = "--progress_reports=false";

/// Returns a load of this number of writes, each with a sync.
pub(super) fn synced_load(writes: u32) -> Load {
    // `fillsync` executes only a thousandth of the requested operations.
    Load {
        case: SYNCED_FILL,
        benchmark: "fillrandom",
        arguments: vec![format!("--num={writes}"), "--sync=1".to_owned(), SILENT.to_owned()],
    }
}

/// Returns the load of [`synced_load`] without syncs.
pub(super) fn unsynced_load(writes: u32) -> Load {
    Load {
        case: "rocksdb, fill",
        benchmark: "fillrandom",
        arguments: vec![format!("--num={writes}"), SILENT.to_owned()],
    }
}

/// Returns the loads in order; the last one reads the data of the one before it.
fn loads(effort: RunLength) -> [Load; 3] {
    let filled = effort.choose(50_000, 1000);
    let reads = effort.choose(5_000, 100);
    let of = |case, benchmark, arguments: &[String]| Load {
        case,
        benchmark,
        arguments: arguments.to_vec(),
    };
    [
        synced_load(effort.choose(300, 10)),
        of("rocksdb, fill", "fillrandom", &[format!("--num={filled}"), "--threads=2".to_owned()]),
        of(
            "rocksdb, 2 threads read while 1 writes 4 MB/s",
            "readwhilewriting",
            &[
                format!("--num={filled}"),
                format!("--reads={reads}"),
                "--threads=2".to_owned(),
                "--use_existing_db=1".to_owned(),
                // With unlimited writes, a faster path would have more and larger tables to read.
                "--benchmark_write_rate_limit=4000000".to_owned(),
            ],
        ),
    ]
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in the program.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let loads = loads(effort);
    for below in BackingDevice::ALL {
        let harness = ExecHarness::new(below)?;
        let samples = interleave(effort.choose(3, 1), IoPath::ALL.len(), |which| {
            let place = harness.dir(IoPath::ALL[which]);
            loads.iter().map(|load| sample(place, load)).collect::<Result<Vec<_>, _>>()
        })?;
        let samples = pair(samples)?;
        for (which, load) in loads.iter().enumerate() {
            let mut rows = Rows { sink, case: load.case.to_owned(), backing: harness.backing };
            let rate = |s: &Vec<Sample>| s[which].rate;
            rows.push(Metric("throughput", "1/s"), &samples, rate, without_bound)?;
            rows.spread("throughput_spread", &samples, rate)?;
            rows.push(Metric("op_mean", "us"), &samples, |s| s[which].op, without_bound)?;
            rows.push(
                Metric("cpu", "ms"),
                &samples,
                |s| s[which].cpu.0 as f64 / 1e6,
                without_bound,
            )?;
        }
    }
    Ok(())
}

/// Runs a load with its files in a directory.
///
/// # Errors
/// If it fails.
pub(super) fn sample(place: &ProgramDir, load: &Load) -> Result<Sample, BenchError> {
    let (cpu, ended) =
        (resource_usage::usage_of(&place.processes).cpu, resource_usage::children_cpu_time());
    let mut command = place.command("db_bench")?;
    command.arg(format!("--db={}", place.directory.join("db").display()));
    command.arg(format!("--benchmarks={}", load.benchmark));
    let out = run_to_end(command.args(OPTIONS).args(&load.arguments))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let said = result(&text, load.benchmark);
    let (op, rate) = said.ok_or_else(|| setup(format!("db_bench: no result: {text}")))?;
    let cpu = resource_usage::usage_of(&place.processes).cpu.since(cpu)
        + resource_usage::children_cpu_time().since(ended);
    Ok(Sample { op, rate, cpu })
}

/// Parses microseconds per operation and operations per second from `NAME : 3.1 micros/op 320000
/// ops/sec …`.
pub(super) fn result(text: &str, name: &str) -> Option<(f64, f64)> {
    text.lines().find_map(|line| {
        let (who, numbers) = line.split_once(':')?;
        let words: Vec<&str> = numbers.split_ascii_whitespace().collect();
        let at = |unit: &str| -> Option<f64> {
            let behind = words.iter().position(|word| *word == unit)?;
            words.get(behind.checked_sub(1)?)?.parse().ok()
        };
        // The program prints a result even if it executed no operation.
        if numbers.contains("(0 ops)") {
            return None;
        }
        // Progress messages are on the same line.
        who.trim_end().ends_with(name).then(|| Some((at("micros/op")?, at("ops/sec")?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_among_what_else_is_said() {
        let text = "Keys: 16 bytes\nDB path: [/x]\nfillrandom   :       3.456 micros/op 289352 ops/sec \
                    0.691 seconds 200000 operations;  120.1 MB/s\nDB path: [/x]\nreadwhilewriting :  9.3 \
                    micros/op 101993 ops/sec 0.196 seconds 20000 operations; (20000 of 20000 found)\n";
        assert_eq!(result(text, "fillrandom"), Some((3.456, 289_352.0)));
        assert_eq!(result(text, "readwhilewriting"), Some((9.3, 101_993.0)));
        assert_eq!(result(text, "fillsync"), None);
        assert_eq!(result("fillsync : x micros/op 1 ops/sec", "fillsync"), None);
        let nothing =
            "fillsync : 3578.000 micros/op 275 ops/sec 0.004 seconds 1 operations; (0 ops)";
        assert_eq!(result(nothing, "fillsync"), None);
    }
}
