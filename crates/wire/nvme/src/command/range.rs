//! [`DsmRange`], [`CopyRange`] and [`LbaStatusDescriptor`]: ranges of sectors, as entries of lists in host memory.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// One range of a Dataset Management command, 16 bytes [NVMe1.4 §6.7].
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
pub struct DsmRange {
    /// Context attributes: access hints, which Sluice's drives ignore (bytes 3:0).
    pub attributes: U32,
    /// Logical blocks, not zero-based (bytes 7:4).
    pub nlb: U32,
    /// First logical block (bytes 15:8).
    pub slba: U64,
}

wire!(DsmRange, 16);

impl DsmRange {
    /// Returns a range of `nlb` blocks from `slba`.
    pub fn new(slba: u64, nlb: u32) -> DsmRange {
        DsmRange { attributes: 0.into(), nlb: nlb.into(), slba: slba.into() }
    }
}

/// A range of blocks in one state, 16 bytes [NVMe1.4 §5.27].
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
pub struct LbaStatusDescriptor {
    /// First logical block (bytes 7:0).
    pub slba: U64,
    /// Logical blocks, not zero-based (bytes 11:8).
    pub nlb: U32,
    /// Reserved (byte 12).
    pub reserved12: u8,
    /// 1 for mapped blocks, 0 for unmapped blocks, which read as zeros (byte 13).
    pub status: u8,
    /// Reserved (bytes 15:14).
    pub reserved14: [u8; 2],
}

wire!(LbaStatusDescriptor, 16);

impl LbaStatusDescriptor {
    /// Returns a descriptor of `nlb` blocks from `slba`.
    pub fn new(slba: u64, nlb: u32, mapped: bool) -> LbaStatusDescriptor {
        LbaStatusDescriptor {
            slba: slba.into(),
            nlb: nlb.into(),
            status: mapped.into(),
            ..LbaStatusDescriptor::default()
        }
    }

    /// Whether the blocks are mapped.
    pub fn is_mapped(&self) -> bool {
        self.status != 0
    }
}

/// A source range of a Copy in format 0, 32 bytes [NVMe2.0, NVM command set §3.2.2].
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
pub struct CopyRange {
    /// Reserved (bytes 7:0).
    pub reserved0: [u8; 8],
    /// First logical block (bytes 15:8).
    pub slba: U64,
    /// Logical blocks, zero-based (bytes 17:16).
    pub nlb: U16,
    /// Reserved (bytes 23:18).
    pub reserved18: [u8; 6],
    /// Expected reference tag of the first block (bytes 27:24).
    pub reference_tag: U32,
    /// Expected application tag, which Sluice's drives do not check (bytes 29:28).
    pub application_tag: U16,
    /// Mask of the application tag (bytes 31:30).
    pub application_mask: U16,
}

wire!(CopyRange, 32);

impl CopyRange {
    /// Returns a range of `nlb` blocks (1 to 65,536) from `slba`.
    pub fn new(slba: u64, nlb: u32) -> CopyRange {
        debug_assert!((1..=1 << 16).contains(&nlb), "{nlb} blocks");
        let nlb = (nlb.wrapping_sub(1) as u16).into();
        CopyRange { slba: slba.into(), nlb, ..CopyRange::default() }
    }

    /// Returns the number of blocks, 1 to 65,536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_the_specification_puts_them() {
        let range = DsmRange::new(0x0102_0304_0506_0708, 0x1112_1314);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 0x14, 0x13, 0x12, 0x11, 8, 7, 6, 5, 4, 3, 2, 1]);
        let run = LbaStatusDescriptor::new(0x0102_0304_0506_0708, 0x1112_1314, true);
        assert_eq!(run.as_bytes(), [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0, 1, 0, 0]);
        assert!(run.is_mapped());
        let source = CopyRange::new(0x0102_0304_0506_0708, 0x1_0000);
        assert_eq!(source.as_bytes()[8..18], [8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xff]);
        assert_eq!((source.blocks(), CopyRange::new(0, 1).blocks()), (65_536, 1));
    }
}
