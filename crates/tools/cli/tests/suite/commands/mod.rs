//! Tests of commands of `sluice`, each by its name.

mod admin_stats;
mod bench;
mod drive;
mod generate;
mod kv;
mod machine;
mod named_target;
mod serve;
mod target;
mod volume;
