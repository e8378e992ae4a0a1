//! [`Sink`]: the output of results.

use std::io::{self, Write};

use super::{BenchError, Bound, Measurement};

/// Format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, each as soon as it is known.
    Json,
    /// A table at the end.
    Table,
}

/// Receives results and writes them. A closed pipe (`| head`) is not an error.
pub struct Sink<'w> {
    out: &'w mut dyn Write,
    format: Format,
    rows: Vec<Measurement>,
    judged: Vec<Measurement>,
}

impl std::fmt::Debug for Sink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("format", &self.format).field("rows", &self.rows).finish()
    }
}

impl<'w> Sink<'w> {
    /// Returns a sink that writes to `out`.
    pub fn new(out: &'w mut dyn Write, format: Format) -> Sink<'w> {
        Sink { out, format, rows: Vec::new(), judged: Vec::new() }
    }

    /// Adds a result.
    ///
    /// # Errors
    /// [`BenchError::NoValue`] if a value in it is not a number; errors of the output.
    pub fn push(&mut self, measurement: Measurement) -> Result<(), BenchError> {
        if !measurement.is_finite() {
            let Measurement { case, metric, .. } = measurement;
            return Err(BenchError::NoValue { case, metric });
        }
        if measurement.bound.is_some() {
            self.judged.push(measurement.clone());
        }
        match self.format {
            Format::Json => self.write(&format!("{}\n", measurement.to_json_line())),
            Format::Table => {
                self.rows.push(measurement);
                Ok(())
            }
        }
    }

    /// Writes what has not been written, and returns the results that have a bound.
    ///
    /// # Errors
    /// What the output returns.
    pub fn finish(mut self) -> Result<Vec<Measurement>, BenchError> {
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            self.write(&table(&rows))?;
        }
        Ok(self.judged)
    }

    fn write(&mut self, text: &str) -> Result<(), BenchError> {
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
            _ => Ok(()),
        }
    }
}

fn table(rows: &[Measurement]) -> String {
    let head = ["case", "metric", "value", "unit", "from, to", "reference", "ratio", "verdict"];
    let mut head = head.map(str::to_owned);
    if rows.iter().all(|m| m.bound.is_none()) {
        head[7].clear();
    }
    let cells = rows.iter().map(|m| {
        let reference = m.reference.as_ref();
        [
            m.case.clone(),
            m.metric.to_owned(),
            number(m.value),
            m.unit.to_owned(),
            m.spread.map_or_else(String::new, |s| format!("{} {}", number(s.min), number(s.max))),
            reference.map_or_else(String::new, |r| format!("{} {}", number(r.value), r.what)),
            m.ratio().map_or_else(String::new, ratio),
            verdict(m),
        ]
    });
    let lines: Vec<[String; 8]> = std::iter::once(head).chain(cells).collect();
    if rows.iter().any(|m| m.spread.is_some()) {
        return aligned(&lines, [false, false, true, false, false, false, true, false]);
    }
    let without_spread = lines.into_iter().map(|[a, b, c, d, _, e, f, g]| [a, b, c, d, e, f, g]);
    aligned(&Vec::from_iter(without_spread), [false, false, true, false, false, true, false])
}

/// Formats `pass` or `fail` with the bound.
fn verdict(m: &Measurement) -> String {
    let (Some(bound), Some(verdict)) = (m.bound, m.verdict()) else {
        return String::new();
    };
    match bound_text(bound) {
        must if must.is_empty() => verdict.as_str().to_owned(),
        must => format!("{}, {must}", verdict.as_str()),
    }
}

/// A bound as `at most 3.0`, `at least 3.0` or `3.0 to 4.0`.
pub(super) fn bound_text(Bound { min, max }: Bound) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("at least {}", number(min)),
        (None, Some(max)) => format!("at most {}", number(max)),
        (None, None) => String::new(),
    }
}

/// Formats lines of cells; each column is as wide as its widest cell, and `right` columns are right
/// aligned.
pub(crate) fn aligned<const N: usize>(lines: &[[String; N]], right: [bool; N]) -> String {
    let widths: [usize; N] = std::array::from_fn(|i| {
        lines.iter().map(|l| l[i].chars().count()).max().unwrap_or_default()
    });
    let mut out = String::new();
    for line in lines {
        let cells: Vec<String> = std::iter::zip(line, std::iter::zip(widths, right))
            .map(|(cell, (width, right))| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A number with thousands apart; below 10 with two digits after the point where one would not say it.
pub(super) fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", scenario::format::count(value.abs().round() as u64))
    } else if value.abs() < 10.0 && ((value * 10.0).round() / 10.0 - value).abs() > 0.004 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

fn ratio(ratio: f64) -> String {
    if ratio.abs() < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_nothing_are_shown_as_such() {
        assert_eq!([1234.4, -1234.4, -2.0, 0.0].map(number), ["1,234", "-1,234", "-2.0", "0.0"]);
        assert_eq!([0.97, 1.9, 12.34, 0.5].map(number), ["0.97", "1.9", "12.3", "0.5"]);
        assert_eq!([-0.8209, 0.05, 1.5].map(ratio), ["-0.82", "0.0500", "1.50"]);
    }

    fn row(case: &str, value: f64) -> Measurement {
        Measurement::new("ring", case, "ns_per_command", value, "ns")
    }

    #[test]
    fn json_is_one_object_per_line() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        sink.push(row("a", 1.0)).unwrap();
        sink.push(row("b", 2.0).with_reference("a", 1.0)).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["ratio"], 2.0);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut out = Vec::new();
            let mut sink = Sink::new(&mut out, Format::Json);
            assert!(matches!(sink.push(row("a", bad)), Err(BenchError::NoValue { .. })));
            assert!(sink.push(row("a", 1.0).with_reference("b", bad)).is_err());
            sink.finish().unwrap();
            assert!(out.is_empty());
        }
    }

    #[test]
    fn the_table_is_aligned_and_comes_at_the_end() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Table);
        sink.push(row("short", 9.0)).unwrap();
        sink.push(row("a longer case", 12_345.6).with_reference("copy", 10.0)).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let unit = lines[0].find("unit").unwrap();
        assert!(lines[1..].iter().all(|l| l[unit..].starts_with("ns")), "{text}");
        assert!(lines[2].contains("12,346  ns    10.0 copy  1234.56"), "{text}");
        assert!(!text.contains("verdict"), "no row has one: {text}");
    }

    #[test]
    fn the_table_says_pass_or_fail_and_what_must_hold() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Table);
        sink.push(row("a", 9.0).at_most(10.0)).unwrap();
        sink.push(row("b", 9.0).at_least(10.0)).unwrap();
        sink.push(row("c", 9.0).with_reference("paper", 10.0).within(0.2, 10.0)).unwrap();
        sink.push(row("d", 9.0)).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let verdict = lines[0].find("verdict").unwrap();
        assert_eq!(&lines[1][verdict..], "pass, at most 10.0");
        assert_eq!(&lines[2][verdict..], "fail, at least 10.0");
        assert_eq!(&lines[3][verdict..], "pass, 8.0 to 12.0");
        assert!(lines[4].len() < verdict);
    }
}
