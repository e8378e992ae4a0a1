//! [`SharedRegion`]: memory that host and drive may both access.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A memory mapping, shared by reference.
///
/// Accesses are by value and bounds-checked. A region never hands out a Rust reference to bytes
/// that another thread or process may change. Words by which both sides synchronize are handed out
/// as atomics.
///
/// # Panics
/// Every access method panics if the range exceeds the region. Ranges from a user, a guest or a
/// drive are checked against [`AddressSpace`](crate::AddressSpace) first.
#[derive(Debug)]
pub struct SharedRegion {
    base: NonNull<u8>,
    len: usize,
    /// The mapped file. A file mapping releases blocks by punching holes, anonymous memory by
    /// `MADV_DONTNEED`.
    file: Option<File>,
    /// The file is sealed memory ([`SharedRegion::memfd`]).
    sealed: bool,
    /// A private file mapping: its pages are those of the file until they are written.
    copy_on_write: bool,
    /// The region that owns the mapping, if this is a part of another region.
    parent: Option<Arc<SharedRegion>>,
}

// SAFETY: the mapping belongs to the region until it is dropped, is valid from any thread, and the
// region gives out no references to plain bytes. Concurrent copies into overlapping ranges may tear
// data, as with any DMA buffer, but affect nothing else.
unsafe impl Send for SharedRegion {}
// SAFETY: see above.
unsafe impl Sync for SharedRegion {}

impl SharedRegion {
    /// Allocates zeroed private memory, which takes no memory until it is touched.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; `InvalidInput` for a length of zero.
    pub fn anonymous(len: usize) -> io::Result<Arc<SharedRegion>> {
        Ok(Arc::new(SharedRegion::map_anonymous(len)?))
    }

    /// Creates the region of a fresh mapping at `base`, which it then owns.
    pub(crate) fn mapped(
        base: *mut c_void,
        len: usize,
        file: Option<File>,
    ) -> io::Result<SharedRegion> {
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("mmap returned the null page"))?;
        Ok(SharedRegion { base, len, file, sealed: false, copy_on_write: false, parent: None })
    }

    pub(crate) fn map_anonymous(len: usize) -> io::Result<SharedRegion> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region of 0 bytes"));
        }
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let region = SharedRegion::mapped(base, len, None)?;
        region.prefer_huge_pages();
        Ok(region)
    }

    /// Maps `len` bytes of `file` from its start, shared with the file: writes survive the process.
    /// The file must be at least that long.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; `InvalidInput` for a length of zero or past the end of the
    /// file.
    pub fn file(file: File, len: usize) -> io::Result<Arc<SharedRegion>> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region that is empty or longer than its file",
            ));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. Another
        // process that truncates the file makes an access raise SIGBUS: image files are locked.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        Ok(Arc::new(SharedRegion::mapped(base, len, Some(file))?))
    }

    /// Maps `len` bytes of `file` from its start, copied on write: writes stay in this process. The
    /// file may be open read-only and never changes. It must be at least that long, and must not
    /// change while the region exists.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; `InvalidInput` for a length of zero or past the end of the
    /// file.
    pub fn copy_on_write(file: &File, len: usize) -> io::Result<Arc<SharedRegion>> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region that is empty or longer than its file",
            ));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. Another
        // process that truncates the file makes an access raise SIGBUS: image files are locked.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file, 0)? };
        let mut region = SharedRegion::mapped(base, len, None)?;
        region.copy_on_write = true;
        Ok(Arc::new(region))
    }

    /// Maps `len` bytes of a device `file` from `offset`: registers, which are accessed only as
    /// words ([`atomic_u32`](SharedRegion::atomic_u32)).
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; `InvalidInput` for a length of zero.
    pub fn device(file: &File, offset: u64, len: usize) -> io::Result<Arc<SharedRegion>> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region of 0 bytes"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. The kernel
        // keeps the device's registers mapped for the lifetime of the mapping; the registers of a
        // removed device read as ones.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, offset)?
        };
        Ok(Arc::new(SharedRegion::mapped(base, len, None)?))
    }

    /// Allocates `pages` zeroed huge pages of 2 MiB, which are resident and keep their physical
    /// addresses: they are never swapped, split or compacted. Child processes do not inherit them.
    ///
    /// # Errors
    /// The error of `memfd_create(2)`, `mmap(2)`, `mlock(2)` or `madvise(2)`: `OutOfMemory` if
    /// there are not enough huge pages, or the limit of locked memory is too low.
    pub fn huge(pages: usize) -> io::Result<Arc<SharedRegion>> {
        let len = pages.checked_mul(SharedRegion::HUGE_PAGE_BYTES).filter(|len| *len > 0);
        let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = File::from(rustix::fs::memfd_create("sluice", flags)?);
        file.set_len(len as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. The
        // mapping reserves the pages, and `mlock` makes them resident: no access raises SIGBUS. No
        // other process has the file.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0)?
        };
        let region = SharedRegion::mapped(base, len, Some(file))?;
        let at = region.base.as_ptr().cast();
        // SAFETY: the range is the whole of a mapping that this function owns.
        unsafe {
            rustix::mm::mlock(at, len)?;
            rustix::mm::madvise(at, len, Advice::LinuxDontFork)?;
        }
        Ok(Arc::new(region))
    }

    /// Size of a [huge](SharedRegion::huge) page in bytes.
    pub const HUGE_PAGE_BYTES: usize = 2 << 20;

    /// Returns a part of another region, which it keeps alive.
    ///
    /// # Panics
    /// If the range exceeds the region, or is empty.
    pub fn subregion(whole: &Arc<SharedRegion>, offset: usize, len: usize) -> Arc<SharedRegion> {
        assert!(len > 0, "a part of 0 bytes");
        let base = NonNull::new(whole.checked_pointer(offset, len)).unwrap_or(whole.base);
        Arc::new(SharedRegion {
            base,
            len,
            file: None,
            sealed: false,
            copy_on_write: false,
            parent: Some(whole.clone()),
        })
    }

    /// Maps the whole of a memory file that is sealed against shrinking.
    pub(crate) fn map_sealed(file: File, len: usize) -> io::Result<SharedRegion> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. The seal
        // prevents truncation: no access raises SIGBUS.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0)?
        };
        let mut region = SharedRegion::mapped(base, len, Some(file))?;
        region.sealed = true;
        region.prefer_huge_pages();
        Ok(region)
    }

    /// Requests huge pages, if the region is large enough for one.
    fn prefer_huge_pages(&self) {
        if self.len >= 2 << 20 {
            // SAFETY: advice on a mapping that this region owns; refusal (no huge pages) costs only
            // speed.
            let _ = unsafe {
                rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage)
            };
        }
    }

    /// Whether other processes can map the region: sealed memory ([`SharedRegion::memfd`]).
    pub fn is_shared(&self) -> bool {
        self.sealed
    }

    /// Returns a private copy in memory. No thread may write to the region in the meantime. Pages
    /// of zeros take no memory.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn duplicate(&self) -> io::Result<Arc<SharedRegion>> {
        self.map_duplicate().map(Arc::new)
    }

    pub(crate) fn map_duplicate(&self) -> io::Result<SharedRegion> {
        const SEGMENT_BYTES: usize = 4096;
        let copy = SharedRegion::map_anonymous(self.len)?;
        let mut segment = [0u8; SEGMENT_BYTES];
        for at in (0..self.len).step_by(SEGMENT_BYTES) {
            let segment = &mut segment[..SEGMENT_BYTES.min(self.len - at)];
            self.read(at, segment);
            if segment.iter().any(|byte| *byte != 0) {
                copy.write(at, segment);
            }
        }
        Ok(copy)
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the mapped file, if there is one.
    pub fn backing(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Returns the start of the mapping.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the address of a range in this process, for system calls that read or write it. It
    /// is valid for `len` bytes while the region exists; the caller keeps the region alive.
    ///
    /// Memory that is pinned for a device by its address must not be released
    /// ([`discard`](SharedRegion::discard)): the device would continue to use the old pages.
    #[inline]
    pub fn pointer(&self, offset: usize, len: usize) -> *mut u8 {
        self.checked_pointer(offset, len)
    }

    #[inline]
    fn checked_pointer(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes {offset}..+{len} of a region of {}",
            self.len
        );
        // SAFETY: the offset is within the mapping, or one past its end for a length of zero.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.checked_pointer(offset, into.len());
        // SAFETY: `from` is valid for the length; `into` cannot be part of the mapping, because no
        // references to the mapping exist.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.checked_pointer(offset, from.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes from one region to another, or within one.
    #[inline]
    pub fn copy(
        from: &SharedRegion,
        from_offset: usize,
        to: &SharedRegion,
        to_offset: usize,
        len: usize,
    ) {
        let (from, to) =
            (from.checked_pointer(from_offset, len), to.checked_pointer(to_offset, len));
        // SAFETY: both ranges are valid for the length; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) }
    }

    /// Sets bytes to one value.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let to = self.checked_pointer(offset, len);
        // SAFETY: the range is valid for the length.
        unsafe { std::ptr::write_bytes(to, byte, len) }
    }

    /// Returns a 64-bit word, little endian in memory because only such machines are supported.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or out of range.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        let [word] = self.atomic_u64_array::<1>(offset);
        word
    }

    /// Returns `N` consecutive words, checked once.
    ///
    /// # Panics
    /// As for [`atomic_u64`](SharedRegion::atomic_u64).
    #[inline]
    pub fn atomic_u64_array<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8), "word at odd offset {offset}");
        let at = self.checked_pointer(offset, 8 * N);
        // SAFETY: valid for all of them, aligned (mappings start on a page), and atomics may be
        // shared; the reference lives no longer than the region.
        unsafe { &*at.cast::<[AtomicU64; N]>() }
    }

    /// Returns a 32-bit word, for doorbells.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4, or out of range.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "half word at odd offset {offset}");
        let at = self.checked_pointer(offset, 4);
        // SAFETY: as in `atomic_u64`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Releases the memory, or the file's blocks, of the pages entirely inside the range; they read
    /// as zeros afterwards. Partial pages at both ends are zeroed.
    ///
    /// # Errors
    /// The error of `fallocate(2)` or `madvise(2)`.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        self.checked_pointer(offset, len);
        if self.parent.is_some() {
            self.fill(offset, len, 0);
            return Ok(());
        }
        let (start, end) =
            (offset.next_multiple_of(crate::PAGE_BYTES), (offset + len) & !(crate::PAGE_BYTES - 1));
        if start >= end {
            self.fill(offset, len, 0);
            return Ok(());
        }
        self.fill(offset, start - offset, 0);
        self.fill(end, offset + len - end, 0);
        match &self.file {
            Some(file) => rustix::fs::fallocate(
                file,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                start as u64,
                (end - start) as u64,
            )?,
            // SAFETY: whole pages of a mapping that this region owns are replaced by zero pages at
            // the same address; no reference to plain bytes of them exists. `MADV_DONTNEED` would
            // restore the contents of the file.
            None if self.copy_on_write => unsafe {
                rustix::mm::mmap_anonymous(
                    self.checked_pointer(start, end - start).cast(),
                    end - start,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                )?;
            },
            // SAFETY: whole pages of an anonymous mapping that this region owns; they become zero
            // pages, and no reference to plain bytes of them exists.
            None => unsafe {
                rustix::mm::madvise(
                    self.checked_pointer(start, end - start).cast(),
                    end - start,
                    Advice::LinuxDontNeed,
                )?;
            },
        }
        Ok(())
    }

    /// Has the kernel allocate the memory of the range, which otherwise waits for the first store to
    /// each page. Contents do not change.
    ///
    /// # Errors
    /// The error of `madvise(2)`: `EINVAL` before Linux 5.14, `EFAULT` or `ENOMEM` without memory.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = offset & !(crate::PAGE_BYTES - 1);
        let len = offset + len - start;
        let at = self.checked_pointer(start, len);
        // SAFETY: pages of a mapping that this region owns are faulted in, as stores would; no
        // contents change.
        unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Allocates space for the range, so that a store to it cannot fail on a full disk.
    ///
    /// # Errors
    /// The error of `fallocate(2)`; `ENOSPC` for a file on a full file system.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        self.checked_pointer(offset, len);
        if let Some(file) = &self.file {
            rustix::fs::fallocate(
                file,
                rustix::fs::FallocateFlags::KEEP_SIZE,
                offset as u64,
                len as u64,
            )?;
        }
        Ok(())
    }

    /// Waits until all written data is on the file's device. Does nothing for memory.
    ///
    /// # Errors
    /// The error that `fsync(2)` returns.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_all)
    }

    /// Waits until all written data is on the file's device, without metadata that is not needed to
    /// read it. Does nothing for memory.
    ///
    /// # Errors
    /// The error that `fdatasync(2)` returns.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        if self.parent.is_some() {
            return;
        }
        // SAFETY: the mapping belongs to this region, and no references to it remain.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn bytes_go_in_and_come_out() {
        let (a, b) =
            (SharedRegion::anonymous(8192).unwrap(), SharedRegion::anonymous(4096).unwrap());
        a.write(4090, b"straddles");
        SharedRegion::copy(&a, 4090, &b, 7, 9);
        let mut out = [0; 9];
        b.read(7, &mut out);
        assert_eq!(&out, b"straddles");
        b.fill(8, 3, b'x');
        b.read(7, &mut out);
        assert_eq!(&out, b"sxxxddles");
    }

    #[test]
    fn large_regions_ask_for_huge_pages_and_small_ones_do_not() {
        let asks = |region: &SharedRegion| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let at = region.base.as_ptr() as u64;
            let mut here = false;
            for line in maps.lines() {
                let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
                let number = |digits| u64::from_str_radix(digits, 16).ok();
                if let Some((Some(from), Some(to))) = range.map(|(a, b)| (number(a), number(b))) {
                    here = (from..to).contains(&at);
                } else if let (true, Some(flags)) = (here, line.strip_prefix("VmFlags:")) {
                    return flags.split_whitespace().any(|flag| flag == "hg");
                }
            }
            panic!("{at:#x} is nowhere in\n{maps}");
        };
        // A kernel without huge pages does not have this directory.
        let kernel_has_them = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        for region in
            [SharedRegion::anonymous(4 << 20).unwrap(), SharedRegion::memfd(4 << 20).unwrap()]
        {
            assert_eq!(asks(&region), kernel_has_them);
        }
        for region in [SharedRegion::anonymous(4096).unwrap(), SharedRegion::memfd(4096).unwrap()] {
            assert!(!asks(&region));
        }
    }

    #[test]
    #[should_panic(expected = "of a region of 4096")]
    fn a_range_past_the_end_is_refused() {
        SharedRegion::anonymous(4096).unwrap().write(4000, &[0; 97]);
    }

    #[test]
    fn words_are_the_bytes_that_they_stand_for() {
        let region = SharedRegion::anonymous(4096).unwrap();
        region.write(4080, &(0..16).collect::<Vec<u8>>());
        let [low, high] = region.atomic_u64_array::<2>(4080);
        assert_eq!(high.load(Relaxed), 0x0f0e_0d0c_0b0a_0908);
        low.store(7, Relaxed);
        assert_eq!(region.atomic_u64(4080).load(Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "of a region of 4096")]
    fn words_of_which_the_last_is_outside_are_refused() {
        region_words(4040);
    }

    #[test]
    #[should_panic(expected = "word at odd offset")]
    fn words_that_are_not_aligned_are_refused() {
        region_words(12);
    }

    fn region_words(offset: usize) {
        SharedRegion::anonymous(4096).unwrap().atomic_u64_array::<8>(offset);
    }

    #[test]
    #[should_panic(expected = "of a region of 4096")]
    fn a_range_that_wraps_is_refused() {
        SharedRegion::anonymous(4096).unwrap().fill(usize::MAX, 2, 0);
    }

    #[test]
    fn a_copy_on_write_region_shows_its_file_and_never_changes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        let contents: Vec<u8> = (0..4 * 4096).map(|i| (i % 251) as u8 + 1).collect();
        std::fs::write(&path, &contents).unwrap();
        let file = File::open(&path).unwrap();
        assert!(SharedRegion::copy_on_write(&file, 0).is_err());
        assert!(SharedRegion::copy_on_write(&file, contents.len() + 1).is_err());
        let region = SharedRegion::copy_on_write(&file, contents.len()).unwrap();
        let mut found = vec![0; contents.len()];
        region.read(0, &mut found);
        assert_eq!(found, contents);
        region.write(100, b"mine");
        region.reserve(0, 4 * 4096).unwrap();
        region.sync().unwrap();
        // Discarded pages are zeros, not the contents of the file.
        region.discard(4096, 2 * 4096).unwrap();
        region.read(0, &mut found);
        assert_eq!(&found[100..104], b"mine");
        assert!(found[4096..3 * 4096].iter().all(|b| *b == 0));
        assert_eq!(found[3 * 4096..], contents[3 * 4096..]);
        region.write(5000, b"again");
        drop(region);
        assert_eq!(std::fs::read(&path).unwrap(), contents);
    }

    #[test]
    fn populated_memory_is_resident_and_keeps_its_contents() {
        use std::os::unix::fs::FileExt as _;

        let region = SharedRegion::anonymous(16 * 4096).unwrap();
        region.write(5000, b"mine");
        region.populate(4096 + 8, 3 * 4096).unwrap();
        let mut found = [0; 4];
        region.read(5000, &mut found);
        assert_eq!(&found, b"mine");
        // 8 bytes for each page of the process; bit 63 says that it is in memory.
        let mut entries = [0u8; 16 * 8];
        let first = region.pointer(0, 1).addr() / 4096;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, first as u64 * 8).unwrap();
        let pages: Vec<usize> = (0..16).filter(|page| entries[page * 8 + 7] >> 7 == 1).collect();
        assert_eq!(pages, [1, 2, 3, 4]);
        assert!(std::panic::catch_unwind(|| region.populate(15 * 4096, 8192)).is_err());
    }

    #[test]
    fn discarded_ranges_read_as_zeros_in_memory_and_in_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 * 4096).unwrap();
        for region in [
            SharedRegion::anonymous(5 * 4096).unwrap(),
            SharedRegion::file(file, 5 * 4096).unwrap(),
        ] {
            region.reserve(0, region.len()).unwrap();
            region.fill(0, region.len(), 7);
            region.discard(100, 3 * 4096).unwrap();
            region.discard(4 * 4096 + 8, 8).unwrap();
            let mut all = vec![0; region.len()];
            region.read(0, &mut all);
            for (i, byte) in all.iter().enumerate() {
                let gone = (100..100 + 3 * 4096).contains(&i) || (16392..16400).contains(&i);
                assert_eq!(*byte == 0, gone, "byte {i}");
            }
        }
    }

    #[test]
    fn a_part_is_bytes_of_the_whole_and_keeps_it() {
        let whole = SharedRegion::anonymous(4 * 4096).unwrap();
        let part = SharedRegion::subregion(&whole, 4096, 8192);
        let other = SharedRegion::subregion(&whole, 3 * 4096, 4096);
        part.write(8000, b"here");
        let mut out = [0; 4];
        whole.read(4096 + 8000, &mut out);
        assert_eq!(&out, b"here");
        other.fill(0, 4096, 7);
        drop(whole);
        part.discard(0, 8192).unwrap();
        part.read(8000, &mut out);
        assert_eq!(out, [0; 4]);
        other.read(0, &mut out);
        assert_eq!(out, [7; 4], "the neighbour's are as they were");
        assert!(std::panic::catch_unwind(|| part.fill(8192, 1, 0)).is_err(), "and no further");
    }

    #[test]
    fn huge_pages_are_there_or_refused() {
        assert_eq!(SharedRegion::huge(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(SharedRegion::huge(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        let free = std::fs::read_to_string(free).ok().and_then(|n| n.trim().parse::<usize>().ok());
        // One more than are free.
        let most = free.unwrap_or(0);
        if most < 1 << 20 {
            assert!(SharedRegion::huge(most + (1 << 20)).is_err());
        }
        if most > 0
            && let Ok(region) = SharedRegion::huge(1)
        {
            assert!(region.pointer(0, 1).addr().is_multiple_of(SharedRegion::HUGE_PAGE_BYTES));
            let mut out = [1; 8];
            region.read(SharedRegion::HUGE_PAGE_BYTES - 8, &mut out);
            assert_eq!(out, [0; 8]);
        }
    }

    #[test]
    fn a_region_longer_than_its_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(SharedRegion::file(file, 4097).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(SharedRegion::anonymous(0).is_err());
    }
}
