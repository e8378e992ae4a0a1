//! The image file: a common header for every kind of medium, an exclusive lock, and the checks by
//! which a file is accepted as an image. `docs/format/image.md` is the byte map.
//!
//! Invariants: a refused file is not changed. A file is an image only after it is completely laid
//! out: the header's magic is stored last. Two processes never have the same image open, unless
//! both have an overlay over it, which does not change the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use collections::{HeaderError, Seal, SealError, SealedHeader, put_at, u32_at, u64_at};
use mem::SharedRegion;
use rustix::fs::FlockOperation;

use crate::ErrorModelError;
use crate::storage::file_lock::lock_holder;

/// Size in bytes of the header page, and alignment of the areas after it.
pub(crate) const PAGE_BYTES: usize = mem::PAGE_BYTES;
/// The format version that this code writes and reads.
pub const IMAGE_VERSION: u32 = 1;

const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICIMG",
    version: IMAGE_VERSION,
    version_bytes: 4,
    seal: Seal::of_bytes_before(CRC_OFFSET),
};
/// The magic of a file that is not completely laid out.
const INCOMPLETE_MAGIC: [u8; 8] = *b"SLUICNEW";
const NUMBERS_OFFSET: usize = 16;
const CRC_OFFSET: usize = PAGE_BYTES - 4;

// The mapped words are little endian, and are accessed in native order.
const _: () = assert!(cfg!(target_endian = "little"));

/// The reason for which a medium cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The geometry is invalid.
    #[error(transparent)]
    Geometry(#[from] nvme::GeometryError),
    /// The error model is invalid.
    #[error("error model: {0}")]
    Errors(#[from] ErrorModelError),
    /// Out of memory.
    #[error("no memory for a medium of {bytes} bytes: {error}")]
    Memory {
        /// Requested bytes.
        bytes: u64,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The operating system refuses access to the file.
    #[error("image {}: cannot {doing}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation.
        doing: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The image is open in another process or drive.
    #[error(
        "image {} is in use by another process or drive{}", path.display(),
        holder.as_ref().map(|holder| format!(": {holder}")).unwrap_or_default()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process that holds the lock, if known.
        holder: Option<String>,
    },
    /// A medium is to be created in a file that is not empty.
    #[error("image {} exists already: open it, or name another file", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is empty, or a process was killed while it laid the image out.
    #[error("image {} is empty: create it first", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is not an image.
    #[error("{} is not an image of a medium (no magic number)", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// The image has another format version.
    #[error("image {} has version {found}, and this program reads {IMAGE_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of the image.
        found: u32,
    },
    /// The header is damaged.
    #[error(
        "image {}: the header is damaged (CRC32C is {found:#010x}, but {computed:#010x} was computed)",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Stored checksum.
        found: u32,
        /// Computed checksum.
        computed: u32,
    },
    /// The image belongs to another medium.
    #[error(
        "image {} is of another medium: its {what} is {found}, but the configuration needs {wanted}",
        path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// Name of the value that differs.
        what: &'static str,
        /// Value in the image.
        found: u64,
        /// Expected value.
        wanted: u64,
    },
    /// The file is shorter than its header states.
    #[error("image {} is truncated: {found} of {wanted} bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Length in bytes.
        found: u64,
        /// Expected length in bytes.
        wanted: u64,
    },
    /// The chunk table is damaged.
    #[error("image {}: the record of chunk {chunk} is damaged ({word:#018x})", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first chunk with an invalid record.
        chunk: u32,
        /// The record.
        word: u64,
    },
    /// The log of flushed records behind the image is damaged.
    #[error(
        "image {}: the log of records that were flushed to the host's device is damaged",
        path.display()
    )]
    LogDamaged {
        /// The file.
        path: PathBuf,
    },
}

/// Whether the image may or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The file must be missing or empty.
    Create,
    /// The file must be an image.
    Open,
    /// The file may be missing, empty or an image.
    OpenOrCreate,
}

/// The kind of medium in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumKind {
    Nand = 1,
    Pcm = 2,
}

/// The expected contents of an image.
pub(crate) struct ImageSpec<'a> {
    pub(crate) path: &'a Path,
    /// Whether the file is opened read-only, and writes stay in memory.
    pub(crate) overlay: bool,
    pub(crate) kind: MediumKind,
    /// Values that must match those of an existing image.
    pub(crate) identity: &'a [(&'static str, u64)],
    /// Values that an image stores at its creation and keeps.
    pub(crate) creation_values: &'a [u64],
    /// Length of the file.
    pub(crate) bytes: usize,
    /// Bytes from the start for which space is allocated at creation.
    pub(crate) table_bytes: usize,
}

/// The lock of an image: exclusive, or shared for overlays. It is released explicitly, because a
/// child process that is being spawned may hold the open file, and with it the lock, a little
/// longer.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// An image that is open and locked.
pub(crate) struct OpenedImage {
    pub(crate) region: Arc<SharedRegion>,
    /// `None` for an overlay without an image.
    pub(crate) file: Option<File>,
    /// Must be dropped after the region's last use. `None` for an overlay without an image.
    pub(crate) lock: Option<FileLock>,
    /// The values stored at the image's creation.
    pub(crate) creation_values: Vec<u64>,
}

impl ImageSpec<'_> {
    /// Opens the image, or creates it; `fill` writes the initial contents of the tables.
    pub(crate) fn open_or_create(
        &self,
        mode: OpenMode,
        fill: impl FnOnce(&SharedRegion),
    ) -> Result<OpenedImage, OpenError> {
        let fresh = mode != OpenMode::Open;
        let mut options = OpenOptions::new();
        options.read(true).write(!self.overlay).create(fresh && !self.overlay).truncate(false);
        let file = match options.open(self.path) {
            Err(e) if self.overlay && fresh && e.kind() == io::ErrorKind::NotFound => {
                return self.lay_out_in_memory(fill);
            }
            opened => opened.map_err(self.io("open it"))?,
        };
        let lock = self.lock(&file)?;
        let meta = file.metadata().map_err(self.io("look at it"))?;
        if !meta.is_file() {
            return Err(OpenError::NotAnImage { path: self.path.into() });
        }
        let mut page = [0; PAGE_BYTES];
        let have = read_header_page(&file, &mut page).map_err(self.io("read it"))?;
        let empty = meta.len() == 0 || (have >= 8 && page[..8] == INCOMPLETE_MAGIC);
        match mode {
            OpenMode::Open if empty => Err(OpenError::Empty { path: self.path.into() }),
            OpenMode::Create if !empty => Err(OpenError::Exists { path: self.path.into() }),
            _ if empty && self.overlay => self.lay_out_in_memory(fill),
            _ if empty => {
                let again = file.try_clone().map_err(self.io("open it twice"))?;
                let region = self.lay_out(file, fill)?;
                Ok(OpenedImage {
                    region,
                    file: Some(again),
                    creation_values: self.creation_values.to_vec(),
                    lock: Some(lock),
                })
            }
            _ => {
                let kept = self.check(&page[..have], meta.len())?;
                let again = file.try_clone().map_err(self.io("open it twice"))?;
                let region = if self.overlay {
                    SharedRegion::copy_on_write(&file, self.bytes)
                } else {
                    SharedRegion::file(file, self.bytes)
                };
                let region = region.map_err(self.io("map it"))?;
                let (file, lock) = (Some(again), Some(lock));
                Ok(OpenedImage { region, file, creation_values: kept, lock })
            }
        }
    }

    /// Creates a fresh medium in memory, with the layout of an image.
    fn lay_out_in_memory(
        &self,
        fill: impl FnOnce(&SharedRegion),
    ) -> Result<OpenedImage, OpenError> {
        let region = SharedRegion::anonymous(self.bytes)
            .map_err(|error| OpenError::Memory { bytes: self.bytes as u64, error })?;
        fill(&region);
        let creation_values = self.creation_values.to_vec();
        Ok(OpenedImage { region, file: None, creation_values, lock: None })
    }

    fn lock(&self, file: &File) -> Result<FileLock, OpenError> {
        let lock = FileLock(file.try_clone().map_err(self.io("open it twice"))?);
        let operation = match self.overlay {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&lock.0, operation) {
            Ok(()) => Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(OpenError::InUse { path: self.path.into(), holder: lock_holder(file) })
            }
            Err(e) => Err(self.io("lock it")(e.into())),
        }
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        let path = self.path.to_path_buf();
        move |error| OpenError::Io { path, doing, error }
    }

    fn lay_out(
        &self,
        file: File,
        fill: impl FnOnce(&SharedRegion),
    ) -> Result<Arc<SharedRegion>, OpenError> {
        // The remains of a process that was killed here.
        file.set_len(0).map_err(self.io("truncate it"))?;
        let laid = self.lay_out_in(&file, fill);
        if laid.is_err() {
            // An empty file takes no space and is treated as missing.
            let _ = file.set_len(0);
        }
        laid
    }

    fn lay_out_in(
        &self,
        file: &File,
        fill: impl FnOnce(&SharedRegion),
    ) -> Result<Arc<SharedRegion>, OpenError> {
        file.write_all_at(&INCOMPLETE_MAGIC, 0).map_err(self.io("write its header"))?;
        file.set_len(self.bytes as u64).map_err(self.io("extend it to the medium's size"))?;
        let mapped = file.try_clone().map_err(self.io("open it twice"))?;
        let region = SharedRegion::file(mapped, self.bytes).map_err(self.io("map it"))?;
        region.reserve(0, self.table_bytes).map_err(self.io("make room for its tables"))?;
        fill(&region);
        let page = self.header();
        region.write(8, &page[8..]);
        fence(Ordering::SeqCst);
        region.atomic_u64(0).store(u64::from_le_bytes(HEADER.magic), Ordering::Release);
        region.sync().map_err(self.io("write it to its device"))?;
        Ok(region)
    }

    fn header(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        HEADER.begin(&mut page);
        put_at(&mut page, 12, &(self.kind as u32).to_le_bytes());
        let numbers =
            self.identity.iter().map(|(_, n)| *n).chain(self.creation_values.iter().copied());
        for (slot, n) in page[NUMBERS_OFFSET..CRC_OFFSET].chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&n.to_le_bytes());
        }
        HEADER.seal.store(&mut page);
        page
    }

    /// Checks whether a file of `len` bytes that starts with `page` is the expected image; returns
    /// the values stored at its creation.
    fn check(&self, page: &[u8], len: u64) -> Result<Vec<u64>, OpenError> {
        let path = || self.path.to_path_buf();
        let truncated =
            |wanted| OpenError::Truncated { path: path(), found: len, wanted: wanted as u64 };
        HEADER.check(page).map_err(|error| match error {
            HeaderError::Magic => OpenError::NotAnImage { path: path() },
            _ if page.len() < PAGE_BYTES => truncated(PAGE_BYTES),
            HeaderError::Truncated => truncated(PAGE_BYTES),
            HeaderError::Version(found) => OpenError::Version { path: path(), found },
            HeaderError::Seal(SealError { found, computed }) => {
                OpenError::Checksum { path: path(), found, computed }
            }
        })?;
        let differs =
            |what, found, wanted| Err(OpenError::Differs { path: path(), what, found, wanted });
        let kind = u32_at(page, 12).unwrap_or_default();
        if kind != self.kind as u32 {
            return differs("kind (1 NAND, 2 PCM)", kind.into(), self.kind as u64);
        }
        let number = |i: usize| u64_at(page, NUMBERS_OFFSET + 8 * i).unwrap_or_default();
        for (i, (what, wanted)) in self.identity.iter().enumerate() {
            if number(i) != *wanted {
                return differs(what, number(i), *wanted);
            }
        }
        if len < self.bytes as u64 {
            return Err(truncated(self.bytes));
        }
        Ok((0..self.creation_values.len()).map(|i| number(self.identity.len() + i)).collect())
    }
}

/// Reads as much of the first page as the file has.
fn read_header_page(file: &File, page: &mut [u8; PAGE_BYTES]) -> io::Result<usize> {
    let mut have = 0;
    while have < PAGE_BYTES {
        match file.read_at(&mut page[have..], have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// Allocates space for a range of an image; retries if a signal interrupts it.
pub(crate) fn reserve_range(region: &SharedRegion, offset: usize, len: usize) -> io::Result<()> {
    loop {
        match region.reserve(offset, len) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Allocates space for the tables of an image, its first `bytes`. A copy of the file may have holes
/// instead of pages of zeros.
pub(crate) fn reserve_tables(
    region: &SharedRegion,
    path: &Path,
    bytes: usize,
) -> Result<(), OpenError> {
    let io = |error| OpenError::Io { path: path.into(), doing: "make room for its tables", error };
    reserve_range(region, 0, bytes).map_err(io)
}

/// Whether an error means that the disk is full or a quota is exceeded.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
