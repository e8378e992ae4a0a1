//! Stories as text for a terminal.

use clock::Nanos;
use tracepoint::RequestOp;

use super::{Breakdown, Explained, Wait, WaitKind};
use crate::format::{bytes_binary, count, duration};

/// Waits of a request that are listed one by one; a request with more has them grouped by reason.
const WAITS_LISTED_MAX: usize = 14;

/// Characters of a bar for the whole latency.
const BAR: usize = 24;

/// Reasons with a smaller share than this in every band are left out of the table of bands.
const SHARE_MIN: f64 = 0.005;

/// Names for what a story refers to by number.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Of the jobs, clones counted one by one.
    pub jobs: &'a [String],
    /// Parallel units of a channel; 0 where there are none.
    pub pus_per_channel: u32,
    /// Bytes of a sector.
    pub sector_bytes: u32,
}

impl Names<'_> {
    /// The name of a job.
    pub fn job(&self, job: u32) -> &str {
        self.jobs.get(job as usize).map_or("?", String::as_str)
    }

    /// A parallel unit as `channel/unit`.
    pub fn pu(&self, pu: u32) -> String {
        match self.pus_per_channel {
            0 => pu.to_string(),
            n => format!("{}/{}", pu / n, pu % n),
        }
    }

    /// The reason of a wait, with the parallel unit and the job that had it.
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

/// The name of an operation.
pub fn op_name(op: RequestOp) -> &'static str {
    match op {
        RequestOp::Read => "read",
        RequestOp::Write => "write",
        RequestOp::Trim => "trim",
        RequestOp::Flush => "flush",
    }
}

/// Waits of one reason on one parallel unit, in the order in which the reasons first occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitGroup {
    /// The reason.
    pub kind: WaitKind,
    /// The parallel unit.
    pub pu: Option<u32>,
    /// The sum.
    pub time: Nanos,
    /// Waits.
    pub count: u32,
}

/// A request's waits to be shown: one by one, or grouped by reason if there are many.
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

/// The slowest requests, with the waits of each in order.
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

/// Where the time of each job's requests went, by percentile of their latency.
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
