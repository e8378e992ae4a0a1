//! `sluice generate`: man pages and shell completions, made of the same definitions as the options are read by.

use std::fs;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::CliError;

/// `sluice generate …`.
#[derive(Debug, Subcommand)]
pub(crate) enum GenerateArgs {
    /// Write a man page of every command.
    Man {
        /// The folder, which is made.
        folder: PathBuf,
    },
    /// Write completions for bash, zsh, fish, elvish and PowerShell.
    Completions {
        /// The folder, which is made.
        folder: PathBuf,
    },
}

/// Writes the files into a folder, which is made.
///
/// # Errors
/// What the operating system says of the folder.
pub(crate) fn run(args: &GenerateArgs, mut command: clap::Command) -> Result<(), CliError> {
    let folder = match args {
        GenerateArgs::Man { folder } | GenerateArgs::Completions { folder } => folder,
    };
    let cannot = |e| CliError::Other(format!("cannot write to {}: {e}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    match args {
        GenerateArgs::Man { .. } => clap_mangen::generate_to(command, folder).map_err(cannot),
        GenerateArgs::Completions { .. } => {
            for shell in Shell::value_variants() {
                clap_complete::generate_to(*shell, &mut command, "sluice", folder)
                    .map_err(cannot)?;
            }
            Ok(())
        }
    }
}
