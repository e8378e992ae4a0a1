//! Memory that two processes map: [`SharedRegion::memfd`] creates it, [`SharedRegion::import`] maps
//! memory that another process created (Linux `memfd_create(2)`, `fcntl(2)` on seals).
//!
//! An access to a mapping beyond the end of a truncated file raises SIGBUS. Memory is therefore
//! shared only through memory files that are sealed against shrinking, and their length is read
//! from the kernel, never from the peer. Pages of `hugetlbfs` are refused: if a peer punches holes
//! into them and the pool is exhausted, an access raises SIGBUS as well. Huge pages come from
//! `madvise(2)`, where the system enables them for shared memory
//! (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
//!
//! A page is charged to the process that touches it first. A peer can release pages at any time;
//! they then read as zeros, as if the peer had written zeros.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::SharedRegion;

/// The reason for which another process's memory cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// The file is not sealed against shrinking, or is not a memory file.
    #[error("the descriptor is not of memory (memfd) that is sealed against shrinking")]
    NotSealed,
    /// The file is on `hugetlbfs`, whose pages can run out.
    #[error("the memory is on hugetlbfs, whose pages another process can remove: use a memfd")]
    HugePages,
    /// The memory is empty, or exceeds the limit.
    #[error("memory of {bytes} bytes, where 1 to {max_bytes} are allowed")]
    Length {
        /// Length in bytes.
        bytes: u64,
        /// Maximum length in bytes.
        max_bytes: u64,
    },
    /// The operating system refuses the mapping.
    #[error("mapping shared memory: {0}")]
    Io(#[from] io::Error),
}

/// The file system type of `hugetlbfs` in `statfs(2)`.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Creates a memory file of `len` bytes that can be sealed.
pub(crate) fn create_memfd(len: usize) -> io::Result<File> {
    if len == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region of 0 bytes"));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sluice", flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    Ok(file.into())
}

/// Seals a memory file: its length and its seals become fixed. With `FUTURE_WRITE`, later mappings
/// are read-only.
pub(crate) fn seal_memfd(file: &File, more: SealFlags) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals | more)?)
}

/// Returns the length of another process's memory, after checking that it is sealed against
/// shrinking.
pub(crate) fn check_sealed(file: &OwnedFd, most: u64) -> Result<usize, SharedMemoryError> {
    // Other files do not support seals, and files of a mounted tmpfs cannot have this seal.
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(SharedMemoryError::NotSealed);
    }
    if rustix::fs::fstatfs(file).map_err(io::Error::from)?.f_type as i64 == HUGETLBFS_MAGIC {
        return Err(SharedMemoryError::HugePages);
    }
    let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    match usize::try_from(bytes) {
        Ok(len) if len > 0 && bytes <= most => Ok(len),
        _ => Err(SharedMemoryError::Length { bytes, max_bytes: most }),
    }
}

impl SharedRegion {
    /// Allocates zeroed memory that other processes can map through its descriptor
    /// ([`backing`](SharedRegion::backing)). It takes no memory until it is touched.
    ///
    /// # Errors
    /// The error of `memfd_create(2)`, `ftruncate(2)` or `mmap(2)`; `InvalidInput` for a length of
    /// zero.
    pub fn memfd(len: usize) -> io::Result<Arc<SharedRegion>> {
        let file = create_memfd(len)?;
        seal_memfd(&file, SealFlags::empty())?;
        Ok(Arc::new(SharedRegion::map_sealed(file, len)?))
    }

    /// Allocates memory like [`memfd`](SharedRegion::memfd), which later mappings can only read.
    ///
    /// # Errors
    /// As for [`memfd`](SharedRegion::memfd); `InvalidInput` on a kernel before 5.1.
    pub fn published_memfd(len: usize) -> io::Result<Arc<SharedRegion>> {
        let file = create_memfd(len)?;
        let region = SharedRegion::map_sealed(file, len)?;
        if let Some(file) = region.backing() {
            seal_memfd(file, SealFlags::FUTURE_WRITE)?;
        }
        Ok(Arc::new(region))
    }

    /// Maps memory of at most `most` bytes received from another process, for reads and writes. Use
    /// [`ReadOnlyRegion`](crate::ReadOnlyRegion) for read-only memory.
    ///
    /// # Errors
    /// [`SharedMemoryError`].
    pub fn import(memory: OwnedFd, most: u64) -> Result<Arc<SharedRegion>, SharedMemoryError> {
        let len = check_sealed(&memory, most)?;
        Ok(Arc::new(SharedRegion::map_sealed(memory.into(), len)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReadOnlyRegion;

    fn clone_fd(region: &SharedRegion) -> OwnedFd {
        region.backing().unwrap().try_clone().unwrap().into()
    }

    #[test]
    fn both_mappings_are_the_same_memory() {
        for len in [1, 4096, 5_000, 4 << 20] {
            let ours = SharedRegion::memfd(len).unwrap();
            let theirs = SharedRegion::import(clone_fd(&ours), 4 << 20).unwrap();
            assert_eq!(theirs.len(), len);
            assert!(ours.is_shared() && theirs.is_shared());
            ours.write(len - 1, b"x");
            let mut byte = [0];
            theirs.read(len - 1, &mut byte);
            assert_eq!(&byte, b"x");
            // A hole reads as zeros and raises no signal.
            theirs.discard(0, len).unwrap();
            ours.read(len - 1, &mut byte);
            assert_eq!(byte, [0]);
        }
        assert!(SharedRegion::memfd(0).is_err());
        assert!(!SharedRegion::anonymous(1).unwrap().is_shared());
    }

    #[test]
    fn what_could_be_pulled_away_is_refused() {
        let not_sealed = |fd: OwnedFd| {
            matches!(SharedRegion::import(fd, 1 << 30), Err(SharedMemoryError::NotSealed))
        };
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(not_sealed(file.into()));
        assert!(not_sealed(create_memfd(4096).unwrap().into()));
        let grown = create_memfd(4096).unwrap();
        rustix::fs::fcntl_add_seals(&grown, SealFlags::GROW).unwrap();
        assert!(not_sealed(grown.into()));
        assert!(not_sealed(std::io::pipe().unwrap().0.into()));
        let region = SharedRegion::memfd(8192).unwrap();
        let fd = clone_fd(&region);
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err(), "sealed");
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err(), "sealed");
        assert!(matches!(
            SharedRegion::import(fd, 8191),
            Err(SharedMemoryError::Length { bytes: 8192, max_bytes: 8191 })
        ));
        let empty = rustix::fs::memfd_create("empty", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fcntl_add_seals(&empty, SealFlags::SHRINK).unwrap();
        assert!(matches!(
            SharedRegion::import(empty, 8192),
            Err(SharedMemoryError::Length { bytes: 0, .. })
        ));
    }

    #[test]
    fn pages_of_hugetlbfs_are_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // The test does not apply to a kernel without huge pages.
        let Ok(huge) = rustix::fs::memfd_create("huge", flags) else { return };
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
        assert!(matches!(SharedRegion::import(huge, 1 << 30), Err(SharedMemoryError::HugePages)));
    }

    #[test]
    fn what_is_shown_can_only_be_read() {
        let ours = SharedRegion::published_memfd(4096).unwrap();
        assert!(SharedRegion::import(clone_fd(&ours), 4096).is_err(), "no mapping that writes");
        let theirs = ReadOnlyRegion::import(clone_fd(&ours), 4096).unwrap();
        ours.write(8, &7u32.to_ne_bytes());
        assert_eq!(theirs.load_u32(8), 7);
        let mut bytes = [0; 4];
        theirs.read(8, &mut bytes);
        assert_eq!(u32::from_ne_bytes(bytes), 7);
        let fd = clone_fd(&ours);
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&fd, punch, 0, 4096).is_err());
    }
}
