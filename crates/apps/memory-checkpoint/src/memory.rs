//! [`PageMemory`]: anonymous memory with pages of a chosen size, all present.

use std::ptr;

use crate::CheckpointError;

/// Size of the pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB, transparent: the kernel uses small pages where it has no huge ones.
    Huge,
}

impl PageSize {
    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Small => 4096,
            PageSize::Huge => 2 << 20,
        }
    }
}

/// Private anonymous memory that is present.
#[derive(Debug)]
pub struct PageMemory {
    mapping: *mut u8,
    mapped: usize,
    start: usize,
    len: usize,
}

impl PageMemory {
    /// Maps `len` bytes and writes to each page.
    ///
    /// # Errors
    /// [`CheckpointError::Call`] if the system has no memory, or does not take the advice on the size
    /// of pages.
    ///
    /// # Panics
    /// If `len` is zero or no multiple of 4 KiB.
    pub fn new(len: usize, pages: PageSize) -> Result<PageMemory, CheckpointError> {
        assert!(len > 0 && len.is_multiple_of(4096), "{len} bytes of memory");
        let mapped = len + pages.bytes();
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let mapping = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(CheckpointError::last("mmap"));
        }
        let start = mapping.addr().next_multiple_of(pages.bytes()) - mapping.addr();
        let memory = PageMemory { mapping: mapping.cast(), mapped, start, len };
        let advice = match pages {
            PageSize::Small => libc::MADV_NOHUGEPAGE,
            PageSize::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the whole mapping is owned by `memory`, and the advice changes no content.
        if unsafe { libc::madvise(mapping, mapped, advice) } != 0 {
            return Err(CheckpointError::last("madvise"));
        }
        for page in 0..memory.pages() {
            memory.write_page(page, 1);
        }
        Ok(memory)
    }

    /// Number of pages of 4 KiB.
    pub fn pages(&self) -> usize {
        self.len / 4096
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> usize {
        self.mapping.addr() + self.start
    }

    fn page_pointer(&self, page: usize) -> *mut u8 {
        assert!(page < self.pages(), "page {page} of {}", self.pages());
        self.mapping.wrapping_add(self.start + 4096 * page)
    }

    /// Writes the first byte of a page of 4 KiB.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn write_page(&self, page: usize, byte: u8) {
        // SAFETY: the page is inside of the mapping, which nothing else refers to: this type gives
        // out no references and is neither `Send` nor `Sync`.
        unsafe { self.page_pointer(page).write_volatile(byte) };
    }

    /// Reads the first byte of a page of 4 KiB.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read_page(&self, page: usize) -> u8 {
        // SAFETY: as in `write_page`.
        unsafe { self.page_pointer(page).read_volatile() }
    }

    /// Copies a page from other memory.
    pub(crate) fn copy_page(&self, page: usize, from: &PageMemory) {
        // SAFETY: both pages are inside of mappings, which are different and not referred to.
        unsafe {
            ptr::copy_nonoverlapping(from.page_pointer(page), self.page_pointer(page), 4096);
        }
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping of `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}
