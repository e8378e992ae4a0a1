//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod atomic;
mod batch;
mod common;
mod health;
mod journal;
mod line_ends;
mod line_metadata;
mod named;
mod oracle;
mod order;
mod paging;
mod rebuild;
mod recovery_cost;
mod redispatch;
mod refused;
mod trim;
mod victims;
mod write_amplification;
