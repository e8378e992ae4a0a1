//! [`draw`]: draws the figures of the evaluation in [LightNVM17 §5] from the results that `sluice
//! bench lightnvm --json` prints, and the growth of a simulation's cost from those of `sluice bench
//! scale --json`.
//!
//! | figure | in the paper | part of the benchmark |
//! |---|---|---|
//! | `table1` | table 1 | `drive` |
//! | `mixed-bandwidth`, `mixed-latency`, `mixed-small` | figure 5a, b and c | `mixed` |
//! | `predictable` | figure 8 | `predictable` |
//! | `write-amplification`, `stalls` | section 4.2.4 | `steady` |
//! | `recovery` | section 4.2.2 | `recovery` |
//! | `simulation-scaling` | none | all of the group `scale` |
//!
//! Guarantees: equal results give equal bytes. A figure without any results is omitted. A figure
//! with only a part of its results is an error.

use serde_json::Value;

use super::chart::{Bars, Chart, ChartContent};
use super::plot::{Axis, PlotLine, Scale, round_ticks};

/// A figure as an SVG file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name of the file, without its extension.
    pub name: &'static str,
    /// Contents of the file.
    pub svg: String,
}

/// Error of drawing figures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FigureError {
    /// A line is not a result of a benchmark.
    #[error("line {line} is no result of `sluice bench --json`: {why}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Problem of the line.
        why: String,
    },
    /// A figure lacks a result.
    #[error("the results lack \"{case}\", {metric}: measure the part anew")]
    Missing {
        /// Missing case.
        case: String,
        /// Missing metric of the case.
        metric: String,
    },
}

/// The fields of a result that figures use.
#[derive(Clone, Debug)]
struct Row {
    case: String,
    metric: String,
    value: f64,
    reference: Option<f64>,
    max: Option<f64>,
}

struct Rows(Vec<Row>);

impl Rows {
    fn parse(text: &str) -> Result<Rows, FigureError> {
        let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
        let rows = lines.map(|(i, line)| {
            let wrong = |why: String| FigureError::Line { line: i + 1, why };
            let row: Value = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
            let word = |key: &str| row[key].as_str().map(str::to_owned);
            let missing = |key: &str| wrong(format!("it has no `{key}`"));
            Ok(Row {
                case: word("case").ok_or_else(|| missing("case"))?,
                metric: word("metric").ok_or_else(|| missing("metric"))?,
                value: row["value"].as_f64().ok_or_else(|| missing("value"))?,
                reference: row["reference"]["value"].as_f64(),
                max: row["bound"]["most"].as_f64(),
            })
        });
        Ok(Rows(rows.collect::<Result<_, _>>()?))
    }

    fn row(&self, case: &str, metric: &str) -> Result<&Row, FigureError> {
        let found = self.0.iter().find(|r| r.case == case && r.metric == metric);
        let missing = || FigureError::Missing { case: case.into(), metric: metric.into() };
        found.ok_or_else(missing)
    }

    fn value(&self, case: &str, metric: &str) -> Result<f64, FigureError> {
        Ok(self.row(case, metric)?.value)
    }

    fn reference(&self, case: &str, metric: &str) -> Result<f64, FigureError> {
        let missing =
            || FigureError::Missing { case: case.into(), metric: format!("{metric}'s reference") };
        self.row(case, metric)?.reference.ok_or_else(missing)
    }

    /// Returns the rows with this metric whose case starts with `begin` and ends with `end`, each
    /// with the part in between.
    fn like(&self, begin: &str, end: &str, metric: &str) -> Vec<(&str, &Row)> {
        let rows = self.0.iter().filter(|r| r.metric == metric);
        rows.filter_map(|r| Some((r.case.strip_prefix(begin)?.strip_suffix(end)?, r))).collect()
    }
}

/// Draws all figures for which `results` has data; it has one JSON object per line.
///
/// # Errors
/// [`FigureError`] if a line is not a result, or if a figure lacks some of its results.
pub fn draw(results: &str) -> Result<Vec<Figure>, FigureError> {
    let rows = Rows::parse(results)?;
    let there = |begin: &str| rows.0.iter().any(|r| r.case.starts_with(begin));
    let mut figures = Vec::new();
    let mut add = |name, picture: Chart| figures.push(Figure { name, svg: picture.svg() });
    if there("vector I/O, one PU") {
        add("table1", table1(&rows)?);
    }
    if there("pblk, 128 active PUs") {
        add("mixed-bandwidth", mixed_bandwidth(&rows)?);
        add("mixed-latency", mixed_latency(&rows)?);
        add("mixed-small", mixed_small(&rows)?);
    }
    if there("drive-managed, 4 KB random reads") {
        add("predictable", predictable(&rows)?);
    }
    if rows.0.iter().any(|r| r.metric == "longest_stall") {
        add("write-amplification", write_amplification(&rows)?);
        add("stalls", stalls(&rows)?);
    }
    if there("recovery of ") {
        add("recovery", recovery(&rows)?);
    }
    if rows.0.iter().any(|r| r.metric == "growth") {
        add("simulation-scaling", simulation_scaling(&rows)?);
    }
    Ok(figures)
}

fn linear(label: &'static str, max: f64) -> Axis {
    let (max, ticks) = round_ticks(max);
    let ticks = ticks.into_iter().map(|t| (t, format!("{t}"))).collect();
    Axis { label, scale: Scale::Linear, min: 0.0, max, ticks, unit: "" }
}

/// Returns an axis with a position for each name, from left to right.
fn positions(label: &'static str, names: Vec<String>) -> Axis {
    let max = names.len().saturating_sub(1).max(1) as f64;
    let ticks = names.into_iter().enumerate().map(|(i, name)| (i as f64, name)).collect();
    Axis { label, scale: Scale::Linear, min: 0.0, max, ticks, unit: "" }
}

/// Returns a logarithmic axis of decades that include the values.
fn decades(label: &'static str, values: impl Iterator<Item = f64>) -> Axis {
    let (low, high) = values.fold((f64::MAX, 1.0f64), |(l, h), v| (l.min(v), h.max(v)));
    let (low, high) = (low.clamp(1.0, high).log10().floor(), high.log10().ceil());
    let high = high.max(low + 1.0);
    let ticks = (low as i32..=high as i32).map(|d| 10f64.powi(d));
    let ticks = ticks.map(|t| (t, scenario::format::count(t as u64))).collect();
    Axis { label, scale: Scale::Log, min: 10f64.powf(low), max: 10f64.powf(high), ticks, unit: "" }
}

/// Returns a logarithmic axis of latencies that are given in microseconds.
fn latency(lines: &[PlotLine]) -> Axis {
    let all = || lines.iter().flat_map(|l| l.points.iter().map(|p| p.1));
    let (low, high) = all().fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    Axis::latency(low as u64, high as u64)
}

fn line(way: usize, name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> PlotLine {
    let points = values.into_iter().enumerate().map(|(i, v)| (i as f64, v)).collect();
    PlotLine { variant: way, name: name.into(), points, ..PlotLine::default() }
}

fn lines(title: &str, x: Axis, y: Axis, lines: Vec<PlotLine>) -> Chart {
    Chart { title: title.into(), content: ChartContent::Lines { x, y, lines } }
}

fn bars(title: &str, y: Axis, groups: Vec<String>, series: Vec<(String, Vec<f64>)>) -> Chart {
    Chart { title: title.into(), content: ChartContent::Bars(Bars { groups, series, y }) }
}

fn table1(rows: &Rows) -> Result<Chart, FigureError> {
    let whats = [
        ("64 KB writes, QD 4", "64 KB writes"),
        ("4 KB sequential reads, QD 1", "4 KB seq."),
        ("64 KB sequential reads, QD 4", "64 KB seq."),
        ("4 KB random reads, QD 1", "4 KB random"),
        ("64 KB random reads, QD 4", "64 KB random"),
    ];
    let (mut paper, mut here) = (Vec::new(), Vec::new());
    for (what, _) in whats {
        let case = format!("vector I/O, one PU, {what}");
        paper.push(rows.reference(&case, "bandwidth")?);
        here.push(rows.value(&case, "bandwidth")?);
    }
    let most = paper.iter().chain(&here).copied().fold(0.0, f64::max);
    let groups = whats.map(|(_, name)| name.to_owned()).to_vec();
    let series = vec![("the paper's drive".into(), paper), ("the emulated drive".into(), here)];
    Ok(bars(
        "One parallel unit by vector I/O: writes, and reads (the paper's table 1)",
        linear("MB/s", most * 1.08),
        groups,
        series,
    ))
}

/// Numbers of active parallel units, in the order of the paper.
const ACTIVE: [u32; 6] = [128, 64, 32, 16, 8, 4];

fn by_active(value: impl Fn(u32) -> Result<f64, FigureError>) -> Result<Vec<f64>, FigureError> {
    ACTIVE.into_iter().map(value).collect()
}

fn active_axis() -> Axis {
    positions("active write PUs", ACTIVE.map(|n| n.to_string()).to_vec())
}

const READS: &str = "256 KB random reads";
const WRITES: &str = "256 KB writes";

fn mixed(active: u32, what: &str) -> String {
    format!("pblk, {active} active PUs, mixed, {what}")
}

fn mixed_bandwidth(rows: &Rows) -> Result<Chart, FigureError> {
    let mixed_of = |what: &'static str| by_active(|n| rows.value(&mixed(n, what), "bandwidth"));
    let alone_of = |what: &'static str| by_active(|n| rows.reference(&mixed(n, what), "bandwidth"));
    let all = [
        ("reads, mixed", mixed_of(READS)?),
        ("writes, mixed", mixed_of(WRITES)?),
        ("reads alone", alone_of(READS)?),
        ("writes alone", alone_of(WRITES)?),
    ];
    let most = all.iter().flat_map(|(_, v)| v).copied().fold(0.0, f64::max);
    // Solid and dashed lines: the mixed load. Dotted line: a single load.
    let all = std::iter::zip([0, 1, 2, 3], all).map(|(way, (name, v))| line(way, name, v));
    let title = "256 KB reads QD 16 beside 256 KB writes QD 1 (the paper's figure 5a)";
    Ok(lines(title, active_axis(), linear("MB/s", most), all.collect()))
}

fn mixed_latency(rows: &Rows) -> Result<Chart, FigureError> {
    let of = |metric: &'static str| by_active(|n| Ok(rows.value(&mixed(n, READS), metric)? * 1e3));
    let alone = by_active(|n| Ok(rows.reference(&mixed(n, READS), "latency_mean")? * 1e3))?;
    let all = vec![
        line(0, "mean", of("latency_mean")?),
        line(1, "99th percentile", of("latency_p99")?),
        line(3, "longest", of("latency_max")?),
        line(2, "mean, reads alone", alone),
    ];
    let title = "Latency of those reads (the paper's figure 5b)";
    Ok(lines(title, active_axis(), latency(&all), all))
}

fn mixed_small(rows: &Rows) -> Result<Chart, FigureError> {
    let of = |metric: &'static str, policy: &'static str| {
        by_active(|n| {
            let case = format!(
                "pblk, {n} active PUs, 4 KB random reads QD 1 at 200 MB/s of writes{policy}"
            );
            Ok(rows.value(&case, metric)? * 1e3)
        })
    };
    let all = vec![
        line(0, "mean", of("latency_mean", "")?),
        line(1, "99th percentile", of("latency_p99", "")?),
        line(3, "longest", of("latency_max", "")?),
    ];
    let title = "4 KB reads QD 1 beside 200 MB/s of writes (the paper's figure 5c)";
    Ok(lines(title, active_axis(), latency(&all), all))
}

fn predictable(rows: &Rows) -> Result<Chart, FigureError> {
    let shares = [0, 20, 33, 50];
    let mut all = Vec::new();
    for (kind, name, first) in
        [("vector I/O, channels of their own", "apart", 0), ("drive-managed", "drive", 1)]
    {
        for (metric, percent, way) in
            [("latency_p50", "50", 0), ("latency_p99", "99", 2), ("latency_p99_9", "99.9", 4)]
        {
            let of = |share| {
                let case = format!("{kind}, 4 KB random reads, {share} % writes");
                Ok(rows.value(&case, metric)? * 1e3)
            };
            let values: Vec<f64> = shares.into_iter().map(of).collect::<Result<_, _>>()?;
            all.push(line(first + way, format!("{name}, {percent} %"), values));
        }
    }
    let x = positions("writes of all I/Os", shares.map(|s| format!("{s} %")).to_vec());
    let title = "4 KB reads, writes apart from them or not (the paper's figure 8)";
    Ok(lines(title, x, latency(&all), all))
}

/// Returns the devices of the part `steady`, each with a name.
fn steady<'r>(rows: &'r Rows, metric: &str) -> Vec<(String, &'r Row)> {
    let end = ", 95 % full, 4 KB random overwrites, QD 64";
    let name = |between: &str| match between.split_once(" lines of ") {
        Some((lines, rest)) if rest.contains("write buffer") => format!("{lines} lines, 32 MB"),
        Some((lines, _)) => format!("{lines} lines"),
        None => between.to_owned(),
    };
    rows.like("pblk, ", end, metric).into_iter().map(|(b, row)| (name(b), row)).collect()
}

fn steady_bars(
    rows: &Rows,
    metric: &str,
    label: &'static str,
    title: &str,
    [reference, here]: [&str; 2],
) -> Result<Chart, FigureError> {
    let found = steady(rows, metric);
    let references = found.iter().map(|(_, row)| rows.reference(&row.case, metric));
    let references: Vec<f64> = references.collect::<Result<_, _>>()?;
    let values: Vec<f64> = found.iter().map(|(_, row)| row.value).collect();
    let most = references.iter().chain(&values).copied().fold(0.0, f64::max);
    let groups = found.into_iter().map(|(name, _)| name).collect();
    let series = vec![(reference.into(), references), (here.into(), values)];
    Ok(bars(title, linear(label, most * 1.08), groups, series))
}

fn write_amplification(rows: &Rows) -> Result<Chart, FigureError> {
    let title = "Write amplification, 95 % full, random overwrites";
    let names = ["analysis of greedy collection", "measured"];
    steady_bars(rows, "write_amplification", "sectors programmed per sector", title, names)
}

fn stalls(rows: &Rows) -> Result<Chart, FigureError> {
    let title = "The longest time without a completion, 95 % full";
    steady_bars(rows, "longest_stall", "ms", title, ["longest chain", "measured"])
}

fn recovery(rows: &Rows) -> Result<Chart, FigureError> {
    let found = rows.like("recovery of ", " MiB, looked for", "sectors");
    let mut all = vec![Vec::new(); 4];
    for (mib, row) in &found {
        let bound = row.max.ok_or_else(|| FigureError::Missing {
            case: row.case.clone(),
            metric: "a bound of sectors".into(),
        })?;
        let map = rows.value(&format!("recovery of {mib} MiB, journal and map"), "sectors")?;
        let sectors = mib.parse::<f64>().unwrap_or_default() * 256.0;
        for (line, value) in all.iter_mut().zip([row.value, map, bound, sectors]) {
            line.push(value);
        }
    }
    let y = decades("sectors", all.iter().flatten().copied());
    let names = ["looked for", "journal and map", "bound of what is looked for", "the whole drive"];
    let named = std::iter::zip([0, 1, 2, 3], std::iter::zip(names, all));
    let all = named.map(|(way, (name, values))| line(way, name, values)).collect();
    let x = positions("drive", found.iter().map(|(mib, _)| format!("{mib} MiB")).collect());
    Ok(lines("What recovery after a power cut reads (section 4.2.2)", x, y, all))
}

/// The curves of the group `scale`: the parameter, the load, and the metric.
const CURVES: [(&str, &str, &str); 9] = [
    ("queue depth", "reads", "cpu_per_io"),
    ("jobs", "reads", "cpu_per_io"),
    ("parallel units", "reads", "cpu_per_io"),
    ("drives", "reads", "cpu_per_io"),
    ("GiB", "reads", "cpu_per_io"),
    ("queue depth", "overwrites", "cpu_per_programmed_sector"),
    ("parallel units", "overwrites", "cpu_per_programmed_sector"),
    ("GiB", "overwrites", "cpu_per_programmed_sector"),
    ("lines", "overwrites", "cpu_per_programmed_sector"),
];

fn simulation_scaling(rows: &Rows) -> Result<Chart, FigureError> {
    let mut all = Vec::new();
    for (variant, (axis, load, metric)) in CURVES.into_iter().enumerate() {
        let (begin, end) = (format!("{axis} "), format!(", 4 KB random {load}"));
        let found = rows.like(&begin, &end, metric);
        let points = found.iter().filter_map(|(n, row)| Some((n.parse::<f64>().ok()?, row.value)));
        let points: Vec<(f64, f64)> = points.collect();
        let (Some(first), true) = (points.first().copied(), points.len() > 1) else {
            let (case, metric) = (format!("{axis} N{end}"), metric.to_owned());
            return Err(FigureError::Missing { case, metric });
        };
        let points = points.into_iter().map(|(n, cost)| ((n / first.0).log2(), cost / first.1));
        let (name, is_thin) = (format!("{axis}, {load}"), load == "overwrites");
        let points = points.collect();
        all.push(PlotLine { variant, name, points, is_thin, ..PlotLine::default() });
    }
    let most = all.iter().flat_map(|line| &line.points).fold(1.0f64, |most, p| most.max(p.1));
    let ticks = (0..=6).map(|i| (f64::from(2 * i), format!("×{}", 1 << (2 * i)))).collect();
    let (label, scale, unit) = ("the parameter", Scale::Linear, "");
    let x = Axis { label, scale, min: 0.0, max: 12.0, ticks, unit };
    let title = "Processor time of a simulated I/O, relative to the first point of each curve";
    Ok(lines(title, x, linear("times", most * 1.08), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_drawn_relative_to_the_first_point_of_each_curve() {
        let mut text = result("jobs 1 to 4, 4 KB random reads", "growth", 2.0);
        for (axis, load, metric) in CURVES {
            for n in [16, 64] {
                let case = format!("{axis} {n}, 4 KB random {load}");
                text += &result(&case, metric, f64::from(n) * 10.0);
            }
        }
        let drawn = draw(&text).unwrap();
        assert_eq!(drawn.iter().map(|f| f.name).collect::<Vec<_>>(), ["simulation-scaling"]);
        assert!(drawn[0].svg.contains("lines, overwrites") && drawn[0].svg.contains("×4096"));
        let hole = text.replace("drives 64", "drives of 64");
        let missing = draw(&hole).unwrap_err();
        assert!(missing.to_string().contains("drives N, 4 KB random reads"), "{missing}");
    }

    fn result(case: &str, metric: &str, value: f64) -> String {
        format!(
            "{{\"bench\":\"lightnvm\",\"case\":\"{case}\",\"metric\":\"{metric}\",\
             \"value\":{value},\"unit\":\"\",\"reference\":{{\"what\":\"paper\",\"value\":9.0}},\
             \"bound\":{{\"most\":900.0}}}}\n"
        )
    }

    #[test]
    fn figures_without_results_are_left_out_and_those_with_holes_are_errors() {
        assert_eq!(draw("").unwrap(), []);
        let other = result("null, raw, 1 thread", "iops", 1.0);
        assert_eq!(draw(&other).unwrap(), []);
        let recovery = ["35", "187"].map(|mib| {
            result(&format!("recovery of {mib} MiB, looked for"), "sectors", 8600.0)
                + &result(&format!("recovery of {mib} MiB, journal and map"), "sectors", 25.0)
        });
        let drawn = draw(&(other + &recovery.concat())).unwrap();
        assert_eq!(drawn.iter().map(|f| f.name).collect::<Vec<_>>(), ["recovery"]);
        assert!(drawn[0].svg.contains("187 MiB") && drawn[0].svg.contains("journal and map"));
        let hole = result("recovery of 35 MiB, looked for", "sectors", 1.0);
        let missing = FigureError::Missing {
            case: "recovery of 35 MiB, journal and map".into(),
            metric: "sectors".into(),
        };
        assert_eq!(draw(&hole).unwrap_err(), missing);
    }

    #[test]
    fn what_is_no_result_is_told_with_its_line() {
        for (text, line) in [("{}", 1), ("\n{\"case\":", 2), ("[1]", 1), ("{\"case\":\"a\"}", 1)] {
            let error = draw(text).unwrap_err();
            assert!(matches!(error, FigureError::Line { line: l, .. } if l == line), "{error}");
        }
    }
}
