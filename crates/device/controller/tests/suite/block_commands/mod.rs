//! Compare, Verify, Write Uncorrectable and Copy.

// guarantee: B-83

mod checks;
mod copy;
mod format;
pub(crate) mod harness;
mod uncorrectable;
