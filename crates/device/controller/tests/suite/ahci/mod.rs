//! The AHCI controller of `controller` and the AHCI driver of `driver`, against each other.

// guarantee: B-16

mod data;
mod errors;
mod harness;
mod interrupts;
mod rates;
mod registers;
mod threads;
