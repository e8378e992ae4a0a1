//! [`FigureCheck`]: what must be true of a figure's values for the paper's claim to hold here.

use std::fmt;

use serde::Deserialize;

use crate::figure::one_line;

/// Place of a point on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PointLocation {
    /// At an x value.
    At(String),
    /// The first point.
    First,
    /// The last point.
    Last,
    /// The largest value.
    Max,
    /// The smallest value.
    Min,
}

/// A point of a line: `LINE@X` or `CHART/LINE@X`, where X is an x value, `first`, `last`, `max` or `min`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointName {
    line: String,
    place: PointLocation,
}

impl PointName {
    /// Reads a point's name. `None` without a line or a place.
    pub fn parse(text: &str) -> Option<PointName> {
        let (line, place) = text.rsplit_once('@')?;
        let place = match place {
            "" => return None,
            "first" => PointLocation::First,
            "last" => PointLocation::Last,
            "max" => PointLocation::Max,
            "min" => PointLocation::Min,
            x => PointLocation::At(x.to_owned()),
        };
        (!line.is_empty()).then(|| PointName { line: line.to_owned(), place })
    }

    /// The line's name.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The place on the line.
    pub fn place(&self) -> &PointLocation {
        &self.place
    }
}

impl fmt::Display for PointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            PointLocation::At(x) => x,
            PointLocation::First => "first",
            PointLocation::Last => "last",
            PointLocation::Max => "max",
            PointLocation::Min => "min",
        };
        write!(f, "{}@{place}", self.line)
    }
}

/// Direction of a line, from its first to its last point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trend {
    /// No point is below the one before.
    Rising,
    /// No point is above the one before.
    Falling,
    /// No two points differ.
    Flat,
}

/// The comparison of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckKind {
    /// A value, or its ratio to or its difference from another one, is in a range with both ends
    /// included.
    Value {
        /// The value.
        value: PointName,
        /// Divisor, if it is a ratio.
        over: Option<PointName>,
        /// Subtrahend, if it is a difference.
        minus: Option<PointName>,
        /// The least that holds.
        value_min: Option<f64>,
        /// The most that holds.
        value_max: Option<f64>,
    },
    /// A line has a direction. Points may deviate from it by a share (0.05: 5 %).
    Line {
        /// Name of the line.
        line: String,
        /// Its direction.
        is: Trend,
        /// The share.
        slack: f64,
    },
    /// All values of the paper on a line are met, except for a share (0.05: 5 %).
    Paper {
        /// Name of the line.
        line: String,
        /// The share.
        within: f64,
    },
}

/// A comparison with the sentence that it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureCheck {
    /// The sentence.
    pub claim: String,
    /// The comparison.
    pub kind: CheckKind,
    /// Reason why it does not hold here, if it is known not to.
    pub not_here: Option<String>,
}

/// A check as its file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckSpec {
    claim: String,
    value: Option<String>,
    over: Option<String>,
    minus: Option<String>,
    #[serde(rename = "at_least")]
    value_min: Option<f64>,
    #[serde(rename = "at_most")]
    value_max: Option<f64>,
    line: Option<String>,
    is: Option<Trend>,
    slack: Option<f64>,
    within: Option<f64>,
    not_here: Option<String>,
}

impl CheckSpec {
    /// Returns the check.
    ///
    /// # Errors
    /// The problem, for a message.
    pub(crate) fn check(self) -> Result<FigureCheck, String> {
        let claim = self.claim.clone();
        let wrong = |what: &str| format!("check \"{claim}\": {what}");
        let point = |text: Option<String>| match text {
            None => Ok(None),
            Some(text) => PointName::parse(&text)
                .map(Some)
                .ok_or_else(|| wrong(&format!("`{text}` is no point: write LINE@X"))),
        };
        let has_range = self.value_min.is_some() || self.value_max.is_some();
        let (over, minus) = (point(self.over)?, point(self.minus)?);
        let kind = match (point(self.value)?, self.line, self.is, self.within) {
            (Some(value), None, None, None) => {
                if !has_range {
                    return Err(wrong("it has neither `at_least` nor `at_most`"));
                }
                if over.is_some() && minus.is_some() || self.slack.is_some() {
                    return Err(wrong("`over`, `minus` and `slack` exclude each other"));
                }
                let (value_min, value_max) = (self.value_min, self.value_max);
                CheckKind::Value { value, over, minus, value_min, value_max }
            }
            (None, Some(_), _, _) if has_range || over.is_some() || minus.is_some() => {
                return Err(wrong("`at_least`, `at_most`, `over` and `minus` are of a `value`"));
            }
            (None, Some(line), Some(is), None) => {
                CheckKind::Line { line, is, slack: self.slack.unwrap_or(0.0) }
            }
            (None, Some(line), None, Some(within)) if self.slack.is_none() => {
                CheckKind::Paper { line, within }
            }
            _ => {
                return Err(wrong(
                    "it is one of: a `value` with `at_least` or `at_most`, a `line` with `is`, or a \
                     `line` with `within`",
                ));
            }
        };
        let not_here = self.not_here.as_deref().map(one_line);
        Ok(FigureCheck { claim: self.claim, kind, not_here })
    }
}
