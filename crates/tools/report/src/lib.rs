//! [`Report`]: the results of a run as plain data, rendered as a table ([`table`]) or as a page
//! ([`html`]).
//!
//! A *variant* is one scenario: the jobs on one configuration of the drive.
//!
//! Equal reports render to equal bytes (ARCHITECTURE.md, R3). No number in a report is infinite or
//! NaN; [`Report::sanitize`] ensures this.

#![forbid(unsafe_code)]

mod chart;
pub mod explain;
mod heatmap;
mod host_times;
pub mod html;
mod latency_breakdown;
mod plot;
mod style;
pub mod sweep;
pub mod table;
mod terms;
#[cfg(test)]
mod tests;
mod time_series;
pub mod trace_file;

pub use host_times::{HostTimeState, HostTimes};
pub use latency_breakdown::{BreakdownBar, BreakdownGroup, BreakdownWait, LatencyBreakdown};

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Title of the report.
    pub title: String,
    /// The question that the report answers, or a sentence under the title; may be empty.
    pub subtitle: String,
    /// The variants, in display order.
    pub variants: Vec<Variant>,
}

/// Results of one scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// Short name of the variant.
    pub name: String,
    /// Text of the scenario.
    pub scenario: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Time that the run covers, in nanoseconds of its clock.
    pub elapsed_ns: u64,
    /// Measurements of each job, one row per direction.
    pub jobs: Vec<JobRow>,
    /// Sectors programmed per host sector written; `None` if nothing was written.
    pub write_amplification: Option<f64>,
    /// Over-provisioning, physical/logical − 1; `None` without an FTL.
    pub over_provisioning: Option<f64>,
    /// Activity of garbage collection; `None` without an FTL.
    pub gc: Option<GcSummary>,
    /// Utilization of the parallel units, one map per drive.
    pub utilization: Vec<UtilizationMap>,
    /// Times of the host's processors; `None` unless they are modeled.
    pub host: Option<HostTimes>,
    /// Latency breakdowns, one entry per drive; empty if not requested.
    pub latency_breakdowns: Vec<LatencyBreakdown>,
    /// FTL state over time, one entry per drive with an FTL.
    pub ftl_series: Vec<FtlSeries>,
    /// Intervals of all time series.
    pub intervals: Intervals,
    /// Caveats on these results.
    pub notes: Vec<NoteRow>,
    /// Further remarks on this variant, for example that the emulator could not keep up.
    pub remarks: Vec<String>,
}

/// A caveat on a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoteRow {
    /// Code of the note, as listed in `docs/report.md`.
    pub code: String,
    /// Text of the note, on one line.
    pub text: String,
}

/// Intervals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Length of each interval except the last, in nanoseconds.
    pub width_ns: u64,
    /// Length of the last interval, in nanoseconds.
    pub last_ns: u64,
}

impl Intervals {
    /// Returns whether the run ended within the last interval.
    pub fn is_last_partial(&self) -> bool {
        self.last_ns < self.width_ns
    }
}

/// State of an FTL over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FtlSeries {
    /// Name of the drive; empty if there is only one.
    pub drive: String,
    /// One point per interval.
    pub points: Vec<FtlPoint>,
}

/// Activity of an FTL in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FtlPoint {
    /// Start of the interval, in nanoseconds.
    pub start_ns: u64,
    /// Number of free lines at the end of the interval.
    pub free_lines: f64,
    /// Sectors programmed per host sector written in the interval; `None` if nothing was written.
    pub write_amplification: Option<f64>,
    /// Share of the sectors written in the interval that GC relocated, from 0 to 1.
    pub gc_share: f64,
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferDirection {
    /// To the host.
    #[default]
    Read,
    /// To the drive.
    Write,
    /// Deallocation; no transfer.
    Trim,
}

impl TransferDirection {
    /// Returns fio's name: `read`, `write` or `trim`.
    pub fn as_str(self) -> &'static str {
        match self {
            TransferDirection::Read => "read",
            TransferDirection::Write => "write",
            TransferDirection::Trim => "trim",
        }
    }
}

/// Measurements of one job in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobRow {
    /// Name of the job.
    pub name: String,
    /// The direction.
    pub direction: TransferDirection,
    /// Requests completed per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_sec: f64,
    /// Latency of requests.
    pub latency: Latency,
    /// Distribution of latencies: nanoseconds, and the share of requests that took no longer. Both
    /// are ascending.
    pub cdf: Vec<(u64, f64)>,
    /// Throughput over time: the start of each interval in nanoseconds, and bytes per second in it.
    pub series: Vec<(u64, f64)>,
    /// Latencies over time.
    pub latencies: Vec<LatencyPoint>,
    /// Queue depth over time: the start of each interval in nanoseconds, and the mean number of
    /// outstanding requests of all directions of the job.
    pub depth: Vec<(u64, f64)>,
    /// Whether the job ended within its last interval, so that this interval is shorter than the
    /// others.
    pub is_last_partial: bool,
    /// Index of the drive in the variant's [`ftl_series`](Variant::ftl_series), if it has an FTL.
    pub ftl_index: Option<usize>,
}

/// Latencies of the requests that completed in one interval, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyPoint {
    /// Start of the interval.
    pub start_ns: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

/// Activity of garbage collection during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSummary {
    /// Sectors that the host wrote.
    pub host_sectors: u64,
    /// Sectors that GC relocated.
    pub relocated_sectors: u64,
    /// Sectors of padding.
    pub padded_sectors: u64,
    /// Number of lines reclaimed.
    pub lines_reclaimed: u64,
    /// Number of chunks erased.
    pub erases: u64,
    /// Number of free lines at the end.
    pub free_lines: u64,
}

impl GcSummary {
    /// Returns whether any sector was written or relocated, or any chunk erased.
    pub fn is_active(&self) -> bool {
        let GcSummary {
            host_sectors: user_sectors,
            relocated_sectors: moved_sectors,
            padded_sectors,
            lines_reclaimed,
            erases,
            ..
        } = *self;
        user_sectors + moved_sectors + padded_sectors + lines_reclaimed + erases > 0
    }
}

/// Utilization of each parallel unit of a drive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UtilizationMap {
    /// Name of the drive; empty if there is only one.
    pub drive: String,
    /// Number of channels.
    pub channels: u32,
    /// Number of parallel units per channel.
    pub pus: u32,
    /// One entry per parallel unit, `channels × pus` in total, channel by channel.
    pub units: Vec<Utilization>,
}

/// Utilization of a parallel unit by operation, as shares of the run's time from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilization {
    /// Share of reads.
    pub read: f64,
    /// Share of programs.
    pub program: f64,
    /// Share of erases.
    pub erase: f64,
}

impl Utilization {
    /// Returns the total utilization.
    pub fn total(&self) -> f64 {
        self.read + self.program + self.erase
    }
}

impl UtilizationMap {
    /// Returns the mean over all units.
    pub fn mean(&self) -> Utilization {
        let n = self.units.len().max(1) as f64;
        let mut sum = Utilization::default();
        for unit in &self.units {
            sum.read += unit.read;
            sum.program += unit.program;
            sum.erase += unit.erase;
        }
        Utilization { read: sum.read / n, program: sum.program / n, erase: sum.erase / n }
    }
}

/// Returns `value`, or zero if it is negative or not finite.
fn sanitized(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

impl Report {
    /// Makes every number finite and not negative, limits shares to 1, and makes distributions
    /// ascending. A run that is too short to divide by its time shows zeros, never `inf` or `NaN`.
    pub fn sanitize(mut self) -> Report {
        for way in &mut self.variants {
            way.write_amplification = way.write_amplification.filter(|wa| wa.is_finite());
            way.over_provisioning = way.over_provisioning.filter(|op| op.is_finite());
            way.host.iter_mut().for_each(HostTimes::sanitize);
            for row in &mut way.jobs {
                row.iops = sanitized(row.iops);
                row.bytes_per_sec = sanitized(row.bytes_per_sec);
                row.latency.mean = sanitized(row.latency.mean);
                row.series.iter_mut().for_each(|(_, v)| *v = sanitized(*v));
                row.series.sort_by_key(|(t, _)| *t);
                row.depth.iter_mut().for_each(|(_, v)| *v = sanitized(*v));
                row.cdf.iter_mut().for_each(|(_, share)| *share = sanitized(*share).min(1.0));
                row.cdf.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            }
            for point in way.ftl_series.iter_mut().flat_map(|layer| &mut layer.points) {
                point.free_lines = sanitized(point.free_lines);
                point.gc_share = sanitized(point.gc_share).min(1.0);
                point.write_amplification = point.write_amplification.filter(|wa| wa.is_finite());
            }
            for map in &mut way.utilization {
                let units = map.channels as usize * map.pus as usize;
                map.units.resize(units, Utilization::default());
                for unit in &mut map.units {
                    for share in [&mut unit.read, &mut unit.program, &mut unit.erase] {
                        *share = sanitized(*share).min(1.0);
                    }
                }
            }
        }
        self
    }
}
