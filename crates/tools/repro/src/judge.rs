//! [`judge`]: evaluates the checks of a figure on its results.

use crate::{CheckKind, Figure, FigureCheck, PointLocation, PointName, Recorded, Trend};

/// Number of values of a line that a table has space for.
const SHOWN_MAX: usize = 8;

/// The evaluation of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckResult {
    /// The sentence.
    pub claim: String,
    /// Formula with values, for a table.
    pub measured: String,
    /// The range or direction that it asks for.
    pub asked: String,
    /// Whether it holds.
    pub holds: bool,
    /// The reason why it is known not to hold here.
    pub not_here: Option<String>,
}

/// A figure's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureVerdict {
    /// All checks hold.
    Reproduced,
    /// The checks that do not hold have a reason.
    Partly,
    /// A check without a reason does not hold, or one with a reason does in virtual time.
    Failed,
}

impl FigureVerdict {
    /// Returns the word for tables.
    pub fn word(self) -> &'static str {
        match self {
            FigureVerdict::Reproduced => "reproduced",
            FigureVerdict::Partly => "partly",
            FigureVerdict::Failed => "failed",
        }
    }
}

/// The evaluation of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The checks, in the order of the file.
    pub checks: Vec<CheckResult>,
    /// The verdict.
    pub verdict: FigureVerdict,
    /// A sentence for each check that makes the verdict [`FigureVerdict::Failed`].
    pub failures: Vec<String>,
}

/// Evaluates the checks of a figure. A value that the results lack makes its check fail.
pub fn judge(figure: &Figure, results: &Recorded) -> Judgement {
    let checks: Vec<CheckResult> =
        figure.checks().iter().map(|check| evaluate(figure, results, check)).collect();
    let mut failures = Vec::new();
    for check in &checks {
        let CheckResult { claim, measured, asked, .. } = check;
        match (check.holds, &check.not_here) {
            (false, None) => failures.push(format!("{claim}: {measured}, and not {asked}")),
            // A reason is a statement about the results, which virtual time repeats exactly.
            (true, Some(_)) if figure.class().is_equal_everywhere() => {
                failures.push(format!("{claim}: {measured}: it holds: remove `not_here`"));
            }
            _ => {}
        }
    }
    let verdict = match (failures.is_empty(), checks.iter().all(|check| check.holds)) {
        (false, _) => FigureVerdict::Failed,
        (true, true) => FigureVerdict::Reproduced,
        (true, false) => FigureVerdict::Partly,
    };
    Judgement { checks, verdict, failures }
}

fn evaluate(figure: &Figure, results: &Recorded, check: &FigureCheck) -> CheckResult {
    let (measured, asked, holds) = match &check.kind {
        CheckKind::Value { value, over, minus, value_min, value_max } => {
            let first = point(figure, results, value);
            let second = over.as_ref().or(minus.as_ref()).map(|name| point(figure, results, name));
            let result = match (first, over, minus, second) {
                (Some(a), Some(_), _, Some(Some(b))) => Some(a / b),
                (Some(a), _, Some(_), Some(Some(b))) => Some(a - b),
                (Some(a), None, None, None) => Some(a),
                _ => None,
            };
            let text = |value: Option<f64>| value.map_or_else(|| "none".into(), number);
            let measured = match (over, minus) {
                (Some(name), _) => format!(
                    "{value} / {name} = {} / {} = {}",
                    text(first),
                    text(second.flatten()),
                    text(result)
                ),
                (_, Some(name)) => format!(
                    "{value} - {name} = {} - {} = {}",
                    text(first),
                    text(second.flatten()),
                    text(result)
                ),
                _ => format!("{value} = {}", text(result)),
            };
            let asked = match (value_min, value_max) {
                (Some(low), Some(high)) => format!("{} to {}", number(*low), number(*high)),
                (Some(low), None) => format!("at least {}", number(*low)),
                (None, Some(high)) => format!("at most {}", number(*high)),
                (None, None) => String::new(),
            };
            let is_in = |v: f64| {
                v.is_finite()
                    && value_min.is_none_or(|low| v >= low)
                    && value_max.is_none_or(|high| v <= high)
            };
            (measured, asked, result.is_some_and(is_in))
        }
        CheckKind::Line { line, is, slack } => {
            let values = values(figure, results, line);
            let pairs = || values.windows(2).map(|pair| pair[1] / pair[0]);
            let (low, high) =
                values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let holds = match is {
                Trend::Rising => pairs().all(|ratio| ratio >= 1.0 - slack),
                Trend::Falling => pairs().all(|ratio| ratio <= 1.0 + slack),
                Trend::Flat => high <= low * (1.0 + slack),
            };
            let word = match is {
                Trend::Rising => "rising",
                Trend::Falling => "falling",
                Trend::Flat => "flat",
            };
            let mut shown: Vec<String> = values.iter().map(|value| number(*value)).collect();
            if shown.len() > SHOWN_MAX {
                shown.splice(SHOWN_MAX / 2..shown.len() - SHOWN_MAX / 2, ["…".to_owned()]);
            }
            let asked = match *slack > 0.0 {
                true => format!("{word}, but for {} %", number(slack * 100.0)),
                false => word.to_owned(),
            };
            (format!("{line}: {}", shown.join(", ")), asked, !values.is_empty() && holds)
        }
        CheckKind::Paper { line, within } => {
            let (measured, worst) = distance(figure, results, line);
            let asked = format!("within {} %", number(within * 100.0));
            (measured, asked, worst.is_some_and(|worst| worst <= *within))
        }
    };
    CheckResult {
        claim: check.claim.clone(),
        measured,
        asked,
        holds,
        not_here: check.not_here.clone(),
    }
}

/// Returns the largest distance of a line from the paper's values, as a share, and its text.
fn distance(figure: &Figure, results: &Recorded, line: &str) -> (String, Option<f64>) {
    let Ok((chart, found)) = figure.find_line(line) else { return (line.to_owned(), None) };
    let values = results.values(chart, found);
    let mut worst = Some((0.0, String::new()));
    for (x, value) in chart.x.iter().zip(values) {
        let Some(paper) = found.paper.get(x) else { continue };
        let share = value.map(|value| (value / paper - 1.0).abs());
        worst = match (worst, share) {
            (Some((most, _)), Some(share)) if share >= most => {
                let value = value.map_or_else(String::new, number);
                Some((share, format!("{line}@{x} = {value}, paper {}", number(*paper))))
            }
            (worst, Some(_)) => worst,
            (_, None) => None,
        };
    }
    match worst {
        Some((share, text)) => (format!("{text}: {} % off", number(share * 100.0)), Some(share)),
        None => ("a value is missing".into(), None),
    }
}

fn values(figure: &Figure, results: &Recorded, line: &str) -> Vec<f64> {
    let found = figure.find_line(line).map(|(chart, line)| results.values(chart, line));
    found.unwrap_or_default().into_iter().flatten().collect()
}

fn point(figure: &Figure, results: &Recorded, name: &PointName) -> Option<f64> {
    let (chart, line) = figure.find_line(name.line()).ok()?;
    let values = results.values(chart, line);
    let known = || values.iter().copied().flatten();
    match name.place() {
        PointLocation::At(x) => values[chart.x.iter().position(|at| at == x)?],
        PointLocation::First => *values.first()?,
        PointLocation::Last => *values.last()?,
        PointLocation::Max => known().reduce(f64::max),
        PointLocation::Min => known().reduce(f64::min),
    }
}

/// Formats a number with three significant digits.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
