//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod programs;
mod speculation;
