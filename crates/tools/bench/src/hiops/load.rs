//! Interrupts, polling, and a hybrid of both, from one thread to 256 ([HIOPS14 §3.3] leaves the
//! hybrid to future work).

use block::completion::{HybridConfig, Strategy};

use super::harness::{BenchSetting, HiopsHarness};
use super::sample::figures;
use super::{BENCH, INTERVAL};
use crate::{BenchError, Measurement, RunLength, Sink, interleave};

/// The least share of the better of both that a hybrid is to reach.
const HYBRID_MIN: f64 = 0.95;

pub(super) fn run(
    effort: RunLength,
    harness: &mut HiopsHarness,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let loads: &[u32] = effort.choose(&[1, 2, 4, 8, 16, 32, 64, 128, 256], &[1, 16]);
    let strategies = [
        ("IRQ I/O", Strategy::HIOPS_IRQ),
        ("poll I/O", Strategy::hiops_poll(INTERVAL)),
        ("hybrid", Strategy::hiops_hybrid(HybridConfig::with_interval(INTERVAL))),
    ];
    for threads in loads.iter().copied() {
        let threads = threads.min(harness.threads());
        let samples = interleave(effort.choose(5, 1), strategies.len(), |which| {
            harness.measure(&BenchSetting { strategy: strategies[which].1, threads, bytes: 512 })
        })?;
        let better = figures(&samples[0], |s| s.iops)?.median();
        let better = better.max(figures(&samples[1], |s| s.iops)?.median());
        for ((name, _), samples) in strategies.iter().zip(&samples) {
            let case = format!("0.5 KB reads, {threads} threads, {name}");
            let iops =
                Measurement::median(BENCH, &case, "iops", &figures(samples, |s| s.iops)?, "1/s");
            let hybrid = *name == "hybrid";
            sink.push(if hybrid {
                iops.with_reference("the better of both", better).at_least(HYBRID_MIN * better)
            } else {
                iops
            })?;
            for (metric, value, unit) in [
                ("latency_mean", figures(samples, |s| s.latency.0 as f64)?, "ns"),
                ("context_switches_per_io", figures(samples, |s| s.switches_per_io)?, ""),
                ("cpu_per_io", figures(samples, |s| s.cpu_per_io.0 as f64)?, "ns"),
            ] {
                sink.push(Measurement::median(BENCH, &case, metric, &value, unit))?;
            }
            if hybrid {
                let polling = figures(samples, |s| s.polling)?;
                sink.push(Measurement::median(BENCH, &case, "polling", &polling, ""))?;
            }
        }
    }
    Ok(())
}
