//! Throughput of the host over a drive that only answers, with and without the sector target
//! ([Thesis15 ch. 6 §6.1.1], figure 6), in real time.
//!
//! Random reads, random writes and both in equal parts, from 4 KB to 512 KB, in batches of 32, on
//! one core. The paths take turns. Throughput is bytes per second of the host's time, without the
//! drive's step; the value is the median of the samples. The overhead is the share of the
//! throughput that the target costs. The paper has 16 % for 4 KB random reads as the highest, and
//! 1.2 % for 512 KB as the lowest.
//!
//! Here the overhead is larger, and grows with the size up to 128 KB: some 40 % for 4 KB random
//! reads, 60 % for 512 KB. The target costs less than the paper's ([`request`](super::request)), but
//! the path without it costs less by more. It passes up to 128 KB on as one command, maps no page
//! and touches no data, so that its time does not depend on the size of a transfer. The target
//! translates every sector. The rows therefore have no bound.

use event::AllowedCpus;

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave, on_first_cpu};
use super::BENCH;
use super::echo_path::{EchoLoad, EchoPath, EchoPaths};

/// Kinds of loads: description, percentage of writes, and the paper's overheads in percent for 4 KB
/// and for 512 KB.
const LOADS: [(&str, u64, [Option<f64>; 2]); 3] = [
    ("random reads", 0, [Some(16.0), Some(1.2)]),
    ("random writes", 100, [None, None]),
    ("random reads and writes", 50, [None, None]),
];

/// Sizes of requests in sectors of 4 KB: 4 KB to 512 KB.
pub(super) const SIZES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Measures every load and size.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let rows = on_first_cpu(&AllowedCpus::allowed(), || measure(length))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

fn measure(length: RunLength) -> Result<Vec<Measurement>, BenchError> {
    let mut paths = EchoPaths::new(length)?;
    let mut rows = Vec::new();
    for (what, write_percent, [first, last]) in LOADS {
        for sectors in SIZES {
            let load = EchoLoad { sectors, write_percent };
            let bytes = (sectors * 4096) as f64;
            let sides = [EchoPath::WithoutTarget, EchoPath::WithTarget];
            let taken = interleave(length.choose(101, 3), sides.len(), |which| {
                // Bytes per nanosecond are GB/s.
                Ok(1e3 * bytes / paths.sample(sides[which], load)?.total_ns())
            })?;
            let case = format!("null device, {} KB {what}", sectors * 4);
            let mut medians = Vec::new();
            for (side, samples) in ["without target", "with target"].into_iter().zip(taken) {
                let none = || BenchError::NoValue { case: case.clone(), metric: "bandwidth" };
                let samples = Samples::new(samples).ok_or_else(none)?;
                let case = format!("{case}, {side}");
                rows.push(Measurement::median(BENCH, case, "bandwidth", &samples, "MB/s"));
                medians.push(samples.median());
            }
            let paper = match sectors {
                1 => first,
                128 => last,
                _ => None,
            };
            let overhead = 100.0 * (1.0 - medians[1] / medians[0]);
            let row = Measurement::new(BENCH, case, "overhead", overhead, "%");
            rows.push(match paper {
                Some(paper) => row.with_reference("paper", paper),
                None => row,
            });
        }
    }
    Ok(rows)
}
