//! Tests that need a process of their own: they count its descriptors and mappings, and measure
//! time.

#[path = "../suite/common/mod.rs"]
mod common;
mod sharing;
