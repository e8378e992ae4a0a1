//! [`SweepChart`] and [`SweepPage`]: the plots and the page of a sweep (`docs/sweep.md`).

use std::fmt::Write as _;

use scenario::format::{count, printable, rate};

use super::chart::{Bars, Chart, ChartContent};
use super::html::escape;
use super::plot::{Axis, PlotLine, Scale, round_ticks};

/// Ratio of the largest to the smallest x value from which on values are equidistant.
const EQUIDISTANT_FROM: f64 = 10.0;

/// Number of labels that an x axis has space for.
const LABELS_MAX: f64 = 14.0;

/// Unit of the y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartUnit {
    /// Nanoseconds, on a logarithmic axis.
    Nanos,
    /// Bytes per second.
    BytesPerSecond,
    /// Plain numbers.
    Number,
    /// Plain numbers, on a logarithmic axis.
    Decades,
}

/// Form of a chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChartForm {
    /// Lines over the x values, and circles for references.
    #[default]
    Lines,
    /// A group of bars for each x value.
    Bars,
}

/// A line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartLine {
    /// Its name; empty if it is the only one.
    pub name: String,
    /// The y value at each x value; `None` where there is no result.
    pub points: Vec<Option<f64>>,
    /// Values that the line is compared with, at the same x values. They may be fewer.
    pub references: Vec<Option<f64>>,
}

/// A measured value over the values of a key, with a line for each value of another key.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepChart {
    /// Title.
    pub title: String,
    /// Form of the chart.
    pub form: ChartForm,
    /// Name of the references in the legend of bars.
    pub reference_name: String,
    /// Meaning of the x values.
    pub x_label: String,
    /// Whether x values that are numbers are at their distances however far apart they are.
    pub is_x_linear: bool,
    /// Meaning of the y values.
    pub y_label: String,
    /// Unit of the y values.
    pub unit: ChartUnit,
    /// The x values: the text of each, and its number if it has one.
    pub x: Vec<(String, Option<f64>)>,
    /// The lines.
    pub lines: Vec<ChartLine>,
}

impl SweepChart {
    /// Returns the SVG file. X values that are numbers within a decade are at their distances, all others
    /// equidistant.
    pub fn svg(&self) -> String {
        let content = match self.form {
            ChartForm::Lines => self.lines_over_x(),
            ChartForm::Bars => self.bars(),
        };
        Chart { title: printable(&self.title).into_owned(), content }.svg()
    }

    fn lines_over_x(&self) -> ChartContent {
        let positions = self.positions();
        let last = positions.iter().copied().fold(f64::MIN, f64::max);
        let first = positions.iter().copied().fold(f64::MAX, f64::min);
        let apart = (last - first) / LABELS_MAX;
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for (at, (name, _)) in positions.iter().zip(&self.x) {
            if ticks.last().is_none_or(|(before, _)| at - before >= apart) {
                ticks.push((*at, printable(name).into_owned()));
            }
        }
        let x = Axis {
            label: printable(&self.x_label).into_owned().into(),
            scale: Scale::Linear,
            min: first,
            max: if last > first { last } else { first + 1.0 },
            ticks,
            unit: "",
        };
        let placed = |values: &[Option<f64>]| {
            let pairs = positions.iter().zip(values);
            pairs.filter_map(|(x, y)| Some((*x, y.filter(|y| y.is_finite())?))).collect()
        };
        let line = |(variant, line): (usize, &ChartLine)| PlotLine {
            variant,
            name: printable(&line.name).into_owned(),
            points: placed(&line.points),
            references: placed(&line.references),
            ..PlotLine::default()
        };
        let lines: Vec<PlotLine> = self.lines.iter().enumerate().map(line).collect();
        let points = lines.iter().flat_map(|line| line.points.iter().chain(&line.references));
        let y = self.y_axis(points.map(|point| point.1));
        ChartContent::Lines { x, y, lines }
    }

    fn bars(&self) -> ChartContent {
        let mut series: Vec<(String, Vec<f64>)> = Vec::new();
        for line in &self.lines {
            let known = |values: &[Option<f64>]| {
                let value = |at: usize| values.get(at).copied().flatten().unwrap_or(f64::NAN);
                (0..self.x.len()).map(value).collect::<Vec<f64>>()
            };
            if line.references.iter().any(Option::is_some) {
                let name = format!("{}{}", line.name, self.reference_name);
                series.push((printable(&name).into_owned(), known(&line.references)));
            }
            series.push((printable(&line.name).into_owned(), known(&line.points)));
        }
        let values = series.iter().flat_map(|(_, values)| values).copied();
        let y = self.y_axis(values.filter(|value| value.is_finite()));
        let groups = self.x.iter().map(|(name, _)| printable(name).into_owned()).collect();
        ChartContent::Bars(Bars { groups, series, y })
    }

    fn y_axis(&self, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values.fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let mut y = match self.unit {
            ChartUnit::Nanos => Axis::latency(low.max(1.0) as u64, high as u64),
            ChartUnit::Decades => decades(low, high),
            ChartUnit::BytesPerSecond => numbers(high, rate),
            ChartUnit::Number if high >= 10.0 => numbers(high, |t| count(t.round() as u64)),
            ChartUnit::Number => numbers(high, |t| format!("{}", (t * 1e6).round() / 1e6)),
        };
        y.label = printable(&self.y_label).into_owned().into();
        y
    }

    fn positions(&self) -> Vec<f64> {
        let numbers: Option<Vec<f64>> = self.x.iter().map(|(_, number)| *number).collect();
        let is_near = |numbers: &Vec<f64>| {
            let low = numbers.iter().copied().fold(f64::MAX, f64::min);
            let high = numbers.iter().copied().fold(f64::MIN, f64::max);
            let is_near = low > 0.0 && high / low < EQUIDISTANT_FROM;
            high.is_finite() && (self.is_x_linear || is_near)
        };
        let equidistant = || (0..self.x.len()).map(|index| index as f64).collect();
        numbers.filter(is_near).unwrap_or_else(equidistant)
    }
}

fn numbers(high: f64, name: impl Fn(f64) -> String) -> Axis {
    let (max, ticks) = round_ticks(high);
    let ticks = ticks.into_iter().map(|tick| (tick, name(tick))).collect();
    Axis { label: "".into(), scale: Scale::Linear, min: 0.0, max, ticks, unit: "" }
}

/// Returns a logarithmic axis of decades that include the values.
fn decades(low: f64, high: f64) -> Axis {
    let high = high.max(1.0);
    let (low, high) = (low.clamp(1.0, high).log10().floor(), high.log10().ceil());
    let high = high.max(low + 1.0);
    let ticks = (low as i32..=high as i32).map(|decade| 10f64.powi(decade));
    let ticks = ticks.map(|tick| (tick, count(tick as u64))).collect();
    let (min, max) = (10f64.powf(low), 10f64.powf(high));
    Axis { label: "".into(), scale: Scale::Log, min, max, ticks, unit: "" }
}

/// The page of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepPage {
    /// Title.
    pub title: String,
    /// A sentence under the title; may be empty.
    pub subtitle: String,
    /// The charts.
    pub charts: Vec<SweepChart>,
    /// Headings of the table.
    pub headings: Vec<String>,
    /// Rows of the table, each with a cell for each heading.
    pub rows: Vec<Vec<String>>,
}

impl SweepPage {
    /// Renders the page, which needs no other file. Equal pages give equal bytes.
    pub fn render(&self) -> String {
        let title = escape(&printable(&self.title));
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{}\
             .multiples {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); \
             gap: 1rem; }}\n.multiples img {{ width: 100%; }}\n</style>\n</head>\n<body>\n\
             <header>\n<h1>{title}</h1>\n",
            include_str!("page.css")
        );
        // Writing to a string cannot fail.
        if !self.subtitle.is_empty() {
            let _ =
                writeln!(out, "<p class=\"subtitle\">{}</p>", escape(&printable(&self.subtitle)));
        }
        out.push_str("</header>\n<main>\n");
        if !self.charts.is_empty() {
            out.push_str("<section>\n<h2>Plots</h2>\n<div class=\"multiples\">\n");
            for chart in &self.charts {
                let name = escape(&printable(&chart.title));
                let _ = writeln!(
                    out,
                    "<img alt=\"{name}\" src=\"data:image/svg+xml,{}\">",
                    percent_encoded(&chart.svg())
                );
            }
            out.push_str("</div>\n</section>\n");
        }
        out.push_str("<section>\n<h2>Runs</h2>\n<div class=\"scroll\"><table>\n<thead><tr>");
        for heading in &self.headings {
            let _ = write!(out, "<th>{}</th>", escape(&printable(heading)));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for cell in row {
                let _ = write!(out, "<td>{}</td>", escape(&printable(cell)));
            }
            out.push_str("</tr>\n");
        }
        let _ = write!(
            out,
            "</tbody>\n</table></div>\n</section>\n</main>\n<footer>Made by sluice {}. The page is \
             complete in itself.</footer>\n</body>\n</html>\n",
            env!("CARGO_PKG_VERSION")
        );
        out
    }
}

/// Encodes a text for a data address.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: &[(&str, Option<f64>)]) -> SweepChart {
        SweepChart {
            title: "a <b>".into(),
            form: ChartForm::Lines,
            reference_name: " (paper)".into(),
            x_label: String::new(),
            is_x_linear: false,
            y_label: "requests per second".into(),
            unit: ChartUnit::Number,
            x: x.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect(),
            lines: vec![
                ChartLine {
                    name: "op=0.1".into(),
                    points: vec![Some(10.0), Some(40.0), None],
                    references: vec![None, Some(50.0)],
                },
                ChartLine {
                    name: "op=0.2".into(),
                    points: vec![Some(20.0); 3],
                    ..ChartLine::default()
                },
            ],
        }
    }

    #[test]
    fn x_values_within_a_decade_are_at_their_distances() {
        let near = [("1", Some(1.0)), ("2", Some(2.0)), ("4", Some(4.0))];
        assert_eq!(chart(&near).positions(), [1.0, 2.0, 4.0]);
        let far = [("1", Some(1.0)), ("4", Some(4.0)), ("128", Some(128.0))];
        assert_eq!(chart(&far).positions(), [0.0, 1.0, 2.0]);
        let words = [("sq", None), ("mq", None), ("8", Some(8.0))];
        assert_eq!(chart(&words).positions(), [0.0, 1.0, 2.0]);
        let linear = SweepChart { is_x_linear: true, ..chart(&far) };
        assert_eq!(linear.positions(), [1.0, 4.0, 128.0]);
        // The label of 4 would be on that of 1.
        let labels = linear.svg().matches("class=\"tick across\"").count();
        assert_eq!((chart(&far).svg().matches("class=\"tick across\"").count(), labels), (3, 2));
    }

    #[test]
    fn a_chart_has_a_line_for_each_value_without_missing_points() {
        let svg = chart(&[("1", Some(1.0)), ("2", Some(2.0)), ("4", Some(4.0))]).svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("op=0.2") && svg.contains("a &lt;b&gt;") && !svg.contains("NaN"));
        let points = |n: usize| {
            let line = svg.split("points=\"").nth(n).unwrap();
            line.split('"').next().unwrap().split(' ').count()
        };
        assert_eq!((points(1), points(2)), (2, 3));
        let mut latencies = chart(&[("1", None), ("2", None), ("3", None)]);
        latencies.unit = ChartUnit::Nanos;
        assert!(!latencies.svg().contains("NaN"));
        latencies.lines.clear();
        assert!(!latencies.svg().contains("NaN"), "without lines");
    }

    #[test]
    fn references_are_circles_beside_lines_and_bars_beside_bars() {
        let mut chart = chart(&[("1", Some(1.0)), ("2", Some(2.0)), ("4", Some(4.0))]);
        let svg = chart.svg();
        assert_eq!(svg.matches("<circle class=\"mark way0\"").count(), 1, "{svg}");
        chart.form = ChartForm::Bars;
        let svg = chart.svg();
        // Two of the first line, one of its references, three of the second.
        assert_eq!(svg.matches("class=\"value\"").count(), 6, "{svg}");
        assert!(svg.contains("op=0.1 (paper)") && !svg.contains("op=0.2 (paper)"));
        assert!(!svg.contains("NaN"));
        chart.form = ChartForm::Lines;
        chart.unit = ChartUnit::Decades;
        let svg = chart.svg();
        assert!(svg.contains(">10<") && svg.contains(">100<") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_page_is_complete_and_escapes_its_cells() {
        let page = SweepPage {
            title: "t".into(),
            subtitle: "why".into(),
            charts: vec![chart(&[("1", None), ("2", None), ("3", None)])],
            headings: vec!["key".into()],
            rows: vec![vec!["<script>".into()]],
        };
        let text = page.render();
        assert!(text.contains("<td>&lt;script&gt;</td>") && text.contains("<th>key</th>"));
        assert_eq!(text.matches("<img").count(), 1);
        for outside in ["http://", "https://", "url("] {
            let without_names = text.replace("http%3A", "");
            assert!(!without_names.contains(outside), "{outside}");
        }
        assert_eq!(text, page.render());
    }
}
