//! Ratchets: the largest result of each check that the tree may have.
//!
//! `ratchets.toml` has a table per check and an entry per crate, file or type. An entry that is missing
//! is zero. A result above its entry fails, and so does a result below it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;

use crate::checks::{CHECKS, Check, Violation};
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// Results or limits of one check by key.
pub type Counts = BTreeMap<String, u64>;

/// The contents of `ratchets.toml`: limits by check.
pub type Ratchets = BTreeMap<String, Counts>;

const HEADER: &str = "\
# The largest result of each check that the tree may have; see the documentation of `sluice-lint`.
# `SLUICE_LINT_UPDATE=1 cargo test -p sluice-lint` lowers the entries.
";

/// Whether a run may write the ratchets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The ratchets are only read.
    Never,
    /// Entries are lowered. A check without a table gets one with its results.
    Lower,
    /// As `Lower`, and new entries are added while the sum of the check's entries does not grow.
    Move,
}

impl Update {
    /// Reads `SLUICE_LINT_UPDATE`.
    ///
    /// # Panics
    ///
    /// If the variable has another value than `0`, `1` or `move`.
    pub fn from_env() -> Self {
        match std::env::var("SLUICE_LINT_UPDATE").as_deref() {
            Err(_) | Ok("" | "0") => Self::Never,
            Ok("1") => Self::Lower,
            Ok("move") => Self::Move,
            Ok(other) => panic!("SLUICE_LINT_UPDATE is {other:?}; it can be 0, 1 or move"),
        }
    }
}

/// Adds up violations by key.
pub fn counts(violations: &[Violation]) -> Counts {
    let mut counts = Counts::new();
    for violation in violations {
        *counts.entry(violation.key.clone()).or_default() += violation.weight;
    }
    counts
}

/// The ratchets that an update would write.
pub fn updated(old: Option<&Counts>, counts: &Counts, update: Update) -> Counts {
    let Some(old) = old else {
        return if update == Update::Never { Counts::new() } else { counts.clone() };
    };
    if update == Update::Never {
        return old.clone();
    }
    let count_of = |key| counts.get(key).copied().unwrap_or(0);
    let lowered = old.iter().map(|(key, &limit)| (key.clone(), limit.min(count_of(key))));
    let mut new: Counts = lowered.filter(|&(_, limit)| limit > 0).collect();
    if update == Update::Move {
        let mut spare = old.values().sum::<u64>() - new.values().sum::<u64>();
        for (key, &count) in counts.iter().filter(|(key, _)| !old.contains_key(*key)) {
            if count <= spare {
                spare -= count;
                new.insert(key.clone(), count);
            }
        }
    }
    new
}

/// Compares results with their limits. The error says what to do.
pub fn compare(check: &str, violations: &[Violation], limits: &Counts) -> Result<(), String> {
    let counts = counts(violations);
    let mut message = String::new();
    for (key, &count) in &counts {
        let limit = limits.get(key).copied().unwrap_or(0);
        if count > limit {
            let _ = writeln!(message, "{check}: {key}: {count} is above the ratchet {limit}:");
            for violation in violations.iter().filter(|v| v.key == *key) {
                let _ = writeln!(message, "  {violation}");
            }
        }
    }
    for (key, &limit) in limits {
        let count = counts.get(key).copied().unwrap_or(0);
        if count < limit {
            let _ = writeln!(message, "{check}: {key}: lower the ratchet from {limit} to {count}");
        }
    }
    if message.is_empty() { Ok(()) } else { Err(message) }
}

/// Reads `ratchets.toml`. A missing file has no limits.
pub fn load(path: &Path) -> Result<Ratchets, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Ratchets::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The text of `ratchets.toml`, with the tables in the order of [`CHECKS`].
pub fn render(ratchets: &Ratchets) -> String {
    let mut text = HEADER.to_owned();
    for check in CHECKS {
        let Some(counts) = ratchets.get(check.name) else { continue };
        let _ = write!(text, "\n# {}\n[{}]\n", check.purpose, check.name);
        for (key, count) in counts {
            let _ = writeln!(text, "{} = {count}", toml::Value::String(key.clone()));
        }
    }
    text
}

/// Runs a check, updates its ratchets if asked to, and compares.
///
/// The error contains all messages, one per line.
pub fn enforce(
    check: &Check,
    workspace: &Workspace,
    config: &LintConfig,
    path: &Path,
    update: Update,
) -> Result<(), String> {
    /// Checks run in parallel and share the file.
    static FILE: Mutex<()> = Mutex::new(());

    let violations = (check.run)(workspace, config);
    let _guard = FILE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut ratchets = load(path)?;
    let old = ratchets.get(check.name);
    let new = updated(old, &counts(&violations), update);
    if update != Update::Never && old != Some(&new) {
        ratchets.insert(check.name.to_owned(), new.clone());
        std::fs::write(path, render(&ratchets)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    compare(check.name, &violations, &new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(key: &str, weight: u64) -> Violation {
        Violation {
            key: key.into(),
            path: "a.rs".into(),
            line: 7,
            weight,
            message: "too much".into(),
        }
    }

    fn limits(entries: &[(&str, u64)]) -> Counts {
        entries.iter().map(|&(key, limit)| (key.to_owned(), limit)).collect()
    }

    #[test]
    fn a_result_above_its_ratchet_lists_the_violations() {
        let found = [violation("ftl", 1), violation("ftl", 1), violation("kv", 1)];
        let error = compare("x", &found, &limits(&[("ftl", 1), ("kv", 1)])).unwrap_err();
        assert_eq!(
            error,
            "x: ftl: 2 is above the ratchet 1:\n  a.rs:7: too much\n  a.rs:7: too much\n"
        );
    }

    #[test]
    fn a_result_below_its_ratchet_fails() {
        let error = compare("x", &[violation("ftl", 3)], &limits(&[("ftl", 5), ("kv", 1)]));
        let expected =
            "x: ftl: lower the ratchet from 5 to 3\nx: kv: lower the ratchet from 1 to 0\n";
        assert_eq!(error.unwrap_err(), expected);
    }

    #[test]
    fn an_update_lowers_and_never_raises() {
        let old = limits(&[("a", 5), ("b", 2), ("c", 1)]);
        let counts = limits(&[("a", 3), ("b", 4), ("d", 1)]);
        assert_eq!(updated(Some(&old), &counts, Update::Lower), limits(&[("a", 3), ("b", 2)]));
        assert_eq!(updated(Some(&old), &counts, Update::Never), old);
        assert_eq!(updated(None, &counts, Update::Lower), counts);
        assert_eq!(updated(None, &counts, Update::Never), Counts::new());
    }

    #[test]
    fn a_move_keeps_the_sum() {
        let old = limits(&[("a", 5), ("b", 2)]);
        let moved = |counts: &Counts| updated(Some(&old), counts, Update::Move);
        assert_eq!(moved(&limits(&[("a2", 5), ("b", 2)])), limits(&[("a2", 5), ("b", 2)]));
        assert_eq!(
            moved(&limits(&[("a", 3), ("b", 3), ("c", 1)])),
            limits(&[("a", 3), ("b", 2), ("c", 1)])
        );
        assert_eq!(moved(&limits(&[("a2", 6), ("b", 2)])), limits(&[("b", 2)]));
    }

    #[test]
    fn what_is_rendered_can_be_read() {
        let name = CHECKS[0].name;
        let ratchets = Ratchets::from([(name.to_owned(), limits(&[("ftl::Ftl", 46)]))]);
        assert_eq!(toml::from_str::<Ratchets>(&render(&ratchets)).unwrap(), ratchets);
    }
}
