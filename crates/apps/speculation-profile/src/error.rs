//! [`ProgramProfileError`]: why a program cannot be profiled.

use std::io;
use std::path::PathBuf;

/// Why a program cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProgramProfileError {
    /// The emulator is not installed.
    #[error("{emulator} is not installed: `scripts/apt-install qemu-user` installs it")]
    NoEmulator {
        /// Name of the emulator.
        emulator: String,
    },
    /// The emulator does not load plugins.
    #[error(
        "{emulator} loads no plugins: it is built without them. Use that of Debian's package qemu-user"
    )]
    NoPlugins {
        /// Path of the emulator.
        emulator: PathBuf,
    },
    /// This build has no plugin.
    #[error("programs can be profiled on x86-64 Linux only")]
    OtherHost,
    /// No executable program has this name.
    #[error("there is no program \"{name}\" that can be run")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The program gains the rights of its owner, which the emulator cannot give it.
    #[error(
        "{} is set-user-ID or set-group-ID: it would run without these rights. Run it as its user, \
         from a copy without these bits", path.display()
    )]
    Privileged {
        /// The program.
        path: PathBuf,
    },
    /// The program is built for another machine.
    #[error("{} is no program of this machine (x86-64 ELF)", path.display())]
    OtherMachine {
        /// The program.
        path: PathBuf,
    },
    /// A directory of the volume cannot be used.
    #[error("the directory {} cannot be used: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The paths of all directories are too long together.
    #[error("the directories of the volume have paths of {bytes} bytes: at most {max} together")]
    DirectoriesTooLong {
        /// Length of all paths.
        bytes: usize,
        /// Maximum.
        max: usize,
    },
    /// The emulator ended before the program started.
    #[error("{emulator} ended before the program started: {status}")]
    NotStarted {
        /// Path of the emulator.
        emulator: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// A file or process could not be used.
    #[error("{action}: {source}")]
    Io {
        /// The attempted action.
        action: String,
        /// Cause.
        source: io::Error,
    },
}

impl ProgramProfileError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> ProgramProfileError {
        let action = action.into();
        move |source| ProgramProfileError::Io { action, source }
    }
}
