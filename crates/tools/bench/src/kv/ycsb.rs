//! YCSB's workloads A to F on the key-value target: operations per second and latencies. They run
//! in virtual time, or with `real` in real time with the drive on a thread of its own.
//!
//! Records are loaded with zero latency before the measurement. The host takes no virtual time, so
//! the result shows the drive and its use by the target. Every workload starts with a freshly
//! loaded target of its own.

use controller::Controller;
use event::{IdlePolicy, RealClock, RealRunner};
use media::MediaConfig;
use rng::Rng;
use time::{Component, VirtualRunner};
use workload::ycsb::{Ycsb, YcsbWorkload};

use super::BENCH;
use super::client::{Client, Measured, Task};
use super::harness::{KvHarness, VirtualHost, run_to_end, setup};
use crate::{BenchError, Measurement, Sink};

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YcsbRun {
    /// Number of records at the start.
    pub records: u64,
    /// Number of operations.
    pub operations: u64,
    /// Size of a record's value in bytes.
    pub value_bytes: u64,
    /// Number of operations in flight.
    pub depth: u32,
    /// Real time instead of virtual time.
    pub real: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Runs a workload on a harness with an empty target.
///
/// # Errors
/// If a request fails.
pub fn run(
    harness: KvHarness,
    workload: YcsbWorkload,
    run: &YcsbRun,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let KvHarness { mut drive, kv, port, controller } = harness;
    check_fit(&drive, run)?;
    let mut client = Client::new(kv, run.depth, run.value_bytes)?;
    let mut runner = VirtualRunner::new();
    drive.set_zero_latency(true);
    client.begin(Task::Load(run.records));
    if !run_to_end(&mut runner, &mut client, &mut drive) {
        return Err(BenchError::Thread("the load phase"));
    }
    check_complete(workload, "load", &client.take_measured())?;
    // Write buffered records before the measurement, as at its end. Write amplification then covers
    // exactly the records of the measurement.
    client.begin(Task::Sync);
    if !run_to_end(&mut runner, &mut client, &mut drive) {
        return Err(BenchError::Thread("the sync behind the load phase"));
    }
    check_complete(workload, "sync", &client.take_measured())?;
    drive.set_zero_latency(false);
    drive.reset_stats();
    let rng = Rng::new(run.seed).fork(workload as u64);
    let ycsb = Ycsb::new(workload.mix(), run.records, rng);
    let ycsb = ycsb.ok_or_else(|| setup("a workload needs records"))?;
    let before = client.kv().stats();
    client.begin(Task::Run(Box::new(ycsb), run.operations));
    let measured = if run.real {
        let clock = RealClock::start();
        client.run_in_real_time(clock);
        let real = RealRunner::new(clock, IdlePolicy::default())?;
        port.set_drive_waker(real.waker())?;
        let stopper = real.stop_handle();
        let thread = std::thread::spawn(move || real.run(&mut drive));
        let finish = |client: &mut Client| {
            while !client.is_done() {
                if !client.poll(clock.now()) {
                    std::hint::spin_loop();
                }
            }
            client.take_measured()
        };
        let measured = finish(&mut client);
        client.begin(Task::Sync);
        check_complete(workload, "sync", &finish(&mut client))?;
        stopper.stop();
        thread.join().map_err(|_| BenchError::Thread("the drive"))??;
        measured
    } else {
        if !run_to_end(&mut runner, &mut client, &mut drive) {
            return Err(BenchError::Thread("the workload"));
        }
        let measured = client.take_measured();
        client.begin(Task::Sync);
        if !run_to_end(&mut runner, &mut client, &mut drive) {
            return Err(BenchError::Thread("the sync behind the workload"));
        }
        check_complete(workload, "sync", &client.take_measured())?;
        measured
    };
    check_complete(workload, "run", &measured)?;
    drop(controller);
    let time = if run.real { "real" } else { "virtual" };
    let case = format!("ycsb {workload}, {} records, QD {}, {time} time", run.records, run.depth);
    let seconds = measured.time.as_secs_f64();
    if seconds == 0.0 {
        let help = "all records are in the target's memory: use more --records";
        return Err(setup(format!("{case}: nothing took any time, because {help}")));
    }
    let rate = measured.operations as f64 / seconds;
    sink.push(Measurement::new(BENCH, case.clone(), "operations_per_second", rate, "1/s"))?;
    for (kind, histogram) in &measured.histograms {
        let case = format!("{case}, {}", kind.name());
        let mut row = |metric, nanos: f64| {
            sink.push(Measurement::new(BENCH, case.clone(), metric, nanos / 1e3, "us"))
        };
        row("latency_mean", histogram.mean())?;
        for (metric, percent) in
            [("latency_p50", 50.0), ("latency_p95", 95.0), ("latency_p99", 99.0)]
        {
            row(metric, histogram.percentile(percent).0 as f64)?;
        }
        row("latency_max", histogram.max().0 as f64)?;
    }
    let (after, layout) = (client.kv().stats(), *client.kv().layout());
    if after.bytes_put > before.bytes_put {
        let since = kv::KvStats {
            units_written: after.units_written - before.units_written,
            large_value_chunks_written: after.large_value_chunks_written
                - before.large_value_chunks_written,
            bytes_put: after.bytes_put - before.bytes_put,
            ..after
        };
        if let Some(wa) = since.write_amplification(layout.unit_bytes, layout.chunk_bytes) {
            sink.push(Measurement::new(BENCH, case.clone(), "write_amplification", wa, ""))?;
        }
    }
    sink.push(Measurement::new(BENCH, case, "live_ratio", after.live_ratio(), ""))
}

/// Checks that the drive can hold the records before they are loaded one by one.
fn check_fit(drive: &Controller, run: &YcsbRun) -> Result<(), BenchError> {
    let sector_bytes = match &drive.config().media {
        MediaConfig::Nand(nand) => nand.geometry.sector_bytes,
        MediaConfig::Pcm(pcm) => pcm.sector_bytes,
        MediaConfig::Null { sector_bytes, .. } => *sector_bytes,
    };
    let has = u128::from(drive.sectors()) * u128::from(sector_bytes);
    let wanted = u128::from(run.records) * u128::from(run.value_bytes);
    let buffers = u128::from(run.depth) * u128::from(run.value_bytes);
    if wanted.max(buffers) <= has {
        return Ok(());
    }
    let YcsbRun { records, value_bytes, depth, .. } = run;
    Err(setup(format!(
        "{records} records of {value_bytes} bytes, {depth} at a time, do not fit on a drive of {has} bytes: \
         use fewer --records, or less --value-bytes"
    )))
}

/// Checks that every request succeeded: times of failures are not results.
fn check_complete(
    workload: YcsbWorkload,
    phase: &str,
    measured: &Measured,
) -> Result<(), BenchError> {
    match measured.error {
        None => Ok(()),
        Some(error) => {
            let failed = measured.failed;
            Err(setup(format!("ycsb {workload}, {phase}: {failed} requests failed: {error}")))
        }
    }
}
