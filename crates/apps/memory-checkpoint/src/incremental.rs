//! [`IncrementalCheckpoint`]: memory with a copy; each checkpoint renews the written pages of the copy.
//!
//! **Protocol.** The range is registered with a userfault descriptor for asynchronous write protection
//! (`UFFD_FEATURE_WP_ASYNC`): the kernel removes the protection of a page at the first write, without
//! a message. `PAGEMAP_SCAN` with `PM_SCAN_WP_MATCHING` returns the pages that are not protected, and
//! protects them, in one step per page.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::{CheckpointError, PageMemory, PageSize};

// `linux/userfaultfd.h` and `linux/fs.h`.
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 2;

/// Ranges of pages per call of `PAGEMAP_SCAN`.
const RANGES: usize = 512;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRange {
    start: u64,
    end: u64,
    categories: u64,
}

/// Memory, its copy at the last checkpoint, and the descriptor that protects it.
#[derive(Debug)]
pub struct IncrementalCheckpoint {
    memory: PageMemory,
    copy: PageMemory,
    faults: OwnedFd,
    pagemap: std::fs::File,
}

impl IncrementalCheckpoint {
    /// Takes a first checkpoint of `memory`: copies and protects all of it.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] before Linux 6.7; [`CheckpointError::Call`] without the right to
    /// use userfault descriptors, or without memory for the copy.
    pub fn new(memory: PageMemory) -> Result<IncrementalCheckpoint, CheckpointError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: the call has a flags argument only.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let Some(descriptor) = i32::try_from(descriptor).ok().filter(|fd| *fd >= 0) else {
            let source = io::Error::last_os_error();
            return Err(CheckpointError::Unsupported { feature: "userfaultfd", source });
        };
        // SAFETY: the kernel has just returned the descriptor, which nothing else owns.
        let faults = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let pagemap = std::fs::File::open("/proc/self/pagemap")
            .map_err(|source| CheckpointError::Call { call: "/proc/self/pagemap", source })?;
        let mut api = [UFFD_API, UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED, 0];
        let unsupported = "userfaultfd with asynchronous write protection (Linux 6.7)";
        // SAFETY: `struct uffdio_api` is three words of 64 bits, which the kernel reads and writes.
        control(unsupported, || unsafe {
            libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr())
        })?;
        let (start, len) = (memory.address() as u64, memory.bytes() as u64);
        let mut register = [start, len, UFFDIO_REGISTER_MODE_WP, 0];
        // SAFETY: `struct uffdio_register` is four words. The range is owned by `memory`.
        control("registration for write protection", || unsafe {
            libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr())
        })?;
        let copy = PageMemory::new(memory.bytes(), PageSize::Small)?;
        let checkpoint = IncrementalCheckpoint { memory, copy, faults, pagemap };
        for page in 0..checkpoint.memory.pages() {
            checkpoint.copy.copy_page(page, &checkpoint.memory);
        }
        checkpoint.protect_all()?;
        Ok(checkpoint)
    }

    /// The memory.
    pub fn memory(&self) -> &PageMemory {
        &self.memory
    }

    /// Protects all pages, whether they were written or not.
    ///
    /// # Errors
    /// [`CheckpointError::Call`].
    pub fn protect_all(&self) -> Result<(), CheckpointError> {
        let (start, len) = (self.memory.address() as u64, self.memory.bytes() as u64);
        let mut protect = [start, len, UFFDIO_WRITEPROTECT_MODE_WP];
        // SAFETY: `struct uffdio_writeprotect` is three words. The range is registered, and a
        // protected page only delays a write.
        let result = unsafe {
            libc::ioctl(self.faults.as_raw_fd(), UFFDIO_WRITEPROTECT, protect.as_mut_ptr())
        };
        if result < 0 {
            return Err(CheckpointError::last("UFFDIO_WRITEPROTECT"));
        }
        Ok(())
    }

    /// Takes a checkpoint: copies the pages that were written since the last one, and protects them.
    /// Returns their number.
    ///
    /// # Errors
    /// [`CheckpointError`]; the memory is unchanged, and the copy may be partly renewed.
    pub fn take(&mut self) -> Result<usize, CheckpointError> {
        self.for_written(|this, page| this.copy.copy_page(page, &this.memory))
    }

    /// Restores the memory of the last checkpoint. Returns the number of pages that were written since.
    ///
    /// # Errors
    /// [`CheckpointError`]; the memory may be partly restored.
    pub fn restore(&mut self) -> Result<usize, CheckpointError> {
        let restored = self.for_written(|this, page| this.memory.copy_page(page, &this.copy))?;
        // The copies were writes, too.
        self.for_written(|_, _| {})?;
        Ok(restored)
    }

    /// Protects the pages that are not protected, and calls `each` for them.
    fn for_written(
        &mut self,
        mut each: impl FnMut(&IncrementalCheckpoint, usize),
    ) -> Result<usize, CheckpointError> {
        let first = self.memory.address() as u64;
        let end = first + self.memory.bytes() as u64;
        let mut start = first;
        let mut pages = 0;
        while start < end {
            let mut ranges = [PageRange::default(); RANGES];
            let mut scan = [
                96,
                PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                start,
                end,
                0,
                ranges.as_mut_ptr().addr() as u64,
                RANGES as u64,
                0,
                0,
                PAGE_IS_WRITTEN,
                0,
                PAGE_IS_WRITTEN,
            ];
            // SAFETY: `struct pm_scan_arg` is twelve words; the kernel writes at most RANGES entries of
            // three words to `ranges`, which lives until the end of the loop's body.
            let found = control("PAGEMAP_SCAN (Linux 6.7)", || unsafe {
                libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, scan.as_mut_ptr())
            })?;
            for range in ranges.iter().take(found) {
                let numbers = (range.start - first) / 4096..(range.end - first) / 4096;
                for page in numbers {
                    each(self, page as usize);
                    pages += 1;
                }
            }
            // The walk ends before `end` if there is no room for more ranges.
            start = scan[4].max(start + 4096);
        }
        Ok(pages)
    }
}

/// Calls the kernel; an error says that the kernel lacks the feature.
fn control(
    feature: &'static str,
    call: impl FnOnce() -> libc::c_int,
) -> Result<usize, CheckpointError> {
    usize::try_from(call())
        .map_err(|_| CheckpointError::Unsupported { feature, source: io::Error::last_os_error() })
}
