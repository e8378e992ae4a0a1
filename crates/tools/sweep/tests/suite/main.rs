//! Sweeps with a store: rows, resumption, concurrency and verification.

mod fixture;
mod keys;
mod resume;
mod rows;
mod verify;
