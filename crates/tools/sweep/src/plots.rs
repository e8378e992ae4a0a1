//! [`charts`]: plots of the rows of a sweep, and [`summary`], its table.

use std::collections::BTreeMap;

use report::sweep::{ChartForm, ChartLine, ChartUnit, SweepChart};
use scenario::format::{count, duration, rate};
use serde_json::Number;

use crate::{COLUMNS, Column, PlotSpec, Row, RunStatus, SettingValue};

/// Measured values that are plotted by default.
const USUAL: [&str; 3] = ["iops", "clat_mean_ns", "clat_p99_ns"];

/// A chart with the name of its file, without an extension.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedChart {
    /// Name of the file.
    pub name: String,
    /// The chart.
    pub chart: SweepChart,
}

/// Returns the charts of a sweep: one for each measured value, job, direction, and combination of
/// values of the keys that are neither on the x axis nor have lines. A point is the mean of its seeds.
/// Without a key that has several values there are none.
pub fn charts(keys: &[String], rows: &[Row], spec: &PlotSpec) -> Vec<NamedChart> {
    let index_of = |key: &String| keys.iter().position(|k| k == key);
    let mut varied = (0..keys.len()).filter(|key| values_of(rows, *key).len() > 1);
    let mut next = |except: Option<usize>| varied.find(|key| Some(*key) != except);
    let lines = spec.lines.as_ref().and_then(index_of);
    let Some(x) = spec.x.as_ref().and_then(index_of).or_else(|| next(lines)) else {
        return Vec::new();
    };
    let lines = lines.or_else(|| next(Some(x)));
    let good: Vec<&Row> =
        rows.iter().filter(|r| r.status == RunStatus::Ok && !r.direction.is_empty()).collect();
    let others: Vec<usize> =
        (0..keys.len()).filter(|key| *key != x && Some(*key) != lines).collect();
    let panel_of = |row: &Row| {
        let fixed: Vec<String> = others.iter().map(|key| row.parameters[*key].clone()).collect();
        (row.job.clone(), row.direction.clone(), fixed)
    };
    // The panels in the order of their first rows, each with its rows.
    let mut panels: Vec<(String, String, Vec<String>)> = Vec::new();
    let mut rows_of: Vec<Vec<&Row>> = Vec::new();
    let mut known = BTreeMap::new();
    for row in good {
        let panel = panel_of(row);
        let at = *known.entry(panel.clone()).or_insert(panels.len());
        if at == panels.len() {
            panels.push(panel);
            rows_of.push(Vec::new());
        }
        rows_of[at].push(row);
    }
    let is_varied: Vec<bool> = (0..keys.len()).map(|key| values_of(rows, key).len() > 1).collect();
    let y_names = match spec.y.is_empty() {
        true => USUAL.map(str::to_owned).to_vec(),
        false => spec.y.clone(),
    };
    let x_values = values_of(rows, x);
    let line_values = lines.map_or_else(|| vec![String::new()], |key| values_of(rows, key));
    let mut found = Vec::new();
    for column in y_names.iter().filter_map(|name| Column::index_of(name)) {
        for (at, panel) in panels.iter().enumerate() {
            let in_panel = &rows_of[at];
            let line = |line_value: &String| {
                let is_on = |row: &Row| lines.is_none_or(|key| row.parameters[key] == *line_value);
                let point = |x_value: &String| {
                    let here = in_panel.iter().filter(|r| r.parameters[x] == *x_value && is_on(r));
                    mean(here.filter_map(|row| row.values[column].as_ref()?.as_f64()))
                };
                let name =
                    lines.map_or_else(String::new, |key| format!("{}={line_value}", keys[key]));
                let points = x_values.iter().map(point).collect();
                ChartLine { name, points, ..ChartLine::default() }
            };
            let (job, direction, fixed) = panel;
            let fixed = others.iter().zip(fixed).filter(|(key, _)| is_varied[**key]);
            let fixed: String =
                fixed.map(|(key, value)| format!(", {}={value}", keys[*key])).collect();
            let chart = SweepChart {
                title: format!(
                    "{} by {}: {job}, {direction}{fixed}",
                    COLUMNS[column].name, keys[x]
                ),
                form: ChartForm::Lines,
                reference_name: String::new(),
                x_label: String::new(),
                is_x_linear: false,
                y_label: COLUMNS[column].meaning.to_owned(),
                unit: unit(COLUMNS[column].name),
                x: x_values.iter().map(|v| (v.clone(), SettingValue::parse(v).number())).collect(),
                lines: line_values.iter().map(line).collect(),
            };
            let name = format!("{}-{:02}-{direction}", COLUMNS[column].name, at + 1);
            if chart.lines.iter().any(|line| line.points.iter().any(Option::is_some)) {
                found.push(NamedChart { name, chart });
            }
        }
    }
    found
}

fn unit(name: &str) -> ChartUnit {
    match name {
        "bandwidth_bytes_per_s" => ChartUnit::BytesPerSecond,
        name if name.ends_with("_ns") => ChartUnit::Nanos,
        _ => ChartUnit::Number,
    }
}

/// Returns the values of a key in the order of the sweep.
fn values_of(rows: &[Row], key: usize) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for row in rows {
        if !values.contains(&row.parameters[key]) {
            values.push(row.parameters[key].clone());
        }
    }
    values
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the headings and the rows of a table for people.
pub fn summary(keys: &[String], rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>) {
    let measured = [
        "iops",
        "bandwidth_bytes_per_s",
        "clat_mean_ns",
        "clat_p99_ns",
        "clat_max_ns",
        "write_amplification",
    ];
    let names = ["IOPS", "throughput", "mean", "p99", "max", "WA"];
    let fixed = ["seed", "job", "dir", "status"];
    let headings = keys.iter().map(String::as_str).chain(fixed).chain(names).chain(["error"]);
    let cells = |row: &Row| {
        let value = |name: &&str| {
            let number = row.values[Column::index_of(name)?].as_ref()?;
            Some(cell(name, number))
        };
        let seed = row.seed.map_or_else(String::new, |seed| seed.to_string());
        let status = row.status.word().to_owned();
        let fixed = [seed, row.job.clone(), row.direction.clone(), status];
        let values = measured.iter().map(|name| value(name).unwrap_or_else(|| "-".into()));
        let parameters = row.parameters.iter().cloned();
        parameters.chain(fixed).chain(values).chain([row.error.clone()]).collect()
    };
    (headings.map(str::to_owned).collect(), rows.iter().map(cells).collect())
}

fn cell(name: &str, number: &Number) -> String {
    let value = number.as_f64().unwrap_or(0.0);
    match name {
        "iops" => count(value.round() as u64),
        "bandwidth_bytes_per_s" => rate(value),
        name if name.ends_with("_ns") => duration(value.round() as u64),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(parameters: [&str; 3], seed: u64, iops: u32) -> Row {
        let mut values = vec![None; COLUMNS.len()];
        values[Column::index_of("iops").unwrap()] = Some(Number::from(iops));
        Row {
            parameters: parameters.map(str::to_owned).to_vec(),
            seed: Some(seed),
            job: "j".into(),
            direction: "read".into(),
            status: RunStatus::Ok,
            error: String::new(),
            replay: String::new(),
            values,
        }
    }

    fn keys() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    #[test]
    fn points_are_means_of_seeds_and_other_keys_have_panels() {
        let mut rows = Vec::new();
        for a in ["1", "2"] {
            for b in ["x", "y"] {
                for c in ["4k", "8k"] {
                    for seed in [0, 2] {
                        let base = if b == "x" { 100 } else { 200 };
                        rows.push(row([a, b, c], seed, base + seed as u32));
                    }
                }
            }
        }
        let found = charts(&keys(), &rows, &PlotSpec::default());
        let names: Vec<&str> = found.iter().map(|chart| chart.name.as_str()).collect();
        assert_eq!(names, ["iops-01-read", "iops-02-read"], "a panel for each c");
        let chart = &found[1].chart;
        assert_eq!(chart.title, "iops by a: j, read, c=8k");
        assert_eq!(chart.x, [("1".to_owned(), Some(1.0)), ("2".to_owned(), Some(2.0))]);
        assert_eq!(chart.lines[0].name, "b=x");
        assert_eq!(chart.lines[1].points, [Some(201.0), Some(201.0)]);
        let spec =
            PlotSpec { x: Some("c".into()), y: vec!["iops".into()], lines: Some("a".into()) };
        let found = charts(&keys(), &rows, &spec);
        assert_eq!(found[0].chart.x[0], ("4k".to_owned(), Some(4096.0)));
        assert_eq!((found.len(), found[0].chart.lines[0].name.as_str()), (2, "a=1"));
    }

    #[test]
    fn failed_runs_and_constant_keys_are_not_plotted() {
        let mut rows = vec![row(["1", "x", "c"], 0, 1), row(["2", "x", "c"], 0, 5)];
        rows[1].status = RunStatus::Failed;
        let found = charts(&keys(), &rows, &PlotSpec::default());
        assert_eq!((found.len(), found[0].chart.lines.len()), (1, 1));
        assert_eq!(found[0].chart.lines[0].points, [Some(1.0), None]);
        assert!(charts(&keys(), &rows[..1], &PlotSpec::default()).is_empty());
        let (headings, cells) = summary(&keys(), &rows);
        assert_eq!(headings.len(), cells[0].len());
        assert_eq!(cells[1][6], "failed");
    }
}
