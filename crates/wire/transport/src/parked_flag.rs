//! [`SharedParkedFlag`] and [`SharedParkedFlagReader`]: a word of shared memory that is set while a
//! runner is parked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use event::{ParkedFlag, ParkedFlagReader};

use mem::{ReadOnlyRegion, SharedRegion};

/// A parked flag that this process writes.
#[derive(Clone, Debug)]
pub struct SharedParkedFlag {
    region: Arc<SharedRegion>,
    offset: usize,
}

impl SharedParkedFlag {
    /// Creates a flag in the word at `offset`.
    ///
    /// # Panics
    /// If the offset is out of range: offsets never come from the other side.
    pub fn new(region: &Arc<SharedRegion>, offset: usize) -> SharedParkedFlag {
        region.atomic_u32(offset);
        SharedParkedFlag { region: region.clone(), offset }
    }
}

impl ParkedFlag for SharedParkedFlag {
    fn set(&self, up: bool) {
        self.region.atomic_u32(self.offset).store(up.into(), Ordering::Relaxed);
    }
}

impl ParkedFlagReader for SharedParkedFlag {
    #[inline]
    fn is_set(&self) -> bool {
        self.region.atomic_u32(self.offset).load(Ordering::Relaxed) != 0
    }
}

/// A parked flag that this process can only read.
#[derive(Clone, Debug)]
pub struct SharedParkedFlagReader {
    view: Arc<ReadOnlyRegion>,
    offset: usize,
}

impl SharedParkedFlagReader {
    /// Creates a reader of the word at `offset`.
    ///
    /// # Panics
    /// If the offset is out of range: offsets never come from the other side.
    pub fn new(view: &Arc<ReadOnlyRegion>, offset: usize) -> SharedParkedFlagReader {
        view.load_u32(offset);
        SharedParkedFlagReader { view: view.clone(), offset }
    }
}

impl ParkedFlagReader for SharedParkedFlagReader {
    #[inline]
    fn is_set(&self) -> bool {
        self.view.load_u32(self.offset) != 0
    }
}
