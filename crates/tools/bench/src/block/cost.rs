//! Nanoseconds per request on one core.

use event::AllowedCpus;

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleaved, on_first_cpu};
use super::BENCH;
use super::load::Load;
use super::variants::{MQ, SQ, block_layer, raw};

/// Outstanding requests, and requests per batch.
const POINTS: [(u64, u64); 3] = [(32, 32), (32, 8), (1, 1)];

/// Requests of one sample with the trace enabled; a request has at most eight events.
const TRACED: u64 = 4_000;

/// The largest cost of a request through `mq` that is submitted with 31 others, as a multiple of that of `raw`.
const TIMES_RAW_MAX: f64 = 1.1;

/// The largest cost of a request through `mq` that has no neighbour to merge with, as a multiple of that without merging.
const TIMES_NO_MERGING_MAX: f64 = 1.1;

/// Measures `raw`, `mq` and `sq`.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let rows = on_first_cpu(&AllowedCpus::allowed(), || measure(effort))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

fn measure(effort: RunLength) -> Result<Vec<Measurement>, BenchError> {
    // A sample is shorter than a time slice of the scheduler, so most samples are not interrupted.
    let (rounds, count) = (effort.choose(301, 3), effort.choose(20_000, 2_000));
    let mut rows = Vec::new();
    for (depth, batch) in POINTS {
        let mut raw = raw(1)?;
        let mut plain = block_layer(MQ, 1, 1, false)?;
        let mut merging = block_layer(MQ, 1, 1, true)?;
        let mut single = block_layer(SQ, 1, 1, true)?;
        let mut traced = block_layer(MQ, 1, 1, true)?;
        traced[0].trace(8 * TRACED as usize);
        let load = |seed| Load::new(1 << 31, depth, batch, seed);
        let mut loads = [0, 1, 2, 3, 4].map(load);
        let [l0, l1, l2, l3, l4] = &mut loads;
        let samples: [Samples; 5] = interleaved(
            rounds,
            [
                &mut || l0.run(&mut raw[0], count),
                &mut || l1.run(&mut plain[0], count),
                &mut || l2.run(&mut merging[0], count),
                &mut || l3.run(&mut single[0], count),
                &mut || {
                    let taken = l4.run(&mut traced[0], TRACED.min(count));
                    if let Some(tracer) = traced[0].tracer() {
                        tracer.clear();
                    }
                    taken
                },
            ],
        )?;
        // The lower quartile: what disturbs the machine only ever adds.
        let quartiles = samples.each_ref().map(|s| s.quantile(0.25));
        let [raw_ns, plain_ns, merging_ns, sq_ns, _] = quartiles;
        let names = ["raw", "mq, no merging", "mq", "sq", "mq, traced"];
        for (name, (samples, ns)) in names.into_iter().zip(samples.iter().zip(quartiles)) {
            let case = format!("null, {name}, QD {depth}, {batch} at a time");
            let metric = "ns_per_request_lower_quartile";
            let row = Measurement::new(BENCH, case.clone(), metric, ns, "ns").with_spread(samples);
            rows.push(match name {
                "raw" => row,
                "mq" => row.with_reference("raw", raw_ns).at_most(sq_ns),
                _ => row.with_reference("raw", raw_ns),
            });
            if name == "mq" && batch == 32 {
                let row = Measurement::new(BENCH, case, "times_raw", ns / raw_ns, "");
                rows.push(row.at_most(TIMES_RAW_MAX));
            }
        }
        let case = format!("null, mq, QD {depth}, {batch} at a time");
        let row = Measurement::new(BENCH, case, "times_no_merging", merging_ns / plain_ns, "");
        rows.push(row.at_most(TIMES_NO_MERGING_MAX));
    }
    Ok(rows)
}
