//! Finds the program to profile, and checks whether the emulator can run it.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::ProgramProfileError;

/// Maximum depth of script interpreters, as in the kernel.
const SCRIPTS_MAX: usize = 4;

/// A program, and the interpreters of a script with their options, in the order of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundProgram {
    /// Words before the script's path: interpreters and their options. Empty for a binary.
    pub interpreters: Vec<String>,
    /// Path of the program.
    pub path: PathBuf,
}

/// Finds `name` as a shell does, in the directories of `search` (`PATH`) if it has no slash. Statically
/// linked programs can be profiled as well.
///
/// # Errors
/// [`ProgramProfileError::NotFound`], [`ProgramProfileError::Privileged`], [`ProgramProfileError::OtherMachine`] also for
/// the interpreter of a script; [`ProgramProfileError::Io`].
pub fn find_program(name: &str, search: &str) -> Result<FoundProgram, ProgramProfileError> {
    let not_found = || ProgramProfileError::NotFound { name: name.to_owned() };
    let path = if name.contains('/') {
        PathBuf::from(name)
    } else {
        let within = |dir: &str| Path::new(if dir.is_empty() { "." } else { dir }).join(name);
        search.split(':').map(within).find(|path| is_program(path)).ok_or_else(not_found)?
    };
    if !is_program(&path) {
        return Err(not_found());
    }
    let mut interpreters = Vec::new();
    let mut checked = path.clone();
    for _ in 0..=SCRIPTS_MAX {
        let Some(line) = script_line(&checked)? else {
            return Ok(FoundProgram { interpreters, path });
        };
        let (program, option) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
        if !is_program(Path::new(program)) {
            return Err(ProgramProfileError::NotFound { name: program.to_owned() });
        }
        checked = PathBuf::from(program);
        let option = Some(option.trim()).filter(|option| !option.is_empty());
        let words = std::iter::once(program).chain(option).map(str::to_owned);
        interpreters.splice(0..0, words);
    }
    Err(not_found())
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Returns the line of a script after `#!`; `None` for a program of this machine.
fn script_line(path: &Path) -> Result<Option<String>, ProgramProfileError> {
    let wrong = || ProgramProfileError::io(path.display().to_string());
    let file = File::open(path).map_err(wrong())?;
    let mut head = Vec::new();
    (&file).take(256).read_to_end(&mut head).map_err(wrong())?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        return Ok(Some(String::from_utf8_lossy(line).trim().to_owned()));
    }
    let metadata = file.metadata().map_err(wrong())?;
    let other_user =
        metadata.mode() & 0o4000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    let other_group =
        metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != rustix::process::getegid().as_raw();
    if other_user || other_group {
        return Err(ProgramProfileError::Privileged { path: path.into() });
    }
    // 64 bits, little endian; machine 62 is x86-64.
    if !head.starts_with(b"\x7fELF\x02\x01") || head.get(18..20) != Some(&[62, 0]) {
        return Err(ProgramProfileError::OtherMachine { path: path.into() });
    }
    Ok(None)
}
