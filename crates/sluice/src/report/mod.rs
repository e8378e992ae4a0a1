//! [`Report`]: what a run found, as plain data, and the two ways to show it.
//!
//! | file | noun |
//! |---|---|
//! | [`table`] | one aligned table of all ways, for a terminal |
//! | [`html`] | a page that needs nothing but itself |
//! | [`figures`] | the figures of the LightNVM paper's evaluation, from results of `sluice bench` |
//! | `picture` | a plot as an SVG file of its own: lines or bars, title, legend |
//! | `plot` | a line plot as SVG: latency CDFs, throughput over time |
//! | `over_time` | the chapter of what changed while the run went on |
//! | `terms` | what the words of a report mean |
//! | `style` | colours and dashes that tell ways apart |
//! | `heat` | a channels × PUs busy map as SVG |
//! | `why` | bars of what requests waited for |
//! | `page.css`, `page.js` | how the page looks, and what it shows under the pointer |
//!
//! A *way* is one scenario: the same jobs on a drive set up in one way. Equal reports render to equal
//! bytes (rule R3), and no number in them is ever infinite or not a number: [`Report::sanitize`] makes
//! sure of it.

mod chart;
pub mod figures;
mod heatmap;
pub mod html;
mod latency_breakdown;
mod plot;
mod style;
pub mod table;
mod terms;
#[cfg(test)]
mod tests;
mod time_series;

pub use latency_breakdown::{BreakdownBar, BreakdownGroup, BreakdownWait, LatencyBreakdown};

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What it is about.
    pub title: String,
    /// The question that it answers, or a sentence under the title; may be empty.
    pub subtitle: String,
    /// The ways, in the order they are shown.
    pub variants: Vec<Variant>,
}

/// One way of setting the drive up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// What it is called; short.
    pub name: String,
    /// The scenario's text.
    pub scenario: String,
    /// Where everything random came from.
    pub seed: u64,
    /// Time that the run covers, in nanoseconds of its clock.
    pub elapsed_ns: u64,
    /// What each job saw, one row per direction.
    pub jobs: Vec<JobRow>,
    /// Sectors programmed per sector written; `None` if nothing was written.
    pub write_amplification: Option<f64>,
    /// Spare space, physical/logical − 1; `None` without a translation layer.
    pub over_provisioning: Option<f64>,
    /// What garbage collection did; `None` without a translation layer.
    pub gc: Option<GcSummary>,
    /// How busy the parallel units were, one map per drive.
    pub utilization: Vec<UtilizationMap>,
    /// How late completions were; `None` in virtual time, where they never are.
    pub lateness: Option<Lateness>,
    /// Why requests took as long as they did, one entry per drive; none if that was not asked.
    pub latency_breakdowns: Vec<LatencyBreakdown>,
    /// Translation layers over time, one per drive that has one.
    pub ftl_series: Vec<FtlSeries>,
    /// The intervals of everything over time.
    pub intervals: Intervals,
    /// What must be known of these results before they are believed.
    pub notes: Vec<NoteRow>,
    /// What else must be said about this way, such as that the emulator could not keep up.
    pub remarks: Vec<String>,
}

/// What must be known of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoteRow {
    /// Its code, as `docs/report.md` lists it.
    pub code: String,
    /// On one line.
    pub text: String,
}

/// The intervals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Length of each but the last, in nanoseconds.
    pub width_ns: u64,
    /// Length of the last.
    pub last_ns: u64,
}

impl Intervals {
    /// Whether the run ended within the last interval.
    pub fn is_last_partial(&self) -> bool {
        self.last_ns < self.width_ns
    }
}

/// A translation layer over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FtlSeries {
    /// The drive; empty if there is only one.
    pub drive: String,
    /// Interval by interval.
    pub points: Vec<FtlPoint>,
}

/// What a translation layer did in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FtlPoint {
    /// Where the interval starts, in nanoseconds.
    pub start_ns: u64,
    /// Free lines at its end.
    pub free_lines: f64,
    /// Sectors programmed per sector written in it; `None` if nothing was written.
    pub write_amplification: Option<f64>,
    /// Share of the sectors written in it that garbage collection moved, from 0 to 1.
    pub gc_share: f64,
}

/// Which way data went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// To the host.
    #[default]
    Read,
    /// To the drive.
    Write,
    /// Neither: deallocated.
    Trim,
}

impl Direction {
    /// `read`, `write` or `trim`, as fio says.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
            Direction::Trim => "trim",
        }
    }
}

/// What one job saw in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobRow {
    /// Name of the job.
    pub name: String,
    /// The direction.
    pub direction: Direction,
    /// Requests completed per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_sec: f64,
    /// How long requests took.
    pub latency: Latency,
    /// The distribution of latencies: nanoseconds, and the share of requests that took no longer;
    /// both ascending.
    pub cdf: Vec<(u64, f64)>,
    /// Throughput over time: the start of each interval in nanoseconds, and bytes per second in it.
    pub series: Vec<(u64, f64)>,
    /// Latencies over time.
    pub latencies: Vec<LatencyPoint>,
    /// Mean number of outstanding requests over time, those of the job's other directions included: the
    /// start of each interval in nanoseconds, and the mean.
    pub depth: Vec<(u64, f64)>,
    /// Whether the job ended within its last interval, so that this one is shorter than the others.
    pub is_last_partial: bool,
    /// The drive's place among the [`layers`](Variant::ftl_series) of the way, if it has a translation layer.
    pub ftl_index: Option<usize>,
}

/// Latencies of the requests that completed in one interval, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyPoint {
    /// Where the interval starts.
    pub start_ns: u64,
    /// Half of the requests took no longer.
    pub p50: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Half of the requests took no longer.
    pub p50: u64,
    /// 95 % took no longer.
    pub p95: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// 99.9 % took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// What garbage collection did during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSummary {
    /// Sectors that the user wrote.
    pub host_sectors: u64,
    /// Sectors that garbage collection moved.
    pub relocated_sectors: u64,
    /// Sectors of padding.
    pub padded_sectors: u64,
    /// Lines reclaimed.
    pub lines_reclaimed: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Free lines at the end.
    pub free_lines: u64,
}

impl GcSummary {
    /// Whether anything was written, moved or erased.
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

/// How late completions were in real time, in nanoseconds (rule R6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Half were no later.
    pub p50: u64,
    /// 99 % were no later.
    pub p99: u64,
    /// The latest.
    pub max: u64,
}

/// How busy each parallel unit of a drive was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UtilizationMap {
    /// The drive; empty if there is only one.
    pub drive: String,
    /// Channels.
    pub channels: u32,
    /// Parallel units per channel.
    pub pus: u32,
    /// `channels × pus` units, channel by channel.
    pub units: Vec<Utilization>,
}

/// Shares of the run's time, from 0 to 1, that a parallel unit spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilization {
    /// Reading.
    pub read: f64,
    /// Programming.
    pub program: f64,
    /// Erasing.
    pub erase: f64,
}

impl Utilization {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.read + self.program + self.erase
    }
}

impl UtilizationMap {
    /// The mean over all units.
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

/// Zero for what is not a finite number, or negative.
fn sanitized(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

impl Report {
    /// The report with every number finite and not negative, shares at most 1, and distributions
    /// ascending: a run too short to divide by its time shows zeros, never `inf` or `NaN`.
    pub fn sanitize(mut self) -> Report {
        for way in &mut self.variants {
            way.write_amplification = way.write_amplification.filter(|wa| wa.is_finite());
            way.over_provisioning = way.over_provisioning.filter(|op| op.is_finite());
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
