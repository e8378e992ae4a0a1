//! [`Figure`]: a figure of a paper, as its file describes it.

use std::collections::BTreeMap;
use std::path::Path;

use report::sweep::{ChartForm, ChartUnit};
use serde::Deserialize;

use crate::check::CheckSpec;
use crate::{CheckKind, FigureCheck, FigureName, ReproError};

/// Clock and machine of a figure's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureClass {
    /// Virtual time: equal on every machine.
    Virtual,
    /// Real time on this machine.
    Real,
    /// Real time in a Linux guest.
    Guest,
}

impl FigureClass {
    /// All classes.
    pub const ALL: [FigureClass; 3] = [FigureClass::Virtual, FigureClass::Real, FigureClass::Guest];

    /// Returns the class with this name.
    pub fn from_name(name: &str) -> Option<FigureClass> {
        FigureClass::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Returns whether its results are the same on every machine, byte for byte.
    pub fn is_equal_everywhere(self) -> bool {
        self == FigureClass::Virtual
    }

    /// Returns its name in files and options.
    pub fn name(self) -> &'static str {
        match self {
            FigureClass::Virtual => "virtual",
            FigureClass::Real => "real",
            FigureClass::Guest => "guest",
        }
    }
}

/// Scale of the y axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartAxis {
    /// Numbers.
    #[default]
    Linear,
    /// Numbers, logarithmic.
    Log,
    /// Nanoseconds, logarithmic.
    Nanoseconds,
}

impl ChartAxis {
    pub(crate) fn unit(self) -> ChartUnit {
        match self {
            ChartAxis::Linear => ChartUnit::Number,
            ChartAxis::Log => ChartUnit::Decades,
            ChartAxis::Nanoseconds => ChartUnit::Nanos,
        }
    }
}

/// The number of a row that a line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowField {
    /// The measured value.
    #[default]
    Value,
    /// The value that the command compares it with.
    Reference,
}

/// A line of a chart: the rows that it shows, one for each x value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureLine {
    /// Its name.
    pub name: String,
    /// Case of its rows. `{x}` stands for the x value.
    pub case: String,
    /// Metric of its rows.
    pub metric: String,
    /// Factor from the unit of the rows to that of the chart.
    #[serde(default = "one")]
    pub times: f64,
    /// The number of a row that it shows.
    #[serde(default)]
    pub field: RowField,
    /// Texts that stand for `{x}` at each x value, if they are not those of the chart.
    #[serde(default)]
    pub at: Vec<String>,
    /// Number of x values that it has, from the first on, if it has not all.
    pub points: Option<usize>,
    /// Whether its values are divided by the first of them.
    #[serde(default)]
    pub relative: bool,
    /// The paper's values in the unit of the chart, by x value.
    #[serde(default)]
    pub paper: BTreeMap<String, f64>,
}

fn one() -> f64 {
    1.0
}

/// A chart of a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureChart {
    /// Its name in file names and checks; empty if it is the only one.
    #[serde(default)]
    pub name: String,
    /// Its title.
    pub title: String,
    /// Meaning of the x values.
    #[serde(default)]
    pub x_label: String,
    /// Whether x values that are numbers are at their distances however far apart they are.
    #[serde(default)]
    pub x_linear: bool,
    /// Meaning and unit of the y values.
    pub y_label: String,
    /// Whether the x values have bars.
    #[serde(default)]
    pub bars: bool,
    /// Scale of the y axis.
    #[serde(default)]
    pub scale: ChartAxis,
    /// The x values.
    pub x: Vec<String>,
    /// Texts that stand for `{x}` at each x value, if they are not the x values.
    #[serde(default)]
    pub at: Vec<String>,
    /// The lines.
    pub line: Vec<FigureLine>,
}

impl FigureChart {
    /// Returns the text that stands for `{x}` in the cases of a line, for each of its x values.
    pub(crate) fn places<'a>(&'a self, line: &'a FigureLine) -> &'a [String] {
        let given = [&line.at, &self.at].into_iter().find(|texts| !texts.is_empty());
        let all = given.unwrap_or(&self.x);
        &all[..line.points.map_or(all.len(), |points| points.min(all.len()))]
    }

    pub(crate) fn form(&self) -> ChartForm {
        if self.bars { ChartForm::Bars } else { ChartForm::Lines }
    }
}

/// A command whose rows a figure shows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunSpec {
    /// Arguments of `sluice`.
    command: String,
}

/// A figure's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureSpec {
    title: String,
    source: String,
    claim: String,
    class: FigureClass,
    minutes: f64,
    group: String,
    limits: Option<String>,
    #[serde(default)]
    also: Vec<String>,
    #[serde(default)]
    vary: Vec<String>,
    run: Vec<RunSpec>,
    chart: Vec<FigureChart>,
    check: Vec<CheckSpec>,
}

/// Returns a text without its line breaks.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    name: FigureName,
    title: String,
    source: String,
    claim: String,
    class: FigureClass,
    minutes: f64,
    limits: Option<String>,
    also: Vec<String>,
    vary: Vec<String>,
    commands: Vec<String>,
    charts: Vec<FigureChart>,
    checks: Vec<FigureCheck>,
}

impl Figure {
    /// Reads a figure from the text of its file.
    ///
    /// # Errors
    /// [`ReproError::File`] for a text that is no valid figure: unknown keys, lines whose number of x
    /// values differs, equal names, and checks of lines or x values that it does not have.
    pub fn parse(name: FigureName, path: &Path, text: &str) -> Result<Figure, ReproError> {
        let wrong = |problem: String| ReproError::File { path: path.to_path_buf(), problem };
        let spec: FigureSpec =
            toml::from_str(text).map_err(|error| wrong(error.to_string().trim().to_owned()))?;
        let checks = spec.check.into_iter().map(CheckSpec::check).collect::<Result<_, _>>();
        // The group is for `scripts/results`, which knows the sources that make results stale.
        if spec.group.is_empty() {
            return Err(wrong("`group` names a group of spec/results.toml".into()));
        }
        let figure = Figure {
            name,
            title: spec.title,
            source: spec.source,
            claim: one_line(&spec.claim),
            class: spec.class,
            minutes: spec.minutes,
            limits: spec.limits.as_deref().map(one_line),
            also: spec.also,
            vary: spec.vary,
            commands: spec.run.into_iter().map(|run| run.command).collect(),
            charts: spec.chart,
            checks: checks.map_err(wrong)?,
        };
        figure.validate().map_err(wrong)?;
        Ok(figure)
    }

    fn validate(&self) -> Result<(), String> {
        let names = [("run", self.commands.len()), ("chart", self.charts.len())];
        if let Some((name, _)) = names.iter().find(|(_, count)| *count == 0) {
            return Err(format!("it has no `[[{name}]]`"));
        }
        let cannot_vary = |command: &&String| crate::sensitivity::varied(command, "").is_none();
        if !self.vary.is_empty()
            && let Some(command) = self.commands.iter().find(cannot_vary)
        {
            return Err(format!("`vary`: `{command}` has no machine whose numbers could vary"));
        }
        if self.checks.is_empty() {
            return Err("it has no `[[check]]`: a figure without one cannot fail".into());
        }
        if !(self.minutes.is_finite() && self.minutes > 0.0) {
            return Err(format!("`minutes` is above 0, and not {}", self.minutes));
        }
        for (at, chart) in self.charts.iter().enumerate() {
            if self.charts[..at].iter().any(|other| other.name == chart.name) {
                return Err(format!("two charts have the name \"{}\"", chart.name));
            }
            if chart.name.contains(['/', '@', '\\']) || chart.x.is_empty() || chart.line.is_empty()
            {
                let why = "its name has no `/`, `@` or `\\`, and it has x values and lines";
                return Err(format!("chart \"{}\": {why}", chart.name));
            }
            for (at, line) in chart.line.iter().enumerate() {
                let wrong = |why: &str| format!("line \"{}\": {why}", line.name);
                if chart.line[..at].iter().any(|other| other.name == line.name) {
                    return Err(wrong("its name is not its own"));
                }
                if line.name.contains('@') {
                    return Err(wrong("a name has no `@`"));
                }
                if chart.places(line).len() != line.points.unwrap_or(chart.x.len()) {
                    return Err(wrong("`at` has a text for each of its x values"));
                }
                if let Some(x) = line.paper.keys().find(|x| !chart.x.contains(x)) {
                    return Err(wrong(&format!("`paper` has a value at {x}, which is no x value")));
                }
            }
        }
        for check in &self.checks {
            self.validate_check(check)
                .map_err(|why| format!("check \"{}\": {why}", check.claim))?;
        }
        Ok(())
    }

    fn validate_check(&self, check: &FigureCheck) -> Result<(), String> {
        match &check.kind {
            CheckKind::Value { value, over, minus, .. } => {
                for point in [Some(value), over.as_ref(), minus.as_ref()].into_iter().flatten() {
                    let (chart, _) = self.find_line(point.line())?;
                    if let crate::PointLocation::At(x) = point.place()
                        && !chart.x.contains(x)
                    {
                        return Err(format!("`{point}`: there is no x value {x}"));
                    }
                }
            }
            CheckKind::Line { line, .. } => {
                self.find_line(line)?;
            }
            CheckKind::Paper { line, .. } => {
                let (_, found) = self.find_line(line)?;
                if found.paper.is_empty() {
                    return Err(format!("line `{line}` has no values of the paper"));
                }
            }
        }
        Ok(())
    }

    /// Returns the line with this name, and its chart.
    ///
    /// # Errors
    /// If there is none, or if several charts have one.
    pub(crate) fn find_line(&self, name: &str) -> Result<(&FigureChart, &FigureLine), String> {
        // A name before the first `/` is a chart's if a chart has it: lines may have one, as in `IRQ I/O`.
        let is_chart = |chart: &str| self.charts.iter().any(|known| known.name == chart);
        let (chart_name, line_name) = match name.split_once('/') {
            Some((chart, line)) if is_chart(chart) => (Some(chart), line),
            _ => (None, name),
        };
        let charts = self.charts.iter().filter(|chart| chart_name.is_none_or(|n| n == chart.name));
        let mut found = charts.flat_map(|chart| {
            let lines = chart.line.iter().filter(|line| line.name == line_name);
            lines.map(move |line| (chart, line))
        });
        let first = found.next().ok_or_else(|| format!("there is no line `{name}`"))?;
        match found.next() {
            Some(_) => Err(format!("several charts have a line `{name}`: write CHART/LINE")),
            None => Ok(first),
        }
    }

    /// Keys of the numbers of its machine, each of them halved and doubled by `sluice repro vary`.
    pub fn vary(&self) -> &[String] {
        &self.vary
    }

    /// Its name.
    pub fn name(&self) -> &FigureName {
        &self.name
    }

    /// Its title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The figure or the section of the paper, as a citation.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The paper's claim.
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// Clock and machine of its results.
    pub fn class(&self) -> FigureClass {
        self.class
    }

    /// Minutes that its commands are expected to take on two processors.
    pub fn minutes(&self) -> f64 {
        self.minutes
    }

    /// The part of the paper's figure that this machine cannot show, and the part that it shows.
    pub fn limits(&self) -> Option<&str> {
        self.limits.as_deref()
    }

    /// Beginnings of the cases of rows that are recorded in addition to those of its lines.
    pub fn also(&self) -> &[String] {
        &self.also
    }

    /// Its commands: arguments of `sluice`.
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Its charts.
    pub fn charts(&self) -> &[FigureChart] {
        &self.charts
    }

    /// Its checks.
    pub fn checks(&self) -> &[FigureCheck] {
        &self.checks
    }
}
