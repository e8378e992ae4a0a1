//! SQLite's shell with one row per transaction, all durable (`synchronous = FULL`). It measures the
//! journal that is removed after every transaction, and the write-ahead log of a single process
//! (`locking_mode = EXCLUSIVE`), which has its index in process memory.

use std::io::Write as _;
use std::process::Stdio;
use std::thread;

use time::Nanos;

use super::child_process::failed;
use super::harness::{BackingDevice, ExecHarness, IoPath, ProgramDir};
use super::rows::{Metric, PairedSamples, Rows, pair, without_bound};
use super::{resource_usage, setup};
use crate::{BenchError, RunLength, Sink, interleave};

/// Journal modes, and the statements that select them.
pub(super) const JOURNALS: [(&str, &str); 2] = [
    ("delete", "PRAGMA journal_mode = DELETE;"),
    ("wal", "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"),
];

/// Statement that prints the time in seconds. SQLite's clock has a resolution of a millisecond; the
/// measurement takes many.
const NOW: &str = "SELECT 'at', (julianday('now') - 2440587.5) * 86400.0;\n";

pub(super) struct Sample {
    inserts: u32,
    seconds: f64,
    /// CPU time of the complete run, including start and end.
    cpu: Nanos,
}

impl Sample {
    /// Returns inserts per second.
    pub(super) fn rate(&self) -> f64 {
        f64::from(self.inserts) / self.seconds
    }
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in the program.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for below in BackingDevice::ALL {
        let harness = ExecHarness::new(below)?;
        for (journal, pragma) in JOURNALS {
            let mut number = 0;
            let samples = interleave(effort.choose(3, 1), IoPath::ALL.len(), |which| {
                number += 1;
                let name = format!("{journal}-{number}.db");
                sample(
                    harness.dir(IoPath::ALL[which]),
                    &name,
                    pragma,
                    "FULL",
                    effort.choose(300, 100),
                )
            })?;
            report(sink, harness.backing, journal, &pair(samples)?)?;
        }
    }
    Ok(())
}

/// Runs the shell with inserts into a new file of this name, which are as durable as `synchronous`
/// says (`PRAGMA synchronous`).
///
/// # Errors
/// If it fails.
pub(super) fn sample(
    place: &ProgramDir,
    name: &str,
    pragma: &str,
    synchronous: &str,
    inserts: u32,
) -> Result<Sample, BenchError> {
    let (cpu, ended) =
        (resource_usage::usage_of(&place.processes).cpu, resource_usage::children_cpu_time());
    let mut script = format!(
        "{pragma}\nPRAGMA synchronous = {synchronous};\nCREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n{NOW}"
    );
    script.extend((0..inserts).map(|_| "INSERT INTO t(b) VALUES(hex(randomblob(50)));\n"));
    script += NOW;
    script += "SELECT 'rows', count(*) FROM t;\n";
    let mut command = place.command("sqlite3")?;
    command.arg("-bail").arg(place.directory.join(name));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn()?;
    let stdin = child.stdin.take();
    // Statements may be longer than a pipe's buffer. A shell that fails reads no more of them.
    let writer = thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(script.as_bytes())));
    let out = child.wait_with_output()?;
    drop(writer.join());
    if !out.status.success() {
        return Err(failed(&command, out.status, &out.stderr));
    }
    let seconds = seconds(&String::from_utf8_lossy(&out.stdout), inserts)?;
    let cpu = resource_usage::usage_of(&place.processes).cpu.since(cpu)
        + resource_usage::children_cpu_time().since(ended);
    Ok(Sample { inserts, seconds, cpu })
}

/// Returns the elapsed time from the output; checks that every row exists.
fn seconds(said: &str, inserts: u32) -> Result<f64, BenchError> {
    let of = |what: &str| -> Vec<f64> {
        let line = |line: &str| line.strip_prefix(what)?.strip_prefix('|')?.parse().ok();
        said.lines().filter_map(line).collect()
    };
    match (&of("at")[..], &of("rows")[..]) {
        ([begin, end], [rows]) if *rows == f64::from(inserts) && end > begin => Ok(end - begin),
        _ => Err(setup(format!("sqlite3: not what was asked for: {said}"))),
    }
}

fn report(
    sink: &mut Sink<'_>,
    below: BackingDevice,
    journal: &str,
    samples: &PairedSamples<Sample>,
) -> Result<(), BenchError> {
    let case = format!("sqlite, a transaction per insert, journal {journal}");
    let mut rows = Rows { sink, case, backing: below };
    rows.push(Metric("throughput", "1/s"), samples, Sample::rate, without_bound)?;
    rows.spread("throughput_spread", samples, Sample::rate)?;
    rows.push(Metric("insert_mean", "us"), samples, |s| 1e6 / s.rate(), without_bound)?;
    rows.push(
        Metric("cpu_per_op", "us"),
        samples,
        |s| s.cpu.0 as f64 / 1e3 / f64::from(s.inserts),
        without_bound,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_only_with_all_rows() {
        assert_eq!(seconds("delete\nat|10.5\nat|12.0\nrows|3\n", 3).unwrap(), 1.5);
        for said in ["", "at|1\nrows|3", "at|1.0\nat|2.0\nrows|2\n", "at|2.0\nat|1.0\nrows|3\n"] {
            assert!(seconds(said, 3).is_err(), "{said}");
        }
    }
}
