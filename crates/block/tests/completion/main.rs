//! Completion strategies on a controller in a test, whose thread does what it is told.

mod board;
mod cooperation;
mod everywhere;
mod refusals;
mod rig;
mod switching;
mod trouble;
