//! The medium against its rules, through its public interface only.

extern crate sluice_media as media;

mod faults;
mod fixture;
mod image;
mod kill;
mod model;
mod pcm;
mod physics;
mod power;
