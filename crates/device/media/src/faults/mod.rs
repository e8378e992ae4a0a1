//! Faults of NAND: random failures and bit errors, and faults that a test injects.

pub(crate) mod fault_injection;
pub(crate) mod fault_model;
