//! Step response of both kinds of rate limiter ([LightNVM17 §4.2.4]: "the feedback loop ensures
//! that incoming I/Os and GC I/Os move towards a steady state").
//!
//! An empty device is filled to 95 % and then overwritten by 4 KB random writes with 64
//! outstanding. It passes from unlimited host writes to a steady state. The limiter's history
//! starts when the device is full. It is printed at tenths of the written data, and gives these
//! results:
//!
//! * **Final value**: the mean free space of its second half, between the low watermark (0) and the
//!   high watermark (1). The host's share there is compared with one over the write amplification
//!   of that half. Bound: within a tenth.
//! * **Settling time**: the time until the free space stays within a line of the final value; a
//!   reclaimed line returns its space at once.
//! * **Overshoot**: the distance below the final value to which the free space falls, in lines.
//!   Bound: the reserve is not used by more than the line that is being relocated.
//! * **The longest stall**: the longest time without any completion. Bound:
//!   [`LatencyChain::total`], as in [`steady_state`](super::steady_state).

use ftl::{FtlStats, LimiterSample};
use media::MediaConfig;
use pblk::Pblk;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::harness::{BenchJob, LightnvmHarness};
use super::steady_state::{FULL, LatencyChain, MonitoredDevice, StallMonitor};
use super::{BENCH, setup};

/// The kinds, with their values in the scenario.
const KINDS: [(&str, &str); 2] = [("share", "\"share\""), ("PID", "\"pid\"")];

/// Number of points of the history that are printed.
const POINTS: usize = 10;

/// Measures both kinds.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (name, words) in KINDS {
        let chunks = effort.choose(128, 24);
        let mut harness = LightnvmHarness::new(&super::drive::pblk(
            &format!("geometry = {{ channels = 4, pus = 4, pages = 32, chunks = {chunks} }}"),
            &format!("over_provisioning = 0.2\ngc_start_lines = 4\nrate_limiter = {words}\n"),
        ))?;
        let response = measure(&mut harness, effort.choose(8, 2))?;
        rows(name, &harness, &response, sink)?;
    }
    Ok(())
}

/// Result of a step.
struct Response {
    history: Vec<LimiterSample>,
    /// Low and high watermark.
    watermarks: (u64, u64),
    /// Counters of the second half.
    stats: FtlStats,
    monitor: StallMonitor,
    iops: f64,
    used: u64,
}

fn measure(harness: &mut LightnvmHarness, times: u64) -> Result<Response, BenchError> {
    let capacity = harness.spec.capacity.ok_or_else(|| setup("the drive has no flash"))?;
    let used = (capacity.logical_sectors as f64 * FULL) as u64;
    let bytes = used * 4096;
    let fill = format!("rw=write bs=256k iodepth=8 size={}", bytes & !0x3ffff);
    harness.run_in_zero_time(&[BenchJob("fill", &fill)])?;
    let pblk = harness.stack.device.only_mut::<Pblk>();
    let pblk = pblk.ok_or_else(|| setup("the device is not pblk"))?;
    pblk.restart_limiter_curve();
    let half = format!(
        "rw=randwrite bs=4k iodepth=64 norandommap=1 size={bytes} io_size={}",
        times * bytes / 2
    );
    let mut watch = StallMonitor::new();
    harness.run_wrapped(&[BenchJob("first", &half)], |device| {
        MonitoredDevice::new(device, &mut watch)
    })?;
    let (before, begin) = (harness.stack.ftl_stats(), harness.now());
    harness.run_wrapped(&[BenchJob("second", &half)], |device| {
        MonitoredDevice::new(device, &mut watch)
    })?;
    let seconds = harness.now().since(begin).as_secs_f64();
    let layer = harness.stack.ftl().ok_or_else(|| setup("the device has no translation layer"))?;
    let stats = layer.stats().since(&before.unwrap_or_default());
    Ok(Response {
        history: layer.limiter_history().to_vec(),
        watermarks: layer.limiter().watermarks(),
        stats,
        monitor: watch,
        iops: (times * used / 2) as f64 / seconds,
        used,
    })
}

/// Final value of the free space and the approach to it, in sectors and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SettlingResponse {
    free: f64,
    share: f64,
    /// Time from the first sample to the last one that is more than a line away.
    after_ns: u64,
    /// Distance below the final value to which the free space fell.
    overshoot: f64,
}

impl SettlingResponse {
    /// Returns `None` for a history without a second half.
    fn from_history(curve: &[LimiterSample], line: f64) -> Option<SettlingResponse> {
        let end = &curve[curve.len() / 2..];
        let mean =
            |of: &dyn Fn(&LimiterSample) -> f64| end.iter().map(of).sum::<f64>() / end.len() as f64;
        let (first, _) = (curve.first()?, end.first()?);
        let free = mean(&|s| s.free as f64);
        let away = |s: &&LimiterSample| (s.free as f64 - free).abs() > line;
        let last_away = curve.iter().rev().find(away);
        let least = curve.iter().map(|s| s.free_min).min()? as f64;
        Some(SettlingResponse {
            free,
            share: mean(&|s| s.host_share),
            after_ns: last_away.map_or(0, |s| s.at.since(first.at).0),
            overshoot: (free - least).max(0.0),
        })
    }
}

fn rows(
    name: &str,
    harness: &LightnvmHarness,
    response: &Response,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let (MediaConfig::Nand(nand), Some(capacity)) =
        (&harness.spec.config.media, harness.spec.capacity)
    else {
        return Err(setup("the drive has no flash"));
    };
    let line = capacity.line_sectors as f64;
    let (low, high) = response.watermarks;
    let level = |free: f64| (free - low as f64) / (high - low) as f64;
    let case = format!("pblk, rate limiter {name}, step to 95 % full random overwrites");
    let row = |metric, value, unit| Measurement::new(BENCH, &case, metric, value, unit);
    for i in 1..=POINTS {
        let Some(at) = (response.history.len() * i / POINTS).checked_sub(1) else { break };
        let s = &response.history[at];
        let case = format!("{case}, curve at {} % of what is written", 100 * i / POINTS);
        let point = |metric, value, unit| Measurement::new(BENCH, &case, metric, value, unit);
        sink.push(point("time", s.at.since(response.history[0].at).as_secs_f64(), "s"))?;
        let free = point("free_lines", s.free as f64 / line, "");
        sink.push(free.with_reference("set point", s.set_point as f64 / line))?;
        sink.push(point("users_share", s.host_share, ""))?;
    }
    let settled = SettlingResponse::from_history(&response.history, line)
        .ok_or_else(|| setup("the limiter has no curve"))?;
    let amplification = response.stats.write_amplification().unwrap_or(f64::INFINITY);
    sink.push(row("settled_level", level(settled.free), ""))?;
    let even = 1.0 / amplification;
    let share = row("settled_share", settled.share, "").with_reference("1 / amplification", even);
    sink.push(share.within(0.1, even))?;
    sink.push(row("settling_time", settled.after_ns as f64 / 1e6, "ms"))?;
    let reserve = (settled.free - low as f64) / line + 1.0;
    let overshoot = row("overshoot", settled.overshoot / line, "lines");
    sink.push(overshoot.at_most(reserve))?;
    sink.push(row("write_amplification", amplification, ""))?;
    let spare = capacity.physical_sectors() as f64 / response.used as f64 - 1.0;
    let chain = LatencyChain::from_nand(nand, 1.0 / (1.0 + spare)).total().0 as f64 / 1e6;
    let stall = row("longest_stall", response.monitor.longest_gap().0 as f64 / 1e6, "ms");
    sink.push(stall.with_reference("longest chain", chain).at_most(chain))?;
    sink.push(row("iops", response.iops, "1/s"))
}

#[cfg(test)]
mod tests {
    use time::Nanos;

    use super::*;

    #[test]
    fn a_curve_that_dips_and_settles_is_read_as_such() {
        let sample = |at: u64, free: u64| LimiterSample {
            at: Nanos(at),
            written: at,
            free,
            free_min: free - 5,
            free_max: free,
            set_point: 500,
            proportional: 0.0,
            integral: 0.0,
            derivative: 0.0,
            host_share: 0.25,
            credits: 0.0,
        };
        let mut curve: Vec<_> = (0..10).map(|i| sample(100 + i, 1_000 - 80 * i)).collect();
        curve.extend((10..40).map(|i| sample(100 + i, 500 + 10 * (i % 2))));
        let settled = SettlingResponse::from_history(&curve, 100.0).unwrap();
        assert_eq!((settled.free, settled.share), (505.0, 0.25));
        // The last sample of the ramp, at 280, is more than 100 away; it fell to 275.
        assert_eq!((settled.after_ns, settled.overshoot), (9, 230.0));
        assert_eq!(SettlingResponse::from_history(&[], 100.0), None);
    }
}
