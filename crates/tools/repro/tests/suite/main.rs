//! Figures: their files, checks, recorded results, drawings and page.

mod files;
mod judged;
mod recorded;
mod the_repository;

use std::path::Path;

use sluice_repro::{Figure, FigureName, Recorded, ResultOrigin, ResultRow};

/// A figure with two charts.
pub(crate) const FIGURE: &str = r#"
title = "Rates"
source = "[P20 §1]"
claim = "b is faster."
class = "virtual"
minutes = 0.1
group = "block"
also = ["extra"]

[[run]]
command = "bench block"

[[chart]]
title = "Rates by cores"
y_label = "thousands"
x = ["1", "2", "4"]

[[chart.line]]
name = "a"
case = "a, {x} cores"
metric = "iops"
times = 1e-3
paper = { 2 = 20 }

[[chart.line]]
name = "b/c"
case = "b, {x} cores"
metric = "iops"
times = 1e-3
points = 2

[[chart]]
name = "bars"
title = "Relative"
y_label = "times"
bars = true
x = ["one", "four"]
at = ["1", "4"]

[[chart.line]]
name = "growth"
case = "a, {x} cores"
metric = "iops"
relative = true

[[check]]
claim = "b is faster with 2 cores"
value = "b/c@2"
over = "a@2"
at_least = 2
"#;

pub(crate) fn figure(text: &str) -> Figure {
    parse(text).unwrap()
}

pub(crate) fn parse(text: &str) -> Result<Figure, String> {
    let name = FigureName::new("P20", "figure-1");
    Figure::parse(name, Path::new("figure-1.toml"), text).map_err(|error| error.to_string())
}

/// Rows of `a` with 10,000 per core, of `b` with `b` per core, and an extra one.
pub(crate) fn rows(b: u32) -> Vec<ResultRow> {
    let row = |case: String, value: u32| {
        let text = format!(
            "{{\"bench\":\"block\",\"case\":\"{case}\",\"metric\":\"iops\",\"value\":{value}.0,\"unit\":\"1/s\"}}"
        );
        ResultRow::parse(&text).unwrap()
    };
    let mut all = Vec::new();
    for cores in [1, 2, 4] {
        all.push(row(format!("a, {cores} cores"), 10_000 * cores));
        all.push(row(format!("b, {cores} cores"), b * cores));
    }
    all.push(row("extra, 1".into(), 7));
    all.push(row("other".into(), 8));
    all
}

pub(crate) fn results(figure: &Figure, b: u32) -> Recorded {
    let origin =
        ResultOrigin { commit: "0123abcd".into(), date: "2026-01-02".into(), machine: None };
    Recorded::select(figure, &rows(b), origin).unwrap()
}
