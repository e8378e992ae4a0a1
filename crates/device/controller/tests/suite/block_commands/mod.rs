//! Compare, Verify, Write Uncorrectable and Copy.

// guarantee: B-83

mod checks;
mod copy;
mod format;
mod harness;
mod uncorrectable;
