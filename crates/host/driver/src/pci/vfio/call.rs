//! System calls on VFIO's files. All `unsafe` code of `vfio` is in this module.
//!
//! Numbers and layouts are those of Linux `include/uapi/linux/vfio.h`. Every structure begins with
//! its size in bytes, which the kernel does not exceed, and contains only numbers.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const fn request(number: u64) -> u64 {
    (b';' as u64) << 8 | (100 + number)
}

const GET_API_VERSION: u64 = request(0);
const CHECK_EXTENSION: u64 = request(1);
const SET_IOMMU: u64 = request(2);
const GROUP_GET_STATUS: u64 = request(3);
const GROUP_SET_CONTAINER: u64 = request(4);
const GROUP_GET_DEVICE_FD: u64 = request(6);
const DEVICE_GET_REGION_INFO: u64 = request(8);
const DEVICE_GET_IRQ_INFO: u64 = request(9);
const DEVICE_SET_IRQS: u64 = request(10);
const DEVICE_RESET: u64 = request(11);
const IOMMU_GET_INFO: u64 = request(12);
const IOMMU_MAP_DMA: u64 = request(13);

/// Version of the VFIO interface.
const API_VERSION: i32 = 0;
/// The type 1 IOMMU, version 2.
const TYPE1V2: u64 = 3;

const GROUP_VIABLE: u32 = 1;
const REGION_MMAP: u32 = 1 << 2;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_TRIGGER: u32 = 1 << 5;
const MAP_READ_WRITE: u32 = 0b11;
const INFO_CAPABILITIES: u32 = 1 << 1;
/// The capability with the addresses that the IOMMU translates.
const IOVA_RANGES: u16 = 1;

/// Maximum size of the IOMMU's description, in bytes.
const INFO_BYTES: usize = 4096;

/// Passes one structure or number to the kernel, and returns the result.
fn call(file: BorrowedFd<'_>, request: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: the callers in this file pass a number or the address of their own memory. The memory
    // is as long as its first word says (or a zero-terminated name) and lives through the call. Its
    // contents are only read as numbers afterwards.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn call_with<T>(file: BorrowedFd<'_>, request: u64, argument: &mut T) -> io::Result<i32> {
    call(file, request, (&raw mut *argument).expose_provenance())
}

/// Returns whether a container supports this interface version and the type 1 IOMMU.
pub(super) fn has_type1(container: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(call(container, GET_API_VERSION, 0)? == API_VERSION
        && call(container, CHECK_EXTENSION, TYPE1V2 as usize)? == 1)
}

/// Returns whether all functions of a group are available.
pub(super) fn is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = [8u32, 0];
    call_with(group, GROUP_GET_STATUS, &mut status)?;
    Ok(status[1] & GROUP_VIABLE != 0)
}

/// Adds a group to a container and selects the type 1 IOMMU for the container.
pub(super) fn join(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    call_with(group, GROUP_SET_CONTAINER, &mut container.as_raw_fd())?;
    call(container, SET_IOMMU, TYPE1V2 as usize)?;
    Ok(())
}

/// Opens the file of a function of a group.
pub(super) fn device(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    let fd = call(group, GROUP_GET_DEVICE_FD, name.as_ptr().expose_provenance())?;
    // SAFETY: the kernel has just created the descriptor, and there is no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A region of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionInfo {
    pub(super) bytes: u64,
    /// Offset of the region in the function's file.
    pub(super) offset: u64,
    pub(super) can_be_mapped: bool,
}

pub(super) fn region(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    #[repr(C)]
    struct Raw {
        argsz: u32,
        flags: u32,
        index: u32,
        cap_offset: u32,
        size: u64,
        offset: u64,
    }
    const _: () = assert!(size_of::<Raw>() == 32);
    let mut raw = Raw { argsz: 32, flags: 0, index, cap_offset: 0, size: 0, offset: 0 };
    call_with(device, DEVICE_GET_REGION_INFO, &mut raw)?;
    let can_be_mapped = raw.flags & REGION_MMAP != 0;
    Ok(RegionInfo { bytes: raw.size, offset: raw.offset, can_be_mapped })
}

/// Returns the number of interrupt vectors of a kind.
pub(super) fn vectors(device: BorrowedFd<'_>, index: u32) -> io::Result<u32> {
    let mut raw = [16u32, 0, index, 0];
    call_with(device, DEVICE_GET_IRQ_INFO, &mut raw)?;
    Ok(raw[3])
}

/// Sets the eventfds of the vectors from `start` on; -1 for none.
pub(super) fn set_vectors(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    files: &[i32],
) -> io::Result<()> {
    const HEADER: usize = 5;
    let bytes = (HEADER + files.len()) * 4;
    let flags = DATA_EVENTFD | ACTION_TRIGGER;
    let mut raw = vec![bytes as u32, flags, index, start, files.len() as u32];
    raw.extend(files.iter().map(|file| *file as u32));
    call(device, DEVICE_SET_IRQS, raw.as_mut_ptr().expose_provenance())?;
    Ok(())
}

/// Resets the function.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    call(device, DEVICE_RESET, 0).map(drop)
}

/// Returns the ranges of addresses that the IOMMU translates; none if the kernel does not report
/// them.
pub(super) fn iova_ranges(container: BorrowedFd<'_>) -> io::Result<Vec<RangeInclusive<u64>>> {
    // 64-bit words, for the alignment of the kernel's structures.
    let mut raw = [0u64; INFO_BYTES / 8];
    raw[0] = INFO_BYTES as u64;
    call_with(container, IOMMU_GET_INFO, &mut raw)?;
    Ok(ranges(&raw.map(u64::to_ne_bytes).concat()))
}

/// Parses the ranges in the IOMMU's description. Ignores offsets outside of it.
fn ranges(info: &[u8]) -> Vec<RangeInclusive<u64>> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(info.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let long = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(info.get(at..at.checked_add(8)?)?.try_into().ok()?))
    };
    let find = || {
        let mut at = word(16).filter(|_| word(4).is_some_and(|f| f & INFO_CAPABILITIES != 0))?;
        // Limit the number of steps, so that a circular chain ends.
        for _ in 0..INFO_BYTES / 8 {
            if at == 0 {
                return None;
            }
            let here = at as usize;
            if word(here)? as u16 == IOVA_RANGES {
                let count = word(here + 8)? as usize;
                let range = |i: usize| {
                    let at = here + 16 + 16 * i;
                    Some(RangeInclusive::new(long(at)?, long(at + 8)?))
                };
                return Some((0..count.min(INFO_BYTES / 16)).filter_map(range).collect());
            }
            at = word(here + 4)?;
        }
        None
    };
    find().unwrap_or_default()
}

/// Pins memory of this process and maps it in the IOMMU at `iova`.
pub(super) fn map(
    container: BorrowedFd<'_>,
    iova: u64,
    memory: *mut u8,
    bytes: usize,
) -> io::Result<()> {
    #[repr(C)]
    struct Raw {
        argsz: u32,
        flags: u32,
        vaddr: u64,
        iova: u64,
        size: u64,
    }
    const _: () = assert!(size_of::<Raw>() == 32);
    // The kernel pins the pages mapped there, and returns an error if there are none. The
    // controller writes to bytes of a region, to which no Rust reference exists.
    let vaddr = memory.expose_provenance() as u64;
    let mut raw = Raw { argsz: 32, flags: MAP_READ_WRITE, vaddr, iova, size: bytes as u64 };
    call_with(container, IOMMU_MAP_DMA, &mut raw).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(words: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        for (at, word) in words {
            bytes[*at..*at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let found = ranges(&info(&[
            (4, 3),
            (16, 32),
            // Another capability, then that of the two ranges.
            (32, 3 | 1 << 16),
            (36, 64),
            (64, 1 | 1 << 16),
            (72, 2),
            (88, 0xfedf_ffff),
            (96, 0xfef0_0000),
            (104, u32::MAX),
            (108, 0x7f),
        ]));
        assert_eq!(found, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn descriptions_that_lead_nowhere_have_no_ranges() {
        for words in [
            &[][..],
            &[(4, 1), (16, 32), (32, 1), (40, 1)],
            &[(4, 2), (16, 0)],
            &[(4, 2), (16, 300)],
            &[(4, 2), (16, u32::MAX)],
            // A circular chain.
            &[(4, 2), (16, 32), (32, 9), (36, 32)],
        ] {
            assert_eq!(ranges(&info(words)), [], "{words:?}");
        }
        let cut = ranges(&info(&[(4, 2), (16, 224), (224, 1), (232, 1000), (248, 5)]));
        assert_eq!(cut, [0..=5], "as many as there are bytes of");
    }

    #[test]
    fn files_that_are_not_vfio_are_refused() {
        use std::os::fd::AsFd;
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(has_type1(null.as_fd()).is_err());
        assert!(is_viable(null.as_fd()).is_err());
        assert!(device(null.as_fd(), "0000:01:00.0").is_err());
        assert!(device(null.as_fd(), "a\0b").is_err());
        assert!(region(null.as_fd(), 0).is_err());
        assert!(vectors(null.as_fd(), 2).is_err());
        assert!(set_vectors(null.as_fd(), 2, 0, &[-1]).is_err());
        assert!(iova_ranges(null.as_fd()).is_err());
        assert!(reset(null.as_fd()).is_err());
    }
}
