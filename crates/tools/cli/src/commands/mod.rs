//! The commands: each runs with its arguments, and prints its result.

pub mod admin;
pub mod device_command;
pub mod drive_command;
pub mod exec_command;
pub(crate) mod generate_command;
pub mod kv_command;
pub mod matrix_command;
pub mod measure;
pub mod repro_command;
mod rules_admin;
pub mod rules_command;
pub mod serve_command;
pub mod sim_command;
pub mod sweep_command;
pub mod target_command;
pub mod volume_command;
