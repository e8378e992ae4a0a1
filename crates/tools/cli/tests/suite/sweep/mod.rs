//! `sluice sweep` and `sluice sim --set`.

mod document;
mod kept_states;
mod set;
mod sweep_command;

use crate::sim_folder::{Folder, output_text};

/// A small drive with a job.
const SCENARIO: &str = "title = \"small\"\n[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n[[job]]\nname = \"mixed\"\nrw = \"randrw\"\n\
    bs = \"4k\"\nsize = \"1m\"\nio_size = \"256k\"\nnorandommap = 1\n";

/// Returns a folder with the scenario, and a sweep of it below `[set]` with these lines.
fn folder(sweep: &str) -> Folder {
    Folder::new(&[("small.toml", SCENARIO), ("s.toml", sweep)])
}

/// Runs `sluice sweep` to its end; returns standard output and standard error.
fn sweep(folder: &Folder, args: &[&str], code: i32) -> (String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("sweep").args(args).current_dir(folder.path("")).env("NO_COLOR", "1");
    output_text(command.output().unwrap(), code)
}
