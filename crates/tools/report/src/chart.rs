//! [`Chart`]: lines or bars with a title and a legend, as a self-contained SVG file for light and
//! dark pages. Equal charts give equal bytes.

use std::fmt::Write as _;

use super::html::escape;
use super::plot::{Axis, BOTTOM, HEIGHT, LEFT, Plot, PlotLine, RIGHT, Scale, WIDTH, x_of, y_of};

/// Colors and dashes of the pages (the light ones of `page.css`). The legend is in the order of
/// each name's first line.
const STYLE: &str = "\
text { font-family: system-ui, \"Segoe UI\", \"Noto Sans\", \"DejaVu Sans\", sans-serif; \
fill: #59636e; font-size: 12.5px; }
.title { fill: #1c2126; font-size: 14px; font-weight: 600; } .value { font-size: 10.5px; }
.grid { stroke: #e9ecee; stroke-width: 1; } .frame { fill: none; stroke: #dfe3e6; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.mark { fill: #ffffff; stroke-width: 1.8; stroke-dasharray: none !important; }
.way0 { stroke: #0060a0; } .way1 { stroke: #c44e00; stroke-dasharray: 8 3; }
.way2 { stroke: #007a58; stroke-dasharray: 2.5 2.5; }
.way3 { stroke: #a63d84; stroke-dasharray: 10 3 2 3; } .way4 { stroke: #8a6a00; }
.way5 { stroke: #2a8bbf; stroke-dasharray: 8 3; } .way6 { stroke: #5b4fb3; stroke-dasharray: 2.5 2.5; }
.way7 { stroke: #444c54; stroke-dasharray: 10 3 2 3; }
.bar0 { fill: #9aa7b2; } .bar1 { fill: #0060a0; } .bar2 { fill: #c44e00; }
.bar3 { fill: #007a58; } .bar4 { fill: #a63d84; } .bar5 { fill: #8a6a00; }
";

/// Number of bar fills before they repeat.
const FILLS: usize = 6;
/// Number of legend names per row.
const LEGEND_COLUMNS: usize = 3;

/// Grouped bars.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    /// Labels of the groups.
    pub(super) groups: Vec<String>,
    /// Name of each series, and its value in each group.
    pub(super) series: Vec<(String, Vec<f64>)>,
    pub(super) y: Axis,
}

/// Content of a chart.
#[derive(Clone, Debug)]
pub(super) enum ChartContent {
    Lines { x: Axis, y: Axis, lines: Vec<PlotLine> },
    Bars(Bars),
}

/// A chart with its title.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) content: ChartContent,
}

impl Chart {
    /// Returns the SVG file.
    pub(super) fn svg(&self) -> String {
        let mut out = String::new();
        let names: Vec<(&str, String)> = match &self.content {
            ChartContent::Lines { lines, .. } => {
                let attributes = |line: &PlotLine| super::style::attributes(line.variant);
                lines.iter().map(|line| (line.name.as_str(), attributes(line))).collect()
            }
            ChartContent::Bars(bars) => {
                let series = bars.series.iter().enumerate();
                series.map(|(i, (name, _))| (name.as_str(), format!("bar{}", i % FILLS))).collect()
            }
        };
        let rows = names.len().div_ceil(LEGEND_COLUMNS) as f64;
        let head = 30.0 + 20.0 * rows;
        let (title, all) = (escape(&self.title), HEIGHT + head);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -{head} {WIDTH} {all}\" \
             role=\"img\" aria-label=\"{title}\"><style>\n{STYLE}</style>\
             <rect x=\"0\" y=\"-{head}\" width=\"{WIDTH}\" height=\"{all}\" fill=\"#ffffff\"/>\n\
             <text class=\"title\" x=\"16\" y=\"{}\">{title}</text>\n",
            22.0 - head,
        );
        for (i, (name, class)) in names.into_iter().enumerate() {
            let x = 16.0 + (i % LEGEND_COLUMNS) as f64 * (WIDTH - 16.0) / LEGEND_COLUMNS as f64;
            let y = 44.0 - head + 20.0 * (i / LEGEND_COLUMNS) as f64;
            let _ = match &self.content {
                ChartContent::Lines { .. } => write!(
                    out,
                    "<line {class} x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>",
                    x + 30.0
                ),
                ChartContent::Bars(_) => write!(
                    out,
                    "<rect class=\"{class}\" x=\"{:.1}\" y=\"{}\" width=\"12\" height=\"12\"/>",
                    x + 14.0,
                    y - 6.0
                ),
            };
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\">{}</text>",
                x + 36.0,
                y + 4.0,
                escape(name)
            );
        }
        out.push_str(&match &self.content {
            ChartContent::Lines { x, y, lines } => {
                let (title, lines) = (self.title.clone(), lines.clone());
                Plot { title, x: x.clone(), y: y.clone(), lines, bands: Vec::new() }.body()
            }
            ChartContent::Bars(bars) => bars.body(&self.title),
        });
        out.push_str("</svg>\n");
        out
    }
}

impl Bars {
    fn body(&self, title: &str) -> String {
        let n = self.groups.len().max(1) as f64;
        let middle = |i: usize| i as f64 + 0.5;
        let x = Axis {
            label: "".into(),
            scale: Scale::Linear,
            min: 0.0,
            max: n,
            ticks: self.groups.iter().enumerate().map(|(i, g)| (middle(i), g.clone())).collect(),
            unit: "",
        };
        let (lines, bands) = (Vec::new(), Vec::new());
        let plot = Plot { title: title.to_owned(), x, y: self.y.clone(), lines, bands };
        let mut out = plot.body();
        let slot = (WIDTH - LEFT - RIGHT) / n;
        let width = slot * 0.7 / self.series.len().max(1) as f64;
        for (s, (_, values)) in self.series.iter().enumerate() {
            // A value that is no number has no bar.
            for (i, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let left = x_of(&plot.x, middle(i)) - slot * 0.35 + s as f64 * width;
                let top = y_of(&self.y, *value);
                // Writing to a string cannot fail.
                let _ = writeln!(
                    out,
                    "<rect class=\"bar{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"/><text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"middle\">{}</text>",
                    s % FILLS,
                    width - 2.0,
                    (HEIGHT - BOTTOM - top).max(0.0),
                    left + width / 2.0 - 1.0,
                    top - 4.0,
                    short(*value)
                );
            }
        }
        out
    }
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value {
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plot::round_ticks;
    use super::*;

    fn axis(max: f64) -> Axis {
        let (max, ticks) = round_ticks(max);
        let ticks = ticks.into_iter().map(|t| (t, short(t))).collect();
        Axis { label: "MB/s".into(), scale: Scale::Linear, min: 0.0, max, ticks, unit: "" }
    }

    #[test]
    fn a_chart_is_a_self_contained_file() {
        let bars = Bars {
            groups: vec!["a & b".into(), "c".into()],
            series: vec![("paper".into(), vec![47.0, 280.0]), ("here".into(), vec![47.1, 279.8])],
            y: axis(280.0),
        };
        let line = |way, name: &str| PlotLine {
            variant: way,
            name: name.into(),
            points: vec![(0.0, 1.0), (100.0, 250.0)],
            ..PlotLine::default()
        };
        let lines = vec![line(0, "one"), line(1, "two"), line(2, "three"), line(3, "four")];
        for drawing in [
            ChartContent::Bars(bars),
            ChartContent::Lines { x: axis(100.0), y: axis(280.0), lines },
        ] {
            let picture = Chart { title: "A <title>".into(), content: drawing };
            let svg = picture.svg();
            assert_eq!(svg, picture.svg());
            assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
            assert!(svg.contains("A &lt;title&gt;") && !svg.contains("& b"));
            for none in ["NaN", "inf", "href", "url("] {
                assert!(!svg.contains(none), "{none}");
            }
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        }
    }

    #[test]
    fn bars_stand_on_the_axis_and_are_as_high_as_their_values() {
        let bars = Bars {
            groups: vec!["a".into()],
            series: vec![("x".into(), vec![100.0]), ("y".into(), vec![50.0])],
            y: axis(100.0),
        };
        let svg = Chart { title: String::new(), content: ChartContent::Bars(bars) }.svg();
        let heights: Vec<f64> = svg
            .split("<rect class=\"bar")
            .skip(1)
            .filter(|part| part.contains("value"))
            .filter_map(|part| part.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), 2, "{svg}");
        assert!((heights[0] - 2.0 * heights[1]).abs() < 0.2, "{heights:?}");
    }
}
