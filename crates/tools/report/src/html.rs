//! [`render`]: the report as one self-contained page, without network access or other files. The
//! plots are inline SVG; the script only adds tooltips.

use std::fmt::Write as _;

use super::plot::{Axis, Plot, PlotLine};
use super::table::{self, HEADINGS, WORDS};
use super::{JobRow, Report, TransferDirection, Variant};
use super::{heatmap, style, terms, time_series};
use super::{host_times, latency_breakdown};

/// Escapes text for HTML elements and attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Renders the page. Equal reports give equal bytes.
pub fn render(report: &Report) -> String {
    let report = report.clone().sanitize();
    let mut out = String::new();
    let title = escape(&report.title);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n",
        concat!(include_str!("page.css"), include_str!("why.css"))
    );
    if !report.subtitle.is_empty() {
        let _ = writeln!(out, "<p class=\"subtitle\">{}</p>", escape(&report.subtitle));
    }
    out.push_str("</header>\n<main>\n");
    results(&mut out, &report);
    latencies(&mut out, &report);
    time_series::chapter(&mut out, &report);
    latency_breakdown::chapter(&mut out, &report);
    host_times::chapter(&mut out, &report);
    utilization(&mut out, &report);
    scenarios(&mut out, &report);
    terms::chapter(&mut out);
    let _ = write!(
        out,
        "</main>\n<footer>Made by sluice {}. The page is complete in itself.</footer>\n\
         <div id=\"tip\" hidden></div>\n<script>\n{}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        include_str!("page.js")
    );
    out
}

/// Opens a chapter.
pub(super) fn open(out: &mut String, heading: &str, how_to_read: &str) {
    let _ = write!(out, "<section>\n<h2>{heading}</h2>\n<p class=\"how\">{how_to_read}</p>\n");
}

/// Writes the legend of the variants with the colors and dashes of their lines. If there are
/// several, the reader can hide and show each.
pub(super) fn legend(out: &mut String, report: &Report) {
    out.push_str("<ul class=\"legend\">");
    for (i, way) in report.variants.iter().enumerate() {
        let name = escape(&way.name);
        let select = match report.variants.len() {
            1 => String::new(),
            _ => format!(
                "<input type=\"checkbox\" checked data-show=\"{i}\" aria-label=\"show {name}\">"
            ),
        };
        let _ = write!(
            out,
            "<li><label>{select}<svg viewBox=\"0 0 34 10\" aria-hidden=\"true\"><line {} \
             x1=\"1\" x2=\"33\" y1=\"5\" y2=\"5\"/></svg>{name}</label></li>",
            style::attributes(i).replace(" data-way", " data-of"),
        );
    }
    out.push_str("</ul>\n");
}

fn results(out: &mut String, report: &Report) {
    open(
        out,
        "Results",
        "One row for each job and direction. A percentile is the latency that so many percent of \
         the requests did not exceed: the distance between mean and p99 is what a user notices as \
         a drive that stutters. WA, write amplification, is how many sectors were programmed for \
         each sector written: above 1 the rest is garbage collection and padding.",
    );
    notes(out, report);
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
    for (i, heading) in HEADINGS.iter().enumerate() {
        let class = if i < WORDS { "" } else { " class=\"n\"" };
        let _ = write!(out, "<th{class}>{}</th>", terms::with_explanation(heading));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for way in &report.variants {
        for (at, row) in way.jobs.iter().enumerate() {
            out.push_str(if at == 0 { "<tr class=\"first\">" } else { "<tr>" });
            for (i, cell) in table::cells(way, row, at == 0).iter().enumerate() {
                let class = if i < WORDS { "" } else { " class=\"n\"" };
                let _ = write!(out, "<td{class} data-h=\"{}\">{}</td>", HEADINGS[i], escape(cell));
            }
            out.push_str("</tr>\n");
        }
    }
    out.push_str("</tbody>\n</table></div>\n");
    let remarks: Vec<(&Variant, Vec<String>)> = report
        .variants
        .iter()
        .map(|way| (way, table::remarks(way)))
        .filter(|(_, remarks)| !remarks.is_empty())
        .collect();
    if !remarks.is_empty() {
        out.push_str("<dl class=\"remarks\">\n");
        for (way, remarks) in remarks {
            let _ = writeln!(
                out,
                "<dt>{}</dt><dd>{}</dd>",
                escape(&way.name),
                escape(&remarks.join("; "))
            );
        }
        out.push_str("</dl>\n");
    }
    out.push_str("</section>\n");
}

/// Writes the caveats on the results.
fn notes(out: &mut String, report: &Report) {
    if report.variants.iter().all(|way| way.notes.is_empty()) {
        return;
    }
    out.push_str("<ul class=\"notes\">\n");
    for way in &report.variants {
        for note in &way.notes {
            let _ = writeln!(
                out,
                "<li><b>{}</b>: {} <code>{}</code></li>",
                escape(&way.name),
                escape(&note.text),
                escape(&note.code)
            );
        }
    }
    out.push_str("</ul>\n");
}

/// A job and a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobKey<'a> {
    name: &'a str,
    direction: TransferDirection,
}

impl JobKey<'_> {
    fn of(row: &JobRow) -> JobKey<'_> {
        JobKey { name: &row.name, direction: row.direction }
    }
}

/// Returns every job and direction of any variant, in the order of first appearance.
pub(super) fn rows(report: &Report) -> Vec<JobKey<'_>> {
    let mut seen: Vec<JobKey<'_>> = Vec::new();
    for row in report.variants.iter().flat_map(|way| &way.jobs) {
        let key = JobKey::of(row);
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    seen
}

/// Returns the rows of one job and direction, each with the index of its variant.
pub(super) fn rows_of<'r>(
    report: &'r Report,
    key: JobKey<'r>,
) -> impl Iterator<Item = (usize, &'r Variant, &'r JobRow)> {
    report.variants.iter().enumerate().flat_map(move |(i, way)| {
        way.jobs.iter().filter(move |row| JobKey::of(row) == key).map(move |row| (i, way, row))
    })
}

/// Returns the caption of a job and direction.
pub(super) fn heading(key: JobKey<'_>) -> String {
    format!("{} ({})", key.name, key.direction.as_str())
}

fn latencies(out: &mut String, report: &Report) {
    let plots: Vec<Plot> = rows(report)
        .into_iter()
        .filter_map(|key| {
            let rows: Vec<_> =
                rows_of(report, key).filter(|(_, _, row)| !row.cdf.is_empty()).collect();
            let latencies = || rows.iter().flat_map(|(_, _, row)| row.cdf.iter().map(|p| p.0));
            let (min, max) = (latencies().min()?, latencies().max()?);
            let below_one = rows
                .iter()
                .flat_map(|(_, _, row)| row.cdf.iter().map(|p| p.1))
                .filter(|share| *share < 1.0)
                .fold(0.0, f64::max);
            Some(Plot {
                title: heading(key),
                x: Axis::latency(min, max),
                y: Axis::shares(below_one),
                lines: rows
                    .iter()
                    .map(|(i, way, row)| PlotLine {
                        variant: *i,
                        name: way.name.clone(),
                        points: row.cdf.iter().map(|(ns, share)| (*ns as f64, *share)).collect(),
                        ..PlotLine::default()
                    })
                    .collect(),
                bands: Vec::new(),
            })
        })
        .collect();
    if plots.is_empty() {
        return;
    }
    open(
        out,
        "Latency",
        "How many requests (upwards) took no longer than how long (to the right). A steep line is \
         a drive that always answers alike; a line that bends to the right near its top has a \
         tail: a few requests wait long, usually behind a program or an erase on the same parallel \
         unit. The axes are stretched to show that tail: each decade of time, and each further \
         nine of the percentage, takes the same space.",
    );
    legend(out, report);
    panels(out, &plots);
    out.push_str("</section>\n");
}

/// Writes plots side by side.
pub(super) fn panels(out: &mut String, plots: &[Plot]) {
    out.push_str("<div class=\"panels\">\n");
    for plot in plots {
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
            escape(&plot.title),
            plot.svg()
        );
    }
    out.push_str("</div>\n");
}

fn utilization(out: &mut String, report: &Report) {
    if report.variants.iter().all(|way| way.utilization.is_empty()) {
        return;
    }
    open(
        out,
        "Where the flash was busy",
        "One square for each parallel unit, a row for each channel: the brighter, the larger the \
         share of the run in which its array read, programmed or erased. A unit does one of them \
         at a time, so a read that meets a bright square waits. Point at a square for its shares.",
    );
    out.push_str(&heatmap::legend());
    out.push_str("<div class=\"maps\">\n");
    for way in &report.variants {
        for map in &way.utilization {
            let name = if map.drive.is_empty() {
                escape(&way.name)
            } else {
                format!("{}: {}", escape(&way.name), escape(&map.drive))
            };
            let _ = write!(
                out,
                "<figure><figcaption>{name}</figcaption>\n{}<p class=\"mean\">mean {}</p></figure>\n",
                heatmap::svg(map),
                heatmap::description(&map.mean())
            );
        }
    }
    out.push_str("</div>\n</section>\n");
}

fn scenarios(out: &mut String, report: &Report) {
    open(
        out,
        "Scenarios",
        "What was run: each way can be repeated from this text and its seed, to the last digit.",
    );
    for way in &report.variants {
        let _ = write!(
            out,
            "<details><summary>{}, seed {}</summary>\n<pre>{}</pre></details>\n",
            escape(&way.name),
            way.seed,
            escape(&way.scenario)
        );
    }
    out.push_str("</section>\n");
}
