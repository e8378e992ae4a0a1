//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod flush_of_all_cores;
mod kept_states;
mod sampled_states;
