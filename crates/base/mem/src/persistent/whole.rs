//! Operations on all of a [`PersistentMemory`]. They skip what was never stored, so that they neither
//! allocate memory for it nor take time.

use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{COMPARED_BYTES, PersistentImage, PersistentMemory};
use crate::SharedRegion;

impl PersistentMemory {
    /// Persists everything.
    pub fn persist_all(&self) {
        match &self.images.persistent {
            PersistentImage::Separate(_) => {
                self.stored_ranges().for_each(|range| self.persist(range.start, range.len()));
            }
            PersistentImage::Visible(_) => self.persist(0, self.len()),
        }
    }

    /// Sets everything to zeros, which are persistent.
    pub fn clear(&self) {
        for range in self.stored_ranges() {
            for at in range.clone().step_by(COMPARED_BYTES) {
                let bytes = COMPARED_BYTES.min(range.end - at);
                self.store(at, &[0; COMPARED_BYTES][..bytes]);
            }
            self.persist(range.start, range.len());
        }
    }

    /// Returns the ranges that may have been stored to, of whole lines. In others, both images are
    /// zeros.
    pub(super) fn stored_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        std::iter::successors(self.next_stored(0), |range| self.next_stored(range.end))
    }

    fn next_stored(&self, from: usize) -> Option<Range<usize>> {
        let visible = &self.images.visible;
        let rest = (from < visible.len()).then(|| from..visible.len());
        let Some(file) = visible.backing() else { return rest };
        // The position of the file has no other use.
        let start = match rustix::fs::seek(file, SeekFrom::Data(from as u64)) {
            Ok(start) => start as usize,
            Err(Errno::NXIO) => return None,
            Err(_) => return rest,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start as u64));
        let end = end.map_or(visible.len(), |end| visible.len().min(end as usize));
        (start < end).then_some(start..end)
    }
}

/// Copies a region of zeros and data to one of zeros, without memory for the zeros.
pub(super) fn copy_data(from: &SharedRegion, to: &SharedRegion) {
    let mut segment = [0; COMPARED_BYTES];
    for at in (0..from.len()).step_by(COMPARED_BYTES) {
        let segment = &mut segment[..COMPARED_BYTES.min(from.len() - at)];
        from.read(at, segment);
        if segment.iter().any(|byte| *byte != 0) {
            to.write(at, segment);
        }
    }
}
