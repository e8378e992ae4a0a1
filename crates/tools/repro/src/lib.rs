//! Figures of papers (`docs/repro.md`): how each is measured, its results beside the paper's values,
//! and whether they agree. For `sluice repro`.
//!
//! A figure is a file `repro/PAPER/FIGURE.toml`. [`Catalog`] reads all of them. The path of a figure:
//! [`Runner`] runs its commands, which print rows of results; [`Recorded`] selects those that the
//! figure shows, and keeps them in `repro/PAPER/results/FIGURE.jsonl`; [`judge`] evaluates the checks
//! of the figure on them; [`charts`] draws them; [`page`] writes all figures into `REPRODUCED.md`.
//!
//! Checks, drawings and the page depend on the recorded rows and the figure's file alone. Equal rows
//! give equal bytes.

#![forbid(unsafe_code)]

mod catalog;
mod charts;
mod check;
mod error;
mod figure;
mod judge;
mod page;
mod recorded;
mod row;
mod runner;
mod sensitivity;

pub use catalog::{Catalog, FigureName, MissingFigure, Selection};
pub use charts::{FigureDrawing, charts};
pub use check::{CheckKind, FigureCheck, PointLocation, PointName, Trend};
pub use error::ReproError;
pub use figure::{ChartAxis, Figure, FigureChart, FigureClass, FigureLine, RowField};
pub use judge::{CheckResult, FigureVerdict, Judgement, judge};
pub use page::{ReportedFigure, page};
pub use recorded::{Recorded, ResultOrigin, ShownRow};
pub use row::ResultRow;
pub use runner::{RunMode, Runner};
pub use sensitivity::{FragileCheck, Sensitivity};
