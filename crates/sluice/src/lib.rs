//! Sluice: a software-defined SSD and the user-space I/O stack that drives it.
//!
//! | module | noun |
//! |---|---|
//! | [`scenario`] | one TOML file that picks a choice at every seam, and the jobs to run |
//! | [`presets`] | the drives that come with Sluice |
//! | [`limits`] | what a drive can do at most, in closed form |
//! | [`calibrate`] | what this machine costs, and whether it keeps up with a drive |
//! | [`mod@bench`] | what Sluice costs and sustains |
//! | [`stack`] | a drive and the host's way to it, built from a scenario |
//! | [`sim`] | scenarios in virtual time |
//! | [`serve`] | scenarios in real time, in front of real programs |
//! | [`report`] | what a run found: a table, a page |
//! | [`trace_file`] | what happened, event by event, for Perfetto |
//! | [`cli`] | the command line |

#![forbid(unsafe_code)]

pub mod bench;
pub mod calibrate;
pub mod cli;
pub mod limits;
pub mod presets;
pub mod report;
pub mod scenario;
pub mod serve;
pub mod sim;
pub mod stack;
pub mod text;
pub mod trace_file;
