//! Response times of two drives with different FTLs ([Thesis15 ch. 6 §3], figure 1): 16 MB of 4 KB
//! random writes, one outstanding, in virtual time.
//!
//! The paper names neither drive. Here they are a consumer drive (preset `sata-840pro-small`: 7 %
//! over-provisioning, a write buffer of 4 MB) and a data-center drive (preset `dc-nvme-mlc` with 9
//! GB: 20 %, 16 MB). Each was filled and then overwritten twice at random. 64 MB of writes in
//! virtual time precede the measured ones, so that the write buffer is full if the drive cannot
//! keep up. The consumer drive stalls when it waits for garbage collection; the other one does not.
//!
//! The case of megabyte N has the mean of the N-th 256 requests: 16 points of a curve.

use super::super::{BenchError, Measurement, RunLength, Samples, Sink};
use super::request_log::mean;
use super::{BENCH, BenchJob, LightnvmHarness, run_logged, setup};

/// The drives: name and lines of `[drive]`.
const DRIVES: [(&str, &str); 2] = [
    ("consumer drive", "preset = \"sata-840pro-small\"\ngeometry.sector_bytes = 4096\n"),
    ("data-center drive", "preset = \"dc-nvme-mlc\"\ngeometry.pages = 64\n"),
];

/// Data written in virtual time before the measurement, in bytes.
const WARM_UP: u64 = 64 << 20;

/// Measured requests, and requests per megabyte.
const REQUESTS: usize = 4096;
const PER_MEGABYTE: usize = 256;

/// Measures both drives.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (name, drive) in DRIVES {
        let chunks = length.choose(128, 32);
        let mut harness = LightnvmHarness::new(&format!(
            "[drive]\ndata = \"none\"\n{drive}geometry.chunks = {chunks}\n"
        ))?;
        let capacity = harness.spec.capacity.ok_or_else(|| setup("the drive has no flash"))?;
        let bytes = capacity.logical_sectors * 4096;
        let overwritten = bytes * length.choose(2, 1);
        harness.run_in_zero_time(&[
            BenchJob("fill", "rw=write bs=256k iodepth=8"),
            BenchJob(
                "overwrite",
                &format!(
                    "rw=randwrite bs=4k iodepth=64 norandommap=1 io_size={overwritten} stonewall=1"
                ),
            ),
        ])?;
        let writes = |bytes: u64| {
            format!("rw=randwrite bs=4k iodepth=1 norandommap=1 number_ios={}", bytes / 4096)
        };
        harness.run(&[BenchJob("warm", &writes(WARM_UP))])?;
        let measured = writes((REQUESTS * 4096) as u64);
        let latencies = run_logged(&mut harness, &measured)?.latencies_us();
        let case = format!("{name}, 16 MB of 4 KB random writes, QD 1");
        rows(&case, latencies, sink)?;
    }
    Ok(())
}

fn rows(case: &str, latencies: Vec<f64>, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let row = |case: String, metric, value| Measurement::new(BENCH, case, metric, value, "us");
    sink.push(row(case.into(), "latency_mean", mean(&latencies)))?;
    for (index, megabyte) in latencies.chunks(PER_MEGABYTE).enumerate() {
        let case = format!("{case}, megabyte {}", index + 1);
        sink.push(row(case, "latency_mean", mean(megabyte)))?;
    }
    let none = || BenchError::NoValue { case: case.into(), metric: "latency" };
    let samples = Samples::new(latencies).ok_or_else(none)?;
    for (metric, share) in [("latency_p50", 0.5), ("latency_p99", 0.99), ("latency_max", 1.0)] {
        sink.push(row(case.into(), metric, samples.quantile(share)))?;
    }
    Ok(())
}
