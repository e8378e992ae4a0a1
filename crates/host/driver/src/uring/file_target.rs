//! [`FileTarget`]: the opened file or block device: its sectors, alignment and features.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{UringConfig, UringError};

/// An opened file or block device. Its size is determined when it is opened.
#[derive(Debug)]
pub struct FileTarget {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) sector_bytes: u32,
    pub(super) sectors: u64,
    /// Block size for direct I/O in bytes; a power of two.
    pub(super) block_bytes: u32,
    /// Required alignment of memory addresses; a power of two.
    pub(super) memory_align: u32,
    /// Number of bytes that the medium or the file system writes at once.
    pub(super) optimal_bytes: u32,
    pub(super) read_only: bool,
    /// Whether holes can be punched: ranges that read as zeros and take no space.
    pub(super) can_punch_holes: bool,
}

/// The requirements of direct I/O, as far as the kernel reports them.
#[derive(Clone, Copy, Debug, Default)]
struct Alignment {
    memory: Option<u32>,
    offset: Option<u32>,
}

impl FileTarget {
    pub(super) fn open(path: &Path, config: &UringConfig) -> Result<FileTarget, UringError> {
        let path_buf = || path.to_path_buf();
        let refused = |source, hint| UringError::Open { path: path_buf(), hint, source };
        // Check the type before opening: opening a FIFO blocks, and opening a device node may have
        // any effect.
        let found = std::fs::metadata(path).map_err(|e| refused(e, ""))?;
        check_file_type(path, found.file_type())?;
        let file = open(path, found.file_type().is_block_device(), config)?;
        let found = file.metadata().map_err(|e| refused(e, ""))?;
        check_file_type(path, found.file_type())?;

        let device = found.file_type().is_block_device();
        let bytes = match device {
            true => (&file).seek(SeekFrom::End(0)).map_err(|e| refused(e, ""))?,
            false => found.len(),
        };
        let alignment = if config.direct { alignment(path, &file)? } else { Alignment::default() };
        let block = match device {
            true => Some(rustix::fs::ioctl_blksszget(&file).map_err(|e| refused(e.into(), ""))?),
            false => alignment.offset,
        };
        let (sector_bytes, needed) = sector(config, block, bytes);
        if (config.direct || device) && sector_bytes % needed != 0 {
            return Err(UringError::Sector { asked: sector_bytes, needed });
        }
        if bytes == 0 {
            return Err(UringError::Empty { path: path_buf() });
        }
        if bytes % u64::from(sector_bytes) != 0 {
            return Err(UringError::Size { path: path_buf(), bytes, sector: sector_bytes });
        }
        let optimal = match device {
            true => rustix::fs::ioctl_blkpbszget(&file).unwrap_or(sector_bytes),
            false => u32::try_from(found.blksize()).unwrap_or(sector_bytes),
        };
        Ok(FileTarget {
            path: path_buf(),
            sector_bytes,
            block_bytes: needed.next_power_of_two(),
            sectors: bytes / u64::from(sector_bytes),
            memory_align: match config.direct {
                true => alignment.memory.unwrap_or(needed).next_power_of_two(),
                false => 1,
            },
            optimal_bytes: optimal.max(sector_bytes),
            read_only: config.read_only,
            can_punch_holes: !config.read_only
                && match device {
                    true => device_can_punch_holes(found.rdev()),
                    false => file_can_punch_holes(&file, bytes, optimal),
                },
            file,
        })
    }
}

/// Checks that the path is a file or block device.
fn check_file_type(path: &Path, kind: FileType) -> Result<(), UringError> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    let kind = match kind {
        k if k.is_dir() => "a directory",
        k if k.is_char_device() => "a character device",
        k if k.is_fifo() => "a pipe",
        k if k.is_socket() => "a socket",
        _ => "something else",
    };
    Err(UringError::Kind { path: path.to_path_buf(), kind })
}

/// Time for which an exclusive open is retried. A device stays in use for a short time after a ring
/// is closed, and while others check whether it is free (`losetup --find`).
const RELEASE_TIMEOUT: Duration = Duration::from_millis(250);

fn is_busy(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BUSY)
}

fn open(path: &Path, device: bool, config: &UringConfig) -> Result<File, UringError> {
    let mut flags = OFlags::empty();
    flags.set(OFlags::DIRECT, config.direct);
    // On a block device, without O_CREAT: fails if the device is in use.
    flags.set(OFlags::EXCL, device && config.exclusive && !config.read_only);
    let path_buf = || path.to_path_buf();
    let mut options = OpenOptions::new();
    options.read(true).write(!config.read_only).custom_flags(flags.bits() as i32);
    let patience = Instant::now() + RELEASE_TIMEOUT;
    let opened = loop {
        match options.open(path) {
            Err(e) if device && is_busy(&e) && Instant::now() < patience => {
                std::thread::sleep(RELEASE_TIMEOUT / 50);
            }
            opened => break opened,
        }
    };
    opened.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::INVAL) if config.direct => UringError::NoDirect { path: path_buf() },
        Some(Errno::BUSY) if device => UringError::InUse { path: path_buf() },
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) if !config.read_only => {
            let hint = "; perhaps it can be opened for reading only";
            UringError::Open { path: path_buf(), hint, source }
        }
        _ => UringError::Open { path: path_buf(), hint: "", source },
    })
}

/// Returns the requirements of direct I/O from `statx(2)` (Linux 6.1), if it reports them.
fn alignment(path: &Path, file: &File) -> Result<Alignment, UringError> {
    let asked = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let Ok(said) = asked else { return Ok(Alignment::default()) };
    if said.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(Alignment::default());
    }
    if said.stx_dio_offset_align == 0 {
        // The file system falls back to the page cache, or rejects every transfer.
        return Err(UringError::NoDirect { path: path.to_path_buf() });
    }
    Ok(Alignment {
        memory: Some(said.stx_dio_mem_align.max(1)),
        offset: Some(said.stx_dio_offset_align),
    })
}

/// Returns the sector size, and the alignment of size and offset for direct I/O.
fn sector(config: &UringConfig, block: Option<u32>, bytes: u64) -> (u32, u32) {
    let needed = block.unwrap_or(512).max(512);
    let detected = match block {
        Some(_) => needed,
        None if bytes.is_multiple_of(4096) => 4096,
        None => 512,
    };
    (config.sector_bytes.unwrap_or(detected), needed)
}

/// Returns whether the file system punches holes. The probe is past the end of the file, where it
/// changes nothing.
fn file_can_punch_holes(file: &File, bytes: u64, block: u32) -> bool {
    let block = u64::from(block.max(512));
    let Some(past) = bytes.checked_next_multiple_of(block) else { return false };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, past, block).is_ok()
}

/// Returns whether the device can zero without writing; the kernel refuses to punch holes on other
/// devices.
fn device_can_punch_holes(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue directory; its disk has.
    let read = |queue: &str| -> io::Result<String> {
        std::fs::read_to_string(format!("{node}/{queue}/write_zeroes_max_bytes"))
    };
    let limit = read("queue").or_else(|_| read("../queue"));
    limit.is_ok_and(|text| text.trim().parse().is_ok_and(|bytes: u64| bytes > 0))
}
