//! Costs of the host: completion methods, and modeled machines.

mod completion;
mod machine;
mod observed;
