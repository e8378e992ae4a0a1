//! [`SharedParkedFlag`] and [`SharedParkedFlagReader`]: a word of shared memory that says whether somebody sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::{ParkedFlag, ParkedFlagReader};

use crate::{ReadOnlyRegion, SharedRegion};

/// A word of memory that this process may write to.
#[derive(Clone, Debug)]
pub struct SharedParkedFlag {
    region: Arc<SharedRegion>,
    offset: usize,
}

impl SharedParkedFlag {
    /// The word at `offset`.
    ///
    /// # Panics
    /// When there is none: offsets are the code's own, never the other side's.
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

/// A word of memory that this process can only read.
#[derive(Clone, Debug)]
pub struct SharedParkedFlagReader {
    view: Arc<ReadOnlyRegion>,
    offset: usize,
}

impl SharedParkedFlagReader {
    /// The word at `offset`.
    ///
    /// # Panics
    /// When there is none: offsets are the code's own, never the other side's.
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
