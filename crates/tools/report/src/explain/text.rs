//! Rendering of explanations as text for a terminal.

use scenario::format::{bytes_binary, count, duration};
use time::Nanos;
use tracepoint::RequestOp;

use super::{Breakdown, Explained, Wait, WaitKind};

/// Maximum number of waits of a request that are listed individually; more are grouped by reason.
const WAITS_LISTED_MAX: usize = 14;

/// Width in characters of a bar for the total latency.
const BAR: usize = 24;

/// Minimum share of a reason in any band for the table of bands to list it.
const SHARE_MIN: f64 = 0.005;

/// Names for the indices in an explanation.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Names of the jobs, with clones counted one by one.
    pub jobs: &'a [String],
    /// Number of parallel units per channel; 0 if there are none.
    pub pus_per_channel: u32,
    /// Sector size in bytes.
    pub sector_bytes: u32,
}

impl Names<'_> {
    /// Returns the name of a job.
    pub fn job(&self, job: u32) -> &str {
        self.jobs.get(job as usize).map_or("?", String::as_str)
    }

    /// Returns a parallel unit as `channel/unit`.
    pub fn pu(&self, pu: u32) -> String {
        match self.pus_per_channel {
            0 => pu.to_string(),
            n => format!("{}/{}", pu / n, pu % n),
        }
    }

    /// Returns the reason of a wait, with the parallel unit and the job that used it.
    pub fn reason(&self, kind: WaitKind, pu: Option<u32>) -> String {
        let mut text = kind.to_string();
        if let Some(job) = kind.job() {
            text += &format!(" of job {}", self.job(job));
        }
        if let Some(pu) = pu {
            text += &format!(", PU {}", self.pu(pu));
        }
        text
    }
}

/// Returns the name of an operation.
pub fn op_name(op: RequestOp) -> &'static str {
    match op {
        RequestOp::Read => "read",
        RequestOp::Write => "write",
        RequestOp::Trim => "trim",
        RequestOp::Flush => "flush",
    }
}

/// Waits for one reason on one parallel unit, in the order in which the reasons first occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitGroup {
    /// The reason.
    pub kind: WaitKind,
    /// The parallel unit.
    pub pu: Option<u32>,
    /// Sum of the waits.
    pub time: Nanos,
    /// Number of waits.
    pub count: u32,
}

/// Returns the waits of a request for display: individually, or grouped by reason if there are
/// many.
pub fn group_waits(waits: &[Wait]) -> Vec<WaitGroup> {
    let one = |w: &Wait| WaitGroup { kind: w.kind, pu: w.pu, time: w.time, count: 1 };
    if waits.len() <= WAITS_LISTED_MAX {
        return waits.iter().map(one).collect();
    }
    let mut groups: Vec<WaitGroup> = Vec::new();
    for wait in waits {
        match groups.iter_mut().find(|g| g.kind == wait.kind && g.pu == wait.pu) {
            Some(group) => {
                group.time += wait.time;
                group.count += 1;
            }
            None => groups.push(one(wait)),
        }
    }
    groups
}

fn percent(part: Nanos, all: Nanos) -> f64 {
    part.0 as f64 * 100.0 / all.0.max(1) as f64
}

/// Renders the slowest requests, each with its waits in order.
pub fn render_slowest(requests: &[Explained], names: Names<'_>) -> String {
    let mut out = String::new();
    for (i, r) in requests.iter().enumerate() {
        let place = match r.op {
            RequestOp::Flush => String::new(),
            _ => {
                let bytes = u64::from(r.sectors) * u64::from(names.sector_bytes);
                format!(" of {} at LBA {}", bytes_binary(bytes), r.lba)
            }
        };
        out += &format!(
            "{:>3}. {}{place}, job {}, at {}: {} ns\n",
            i + 1,
            op_name(r.op),
            names.job(r.job),
            duration(r.start.0),
            count(r.latency.0),
        );
        for group in group_waits(&r.waits) {
            let share = percent(group.time, r.latency);
            let bar = "#".repeat(((share / 100.0 * BAR as f64).round() as usize).clamp(1, BAR));
            let times = match group.count {
                1 => String::new(),
                n => format!(" ({n} times)"),
            };
            out += &format!(
                "{:>18} ns {share:>5.1} %  {bar:<BAR$}  {}{times}\n",
                count(group.time.0),
                names.reason(group.kind, group.pu),
            );
        }
    }
    out
}

/// Renders the latency breakdown of each job's requests, by percentile.
pub fn render_bands(breakdowns: &[Breakdown], names: Names<'_>) -> String {
    let mut out = String::new();
    for breakdown in breakdowns {
        let bands = &breakdown.bands;
        let title = super::breakdown_title(breakdown, names);
        out += &format!("{title}: mean time by percentile of the latency\n");
        let row = |name: &str, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| format!("{cell:>18}")).collect();
            format!("  {name:<34}{cells}\n")
        };
        let all = |f: &dyn Fn(&super::Band) -> String| bands.iter().map(f).collect();
        out += &row("", all(&|b| b.label()));
        out += &row("requests", all(&|b| count(b.requests)));
        out += &row("mean latency", all(&|b| duration(b.total.0 / b.requests.max(1))));
        for kind in breakdown.kinds(SHARE_MIN) {
            let cell = |b: &super::Band| {
                let time = b.time_of(kind);
                let share = percent(time, b.total);
                match time {
                    Nanos::ZERO => "-".to_owned(),
                    _ => format!("{share:.0} % {:>8}", duration(time.0 / b.requests.max(1))),
                }
            };
            out += &row(&kind.to_string(), all(&cell));
        }
    }
    out
}
