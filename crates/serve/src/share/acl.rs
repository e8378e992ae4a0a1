//! [`AclFile`]: rules that outlive the server (`sluice serve --rules`; `docs/format/rules.md`).
//!
//! Guarantees: the file is written whole or not at all, and is on its medium before whoever wanted the
//! change is told that it is made; a file that is damaged, cut short or of another version is refused, with
//! the line, and is left as it is; it is one server's at a time.
//!
//! # Whose it is
//!
//! A server holds an exclusive `flock(2)` on the file from [`begin`](AclFile::load_or_create) on, until it ends, however
//! it ends. A change puts another file in its place, which is locked before it is there: whoever finds a file
//! by its name finds it locked. Where there is none yet, the lock on the file beside decides, and then a
//! second look.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use direct::remote::{AclRule, Grant, Principal, ResourceName};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::partition_table::PartitionTable;

/// The first line: what it is, and its version.
const HEADER_LINE: &str = "sluice-rules 1";
/// Before a line's checksum.
const CHECKSUM_PREFIX: &str = " crc32c=";
/// Bytes of a file at most: a hundred times more than anybody has users.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Rules cannot be kept, or not be read.
#[derive(Debug, thiserror::Error)]
pub enum AclError {
    /// The file cannot be read, or not be written.
    #[error("the rules' file {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Another server keeps its rules there.
    #[error("the rules' file {path} is another server's: give each server a file of its own")]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// A line is not what this library writes, or its rule cannot be.
    #[error(
        "{path}:{line}: {why}; remove or mend the file: without it the rules are those of the scenario"
    )]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// A file of rules. Clones are the same file; it is let go of with the last.
#[derive(Clone, Debug)]
pub struct AclFile {
    path: PathBuf,
    /// The file that is in its place, locked.
    locked_file: Arc<Mutex<Option<File>>>,
}

/// Whether `file` is what `path` names.
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

/// The text before a line's checksum, if that is right.
fn verify_checksum(line: &str) -> Result<&str, String> {
    let (text, sum) = line.rsplit_once(CHECKSUM_PREFIX).ok_or("a line without a checksum")?;
    let right = format!("{:08x}", crc32c::crc32c(text.as_bytes()));
    match sum == right {
        true => Ok(text),
        false => Err(format!("the line's checksum is {sum}, and {right} of what it says")),
    }
}

impl AclFile {
    /// The file at `path`, which need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> AclFile {
        AclFile { path: path.into(), locked_file: Arc::default() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn io_error(&self) -> impl Fn(io::Error) -> AclError {
        |source| AclError::Io { path: self.path.clone(), source }
    }

    /// At the start of a server: the file's rules take the place of the table's; without a file, those of
    /// the table are written to it. The file is this server's from now on. Returns whether there was a file.
    ///
    /// # Errors
    /// [`AclError`]; the table is as it was, and so is the file.
    pub fn load_or_create(&self, table: &mut PartitionTable) -> Result<bool, AclError> {
        let mut bytes = Vec::new();
        let file = loop {
            match File::open(&self.path) {
                Ok(file) => {
                    self.lock(&file)?;
                    // It may have been replaced before it was locked.
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
        // One byte more, so that what is too long has no end.
        let read = (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(self.io_error())?;
        let rules = self.parse(&bytes, table)?;
        *table = rules;
        self.set_locked_file(file);
        Ok(true)
    }

    /// The table with a file's rules in place of its own.
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

    /// Writes all rules: beside the file first, then in its place.
    ///
    /// # Errors
    /// [`AclError::Io`], [`AclError::InUse`]; the file is as it was.
    pub fn save(&self, rules: &[AclRule]) -> Result<(), AclError> {
        // Who had the file beside has put it into its place, and is not there any more.
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

    /// Writes all rules, in place of a file that is there only if that is wanted. Whether it did.
    fn replace_file(&self, rules: &[AclRule], replace: bool) -> Result<bool, AclError> {
        let mut text = format!("{HEADER_LINE}\n");
        let ends = std::iter::once(format!("end {}", rules.len()));
        for line in rules.iter().map(format_line).chain(ends) {
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "{line}{CHECKSUM_PREFIX}{:08x}", crc32c::crc32c(line.as_bytes()));
        }
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        // Rules say who may do what: for the server's user alone. It may be another server's still, until it
        // is locked.
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
