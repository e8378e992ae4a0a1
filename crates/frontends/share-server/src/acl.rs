//! [`AclFile`]: access rules that persist across servers (`sluice serve --rules`; `docs/format/rules.md`).
//!
//! # Guarantees
//!
//! - The file is replaced atomically, and is durable before the change is acknowledged.
//! - A damaged or truncated file, or one of another version, is refused with its line number and
//!   not changed.
//! - At most one server uses the file at a time.
//!
//! # Locking
//!
//! A server holds an exclusive `flock(2)` on the file from
//! [`load_or_create`](AclFile::load_or_create) until its process ends. A change renames a new file
//! over the old one; the new file is locked before the rename, so any file found at the path is
//! locked. If no file exists yet, the lock on the temporary file decides, followed by a second
//! check of the path.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use share_proto::{AclRule, Grant, Principal, ResourceName};

use super::partition_table::PartitionTable;

/// The first line: type and version.
const HEADER_LINE: &str = "sluice-rules 1";
/// Precedes a line's checksum.
const CHECKSUM_PREFIX: &str = " crc32c=";
/// Maximum bytes of a file, about a hundred times of any realistic use.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why rules cannot be read or saved.
#[derive(Debug, thiserror::Error)]
pub enum AclError {
    /// The file cannot be read or written.
    #[error("the rules' file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Another server uses the file.
    #[error("the rules file {path} is in use by another server: give each server its own file")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A line is malformed, or its rule is invalid.
    #[error(
        "{path}:{line}: {why}; remove or repair the file: without it the rules of the scenario apply"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The problem.
        why: String,
    },
}

/// A file of rules. Clones refer to the same file; its lock is released with the last.
#[derive(Clone, Debug)]
pub struct AclFile {
    path: PathBuf,
    /// The current file, locked.
    locked_file: Arc<Mutex<Option<File>>>,
}

/// Returns whether `path` names `file`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let meta = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (meta.dev(), meta.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn format_line(rule: &AclRule) -> String {
    let AclRule { principal: subject, device, partition, grant } = rule;
    let Grant { write, queues, depth, iops, bytes_per_sec } = grant;
    let rate = |rate: &Option<u64>| rate.map_or("none".into(), |rate| rate.to_string());
    let write = if *write { "yes" } else { "no" };
    format!(
        "allow {subject} {device}/{partition} write={write} queues={queues} depth={depth} iops={} \
         bandwidth={}",
        rate(iops),
        rate(bytes_per_sec)
    )
}

fn parse_principal(word: &str) -> Option<Principal> {
    match word.split_once(':') {
        Some(("uid", number)) => number.parse().ok().map(Principal::Uid),
        Some(("gid", number)) => number.parse().ok().map(Principal::Gid),
        None if word == "anyone" => Some(Principal::Anyone),
        _ => None,
    }
}

fn parse_rule(line: &str) -> Option<AclRule> {
    let mut words = line.strip_prefix("allow ")?.split(' ');
    let subject = parse_principal(words.next()?)?;
    let (device, partition) = words.next()?.split_once('/')?;
    let (device, partition) = (ResourceName::new(device).ok()?, ResourceName::new(partition).ok()?);
    let mut field = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
    let write = match field("write")? {
        "yes" => true,
        "no" => false,
        _ => return None,
    };
    let (queues, depth) = (field("queues")?.parse().ok()?, field("depth")?.parse().ok()?);
    let rate = |word: &str| match word {
        "none" => Some(None),
        word => word.parse().ok().filter(|rate| *rate > 0).map(Some),
    };
    let (iops, bytes_per_sec) = (rate(field("iops")?)?, rate(field("bandwidth")?)?);
    let grant = Grant { write, queues, depth, iops, bytes_per_sec };
    words.next().is_none().then_some(AclRule { principal: subject, device, partition, grant })
}

/// Returns the text before a line's checksum, if the checksum is correct.
fn verify_checksum(line: &str) -> Result<&str, String> {
    let (text, sum) = line.rsplit_once(CHECKSUM_PREFIX).ok_or("a line without a checksum")?;
    let right = format!("{:08x}", crc32c::crc32c(text.as_bytes()));
    match sum == right {
        true => Ok(text),
        false => Err(format!("the line's checksum is {sum}, and {right} of what it says")),
    }
}

impl AclFile {
    /// Creates a reference to the file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> AclFile {
        AclFile { path: path.into(), locked_file: Arc::default() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn io_error(&self) -> impl Fn(io::Error) -> AclError {
        |source| AclError::Io { path: self.path.clone(), source }
    }

    /// Loads the rules at the start of a server: they replace those of the table. Without a file,
    /// writes the rules of the table to a new one. Locks the file for this server. Returns whether
    /// a file existed.
    ///
    /// # Errors
    /// [`AclError`]; the table and the file are unchanged.
    pub fn load_or_create(&self, table: &mut PartitionTable) -> Result<bool, AclError> {
        let mut bytes = Vec::new();
        let file = loop {
            match File::open(&self.path) {
                Ok(file) => {
                    self.lock(&file)?;
                    // The file may have been replaced before it was locked.
                    if is_at(&file, &self.path).map_err(self.io_error())? {
                        break file;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.replace_file(table.rules(), false)? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(self.io_error()(error)),
            }
        };
        // One byte more than the limit, so that an oversized file fails to parse for lack of its
        // end line.
        let read = (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(self.io_error())?;
        let rules = self.parse(&bytes, table)?;
        *table = rules;
        self.set_locked_file(file);
        Ok(true)
    }

    /// Returns the table with the file's rules in place of its own.
    fn parse(&self, bytes: &[u8], table: &PartitionTable) -> Result<PartitionTable, AclError> {
        let mut new = table.clone();
        new.clear_rules();
        let wrong = |line: usize, why: String| AclError::Line {
            path: self.path.clone(),
            line: line + 1,
            why,
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count();
            wrong(line, "a byte that is no text".into())
        })?;
        let mut end = None;
        let mut last = 0;
        for (at, line) in text.split_inclusive('\n').enumerate() {
            last = at + 1;
            if end.is_some() {
                return Err(wrong(at, "a line after the end".into()));
            }
            let Some(line) = line.strip_suffix('\n') else {
                return Err(wrong(at, "a line that is cut short".into()));
            };
            if at == 0 {
                if line != HEADER_LINE {
                    return Err(wrong(
                        at,
                        format!("the first line of such a file is `{HEADER_LINE}`"),
                    ));
                }
                continue;
            }
            let line = verify_checksum(line).map_err(|why| wrong(at, why))?;
            match line.strip_prefix("end ") {
                Some(count) if count == (at - 1).to_string() => end = Some(at),
                Some(count) => {
                    let why = format!("the end of {count} rules, after {}", at - 1);
                    return Err(wrong(at, why));
                }
                None => {
                    let rule = parse_rule(line).ok_or("no rule that is known here".to_owned());
                    let set = rule.and_then(|rule| new.allow(rule).map_err(|r| r.text));
                    if set.map_err(|why| wrong(at, why))? {
                        return Err(wrong(at, "a second rule for a subject and partition".into()));
                    }
                }
            }
        }
        match end {
            Some(_) => Ok(new),
            None => Err(wrong(last, "the file is cut short: its end is not there".into())),
        }
    }

    /// Saves all rules: writes a temporary file and renames it.
    ///
    /// # Errors
    /// [`AclError::Io`], [`AclError::InUse`]; the file is unchanged.
    pub fn save(&self, rules: &[AclRule]) -> Result<(), AclError> {
        // Retry if another server renamed the temporary file before it was locked.
        while !self.replace_file(rules, true)? {}
        Ok(())
    }

    fn lock(&self, file: &File) -> Result<(), AclError> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(AclError::InUse { path: self.path.clone() }),
            Err(error) => Err(self.io_error()(error.into())),
        }
    }

    fn set_locked_file(&self, file: File) {
        *self.locked_file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// Writes all rules. Overwrites an existing file only with `replace`. Returns whether the file
    /// was written.
    fn replace_file(&self, rules: &[AclRule], replace: bool) -> Result<bool, AclError> {
        let mut text = format!("{HEADER_LINE}\n");
        let ends = std::iter::once(format!("end {}", rules.len()));
        for line in rules.iter().map(format_line).chain(ends) {
            // Writing to a string cannot fail.
            let _ =
                writeln!(text, "{line}{CHECKSUM_PREFIX}{:08x}", crc32c::crc32c(line.as_bytes()));
        }
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        // Permissions are for the server's user alone, because rules control access. Until it is
        // locked, the file may belong to another server.
        let options =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
        let mut file = options.open(&beside).map_err(self.io_error())?;
        self.lock(&file)?;
        if !is_at(&file, &beside).map_err(self.io_error())? || (!replace && self.path.exists()) {
            return Ok(false);
        }
        self.write(&mut file, &beside, text.as_bytes()).map_err(self.io_error())?;
        self.set_locked_file(file);
        Ok(true)
    }

    fn write(&self, file: &mut File, beside: &Path, bytes: &[u8]) -> io::Result<()> {
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(beside, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}
