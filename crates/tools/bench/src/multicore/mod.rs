//! Block layers on machines with many cores, in virtual time: a [`Model`] runs a [`Load`] on a
//! [`Machine`] for each [`Curve`].
//!
//! The layer's own code runs on the modeled cores of the crate `machine`. Inputs are the CPU time of
//! one core ([`MeasuredCosts`]) and the transfer times of cache lines ([`CostModel`]). Waiting times
//! follow from the steps of the layer's code.

mod costs;
mod curve;
mod load;
mod measure;

pub use costs::{Compute, Cost, CostModel, CostOrigin};
pub use curve::{Curve, Model};
pub use load::{BackgroundLoad, Load, LoadOutcome};
pub use machine::{CORES_MAX, Distance, Machine, MachineError, SnoopPolicy, Traffic};
pub use measure::MeasuredCosts;
