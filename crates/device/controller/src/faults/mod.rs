//! Faults on demand: a user says when a drive fails, and how (`docs/faults.md`).
//!
//! [`Fault`] is a fault. A scenario (`[[fault]]`), `sluice admin fault` and the libraries read it
//! from keys and values, and pass it to
//! [`Controller::inject_fault`](crate::Controller::inject_fault) on the thread that owns the drive.
//! [`check`] refuses a fault that the drive cannot have.
//! [`injection`] carries it out: in the flash ([`media::InjectedFault`]), in the timing of a
//! parallel unit, in a queue, or as a [`power_cycle`]. [`state`] has the faults that end, or occur,
//! later.
//!
//! A drive without faults does no work for them: a stalled queue looks like one with too many
//! commands in flight, and the end of a fault is one more event of the controller's stages.

pub(crate) mod check;
pub(crate) mod fault;
pub(crate) mod injection;
pub(crate) mod power_cycle;
pub(crate) mod state;

pub use check::FaultError;
pub use fault::{CorruptedPart, Fault, FaultScope, FaultSector, SanitizeMethod};
pub use state::FaultRecord;
