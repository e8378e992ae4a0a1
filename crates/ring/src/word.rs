//! [`Word`] and [`SeenWord`]: a word of shared memory that says whether somebody sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::{Flag, Sight};

use crate::{Region, View};

/// A word of memory that this process may write to.
#[derive(Clone, Debug)]
pub struct Word {
    region: Arc<Region>,
    offset: usize,
}

impl Word {
    /// The word at `offset`.
    ///
    /// # Panics
    /// When there is none: offsets are the code's own, never the other side's.
    pub fn new(region: &Arc<Region>, offset: usize) -> Word {
        region.half_word(offset);
        Word { region: region.clone(), offset }
    }
}

impl Flag for Word {
    fn raise(&self, up: bool) {
        self.region.half_word(self.offset).store(up.into(), Ordering::Relaxed);
    }
}

impl Sight for Word {
    #[inline]
    fn is_up(&self) -> bool {
        self.region.half_word(self.offset).load(Ordering::Relaxed) != 0
    }
}

/// A word of memory that this process can only read.
#[derive(Clone, Debug)]
pub struct SeenWord {
    view: Arc<View>,
    offset: usize,
}

impl SeenWord {
    /// The word at `offset`.
    ///
    /// # Panics
    /// When there is none: offsets are the code's own, never the other side's.
    pub fn new(view: &Arc<View>, offset: usize) -> SeenWord {
        view.half_word(offset);
        SeenWord { view: view.clone(), offset }
    }
}

impl Sight for SeenWord {
    #[inline]
    fn is_up(&self) -> bool {
        self.view.half_word(self.offset) != 0
    }
}
