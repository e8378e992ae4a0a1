//! [`WriteBack`]: how this processor writes back cache lines; the mapping of a DAX file.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

use crate::SharedRegion;

impl SharedRegion {
    /// Maps `len` bytes of a file on persistent memory. The file system makes its own metadata
    /// durable before a store reaches a new page (`MAP_SYNC`).
    pub(super) fn dax(file: File, len: usize) -> io::Result<Arc<SharedRegion>> {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. Another
        // process that truncates the file makes an access raise SIGBUS: the file is locked.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
                &file,
                0,
            )?
        };
        Ok(Arc::new(SharedRegion::mapped(base, len, Some(file))?))
    }
}

/// The instruction that writes a cache line back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteBack {
    /// `clwb`: the line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    /// `clflush`: the line leaves the cache, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

#[cfg(target_arch = "x86_64")]
impl WriteBack {
    /// Returns the best instruction that this processor has.
    pub(super) fn of_this_processor() -> Option<WriteBack> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const STRUCTURED_FEATURES: u32 = 7;
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        let features = match __cpuid(0).eax {
            leaf_max if leaf_max < STRUCTURED_FEATURES => 0,
            _ => __cpuid_count(STRUCTURED_FEATURES, 0).ebx,
        };
        // Every x86-64 processor has SSE2, and `clflush` with it.
        Some(match features {
            features if features & CLWB != 0 => WriteBack::Clwb,
            features if features & CLFLUSHOPT != 0 => WriteBack::Clflushopt,
            _ => WriteBack::Clflush,
        })
    }

    /// Writes back the lines from `first` on, which is the start of a line, and waits until they are
    /// in the persistence domain.
    pub(super) fn write_back(self, first: *mut u8, bytes: usize) {
        use std::arch::asm;
        for offset in (0..bytes).step_by(super::PersistentMemory::LINE_BYTES) {
            let line = first.wrapping_add(offset);
            // SAFETY: the instructions change no data, and raise no fault that a load from the
            // address would not; the caller's range is mapped. The processor has the instruction
            // (`of_this_processor`).
            unsafe {
                match self {
                    WriteBack::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack)),
                    WriteBack::Clflushopt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack));
                    }
                    WriteBack::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack)),
                }
            }
        }
        // SAFETY: the instruction only orders stores.
        unsafe { asm!("sfence", options(nostack)) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl WriteBack {
    /// Returns `None`: programs of this processor cannot write back cache lines.
    pub(super) fn of_this_processor() -> Option<WriteBack> {
        None
    }

    /// There is no value of this type.
    pub(super) fn write_back(self, _: *mut u8, _: usize) {
        match self {}
    }
}
