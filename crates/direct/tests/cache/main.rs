//! The block cache over a device that does everything that devices may: answers in any order, is
//! busy, fails, and loses at a power cut what was not flushed.
//!
//! A failing seed is printed; `SLUICE_SEED=n` replays it.

mod behavior;
mod flaky;
mod oracle;
