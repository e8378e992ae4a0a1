//! Completion strategies on a mock controller, whose thread the tests control.

mod all_strategies;
mod cooperation;
mod failures;
mod harness;
mod mock_controller;
mod refusals;
mod switching;
