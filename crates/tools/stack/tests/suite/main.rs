//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod flush_of_all_cores;
mod kept_states;
mod rules_of_targets;
mod sampled_states;
