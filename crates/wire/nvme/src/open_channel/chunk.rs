//! [`ChunkDescriptor`]: an entry of the chunk information log page.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// The state of a chunk ([OC20 §2], chunk state machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkState {
    /// Erased: writing starts at its first sector.
    Free,
    /// Written in full, or closed early.
    Closed,
    /// Written up to its write pointer.
    Open,
    /// Bad: neither writable nor readable.
    Offline,
}

impl ChunkState {
    /// Returns the bit in the state byte.
    pub const fn to_bits(self) -> u8 {
        match self {
            ChunkState::Free => 1 << 0,
            ChunkState::Closed => 1 << 1,
            ChunkState::Open => 1 << 2,
            ChunkState::Offline => 1 << 3,
        }
    }

    /// Decodes the state byte; `None` unless exactly one known bit is set.
    pub const fn from_bits(bits: u8) -> Option<ChunkState> {
        match bits {
            0b0001 => Some(ChunkState::Free),
            0b0010 => Some(ChunkState::Closed),
            0b0100 => Some(ChunkState::Open),
            0b1000 => Some(ChunkState::Offline),
            _ => None,
        }
    }
}

/// A chunk descriptor, 32 bytes ([OC20 §3], log page CAh). The log page has the chunks in
/// address order, so that the descriptor of the n-th chunk is at byte 32 · n.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ChunkDescriptor {
    /// State, one bit of [`ChunkState`] (byte 0).
    pub state: u8,
    /// Type: bit 0 sequential write, bit 1 random write, bit 4 its size deviates from the geometry
    /// (byte 1).
    pub kind: u8,
    /// Wear-level index: 0 for a fresh chunk, 255 at the end of its life (byte 2).
    pub wear_index: u8,
    /// Reserved (bytes 7:3).
    pub reserved3: [u8; 5],
    /// Physical address of the first sector (bytes 15:8).
    pub slba: U64,
    /// Number of sectors (bytes 23:16).
    pub cnlb: U64,
    /// Write pointer: sectors written (bytes 31:24).
    pub wp: U64,
}

wire!(ChunkDescriptor, 32);

impl ChunkDescriptor {
    /// Type: sequential write.
    pub const SEQUENTIAL: u8 = 1 << 0;
    /// Type: random write.
    pub const RANDOM: u8 = 1 << 1;
    /// Type: fewer sectors than in the geometry.
    pub const SIZE_DEVIATES: u8 = 1 << 4;

    /// Returns the state, if it is valid.
    pub fn chunk_state(&self) -> Option<ChunkState> {
        ChunkState::from_bits(self.state)
    }

    /// Returns the state of a chunk of `sectors` sectors, and the number of sectors written; 0 if
    /// it is offline.
    ///
    /// # Errors
    /// What contradicts the geometry or the state.
    pub fn checked_state(&self, sectors: u32) -> Result<(ChunkState, u32), String> {
        let unknown =
            || format!("the drive reports state {:#04x}, which does not exist", self.state);
        let state = self.chunk_state().ok_or_else(unknown)?;
        if state == ChunkState::Offline {
            return Ok((state, 0));
        }
        if self.cnlb.get() != u64::from(sectors) {
            return Err(format!("it has {} sectors, but the geometry says {sectors}", self.cnlb));
        }
        let beyond = || format!("its write pointer is {}, but it has {sectors} sectors", self.wp);
        let written = u32::try_from(self.wp.get()).ok().filter(|wp| *wp <= sectors);
        match (state, written.ok_or_else(beyond)?) {
            (ChunkState::Free, written @ 1..) => {
                Err(format!("it is free, but its write pointer is {written}"))
            }
            (state, written) => Ok((state, written)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_the_specification_puts_them() {
        let chunk = ChunkDescriptor {
            state: ChunkState::Open.to_bits(),
            kind: ChunkDescriptor::SEQUENTIAL,
            wear_index: 9,
            slba: 0x10.into(),
            cnlb: 0x20.into(),
            wp: 0x30.into(),
            ..ChunkDescriptor::default()
        };
        let bytes = chunk.as_bytes();
        assert_eq!(bytes[..3], [4, 1, 9]);
        assert_eq!((bytes[8], bytes[16], bytes[24]), (0x10, 0x20, 0x30));
        assert_eq!(ChunkDescriptor::read_from_bytes(bytes), Ok(chunk));
    }

    #[test]
    fn exactly_one_state_at_a_time() {
        for bits in 0..=255u8 {
            match ChunkState::from_bits(bits) {
                Some(state) => assert_eq!(state.to_bits(), bits),
                None => assert!(bits.count_ones() != 1 || bits > 8),
            }
        }
    }
}
