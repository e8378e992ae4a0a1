//! \[HIOPS14\], figure 7: I/Os per second by request size.

use block::completion::Strategy;

use super::harness::{BenchSetting, HiopsHarness};
use super::sample::{Sample, figures};
use super::{BENCH, INTERVAL, THREADS, kilobytes};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// How many times the baseline *coop* and *lazy* together are to reach: HIOPS figure 7, where larger requests are bound
/// by the uplink.
fn gain(bytes: u32, strategy: &Strategy) -> Option<f64> {
    let is_both = [Strategy::HIOPS_IRQ, Strategy::hiops_poll(INTERVAL)].contains(strategy);
    match bytes {
        512 if is_both => Some(1.9),
        4096 if is_both => Some(1.3),
        _ => None,
    }
}

pub(super) fn run(
    effort: RunLength,
    harness: &mut HiopsHarness,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let sizes: &[u32] =
        effort.choose(&[512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], &[512, 65536]);
    let strategies = [
        ("SCSI", Strategy::SCSI),
        ("NVMe", Strategy::NVME),
        ("IRQ I/O (coop + lazy)", Strategy::HIOPS_IRQ),
        ("poll I/O (coop + lazy)", Strategy::hiops_poll(INTERVAL)),
    ];
    let threads = THREADS.min(harness.threads());
    for bytes in sizes.iter().copied() {
        let samples = interleave(effort.choose(4, 1), strategies.len(), |which| {
            harness.measure(&BenchSetting { strategy: strategies[which].1, threads, bytes })
        })?;
        let baseline = figures(&samples[0], |s| s.iops)?.median();
        for ((name, strategy), samples) in strategies.iter().zip(&samples) {
            let case = format!("{} reads, {threads} threads, {name}", kilobytes(bytes));
            let iops =
                Measurement::median(BENCH, &case, "iops", &figures(samples, |s| s.iops)?, "1/s");
            let is_baseline = *strategy == Strategy::SCSI;
            sink.push(match gain(bytes, strategy) {
                _ if is_baseline => iops,
                Some(gain) => iops.with_reference("SCSI", baseline).at_least(gain * baseline),
                None => iops.with_reference("SCSI", baseline),
            })?;
            push_bottleneck(&case, samples, sink)?;
        }
    }
    Ok(())
}

/// Writes the cost of the I/Os, and possible bottlenecks.
pub(super) fn push_bottleneck(
    case: &str,
    samples: &[Sample],
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let push = |sink: &mut Sink<'_>, metric, value: Samples, unit| {
        sink.push(Measurement::median(BENCH, case, metric, &value, unit))
    };
    push(sink, "context_switches_per_io", figures(samples, |s| s.switches_per_io)?, "")?;
    push(sink, "host_cpu", figures(samples, |s| s.host_cpu)?, "CPUs")?;
    push(sink, "cpu_per_io", figures(samples, |s| s.cpu_per_io.0 as f64)?, "ns")?;
    let uplink = figures(samples, |s| s.bytes_per_second)?;
    let limit = controller::AhciConfig::hiops().uplink_bytes_per_sec as f64;
    sink.push(
        Measurement::median(BENCH, case, "bytes_per_second", &uplink, "B/s")
            .with_reference("uplink", limit),
    )?;
    push(sink, "stolen", figures(samples, |s| s.stolen)?, "")?;
    push(sink, "latency_mean", figures(samples, |s| s.latency.0 as f64)?, "ns")
}
