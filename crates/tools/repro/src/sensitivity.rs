//! [`Sensitivity`]: which checks of a figure change when one number of its machine is halved or
//! doubled.

use serde_json::{Value, json};

use crate::{Figure, Judgement, ReproError, ResultOrigin};

/// Factors of each number.
pub(crate) const FACTORS: [f64; 2] = [0.5, 2.0];

/// A check that changes with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragileCheck {
    /// The number and its factor, as `KEY*FACTOR`.
    pub variation: String,
    /// The check's sentence.
    pub claim: String,
    /// Its formula with the values of the varied machine.
    pub measured: String,
    /// Whether it holds then, and not otherwise.
    pub holds: bool,
}

/// How the checks of a figure depend on the numbers of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensitivity {
    pub(crate) origin: ResultOrigin,
    pub(crate) numbers: Vec<String>,
    /// Variations that the machine does not accept.
    pub(crate) impossible: Vec<String>,
    pub(crate) fragile: Vec<FragileCheck>,
}

impl Sensitivity {
    pub(crate) fn new(figure: &Figure, origin: ResultOrigin) -> Sensitivity {
        let numbers = figure.vary().to_vec();
        Sensitivity { origin, numbers, impossible: Vec::new(), fragile: Vec::new() }
    }

    /// Adds the checks that differ between two judgements of a figure.
    pub(crate) fn add(&mut self, variation: &str, usual: &Judgement, varied: &Judgement) {
        let pairs = usual.checks.iter().zip(&varied.checks);
        self.fragile.extend(pairs.filter(|(before, after)| before.holds != after.holds).map(
            |(_, after)| FragileCheck {
                variation: variation.to_owned(),
                claim: after.claim.clone(),
                measured: after.measured.clone(),
                holds: after.holds,
            },
        ));
    }

    /// Commit of the code.
    pub fn origin(&self) -> &ResultOrigin {
        &self.origin
    }

    /// The numbers that were varied.
    pub fn numbers(&self) -> &[String] {
        &self.numbers
    }

    /// The variations that the machine does not accept, because its numbers would be impossible.
    pub fn impossible(&self) -> &[String] {
        &self.impossible
    }

    /// The checks that changed.
    pub fn fragile(&self) -> &[FragileCheck] {
        &self.fragile
    }

    /// Returns the text of the file: a line with the figure's name, commit and numbers, and a line for
    /// each check that changed.
    pub fn to_text(&self, figure: &Figure) -> String {
        let head = json!({
            "figure": figure.name().to_string(),
            "commit": self.origin.commit,
            "date": self.origin.date,
            "numbers": self.numbers,
            "impossible": self.impossible,
        });
        self.fragile.iter().fold(format!("{head}\n"), |text, check| {
            let FragileCheck { variation, claim, measured, holds } = check;
            let line = json!({
                "vary": variation, "claim": claim, "measured": measured, "holds": holds,
            });
            format!("{text}{line}\n")
        })
    }

    /// Reads the text of a file. `path` is for messages.
    ///
    /// # Errors
    /// [`ReproError::Row`] for a line that is neither the first nor a check.
    pub fn parse(path: &str, text: &str) -> Result<Sensitivity, ReproError> {
        let wrong = |line: usize, problem: &str| ReproError::Row {
            origin: path.to_owned(),
            line: line + 1,
            problem: problem.to_owned(),
        };
        let mut objects = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let object: Value =
                serde_json::from_str(line).map_err(|error| wrong(at, &error.to_string()))?;
            objects.push(object);
        }
        let head = objects.first().ok_or_else(|| wrong(0, "it is empty"))?;
        let word = |object: &Value, key: &str| object[key].as_str().map(str::to_owned);
        let words = |key: &str| -> Option<Vec<String>> {
            let list = head[key].as_array()?;
            list.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        };
        let commit = word(head, "commit").ok_or_else(|| wrong(0, "no `commit`"))?;
        let date = word(head, "date").unwrap_or_default();
        let numbers = words("numbers").ok_or_else(|| wrong(0, "no `numbers`"))?;
        let impossible = words("impossible").ok_or_else(|| wrong(0, "no `impossible`"))?;
        let mut fragile = Vec::new();
        for (at, object) in objects.iter().enumerate().skip(1) {
            let check = || {
                Some(FragileCheck {
                    variation: word(object, "vary")?,
                    claim: word(object, "claim")?,
                    measured: word(object, "measured")?,
                    holds: object["holds"].as_bool()?,
                })
            };
            fragile.push(check().ok_or_else(|| wrong(at, "it is no check"))?);
        }
        let origin = ResultOrigin { commit, date, machine: None };
        Ok(Sensitivity { origin, numbers, impossible, fragile })
    }
}

/// Returns a command with a variation of its machine; `None` for a command that has none.
pub(crate) fn varied(command: &str, variation: &str) -> Option<String> {
    match command.split_whitespace().next()? {
        "bench" => Some(format!("{command} --vary {variation}")),
        "sim" | "sweep" => Some(format!("{command} --set host.vary={variation}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckResult, FigureVerdict};

    fn judgement(holds: [bool; 2]) -> Judgement {
        let checks = holds.iter().zip(["a", "b"]).map(|(holds, claim)| CheckResult {
            claim: claim.to_owned(),
            measured: format!("{claim} = 1"),
            asked: "at least 1".to_owned(),
            holds: *holds,
            not_here: None,
        });
        let verdict = FigureVerdict::Reproduced;
        Judgement { checks: checks.collect(), verdict, failures: Vec::new() }
    }

    #[test]
    fn checks_that_change_are_kept_and_read_again() {
        let origin =
            ResultOrigin { commit: "abc".into(), date: "2026-01-01".into(), machine: None };
        let mut found = Sensitivity {
            origin,
            numbers: vec!["lines.hit".into()],
            impossible: vec!["lines.hit*2".into()],
            fragile: Vec::new(),
        };
        found.add("lines.hit*0.5", &judgement([true, false]), &judgement([true, false]));
        assert_eq!(found.fragile(), []);
        found.add("lines.hit*0.5", &judgement([true, false]), &judgement([false, true]));
        let [broken, mended] = found.fragile() else { panic!("{found:?}") };
        assert_eq!((broken.claim.as_str(), broken.holds), ("a", false));
        assert_eq!((mended.claim.as_str(), mended.holds), ("b", true));
        let text = "{\"commit\":\"abc\",\"numbers\":[]}";
        assert!(Sensitivity::parse("f", text).unwrap_err().to_string().contains("impossible"));
        assert!(Sensitivity::parse("f", "").unwrap_err().to_string().contains("empty"));
        let text = "{\"commit\":\"abc\",\"numbers\":[],\"impossible\":[]}\n{\"vary\":1}";
        assert!(Sensitivity::parse("f", text).unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn commands_of_machines_can_be_varied() {
        assert_eq!(varied("bench a", "k*2").unwrap(), "bench a --vary k*2");
        assert_eq!(varied("sim a.toml", "k*2").unwrap(), "sim a.toml --set host.vary=k*2");
        assert_eq!(varied("sweep a.toml", "k*2").unwrap(), "sweep a.toml --set host.vary=k*2");
        assert_eq!(varied("kv a.toml", "k*2"), None);
    }
}
