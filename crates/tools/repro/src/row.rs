//! [`ResultRow`]: a row of results as `sluice bench --json` prints it, or as the rows of `sluice sweep
//! --json` are read.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::ReproError;

/// A measured value with its case and metric.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    /// The row's JSON object, without a line break.
    text: String,
    case: String,
    metric: String,
    value: f64,
    reference: Option<f64>,
}

impl ResultRow {
    /// Reads a row.
    ///
    /// # Errors
    /// The problem of the text, for a message.
    pub fn parse(text: &str) -> Result<ResultRow, String> {
        let object: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let word = |key: &str| object[key].as_str().map(str::to_owned);
        Ok(ResultRow {
            text: text.trim().to_owned(),
            case: word("case").ok_or("no `case`")?,
            metric: word("metric").ok_or("no `metric`")?,
            value: object["value"].as_f64().ok_or("no `value`")?,
            reference: object["reference"]["value"].as_f64(),
        })
    }

    /// Reads what a command printed: one row per line, or the list that `sluice sweep --json -` prints.
    /// `origin` is for messages.
    ///
    /// # Errors
    /// [`ReproError::Row`] for a line that is no row.
    pub fn parse_all(origin: &str, text: &str) -> Result<Vec<ResultRow>, ReproError> {
        if text.trim_start().starts_with('[') {
            return sweep_rows(text).map_err(|problem| ReproError::Row {
                origin: origin.to_owned(),
                line: 1,
                problem,
            });
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parse = |(at, line): (usize, &str)| {
            let wrong =
                |problem| ReproError::Row { origin: origin.to_owned(), line: at + 1, problem };
            ResultRow::parse(line).map_err(wrong)
        };
        lines.map(parse).collect()
    }

    /// Returns each row of several runs once: the one with the median of its values, in the order of the
    /// first run that has it. Within a run, the first row with a case and metric counts.
    pub fn medians(runs: Vec<Vec<ResultRow>>) -> Vec<ResultRow> {
        let mut order: Vec<(String, String)> = Vec::new();
        let mut found: HashMap<(String, String), Vec<ResultRow>> = HashMap::new();
        for run in runs {
            let mut seen = HashSet::new();
            for row in run {
                let key = (row.case.clone(), row.metric.clone());
                if seen.insert(key.clone()) {
                    let rows = found.entry(key.clone()).or_default();
                    if rows.is_empty() {
                        order.push(key);
                    }
                    rows.push(row);
                }
            }
        }
        let median = |key: (String, String)| {
            let mut rows = found.remove(&key)?;
            rows.sort_by(|a, b| a.value.total_cmp(&b.value));
            let middle = (rows.len() - 1) / 2;
            Some(rows.swap_remove(middle))
        };
        order.into_iter().filter_map(median).collect()
    }

    /// Its case.
    pub fn case(&self) -> &str {
        &self.case
    }

    /// Its metric.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// Its value, in the unit that the command prints.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The value that the command compares it with.
    pub fn reference(&self) -> Option<f64> {
        self.reference
    }

    /// Its JSON object without the first brace.
    pub(crate) fn rest(&self) -> &str {
        self.text.strip_prefix('{').unwrap_or(&self.text).trim_start()
    }
}

/// Columns of a sweep that are no measured values.
const FIXED: [&str; 7] = ["parameters", "seed", "job", "direction", "status", "error", "replay"];

/// Returns a row for each measured value of each run of a sweep. Runs that differ in their seed only are
/// one row, their mean. The case is `KEY=VALUE, …, JOB, DIRECTION`.
fn sweep_rows(text: &str) -> Result<Vec<ResultRow>, String> {
    let list: Vec<Map<String, Value>> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut order: Vec<(String, String)> = Vec::new();
    let mut values: HashMap<(String, String), Vec<f64>> = HashMap::new();
    for row in &list {
        let word = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        if word("status") != "ok" {
            return Err(format!("a run of the sweep failed: {}", word("error")));
        }
        let parameters =
            row.get("parameters").and_then(Value::as_object).ok_or("no `parameters`")?;
        let mut parts: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        parts.extend([word("job"), word("direction")].into_iter().filter(|part| !part.is_empty()));
        let case = parts.join(", ");
        for (metric, value) in row.iter().filter(|(key, _)| !FIXED.contains(&key.as_str())) {
            let Some(value) = value.as_f64() else { continue };
            let key = (case.clone(), metric.clone());
            let all = values.entry(key.clone()).or_default();
            if all.is_empty() {
                order.push(key);
            }
            all.push(value);
        }
    }
    let row = |key: (String, String)| {
        let all = &values[&key];
        let value = all.iter().sum::<f64>() / all.len() as f64;
        let (case, metric) = key;
        let text = |text: &str| Value::from(text).to_string();
        let unit = match metric.as_str() {
            "bandwidth_bytes_per_s" => "B/s",
            "runtime_ms" => "ms",
            "iops" => "IOPS",
            "bytes" => "bytes",
            name if name.ends_with("_ns") => "ns",
            _ => "",
        };
        let line = format!(
            "{{\"bench\":\"sweep\",\"case\":{},\"metric\":{},\"value\":{},\"unit\":\"{unit}\"}}",
            text(&case),
            text(&metric),
            Value::from(value)
        );
        ResultRow { text: line, case, metric, value, reference: None }
    };
    Ok(order.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_benches_or_of_sweeps() {
        let text = "{\"bench\":\"b\",\"case\":\"a\",\"metric\":\"m\",\"value\":2.5,\"unit\":\"us\",\
                    \"reference\":{\"what\":\"paper\",\"value\":3.0}}\n\n";
        let rows = ResultRow::parse_all("b", text).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].case(), rows[0].metric()), ("a", "m"));
        assert_eq!((rows[0].value(), rows[0].reference()), (2.5, Some(3.0)));
        let run = |seed, iops| {
            format!(
                "{{\"parameters\":{{\"job.iodepth\":\"4\"}},\"seed\":{seed},\"job\":\"w\",\
                 \"direction\":\"write\",\"status\":\"ok\",\"error\":\"\",\"replay\":\"x\",\
                 \"iops\":{iops},\"waf\":null}}"
            )
        };
        let rows = ResultRow::parse_all("s", &format!("[{},{}]", run(0, 10), run(1, 20))).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].case(), "job.iodepth=4, w, write");
        assert_eq!((rows[0].metric(), rows[0].value()), ("iops", 15.0));
        assert_eq!(ResultRow::parse(&rows[0].text), Ok(rows[0].clone()));
    }

    #[test]
    fn what_is_no_row_is_an_error_with_its_line() {
        for (text, line) in [("\n{}", 2), ("x", 1), ("{\"case\":\"a\",\"metric\":\"b\"}", 1)] {
            let error = ResultRow::parse_all("f", text).unwrap_err();
            assert!(matches!(error, ReproError::Row { line: at, .. } if at == line), "{error}");
        }
        let failed = "[{\"parameters\":{},\"status\":\"failed\",\"error\":\"no space\"}]";
        let error = ResultRow::parse_all("f", failed).unwrap_err();
        assert!(error.to_string().contains("no space"), "{error}");
    }
}
