//! [`charts`]: the charts of a figure, with the paper's values beside the measured ones.

use report::sweep::{ChartLine, SweepChart};

use crate::{Figure, FigureChart, FigureLine, Recorded};

/// A chart as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureDrawing {
    /// Name of the file.
    pub file: String,
    /// Title of the chart.
    pub title: String,
    /// The SVG text.
    pub svg: String,
}

/// Draws the charts of a figure. Equal results give equal bytes.
pub fn charts(figure: &Figure, results: &Recorded) -> Vec<FigureDrawing> {
    let draw = |chart: &FigureChart| {
        let line = |line: &FigureLine| ChartLine {
            name: line.name.clone(),
            points: results.values(chart, line),
            references: chart.x.iter().map(|x| line.paper.get(x).copied()).collect(),
        };
        let drawn = SweepChart {
            title: chart.title.clone(),
            form: chart.form(),
            reference_name: " (paper)".into(),
            x_label: chart.x_label.clone(),
            is_x_linear: chart.x_linear,
            y_label: chart.y_label.clone(),
            unit: chart.scale.unit(),
            x: chart.x.iter().map(|x| (x.clone(), x.parse().ok())).collect(),
            lines: chart.line.iter().map(line).collect(),
        };
        FigureDrawing {
            file: file_name(figure, chart),
            title: chart.title.clone(),
            svg: drawn.svg(),
        }
    };
    figure.charts().iter().map(draw).collect()
}

fn file_name(figure: &Figure, chart: &FigureChart) -> String {
    match chart.name.as_str() {
        "" => format!("{}.svg", figure.name().figure()),
        name => format!("{}-{}.svg", figure.name().figure(), name.replace(' ', "-")),
    }
}
