//! The physical page address interface beyond its plain commands ([LightNVM17 §3.3]; [OC20 §3];
//! [Thesis15 ch. 6 §4.3]): hints, media events, the controller memory buffer, the drive's own map.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-drive --test ppa`.
//! `SLUICE_CASES` sets how many seeds are tried.

#[path = "../common/mod.rs"]
mod common;

mod cmb;
mod device_l2p;
mod events;
mod hints;
mod rig;
