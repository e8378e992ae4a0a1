//! Costs of the host: completion methods, modeled machines and the methods on them, logs, processes.

mod completion;
mod machine;
mod machine_completion;
mod machine_figures;
mod machine_keys;
mod observed;
mod processes;
mod write_log;
