//! Runs every program in `examples/`; their assertions must hold.
#![allow(clippy::duplicate_mod, reason = "each example has the drive of `common` as a module")]

use std::error::Error;

#[path = "../../examples/geometry.rs"]
mod geometry;
#[path = "../../examples/isolation.rs"]
mod isolation;
#[path = "../../examples/vector_io.rs"]
mod vector_io;
#[path = "../../examples/virtual_block.rs"]
mod virtual_block;

macro_rules! run {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() -> Result<(), Box<dyn Error>> {
            $name::main()
        })*
    };
}

run! { geometry isolation vector_io virtual_block }
