//! [`PersistentMemory`]: memory that keeps what was persisted when power is cut.
//!
//! Processors write to such memory through their caches. A store is visible at once, and survives a
//! loss of power only after its cache line was written back: software *persists* it. An emulated
//! region has two images: the *visible* one with all stores, and the *persistent* one with what a
//! loss of power leaves. A DAX file has one, and the processor's cache lines are written back.
//!
//! # Invariants
//!
//! - A line that was persisted, and not stored to since, is equal in both images.
//! - A power cut leaves of every other line its old and new words in any combination. Aligned words
//!   of 8 bytes are never torn.
//! - The persistent image changes only in [`persist`](PersistentMemory::persist) and
//!   [`cut_power`](PersistentMemory::cut_power). If it is a file, a process that is killed leaves in
//!   it what was persisted.
//!
//! # Concurrency
//!
//! Any thread may store, read and persist. Stores of several threads to one word do not lose bytes of
//! each other. Persists of one process are serialized, so that none writes back an older value than
//! another. Two processes that persist one line at the same time must order their persists.

mod dax;
mod error;
#[cfg(test)]
mod tests;
mod whole;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rng::Rng;

use crate::SharedRegion;
use crate::memfd::check_sealed;
use dax::WriteBack;

pub use error::PersistentMemoryError;

/// Bytes of an aligned word, which is never torn.
const WORD_BYTES: usize = 8;
const LINE_WORDS: usize = PersistentMemory::LINE_BYTES / WORD_BYTES;
/// Bytes that a power cut compares at a time; a multiple of a line.
const COMPARED_BYTES: usize = 4096;

/// Memory that keeps what was persisted when power is cut. A clone is a handle to one memory.
///
/// # Panics
/// Every access panics if the range exceeds the memory.
#[derive(Clone, Debug)]
pub struct PersistentMemory {
    images: Arc<Images>,
}

#[derive(Debug)]
struct Images {
    visible: Arc<SharedRegion>,
    persistent: PersistentImage,
    /// Serializes persists and power cuts of this process.
    order: Mutex<()>,
    /// Begins and ends of power cuts by this process: odd during one.
    power_cuts: AtomicU64,
    /// The lock of the file, if there is one.
    _lock: Option<FileLock>,
}

/// The lock of a file. It is released explicitly, because a child process that is being spawned may
/// hold the open file, and with it the lock, a little longer.
#[derive(Debug)]
struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[derive(Debug)]
enum PersistentImage {
    /// Another mapping.
    Separate(Arc<SharedRegion>),
    /// The visible image, whose lines are written back.
    Visible(WriteBack),
}

/// The images of a [`PersistentMemory`], for another process.
#[derive(Debug)]
pub struct SharedImages {
    /// Memory with all stores.
    pub visible: OwnedFd,
    /// Memory with what was persisted.
    pub persistent: OwnedFd,
}

impl PersistentMemory {
    /// Bytes of a cache line, the unit of persists.
    pub const LINE_BYTES: usize = 64;

    /// Allocates zeroed memory, with both images in memory that other processes can map
    /// ([`share`](PersistentMemory::share)).
    ///
    /// # Errors
    /// `InvalidInput` for a size that is 0 or no multiple of a line; the error of
    /// `memfd_create(2)`, `ftruncate(2)` or `mmap(2)`.
    pub fn new(bytes: usize) -> io::Result<PersistentMemory> {
        check_size(bytes as u64)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let persistent = PersistentImage::Separate(SharedRegion::memfd(bytes)?);
        Ok(PersistentMemory::of_images(SharedRegion::memfd(bytes)?, persistent, None))
    }

    /// Opens memory of `bytes` bytes whose persistent image is a file. A missing or empty file is
    /// created with zeros. The visible image begins as its copy. The file is locked while the memory
    /// exists.
    ///
    /// # Errors
    /// [`PersistentMemoryError`].
    pub fn open_file(path: &Path, bytes: usize) -> Result<PersistentMemory, PersistentMemoryError> {
        check_size(bytes as u64)?;
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let (file, lock) = lock(open?)?;
        let found = file.metadata()?.len();
        if found == 0 {
            file.set_len(bytes as u64)?;
        } else if found != bytes as u64 {
            return Err(PersistentMemoryError::OtherSize { found, expected: bytes as u64 });
        }
        let persistent = SharedRegion::file(file, bytes)?;
        // A store to a hole of a full file system would raise SIGBUS.
        persistent.reserve(0, bytes)?;
        let visible = SharedRegion::memfd(bytes)?;
        whole::copy_data(&persistent, &visible);
        Ok(PersistentMemory::of_images(visible, PersistentImage::Separate(persistent), Some(lock)))
    }

    /// Maps a file on persistent memory of this machine (DAX): stores go to the memory, and a
    /// persist writes back the processor's cache lines. The file is locked while the memory exists.
    ///
    /// # Errors
    /// [`PersistentMemoryError`]: [`NotDax`](PersistentMemoryError::NotDax) for a file that cannot be
    /// mapped with `MAP_SYNC`.
    pub fn map_dax(path: &Path) -> Result<PersistentMemory, PersistentMemoryError> {
        let write_back = WriteBack::of_this_processor();
        let write_back = write_back.ok_or(PersistentMemoryError::NoWriteBack)?;
        let (file, lock) = lock(OpenOptions::new().read(true).write(true).open(path)?)?;
        let bytes = file.metadata()?.len();
        check_size(bytes)?;
        let len = usize::try_from(bytes).map_err(|_| PersistentMemoryError::Size { bytes })?;
        let visible = SharedRegion::dax(file, len).map_err(|error| match error.kind() {
            // EOPNOTSUPP: the file is not on persistent memory; EINVAL: the kernel is older.
            io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => {
                PersistentMemoryError::NotDax
            }
            _ => PersistentMemoryError::Io(error),
        })?;
        Ok(PersistentMemory::of_images(visible, PersistentImage::Visible(write_back), Some(lock)))
    }

    /// Maps memory of at most `most` bytes that another process shares.
    ///
    /// # Errors
    /// [`PersistentMemoryError`]; [`Images`](PersistentMemoryError::Images) if the images differ in
    /// size.
    pub fn import(
        images: SharedImages,
        most: u64,
    ) -> Result<PersistentMemory, PersistentMemoryError> {
        let visible = check_sealed(&images.visible, most)?;
        let persistent = check_sealed(&images.persistent, most)?;
        check_size(visible as u64)?;
        if visible != persistent {
            return Err(PersistentMemoryError::Images { visible, persistent });
        }
        let map = |memory: OwnedFd| SharedRegion::map_sealed(memory.into(), visible).map(Arc::new);
        let persistent = PersistentImage::Separate(map(images.persistent)?);
        Ok(PersistentMemory::of_images(map(images.visible)?, persistent, None))
    }

    /// Creates memory whose persistent image is `persistent`, such as a part of a file. The visible
    /// image begins as its copy.
    ///
    /// # Errors
    /// [`PersistentMemoryError`].
    pub fn over(persistent: Arc<SharedRegion>) -> Result<PersistentMemory, PersistentMemoryError> {
        let bytes = persistent.len();
        check_size(bytes as u64)?;
        let visible = SharedRegion::memfd(bytes)?;
        whole::copy_data(&persistent, &visible);
        Ok(PersistentMemory::of_images(visible, PersistentImage::Separate(persistent), None))
    }

    fn of_images(
        visible: Arc<SharedRegion>,
        persistent: PersistentImage,
        lock: Option<FileLock>,
    ) -> PersistentMemory {
        let (order, power_cuts) = (Mutex::new(()), AtomicU64::new(0));
        let images = Images { visible, persistent, order, power_cuts, _lock: lock };
        PersistentMemory { images: Arc::new(images) }
    }

    /// Returns the images for another process; `None` if the persistent image is a file, which that
    /// process could truncate.
    ///
    /// # Errors
    /// The error of `dup(2)`.
    pub fn share(&self) -> io::Result<Option<SharedImages>> {
        let PersistentImage::Separate(persistent) = &self.images.persistent else {
            return Ok(None);
        };
        let visible = &self.images.visible;
        if !persistent.is_shared() || !visible.is_shared() {
            return Ok(None);
        }
        let (Some(visible), Some(persistent)) = (visible.backing(), persistent.backing()) else {
            return Ok(None);
        };
        let (visible, persistent) = (visible.try_clone()?, persistent.try_clone()?);
        Ok(Some(SharedImages { visible: visible.into(), persistent: persistent.into() }))
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "persistent memory is never empty")]
    pub fn len(&self) -> usize {
        self.images.visible.len()
    }

    /// Returns whether both are handles to one memory of this process.
    pub fn is_same(&self, other: &PersistentMemory) -> bool {
        Arc::ptr_eq(&self.images, &other.images)
    }

    /// Returns the visible image, for a device that maps it. Stores to it are those of this type.
    pub fn visible(&self) -> &Arc<SharedRegion> {
        &self.images.visible
    }

    /// Copies bytes out of the visible image.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.images.visible.read(offset, into);
    }

    /// Stores bytes. They are visible at once, and persistent only after a
    /// [`persist`](PersistentMemory::persist).
    #[inline]
    pub fn store(&self, offset: usize, data: &[u8]) {
        let visible = &self.images.visible;
        check_range(visible, offset, data.len());
        let before = (offset.next_multiple_of(WORD_BYTES) - offset).min(data.len());
        let (first, rest) = data.split_at(before);
        store_part(visible, offset, first);
        let (words, last) = rest.as_chunks::<WORD_BYTES>();
        let mut at = offset + before;
        for word in words {
            visible.atomic_u64(at).store(u64::from_le_bytes(*word), Relaxed);
            at += WORD_BYTES;
        }
        store_part(visible, at, last);
    }

    /// Makes the lines that contain the range persistent, as they are at the time of the call or
    /// later. Stores of this thread after the call become persistent after these lines.
    #[inline]
    pub fn persist(&self, offset: usize, bytes: usize) {
        let visible = &self.images.visible;
        check_range(visible, offset, bytes);
        if bytes == 0 {
            return;
        }
        let first = offset - offset % Self::LINE_BYTES;
        let end = (offset + bytes).next_multiple_of(Self::LINE_BYTES);
        match &self.images.persistent {
            PersistentImage::Separate(persistent) => {
                let _order = self.lock_order();
                for line in (first..end).step_by(Self::LINE_BYTES) {
                    let from = visible.atomic_u64_array::<LINE_WORDS>(line);
                    let to = persistent.atomic_u64_array::<LINE_WORDS>(line);
                    for (from, to) in from.iter().zip(to) {
                        to.store(from.load(Relaxed), Relaxed);
                    }
                }
                fence(SeqCst);
            }
            PersistentImage::Visible(write_back) => {
                write_back.write_back(visible.pointer(first, end - first), end - first);
            }
        }
    }

    /// Cuts the power, and returns the number of lost words. Of each line that differs between the
    /// images, each word of 8 bytes survives or not, as `rng` decides. Then the visible image is
    /// the persistent one.
    ///
    /// A DAX file is not changed: this machine's power is on.
    pub fn cut_power(&self, rng: &mut Rng) -> u64 {
        let PersistentImage::Separate(persistent) = &self.images.persistent else { return 0 };
        let visible = &self.images.visible;
        let _order = self.lock_order();
        self.images.power_cuts.fetch_add(1, SeqCst);
        let (mut ours, mut theirs) = ([0; COMPARED_BYTES], [0; COMPARED_BYTES]);
        let mut lost = 0;
        let pieces = self.stored_ranges().flat_map(|range| {
            let end = range.end;
            range.step_by(COMPARED_BYTES).map(move |at| (at, COMPARED_BYTES.min(end - at)))
        });
        for (at, bytes) in pieces {
            visible.read(at, &mut ours[..bytes]);
            persistent.read(at, &mut theirs[..bytes]);
            if ours[..bytes] == theirs[..bytes] {
                continue;
            }
            for line in (at..at + bytes).step_by(Self::LINE_BYTES) {
                let visible = visible.atomic_u64_array::<LINE_WORDS>(line);
                lost += cut_line(visible, persistent.atomic_u64_array(line), rng);
            }
        }
        self.images.power_cuts.fetch_add(1, SeqCst);
        lost
    }

    /// Returns a number that grows with each power cut of this process, after the end of one that is
    /// in progress. Software whose memory loses its power while it runs compares the number before
    /// and after its accesses.
    #[inline]
    pub fn power_cuts(&self) -> u64 {
        fence(SeqCst);
        let power_cuts = self.images.power_cuts.load(SeqCst);
        if power_cuts.is_multiple_of(2) {
            return power_cuts;
        }
        let _order = self.lock_order();
        self.images.power_cuts.load(SeqCst)
    }

    /// Waits until the persistent image is on the file's device, so that it survives a crash of this
    /// machine. Does nothing for memory.
    ///
    /// # Errors
    /// The error that `fdatasync(2)` returns.
    pub fn sync(&self) -> io::Result<()> {
        match &self.images.persistent {
            PersistentImage::Separate(persistent) => persistent.sync_data(),
            PersistentImage::Visible(_) => Ok(()),
        }
    }

    fn lock_order(&self) -> MutexGuard<'_, ()> {
        // A panic under the lock leaves both images valid.
        self.images.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words of a line.
type Line = [AtomicU64; LINE_WORDS];

/// Cuts the power of a line: all of its changed words survive, or none, or any subset. Returns the
/// number of lost words.
fn cut_line(visible: &Line, persistent: &Line, rng: &mut Rng) -> u64 {
    let differs = |(new, old): (&AtomicU64, &AtomicU64)| new.load(Relaxed) != old.load(Relaxed);
    if !visible.iter().zip(persistent).any(differs) {
        return 0;
    }
    let survivors = match rng.below(3) {
        0 => 0,
        1 => u64::MAX,
        _ => rng.next_u64(),
    };
    let mut lost = 0;
    for (index, (new, old)) in visible.iter().zip(persistent).enumerate() {
        let (word, durable) = (new.load(Relaxed), old.load(Relaxed));
        if survivors >> index & 1 == 1 {
            old.store(word, Relaxed);
        } else {
            new.store(durable, Relaxed);
            lost += u64::from(word != durable);
        }
    }
    lost
}

/// Stores some bytes of one word, without a change of the others.
fn store_part(visible: &SharedRegion, offset: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let begin = offset % WORD_BYTES;
    let word = visible.atomic_u64(offset - begin);
    let with_data = |word: u64| {
        let mut bytes = word.to_le_bytes();
        bytes[begin..begin + data.len()].copy_from_slice(data);
        Some(u64::from_le_bytes(bytes))
    };
    // The closure always returns a value.
    let _ = word.fetch_update(Relaxed, Relaxed, with_data);
}

fn check_range(region: &SharedRegion, offset: usize, bytes: usize) {
    let len = region.len();
    assert!(
        offset <= len && bytes <= len - offset,
        "bytes {offset}..+{bytes} of persistent memory of {len}"
    );
}

fn check_size(bytes: u64) -> Result<(), PersistentMemoryError> {
    if bytes == 0 || !bytes.is_multiple_of(PersistentMemory::LINE_BYTES as u64) {
        return Err(PersistentMemoryError::Size { bytes });
    }
    Ok(())
}

/// Locks a file, so that one process uses it.
fn lock(file: File) -> Result<(File, FileLock), PersistentMemoryError> {
    let lock = file.try_clone()?;
    match file.try_lock() {
        Ok(()) => Ok((file, FileLock(lock))),
        Err(TryLockError::WouldBlock) => Err(PersistentMemoryError::InUse),
        Err(TryLockError::Error(error)) => Err(PersistentMemoryError::Io(error)),
    }
}
