//! [`chapter`]: the report's chapter on time series: throughput with GC behind it, latencies, queue
//! depth, free lines and write amplification.

use std::fmt::Write as _;

use super::html::{heading, legend, open, panels, rows, rows_of};
use super::plot::{Axis, Band, Plot, PlotLine};
use super::{FtlPoint, FtlSeries, JobRow, Report, Variant};

/// Maximum number of variants for which GC is drawn behind throughput, and maximum latencies beside
/// 99th percentiles. More would hide each other.
const DETAILED_VARIANTS: usize = 3;

/// Writes the chapter; writes nothing if no run is long enough for a time series.
pub(super) fn chapter(out: &mut String, report: &Report) {
    let parts = [
        (
            "Throughput",
            "Bytes per second. A level line is a steady state; a fall after a level stretch is the \
             moment when free space ran out and garbage collection began to share the flash with the \
             jobs. The shaded area behind is garbage collection: the share of all sectors written to \
             flash that it moved, from none at the bottom to all at the top.",
            throughput(report),
        ),
        (
            "Latency",
            "Of the requests that completed in an interval: with one way their median, 99th percentile \
             and longest; with several the 99th percentile, and of few ways the longest as a thin line.",
            latency(report),
        ),
        (
            "Queue depth",
            "Requests of a job that were at the device at the same time, in the mean over each interval.",
            depth(report),
        ),
        (
            "Free lines",
            "Erased lines that can be written, at the end of each interval. Garbage collection starts \
             when they become few, and holds them where the line becomes level.",
            ftl_plots(report, Axis::numbers("free lines", 1.0), "free lines", |p| {
                Some(p.free_lines)
            }),
        ),
        (
            "Write amplification",
            "Sectors programmed for each sector written, within each interval. Nothing is drawn where \
             nothing was written.",
            ftl_plots(
                report,
                Axis::numbers("write amplification", 1.0),
                "write amplification",
                |p| p.write_amplification,
            ),
        ),
    ];
    if parts.iter().all(|(_, _, plots)| plots.is_empty()) {
        return;
    }
    open(
        out,
        "Over time",
        &format!(
            "The run in intervals of equal length{}. A ring at the end of a line says that its job, or the \
             run, ended within the last interval, which is shorter.",
            widths(report)
        ),
    );
    legend(out, report);
    for (name, how, plots) in parts {
        if plots.is_empty() {
            continue;
        }
        let _ = write!(out, "<h3>{name}</h3>\n<p class=\"how\">{how}</p>\n");
        panels(out, &plots);
    }
    out.push_str("</section>\n");
}

/// Returns a description of the interval length, if it is equal for all variants.
fn widths(report: &Report) -> String {
    let mut widths = report.variants.iter().map(|way| way.intervals.width_ns);
    match widths.next() {
        Some(width) if width > 0 && widths.all(|w| w == width) => {
            format!(", {} each", scenario::format::duration(width))
        }
        _ => String::new(),
    }
}

/// Returns the end of the longest of some variants.
fn longest_end<'r>(ways: impl Iterator<Item = &'r Variant>) -> u64 {
    ways.map(|way| way.elapsed_ns).max().unwrap_or(0)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Writes one plot per job and direction for which `points` returns data.
fn per_row(
    report: &Report,
    has: impl Fn(&JobRow) -> bool,
    plot: impl Fn(&[(usize, &Variant, &JobRow)], Axis) -> (Axis, Vec<PlotLine>, Vec<Band>),
) -> Vec<Plot> {
    let of = |key| {
        let rows: Vec<_> = rows_of(report, key).filter(|(_, _, row)| has(row)).collect();
        if rows.is_empty() {
            return None;
        }
        let x = Axis::time(longest_end(rows.iter().map(|(_, way, _)| *way)));
        let (y, lines, bands) = plot(&rows, x.clone());
        Some(Plot { title: heading(key), x, y, lines, bands })
    };
    rows(report).into_iter().filter_map(of).collect()
}

fn throughput(report: &Report) -> Vec<Plot> {
    per_row(
        report,
        |row| row.series.len() > 1,
        |rows, _| {
            let most = rows.iter().flat_map(|(_, _, row)| row.series.iter().map(|p| p.1));
            let lines = rows.iter().map(|(i, way, row)| PlotLine {
                variant: *i,
                name: way.name.clone(),
                points: row.series.iter().map(|(t, v)| (seconds(*t), *v)).collect(),
                is_last_partial: row.is_last_partial,
                ..PlotLine::default()
            });
            let bands = rows.iter().filter(|_| report.variants.len() <= DETAILED_VARIANTS);
            let bands = bands.filter_map(|(i, way, row)| {
                let layer = way.ftl_series.get(row.ftl_index?)?;
                let share = |p: &FtlPoint| (seconds(p.start_ns), p.gc_share);
                let points = layer.points.iter().map(share).collect();
                Some(Band {
                    variant: *i,
                    name: format!("garbage collection of {}", way.name),
                    points,
                })
            });
            (Axis::bandwidth(most.fold(0.0, f64::max)), lines.collect(), bands.collect())
        },
    )
}

fn latency(report: &Report) -> Vec<Plot> {
    let detailed = report.variants.len() <= DETAILED_VARIANTS;
    per_row(
        report,
        |row| row.latencies.len() > 1,
        |rows, _| {
            let alone = report.variants.len() == 1;
            let mut lines = Vec::new();
            let (mut min, mut max) = (u64::MAX, 0);
            for (i, way, row) in rows {
                let mut push =
                    |at: usize, name: String, is_fine, of: fn(&super::LatencyPoint) -> u64| {
                        let values = row.latencies.iter().map(of);
                        min = min.min(values.clone().min().unwrap_or(u64::MAX));
                        max = max.max(values.max().unwrap_or(0));
                        lines.push(PlotLine {
                            variant: at,
                            name,
                            points: row
                                .latencies
                                .iter()
                                .map(|l| (seconds(l.start_ns), of(l) as f64))
                                .collect(),
                            is_thin: is_fine,
                            is_last_partial: row.is_last_partial,
                            ..PlotLine::default()
                        });
                    };
                if alone {
                    push(*i, "p50".into(), true, |l| l.p50);
                    push(*i, "p99".into(), false, |l| l.p99);
                    push(*i, "max".into(), true, |l| l.max);
                } else {
                    push(*i, format!("{}, p99", way.name), false, |l| l.p99);
                    if detailed {
                        push(*i, format!("{}, max", way.name), true, |l| l.max);
                    }
                }
            }
            (Axis::latency(min, max), lines, Vec::new())
        },
    )
}

fn depth(report: &Report) -> Vec<Plot> {
    let mut plots = per_row(
        report,
        |row| row.depth.len() > 1,
        |rows, _| {
            let most = rows.iter().flat_map(|(_, _, row)| row.depth.iter().map(|p| p.1));
            let lines = rows.iter().map(|(i, way, row)| PlotLine {
                variant: *i,
                name: way.name.clone(),
                points: row.depth.iter().map(|(t, v)| (seconds(*t), *v)).collect(),
                is_last_partial: row.is_last_partial,
                ..PlotLine::default()
            });
            let y = Axis::numbers("outstanding requests", most.fold(0.0, f64::max));
            (y, lines.collect(), Vec::new())
        },
    );
    // A job has one queue for all its directions.
    let mut seen: Vec<String> = Vec::new();
    plots.retain_mut(|plot| {
        let job = plot.title.rsplit_once(" (").map_or(plot.title.as_str(), |(job, _)| job);
        let job = job.to_owned();
        let is_new = !seen.contains(&job);
        seen.push(job.clone());
        plot.title = job;
        is_new
    });
    plots
}

/// Writes one plot per drive name of the FTL's time series. A quantity that is always zero has no
/// plot.
fn ftl_plots(
    report: &Report,
    y: Axis,
    what: &str,
    of: impl Fn(&FtlPoint) -> Option<f64>,
) -> Vec<Plot> {
    let all = || report.variants.iter().flat_map(|way| &way.ftl_series);
    let mut names: Vec<&str> = Vec::new();
    for FtlSeries { drive, .. } in all() {
        if !names.contains(&drive.as_str()) {
            names.push(drive);
        }
    }
    let plot = |name: &str| {
        let mut lines = Vec::new();
        let mut most = 0.0f64;
        for (i, way) in report.variants.iter().enumerate() {
            let Some(layer) = way.ftl_series.iter().find(|l| l.drive == name) else { continue };
            let points: Vec<(f64, f64)> =
                layer.points.iter().filter_map(|p| Some((seconds(p.start_ns), of(p)?))).collect();
            most = points.iter().map(|p| p.1).fold(most, f64::max);
            lines.push(PlotLine {
                variant: i,
                name: way.name.clone(),
                points,
                is_last_partial: way.intervals.is_last_partial(),
                ..PlotLine::default()
            });
        }
        lines.retain(|line| line.points.len() > 1);
        let title = if name.is_empty() { what.to_owned() } else { format!("{name}: {what}") };
        let x = Axis::time(longest_end(report.variants.iter()));
        let y = Axis::numbers(y.label.clone(), most);
        (!lines.is_empty() && most > 0.0).then(|| Plot { title, x, y, lines, bands: Vec::new() })
    };
    names.into_iter().filter_map(plot).collect()
}
