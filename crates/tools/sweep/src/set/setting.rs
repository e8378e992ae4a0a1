//! [`Setting`]: a key of a scenario with the values that it takes.

use std::fmt;
use std::path::PathBuf;

use toml_edit::Value;

use crate::{KeyPath, SetError, SetProblem};

/// The text in which a user set a key, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetOrigin {
    /// The argument of `--set`.
    Argument(String),
    /// A parameter of a program's call: its key.
    Parameter(String),
    /// A line of a sweep file, from 1.
    File {
        /// Path of the file as given.
        path: PathBuf,
        /// The line.
        line: usize,
    },
}

impl fmt::Display for SetOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetOrigin::Argument(text) => write!(f, "--set {text}"),
            SetOrigin::Parameter(key) => write!(f, "parameter {key:?}"),
            SetOrigin::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// A value of a key.
#[derive(Clone, Debug)]
pub struct SettingValue {
    value: Value,
    text: String,
}

impl SettingValue {
    /// Parses a value of a command line: a TOML value, or else a string without its quotes.
    pub fn parse(text: &str) -> SettingValue {
        let text = text.trim();
        let value = text.parse::<Value>().unwrap_or_else(|_| Value::from(text));
        SettingValue::new(value)
    }

    /// Returns a value of a sweep file.
    pub(crate) fn new(mut value: Value) -> SettingValue {
        value.decor_mut().clear();
        let text = match value.as_str() {
            // Without quotes, unless it would be another value without them.
            Some(text) if is_plain(text) => text.to_owned(),
            _ => value.to_string().trim().to_owned(),
        };
        SettingValue { value, text }
    }

    /// Returns the value as an argument of `--set` has it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the value as a number; `None` if it is none. Sizes such as `4k` are bytes, and
    /// durations such as `10us` are none.
    pub fn number(&self) -> Option<f64> {
        match &self.value {
            Value::Integer(n) => Some(*n.value() as f64),
            Value::Float(n) => Some(*n.value()),
            Value::String(text) => size(text.value()),
            _ => None,
        }
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

/// Two values are equal if the scenario cannot tell them apart.
impl PartialEq for SettingValue {
    fn eq(&self, other: &SettingValue) -> bool {
        match (&self.value, &other.value) {
            (Value::Integer(a), Value::Integer(b)) => a.value() == b.value(),
            (Value::Float(a), Value::Float(b)) => a.value().to_bits() == b.value().to_bits(),
            _ => self.text == other.text,
        }
    }
}

/// Returns whether a string is the same value without its quotes.
fn is_plain(text: &str) -> bool {
    let has_special = text.chars().any(|c| matches!(c, ',' | '"' | '\'' | '[' | '{' | '\\'));
    !text.is_empty()
        && text.trim() == text
        && !has_special
        && !text.chars().any(char::is_control)
        && text.parse::<Value>().is_err()
}

/// Returns a size as bytes, with the suffixes of fio.
fn size(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match text[digits..].to_ascii_lowercase().as_str() {
        "k" => 1u64 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    text[..digits].parse::<f64>().ok().map(|number| number * factor as f64)
}

/// A key with its values, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key.
    pub key: KeyPath,
    /// The values, none of them twice.
    pub values: Vec<SettingValue>,
    /// The text that set it.
    pub origin: SetOrigin,
}

impl Setting {
    /// Parses `key=value,value…`. Commas in quotes, brackets and braces do not separate values.
    ///
    /// # Errors
    /// [`SetError`] for another form, no value, or a value that occurs twice.
    pub fn parse(argument: &str) -> Result<Setting, SetError> {
        let origin = SetOrigin::Argument(argument.to_owned());
        let error = |problem| SetError { origin: origin.clone(), problem };
        let (key, values) = argument.split_once('=').ok_or_else(|| error(SetProblem::NoValue))?;
        let key = KeyPath::parse(key).map_err(error)?;
        let parts = split(values);
        if values.trim().is_empty() {
            return Err(error(SetProblem::NoValue));
        }
        if parts.iter().any(|part| part.trim().is_empty()) {
            return Err(error(SetProblem::EmptyValue));
        }
        let values = parts.into_iter().map(SettingValue::parse).collect();
        Setting::new(key, values, origin)
    }

    /// Returns a setting.
    ///
    /// # Errors
    /// [`SetError`] for no value, or a value that occurs twice.
    pub fn new(
        key: KeyPath,
        values: Vec<SettingValue>,
        origin: SetOrigin,
    ) -> Result<Setting, SetError> {
        if values.is_empty() {
            return Err(SetError { origin, problem: SetProblem::NoValue });
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].contains(value) {
                let problem = SetProblem::RepeatedValue { value: value.text().to_owned() };
                return Err(SetError { origin, problem });
            }
        }
        Ok(Setting { key, values, origin })
    }
}

/// Splits a text at its commas outside of quotes, brackets and braces.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut is_escaped) = (0usize, None, false);
    let mut starts = vec![0];
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some('"'), '\\') if !is_escaped => {
                is_escaped = true;
                continue;
            }
            (Some(open), c) if c == open && !is_escaped => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => starts.push(at + 1),
            (None, _) => {}
        }
        is_escaped = false;
    }
    let ends = starts.iter().skip(1).map(|start| start - 1).chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(argument: &str) -> Vec<String> {
        let setting = Setting::parse(argument).unwrap();
        setting.values.iter().map(|value| value.text().to_owned()).collect()
    }

    fn problem(argument: &str) -> SetProblem {
        Setting::parse(argument).unwrap_err().problem
    }

    #[test]
    fn values_are_separated_by_commas_outside_of_quotes_and_brackets() {
        assert_eq!(texts("job.reader.bs=4k,8k"), ["4k", "8k"]);
        assert_eq!(texts("a=1, 2.5 ,true"), ["1", "2.5", "true"]);
        assert_eq!(texts("a=[1, 2],{ b = 1, c = 2 }"), ["[1, 2]", "{ b = 1, c = 2 }"]);
        assert_eq!(texts(r#"a="x,y",'z'"#), [r#""x,y""#, "z"]);
        assert_eq!(texts(r#"a="1",1"#), [r#""1""#, "1"], "a string and a number are two values");
    }

    #[test]
    fn text_of_a_value_parses_to_the_value() {
        for text in ["4k", "0.07", "\"1\"", "[1, 2]", "random 1x", "\"a,b\"", "true", "\"\""] {
            let value = SettingValue::parse(text);
            assert_eq!(SettingValue::parse(value.text()), value, "{text}");
            assert_eq!(value.text(), text);
        }
    }

    #[test]
    fn sizes_are_numbers_of_bytes() {
        let number = |text: &str| SettingValue::parse(text).number();
        assert_eq!(
            (number("4k"), number("0.5"), number("7")),
            (Some(4096.0), Some(0.5), Some(7.0))
        );
        assert_eq!((number("10us"), number("pblk"), number("true")), (None, None, None));
    }

    #[test]
    fn a_setting_without_form_or_with_a_repeated_value_is_an_error() {
        assert_eq!(problem("seed"), SetProblem::NoValue);
        assert_eq!(problem("seed="), SetProblem::NoValue);
        assert_eq!(problem("seed=1,,2"), SetProblem::EmptyValue);
        assert_eq!(problem("seed=1,2,1"), SetProblem::RepeatedValue { value: "1".into() });
        assert_eq!(problem("a=0.1,0.10"), SetProblem::RepeatedValue { value: "0.10".into() });
        assert!(matches!(problem("=1"), SetProblem::KeySyntax { .. }));
        let error = Setting::parse("seed=").unwrap_err().to_string();
        assert!(error.starts_with("--set seed=: it has no value; expected key=value"), "{error}");
    }
}
