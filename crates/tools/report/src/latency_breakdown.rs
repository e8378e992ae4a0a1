//! The report's chapter on latency breakdowns: bars of waits, by percentile and for the slowest
//! requests.

use std::fmt::Write as _;

use scenario::format::{count, duration};

use super::Report;
use super::html::escape;

/// Latency breakdowns of one drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyBreakdown {
    /// Name of the drive; empty if the variant has only one.
    pub drive: String,
    /// Jobs by operation, each with a bar of mean times per band of percentiles.
    pub jobs: Vec<(String, Vec<BreakdownBar>)>,
    /// The slowest requests, each with its waits in order.
    pub slowest: Vec<BreakdownBar>,
}

/// A latency divided into waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreakdownBar {
    /// Label of the band or of the request.
    pub label: String,
    /// Latency in nanoseconds.
    pub total_ns: u64,
    /// The waits; except for rounding, their times add up to the latency.
    pub waits: Vec<BreakdownWait>,
}

/// One wait of a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakdownWait {
    /// Text of the reason.
    pub text: String,
    /// Color group of the reason.
    pub group: BreakdownGroup,
    /// Length in nanoseconds.
    pub ns: u64,
}

/// Reasons that share a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakdownGroup {
    /// Array operation and transfer of the request itself.
    Own,
    /// Array or channel busy with other host operations.
    Others,
    /// Garbage collection.
    Gc,
    /// Map pages, metadata, journal, scrub.
    Background,
    /// Write buffer, placement, durability.
    Buffer,
    /// Queues and stations of the controller.
    Controller,
    /// CPU and block layer of the host.
    Host,
    /// Unknown reason.
    Unexplained,
}

impl BreakdownGroup {
    /// All groups, in the order of the legend.
    pub const ALL: [BreakdownGroup; 8] = [
        BreakdownGroup::Own,
        BreakdownGroup::Others,
        BreakdownGroup::Gc,
        BreakdownGroup::Background,
        BreakdownGroup::Buffer,
        BreakdownGroup::Controller,
        BreakdownGroup::Host,
        BreakdownGroup::Unexplained,
    ];

    fn name(self) -> &'static str {
        match self {
            BreakdownGroup::Own => "the request's own array operation and transfer",
            BreakdownGroup::Others => "flash busy with other host operations",
            BreakdownGroup::Gc => "garbage collection",
            BreakdownGroup::Background => "map, metadata, journal, scrub",
            BreakdownGroup::Buffer => "write buffer, placement, durability",
            BreakdownGroup::Controller => "queues and stations of the controller",
            BreakdownGroup::Host => "host CPU and block layer",
            BreakdownGroup::Unexplained => "unexplained",
        }
    }
}

/// Writes the chapter; writes nothing without breakdowns.
pub(super) fn chapter(out: &mut String, report: &Report) {
    if report.variants.iter().all(|way| way.latency_breakdowns.is_empty()) {
        return;
    }
    out.push_str(
        "<section>\n<h2>Why requests took as long as they did</h2>\n<p class=\"how\">Each bar is a \
         latency, cut into what was waited for; point at a piece for its reason and time. By percentile \
         the pieces are means over the requests of the band, the largest first. The slowest requests have \
         theirs in order of time. Of several operations the one that ended last counts.</p>\n",
    );
    out.push_str("<ul class=\"legend why\">");
    let used = |group: &BreakdownGroup| {
        let bars = report
            .variants
            .iter()
            .flat_map(|way| &way.latency_breakdowns)
            .flat_map(|why| why.jobs.iter().flat_map(|(_, bars)| bars).chain(&why.slowest));
        bars.flat_map(|bar| &bar.waits).any(|wait| wait.group == *group)
    };
    for group in BreakdownGroup::ALL.into_iter().filter(used) {
        let _ = write!(out, "<li><i class=\"why{}\"></i>{}</li>", group as u8, group.name());
    }
    out.push_str("</ul>\n");
    for way in &report.variants {
        for why in &way.latency_breakdowns {
            let drive = if why.drive.is_empty() { "" } else { ", " };
            let _ = writeln!(out, "<h3>{}{drive}{}</h3>", escape(&way.name), escape(&why.drive));
            for (job, bars) in &why.jobs {
                let _ = writeln!(out, "<h4>{}, by percentile</h4>", escape(job));
                bars.iter().for_each(|band| bar(out, band, &duration));
            }
            if !why.slowest.is_empty() {
                out.push_str("<h4>The slowest requests</h4>\n");
                why.slowest
                    .iter()
                    .for_each(|request| bar(out, request, &|ns| format!("{} ns", count(ns))));
            }
        }
    }
    out.push_str("</section>\n");
}

fn bar(out: &mut String, bar: &BreakdownBar, show: &dyn Fn(u64) -> String) {
    let _ = write!(
        out,
        "<details class=\"why\"><summary><span>{}</span><b>{}</b><div class=\"bar\">",
        escape(&bar.label),
        duration(bar.total_ns)
    );
    for wait in &bar.waits {
        let _ = write!(
            out,
            "<i class=\"why{}\" style=\"flex-grow:{}\" title=\"{}: {}\"></i>",
            wait.group as u8,
            wait.ns,
            escape(&wait.text),
            show(wait.ns)
        );
    }
    out.push_str("</div></summary><ol>");
    for wait in &bar.waits {
        let _ = write!(out, "<li>{}: {}</li>", escape(&wait.text), show(wait.ns));
    }
    out.push_str("</ol></details>\n");
}
