//! Shared mappings of volume files in this process, and the references that keep them alive in the
//! service.
//!
//! A mapping is of a memory file of the service (`docs/exec.md`). The service must know as long as
//! the mapping exists. The process therefore holds a *mapping reference*: a socket like those that
//! represent open files. The kernel copies it at `fork`, and closes it at `exec` and process exit.
//! The program does not know its descriptor, and `close` and similar calls do not affect it.
//!
//! Guarantees: nothing here allocates, because allocators call `munmap`. No process is forked while
//! another thread holds the lock, and no signal is handled by a thread that holds it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::c_int;

use crate::{Errno, gate, libc_fns};

/// Maximum number of mappings of a process; adjacent ones are not merged.
const MAPPINGS_MAX: usize = 1024;
/// Maximum number of mapping references. A file mapped through both read-only and other descriptors
/// needs two.
const MAPPING_REFS_MAX: usize = 256;
/// Lowest descriptor of mapping references, if the descriptor limit permits: out of the program's
/// range.
const DESCRIPTOR_MIN: c_int = 500;

/// A mapped range of a file.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// Whether the mapping can be made writable.
    pub(crate) can_write: bool,
    /// Index of its mapping reference.
    reference: usize,
}

impl Mapping {
    /// Returns the file offset of an address in the mapping, or of its end.
    pub(crate) fn offset_of(&self, address: usize) -> u64 {
        self.offset + (address - self.begin) as u64
    }
}

/// A reference that keeps the mappings of one file alive in the service.
#[derive(Clone, Copy)]
struct MappingRef {
    fd: c_int,
    number: u64,
    file: MappedFileId,
    mappings: usize,
}

/// A range of addresses of this process.
#[derive(Clone, Copy)]
pub(crate) struct AddressRange {
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

/// A file as it was opened for a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedFileId {
    pub(crate) ino: u64,
    /// Access mode of the mapped descriptor.
    pub(crate) access: u64,
}

/// The service's side of a mapping.
#[derive(Clone, Copy)]
pub(crate) struct MappingSource {
    /// The socket that keeps the mapping alive in the service.
    pub(crate) socket: c_int,
    /// The handle that represents the mapping.
    pub(crate) number: u64,
}

const NO_MAPPING: Mapping = Mapping { begin: 0, end: 0, offset: 0, can_write: false, reference: 0 };
const NO_MAPPING_REF: MappingRef =
    MappingRef { fd: -1, number: 0, file: MappedFileId { ino: 0, access: 0 }, mappings: 0 };

/// All mappings, protected by the lock.
pub(crate) struct Mappings {
    all: [Mapping; MAPPINGS_MAX],
    len: usize,
    references: [MappingRef; MAPPING_REFS_MAX],
    /// Signal mask before `fork`.
    forking: Option<libc::sigset_t>,
}

struct SharedMappings(UnsafeCell<Mappings>);

// SAFETY: accessed only by the lock holder.
unsafe impl Sync for SharedMappings {}

static SHARED: SharedMappings = SharedMappings(UnsafeCell::new(Mappings {
    all: [NO_MAPPING; MAPPINGS_MAX],
    len: 0,
    references: [NO_MAPPING_REF; MAPPING_REFS_MAX],
    forking: None,
}));
static LOCKED: AtomicBool = AtomicBool::new(false);
/// Bounds of all mappings.
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// Descriptors of the mapping references, readable without the lock; those past `DESCRIPTORS_USED`
/// were never used.
static DESCRIPTORS: [AtomicI32; MAPPING_REFS_MAX] =
    [const { AtomicI32::new(-1) }; MAPPING_REFS_MAX];
static DESCRIPTORS_USED: AtomicUsize = AtomicUsize::new(0);

/// Guard of the lock; blocks signals.
pub(crate) struct MappingsGuard {
    saved_signals: libc::sigset_t,
}

impl MappingsGuard {
    pub(crate) fn lock() -> MappingsGuard {
        // SAFETY: signal sets on the stack.
        let saved_signals = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            before
        };
        while LOCKED.swap(true, Ordering::Acquire) {
            // SAFETY: yields the processor.
            unsafe { libc::sched_yield() };
        }
        MappingsGuard { saved_signals }
    }
}

impl Drop for MappingsGuard {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
        // SAFETY: the saved signal set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.saved_signals, std::ptr::null_mut())
        };
    }
}

impl std::ops::Deref for MappingsGuard {
    type Target = Mappings;
    fn deref(&self) -> &Mappings {
        // SAFETY: the guard holds the lock.
        unsafe { &*SHARED.0.get() }
    }
}

impl std::ops::DerefMut for MappingsGuard {
    fn deref_mut(&mut self) -> &mut Mappings {
        // SAFETY: the guard holds the lock.
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

/// Installs the fork handlers; called once, when the library is loaded.
pub(crate) fn prepare() -> bool {
    // SAFETY: the functions are never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) == 0 }
}

/// Returns whether a range may overlap a mapping. A fast filter for unrelated calls.
#[inline]
pub(crate) fn can_overlap(begin: usize, len: usize) -> bool {
    begin < HIGH.load(Ordering::Acquire) && begin.saturating_add(len) > LOW.load(Ordering::Acquire)
}

/// Returns the descriptors of mapping references in a range, unordered.
fn mapping_refs_within(first: c_int, last: c_int) -> impl Iterator<Item = c_int> {
    let used = DESCRIPTORS_USED.load(Ordering::Acquire);
    let all = DESCRIPTORS[..used].iter().map(|fd| fd.load(Ordering::Acquire));
    all.filter(move |fd| (first.max(0)..=last).contains(fd))
}

/// Returns whether a descriptor is a mapping reference, which is hidden from the program.
#[inline]
pub(crate) fn is_mapping_ref(fd: c_int) -> bool {
    mapping_refs_within(fd, fd).next().is_some()
}

/// Calls `each` for the subranges of a descriptor range between mapping references.
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

/// Moves a mapping reference whose descriptor the program wants to replace.
pub(crate) fn relocate_mapping_ref(fd: c_int) -> Result<(), Errno> {
    if !is_mapping_ref(fd) {
        return Ok(());
    }
    let mut locked = MappingsGuard::lock();
    let found = locked.references.iter().position(|hold| hold.fd == fd);
    let Some(place) = found else { return Ok(()) };
    let copy = copy_descriptor_up(fd)?;
    locked.references[place].fd = copy;
    // The old descriptor stays open until it is replaced.
    DESCRIPTORS[place].store(copy, Ordering::Release);
    Ok(())
}

/// Duplicates a descriptor out of the program's range.
fn copy_descriptor_up(fd: c_int) -> Result<c_int, Errno> {
    let mut copy = -1;
    for least in [DESCRIPTOR_MIN, 3] {
        if copy < 0 {
            // SAFETY: a descriptor of this library.
            copy = unsafe { libc_fns::fcntl()(fd, libc::F_DUPFD_CLOEXEC, least as _) };
        }
    }
    // SAFETY: `errno` of this thread.
    if copy < 0 { Err(unsafe { *libc::__errno_location() }) } else { Ok(copy) }
}

impl Mappings {
    /// Returns whether this many more mappings fit.
    pub(crate) fn has_capacity(&self, more: usize) -> bool {
        self.len + more <= MAPPINGS_MAX
    }

    /// Returns whether a range cannot be unmapped: it splits a mapping in two, and the table is
    /// full.
    pub(crate) fn cannot_split(&self, begin: usize, end: usize) -> bool {
        let is_within = |m: &Mapping| m.begin < begin && end < m.end;
        !self.has_capacity(1) && self.all[..self.len].iter().any(is_within)
    }

    /// Returns the first mapping that overlaps a range.
    pub(crate) fn first(&self, begin: usize, end: usize) -> Option<Mapping> {
        let touches = |m: &&Mapping| m.begin < end && begin < m.end;
        self.all[..self.len].iter().filter(touches).min_by_key(|m| m.begin).copied()
    }

    /// Returns the handle that represents a mapping.
    pub(crate) fn number(&self, mapping: &Mapping) -> u64 {
        self.references[mapping.reference].number
    }

    /// Adds a mapping, which must fit and overlap no other. Takes the socket: it becomes the file's
    /// mapping reference, or is closed if the file has one.
    ///
    /// # Errors
    /// `ENOMEM` for too many files. The socket is closed.
    pub(crate) fn add(
        &mut self,
        range: AddressRange,
        offset: u64,
        can_write: bool,
        file: MappedFileId,
        source: MappingSource,
    ) -> Result<(), Errno> {
        let (AddressRange { begin, end }, MappingSource { socket, number }) = (range, source);
        let known = self.references.iter().position(|hold| hold.mappings > 0 && hold.file == file);
        let free = self.references.iter().position(|hold| hold.mappings == 0);
        // If no high descriptor is available, the socket keeps its own.
        let kept = match (known, free) {
            (None, Some(_)) => copy_descriptor_up(socket).unwrap_or(socket),
            _ => -1,
        };
        if kept != socket {
            // SAFETY: a descriptor of this library.
            unsafe { gate::close(socket) };
        }
        let hold = known.or(free).ok_or(libc::ENOMEM)?;
        if known.is_none() {
            self.references[hold] = MappingRef { fd: kept, number, file, mappings: 0 };
            DESCRIPTORS[hold].store(kept, Ordering::Release);
            DESCRIPTORS_USED.fetch_max(hold + 1, Ordering::AcqRel);
        }
        self.push(Mapping { begin, end, offset, can_write, reference: hold });
        self.update_bounds();
        Ok(())
    }

    /// Adds another mapping of the same file.
    pub(crate) fn add_like(&mut self, of: &Mapping, range: AddressRange, offset: u64) {
        let AddressRange { begin, end } = range;
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

    /// Splits a mapping at an address; there must be capacity for one more.
    fn split(&mut self, at: usize) {
        let over = self.all[..self.len].iter().position(|m| m.begin < at && at < m.end);
        if let Some(place) = over {
            let mapping = self.all[place];
            self.all[place].end = at;
            self.push(Mapping { begin: at, offset: mapping.offset_of(at), ..mapping });
        }
    }

    /// Removes a range, which must be [splittable](Mappings::cannot_split).
    pub(crate) fn remove_range(&mut self, begin: usize, end: usize) {
        let whole = |m: &Mapping| begin <= m.begin && m.end <= end;
        let mut at = if begin < end { 0 } else { self.len };
        while at < self.len {
            let mapping = self.all[at];
            if whole(&mapping) {
                self.remove(at);
                continue;
            }
            // Keep the remaining head, tail, or both.
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

    /// Marks mappings in a range as writable; there must be capacity for two more.
    pub(crate) fn set_writable(&mut self, begin: usize, end: usize) {
        self.split(begin);
        self.split(end);
        let within = |m: &&mut Mapping| begin <= m.begin && m.end <= end;
        self.all[..self.len].iter_mut().filter(within).for_each(|m| m.can_write = true);
    }

    /// Moves the mappings of a range to a new range; there must be capacity for two more.
    pub(crate) fn on_remap(&mut self, old: AddressRange, new: AddressRange) {
        let AddressRange { begin, end } = old;
        self.split(begin);
        self.split(end);
        let first = self.all[..self.len].iter().position(|m| m.begin == begin);
        let Some(place) = first else { return };
        // Adjacent mappings that the kernel had merged have moved with it.
        let first_end = self.all[place].end;
        (self.all[place].begin, self.all[place].end) = (0, 0);
        self.remove_range(first_end, end);
        self.remove_range(new.begin.max(1), new.end);
        if let Some(moved) = self.all[..self.len].iter_mut().find(|m| m.end == 0) {
            (moved.begin, moved.end) = (new.begin, new.end);
        }
        self.update_bounds();
    }

    /// Removes a mapping, and its mapping reference with the last one of a file.
    fn remove(&mut self, at: usize) {
        let place = self.all[at].reference;
        self.len -= 1;
        self.all[at] = self.all[self.len];
        let hold = &mut self.references[place];
        hold.mappings -= 1;
        if hold.mappings == 0 {
            DESCRIPTORS[place].store(-1, Ordering::Release);
            // SAFETY: a descriptor of this library.
            unsafe { gate::close(hold.fd) };
            *hold = NO_MAPPING_REF;
        }
    }

    fn update_bounds(&self) {
        let all = &self.all[..self.len];
        LOW.store(all.iter().map(|m| m.begin).min().unwrap_or(usize::MAX), Ordering::Release);
        HIGH.store(all.iter().map(|m| m.end).max().unwrap_or(0), Ordering::Release);
    }
}
