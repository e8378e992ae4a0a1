//! [`PhysicalFrames`]: physical addresses of this process's pages (Linux
//! `Documentation/admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mem::{PAGE_BYTES, SharedRegion};

use super::super::SysfsPci;

/// Size of an entry of the page map, in bytes.
const ENTRY: u64 = 8;
/// The page is in memory.
const PRESENT: u64 = 1 << 63;
/// The page is swapped out: the entry has no frame number.
const SWAPPED: u64 = 1 << 62;
/// Mask of the frame number.
const FRAME: u64 = (1 << 55) - 1;

/// The reason why a page's physical address is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The page map cannot be opened or read.
    #[error("{0}")]
    Map(#[from] io::Error),
    /// The page map hides physical addresses from this process.
    #[error("they are hidden from this process: run as root (CAP_SYS_ADMIN)")]
    Hidden,
    /// The page is not in memory.
    #[error("it says that a page is not in memory, although it was locked")]
    Absent,
    /// The page is not a huge page.
    #[error("it says that a huge page is in several pieces")]
    NotHuge,
}

/// The page map of this process.
#[derive(Debug)]
pub(super) struct PhysicalFrames {
    map: File,
}

/// Returns the physical address of a page from its entry in the page map.
fn address(entry: u64) -> Result<u64, FrameError> {
    match (entry & PRESENT != 0 && entry & SWAPPED == 0, entry & FRAME) {
        (false, _) => Err(FrameError::Absent),
        (true, 0) => Err(FrameError::Hidden),
        (true, frame) => Ok(frame * PAGE_BYTES as u64),
    }
}

impl PhysicalFrames {
    /// Opens the page map.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn open(system: &SysfsPci) -> io::Result<PhysicalFrames> {
        Ok(PhysicalFrames { map: File::open(system.proc.join("self/pagemap"))? })
    }

    fn physical_address(&self, pointer: *mut u8) -> Result<u64, FrameError> {
        let mut entry = [0; ENTRY as usize];
        let page = (pointer.addr() / PAGE_BYTES) as u64;
        self.map.read_exact_at(&mut entry, page * ENTRY)?;
        address(u64::from_ne_bytes(entry))
    }

    /// Returns the physical addresses of a region's huge pages, in order.
    ///
    /// # Errors
    /// [`FrameError`]; also for pages that are not huge.
    pub(super) fn huge_page_addresses(
        &self,
        region: &SharedRegion,
    ) -> Result<Vec<u64>, FrameError> {
        let huge = |offset: usize| {
            let first = self.physical_address(region.pointer(offset, 1))?;
            // Check the first and the last small page: the huge page must be contiguous and aligned
            // to its size.
            let last = self.physical_address(
                region.pointer(offset + SharedRegion::HUGE_PAGE_BYTES - PAGE_BYTES, 1),
            )?;
            let whole = first.is_multiple_of(SharedRegion::HUGE_PAGE_BYTES as u64);
            match whole && last == first + (SharedRegion::HUGE_PAGE_BYTES - PAGE_BYTES) as u64 {
                true => Ok(first),
                false => Err(FrameError::NotHuge),
            }
        };
        (0..region.len()).step_by(SharedRegion::HUGE_PAGE_BYTES).map(huge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_the_kernel_writes_them() {
        assert_eq!(address(PRESENT | 0x1234).unwrap(), 0x1234 << 12);
        // Flags besides the frame number: soft dirty, exclusively mapped, file page.
        assert_eq!(address(PRESENT | 1 << 55 | 1 << 56 | 1 << 61 | 0x200).unwrap(), 0x20_0000);
        assert!(matches!(address(0), Err(FrameError::Absent)));
        assert!(matches!(address(SWAPPED | 7), Err(FrameError::Absent)));
        let hidden = address(PRESENT).unwrap_err();
        assert!(hidden.to_string().contains("CAP_SYS_ADMIN"), "{hidden}");
    }

    #[test]
    fn pages_that_are_not_huge_are_told_from_those_that_are() {
        let frames = PhysicalFrames::open(&SysfsPci::default()).unwrap();
        // Small pages are recognized if physical addresses are visible.
        let small = SharedRegion::anonymous(2 * SharedRegion::HUGE_PAGE_BYTES).unwrap();
        let untouched = frames.huge_page_addresses(&small).unwrap_err();
        assert!(matches!(untouched, FrameError::Absent), "{untouched}");
        let Ok(huge) = SharedRegion::huge(2) else {
            println!("no huge pages here: /proc/sys/vm/nr_hugepages");
            return;
        };
        match frames.huge_page_addresses(&huge) {
            Ok(found) => {
                assert_eq!(found.len(), 2);
                assert!(
                    found.iter().all(|at| at.is_multiple_of(SharedRegion::HUGE_PAGE_BYTES as u64))
                );
                assert_ne!(found[0], found[1]);
                // Huge pages do not move.
                assert_eq!(frames.huge_page_addresses(&huge).unwrap(), found);
            }
            Err(error) => assert!(matches!(error, FrameError::Hidden), "{error}"),
        }
    }

    #[test]
    fn a_page_map_that_ends_early_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc");
        let system = SysfsPci { proc: proc.clone(), ..SysfsPci::default() };
        assert!(PhysicalFrames::open(&system).is_err());
        std::fs::create_dir_all(proc.join("self")).unwrap();
        std::fs::write(proc.join("self/pagemap"), [0; 12]).unwrap();
        let frames = PhysicalFrames::open(&system).unwrap();
        let region = SharedRegion::anonymous(SharedRegion::HUGE_PAGE_BYTES).unwrap();
        assert!(matches!(frames.huge_page_addresses(&region), Err(FrameError::Map(_))));
    }
}
