//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod ahci;
mod block_layer;
mod closed_forms;
mod composition;
mod explain;
mod host;
mod note_codes;
mod paper_effect;
mod parallel_units;
mod precondition;
mod repository;
mod rules;
mod scenario_reference;
mod shards;
mod small_blocks;
mod timed_changes;
