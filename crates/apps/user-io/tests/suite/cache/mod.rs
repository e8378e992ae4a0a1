//! Tests of the block cache over a device with every permitted behavior: it completes in any order,
//! is full, fails, and loses unflushed data in a power cut.
//!
//! A failing seed is printed; `SLUICE_SEED=n` replays it.

mod behavior;
mod oracle;
