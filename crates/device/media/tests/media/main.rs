//! Tests of the medium through its public interface.

// guarantee: D-54

extern crate sluice_media as media;

#[path = "../../../../base/rng/tests/choices/mod.rs"]
mod choices;
mod faults;
mod fixture;
mod image;
mod image_bytes;
mod kill;
mod model;
mod pcm;
mod physics;
mod power;
