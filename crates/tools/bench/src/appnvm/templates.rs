//! The templates `predictable` and `endurance` beside `throughput`, in virtual time.
//!
//! `predictable` moves a line with few write units in flight, and so as slowly as the space allows. It
//! is measured on the drive of `make demo` in its steady state: one reader, beside the bursts of 64 KB
//! writes of `demo/mixed.fio` in half of the drive, or beside random 4 KB writes of the same rate or of
//! half of it. Without collection the 99.9th percentile of the bursts' writes is 5 ms.
//!
//! `endurance` writes hot data to a stream of its own, and moves data that has not changed for long off
//! the least worn chunks. It is measured with nine of ten writes to a tenth of a small drive, at 100
//! writes a second: days of virtual time, as far as the templates' 48 erases are a small part of the wear.

use std::path::Path;

use nvme::ChunkId;
use scenario::Scenario;
use sim::{SimOptions, SimOutcome, simulate};
use stack::{RunObserver, Stack, co_simulate, precondition};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

use super::{BENCH, setup};
use crate::{BenchError, Measurement, RunLength, Sink};

const THROUGHPUT: &str = "throughput";
const PREDICTABLE: &str = "predictable";
const ENDURANCE: &str = "endurance";

/// Largest share of the 99.9th percentiles of `throughput`.
const LATENCY_SHARE: f64 = 0.5;

/// Largest share of the spread of wear of `throughput`.
const WEAR_SHARE: f64 = 0.5;

/// The drive of `demo/drive-managed.toml`.
const DEMO: &str = "preset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n\
    pu_scheduling = \"read-priority\"\npage_transfers = false\n\
    suspend = { suspend = \"10us\", resume = \"10us\", max_per_operation = 8 }\n\
    controller = { completion_latency = \"0us\", dma_bandwidth = \"0\", dma_in_bandwidth = \"0\" }\n\
    write_buffer = { kind = \"power-loss-protected\", size = \"64M\" }\n";

/// Writers: a name, and their keys.
const WRITERS: [(&str, &str); 3] = [
    (
        "64 KB writes in bursts of 64 MB",
        "rw = \"write\"\nbs = \"64k\"\nthinktime = \"320ms\"\nthinktime_blocks = 1000\n\
         offset = \"50%\"\nsize = \"50%\"\n",
    ),
    ("4 KB random writes at 100 MB/s", "rw = \"randwrite\"\nbs = \"4k\"\nrate = \"100m\"\n"),
    ("4 KB random writes at 200 MB/s", "rw = \"randwrite\"\nbs = \"4k\"\nrate = \"200m\"\n"),
];

/// Returns keys of a drive with a template.
fn drive(keys: &str, template: &str) -> String {
    format!("[drive]\n{keys}personality = \"rules\"\nrules.template = \"{template}\"\n")
}

fn scenario(text: &str) -> Result<Scenario, BenchError> {
    Scenario::parse(Path::new("bench"), text).map_err(setup)
}

/// Measures both.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    latencies(length, sink)?;
    wear(length, sink)
}

/// Measures the latencies of `predictable` beside those of `throughput`.
fn latencies(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (name, writer) in WRITERS {
        let reference = mix(THROUGHPUT, writer, length)?;
        let outcome = mix(PREDICTABLE, writer, length)?;
        for job in ["reader", "writer"] {
            let [of_throughput, of_predictable] =
                [&reference, &outcome].map(|outcome| p999_of(outcome, job));
            let row = |template: &str, value| {
                let case = format!("{name} beside a reader, {template}, {job}");
                Measurement::new(BENCH, case, "latency_p99_9", value, "ns")
            };
            sink.push(row(THROUGHPUT, of_throughput))?;
            let row = row(PREDICTABLE, of_predictable).with_reference("throughput", of_throughput);
            sink.push(match length {
                RunLength::Full => row.at_most(LATENCY_SHARE * of_throughput),
                RunLength::Quick => row,
            })?;
        }
    }
    Ok(())
}

/// Runs a reader beside a writer on the demo's drive.
fn mix(template: &str, writer: &str, length: RunLength) -> Result<SimOutcome, BenchError> {
    let times = format!(
        "norandommap = true\ntime_based = true\nramp_time = 1\nruntime = \"{}\"\n",
        length.choose("20s", "1s")
    );
    let text = format!(
        "{}[precondition]\nsteady = \"sampled\"\n\
         [[job]]\nname = \"reader\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 1\nsize = \"50%\"\n{times}\
         [[job]]\nname = \"writer\"\niodepth = 16\n{writer}{times}",
        drive(DEMO, template)
    );
    simulate(&scenario(&text)?, SimOptions::default()).map_err(setup)
}

/// Returns the 99.9th percentile of the latency of a job, in nanoseconds.
fn p999_of(outcome: &SimOutcome, job: &str) -> f64 {
    let jobs = outcome.paths.iter().flat_map(|path| &path.run.jobs);
    let of_job = jobs.filter(|result| result.spec.name == job);
    let latencies = of_job.flat_map(|result| &result.directions);
    latencies.map(|direction| direction.clat.percentile(99.9).0 as f64).fold(0.0, f64::max)
}

/// The wear of the chunks of lines.
struct WearSpread {
    /// The most erases of a chunk, less the fewest.
    range: f64,
    /// The standard deviation.
    deviation: f64,
}

/// Measures the wear of `endurance` beside that of `throughput`.
fn wear(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let of_throughput = skewed_writes(THROUGHPUT, length)?;
    let of_endurance = skewed_writes(ENDURANCE, length)?;
    for (metric, reference, value) in [
        ("wear_range", of_throughput.range, of_endurance.range),
        ("wear_deviation", of_throughput.deviation, of_endurance.deviation),
    ] {
        let row = |template: &str, value| {
            let case = format!("4 KB overwrites, 90 % of them to 10 %, {template}");
            Measurement::new(BENCH, case, metric, value, "")
        };
        sink.push(row(THROUGHPUT, reference))?;
        let row = row(ENDURANCE, value).with_reference("throughput", reference);
        sink.push(match length {
            RunLength::Full => row.at_most(WEAR_SHARE * reference),
            RunLength::Quick => row,
        })?;
    }
    Ok(())
}

/// Overwrites a small drive that is full.
fn skewed_writes(template: &str, length: RunLength) -> Result<WearSpread, BenchError> {
    let keys = "preset = \"femu-default\"\ndata = \"none\"\nwrite_buffer.size = \"1M\"\n\
        ftl.over_provisioning = 0.25\nrules.hot_stream = true\n\
        geometry = { channels = 2, pus = 2, chunks = 64, pages = 256 }\n";
    let text = format!("{}[precondition]\nfill = \"sequential\"\n", drive(keys, template));
    let scenario = scenario(&text)?;
    let stack = Stack::build(&scenario.drives[0], None).map_err(setup)?;
    let mut runner = VirtualRunner::new();
    let what = &scenario.precondition;
    let stack = precondition(stack, what, &mut runner, 1, &mut |_| {}).map_err(setup)?;
    let Stack { mut drive, device, .. } = stack;
    let pairs = [
        ("rw", "randwrite"),
        ("bs", "4k"),
        ("iodepth", "8"),
        ("norandommap", "1"),
        ("random_distribution", "zoned:90/10:10/90"),
        ("rate_iops", "100"),
        ("io_size", length.choose("10000%", "100%")),
    ];
    let pairs = pairs.iter().zip(1..).map(|((key, value), line)| (*key, *value, line));
    let (job, _) = JobSpec::from_pairs("writes", Path::new("bench"), pairs).map_err(setup)?;
    let mut host = JobRunner::new(device, vec![job], IoCpuCosts::default(), 1).map_err(setup)?;
    co_simulate(&mut runner, &mut host, &mut drive, RunObserver::new(&mut |_, _, _| true));
    host.finish().map_err(setup)?;
    let ftl = drive.ftl().ok_or_else(|| setup("the drive has no FTL"))?;
    let chunks = (0..4 * 64).map(ChunkId).filter(|chunk| ftl.is_in_line(*chunk));
    let wear: Vec<f64> = chunks.map(|chunk| f64::from(ftl.wear_of(chunk))).collect();
    let count = wear.len().max(1) as f64;
    let mean = wear.iter().sum::<f64>() / count;
    let variance = wear.iter().map(|erases| (erases - mean).powi(2)).sum::<f64>() / count;
    let (low, high) = (f64::INFINITY, f64::NEG_INFINITY);
    let range = wear.iter().fold(high, |most, erases| most.max(*erases))
        - wear.iter().fold(low, |least, erases| least.min(*erases));
    Ok(WearSpread { range, deviation: variance.sqrt() })
}
