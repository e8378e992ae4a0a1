//! [HIOPS14], figure 7: I/Os per second by request size.

use block::completion::Strategy;

use super::harness::{BenchSetting, HiopsHarness};
use super::sample::{Sample, median};
use super::{BENCH, INTERVAL, THREADS, kilobytes};
use crate::bench::{BenchError, Measurement, RunLength, Sink, interleave};

pub(super) fn run(
    effort: RunLength,
    rig: &mut HiopsHarness,
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
    let threads = THREADS.min(rig.threads());
    for bytes in sizes.iter().copied() {
        let samples = interleave(effort.choose(4, 1), strategies.len(), |which| {
            rig.measure(&BenchSetting { strategy: strategies[which].1, threads, bytes })
        })?;
        let baseline = median(&samples[0], |s| s.iops)?;
        for ((name, strategy), samples) in strategies.iter().zip(&samples) {
            let case = format!("{} reads, {threads} threads, {name}", kilobytes(bytes));
            let iops = Measurement::new(BENCH, &case, "iops", median(samples, |s| s.iops)?, "1/s");
            let is_baseline = *strategy == Strategy::SCSI;
            sink.push(if is_baseline { iops } else { iops.with_reference("SCSI", baseline) })?;
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
    let push = |sink: &mut Sink<'_>, metric, value, unit| {
        sink.push(Measurement::new(BENCH, case, metric, value, unit))
    };
    push(sink, "context_switches_per_io", median(samples, |s| s.switches_per_io)?, "")?;
    push(sink, "host_cpu", median(samples, |s| s.host_cpu)?, "CPUs")?;
    push(sink, "cpu_per_io", median(samples, |s| s.cpu_per_io.0 as f64)?, "ns")?;
    let uplink = median(samples, |s| s.bytes_per_second)?;
    let limit = drive::AhciConfig::hiops().uplink_bytes_per_sec as f64;
    sink.push(
        Measurement::new(BENCH, case, "bytes_per_second", uplink, "B/s")
            .with_reference("uplink", limit),
    )?;
    push(sink, "stolen", median(samples, |s| s.stolen)?, "")?;
    push(sink, "latency_mean", median(samples, |s| s.latency.0 as f64)?, "ns")
}
