//! [`Recorded`]: the results of a figure, as they are kept.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::{Figure, FigureChart, FigureLine, ReproError, ResultRow, RowField};

/// Commit and machine of results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultOrigin {
    /// Commit of the code, with `+changes` if the code differs from it.
    pub commit: String,
    /// Date of the commit.
    pub date: String,
    /// The machine; `None` in virtual time.
    pub machine: Option<String>,
}

/// A row with its place in the figure.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownRow {
    /// Chart, line and x value; `None` for a row that no line shows.
    pub place: Option<(String, String, String)>,
    /// The row.
    pub row: ResultRow,
}

impl ShownRow {
    fn to_json(&self) -> String {
        prefix(self.place.as_ref()) + self.row.rest()
    }
}

/// Returns the beginning of a line, up to the row's own first key.
fn prefix(place: Option<&(String, String, String)>) -> String {
    match place {
        Some((chart, line, x)) => {
            format!("{{\"chart\":{},\"line\":{},\"x\":{},", json!(chart), json!(line), json!(x))
        }
        None => "{".into(),
    }
}

/// The results of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    origin: ResultOrigin,
    rows: Vec<ShownRow>,
}

impl Recorded {
    /// Selects the rows that a figure shows from those that its commands printed. Of several rows with
    /// the same case and metric, the first is taken.
    ///
    /// # Errors
    /// [`ReproError::Missing`] if a line lacks a row.
    pub fn select(
        figure: &Figure,
        all: &[ResultRow],
        origin: ResultOrigin,
    ) -> Result<Recorded, ReproError> {
        let mut known: HashMap<(&str, &str), &ResultRow> = HashMap::new();
        for row in all {
            known.entry((row.case(), row.metric())).or_insert(row);
        }
        let mut rows = Vec::new();
        for chart in figure.charts() {
            for line in &chart.line {
                for (x, text) in chart.x.iter().zip(chart.places(line)) {
                    let case = line.case.replace("{x}", text);
                    let row = known.get(&(case.as_str(), line.metric.as_str()));
                    let missing = || ReproError::Missing {
                        figure: figure.name().to_string(),
                        case: case.clone(),
                        metric: line.metric.clone(),
                    };
                    let row = (*row.ok_or_else(missing)?).clone();
                    let place = Some((chart.name.clone(), line.name.clone(), x.clone()));
                    rows.push(ShownRow { place, row });
                }
            }
        }
        let shown: HashSet<(String, String)> = rows
            .iter()
            .map(|shown: &ShownRow| (shown.row.case().to_owned(), shown.row.metric().to_owned()))
            .collect();
        for row in all {
            let key = (row.case().to_owned(), row.metric().to_owned());
            let is_also = figure.also().iter().any(|begin| row.case().starts_with(begin));
            if is_also && !shown.contains(&key) {
                rows.push(ShownRow { place: None, row: row.clone() });
            }
        }
        Ok(Recorded { origin, rows })
    }

    /// Returns the text of the file: a line with the figure's name, commit, machine and commands, and a
    /// line for each row.
    pub fn to_text(&self, figure: &Figure) -> String {
        let commands: Vec<String> =
            figure.commands().iter().map(|command| format!("sluice {command} --json")).collect();
        let mut head = format!(
            "{{\"figure\":{},\"class\":\"{}\",\"commit\":{},\"date\":{}",
            json!(figure.name().to_string()),
            figure.class().name(),
            json!(self.origin.commit),
            json!(self.origin.date)
        );
        if let Some(machine) = &self.origin.machine {
            head += &format!(",\"machine\":{}", json!(machine));
        }
        head += &format!(",\"commands\":{}}}\n", json!(commands));
        self.rows.iter().fold(head, |text, row| text + &row.to_json() + "\n")
    }

    /// Reads the text of a file. `origin` is for messages.
    ///
    /// # Errors
    /// [`ReproError::Row`] for a line that is neither the first nor a row.
    pub fn parse(origin: &str, text: &str) -> Result<Recorded, ReproError> {
        let wrong = |line: usize, problem: String| ReproError::Row {
            origin: origin.to_owned(),
            line,
            problem,
        };
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or_else(|| wrong(1, "it is empty".into()))?;
        let head: Value = serde_json::from_str(first).map_err(|e| wrong(1, e.to_string()))?;
        let commit = head["commit"].as_str().ok_or_else(|| wrong(1, "no `commit`".into()))?;
        let date = head["date"].as_str().unwrap_or_default().to_owned();
        let machine = head["machine"].as_str().map(str::to_owned);
        let mut rows = Vec::new();
        for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let object: Value =
                serde_json::from_str(line).map_err(|e| wrong(at + 1, e.to_string()))?;
            let word = |key: &str| object[key].as_str().map(str::to_owned);
            let place = match (word("chart"), word("line"), word("x")) {
                (Some(chart), Some(line), Some(x)) => Some((chart, line, x)),
                _ => None,
            };
            // Without the place, the row is as the command printed it.
            let rest = line.strip_prefix(&prefix(place.as_ref()));
            let rest =
                rest.ok_or_else(|| wrong(at + 1, "`chart`, `line` and `x` are not first".into()))?;
            let row = format!("{{{rest}");
            let row = ResultRow::parse(&row).map_err(|problem| wrong(at + 1, problem))?;
            rows.push(ShownRow { place, row });
        }
        let origin = ResultOrigin { commit: commit.to_owned(), date, machine };
        Ok(Recorded { origin, rows })
    }

    /// Commit and machine.
    pub fn origin(&self) -> &ResultOrigin {
        &self.origin
    }

    /// The rows.
    pub fn rows(&self) -> &[ShownRow] {
        &self.rows
    }

    /// Compares the rows with others of the same figure, byte for byte.
    ///
    /// # Errors
    /// [`ReproError::Differs`] with the first difference.
    pub fn compare(&self, measured: &Recorded, figure: &Figure) -> Result<(), ReproError> {
        let lines = |of: &Recorded| of.rows.iter().map(ShownRow::to_json).collect::<Vec<_>>();
        let (ours, theirs) = (lines(self), lines(measured));
        let most = ours.len().max(theirs.len());
        let mut different = (0..most).filter(|at| ours.get(*at) != theirs.get(*at));
        let Some(first) = different.next() else { return Ok(()) };
        let text = |of: &[String]| of.get(first).cloned().unwrap_or_else(|| "no row".into());
        Err(ReproError::Differs {
            figure: figure.name().to_string(),
            count: different.count() + 1,
            first: format!("{} is recorded, {} measured", text(&ours), text(&theirs)),
        })
    }

    /// Returns the values of a line at the x values of its chart, in the chart's unit.
    pub fn values(&self, chart: &FigureChart, line: &FigureLine) -> Vec<Option<f64>> {
        let value_at = |x: &String| {
            let is_here = |shown: &&ShownRow| {
                shown
                    .place
                    .as_ref()
                    .is_some_and(|(c, l, at)| (c, l, at) == (&chart.name, &line.name, x))
            };
            let row = &self.rows.iter().find(is_here)?.row;
            let value = match line.field {
                RowField::Value => row.value(),
                RowField::Reference => row.reference()?,
            };
            Some(value * line.times)
        };
        let mut values: Vec<Option<f64>> = chart.x.iter().map(value_at).collect();
        if let (true, Some(first)) = (line.relative, values.first().copied().flatten()) {
            for value in values.iter_mut().flatten() {
                *value /= first;
            }
        }
        values
    }
}
