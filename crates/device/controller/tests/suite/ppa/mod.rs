//! The physical page address interface beyond its basic commands: hints, media events, the
//! controller memory buffer, the device L2P. [LightNVM17 §3.3], [OC20 §3], [Thesis15 ch. 6 §4.3].
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-controller --test suite ppa::`.
//! `SLUICE_CASES` sets the number of seeds.

mod cmb;
mod device_l2p;
pub(crate) mod events;
pub(crate) mod harness;
mod hints;
