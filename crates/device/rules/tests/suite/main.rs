//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod direct;
mod engine;
mod program_bytes;
mod rejected;
