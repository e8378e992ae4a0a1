//! RocksDB's `db_bench`: filling, filling with a sync per write, and two threads that read at random while another
//! writes.
//!
//! Reads are direct, so that they come from what is below: the page cache of the kernel is not measured. The write
//! buffer is small, so that there are tables to be read from.

use clock::Nanos;

use super::bed::{Bed, Below, Place, Way};
use super::companion::done;
use super::rows::{Rows, both, free};
use super::{setup, spent};
use crate::bench::{BenchError, Effort, Sink, in_turns};

const OPTIONS: [&str; 6] = [
    "--value_size=400",
    "--compression_type=none",
    "--write_buffer_size=4194304",
    "--cache_size=1048576",
    "--use_direct_reads=1",
    "--seed=1",
];

/// What one run of the program was like.
struct Sample {
    /// Microseconds per operation of each benchmark, and operations per second.
    said: Vec<(f64, f64)>,
    /// Of the whole run.
    cpu: Nanos,
}

/// A run: what results call its benchmarks, and what the program does.
struct Load {
    benchmarks: &'static [(&'static str, &'static str)],
    arguments: Vec<String>,
}

fn loads(effort: Effort) -> [Load; 2] {
    let filled = effort.choose(50_000, 1000);
    let syncs = effort.choose(300, 10);
    let reads = effort.choose(5_000, 100);
    [
        Load {
            // Its own `fillsync` does a thousandth of what it is asked for.
            benchmarks: &[("fillrandom", "rocksdb, fill with a sync per write")],
            arguments: vec![format!("--num={syncs}"), "--sync=1".to_owned()],
        },
        Load {
            benchmarks: &[
                ("fillrandom", "rocksdb, fill"),
                ("readwhilewriting", "rocksdb, 2 threads read while 1 writes"),
            ],
            arguments: vec![
                format!("--num={filled}"),
                format!("--reads={reads}"),
                "--threads=2".to_owned(),
            ],
        },
    ]
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in the program.
pub fn run(effort: Effort, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for below in Below::ALL {
        let bed = Bed::new(below)?;
        for load in loads(effort) {
            let samples = in_turns(effort.choose(3, 1), Way::ALL.len(), |which| {
                sample(bed.place(Way::ALL[which]), &load)
            })?;
            let samples = both(samples)?;
            for (which, (_, case)) in load.benchmarks.iter().enumerate() {
                let mut rows = Rows { sink, case: (*case).to_owned(), below: bed.below };
                let rate = |s: &Sample| s.said[which].1;
                rows.push(("throughput", "1/s"), &samples, rate, free)?;
                rows.spread("throughput_spread", &samples, rate)?;
                rows.push(("op_mean", "us"), &samples, |s| s.said[which].0, free)?;
            }
            let case =
                load.benchmarks.iter().map(|(_, case)| *case).collect::<Vec<_>>().join(" + ");
            let mut rows = Rows { sink, case, below: bed.below };
            rows.push(("cpu", "ms"), &samples, |s| s.cpu.0 as f64 / 1e6, free)?;
        }
    }
    Ok(())
}

fn sample(place: &Place, load: &Load) -> Result<Sample, BenchError> {
    let (cpu, ended) = (spent::by(&place.processes).cpu, spent::by_children());
    let names: Vec<&str> = load.benchmarks.iter().map(|(name, _)| *name).collect();
    let mut command = place.command("db_bench")?;
    command.arg(format!("--db={}", place.directory.join("db").display()));
    command.arg(format!("--benchmarks={}", names.join(",")));
    let out = done(command.args(OPTIONS).args(&load.arguments))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let said: Option<Vec<(f64, f64)>> = names.iter().map(|name| result(&text, name)).collect();
    let said = said.ok_or_else(|| setup(format!("db_bench: no result: {text}")))?;
    let cpu = spent::by(&place.processes).cpu.since(cpu) + spent::by_children().since(ended);
    Ok(Sample { said, cpu })
}

/// `NAME : 3.1 micros/op 320000 ops/sec …`: microseconds per operation, operations per second.
fn result(text: &str, name: &str) -> Option<(f64, f64)> {
    text.lines().find_map(|line| {
        let (who, numbers) = line.split_once(':')?;
        let words: Vec<&str> = numbers.split_ascii_whitespace().collect();
        let at = |unit: &str| -> Option<f64> {
            let behind = words.iter().position(|word| *word == unit)?;
            words.get(behind.checked_sub(1)?)?.parse().ok()
        };
        // It has a result for having done nothing, too.
        if numbers.contains("(0 ops)") {
            return None;
        }
        // What it says of its progress stands on the same line.
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
