//! [`Plot`]: lines over two axes, as SVG that uses the colors of the page.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::html::escape;
use super::style;

/// Mapping of values to positions along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear,
    /// Logarithmic, in decades.
    Log,
    /// Shares from 0 to 1 by their nines: 0, 0.9, 0.99 and 0.999 are equidistant.
    Nines,
}

/// One axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: Cow<'static, str>,
    pub(super) scale: Scale,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) ticks: Vec<(f64, String)>,
    /// Unit of values in tooltips: `ns`, `bytes`, `share`, `seconds` or `number`.
    pub(super) unit: &'static str,
}

/// One line: the variant that it belongs to, and its points.
#[derive(Clone, Debug, Default)]
pub(super) struct PlotLine {
    pub(super) variant: usize,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Values of another origin that the line is compared with, drawn as circles.
    pub(super) references: Vec<(f64, f64)>,
    /// Whether the line is thin, as an additional line of its variant.
    pub(super) is_thin: bool,
    /// Whether the last point belongs to an interval within which the run ended; it is marked.
    pub(super) is_last_partial: bool,
}

/// A share from 0 to 1 over the x axis, drawn as an area behind the lines; 1 is the top of the
/// plot.
#[derive(Clone, Debug)]
pub(super) struct Band {
    pub(super) variant: usize,
    pub(super) name: String,
    /// Start and share of each interval.
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<PlotLine>,
    pub(super) bands: Vec<Band>,
}

// Size of the drawing in SVG units.
pub(super) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 340.0;
pub(super) const LEFT: f64 = 96.0;
pub(super) const RIGHT: f64 = 28.0;
const TOP: f64 = 14.0;
pub(super) const BOTTOM: f64 = 50.0;

impl Scale {
    fn apply(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1.0).log10(),
            // More than six nines cannot be distinguished.
            Scale::Nines => -(1.0 - value.clamp(0.0, 0.999_999)).log10(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scale::Linear => "linear",
            Scale::Log => "log",
            Scale::Nines => "nines",
        }
    }
}

impl Axis {
    /// Returns the position along the axis, from 0 to 1.
    fn position(&self, value: f64) -> f64 {
        let (low, high) = (self.scale.apply(self.min), self.scale.apply(self.max));
        if high <= low {
            return 0.0;
        }
        ((self.scale.apply(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Returns a logarithmic axis in nanoseconds that includes `min` and `max`.
    pub(super) fn latency(min: u64, max: u64) -> Axis {
        let low = (min.max(1) as f64).log10();
        let high = (max.max(2) as f64).log10();
        // Extend the axis to half decades that include all values.
        let (low, high) = ((low * 2.0).floor() / 2.0, (high * 2.0).ceil() / 2.0);
        let high = if high <= low { low + 0.5 } else { high };
        let decades = low.ceil() as i32..=high.floor() as i32;
        let mut ticks: Vec<(f64, String)> =
            decades.map(|decade| (10f64.powi(decade), decade_label(decade))).collect();
        if ticks.len() < 3 {
            // A short axis has ticks within its decades.
            let (from, to) = (10f64.powf(low) * 0.999, 10f64.powf(high) * 1.001);
            let steps = (low.floor() as i32..=high.ceil() as i32)
                .flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
            let steps = steps.filter(|ns| (from..to).contains(ns) && *ns >= 1.0);
            ticks = steps.map(|ns| (ns, scenario::format::duration(ns.round() as u64))).collect();
        }
        Axis {
            label: "latency (log scale)".into(),
            scale: Scale::Log,
            min: 10f64.powf(low),
            max: 10f64.powf(high),
            ticks,
            unit: "ns",
        }
    }

    /// Returns an axis of shares that is stretched towards 1.
    pub(super) fn shares(max: f64) -> Axis {
        let marks = [
            (0.0, "0 %"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
            (0.9999, "99.99 %"),
            (0.99999, "99.999 %"),
        ];
        let top = marks.iter().map(|m| m.0).find(|m| *m >= max.min(0.99999)).unwrap_or(0.99999);
        let top = top.max(0.999);
        Axis {
            label: "requests that took no longer".into(),
            scale: Scale::Nines,
            min: 0.0,
            max: top,
            ticks: marks
                .iter()
                .filter(|(share, _)| *share <= top)
                .map(|(share, name)| (*share, (*name).to_owned()))
                .collect(),
            unit: "share",
        }
    }

    /// Returns an axis in bytes per second from 0 to a round number at or above `max`.
    pub(super) fn bandwidth(max: f64) -> Axis {
        let (top, ticks) = round_ticks(max);
        Axis {
            label: "throughput".into(),
            scale: Scale::Linear,
            min: 0.0,
            max: top,
            ticks: ticks.into_iter().map(|t| (t, scenario::format::rate(t))).collect(),
            unit: "bytes",
        }
    }

    /// Returns an axis of plain numbers from 0 to a round number at or above `max`.
    pub(super) fn numbers(label: impl Into<Cow<'static, str>>, max: f64) -> Axis {
        let (top, ticks) = round_ticks(max);
        let name = |t: f64| {
            let text = format!("{t:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        Axis {
            label: label.into(),
            scale: Scale::Linear,
            min: 0.0,
            max: top,
            ticks: ticks.into_iter().map(|t| (t, name(t))).collect(),
            unit: "number",
        }
    }

    /// Returns an axis in seconds from 0 to `max` nanoseconds.
    pub(super) fn time(max: u64) -> Axis {
        let seconds = (max as f64 / 1e9).max(1e-9);
        let (_, ticks) = round_ticks(seconds);
        Axis {
            label: "time".into(),
            scale: Scale::Linear,
            min: 0.0,
            max: seconds,
            ticks: ticks
                .into_iter()
                .filter(|t| *t <= seconds * 1.000_001)
                .map(|t| (t, time_label(t)))
                .collect(),
            unit: "seconds",
        }
    }
}

/// Formats a power of ten of nanoseconds: `100 us`.
fn decade_label(decade: i32) -> String {
    scenario::format::duration(10u64.saturating_pow(decade.clamp(0, 18) as u32))
}

/// Formats seconds: `2.5 s`, `0 s`.
fn time_label(seconds: f64) -> String {
    let label = match seconds {
        0.0 => "0 s".to_owned(),
        _ => scenario::format::duration((seconds * 1e9).round() as u64),
    };
    match label.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => label,
    }
}

/// Returns a round number at or above `max`, and four to six round ticks up to it.
pub(super) fn round_ticks(max: f64) -> (f64, Vec<f64>) {
    let max = if max > 0.0 { max } else { 1.0 };
    let raw = max / 4.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|step| *step >= raw * 0.999_999)
        .unwrap_or(10.0 * power);
    let steps = (max / step - 1e-6).ceil().max(1.0) as u32;
    (step * f64::from(steps), (0..=steps).map(|i| step * f64::from(i)).collect())
}

pub(super) fn x_of(axis: &Axis, value: f64) -> f64 {
    LEFT + axis.position(value) * (WIDTH - LEFT - RIGHT)
}

pub(super) fn y_of(axis: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - axis.position(value) * (HEIGHT - TOP - BOTTOM)
}

impl Plot {
    /// Returns the SVG element.
    pub(super) fn svg(&self) -> String {
        let mut out = String::new();
        let (x, y) = (&self.x, &self.y);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" \
             data-x=\"{} {} {} {}\" data-y=\"{} {} {} {}\" \
             data-frame=\"{LEFT} {TOP} {} {}\">",
            escape(&self.title),
            x.scale.name(),
            x.min,
            x.max,
            x.unit,
            y.scale.name(),
            y.min,
            y.max,
            y.unit,
            WIDTH - RIGHT,
            HEIGHT - BOTTOM,
        );
        self.areas(&mut out);
        out.push_str(&self.body());
        out.push_str("<line class=\"cursor\" y1=\"0\" y2=\"0\"/>\n</svg>\n");
        out
    }

    /// Returns the content of the SVG element: ticks, grid, frame, labels and lines.
    pub(super) fn body(&self) -> String {
        let mut out = String::new();
        let (x, y) = (&self.x, &self.y);
        for (value, name) in &y.ticks {
            let at = y_of(y, *value);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                escape(name)
            );
        }
        for (value, name) in &x.ticks {
            let at = x_of(x, *value);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\"/>\
                 <text class=\"tick across\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0,
                escape(name)
            );
        }
        let _ = writeln!(
            out,
            "<rect class=\"frame\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>\
             <text class=\"label across\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label upright\" transform=\"translate(14 {:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            WIDTH - LEFT - RIGHT,
            HEIGHT - TOP - BOTTOM,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escape(&x.label),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(&y.label)
        );
        for line in &self.lines {
            for (vx, vy) in &line.references {
                let (cx, cy) = (x_of(x, *vx), y_of(y, *vy));
                let _ = writeln!(
                    out,
                    "<circle class=\"mark way{}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4.5\"/>",
                    line.variant % 8
                );
            }
            let points = self.position(line);
            if points.is_empty() {
                continue;
            }
            let attributes = style::attributes(line.variant);
            let attributes = match line.is_thin {
                true => attributes.replacen("class=\"line", "class=\"fine line", 1),
                false => attributes,
            };
            let _ = write!(
                out,
                "<polyline {attributes} data-name=\"{}\" points=\"",
                escape(&line.name)
            );
            for (i, (px, py)) in points.iter().enumerate() {
                let _ = write!(out, "{}{px:.1},{py:.1}", if i == 0 { "" } else { " " });
            }
            out.push_str("\"/>\n");
            if let (true, Some((px, py))) = (line.is_last_partial, points.last()) {
                let _ = writeln!(
                    out,
                    "<circle class=\"open way{}\" data-way=\"{}\" cx=\"{px:.1}\" cy=\"{py:.1}\" \
                     r=\"4\"><title>shorter than the others: it ended here</title></circle>",
                    line.variant % 8,
                    line.variant
                );
            }
        }
        out
    }

    /// Draws the bands as areas, each interval with its own width.
    fn areas(&self, out: &mut String) {
        let floor = HEIGHT - BOTTOM;
        for band in self.bands.iter().filter(|band| band.points.iter().any(|p| p.1 > 0.0)) {
            let mut path = format!("M{LEFT},{floor}");
            for (i, (start, share)) in band.points.iter().enumerate() {
                let y = floor - share * (floor - TOP);
                let end = band.points.get(i + 1).map_or(self.x.max, |next| next.0);
                let _ =
                    write!(path, "L{:.1},{y:.1}H{:.1}", x_of(&self.x, *start), x_of(&self.x, end));
            }
            let _ = writeln!(
                out,
                "<path class=\"band fill{}\" data-way=\"{}\" d=\"{path}V{floor}Z\"><title>{}</title>\
                 </path>",
                band.variant % 8,
                band.variant,
                escape(&band.name)
            );
        }
    }

    /// Returns the points of a line in the drawing, without points that would not be visible.
    fn position(&self, line: &PlotLine) -> Vec<(f64, f64)> {
        let mut placed: Vec<(f64, f64)> = Vec::new();
        let last = line.points.len().saturating_sub(1);
        for (i, (vx, vy)) in line.points.iter().enumerate() {
            let p = (x_of(&self.x, *vx), y_of(&self.y, *vy));
            let near =
                placed.last().is_some_and(|q| (p.0 - q.0).abs() < 0.5 && (p.1 - q.1).abs() < 0.5);
            if !near || i == last {
                placed.push(p);
            }
        }
        placed
    }
}
