//! What this process maps and shares of files on the volume, and what tells the service so.
//!
//! A mapping is of a memory file that the service has (`docs/exec.md`). The service must know that there is one as
//! long as there is: for that the process has a *hold*, a socket as those that stand for open files, of which the
//! kernel gives a forked process a copy, and which it closes at `exec` and death. The program does not know of
//! its descriptor: `close` and the like leave it alone.
//!
//! Guarantees: nothing here allocates, because allocators call `munmap`; no process is forked while another
//! thread has the lock, and no signal is handled by a thread that has it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::c_int;

use crate::{Errno, libc_fns};

/// Mappings that a process has at most: neighbours are not joined.
const MAPPINGS_MAX: usize = 1024;
/// Files that a process maps at most; by descriptors to read and by others it is two.
const MAPPING_REFS_MAX: usize = 256;
/// Where descriptors of holds are, if there can be so many: out of the way of the program's.
const DESCRIPTOR_MIN: c_int = 500;

/// Bytes of a file in memory.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Of the first byte in the file.
    pub(crate) offset: u64,
    /// Whether it can be made writable.
    pub(crate) can_write: bool,
    /// The place of its hold.
    reference: usize,
}

impl Mapping {
    /// Where an address in it, or its end, is in the file.
    pub(crate) fn offset_of(&self, address: usize) -> u64 {
        self.offset + (address - self.begin) as u64
    }
}

/// What keeps mappings of one file alive at the service.
#[derive(Clone, Copy)]
struct MappingRef {
    fd: c_int,
    number: u64,
    /// Inode, and how the file was open that was mapped.
    file: (u64, u64),
    mappings: usize,
}

const NO_MAPPING: Mapping = Mapping { begin: 0, end: 0, offset: 0, can_write: false, reference: 0 };
const NO_MAPPING_REF: MappingRef = MappingRef { fd: -1, number: 0, file: (0, 0), mappings: 0 };

/// Everything, behind the lock.
pub(crate) struct Mappings {
    all: [Mapping; MAPPINGS_MAX],
    len: usize,
    references: [MappingRef; MAPPING_REFS_MAX],
    /// The signals that were blocked before `fork`.
    forking: Option<libc::sigset_t>,
}

struct SharedMappings(UnsafeCell<Mappings>);

// SAFETY: used by who has the lock only.
unsafe impl Sync for SharedMappings {}

static SHARED: SharedMappings = SharedMappings(UnsafeCell::new(Mappings {
    all: [NO_MAPPING; MAPPINGS_MAX],
    len: 0,
    references: [NO_MAPPING_REF; MAPPING_REFS_MAX],
    forking: None,
}));
static LOCKED: AtomicBool = AtomicBool::new(false);
/// All mappings are between these addresses.
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// The descriptors of the holds, to be looked at without the lock; those behind the last were never used.
static DESCRIPTORS: [AtomicI32; MAPPING_REFS_MAX] =
    [const { AtomicI32::new(-1) }; MAPPING_REFS_MAX];
static DESCRIPTORS_USED: AtomicUsize = AtomicUsize::new(0);

/// The lock.
pub(crate) struct MappingsGuard {
    saved_signals: libc::sigset_t,
}

impl MappingsGuard {
    pub(crate) fn lock() -> MappingsGuard {
        // SAFETY: sets of signals on the stack.
        let saved_signals = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            before
        };
        while LOCKED.swap(true, Ordering::Acquire) {
            // SAFETY: gives the processor away.
            unsafe { libc::sched_yield() };
        }
        MappingsGuard { saved_signals }
    }
}

impl Drop for MappingsGuard {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
        // SAFETY: a set of signals of ours.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.saved_signals, std::ptr::null_mut())
        };
    }
}

impl std::ops::Deref for MappingsGuard {
    type Target = Mappings;
    fn deref(&self) -> &Mappings {
        // SAFETY: we have the lock.
        unsafe { &*SHARED.0.get() }
    }
}

impl std::ops::DerefMut for MappingsGuard {
    fn deref_mut(&mut self) -> &mut Mappings {
        // SAFETY: we have the lock.
        unsafe { &mut *SHARED.0.get() }
    }
}

extern "C" fn before_fork() {
    let mut locked = MappingsGuard::lock();
    locked.forking = Some(locked.saved_signals);
    std::mem::forget(locked);
}

extern "C" fn after_fork() {
    // SAFETY: this thread took the lock before the fork.
    let before = unsafe { (*SHARED.0.get()).forking.take() };
    if let Some(before) = before {
        drop(MappingsGuard { saved_signals: before });
    }
}

/// Sees to forks; once, when the library is loaded.
pub(crate) fn prepare() -> bool {
    // SAFETY: functions that stay.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) == 0 }
}

/// Whether there may be a mapping in a range: exact enough to leave everything else alone.
#[inline]
pub(crate) fn can_overlap(begin: usize, len: usize) -> bool {
    begin < HIGH.load(Ordering::Acquire) && begin.saturating_add(len) > LOW.load(Ordering::Acquire)
}

/// The descriptors of holds in a range, in no order.
fn mapping_refs_within(first: c_int, last: c_int) -> impl Iterator<Item = c_int> {
    let used = DESCRIPTORS_USED.load(Ordering::Acquire);
    let all = DESCRIPTORS[..used].iter().map(|fd| fd.load(Ordering::Acquire));
    all.filter(move |fd| (first.max(0)..=last).contains(fd))
}

/// Whether a descriptor is a hold's, of which the program knows nothing.
#[inline]
pub(crate) fn is_mapping_ref(fd: c_int) -> bool {
    mapping_refs_within(fd, fd).next().is_some()
}

/// The parts of a range of descriptors between those of holds.
pub(crate) fn ranges_between_mapping_refs(
    first: c_int,
    last: c_int,
    mut each: impl FnMut(c_int, c_int),
) {
    let mut begin = first;
    loop {
        match mapping_refs_within(begin, last).min() {
            None => break each(begin, last),
            Some(hold) => {
                if begin < hold {
                    each(begin, hold - 1);
                }
                if hold == last {
                    break;
                }
                begin = hold + 1;
            }
        }
    }
}

/// The program wants a hold's descriptor for something else.
pub(crate) fn relocate_mapping_ref(fd: c_int) -> Result<(), Errno> {
    if !is_mapping_ref(fd) {
        return Ok(());
    }
    let mut locked = MappingsGuard::lock();
    let found = locked.references.iter().position(|hold| hold.fd == fd);
    let Some(place) = found else { return Ok(()) };
    let copy = copy_descriptor_up(fd)?;
    locked.references[place].fd = copy;
    // The descriptor stays open until it is replaced.
    DESCRIPTORS[place].store(copy, Ordering::Release);
    Ok(())
}

/// A copy of a descriptor out of the program's way.
fn copy_descriptor_up(fd: c_int) -> Result<c_int, Errno> {
    let mut copy = -1;
    for least in [DESCRIPTOR_MIN, 3] {
        if copy < 0 {
            // SAFETY: a descriptor of ours.
            copy = unsafe { libc_fns::fcntl()(fd, libc::F_DUPFD_CLOEXEC, least as _) };
        }
    }
    // SAFETY: the C library's word of this thread.
    if copy < 0 { Err(unsafe { *libc::__errno_location() }) } else { Ok(copy) }
}

impl Mappings {
    /// Whether so many more mappings fit.
    pub(crate) fn has_capacity(&self, more: usize) -> bool {
        self.len + more <= MAPPINGS_MAX
    }

    /// Whether nothing of a range can be unmapped: it is within a mapping, of which two would be left.
    pub(crate) fn cannot_split(&self, begin: usize, end: usize) -> bool {
        let is_within = |m: &Mapping| m.begin < begin && end < m.end;
        !self.has_capacity(1) && self.all[..self.len].iter().any(is_within)
    }

    /// The first mapping that has something of a range.
    pub(crate) fn first(&self, begin: usize, end: usize) -> Option<Mapping> {
        let touches = |m: &&Mapping| m.begin < end && begin < m.end;
        self.all[..self.len].iter().filter(touches).min_by_key(|m| m.begin).copied()
    }

    /// The open file's number that stands for a mapping.
    pub(crate) fn number(&self, mapping: &Mapping) -> u64 {
        self.references[mapping.reference].number
    }

    /// Notes a mapping, for which there is room, where nothing else is noted. Takes the socket: it is the hold of
    /// the file, or closed, if there is one.
    ///
    /// # Errors
    /// `ENOMEM`: too many files. The socket is closed.
    pub(crate) fn add(
        &mut self,
        (begin, end): (usize, usize),
        offset: u64,
        writes: bool,
        file: (u64, u64),
        (socket, number): (c_int, u64),
    ) -> Result<(), Errno> {
        let known = self.references.iter().position(|hold| hold.mappings > 0 && hold.file == file);
        let free = self.references.iter().position(|hold| hold.mappings == 0);
        // Without a descriptor up there it stays where it is.
        let kept = match (known, free) {
            (None, Some(_)) => copy_descriptor_up(socket).unwrap_or(socket),
            _ => -1,
        };
        if kept != socket {
            // SAFETY: the socket is ours.
            unsafe { libc_fns::close()(socket) };
        }
        let hold = known.or(free).ok_or(libc::ENOMEM)?;
        if known.is_none() {
            self.references[hold] = MappingRef { fd: kept, number, file, mappings: 0 };
            DESCRIPTORS[hold].store(kept, Ordering::Release);
            DESCRIPTORS_USED.fetch_max(hold + 1, Ordering::AcqRel);
        }
        self.push(Mapping { begin, end, offset, can_write: writes, reference: hold });
        self.update_bounds();
        Ok(())
    }

    /// Notes another mapping of the same bytes.
    pub(crate) fn add_like(&mut self, of: &Mapping, (begin, end): (usize, usize), offset: u64) {
        self.push(Mapping { begin, end, offset, ..*of });
        self.update_bounds();
    }

    fn push(&mut self, mapping: Mapping) {
        if self.len < MAPPINGS_MAX {
            self.all[self.len] = mapping;
            self.len += 1;
            self.references[mapping.reference].mappings += 1;
        }
    }

    /// Makes two mappings of one that goes over an address; there is room for one more.
    fn split(&mut self, at: usize) {
        let over = self.all[..self.len].iter().position(|m| m.begin < at && at < m.end);
        if let Some(place) = over {
            let mapping = self.all[place];
            self.all[place].end = at;
            self.push(Mapping { begin: at, offset: mapping.offset_of(at), ..mapping });
        }
    }

    /// Forgets what is mapped in a range, which [can be cut](Mappings::cannot_split).
    pub(crate) fn remove_range(&mut self, begin: usize, end: usize) {
        let whole = |m: &Mapping| begin <= m.begin && m.end <= end;
        let mut at = if begin < end { 0 } else { self.len };
        while at < self.len {
            let mapping = self.all[at];
            if whole(&mapping) {
                self.remove(at);
                continue;
            }
            // What is left of it: an end, a begin, or both.
            if mapping.begin < begin && begin < mapping.end {
                if end < mapping.end {
                    self.split(end);
                }
                self.all[at].end = begin;
            } else if mapping.begin < end && end < mapping.end {
                self.all[at].offset = mapping.offset_of(end);
                self.all[at].begin = end;
            }
            at += 1;
        }
        self.update_bounds();
    }

    /// What is mapped in a range can be made writable from now on; there is room for two more.
    pub(crate) fn set_writable(&mut self, begin: usize, end: usize) {
        self.split(begin);
        self.split(end);
        let within = |m: &&mut Mapping| begin <= m.begin && m.end <= end;
        self.all[..self.len].iter_mut().filter(within).for_each(|m| m.can_write = true);
    }

    /// What was mapped from an address on, up to another, is in a new range; there is room for two more.
    pub(crate) fn on_remap(&mut self, (begin, end): (usize, usize), new: (usize, usize)) {
        self.split(begin);
        self.split(end);
        let first = self.all[..self.len].iter().position(|m| m.begin == begin);
        let Some(place) = first else { return };
        // Neighbours that the kernel had joined have moved with it.
        let first_end = self.all[place].end;
        (self.all[place].begin, self.all[place].end) = (0, 0);
        self.remove_range(first_end, end);
        self.remove_range(new.0.max(1), new.1);
        if let Some(moved) = self.all[..self.len].iter_mut().find(|m| m.end == 0) {
            (moved.begin, moved.end) = new;
        }
        self.update_bounds();
    }

    /// Takes a mapping out; the last one of a file takes its hold along.
    fn remove(&mut self, at: usize) {
        let place = self.all[at].reference;
        self.len -= 1;
        self.all[at] = self.all[self.len];
        let hold = &mut self.references[place];
        hold.mappings -= 1;
        if hold.mappings == 0 {
            DESCRIPTORS[place].store(-1, Ordering::Release);
            // SAFETY: a descriptor of ours.
            unsafe { libc_fns::close()(hold.fd) };
            *hold = NO_MAPPING_REF;
        }
    }

    fn update_bounds(&self) {
        let all = &self.all[..self.len];
        LOW.store(all.iter().map(|m| m.begin).min().unwrap_or(usize::MAX), Ordering::Release);
        HIGH.store(all.iter().map(|m| m.end).max().unwrap_or(0), Ordering::Release);
    }
}
