//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod fuzz;
mod generated;
mod licences;
mod repository;
