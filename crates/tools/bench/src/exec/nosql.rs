//! \[LightNVM17\], figure 6: RocksDB's `db_bench` on each of three drives (`flash.rs`):
//! synced sequential writes, random reads, and random reads while a thread writes.
//!
//! The writer has a rate limit and does not sync every value. Without the limit,
//! the drives would not get the same writes: the NVMe SSD, whose buffer survives a power loss, syncs
//! several times as many values per second as pblk, which pads every sync to a write unit. Reads are
//! direct and the caches small.

use super::child_process::run_to_end;
use super::flash::{DriveSamples, FlashDrive, by_drive, push_rows};
use super::harness::Scratch;
use super::rocksdb::result;
use super::rows::Metric;
use super::setup;
use crate::{BenchError, Measurement, RunLength, Sink, interleave};

const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 4096;
/// Values between two syncs of the sequential writes: 1 MiB.
const BATCH: u32 = 256;
/// Rate of the thread that writes during reads, in bytes per second.
const WRITE_RATE: u32 = 16_000_000;
/// Upper limit of the writes with four active parallel units in MB/s: each programs 64 KiB in
/// 1.39 ms.
const FOUR_PUS_LIMIT: f64 = 4.0 * 65.536 / 1.39;

/// A load: its name in results, that of the benchmark, and the paper's throughput in MB/s.
struct Load {
    case: &'static str,
    benchmark: &'static str,
    paper: [Option<f64>; 3],
}

const WRITES: Load = Load {
    case: "nosql, sequential writes with sync",
    benchmark: "fillseq",
    paper: [Some(276.0), Some(396.0), Some(88.0)],
};
const READS: Load = Load { case: "nosql, random reads", benchmark: "readrandom", paper: [None; 3] };
const MIXED: Load = Load {
    case: "nosql, random reads while 16 MB/s are written",
    benchmark: "readwhilewriting",
    paper: [None; 3],
};
const LOADS: [Load; 3] = [WRITES, READS, MIXED];

/// Percentiles of a load's latency, and their names in results.
const PERCENTILES: [(&str, f64); 3] =
    [("latency_p95", 95.0), ("latency_p99", 99.0), ("latency_p99_9", 99.9)];

/// Sizes of a run: values that are written, and the time of each load that reads.
#[derive(Clone, Copy)]
struct RunSize {
    values: u32,
    seconds: u32,
}

struct LoadSample {
    /// Data of the values and keys in MB/s.
    throughput: f64,
    /// [`PERCENTILES`] in microseconds.
    latency: [f64; 3],
}

struct Sample {
    /// In the order of [`LOADS`].
    loads: [LoadSample; 3],
    /// Throughput of the thread that writes during reads, in MB/s.
    concurrent_writes: f64,
}

/// Measures the part.
///
/// # Errors
/// Any failure of the program or in setting a drive up.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let size = effort.choose(
        RunSize { values: 300 * BATCH, seconds: 5 },
        RunSize { values: 20 * BATCH, seconds: 1 },
    );
    let samples = interleave(effort.choose(3, 1), FlashDrive::ALL.len(), |which| {
        sample(FlashDrive::ALL[which], size)
    })?;
    report(sink, &by_drive(samples)?)
}

fn report(sink: &mut Sink<'_>, samples: &DriveSamples<Sample>) -> Result<(), BenchError> {
    let unbounded = |_, row| row;
    for (which, Load { case, paper, .. }) in LOADS.iter().enumerate() {
        let limit = |drive, row: Measurement| match drive {
            FlashDrive::FourPus if which == 0 => row.at_most(FOUR_PUS_LIMIT),
            _ => row,
        };
        let throughput = |s: &Sample| s.loads[which].throughput;
        push_rows(sink, case, Metric("throughput", "MB/s"), samples, throughput, *paper, limit)?;
        for (at, (metric, _)) in PERCENTILES.into_iter().enumerate() {
            let latency = |s: &Sample| s.loads[which].latency[at];
            push_rows(sink, case, Metric(metric, "us"), samples, latency, [None; 3], unbounded)?;
        }
    }
    let written = Metric("write_throughput", "MB/s");
    push_rows(sink, MIXED.case, written, samples, |s| s.concurrent_writes, [None; 3], unbounded)
}

fn sample(drive: FlashDrive, size: RunSize) -> Result<Sample, BenchError> {
    let scratch = Scratch::new()?;
    let dir = drive.program_dir(scratch.path())?;
    let mut command = dir.command("sh")?;
    // Two runs on one volume, as some options hold for all loads of a run.
    let runs = format!(
        "db_bench --benchmarks={} --sync=1 --batch_size={BATCH} \"$@\" && \
         exec db_bench --benchmarks={},{} --use_existing_db=1 --statistics=1 \
         --benchmark_write_rate_limit={WRITE_RATE} --duration={} \
         --ops_between_duration_checks=10 \"$@\"",
        WRITES.benchmark, READS.benchmark, MIXED.benchmark, size.seconds
    );
    command.args(["-c", &runs, "db_bench"]);
    command.arg(format!("--db={}", dir.directory.join("db").display()));
    command.args([
        format!("--num={}", size.values),
        format!("--key_size={KEY_BYTES}"),
        format!("--value_size={VALUE_BYTES}"),
    ]);
    command.args([
        "--histogram=1",
        "--seed=1",
        "--compression_type=none",
        "--write_buffer_size=16777216",
        "--cache_size=1048576",
        "--use_direct_reads=1",
    ]);
    let out = run_to_end(&mut command)?;
    let text = String::from_utf8_lossy(&out.stdout);
    parse(&text).ok_or_else(|| setup(format!("db_bench: not what was asked for: {text}")))
}

/// Parses the output of one run. `None` if a load has no result, or a read did not find its value.
fn parse(text: &str) -> Option<Sample> {
    let megabytes = |rate: f64| rate * f64::from(KEY_BYTES + VALUE_BYTES) / 1e6;
    let of = |load: Load| {
        let (_, rate) = result(text, load.benchmark)?;
        let histogram = LatencyHistogram::parse(text, load.benchmark)?;
        let latency = PERCENTILES.map(|(_, percent)| histogram.percentile(percent));
        Some(LoadSample { throughput: megabytes(rate), latency })
    };
    let loads = [of(WRITES)?, of(READS)?, of(MIXED)?];
    reads_found(text, READS.benchmark)?;
    let seconds = reads_found(text, MIXED.benchmark)? / result(text, MIXED.benchmark)?.1;
    let keys = text.lines().find_map(|l| l.strip_prefix("rocksdb.number.keys.written COUNT : "))?;
    let written = keys.trim().parse::<f64>().ok()?;
    Some(Sample { loads, concurrent_writes: megabytes(written / seconds) })
}

/// Returns the number of reads from `(N of N found)`; `None` if a value was not found.
fn reads_found(text: &str, benchmark: &str) -> Option<f64> {
    let line = text.lines().find(|line| is_result(line, benchmark))?;
    let (found, reads) = line.rsplit_once('(')?.1.strip_suffix(" found)")?.split_once(" of ")?;
    let reads: f64 = (found == reads).then(|| reads.parse().ok())??;
    (reads > 0.0).then_some(reads)
}

/// Returns whether a line is the result of a benchmark.
fn is_result(line: &str, benchmark: &str) -> bool {
    line.split_once(':').is_some_and(|(name, _)| name.trim_end().ends_with(benchmark))
}

/// The latency histogram of one load, in microseconds.
#[derive(Debug, PartialEq)]
struct LatencyHistogram {
    /// Lower limit, upper limit and count.
    buckets: Vec<(f64, f64, f64)>,
    max: f64,
}

impl LatencyHistogram {
    /// Parses the histogram that follows the result of a benchmark: lines of the form `( LOWER,
    /// UPPER ] COUNT SHARE% CUMULATIVE% ###` after `Min: A Median: B Max: C`.
    fn parse(text: &str, benchmark: &str) -> Option<LatencyHistogram> {
        let mut lines = text.lines().skip_while(|line| !is_result(line, benchmark)).skip(1);
        let max = lines.find_map(|line| line.rsplit_once("Max: ")?.1.trim().parse().ok())?;
        let is_bucket = |line: &&str| line.starts_with(['(', '[']);
        let lines = lines.skip_while(|line| !is_bucket(line)).take_while(is_bucket);
        let bucket = |line: &str| {
            let numbers = line.replace(['(', '[', ',', ']'], " ");
            let mut words = numbers.split_ascii_whitespace().map_while(|w| w.parse().ok());
            Some((words.next()?, words.next()?, words.next()?))
        };
        let buckets: Option<Vec<_>> = lines.map(bucket).collect();
        buckets.filter(|b| !b.is_empty()).map(|buckets| LatencyHistogram { buckets, max })
    }

    /// Returns a percentile as the program computes it: linear within a bucket. It prints no 95th.
    fn percentile(&self, percent: f64) -> f64 {
        let rank = self.buckets.iter().map(|(_, _, count)| count).sum::<f64>() * percent / 100.0;
        let mut below = 0.0;
        for (lower, upper, count) in &self.buckets {
            if below + count >= rank {
                return (lower + (upper - lower) * (rank - below) / count).min(self.max);
            }
            below += count;
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of the program, shortened.
    const TEXT: &str = "\
Keys:       16 bytes each (+ 0 bytes user-defined timestamp)
fillseq      :      40.470 micros/op 24705 ops/sec 0.414 seconds 10240 operations;   96.9 MB/s
Microseconds per write:
Count: 40 Average: 10358.3250  StdDev: 4138.71
Min: 6913  Median: 9240.0000  Max: 26859
Percentiles: P50: 9240.00 P75: 12177.78 P99: 26859.00 P99.9: 26859.00 P99.99: 26859.00
------------------------------------------------------
(    6600,    9900 ]       25  62.500%  62.500% #############
(    9900,   14000 ]        9  22.500%  85.000% #####
(   14000,   22000 ]        5  12.500%  97.500% ###
(   22000,   33000 ]        1   2.500% 100.000% #

DB path: [/tmp/vol/db]
readrandom   :       4.535 micros/op 219770 ops/sec 0.023 seconds 5000 operations;  861.8 MB/s (5000 of 5000 found)

Microseconds per read:
Count: 5000 Average: 4.5414  StdDev: 99.81
Min: 0  Median: 1.2979  Max: 4081
Percentiles: P50: 1.30 P75: 1.92 P99: 8.15 P99.9: 63.50 P99.99: 4081.00
------------------------------------------------------
[       0,       1 ]     1897  37.940%  37.940% ########
(       1,       2 ]     2024  40.480%  78.420% ########
(       2,       3 ]      630  12.600%  91.020% ###
(       3,       4 ]      205   4.100%  95.120% #
(       4,       6 ]      159   3.180%  98.300% #
(       6,      10 ]       65   1.300%  99.600% 
(      10,      15 ]       12   0.240%  99.840% 
(      15,      22 ]        2   0.040%  99.880% 
(      51,      76 ]        2   0.040%  99.920% 
(     110,     170 ]        1   0.020%  99.940% 
(    2900,    4400 ]        3   0.060% 100.000% 

DB path: [/tmp/vol/db]
readwhilewriting :       8.959 micros/op 100000 ops/sec 0.050 seconds 5000 operations;  428.7 MB/s (5000 of 5000 found)

Microseconds per read:
Count: 5000 Average: 11.1720  StdDev: 308.03
Min: 0  Median: 1.2827  Max: 13844
Percentiles: P50: 1.28 P75: 1.86 P99: 6.64 P99.9: 2900.00 P99.99: 12975.00
------------------------------------------------------
(       1,       2 ]     5000  100.000%  100.000% ########

STATISTICS:
rocksdb.number.keys.written COUNT : 500
";

    #[test]
    fn percentiles_are_those_that_the_program_prints() {
        let writes = LatencyHistogram::parse(TEXT, "fillseq").unwrap();
        let reads = LatencyHistogram::parse(TEXT, "readrandom").unwrap();
        let printed = [
            (&writes, 50.0, 9240.0),
            (&writes, 75.0, 12_177.78),
            (&writes, 99.0, 26_859.0),
            (&reads, 75.0, 1.92),
            (&reads, 99.0, 8.15),
            (&reads, 99.9, 63.5),
            (&reads, 99.99, 4081.0),
        ];
        for (histogram, percent, value) in printed {
            let computed = histogram.percentile(percent);
            assert!((computed - value).abs() < 0.006, "{percent}: {computed}, printed {value}");
        }
        assert_eq!(reads.buckets.len(), 11);
    }

    #[test]
    fn a_run_has_three_loads_and_the_writes_during_reads() {
        let sample = parse(TEXT).unwrap();
        assert!((sample.loads[0].throughput - 24_705.0 * 4112.0 / 1e6).abs() < 1e-9);
        assert!((sample.loads[1].latency[1] - 8.15).abs() < 0.006);
        // 500 values in 50 ms.
        assert!((sample.concurrent_writes - 500.0 * 4112.0 / 0.05 / 1e6).abs() < 1e-9);
    }

    #[test]
    fn an_incomplete_run_is_no_result() {
        assert!(parse(&TEXT.replacen("5000 of 5000", "4999 of 5000", 1)).is_none());
        assert!(parse(&TEXT.replace("5000 of 5000", "0 of 0")).is_none());
        assert!(parse(&TEXT.replace("readwhilewriting :", "other :")).is_none());
        assert!(parse(&TEXT.replace("keys.written", "keys.read")).is_none());
        let buckets = TEXT.find("(       1,       2 ]     5000").unwrap();
        assert!(parse(&format!("{}{}", &TEXT[..buckets], "\n")).is_none());
    }
}
