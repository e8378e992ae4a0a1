//! Random numbers that results depend on: a seed gives the same numbers in every release and on
//! every machine, independent of public random number crates. The crate does not call the system's
//! math library, whose last bit differs between machines.

#![forbid(unsafe_code)]

mod generator;
mod math;
mod pareto;
mod permutation;
mod zipf;

pub use generator::Rng;
pub use pareto::Pareto;
pub use permutation::Permutation;
pub use zipf::Zipf;
