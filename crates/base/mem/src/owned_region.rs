//! [`OwnedRegion`]: memory with a single owner, which can be copied with it.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::SharedRegion;

/// A region that only its owner writes. A clone is a copy in private memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct OwnedRegion(Arc<SharedRegion>);

impl From<Arc<SharedRegion>> for OwnedRegion {
    fn from(region: Arc<SharedRegion>) -> OwnedRegion {
        OwnedRegion(region)
    }
}

impl Clone for OwnedRegion {
    /// # Panics
    /// If there is no address space for another mapping.
    fn clone(&self) -> OwnedRegion {
        let copied = self.0.duplicate();
        OwnedRegion(copied.unwrap_or_else(|e| panic!("no memory for a copy of a region: {e}")))
    }
}

impl Deref for OwnedRegion {
    type Target = SharedRegion;
    #[inline]
    fn deref(&self) -> &SharedRegion {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_is_a_copy() {
        let region = SharedRegion::anonymous(3 * 4096 + 5).unwrap();
        region.write(4090, b"over a page's end");
        region.write(3 * 4096, b"tail");
        let owned = OwnedRegion::from(region);
        let copy = owned.clone();
        owned.fill(0, owned.len(), 7);
        let mut found = [0; 17];
        copy.read(4090, &mut found);
        assert_eq!(&found, b"over a page's end");
        copy.read(3 * 4096 - 12, &mut found);
        assert_eq!(&found, b"\0\0\0\0\0\0\0\0\0\0\0\0tail\0");
        assert_eq!(copy.len(), owned.len());
    }
}
