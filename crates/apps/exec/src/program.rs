//! Finds the program to run, and checks whether it can load the preload library, and calls it. Statically
//! linked and set-user-ID programs never load it (`ld.so(8)`). Go programs make their system calls
//! themselves.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{ELFMAG, FileHeader64, PT_INTERP};
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

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
    /// The program makes system calls without the C library, although it is linked with it.
    #[error(
        "{} is a Go program: it makes its system calls itself, so that they cannot be taken over",
        path.display()
    )]
    Go {
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
    if !head.starts_with(&ELFMAG) {
        return Err(ProgramError::OtherMachine { path: path.into() });
    }
    match linkage(&file) {
        Err(_) => Err(ProgramError::OtherMachine { path: path.into() }),
        Ok(Linkage::Dynamic) => Ok(None),
        Ok(Linkage::Static) => Err(ProgramError::Static { path: path.into() }),
        Ok(Linkage::Go) => Err(ProgramError::Go { path: path.into() }),
    }
}

/// How a program makes its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linkage {
    /// Through libraries that the dynamic linker loads.
    Dynamic,
    /// Through a C library within the program, or none.
    Static,
    /// Itself, with a dynamic linker for its parts in C.
    Go,
}

/// Returns how an ELF file of 64 bits, little-endian, is linked. The Go linker marks its programs
/// with an ELF note whose owner is `Go`.
fn linkage(file: &File) -> object::read::Result<Linkage> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    if !segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP) {
        return Ok(Linkage::Static);
    }
    for segment in segments {
        let Ok(Some(mut notes)) = segment.notes(endian, data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"Go" {
                return Ok(Linkage::Go);
            }
        }
    }
    Ok(Linkage::Dynamic)
}
