//! The `sluice` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sluice_cli::run(std::env::args_os())
}
