//! [`to_fio_json`]: writes a [`RunResult`] in the JSON format of fio 3.33.
//!
//! Scripts that read fio's results read these unchanged. The keys are in fio's order, and equal
//! results give equal bytes.

use serde_json::{Map, Value, json};
use time::Nanos;

use crate::job::Direction;
use crate::results::result::{DirectionResult, JobResult, RunResult};
use crate::results::time_series::Interval;
use crate::ycsb::OperationKind;
use collections::Histogram;

/// Version of fio whose JSON format is written.
pub const FIO_VERSION: &str = "fio-3.33";

/// Length of a sample of fio's bandwidth and IOPS averages (`bwavgtime`, `iopsavgtime`).
const SAMPLE: Nanos = Nanos::from_millis(500);

/// Returns the result as fio prints it.
///
/// `timestamp_ms` is the time of the result in milliseconds since 1970. Pass 0 for runs that are
/// compared byte by byte.
pub fn to_fio_json(result: &RunResult, timestamp_ms: u64) -> Value {
    let jobs = result.reported_jobs();
    let globals = jobs.first().map_or(&[][..], |j| &j.spec.report.globals);
    let shared = jobs.iter().all(|j| j.spec.report.globals == globals);
    let mut out = Map::new();
    out.insert("fio version".into(), FIO_VERSION.into());
    out.insert("timestamp".into(), (timestamp_ms / 1000).into());
    out.insert("timestamp_ms".into(), timestamp_ms.into());
    out.insert("time".into(), calendar(timestamp_ms / 1000).into());
    if shared && !globals.is_empty() {
        out.insert("global options".into(), options(globals));
    }
    let elapsed = result.elapsed.0 / 1_000_000_000 + 1;
    let list = jobs.iter().map(|j| job(j, &jobs, shared, elapsed)).collect();
    out.insert("jobs".into(), Value::Array(list));
    out.insert("disk_util".into(), json!([]));
    Value::Object(out)
}

fn job(job: &JobResult, all: &[JobResult], shared_globals: bool, elapsed: u64) -> Value {
    let spec = &job.spec;
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        out.insert(key.to_owned(), value);
    };
    put("jobname", spec.name.as_str().into());
    put("groupid", job.group.into());
    put("error", if job.aborted { job.errno() } else { 0 }.into());
    put("eta", 0.into());
    put("elapsed", elapsed.into());
    let mut own = if shared_globals { Vec::new() } else { spec.report.globals.clone() };
    own.extend_from_slice(&spec.report.options);
    put("job options", options(&own));
    for d in Direction::ALL {
        let group = all.iter().filter(|j| j.group == job.group);
        let group_bandwidth = group.map(|j| j.direction(d).bandwidth()).sum();
        put(d.name(), direction(job, d, group_bandwidth));
    }
    let mut sync = latency(&job.sync);
    percentiles(&mut sync, &job.sync, &spec.report.percentiles);
    put("sync", json!({ "total_ios": job.sync.count(), "lat_ns": sync }));
    let ran = job.ended.since(job.started);
    put("job_runtime", millis(ran).into());
    let available = ran.0 as f64 * f64::from(job.members);
    put("usr_cpu", float(share(job.cpu_busy.0 as f64, available)));
    put("sys_cpu", float(0.0));
    for counter in ["ctx", "majf", "minf"] {
        put(counter, 0.into());
    }
    let issued: u64 = job.depth_levels.iter().sum();
    let levels = job.depth_levels.map(|n| share(n as f64, issued as f64));
    put("iodepth_level", keyed(&["1", "2", "4", "8", "16", "32", ">=64"], &levels));
    let one_by_one = if issued == 0 { 0.0 } else { 100.0 };
    let batches = [0.0, one_by_one, 0.0, 0.0, 0.0, 0.0, 0.0];
    let batch_keys = ["0", "4", "8", "16", "32", "64", ">=64"];
    put("iodepth_submit", keyed(&batch_keys, &batches));
    put("iodepth_complete", keyed(&batch_keys, &batches));
    let spread = LatencyBins::from_job(job);
    put("latency_ns", keyed(&LATENCY_KEYS[..10], &spread.ns));
    put("latency_us", keyed(&LATENCY_KEYS[..10], &spread.us));
    put("latency_ms", keyed(&LATENCY_KEYS, &spread.ms));
    if spec.integrity.continue_on_error != crate::job::ContinueOnError::default() {
        put("total_err", job.errors().into());
        put("first_error", job.errno().into());
    }
    // As in fio, the target is in nanoseconds and the window in microseconds.
    let search = spec.latency_target.as_ref();
    put("latency_depth", job.depth_search.map_or(spec.depth(), |found| found.depth).into());
    put("latency_target", search.map_or(0, |s| s.target.0).into());
    put("latency_percentile", float(search.map_or(100.0, |s| s.percentile)));
    put("latency_window", search.map_or(0, |s| s.window.0 / 1000).into());
    if let Some(description) = &spec.description {
        put("desc", description.as_str().into());
    }
    if spec.keys.is_some_and(|keys| keys.ycsb.is_some()) {
        let counts = OperationKind::ALL.iter().zip(job.requests.operations);
        let counts = counts.map(|(kind, count)| (kind.name().to_owned(), count.into()));
        put("ycsb", Value::Object(counts.collect()));
    }
    Value::Object(out)
}

fn direction(job: &JobResult, d: Direction, group_bandwidth: f64) -> Value {
    let result: &DirectionResult = job.direction(d);
    let bandwidth = result.bandwidth();
    let (bw, iops) = samples(job, d);
    let mut clat = latency(&result.clat);
    percentiles(&mut clat, &result.clat, &job.spec.report.percentiles);
    json!({
        "io_bytes": result.bytes,
        "io_kbytes": result.bytes / 1024,
        "bw_bytes": bandwidth as u64,
        "bw": (bandwidth / 1024.0) as u64,
        "iops": float(result.iops()),
        "runtime": millis(result.runtime),
        "total_ios": result.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latency(&result.slat),
        "clat_ns": clat,
        "lat_ns": latency(&result.lat),
        "bw_min": bw.min as u64,
        "bw_max": bw.max as u64,
        "bw_agg": float(share(bw.mean * 1024.0, group_bandwidth).min(100.0)),
        "bw_mean": float(bw.mean),
        "bw_dev": float(bw.deviation),
        "bw_samples": bw.count,
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": float(iops.mean),
        "iops_stddev": float(iops.deviation),
        "iops_samples": iops.count,
    })
}

fn latency(h: &Histogram) -> Value {
    json!({
        "min": h.min().0,
        "max": h.max().0,
        "mean": float(h.mean()),
        "stddev": float(h.stddev()),
        "N": h.count(),
    })
}

/// Sets the percentiles of a histogram. As in fio, an empty histogram has none.
fn percentiles(of: &mut Value, h: &Histogram, list: &[f64]) {
    if h.count() > 0 {
        let values = list.iter().map(|p| (format!("{p:.6}"), h.percentile(*p).0.into()));
        of["percentile"] = Value::Object(values.collect());
    }
}

/// Returns the number with six decimals, as fio prints it; a value that is not finite becomes zero.
fn float(value: f64) -> Value {
    let rounded = (value * 1e6).round() / 1e6;
    json!(if rounded.is_finite() { rounded } else { 0.0 })
}

/// Returns `part` of `whole` in percent, or zero if `whole` is zero.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part * 100.0 / whole } else { 0.0 }
}

fn millis(time: Nanos) -> u64 {
    time.0.div_ceil(1_000_000)
}

fn keyed(keys: &[&str], values: &[f64]) -> Value {
    Value::Object(keys.iter().zip(values).map(|(k, v)| ((*k).to_owned(), float(*v))).collect())
}

fn options(list: &[(String, String)]) -> Value {
    let value = |v: &String| Value::from(if v.is_empty() { "1" } else { v });
    Value::Object(list.iter().map(|(k, v)| (k.clone(), value(v))).collect())
}

/// Statistics over fio's half-second samples.
#[derive(Default)]
struct Samples {
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
    count: u64,
}

impl Samples {
    fn from_values(values: &[f64]) -> Samples {
        let n = values.len() as f64;
        if values.is_empty() {
            return Samples::default();
        }
        let mean = values.iter().sum::<f64>() / n;
        let spread: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Samples {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: if n < 2.0 { 0.0 } else { (spread / (n - 1.0)).sqrt() },
            count: values.len() as u64,
        }
    }
}

/// Returns KiB per second and requests per second for every complete sample of the measured time.
fn samples(job: &JobResult, d: Direction) -> (Samples, Samples) {
    let width = job.series.width();
    let per_sample = SAMPLE.0.div_ceil(width.0).max(1);
    let from = (job.started + job.spec.schedule.ramp_time).0.div_ceil(width.0);
    let to = job.ended.0 / width.0;
    let intervals: Vec<Interval> =
        job.series.intervals().take(to as usize).skip(from as usize).collect();
    if job.direction(d).ios == 0 {
        return (Samples::default(), Samples::default());
    }
    let seconds = (width * per_sample).as_secs_f64();
    let (mut bw, mut iops) = (Vec::new(), Vec::new());
    for sample in intervals.chunks_exact(per_sample as usize) {
        let bytes: u64 = sample.iter().map(|i| i.bytes[d as usize]).sum();
        let ios: u64 = sample.iter().map(|i| i.ios[d as usize]).sum();
        bw.push(bytes as f64 / 1024.0 / seconds);
        iops.push(ios as f64 / seconds);
    }
    (Samples::from_values(&bw), Samples::from_values(&iops))
}

const LATENCY_KEYS: [&str; 12] =
    ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"];
const LATENCY_BELOW: [u64; 11] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000];

/// Shares of requests by completion latency, in fio's three tables.
#[derive(Default)]
struct LatencyBins {
    ns: [f64; 10],
    us: [f64; 10],
    ms: [f64; 12],
}

impl LatencyBins {
    fn from_job(job: &JobResult) -> LatencyBins {
        let mut spread = LatencyBins::default();
        let total: u64 = job.directions.iter().map(|d| d.clat.count()).sum();
        for bucket in job.directions.iter().flat_map(|d| d.clat.buckets()) {
            let level = |value: u64| LATENCY_BELOW.iter().position(|b| value < *b).unwrap_or(11);
            let cell = match bucket.from.0 {
                ns @ 0..1_000 => &mut spread.ns[level(ns)],
                ns @ 1_000..1_000_000 => &mut spread.us[level(ns / 1_000)],
                ns => &mut spread.ms[level(ns / 1_000_000)],
            };
            *cell += bucket.count as f64;
        }
        // As in fio, a share that is not zero is at least 0.01 %.
        let percent = |n: &mut f64| {
            if *n > 0.0 {
                *n = share(*n, total as f64).max(0.01);
            }
        };
        spread.ns.iter_mut().chain(&mut spread.us).chain(&mut spread.ms).for_each(percent);
        spread
    }
}

/// Formats a time in UTC as `Thu Jan 1 00:00:00 1970`.
fn calendar(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years start in March of year 0, in eras of 400 years, so the leap day is the last day of a
    // year.
    let from_era = days + 719_468;
    let (era, day) = (from_era / 146_097, from_era % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday} {month} {day_of_month:>2} {hour:02}:{minute:02}:{second:02} {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_gregorian() {
        assert_eq!(calendar(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(calendar(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(calendar(1_795_296_522), "Sat Nov 21 21:28:42 2026");
    }

    #[test]
    fn samples_of_nothing_are_zeros() {
        let none = Samples::from_values(&[]);
        assert_eq!(
            (none.min, none.max, none.mean, none.deviation, none.count),
            (0., 0., 0., 0., 0)
        );
        assert_eq!(float(f64::NAN), json!(0.0));
        assert_eq!(share(1.0, 0.0), 0.0);
    }
}
