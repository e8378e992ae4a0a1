//! [`ExpectedMisses`]: rows that are known to miss their bound, with reasons; every other miss makes the command fail.

use std::path::Path;

use serde::Deserialize;

use super::sink::{bound_text, number};
use super::{BenchError, Measurement, Verdict};

/// Rows that may miss their bound.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedMisses {
    /// One entry per row or group of rows.
    #[serde(default, rename = "miss")]
    misses: Vec<ExpectedMiss>,
}

/// An entry of the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedMiss {
    /// The group of the row.
    pub bench: String,
    /// The row's case; a `*` stands for any characters.
    pub case: String,
    /// The row's metric.
    pub metric: String,
    /// Why the bound is not met.
    pub reason: String,
    /// Whether the row passes on some runs or machines.
    #[serde(default)]
    pub sometimes: bool,
}

impl ExpectedMiss {
    fn covers(&self, row: &Measurement) -> bool {
        self.bench == row.bench && self.metric == row.metric && matches(&self.case, &row.case)
    }
}

impl ExpectedMisses {
    /// The list that comes with Sluice.
    ///
    /// # Errors
    /// None in a build whose tests pass: the list is compiled in.
    pub fn built_in() -> Result<ExpectedMisses, BenchError> {
        ExpectedMisses::parse(include_str!("expected.toml"))
    }

    /// The list in a file, or else [the one that comes with Sluice](ExpectedMisses::built_in).
    ///
    /// # Errors
    /// [`BenchError::Usage`] where the file cannot be read or is no list.
    pub fn load(path: Option<&Path>) -> Result<ExpectedMisses, BenchError> {
        let Some(path) = path else { return ExpectedMisses::built_in() };
        let text = std::fs::read_to_string(path)
            .map_err(|e| BenchError::Usage(format!("{}: {e}", path.display())))?;
        ExpectedMisses::parse(&text)
    }

    /// A list in TOML.
    ///
    /// # Errors
    /// [`BenchError::Usage`] where the text is not TOML, has other keys, or an entry has no reason.
    pub fn parse(text: &str) -> Result<ExpectedMisses, BenchError> {
        let list: ExpectedMisses =
            toml::from_str(text).map_err(|e| BenchError::Usage(format!("expected misses: {e}")))?;
        match list.misses.iter().find(|miss| miss.reason.trim().is_empty()) {
            Some(miss) => {
                Err(BenchError::Usage(format!("expected misses: {}: no reason", miss.case)))
            }
            None => Ok(list),
        }
    }

    /// Compares the verdicts of a run with the list, and says on standard error what of the list the run does not need.
    ///
    /// # Errors
    /// [`BenchError::OutOfBounds`] with every row outside of its bound that the list does not have.
    pub fn judge(&self, judged: &[Measurement]) -> Result<(), BenchError> {
        let failed = |row: &&Measurement| row.verdict() == Some(Verdict::Fail);
        for miss in &self.misses {
            let rows = || judged.iter().filter(|row| miss.covers(row));
            if !miss.sometimes && rows().next().is_some() && rows().all(|row| !failed(&row)) {
                let ExpectedMiss { bench, case, metric, .. } = miss;
                eprintln!(
                    "note: {bench}, {case}, {metric} is within its bound: no longer an expected miss"
                );
            }
        }
        let expected = |row: &&Measurement| self.misses.iter().any(|miss| miss.covers(row));
        let missed: Vec<String> = judged
            .iter()
            .filter(failed)
            .filter(|row| !expected(row))
            .map(|row| format!("  {}, {}, {}: {}", row.bench, row.case, row.metric, outside(row)))
            .collect();
        if missed.is_empty() {
            return Ok(());
        }
        Err(BenchError::OutOfBounds(format!(
            "{} outside of the bound, and not an expected miss:\n{}",
            if missed.len() == 1 {
                "a result is".into()
            } else {
                format!("{} results are", missed.len())
            },
            missed.join("\n")
        )))
    }
}

/// The value and its bound.
fn outside(row: &Measurement) -> String {
    let value = format!("{} {}", number(row.value), row.unit);
    let bound = row.bound.map_or_else(String::new, bound_text);
    format!("{}, must be {bound}", value.trim_end())
}

/// Whether `pattern`, in which a `*` stands for any characters, is all of `text`.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    loop {
        if matches(rest, text) {
            return true;
        }
        let mut chars = text.chars();
        if chars.next().is_none() {
            return false;
        }
        text = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        "[[miss]]\nbench = \"ring\"\ncase = \"bare *\"\nmetric = \"m\"\nreason = \"the machine\"\n";

    fn row(case: &str, value: f64) -> Measurement {
        Measurement::new("ring", case, "m", value, "ns").at_most(1.0)
    }

    #[test]
    fn an_unexpected_miss_is_a_failure_of_its_own() {
        let none = ExpectedMisses::default();
        none.judge(&[row("a", 1.0)]).unwrap();
        let error = none.judge(&[row("a", 1.0), row("b", 1.5), row("c", 2.0)]).unwrap_err();
        assert!(matches!(error, BenchError::OutOfBounds(_)));
        let said = error.to_string();
        assert!(said.contains("2 results are outside"), "{said}");
        assert!(said.contains("  ring, b, m: 1.5") && said.contains("at most 1.0"), "{said}");
        assert!(!said.contains("ring, a"), "{said}");
    }

    #[test]
    fn a_miss_in_the_list_is_none() {
        let list = ExpectedMisses::parse(LIST).unwrap();
        list.judge(&[row("bare rings", 2.0), row("bare rings", 0.5)]).unwrap();
        assert!(list.judge(&[row("rings", 2.0)]).is_err(), "another case");
        let other = Measurement::new("ring", "bare rings", "n", 2.0, "ns").at_most(1.0);
        assert!(list.judge(&[other]).is_err(), "another metric");
        let other = Measurement::new("sim", "bare rings", "m", 2.0, "ns").at_most(1.0);
        assert!(list.judge(&[other]).is_err(), "another group");
    }

    #[test]
    fn an_entry_without_a_reason_or_with_other_keys_is_refused() {
        assert!(ExpectedMisses::parse(&LIST.replace("the machine", " ")).is_err());
        assert!(ExpectedMisses::parse(&format!("{LIST}nonsense = 1\n")).is_err());
        assert!(ExpectedMisses::parse(&LIST.replace("metric", "metrics")).is_err());
    }

    #[test]
    fn the_built_in_list_has_reasons() {
        for miss in ExpectedMisses::built_in().unwrap().misses {
            assert!(miss.reason.len() > 20, "{}: {}", miss.case, miss.reason);
            assert!(miss.case != "*", "{}: all cases at once", miss.bench);
        }
    }
}
