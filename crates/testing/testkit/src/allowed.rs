//! [`AllowedSkips`]: the committed list of tests that may be skipped where nothing else may.

use serde::Deserialize;

/// Tests that may be skipped with `SLUICE_REQUIRE=1`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedSkips {
    /// One entry per test or group of tests.
    #[serde(default, rename = "skip")]
    pub skips: Vec<AllowedSkip>,
}

/// An entry of the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedSkip {
    /// The test's name; a `*` stands for any characters.
    pub test: String,
    /// Why the test cannot run everywhere.
    pub reason: String,
}

impl AllowedSkips {
    /// The list in `allowed-skips.toml`.
    ///
    /// # Panics
    /// If the committed file is not a list; a test of this crate reads it.
    pub fn committed() -> AllowedSkips {
        let text = include_str!("../allowed-skips.toml");
        AllowedSkips::parse(text).unwrap_or_else(|e| panic!("allowed-skips.toml: {e}"))
    }

    /// A list in TOML.
    ///
    /// # Errors
    /// What is not TOML, has other keys, or gives no reason.
    pub fn parse(text: &str) -> Result<AllowedSkips, String> {
        let list: AllowedSkips = toml::from_str(text).map_err(|e| e.to_string())?;
        match list.skips.iter().find(|skip| skip.reason.trim().is_empty()) {
            Some(skip) => Err(format!("{} has no reason", skip.test)),
            None => Ok(list),
        }
    }

    /// Why `test` may be skipped; `None` if it may not.
    pub fn reason(&self, test: &str) -> Option<&str> {
        let skip = self.skips.iter().find(|skip| matches(&skip.test, test))?;
        Some(&skip.reason)
    }
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

    #[test]
    fn the_committed_list_has_reasons() {
        for AllowedSkip { test, reason } in AllowedSkips::committed().skips {
            assert!(reason.len() > 20, "{test}: {reason}");
            // All tests of a package at once would hide the next one that is skipped.
            assert!(
                !test.starts_with('*') && !test.ends_with("::*") || test.matches("::").count() > 2
            );
        }
    }

    #[test]
    fn a_list_without_a_reason_or_with_other_keys_is_refused() {
        assert!(AllowedSkips::parse("[[skip]]\ntest = \"a\"\nreason = \" \"\n").is_err());
        assert!(AllowedSkips::parse("[[skip]]\ntest = \"a\"\n").is_err());
        assert!(AllowedSkips::parse("[[skip]]\ntest = \"a\"\nreason = \"b\"\nc = 1\n").is_err());
        assert!(AllowedSkips::parse("").unwrap().skips.is_empty());
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, is_match) in [
            ("a::b", "a::b", true),
            ("a::b", "a::bc", false),
            ("a::*", "a::b::c", true),
            ("a::*::c", "a::b::c", true),
            ("a::*::c", "a::c", false),
            ("*", "", true),
            ("*c", "abcc", true),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }
}
