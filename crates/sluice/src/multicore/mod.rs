//! Many cores in virtual time: the block layer's own code on modelled sockets.
//!
//! | file | noun |
//! |---|---|
//! | [`topology`](Machine) | sockets, cores, boards, distances |
//! | [`costs`](Costs) | what everything takes, and who says so |
//! | [`measure`](Measured) | those of them that this machine can tell |
//! | [`platform`](Modeled) | locks and memory of the block layer that take virtual time |
//! | `tape` | what a core's code asks of them, in order |
//! | [`lines`](SnoopPolicy) | where every cache line is, and what it takes to get it |
//! | `locks` | spin locks, and what handing them over takes |
//! | `engine` | the event loop: always the core furthest behind |
//! | [`curve`](Curve) | which block layer, under which application, on how many cores |
//! | `application` | what each core submits and reaps |
//!
//! Measured is only what one core takes, and given what a line takes to travel; who waits for whom,
//! and how long, comes out of the layer's own steps.

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
pub use costs::{Compute, Cost, CostModel, Origin};
pub use curve::{Curve, Model};
pub use lines::{SnoopPolicy, Traffic};
pub use measure::MeasuredCosts;
pub use platform::{Modeled, ModeledGuard, ModeledLock};
pub use topology::{CORES_MAX, Distance, Machine, MachineError};
