//! [`EventRing`]: the file that the plugin and the profiler share.
//!
//! All words are 64 bits, little endian.
//!
//! | offset | content |
//! |---|---|
//! | 0 | magic |
//! | 8 | bytes of the directories of the volume; zero if every regular file is on it |
//! | 64 | head: number of events that plugins have reserved |
//! | 128 | tail: number of events that the profiler has read |
//! | 192 | process of the profiler |
//! | 4096 | 512 words, one per system call: its arguments and flags |
//! | 8192 | paths of the directories, each with a zero byte after it; 16 KiB |
//! | 24576 | 32,768 events of 16 words |
//!
//! **Concurrency.** Plugins of several processes reserve a slot by an increment of the head. They wait
//! while the slot has an event that the profiler has not read. A plugin writes the event, and then its
//! number plus one into the first word of the slot (release). The profiler reads slots in order
//! (acquire), and then increments the tail (release).
//!
//! A process that is killed between the reservation and the number leaves a slot that never becomes
//! valid. The profiler skips it after [`LOST_AFTER`], and counts it as lost.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mem::SharedRegion;
use syscall_table::{CALLS_MAX, CallTransfer, SystemCall};

use crate::ProgramProfileError;
use crate::event::{EVENT_WORDS, ProfileEvent};

const MAGIC: u64 = 0x3152_5053_454d_4c53;
const HEAD: usize = 64;
const TAIL: usize = 128;
const CONSUMER: usize = 192;
const DIRECTORIES_LEN: usize = 8;
const CALL_WORDS: usize = 4096;
const DIRECTORIES: usize = 8192;
const DIRECTORIES_BYTES: usize = 16384;
const RING: usize = DIRECTORIES + DIRECTORIES_BYTES;
/// Events in the ring.
const EVENTS: u64 = 32768;
const EVENT_BYTES: usize = 8 * EVENT_WORDS;

/// A slot that was reserved and is not valid after this time is skipped. No plugin that runs takes
/// that long between two stores.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(2);

/// The profiler's side of the ring.
#[derive(Debug)]
pub struct EventRing {
    region: Arc<SharedRegion>,
    path: PathBuf,
    next: u64,
    lost: u64,
    invalid: u64,
    waiting_since: Option<Instant>,
}

impl EventRing {
    /// Creates the file at `path`, which must not exist. Each user can open it, because profiled
    /// programs may change theirs.
    ///
    /// # Errors
    /// [`ProgramProfileError::Io`]; [`ProgramProfileError::DirectoriesTooLong`].
    pub fn create(path: &Path, directories: &[PathBuf]) -> Result<EventRing, ProgramProfileError> {
        use std::os::unix::ffi::OsStrExt as _;
        let wrong = || ProgramProfileError::io(path.display().to_string());
        let mut paths = Vec::new();
        for directory in directories {
            paths.extend_from_slice(directory.as_os_str().as_bytes());
            paths.push(0);
        }
        if paths.len() > DIRECTORIES_BYTES {
            let (bytes, max) = (paths.len(), DIRECTORIES_BYTES);
            return Err(ProgramProfileError::DirectoriesTooLong { bytes, max });
        }
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(wrong())?;
        let len = RING + EVENTS as usize * EVENT_BYTES;
        file.set_len(len as u64).map_err(wrong())?;
        file.set_permissions(std::fs::Permissions::from_mode(0o666)).map_err(wrong())?;
        let region = SharedRegion::file(file, len).map_err(wrong())?;
        let set = |at: usize, value: u64| region.atomic_u64(at).store(value, Ordering::Relaxed);
        for call in syscall_table::calls() {
            set(CALL_WORDS + 8 * usize::from(call.number), call_word(call));
        }
        if !paths.is_empty() {
            region.write(DIRECTORIES, &paths);
        }
        set(DIRECTORIES_LEN, paths.len() as u64);
        set(CONSUMER, u64::from(std::process::id()));
        region.atomic_u64(0).store(MAGIC, Ordering::Release);
        let path = path.to_path_buf();
        Ok(EventRing { region, path, next: 0, lost: 0, invalid: 0, waiting_since: None })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Events that were reserved and never written, because their process was killed.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Slots whose content was no event.
    pub fn invalid(&self) -> u64 {
        self.invalid
    }

    /// Returns whether all reserved events were read.
    pub fn is_empty(&self) -> bool {
        self.region.atomic_u64(HEAD).load(Ordering::Acquire) <= self.next
    }

    /// Returns the next event; `None` if there is none now. `now` is the time of the call.
    pub fn next(&mut self, now: Instant) -> Option<ProfileEvent> {
        loop {
            if self.is_empty() {
                self.waiting_since = None;
                return None;
            }
            let at = RING + (self.next % EVENTS) as usize * EVENT_BYTES;
            let slot = self.region.atomic_u64_array::<EVENT_WORDS>(at);
            if slot[0].load(Ordering::Acquire) != self.next + 1 {
                let since = *self.waiting_since.get_or_insert(now);
                if now.saturating_duration_since(since) < LOST_AFTER {
                    return None;
                }
                self.lost += 1;
                self.advance();
                continue;
            }
            let words = std::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
            let event = ProfileEvent::decode(&words);
            self.advance();
            match event {
                Some(event) => return Some(event),
                None => self.invalid += 1,
            }
        }
    }

    fn advance(&mut self) {
        self.waiting_since = None;
        self.next += 1;
        self.region.atomic_u64(TAIL).store(self.next, Ordering::Release);
    }
}

/// The word of a call: three bytes with the arguments of its object, and flags
/// (`plugin/speculation.c`).
fn call_word(call: &SystemCall) -> u64 {
    const READ: u64 = 1 << 24;
    const WRITE: u64 = 1 << 25;
    const VECTOR: u64 = 1 << 26;
    const RESULT_IS_DESCRIPTOR: u64 = 1 << 27;
    const MAP: u64 = 1 << 28;
    const UNMAP: u64 = 1 << 29;
    const LAST: u64 = 1 << 30;
    const EXEC: u64 = 1 << 31;
    let operands = call.operands();
    let index = |argument: Option<u8>| argument.map_or(0, |index| u64::from(index) + 1);
    let objects =
        index(operands.descriptor) | index(operands.directory) << 8 | index(operands.path) << 16;
    let transfer = match call.transfer() {
        CallTransfer::Read => READ,
        CallTransfer::ReadVector => READ | VECTOR,
        CallTransfer::Write => WRITE,
        CallTransfer::WriteVector => WRITE | VECTOR,
        CallTransfer::None | CallTransfer::Sync => 0,
    };
    let special = match call.name {
        "open" | "openat" | "openat2" | "creat" => RESULT_IS_DESCRIPTOR,
        "mmap" => MAP,
        "munmap" => UNMAP,
        "exit" | "exit_group" => LAST,
        "execve" | "execveat" => EXEC,
        _ => 0,
    };
    objects | transfer | special
}

const _: () = assert!(CALL_WORDS + 8 * CALLS_MAX <= DIRECTORIES);
