//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod cache;
mod handles;
mod wire;
