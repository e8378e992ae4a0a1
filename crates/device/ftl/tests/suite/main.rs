//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod again;
mod common;
mod health;
mod journal;
mod line_ends;
mod line_metadata;
mod oracle;
mod order;
mod paging;
mod recovery_cost;
mod refused;
mod salvage;
mod trim;
mod write_amplification;
