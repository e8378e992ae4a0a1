//! Tests of the flash media through their public interface.

// guarantee: D-54

extern crate sluice_media as media;

mod faults;
mod fixture;
mod image;
mod image_bytes;
mod kill;
mod model;
mod pcm;
mod physics;
mod power;
mod slots;
