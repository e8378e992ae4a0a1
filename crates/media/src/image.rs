//! The image file: one header for every kind of medium, an exclusive lock, and the rules by which a
//! file is taken for an image or refused. `docs/format/image.md` is the byte map.
//!
//! Guarantees: a file that is refused is not touched; a file is an image only once all of it has
//! been laid out (the header's magic is stored last); two processes never have the same image, unless
//! both have an overlay over it, which changes nothing in the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ring::SharedRegion;
use rustix::fs::FlockOperation;

use crate::ErrorModelError;
use crate::file_lock::lock_holder;

/// Bytes of the header page, and what the areas after it are aligned to.
pub(crate) const PAGE_BYTES: usize = ring::PAGE_BYTES;
/// The version that this code writes and reads.
pub const IMAGE_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"SLUICIMG";
/// The magic of a file that is being laid out.
const INCOMPLETE_MAGIC: [u8; 8] = *b"SLUICNEW";
const NUMBERS_OFFSET: usize = 16;
const CRC_OFFSET: usize = PAGE_BYTES - 4;

// Words of a mapping are little endian only here.
const _: () = assert!(cfg!(target_endian = "little"));

/// Why there is no medium.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The shape cannot be.
    #[error(transparent)]
    Geometry(#[from] nvme::GeometryError),
    /// The error model cannot be.
    #[error("error model: {0}")]
    Errors(#[from] ErrorModelError),
    /// The machine has no memory for it.
    #[error("no memory for a medium of {bytes} bytes: {error}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What the operating system says.
        error: io::Error,
    },
    /// The operating system refuses the file.
    #[error("image {}: cannot {doing}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the operating system says.
        error: io::Error,
    },
    /// Another medium has the image open.
    #[error(
        "image {} is in use by another process or drive{}", path.display(),
        holder.as_ref().map(|holder| format!(": {holder}")).unwrap_or_default()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who has it, where the system tells.
        holder: Option<String>,
    },
    /// A medium is to be created where there is something.
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
    /// The file is something else.
    #[error("{} is not an image of a medium (no magic number)", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// The image is of another version.
    #[error("image {} has version {found}, and this program reads {IMAGE_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The header is damaged.
    #[error(
        "image {}: the header is damaged (CRC32C {found:#010x}, and its bytes have {computed:#010x})",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum that it has.
        found: u32,
        /// The checksum of what it holds.
        computed: u32,
    },
    /// The image is of another medium.
    #[error(
        "image {} is of another medium: its {what} is {found}, and {wanted} is asked for",
        path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// The number that differs.
        what: &'static str,
        /// What the image has.
        found: u64,
        /// What is asked for.
        wanted: u64,
    },
    /// The file is shorter than its header says.
    #[error("image {} is truncated: {found} of {wanted} bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length that it should have.
        wanted: u64,
    },
    /// The chunk table is damaged.
    #[error("image {}: the record of chunk {chunk} is damaged ({word:#018x})", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first chunk whose record cannot be.
        chunk: u32,
        /// The record.
        word: u64,
    },
}

/// Whether a file may, or must, be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// It must not hold anything.
    Create,
    /// It must be an image.
    Open,
    /// Either.
    OpenOrCreate,
}

/// The kind of medium in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumKind {
    Nand = 1,
    Pcm = 2,
}

/// What an image is to hold.
pub(crate) struct ImageSpec<'a> {
    pub(crate) path: &'a Path,
    /// Whether the file is only read, and what is written stays in memory.
    pub(crate) overlay: bool,
    pub(crate) kind: MediumKind,
    /// Numbers that must be the same in an image that is opened.
    pub(crate) identity: &'a [(&'static str, u64)],
    /// Numbers that an image keeps from its creation.
    pub(crate) creation_values: &'a [u64],
    /// Length of the file.
    pub(crate) bytes: usize,
    /// Bytes from its start that must have room from the beginning.
    pub(crate) table_bytes: usize,
}

/// The lock of an image: exclusive, or shared under overlays. Given back explicitly, since a child process that is being
/// started may hold the open file, and with it the lock, a little longer.
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
    /// To be dropped after the region's last use. `None` for an overlay over no image.
    pub(crate) lock: Option<FileLock>,
    /// The numbers kept from its creation.
    pub(crate) creation_values: Vec<u64>,
}

impl ImageSpec<'_> {
    /// Opens the image, or lays it out; `fill` puts the first contents into the tables.
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
                let region = self.lay_out(file, fill)?;
                Ok(OpenedImage {
                    region,
                    creation_values: self.creation_values.to_vec(),
                    lock: Some(lock),
                })
            }
            _ => {
                let kept = self.check(&page[..have], meta.len())?;
                let region = if self.overlay {
                    SharedRegion::copy_on_write(&file, self.bytes)
                } else {
                    SharedRegion::file(file, self.bytes)
                };
                let region = region.map_err(self.io("map it"))?;
                Ok(OpenedImage { region, creation_values: kept, lock: Some(lock) })
            }
        }
    }

    /// A fresh medium in memory, laid out as an image is.
    fn lay_out_in_memory(
        &self,
        fill: impl FnOnce(&SharedRegion),
    ) -> Result<OpenedImage, OpenError> {
        let region = SharedRegion::anonymous(self.bytes)
            .map_err(|error| OpenError::Memory { bytes: self.bytes as u64, error })?;
        fill(&region);
        Ok(OpenedImage { region, creation_values: self.creation_values.to_vec(), lock: None })
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
        // Left over from a process that was killed here.
        file.set_len(0).map_err(self.io("truncate it"))?;
        let laid = self.lay_out_in(&file, fill);
        if laid.is_err() {
            // It takes no room, and is as good as not there.
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
        region.atomic_u64(0).store(u64::from_le_bytes(MAGIC), Ordering::Release);
        region.sync().map_err(self.io("write it to its device"))?;
        Ok(region)
    }

    fn header(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&IMAGE_VERSION.to_le_bytes());
        page[12..16].copy_from_slice(&(self.kind as u32).to_le_bytes());
        let numbers =
            self.identity.iter().map(|(_, n)| *n).chain(self.creation_values.iter().copied());
        for (slot, n) in page[NUMBERS_OFFSET..CRC_OFFSET].chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&n.to_le_bytes());
        }
        let crc = crc32c::crc32c(&page[..CRC_OFFSET]);
        page[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Whether a file of `len` bytes that starts with `page` is the image that is asked for; gives
    /// the numbers it keeps.
    fn check(&self, page: &[u8], len: u64) -> Result<Vec<u64>, OpenError> {
        let path = || self.path.to_path_buf();
        if page.len() < 8 || page[..8] != MAGIC {
            return Err(OpenError::NotAnImage { path: path() });
        }
        if page.len() < PAGE_BYTES {
            return Err(OpenError::Truncated {
                path: path(),
                found: len,
                wanted: PAGE_BYTES as u64,
            });
        }
        let version = read_u32(page, 8);
        if version != IMAGE_VERSION {
            return Err(OpenError::Version { path: path(), found: version });
        }
        let (found, computed) = (read_u32(page, CRC_OFFSET), crc32c::crc32c(&page[..CRC_OFFSET]));
        if found != computed {
            return Err(OpenError::Checksum { path: path(), found, computed });
        }
        let differs =
            |what, found, wanted| Err(OpenError::Differs { path: path(), what, found, wanted });
        let kind = read_u32(page, 12);
        if kind != self.kind as u32 {
            return differs("kind (1 NAND, 2 PCM)", kind.into(), self.kind as u64);
        }
        let number = |i: usize| {
            let at = NUMBERS_OFFSET + 8 * i;
            u64::from(read_u32(page, at)) | u64::from(read_u32(page, at + 4)) << 32
        };
        for (i, (what, wanted)) in self.identity.iter().enumerate() {
            if number(i) != *wanted {
                return differs(what, number(i), *wanted);
            }
        }
        if len < self.bytes as u64 {
            return Err(OpenError::Truncated {
                path: path(),
                found: len,
                wanted: self.bytes as u64,
            });
        }
        Ok((0..self.creation_values.len()).map(|i| number(self.identity.len() + i)).collect())
    }
}

fn read_u32(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

/// Reads as much of the first page as there is.
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

/// Makes room for a range of an image, whatever signals come.
pub(crate) fn reserve_range(region: &SharedRegion, offset: usize, len: usize) -> io::Result<()> {
    loop {
        match region.reserve(offset, len) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Makes room again for the tables of an image, which are its first `bytes`: a copy of the file may
/// have left out pages of zeros.
pub(crate) fn reserve_tables(
    region: &SharedRegion,
    path: &Path,
    bytes: usize,
) -> Result<(), OpenError> {
    let io = |error| OpenError::Io { path: path.into(), doing: "make room for its tables", error };
    reserve_range(region, 0, bytes).map_err(io)
}

/// Whether an error says that there is no room, rather than that something broke.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
