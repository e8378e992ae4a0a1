//! [`KeyPath`]: the name of a key of a scenario, as `docs/scenario.md` has it.

use std::fmt;

use crate::SetProblem;

/// The name of a key: its section and the key, with dots between, such as `target.active_pus`.
///
/// Of sections in a list (`[[drive]]`, `[[job]]`), the name of one follows the section
/// (`job.reader.bs`), or `*` for all. A part with other characters than letters, digits, `-` and
/// `_` is in quotes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Parses a name.
    ///
    /// # Errors
    /// [`SetProblem::KeySyntax`] if a part is empty or needs quotes.
    pub fn parse(text: &str) -> Result<KeyPath, SetProblem> {
        let wrong = || SetProblem::KeySyntax { key: text.to_owned() };
        let mut parts = Vec::new();
        let mut rest = text.trim();
        loop {
            let (part, after) = match rest.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let inner = &rest[1..];
                    let end = inner.find(quote).ok_or_else(wrong)?;
                    (&inner[..end], &inner[end + 1..])
                }
                _ => {
                    let end = rest.find('.').unwrap_or(rest.len());
                    let part = &rest[..end];
                    if !is_bare(part) && part != "*" {
                        return Err(wrong());
                    }
                    (part, &rest[end..])
                }
            };
            if part.is_empty() {
                return Err(wrong());
            }
            parts.push(part.to_owned());
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => return Ok(KeyPath(parts)),
                None => return Err(wrong()),
            }
        }
    }

    /// Returns the path with these parts.
    pub(crate) fn from_parts(parts: Vec<String>) -> KeyPath {
        KeyPath(parts)
    }

    /// Returns the parts, at least one.
    pub fn parts(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            let dot = if index == 0 { "" } else { "." };
            match is_bare(part) || part == "*" {
                true => write!(f, "{dot}{part}")?,
                false if part.contains('"') => write!(f, "{dot}'{part}'")?,
                false => write!(f, "{dot}\"{part}\"")?,
            }
        }
        Ok(())
    }
}

fn is_bare(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_parsed_and_printed() {
        for text in ["seed", "drive.ftl.over_provisioning", "job.*.bs", "job.\"big reads\".bs"] {
            assert_eq!(KeyPath::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(KeyPath::parse("job.'a.b'.bs").unwrap().parts(), ["job", "a.b", "bs"]);
    }

    #[test]
    fn a_name_without_form_is_an_error() {
        for text in ["", ".", "a.", ".a", "a..b", "a b", "a.\"b", "a.\"b\"c", "a.\"\""] {
            let error = KeyPath::parse(text).unwrap_err();
            assert_eq!(error, SetProblem::KeySyntax { key: text.to_owned() });
        }
    }
}
