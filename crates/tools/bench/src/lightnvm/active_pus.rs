//! Reads concurrent with writes while the number of active parallel units changes ([LightNVM17
//! §5.2], where an area is written with all units active, and then read during writes to fewer).
//!
//! One run of pblk on the drive of the paper: 4 KB random reads at depth 1 in an area that was
//! filled with all 128 units, concurrent with 256 KB writes at depth 1 behind it. First all units
//! are active, then 4, then all again. With 4 units there are three bounds. Writes reach nine
//! tenths of what table 1 gives for 4 units. They do not exceed 8 units' rate by more than a tenth,
//! because partly written chunks are written until their line is full. The 90th percentile of reads
//! is at most twice that of reads alone.

use pblk::Pblk;
use workload::{Direction, DirectionResult};

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::drive::pblk;
use super::harness::{BenchJob, LightnvmHarness};
use super::{BENCH, setup};

/// Numbers of active parallel units, in order; 0 for all.
const STEPS: [u32; 3] = [0, 4, 0];

/// Write bandwidth of one unit in MB/s (table 1).
const ONE_UNIT_MB: f64 = 47.0;

/// Measures the steps.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let (size, time) = effort
        .choose(("16g", "ramp_time=200ms runtime=600ms"), ("512m", "ramp_time=60ms runtime=40ms"));
    let mut harness = LightnvmHarness::new(&pblk("", ""))?;
    harness.run_in_zero_time(&[BenchJob(
        "fill",
        &format!("rw=write bs=256k iodepth=8 size={size}"),
    )])?;
    let reads =
        format!("rw=randread bs=4k iodepth=1 norandommap=1 size={size} time_based=1 {time}");
    let writes =
        format!("rw=write bs=256k iodepth=1 offset={size} size={size} time_based=1 {time}");
    let of = |result: &workload::RunResult, direction| -> DirectionResult {
        let found = result.jobs.iter().map(|job| job.direction(direction)).find(|d| d.ios > 0);
        found.cloned().unwrap_or_default()
    };
    let p90 = |of: &DirectionResult| of.lat.percentile(90.0).as_micros_f64();
    let alone = of(&harness.run(&[BenchJob("reads", &reads)])?, Direction::Read);
    let mut first: Option<f64> = None;
    for active in STEPS {
        let pblk = harness.stack.device.only_mut::<Pblk>();
        let device = pblk.ok_or_else(|| setup("the device is not pblk"))?;
        device.set_active_pus(active).map_err(setup)?;
        let now = device.ftl().active_pus();
        let result = harness.run(&[BenchJob("reads", &reads), BenchJob("writes", &writes)])?;
        let again = if first.is_some() && active == 0 { " again" } else { "" };
        let case = format!("pblk, {now} active PUs{again} in one run, 4 KB reads beside writes");
        let row = |metric, value, unit| Measurement::new(BENCH, &case, metric, value, unit);
        let (r, w) = (of(&result, Direction::Read), of(&result, Direction::Write));
        let bandwidth = w.bandwidth() / 1e6;
        let written = row("write_bandwidth", bandwidth, "MB/s");
        let read = row("read_latency_p90", p90(&r), "us").with_reference("alone", p90(&alone));
        match (active, first) {
            (0, None) => {
                first = Some(bandwidth);
                sink.push(written)?;
                sink.push(read)?;
            }
            (0, Some(first)) => {
                sink.push(written.with_reference("at first", first))?;
                sink.push(read)?;
            }
            (n, _) => {
                let most = f64::from(n) * ONE_UNIT_MB;
                let written = written.with_reference("that many units of table 1", most);
                sink.push(written.at_least(0.9 * most).at_most(2.2 * most))?;
                sink.push(read.at_most(2.0 * p90(&alone)))?;
            }
        }
        sink.push(row("read_latency_mean", r.lat.mean() / 1e3, "us"))?;
        sink.push(row("read_latency_p99", r.lat.percentile(99.0).as_micros_f64(), "us"))?;
    }
    Ok(())
}
