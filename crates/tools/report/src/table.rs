//! [`render`]: one aligned table of all variants, for a terminal or a pipe.

use std::fmt::Write as _;

use scenario::format::{count, duration, printable, rate};

use super::{GcSummary, JobRow, Report, Variant};

/// Column headings; the first three columns are text, the others numbers.
pub(super) const HEADINGS: [&str; 12] =
    ["way", "job", "dir", "IOPS", "throughput", "mean", "p50", "p95", "p99", "p99.9", "max", "WA"];
pub(super) const WORDS: usize = 3;

/// Returns the cells of one row. Only the first row of a variant has its name and its write
/// amplification.
pub(super) fn cells(way: &Variant, row: &JobRow, first: bool) -> [String; 12] {
    let l = &row.latency;
    let once = |text: String| if first { text } else { String::new() };
    // Completed requests without a rate took no time.
    let instant = row.iops == 0.0 && !row.cdf.is_empty();
    let of_time = |text: String| if instant { "-".to_owned() } else { text };
    [
        once(printable(&way.name).into_owned()),
        printable(&row.name).into_owned(),
        row.direction.as_str().to_owned(),
        of_time(count(row.iops.round() as u64)),
        of_time(rate(row.bytes_per_sec)),
        duration(l.mean.round() as u64),
        duration(l.p50),
        duration(l.p95),
        duration(l.p99),
        duration(l.p999),
        duration(l.max),
        once(way.write_amplification.map_or("-".into(), |wa| format!("{wa:.2}"))),
    ]
}

/// Renders the table, with a line for each further remark on a variant.
pub fn render(report: &Report) -> String {
    let report = report.clone().sanitize();
    let mut rows: Vec<Option<[String; 12]>> = vec![Some(HEADINGS.map(str::to_owned)), None];
    for way in &report.variants {
        for (i, row) in way.jobs.iter().enumerate() {
            rows.push(Some(cells(way, row, i == 0)));
        }
    }
    let mut widths = [0; 12];
    for row in rows.iter().flatten() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (i, width) in widths.iter().enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _ = match row {
                None => write!(line, "{gap}{}", "─".repeat(*width)),
                Some(cells) if i < WORDS => write!(line, "{gap}{:<width$}", cells[i]),
                Some(cells) => write!(line, "{gap}{:>width$}", cells[i]),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for way in &report.variants {
        let name = printable(&way.name);
        for remark in remarks(way) {
            let _ = writeln!(out, "{name}: {}", printable(&remark));
        }
        for note in &way.notes {
            let _ = writeln!(out, "note: {name}: {} [{}]", printable(&note.text), note.code);
        }
    }
    out
}

/// Returns the remarks on a variant in addition to its rows.
pub(super) fn remarks(way: &Variant) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(op) = way.over_provisioning {
        remarks.push(format!("over-provisioning {:.1} % (physical/logical − 1)", op * 100.0));
    }
    // A read-only run has no remark on GC.
    if let Some(gc) = way.gc.filter(GcSummary::is_active) {
        remarks.push(format!(
            "{} sectors written, {} moved by garbage collection, {} of padding; {} lines \
             reclaimed, {} chunks erased, {} lines free at the end",
            count(gc.host_sectors),
            count(gc.relocated_sectors),
            count(gc.padded_sectors),
            count(gc.lines_reclaimed),
            count(gc.erases),
            count(gc.free_lines)
        ));
    }
    remarks.extend(way.remarks.iter().cloned());
    remarks
}
