//! Simulation of many cores in virtual time: runs the block layer's own code on modeled sockets.
//!
//! Inputs are the CPU time of one core ([`MeasuredCosts`]) and the transfer times of cache lines
//! ([`CostModel`]). Waiting times follow from the steps of the layer's code. [`Model`] runs a
//! [`Load`] on a [`Machine`] for each [`Curve`].

mod access_log;
mod application;
mod costs;
mod curve;
mod engine;
mod lines;
mod locks;
mod measure;
mod platform;
mod topology;

pub use application::{Load, LoadOutcome};
pub use costs::{Compute, Cost, CostModel, CostOrigin};
pub use curve::{Curve, Model};
pub use lines::{SnoopPolicy, Traffic};
pub use measure::MeasuredCosts;
pub use platform::{Modeled, ModeledGuard, ModeledLock};
pub use topology::{CORES_MAX, Distance, Machine, MachineError};
