//! [`RulesFile`]: rules that outlive the server (`sluice serve --rules`; `docs/format/rules.md`).
//!
//! Guarantees: the file is written whole or not at all, and is on its medium before whoever wanted the
//! change is told that it is made; a file that is damaged, cut short or of another version is refused, with
//! the line, and is left as it is; it is one server's at a time.
//!
//! # Whose it is
//!
//! A server holds an exclusive `flock(2)` on the file from [`begin`](RulesFile::begin) on, until it ends, however
//! it ends. A change puts another file in its place, which is locked before it is there: whoever finds a file
//! by its name finds it locked. Where there is none yet, the lock on the file beside decides, and then a
//! second look.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use direct::served::{Grant, Name, Rule, Subject};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::table::Table;

/// The first line: what it is, and its version.
const FIRST: &str = "sluice-rules 1";
/// Before a line's checksum.
const SUM: &str = " crc32c=";
/// Bytes of a file at most: a hundred times more than anybody has users.
const MOST_BYTES: u64 = 16 << 20;

/// Rules cannot be kept, or not be read.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
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
pub struct RulesFile {
    path: PathBuf,
    /// The file that is in its place, locked.
    held: Arc<Mutex<Option<File>>>,
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

fn line_of(rule: &Rule) -> String {
    let Rule { subject, device, partition, grant } = rule;
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

fn subject_of(word: &str) -> Option<Subject> {
    match word.split_once(':') {
        Some(("uid", number)) => number.parse().ok().map(Subject::Uid),
        Some(("gid", number)) => number.parse().ok().map(Subject::Gid),
        None if word == "anyone" => Some(Subject::Anyone),
        _ => None,
    }
}

fn rule_of(line: &str) -> Option<Rule> {
    let mut words = line.strip_prefix("allow ")?.split(' ');
    let subject = subject_of(words.next()?)?;
    let (device, partition) = words.next()?.split_once('/')?;
    let (device, partition) = (Name::new(device).ok()?, Name::new(partition).ok()?);
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
    words.next().is_none().then_some(Rule { subject, device, partition, grant })
}

/// The text before a line's checksum, if that is right.
fn checked(line: &str) -> Result<&str, String> {
    let (text, sum) = line.rsplit_once(SUM).ok_or("a line without a checksum")?;
    let right = format!("{:08x}", crc32c::crc32c(text.as_bytes()));
    match sum == right {
        true => Ok(text),
        false => Err(format!("the line's checksum is {sum}, and {right} of what it says")),
    }
}

impl RulesFile {
    /// The file at `path`, which need not be there yet.
    pub fn at(path: impl Into<PathBuf>) -> RulesFile {
        RulesFile { path: path.into(), held: Arc::default() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self) -> impl Fn(io::Error) -> RulesError {
        |source| RulesError::Io { path: self.path.clone(), source }
    }

    /// At the start of a server: the file's rules take the place of the table's; without a file, those of
    /// the table are written to it. The file is this server's from now on. Returns whether there was a file.
    ///
    /// # Errors
    /// [`RulesError`]; the table is as it was, and so is the file.
    pub fn begin(&self, table: &mut Table) -> Result<bool, RulesError> {
        let mut bytes = Vec::new();
        let file = loop {
            match File::open(&self.path) {
                Ok(file) => {
                    self.lock(&file)?;
                    // It may have been replaced before it was locked.
                    if is_at(&file, &self.path).map_err(self.failed())? {
                        break file;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.put(table.rules(), false)? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(self.failed()(error)),
            }
        };
        // One byte more, so that what is too long has no end.
        let read = (&file).take(MOST_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(self.failed())?;
        let rules = self.parse(&bytes, table)?;
        *table = rules;
        self.hold(file);
        Ok(true)
    }

    /// The table with a file's rules in place of its own.
    fn parse(&self, bytes: &[u8], table: &Table) -> Result<Table, RulesError> {
        let mut new = table.clone();
        new.clear_rules();
        let wrong = |line: usize, why: String| RulesError::Line {
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
                if line != FIRST {
                    return Err(wrong(at, format!("the first line of such a file is `{FIRST}`")));
                }
                continue;
            }
            let line = checked(line).map_err(|why| wrong(at, why))?;
            match line.strip_prefix("end ") {
                Some(count) if count == (at - 1).to_string() => end = Some(at),
                Some(count) => {
                    let why = format!("the end of {count} rules, after {}", at - 1);
                    return Err(wrong(at, why));
                }
                None => {
                    let rule = rule_of(line).ok_or("no rule that is known here".to_owned());
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
    /// [`RulesError::Io`], [`RulesError::InUse`]; the file is as it was.
    pub fn save(&self, rules: &[Rule]) -> Result<(), RulesError> {
        // Who had the file beside has put it into its place, and is not there any more.
        while !self.put(rules, true)? {}
        Ok(())
    }

    fn lock(&self, file: &File) -> Result<(), RulesError> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(RulesError::InUse { path: self.path.clone() }),
            Err(error) => Err(self.failed()(error.into())),
        }
    }

    fn hold(&self, file: File) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// Writes all rules, in place of a file that is there only if that is wanted. Whether it did.
    fn put(&self, rules: &[Rule], replace: bool) -> Result<bool, RulesError> {
        let mut text = format!("{FIRST}\n");
        let ends = std::iter::once(format!("end {}", rules.len()));
        for line in rules.iter().map(line_of).chain(ends) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{line}{SUM}{:08x}", crc32c::crc32c(line.as_bytes()));
        }
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        // Rules say who may do what: for the server's user alone. It may be another server's still, until it
        // is locked.
        let options =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
        let mut file = options.open(&beside).map_err(self.failed())?;
        self.lock(&file)?;
        if !is_at(&file, &beside).map_err(self.failed())? || (!replace && self.path.exists()) {
            return Ok(false);
        }
        self.write(&mut file, &beside, text.as_bytes()).map_err(self.failed())?;
        self.hold(file);
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
