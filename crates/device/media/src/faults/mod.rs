//! Faults of NAND: random failures and bit errors, and faults that a user or a test injects.

pub(crate) mod fault_injection;
pub(crate) mod fault_model;
