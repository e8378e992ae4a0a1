//! [`UnitId`]: the identity of a unit of the write buffer, which is also in the token of its program.

use serde::{Deserialize, Serialize};

use crate::ids::{ToIndex, ToU32};

/// Bits of the index in the ring.
const INDEX_BITS: u32 = 26;

/// A write unit of the buffer: its ring and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct UnitId(u32);

impl UnitId {
    /// The unit with this index of a ring (0 host, 1 garbage collection, 2 hot data of the host).
    #[inline]
    pub(crate) fn new(ring: usize, index: u32) -> UnitId {
        debug_assert!(ring < 3 && index < 1 << INDEX_BITS, "unit {index} of ring {ring}");
        UnitId(ring.to_u32() << INDEX_BITS | index)
    }

    /// Decodes the unit from the bits in a token.
    #[inline]
    pub(crate) fn from_raw(raw: u32) -> UnitId {
        UnitId(raw)
    }

    /// Encodes the unit in the 28 bits of a token.
    #[inline]
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn ring(self) -> usize {
        (self.0 >> INDEX_BITS).index()
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_and_index_survive_the_token() {
        for ring in [0, 1, 2] {
            for index in [0, 1, 77, (1 << INDEX_BITS) - 1] {
                let id = UnitId::new(ring, index);
                assert_eq!((id.ring(), id.index()), (ring, index));
                assert_eq!(UnitId::from_raw(id.raw()), id);
                assert!(id.raw() < 1 << 28, "bit 28 names padding");
            }
        }
    }
}
