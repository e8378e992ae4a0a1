//! \[HIOPS14\], figure 9: the poll interval, with and without cooperative polling.

use block::completion::Strategy;
use time::Nanos;

use super::harness::{BenchSetting, HiopsHarness};
use super::sample::figures;
use super::{BENCH, THREADS};
use crate::{BenchError, Measurement, RunLength, Sink, interleave};

pub(super) fn run(
    effort: RunLength,
    harness: &mut HiopsHarness,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let threads = THREADS.min(harness.threads());
    let intervals: &[u64] = effort.choose(&[1, 2, 4, 8, 16, 32, 64, 128], &[16]);
    for micros in intervals.iter().copied() {
        let interval = Nanos::from_micros(micros);
        let strategies = [Strategy::async_poll(interval), Strategy::hiops_poll(interval)];
        let samples = interleave(effort.choose(4, 1), strategies.len(), |which| {
            harness.measure(&BenchSetting { strategy: strategies[which], threads, bytes: 512 })
        })?;
        let alone = figures(&samples[0], |s| s.iops)?.median();
        for (samples, name) in samples.iter().zip(["async poll", "with coop poll"]) {
            let case = format!("0.5 KB reads, {threads} threads, {name} every {micros} us");
            let iops =
                Measurement::median(BENCH, &case, "iops", &figures(samples, |s| s.iops)?, "1/s");
            let is_alone = name == "async poll";
            sink.push(if is_alone {
                iops
            } else {
                // Cooperation keeps the rate.
                iops.with_reference("async poll", alone).at_least(alone)
            })?;
            for (metric, value) in [
                ("context_switches_per_io", figures(samples, |s| s.switches_per_io)?),
                ("host_cpu", figures(samples, |s| s.host_cpu)?),
                ("stolen", figures(samples, |s| s.stolen)?),
                ("cpu_per_io_ns", figures(samples, |s| s.cpu_per_io.0 as f64)?),
            ] {
                sink.push(Measurement::median(BENCH, &case, metric, &value, ""))?;
            }
        }
    }
    Ok(())
}
