//! Tests of the commands of `sluice`, one module per command.

mod admin_namespace;
mod admin_set;
mod admin_stats;
mod bench;
mod drive;
mod generate;
mod kv;
mod machine;
mod named_target;
mod serve;
mod serve_cores;
mod serve_paths;
mod target;
mod volume;
