//! Costs of the host: completion methods, and modeled machines and the methods on them.

mod completion;
mod machine;
mod machine_completion;
mod machine_figures;
mod machine_keys;
mod observed;
