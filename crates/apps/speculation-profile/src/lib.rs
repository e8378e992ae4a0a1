//! How many instructions a program executes between an I/O and the point at which it would have to
//! wait for it: table 2 of \[Spec14\] for any program of this machine (`docs/profile.md`).
//!
//! [`run`] executes a program, and all programs that it executes, under QEMU's user-mode emulation
//! with a plugin (`plugin/speculation.c`). The plugin counts instructions per thread and writes an
//! event for each system call, for the first access to the data of each read, and for stores to shared
//! memory. [`WindowRecorder`] computes from the events where two rules stop a speculation: the rule
//! of [Spec14 §3], and the rule of `sluice exec`, for which calls on the volume do not stop.
//!
//! The events come from memory that the program could write. They are checked as data of a stranger:
//! invalid events are counted and dropped.

#![forbid(unsafe_code)]

mod error;
mod event;
mod program;
mod recorder;
mod report;
mod ring;
mod run;
mod windows;

pub use error::ProgramProfileError;
pub use event::{EVENT_WORDS, EventKind, ProfileEvent, SkippedProgram};
pub use program::find_program;
pub use recorder::WindowRecorder;
pub use report::{IoProfile, RuleProfile, SpeculationProfile};
pub use ring::EventRing;
pub use run::{ProfileOptions, ProfileRun, run};
pub use windows::{StopRule, WindowStats};
