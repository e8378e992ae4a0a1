//! The completion strategies on a modeled machine: figures 1, 7, 8, 9 and 10 of \[HIOPS14\].
//!
//! The code is that of the block layer: its threads and contexts are tasks of a machine of the
//! paper's processor, an i7-4770, and the drives those of the paper. What Linux does besides, the
//! system call, the file system and the SCSI layer, is a time per request with a source of its own
//! ([`HostKernel`]). The rate of a drive, 134,000 reads of 512 bytes per second, is the paper's.
//!
//! Results are the same on every machine.

mod contexts;
mod device;
mod run;
#[cfg(test)]
mod tests;

use block::completion::Strategy;
use machine::{MachineModel, Variation};
use scenario::HostKernel;
use time::Nanos;

use self::run::{ModeledHost, ModeledSample, ModeledSetting};
use super::{BENCH, INTERVAL, STEPS, THREADS, kilobytes};
use crate::{BenchError, Measurement, RunLength, Sink};

/// The processor of the paper.
const MODEL: &str = "i7-4770";

/// Number of drives of the paper.
const DRIVES: usize = 6;

/// Processor time of a key-value server for a request of figure 10, network included: four cores
/// with two threads each, 1.54 times as fast as one, serve 119,000 requests per second at most
/// ([HIOPS14 §4]) if the storage stack takes none. As it is the paper's, the rate is no evidence.
const SERVER_WORK: Nanos = Nanos(51_700);

/// Measures the strategies on the modeled machine.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    run_varied(None, effort, sink)
}

/// Measures as [`run`] does, with a number of the machine varied.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run_varied(
    vary: Option<&Variation>,
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let model = MachineModel::built_in(MODEL)
        .ok_or_else(|| BenchError::Setup(format!("there is no model of {MODEL}")))?;
    let model = match vary {
        Some(vary) => model.varied(vary).map_err(|error| BenchError::Usage(error.to_string()))?,
        None => model,
    };
    let host = ModeledHost::new(model, effort);
    by_drives(&host, sink)?;
    by_size(&host, sink)?;
    by_step(&host, sink)?;
    by_interval(&host, sink)?;
    by_clients(&host, sink)
}

/// Returns the kernel around a strategy: the SCSI layer, or a block driver.
fn kernel(strategy: &Strategy) -> HostKernel {
    match *strategy == Strategy::SCSI {
        true => HostKernel::Linux32Scsi,
        false => HostKernel::LinuxNvme2012,
    }
}

fn setting(strategy: Strategy) -> ModeledSetting {
    ModeledSetting {
        strategy,
        kernel: kernel(&strategy),
        drives: DRIVES,
        threads: THREADS as u16,
        bytes: 512,
        application: Nanos::ZERO,
    }
}

/// Writes the rate, and what bounds it.
fn push(case: &str, sample: &ModeledSample, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (metric, value, unit) in [
        ("iops", sample.iops, "1/s"),
        ("bytes_per_second", sample.bytes_per_second, "B/s"),
        ("latency_mean", sample.latency.0 as f64, "ns"),
        ("handler_max", sample.handler_max.0 as f64, "ns"),
        ("interrupt_core_busy", sample.interrupt_core, ""),
        ("cores_busy", sample.busy, ""),
        ("context_switches_per_io", sample.switches_per_io, ""),
        ("interrupts_per_io", sample.interrupts_per_io, ""),
        ("stolen", sample.stolen, ""),
    ] {
        sink.push(Measurement::new(BENCH, case, metric, value, unit))?;
    }
    Ok(())
}

/// Figure 1: by the number of drives.
fn by_drives(host: &ModeledHost, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let counts: &[usize] = host.effort.choose(&[1, 2, 3, 4, 5, 6], &[1, 6]);
    for (name, strategy) in [("SCSI", Strategy::SCSI), ("coop + lazy", Strategy::HIOPS_IRQ)] {
        for drives in counts.iter().copied() {
            let sample = host.measure(&ModeledSetting { drives, ..setting(strategy) })?;
            push(&format!("{MODEL}, 0.5 KB reads, {drives} drives, {name}"), &sample, sink)?;
        }
    }
    Ok(())
}

/// Returns the paths that figures 7 and 10 compare.
fn paths() -> [(&'static str, Strategy); 3] {
    [
        ("SCSI", Strategy::SCSI),
        ("IRQ I/O", Strategy::HIOPS_IRQ),
        ("poll I/O", Strategy::hiops_poll(INTERVAL)),
    ]
}

/// Figure 7: by the size of requests.
fn by_size(host: &ModeledHost, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let sizes: &[u32] =
        host.effort.choose(&[512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], &[65536]);
    for bytes in sizes.iter().copied() {
        for (name, strategy) in paths() {
            let sample = host.measure(&ModeledSetting { bytes, ..setting(strategy) })?;
            push(&format!("{MODEL}, {} reads, {name}", kilobytes(bytes)), &sample, sink)?;
        }
    }
    Ok(())
}

/// Figure 8: the handler's longest run after each step.
fn by_step(host: &ModeledHost, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (name, strategy) in STEPS {
        let sample = host.measure(&setting(strategy))?;
        push(&format!("{MODEL}, handler, {name}"), &sample, sink)?;
    }
    Ok(())
}

/// Figure 9: by the poll interval.
fn by_interval(host: &ModeledHost, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let intervals: &[u64] = host.effort.choose(&[1, 2, 4, 8, 16, 32, 64, 128], &[16]);
    for micros in intervals.iter().copied() {
        let interval = Nanos::from_micros(micros);
        for (name, strategy) in [
            ("async poll", Strategy::async_poll(interval)),
            ("with coop poll", Strategy::hiops_poll(interval)),
        ] {
            let sample = host.measure(&setting(strategy))?;
            push(&format!("{MODEL}, {name} every {micros} us"), &sample, sink)?;
        }
    }
    Ok(())
}

/// Figure 10: a key-value server that reads a record of 1 KB for each request, by the number of its
/// clients. Each client waits for its answer, and has a thread of the server.
fn by_clients(host: &ModeledHost, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let counts: &[u16] = host.effort.choose(&[8, 16, 32, 64, 128, 256], &[32]);
    for clients in counts.iter().copied() {
        for (name, strategy) in paths() {
            let (bytes, application) = (1024, SERVER_WORK);
            let setting = setting(strategy);
            let setting = ModeledSetting { threads: clients, bytes, application, ..setting };
            let sample = host.measure(&setting)?;
            push(&format!("{MODEL}, key-value server, {clients} clients, {name}"), &sample, sink)?;
        }
    }
    Ok(())
}
