//! Parameter sweeps: a scenario at all combinations of values of its keys and of seeds, for `sluice
//! sweep` and `sluice sim --set`.
//!
//! The path of one run: [`Grid::points`] lists the points. [`BaseScenario::at`] sets a point's values
//! in the text of the scenario and parses it. [`RunKey`] has all inputs of the run, and [`RunStore`]
//! has the runs that are finished. [`run_each`] runs those that are missing. [`rows`] makes rows of a
//! run's JSON, whether it was stored or has just been computed.
//!
//! [`Sweep`] is all of this. It owns its data, as bindings to other languages need.

#![forbid(unsafe_code)]

mod columns;
mod error;
mod grid;
mod output;
mod plots;
mod row;
mod run_key;
mod runs;
mod set;
mod store;
mod sweep;
mod sweep_file;
mod verify;

pub use columns::{COLUMNS, Column, columns_of};
pub use error::{SetError, SetProblem, SweepError};
pub use grid::{Assignment, BaseScenario, Grid, GridPoint, RUNS_MAX, Seeds, scenarios};
pub use output::{csv, json};
pub use plots::{NamedChart, charts, summary};
pub use row::{Row, RunStatus, failed_row, replay_command, rows};
pub use run_key::RunKey;
pub use runs::{ObserveRun, RunEnd, RunResults, RunSettings, StageObserver, run_all, run_each};
pub use set::key_path::KeyPath;
pub use set::setting::{SetOrigin, Setting, SettingValue};
pub use store::{RunStore, StoreError, Stored};
pub use sweep::{ChooseStates, PlannedRun, Sweep, SweepProgress, SweepResults, SweepSettings};
pub use sweep_file::{PlotSpec, SweepFile};
pub use verify::{Verification, results, verify};
