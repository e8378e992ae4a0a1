//! Completion strategies on a controller in a test, whose thread does what it is told.

mod all_strategies;
mod cooperation;
mod failures;
mod harness;
mod mock_controller;
mod refusals;
mod switching;
