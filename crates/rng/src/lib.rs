//! Randomness that results depend on: the same seed gives the same numbers next year, on every
//! machine, whatever happens to public generators. Nothing here calls the system's math library,
//! whose last bit differs between machines.
//!
//! | file | noun |
//! |---|---|
//! | [`generator`](Rng) | uniform numbers: xoshiro256++ seeded by splitmix64 |
//! | [`zipf`](Zipf) | ranks with Zipf's popularity, exact, O(1) |
//! | [`pareto`](Pareto) | ranks by fio's `pareto:h` |
//! | [`permutation`](Permutation) | 0..n in a shuffled order, without memory |
//! | `math` | `ln` and `exp` from basic operations only |

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
