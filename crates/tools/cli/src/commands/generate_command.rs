//! `sluice generate`: generates man pages and shell completions from the definitions by which the
//! command line is parsed.

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
        /// Directory for the files. It is created if it does not exist.
        folder: PathBuf,
    },
    /// Write completions for bash, zsh, fish, elvish and PowerShell.
    Completions {
        /// Directory for the files. It is created if it does not exist.
        folder: PathBuf,
    },
}

/// Writes the files into a directory, which is created if it does not exist.
///
/// # Errors
/// [`CliError`] with the error of the operating system, if a file or the directory cannot be
/// written.
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
