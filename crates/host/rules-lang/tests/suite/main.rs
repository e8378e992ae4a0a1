//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod hostile;
mod programs;
mod rule_text;
