//! [`HugePageAllocator`]: memory with known and constant physical addresses.
//!
//! The kernel neither swaps, splits nor compacts huge pages, so that their addresses stay constant
//! until they are freed. Locked small pages stay in memory, but compaction and NUMA balancing move
//! them. Only an administrator's request moves a huge page (`move_pages`, taking memory offline).
//!
//! Regions are cut from huge pages in ascending order, in whole small pages. Registrations are
//! never removed, so all regions are freed together. A region of at most 2 MiB is within one huge
//! page.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use mem::{DmaReach, PAGE_BYTES, SharedRegion};

use super::frame::{FrameError, PhysicalFrames};

/// Huge pages that are contiguous in this process's address space.
#[derive(Debug)]
struct Arena {
    region: Arc<SharedRegion>,
    /// Physical addresses of the huge pages.
    frames: Vec<u64>,
    /// Number of bytes allocated, from the start.
    used: usize,
}

/// The memory of one function.
#[derive(Debug)]
pub(super) struct HugePageAllocator {
    frames: PhysicalFrames,
    arenas: Mutex<Vec<Arena>>,
}

/// The reason of a failed allocation.
#[derive(Debug, thiserror::Error)]
pub(super) enum HugePageError {
    /// There are not enough huge pages.
    #[error("{0}")]
    Pages(#[from] io::Error),
    /// Their physical addresses are unknown.
    #[error("{0}")]
    Frames(#[from] FrameError),
}

/// Returns the offset at which `bytes` bytes fit after `used` bytes of an arena of `len`. A region
/// that fits into a huge page does not cross into another.
fn fit_offset(used: usize, len: usize, bytes: usize) -> Option<usize> {
    let crosses = used % SharedRegion::HUGE_PAGE_BYTES + bytes > SharedRegion::HUGE_PAGE_BYTES;
    let begin = if crosses { used.next_multiple_of(SharedRegion::HUGE_PAGE_BYTES) } else { used };
    (begin <= len && bytes <= len - begin).then_some(begin)
}

impl HugePageAllocator {
    /// Creates an allocator with a first huge page.
    ///
    /// # Errors
    /// [`HugePageError`].
    pub(super) fn new(frames: PhysicalFrames) -> Result<HugePageAllocator, HugePageError> {
        let memory = HugePageAllocator { frames, arenas: Mutex::default() };
        let first = memory.new_arena(1)?;
        memory.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(first);
        Ok(memory)
    }

    fn new_arena(&self, pages: usize) -> Result<Arena, HugePageError> {
        let region = SharedRegion::huge(pages)?;
        let frames = self.frames.huge_page_addresses(&region)?;
        Ok(Arena { region, frames, used: 0 })
    }

    /// Allocates a zeroed region of `len` bytes.
    ///
    /// # Errors
    /// [`HugePageError`]; `InvalidInput` for a length of 0.
    pub(super) fn provide(&self, len: usize) -> Result<Arc<SharedRegion>, HugePageError> {
        let bytes = len.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places =
            arenas.iter().map(|arena| fit_offset(arena.used, arena.region.len(), bytes));
        let (arena, begin) = match places.by_ref().enumerate().find_map(|(i, at)| Some((i, at?))) {
            Some(found) => found,
            None => {
                let arena = self.new_arena(bytes.div_ceil(SharedRegion::HUGE_PAGE_BYTES))?;
                arenas.push(arena);
                (arenas.len() - 1, 0)
            }
        };
        let Some(arena) = arenas.get_mut(arena) else {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
        };
        arena.used = begin + bytes;
        Ok(SharedRegion::subregion(&arena.region, begin, len))
    }

    /// Returns the physical addresses of a region's pages; none if the region is from elsewhere.
    pub(super) fn reach(&self, region: &SharedRegion) -> DmaReach {
        let (pointer, bytes) = region.whole_pages();
        let arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = |arena: &&Arena| {
            let begin = arena.region.pointer(0, 0).addr();
            let offset = pointer.addr().checked_sub(begin);
            offset.is_some_and(|offset| offset < arena.region.len())
        };
        let Some(arena) = arenas.iter().find(inside) else { return DmaReach::Unreachable };
        let offset = pointer.addr() - arena.region.pointer(0, 0).addr();
        let page = |at: usize| {
            let frame = arena.frames.get(at / SharedRegion::HUGE_PAGE_BYTES)?;
            Some(frame + (at % SharedRegion::HUGE_PAGE_BYTES) as u64)
        };
        let pages = (offset..offset + bytes).step_by(PAGE_BYTES).map(page);
        pages.collect::<Option<_>>().map_or(DmaReach::Unreachable, DmaReach::Paged)
    }

    /// Returns the number of bytes of huge pages.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        let arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.iter().map(|arena| arena.region.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::SysfsPci;
    use super::*;

    const HUGE: usize = SharedRegion::HUGE_PAGE_BYTES;

    #[test]
    fn what_fits_into_a_huge_page_is_in_one() {
        assert_eq!(fit_offset(0, HUGE, PAGE_BYTES), Some(0));
        assert_eq!(fit_offset(PAGE_BYTES, HUGE, HUGE), None);
        assert_eq!(fit_offset(PAGE_BYTES, 2 * HUGE, HUGE), Some(HUGE));
        assert_eq!(fit_offset(HUGE - PAGE_BYTES, 2 * HUGE, 2 * PAGE_BYTES), Some(HUGE));
        assert_eq!(fit_offset(HUGE, HUGE, PAGE_BYTES), None, "full");
        // A larger region begins with a huge page.
        assert_eq!(fit_offset(0, 3 * HUGE, 2 * HUGE + PAGE_BYTES), Some(0));
        assert_eq!(fit_offset(PAGE_BYTES, 3 * HUGE, 2 * HUGE), Some(HUGE));
        assert_eq!(fit_offset(PAGE_BYTES, 3 * HUGE, 2 * HUGE + PAGE_BYTES), None);
    }

    /// Creates an allocator with ordinary memory instead of huge pages, at fictitious addresses.
    fn fake_allocator(arenas: &[(usize, &[u64])]) -> HugePageAllocator {
        let frames = PhysicalFrames::open(&SysfsPci::default()).unwrap();
        let arena = |(pages, frames): &(usize, &[u64])| Arena {
            region: SharedRegion::anonymous(pages * HUGE).unwrap(),
            frames: frames.to_vec(),
            used: 0,
        };
        HugePageAllocator { frames, arenas: Mutex::new(arenas.iter().map(arena).collect()) }
    }

    #[test]
    fn regions_are_apart_and_their_pages_are_where_their_huge_pages_are() {
        let memory = fake_allocator(&[(1, &[0x4000_0000]), (2, &[0x8000_0000, 0x1000_0000])]);
        let DmaReach::Paged(pages) = memory.reach(&memory.provide(3 * PAGE_BYTES - 1).unwrap())
        else {
            panic!("nowhere")
        };
        assert_eq!(*pages, [0x4000_0000, 0x4000_1000, 0x4000_2000]);
        let next = memory.provide(PAGE_BYTES).unwrap();
        assert_eq!(memory.reach(&next), DmaReach::Paged([0x4000_3000].into()));
        assert_eq!(next.len(), PAGE_BYTES);
        // Does not fit into the rest of the first huge page: it is in the next one.
        let large = memory.provide(HUGE - PAGE_BYTES).unwrap();
        let DmaReach::Paged(pages) = memory.reach(&large) else { panic!("nowhere") };
        assert_eq!((pages[0], pages.len()), (0x8000_0000, HUGE / PAGE_BYTES - 1));
        let rest = memory.provide(2 * PAGE_BYTES).unwrap();
        assert_eq!(memory.reach(&rest), DmaReach::Paged([0x4000_4000, 0x4000_5000].into()));
        let last = memory.provide(HUGE).unwrap();
        let DmaReach::Paged(pages) = memory.reach(&last) else { panic!("nowhere") };
        assert_eq!(pages[0], 0x1000_0000, "not across two that are not neighbours");
        assert_eq!(memory.bytes(), 3 * HUGE as u64);
        let elsewhere = SharedRegion::anonymous(PAGE_BYTES).unwrap();
        assert_eq!(memory.reach(&elsewhere), DmaReach::Unreachable);
        assert!(matches!(memory.provide(0), Err(HugePageError::Pages(_))));
        assert!(matches!(memory.provide(usize::MAX), Err(HugePageError::Pages(_))));
    }

    #[test]
    fn without_huge_pages_there_is_none() {
        // More than any machine has.
        let memory = fake_allocator(&[]);
        assert!(matches!(memory.provide(1 << 52), Err(HugePageError::Pages(_))));
        assert_eq!(memory.bytes(), 0);
    }
}
