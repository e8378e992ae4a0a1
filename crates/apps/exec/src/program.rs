//! Finds the program to run, and checks whether it can load the preload library. Statically linked
//! and set-user-ID programs never load it (`ld.so(8)`).

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Why a program cannot run on a volume.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No executable program has this name.
    #[error("there is no program \"{name}\" that can be run")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The program could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The program.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The program makes system calls without the C library.
    #[error(
        "{} is linked statically: its calls cannot be taken over. Use a dynamically linked build of it",
        path.display()
    )]
    Static {
        /// The program.
        path: PathBuf,
    },
    /// The dynamic linker loads no library into such a program.
    #[error(
        "{} is set-user-ID or set-group-ID: the system loads no library into it. Run it as its user, \
         from a copy without these bits", path.display()
    )]
    Privileged {
        /// The program.
        path: PathBuf,
    },
    /// The program is built for another machine.
    #[error("{} is no program of this machine (64-bit, little-endian ELF)", path.display())]
    OtherMachine {
        /// The program.
        path: PathBuf,
    },
}

/// Maximum depth of script interpreters.
const SCRIPTS_MAX: usize = 4;

/// Finds `name` as a shell does, in the directories of `search` (`PATH`) if it has no slash, and
/// checks whether it can run on a volume. For a script, its interpreter is checked.
///
/// # Errors
/// [`ProgramError`].
pub fn find(name: &str, search: &str) -> Result<PathBuf, ProgramError> {
    let not_found = || ProgramError::NotFound { name: name.to_owned() };
    let path = if name.contains('/') {
        PathBuf::from(name)
    } else {
        let within = |dir: &str| Path::new(if dir.is_empty() { "." } else { dir }).join(name);
        search.split(':').map(within).find(|path| is_program(path)).ok_or_else(not_found)?
    };
    if !is_program(&path) {
        return Err(not_found());
    }
    let mut looked_at = path.clone();
    for _ in 0..=SCRIPTS_MAX {
        match check(&looked_at)? {
            Some(interpreter) => looked_at = interpreter,
            None => return Ok(path),
        }
    }
    Err(not_found())
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Checks a program; returns the interpreter if it is a script.
fn check(path: &Path) -> Result<Option<PathBuf>, ProgramError> {
    let wrong = |source| ProgramError::Io { path: path.into(), source };
    let file = File::open(path).map_err(wrong)?;
    let mut head = Vec::new();
    (&file).take(256).read_to_end(&mut head).map_err(wrong)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().unwrap_or_default();
        return Ok(Some(PathBuf::from(interpreter)));
    }
    let metadata = file.metadata().map_err(wrong)?;
    // Set-user-ID programs of root gain no privileges when root runs them.
    let other_user =
        metadata.mode() & 0o4000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    let other_group =
        metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != rustix::process::getegid().as_raw();
    if other_user || other_group {
        return Err(ProgramError::Privileged { path: path.into() });
    }
    match has_interpreter(&file, &head) {
        None => Err(ProgramError::OtherMachine { path: path.into() }),
        Some(Ok(true)) => Ok(None),
        Some(Ok(false)) => Err(ProgramError::Static { path: path.into() }),
        Some(Err(source)) => Err(wrong(source)),
    }
}

/// Returns whether an ELF file has a program header `PT_INTERP` (3); `None` if it is not such a
/// file.
fn has_interpreter(file: &File, head: &[u8]) -> Option<std::io::Result<bool>> {
    let number = |bytes: &[u8], at: usize, len: usize| -> Option<u64> {
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes.get(at..at + len)?);
        Some(u64::from_le_bytes(word))
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?);
    for i in 0..count {
        let mut kind = [0; 4];
        let at = table.checked_add(i * size)?;
        if let Err(error) = file.read_exact_at(&mut kind, at) {
            return Some(Err(error));
        }
        if u32::from_le_bytes(kind) == 3 {
            return Some(Ok(true));
        }
    }
    Some(Ok(false))
}
