//! Rules of a programmable drive: they decide what happens to each input of an application
//! ([Thesis15 ch. 7]).
//!
//! A program comes as bytes ([`RuleProgram::decode`], `docs/format/rule-program.md`). [`verify`]
//! checks it against what its sender may use ([`RuleGrant`]), and [`RuleEngine`] executes only a
//! [`VerifiedProgram`]. Rules decide: the engine returns [actions](RuleAction) and
//! [verdicts](RuleVerdict), and the drive executes them. The source language is that of the crate
//! `sluice-rules-lang` (`docs/rules.md`).
//!
//! Invariants, for every verified program and every input:
//! - A rule reads and changes tables of its own application only. No instruction names an
//!   application, a line or a physical address.
//! - A command costs at most the [stated](VerifiedProgram::command_cost) number of operations.
//! - The engine does not allocate after [`RuleEngine::install`], and does not panic.

#![forbid(unsafe_code)]

mod encoding;
mod engine;
mod grant;
mod ids;
mod instruction;
mod needs;
mod program;
mod timers;
mod verify;

pub use encoding::{ProgramDecodeError, VERSION};
pub use engine::{
    DriveFacts, EngineOptions, EngineTotals, LineFacts, PlacementStream, RuleAction, RuleAddress,
    RuleCounters, RuleEngine, RuleInput, RuleStatus, RuleStep, RuleTableError, RuleVerdict,
    TableChange,
};
pub use grant::{AppGrant, RuleGrant, RuleLimits};
pub use ids::{AppId, ContextId, LayoutId, RuleId, RuleLine, TableId};
pub use instruction::{
    ADDRESS_NAME_MAX, HeaderRegister, Instruction, LOOP_DEPTH_MAX, REGISTERS, RuleOp,
};
pub use needs::{RuleFeature, RuleNeed};
pub use program::{
    AppDeclaration, CodeRange, InputOp, IntWidth, OpMask, ProgramLimits, RecordField, RecordLayout,
    RuleDeclaration, RuleLocation, RuleProgram, RuleTrigger, TableDeclaration, TableKind,
    quota_sectors,
};
pub use timers::RuleTimers;
pub use verify::{CostStep, RuleProblem, VerifiedProgram, VerifyError, verify};
