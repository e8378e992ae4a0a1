//! [`Section`] and [`Value`]: a TOML table that records the requested keys. A key that no reader
//! requested is an error with its location. Values return type errors with theirs.

use std::ops::Range;

use time::Nanos;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ProblemKind, ScenarioError};
use super::hints::{alias_of, nearest};
use super::renamed;
use super::source::{SourceSpan, SourceText};
use super::units;
use crate::format::printable;

pub(super) type Result<T> = std::result::Result<T, ScenarioError>;

/// A table being read. The reader requests every allowed key, then calls
/// [`finish`](Section::finish).
pub(super) struct Section<'a> {
    pub(super) source: &'a SourceText,
    /// Name in messages, such as `[drive.geometry]`.
    pub(super) name: String,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    requested_keys: Vec<&'static str>,
    /// Keys that were found by their former names.
    former_keys: Vec<&'static str>,
}

/// A keyword that a value may be, and its meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keyword<'a, T>(pub(super) &'a str, pub(super) T);

/// One value of a section.
#[derive(Clone)]
pub(super) struct Value<'a> {
    source: &'a SourceText,
    /// Section and key, such as `drive.geometry.channels`.
    pub(super) key: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Section<'a> {
    pub(super) fn root(source: &'a SourceText, table: &'a Spanned<DeTable<'a>>) -> Section<'a> {
        Section {
            source,
            name: String::new(),
            table: table.get_ref(),
            span: table.span(),
            requested_keys: Vec::new(),
            former_keys: Vec::new(),
        }
    }

    /// Returns the value of an allowed key.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.requested_keys.push(key);
        let (written, value) = match (self.table.get(key), renamed::old_key(&self.name, key)) {
            (Some(value), _) => (key, value),
            (None, Some(old)) => {
                let (found, value) = self.table.get_key_value(old)?;
                self.former_keys.push(old);
                self.source.record_former(found.span().start, old, key);
                (old, value)
            }
            (None, None) => return None,
        };
        let key =
            if self.name.is_empty() { written.into() } else { format!("{}.{written}", self.name) };
        Some(Value { source: self.source, key, value })
    }

    /// Returns the text of a key, without requesting it.
    pub(super) fn peek_string(&self, key: &str) -> Option<&'a str> {
        match self.table.get(key)?.get_ref() {
            DeValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the first of these keys that the table has, and its span, without requesting them.
    pub(super) fn first_of(&self, keys: &[&'static str]) -> Option<(&'static str, SourceSpan)> {
        let found =
            keys.iter().filter_map(|key| Some((*key, self.table.get_key_value(*key)?.0.span())));
        let (key, span) = found.min_by_key(|(_, span)| span.start)?;
        Some((key, SourceSpan { source: self.source.clone(), span }))
    }

    /// If the key is set, reads its value with `read` and stores it. Returns its span.
    pub(super) fn set<T>(
        &mut self,
        key: &'static str,
        into: &mut T,
        read: impl FnOnce(&Value<'a>) -> Result<T>,
    ) -> Result<Option<SourceSpan>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        *into = read(&value)?;
        Ok(Some(value.source_span()))
    }

    /// Returns the span of the section, for errors without a single key.
    pub(super) fn source_span(&self) -> SourceSpan {
        SourceSpan { source: self.source.clone(), span: first_line(self.source, self.span.clone()) }
    }

    pub(super) fn missing(&self, key: &'static str, help: impl Into<String>) -> ScenarioError {
        self.source_span().error(ProblemKind::MissingKey {
            section: self.title(),
            key,
            help: help.into(),
        })
    }

    /// Returns all keys and values in order, for a reader that accepts any.
    pub(super) fn pairs(&self) -> Vec<(&'a str, Value<'a>, Range<usize>)> {
        let mut pairs: Vec<_> = self
            .table
            .iter()
            .map(|(key, value)| {
                let name: &'a str = key.get_ref();
                let full = format!("{}.{name}", self.name);
                (name, Value { source: self.source, key: full, value }, key.span())
            })
            .collect();
        pairs.sort_by_key(|(_, _, span)| span.start);
        pairs
    }

    fn title(&self) -> String {
        if self.name.is_empty() { "a scenario".into() } else { format!("[{}]", self.name) }
    }

    /// Refuses keys that no reader requested.
    pub(super) fn finish(self) -> Result<()> {
        let unknown = self
            .table
            .keys()
            .filter(|key| {
                let mut known = self.requested_keys.iter().chain(&self.former_keys);
                !known.any(|asked| *asked == key.get_ref())
            })
            .min_by_key(|key| key.span().start);
        let Some(key) = unknown else { return Ok(()) };
        // A key that is read for several purposes is requested several times.
        let former = |asked: &&&str| renamed::old_key(&self.name, asked) == Some(key.get_ref());
        if let Some(new) = self.requested_keys.iter().find(former) {
            return Err(ScenarioError::new(
                self.source,
                key.span(),
                ProblemKind::Conflict {
                    message: format!(
                        "`{}` is the former name of `{new}`, which is there, too",
                        key.get_ref()
                    ),
                    help: format!("remove `{}`", key.get_ref()),
                },
            ));
        }
        let mut allowed: Vec<&str> = Vec::new();
        for asked in &self.requested_keys {
            if !allowed.contains(asked) {
                allowed.push(asked);
            }
        }
        let alias = alias_of(key.get_ref());
        let (nearest, elsewhere) = match alias {
            Some(alias) if allowed.contains(&alias.key) => (Some(alias.key), None),
            Some(alias) => (None, Some(format!("`{}` of {}", alias.key, alias.meaning))),
            None => (nearest(key.get_ref(), &allowed), None),
        };
        let problem = ProblemKind::UnknownKey {
            section: self.title(),
            key: printable(key.get_ref()).into_owned(),
            nearest: nearest.map(str::to_owned),
            elsewhere,
            allowed: allowed.into_iter().map(str::to_owned).collect(),
        };
        Err(ScenarioError::new(self.source, key.span(), problem))
    }
}

impl<'a> Value<'a> {
    pub(super) fn source_span(&self) -> SourceSpan {
        SourceSpan { source: self.source.clone(), span: first_line(self.source, self.value.span()) }
    }

    /// Resolves a path in the text, which is relative to the text's directory.
    pub(super) fn resolve(&self, path: &str) -> std::path::PathBuf {
        self.source.resolve(path)
    }

    /// Returns the line of the value, from 1.
    pub(super) fn line(&self) -> usize {
        self.source.line_column(self.value.span().start).0
    }

    fn display_text(&self) -> String {
        match self.value.get_ref() {
            DeValue::String(s) => format!("\"{}\"", printable(s)),
            DeValue::Integer(n) => n.as_str().to_owned(),
            DeValue::Float(n) => n.as_str().to_owned(),
            DeValue::Boolean(b) => b.to_string(),
            other => format!("a value of type {}", other.type_str()),
        }
    }

    pub(super) fn wrong_type(&self, expected: impl Into<String>) -> ScenarioError {
        let found = match self.value.get_ref() {
            DeValue::String(_) => format!("the string {}", self.display_text()),
            _ => self.display_text(),
        };
        let expected = expected.into();
        self.source_span().error(ProblemKind::WrongType { key: self.key.clone(), found, expected })
    }

    pub(super) fn refuse(&self, allowed: impl Into<String>) -> ScenarioError {
        self.source_span().error(ProblemKind::NotAllowed {
            key: self.key.clone(),
            value: self.display_text(),
            nearest: None,
            allowed: allowed.into(),
        })
    }

    /// Returns the error of a keyword that is not among these names.
    pub(super) fn refuse_name(&self, names: &[&str]) -> ScenarioError {
        let word = self.string().unwrap_or_default();
        self.source_span().error(ProblemKind::NotAllowed {
            key: self.key.clone(),
            value: self.display_text(),
            nearest: nearest(word, names).map(|n| format!("\"{n}\"")),
            allowed: names.join(", "),
        })
    }

    /// Returns the error of settings that exclude each other, at this value.
    pub(super) fn conflict(
        &self,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> ScenarioError {
        self.source_span()
            .error(ProblemKind::Conflict { message: message.into(), help: help.into() })
    }

    /// Returns the table or tables of `[x]` or `[[x]]`.
    pub(super) fn sections(&self, name: &str) -> Result<Vec<Section<'a>>> {
        let section = |spanned: &'a Spanned<DeValue<'a>>| match spanned.get_ref() {
            DeValue::Table(table) => Some(Section {
                source: self.source,
                name: name.to_owned(),
                table,
                span: spanned.span(),
                requested_keys: Vec::new(),
                former_keys: Vec::new(),
            }),
            _ => None,
        };
        let expected = || self.wrong_type(format!("a table `[{name}]` or tables `[[{name}]]`"));
        match self.value.get_ref() {
            DeValue::Table(_) => Ok(section(self.value).into_iter().collect()),
            DeValue::Array(items) => {
                items.iter().map(|item| section(item).ok_or_else(expected)).collect()
            }
            _ => Err(expected()),
        }
    }

    /// Returns the table.
    pub(super) fn section(&self) -> Result<Section<'a>> {
        match self.value.get_ref() {
            DeValue::Table(table) => Ok(Section {
                source: self.source,
                name: self.key.clone(),
                table,
                span: self.value.span(),
                requested_keys: Vec::new(),
                former_keys: Vec::new(),
            }),
            _ => Err(self.wrong_type(format!("a table `[{}]`", self.key))),
        }
    }

    /// Returns the elements of an array.
    pub(super) fn items(&self) -> Option<Vec<Value<'a>>> {
        match self.value.get_ref() {
            DeValue::Array(items) => Some(
                items
                    .iter()
                    .map(|value| Value { source: self.source, key: self.key.clone(), value })
                    .collect(),
            ),
            _ => None,
        }
    }

    pub(super) fn string(&self) -> Result<&'a str> {
        match self.value.get_ref() {
            DeValue::String(s) => Ok(s),
            _ => Err(self.wrong_type("a string")),
        }
    }

    /// Reads a string that is not empty and has no control characters.
    pub(super) fn printable(&self) -> Result<&'a str> {
        let text = self.string()?;
        if text.chars().any(char::is_control) {
            return Err(self.refuse("text without control characters such as newlines and escapes"));
        }
        if text.trim().is_empty() {
            return Err(self.refuse("text that is not empty"));
        }
        Ok(text)
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        match self.value.get_ref() {
            DeValue::Boolean(b) => Ok(*b),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    fn integer(&self) -> Option<i128> {
        match self.value.get_ref() {
            DeValue::Integer(n) => i128::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        }
    }

    pub(super) fn u64(&self) -> Result<u64> {
        let n = self.integer().ok_or_else(|| self.wrong_type("a whole number"))?;
        u64::try_from(n).map_err(|_| self.refuse("whole numbers from 0"))
    }

    pub(super) fn u32(&self) -> Result<u32> {
        let n = self.integer().ok_or_else(|| self.wrong_type("a whole number"))?;
        u32::try_from(n).map_err(|_| self.refuse(format!("whole numbers from 0 to {}", u32::MAX)))
    }

    /// Reads a whole number that is at least `least`.
    pub(super) fn u16_from(&self, least: u16) -> Result<u16> {
        let n = self.integer().ok_or_else(|| self.wrong_type("a whole number"))?;
        match u16::try_from(n) {
            Ok(n) if n >= least => Ok(n),
            _ => Err(self.refuse(format!("whole numbers from {least} to {}", u16::MAX))),
        }
    }

    /// Reads a number within a closed range.
    pub(super) fn number(&self, range: std::ops::RangeInclusive<f64>) -> Result<f64> {
        let n = match self.value.get_ref() {
            DeValue::Integer(_) => self.integer().map(|n| n as f64),
            DeValue::Float(n) => n.as_str().parse::<f64>().ok(),
            _ => None,
        }
        .ok_or_else(|| self.wrong_type("a number"))?;
        if range.contains(&n) {
            Ok(n)
        } else {
            Err(self.refuse(format!("numbers from {} to {}", range.start(), range.end())))
        }
    }

    fn with_unit<T>(&self, read: impl FnOnce(&str) -> Option<T>, expected: &str) -> Result<T> {
        let read = match self.value.get_ref() {
            DeValue::String(s) => read(s),
            DeValue::Integer(_) => {
                self.integer().filter(|n| *n >= 0).and_then(|n| read(&n.to_string()))
            }
            _ => None,
        };
        read.ok_or_else(|| self.wrong_type(expected))
    }

    pub(super) fn size(&self) -> Result<u64> {
        self.with_unit(units::size, units::SIZE)
    }

    pub(super) fn size_u32(&self) -> Result<u32> {
        u32::try_from(self.size()?).map_err(|_| self.refuse("sizes below 4G"))
    }

    pub(super) fn bandwidth(&self) -> Result<u64> {
        self.with_unit(units::bandwidth, units::BANDWIDTH)
    }

    /// Reads a bandwidth, or the transfers per second of an eight-bit bus.
    pub(super) fn channel_bandwidth(&self) -> Result<u64> {
        self.with_unit(units::channel_bandwidth, units::CHANNEL_BANDWIDTH)
    }

    pub(super) fn duration(&self) -> Result<Nanos> {
        self.with_unit(units::duration, units::DURATION)
    }

    /// Reads one of these keywords.
    pub(super) fn choice<T: Clone>(&self, choices: &[Keyword<'_, T>]) -> Result<T> {
        let mut word = self.string()?;
        if let Some(new) = renamed::new_word(&self.key, word)
            && choices.iter().any(|choice| choice.0 == new)
        {
            self.source.record_former(self.value.span().start, word, new);
            word = new;
        }
        if let Some(choice) = choices.iter().find(|choice| choice.0 == word) {
            return Ok(choice.1.clone());
        }
        let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
        Err(self.source_span().error(ProblemKind::NotAllowed {
            key: self.key.clone(),
            value: self.display_text(),
            nearest: nearest(word, &names).map(|n| format!("\"{n}\"")),
            allowed: quoted(&names),
        }))
    }

    /// Returns a value in fio's form: strings unchanged, numbers by their digits, booleans as 1 and
    /// 0.
    pub(super) fn raw(&self) -> Result<String> {
        match self.value.get_ref() {
            DeValue::String(s) => Ok(s.to_string()),
            DeValue::Integer(_) => {
                Ok(self.integer().ok_or_else(|| self.wrong_type("a whole number"))?.to_string())
            }
            DeValue::Float(n) => Ok(n.as_str().to_owned()),
            DeValue::Boolean(b) => Ok(u8::from(*b).to_string()),
            _ => Err(self.wrong_type("a string or a number, as a fio job file would have it")),
        }
    }
}

/// Formats keywords as in a scenario.
fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns the part of a span on its first line, because a caret under a complete table is not
/// helpful.
fn first_line(source: &SourceText, span: Range<usize>) -> Range<usize> {
    let text = source.text.get(span.clone()).unwrap_or("");
    let line = text.lines().next().unwrap_or("").trim_end();
    span.start..span.start + line.len()
}
