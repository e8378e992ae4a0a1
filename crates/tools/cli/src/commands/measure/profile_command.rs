//! `sluice profile`: runs a program under QEMU's user-mode emulation, and prints how many instructions
//! pass between an I/O and the point at which the program would have to wait for it
//! (`docs/profile.md`).

use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;

use speculation_profile::{ProfileOptions, ProgramProfileError};

use crate::CliError;
use crate::args::ProfileArgs;
use crate::commands::exec_command::exit_code;

impl From<ProgramProfileError> for CliError {
    fn from(error: ProgramProfileError) -> CliError {
        match error {
            ProgramProfileError::NotFound { .. }
            | ProgramProfileError::Privileged { .. }
            | ProgramProfileError::OtherMachine { .. }
            | ProgramProfileError::Directory { .. }
            | ProgramProfileError::DirectoriesTooLong { .. } => CliError::Usage(error.to_string()),
            error => CliError::Other(error.to_string()),
        }
    }
}

/// Runs `sluice profile`.
///
/// # Errors
/// [`CliError`] if the program cannot be profiled, or the results cannot be written.
pub fn run(args: &ProfileArgs) -> Result<ExitCode, CliError> {
    // The file is opened first: a long run is not lost because of its name. It keeps its contents until
    // there are new ones.
    let mut output = match &args.output {
        Some(path) => {
            let file = File::options().create(true).write(true).truncate(false).open(path);
            Some(file.map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))?)
        }
        None => None,
    };
    let options = ProfileOptions { directories: args.at.clone(), ..ProfileOptions::default() };
    let found = speculation_profile::run(&args.program, &options)?;
    let text = match args.json {
        true => {
            let text = serde_json::to_string(&found.profile.json());
            text.map_err(|e| CliError::Other(e.to_string()))? + "\n"
        }
        false => found.profile.table(),
    };
    let written = match &mut output {
        Some(file) => file.set_len(0).and_then(|()| file.write_all(text.as_bytes())),
        None => std::io::stderr().write_all(text.as_bytes()),
    };
    written.map_err(|e| CliError::Other(format!("the results cannot be written: {e}")))?;
    Ok(exit_code(found.status))
}
