//! \[HIOPS14\], figure 8: run time of the interrupt handler.

use super::harness::{BenchSetting, HiopsHarness};
use super::sample::{Sample, figures};
use super::{BENCH, STEPS, THREADS, kilobytes};
use crate::{BenchError, Measurement, RunLength, Sink, interleave};

pub(super) fn run(
    effort: RunLength,
    harness: &mut HiopsHarness,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let threads = THREADS.min(harness.threads());
    for bytes in [512, 4096] {
        let samples = interleave(effort.choose(6, 1), STEPS.len(), |which| {
            harness.measure(&BenchSetting { strategy: STEPS[which].1, threads, bytes })
        })?;
        let of = |samples: &[Sample], value: &dyn Fn(&Sample) -> f64| figures(samples, value);
        for (which, (name, _)) in STEPS.iter().enumerate() {
            let case = format!("handler, {} reads, {threads} threads, {name}", kilobytes(bytes));
            for (metric, value) in [
                ("cpu_p50", &(|s: &Sample| s.handler_cpu[0].0 as f64) as &dyn Fn(&Sample) -> f64),
                ("cpu_p99", &|s| s.handler_cpu[1].0 as f64),
                // Of each interval; an interval that was disturbed does not count.
                ("cpu_max", &|s| s.handler_cpu[2].0 as f64),
                ("wall_p99", &|s| s.handler_wall[1].0 as f64),
                ("wall_max", &|s| s.handler_wall[2].0 as f64),
            ] {
                let measured =
                    Measurement::median(BENCH, &case, metric, &of(&samples[which], value)?, "ns");
                let baseline = of(&samples[0], value)?.median();
                let measured = match which {
                    0 => measured,
                    _ => measured.with_reference("SCSI", baseline),
                };
                // The shape of figure 8: each step shortens the longest run of the one before.
                sink.push(if metric == "cpu_max" && which > 1 {
                    measured.at_most(of(&samples[which - 1], value)?.median())
                } else {
                    measured
                })?;
            }
            for (metric, value) in [
                ("iops", &(|s: &Sample| s.iops) as &dyn Fn(&Sample) -> f64),
                ("found_per_run", &|s| s.handler_found_per_run),
                ("runs_per_io", &|s| s.handler_runs_per_io),
                ("stolen", &|s| s.stolen),
                ("context_switches_per_io", &|s| s.switches_per_io),
            ] {
                let unit = if metric == "iops" { "1/s" } else { "" };
                let value = of(&samples[which], value)?;
                sink.push(Measurement::median(BENCH, &case, metric, &value, unit))?;
            }
        }
    }
    Ok(())
}
