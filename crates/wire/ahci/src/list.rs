//! Command list and command table: the descriptions of commands in host memory [AHCI1.3 §4.2.2,
//! §4.2.3].
//!
//! Section numbers are those of AHCI 1.3.1.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An entry of a command list, which has 32 (section 4.2.2).
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
pub struct CommandHeader {
    /// DW 0 bits 15:0: CFL in 4:0, A 5, W 6, P 7, R 8, B 9, C 10, PMP 15:12.
    pub flags: U16,
    /// DW 0 bits 31:16, PRDTL: entries of the physical region descriptor table.
    pub prdtl: U16,
    /// DW 1, PRDBC: bytes transferred, written by the controller; not maintained for queued
    /// commands.
    pub prdbc: U32,
    /// DW 2 and 3, CTBA and CTBAU: address of the command table, 128-byte aligned.
    pub ctba: U64,
    /// DW 4 to 7, reserved.
    pub reserved: [U32; 4],
}

impl CommandHeader {
    /// Size of a header in bytes.
    pub const BYTES: usize = 32;
    /// Alignment of a command list in memory (PxCLB).
    pub const LIST_ALIGN: u64 = 1024;
    /// W, in [`flags`](CommandHeader::flags): data goes to the drive.
    pub const WRITE: u16 = 1 << 6;
    /// C: the controller clears BSY after it has sent the FIS; for software resets only.
    pub const CLEAR_BUSY: u16 = 1 << 10;
    /// A: an ATAPI command.
    pub const ATAPI: u16 = 1 << 5;

    /// Returns the header of a command with a register FIS, whose table at `table` has `regions`
    /// regions.
    pub fn new(table: u64, write: bool, regions: u16) -> CommandHeader {
        let length = (super::RegisterH2d::BYTES / 4) as u16;
        CommandHeader {
            flags: (length | if write { CommandHeader::WRITE } else { 0 }).into(),
            prdtl: regions.into(),
            ctba: table.into(),
            ..CommandHeader::default()
        }
    }

    /// Returns CFL, the length of the command FIS in double words; 2 to 16 are legal.
    pub fn fis_dwords(&self) -> u16 {
        self.flags.get() & 0x1f
    }

    /// Whether W is set: data goes to the drive.
    pub fn is_write(&self) -> bool {
        self.flags.get() & CommandHeader::WRITE != 0
    }
}

/// Offsets in a command table (section 4.2.3).
#[derive(Clone, Copy, Debug)]
pub struct CommandTable;

impl CommandTable {
    /// CFIS, the command FIS: up to 64 bytes.
    pub const CFIS: usize = 0x00;
    /// Offset of the physical region descriptors.
    pub const PRDT: usize = 0x80;
    /// Alignment in memory in bytes.
    pub const ALIGN: u64 = 128;

    /// Returns the size in bytes of a table with `regions` regions.
    pub const fn bytes(regions: usize) -> usize {
        CommandTable::PRDT + regions * PrdtEntry::BYTES
    }
}

/// A physical region descriptor (section 4.2.3.3).
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
pub struct PrdtEntry {
    /// DW 0 and 1, DBA and DBAU: address; bit 0 is 0.
    pub dba: U64,
    /// DW 2, reserved.
    pub reserved: U32,
    /// DW 3: DBC in bits 21:0, number of bytes minus one, with bit 0 set; I, interrupt on
    /// completion, in bit 31.
    pub dbc: U32,
}

impl PrdtEntry {
    /// Size of an entry in bytes.
    pub const BYTES: usize = 16;
    /// Maximum size of a region in bytes.
    pub const BYTES_MAX: u32 = 1 << 22;

    /// Returns a descriptor of `bytes` bytes (even, 2 to [`BYTES_MAX`](PrdtEntry::BYTES_MAX)) at
    /// `address` (even).
    pub fn new(address: u64, bytes: u32) -> PrdtEntry {
        let dbc = bytes.wrapping_sub(1) & (PrdtEntry::BYTES_MAX - 1);
        PrdtEntry { dba: address.into(), reserved: 0.into(), dbc: dbc.into() }
    }

    /// Returns the size of the region in bytes; odd sizes are illegal.
    pub fn bytes(&self) -> u32 {
        (self.dbc.get() & (PrdtEntry::BYTES_MAX - 1)) + 1
    }

    /// Whether address and size are even, as required.
    pub fn is_legal(&self) -> bool {
        self.dba.get().is_multiple_of(2) && self.bytes().is_multiple_of(2)
    }
}

const _: () = assert!(size_of::<CommandHeader>() == CommandHeader::BYTES);
const _: () = assert!(size_of::<CommandHeader>() * super::COMMAND_SLOTS_MAX == 1024);
const _: () = assert!(size_of::<PrdtEntry>() == PrdtEntry::BYTES);
// A table with 168 regions is a multiple of the alignment.
const _: () = assert!(CommandTable::bytes(168).is_multiple_of(CommandTable::ALIGN as usize));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_laid_out_as_section_4_2_2_says() {
        let header = CommandHeader::new(0x1_2345_6780, true, 3);
        let bytes = header.as_bytes();
        assert_eq!(bytes[..4], [5 | 0x40, 0, 3, 0], "CFL 5, W, PRDTL 3");
        assert_eq!(bytes[8..16], [0x80, 0x67, 0x45, 0x23, 1, 0, 0, 0]);
        assert_eq!((header.fis_dwords(), header.is_write()), (5, true));
        assert!(!CommandHeader::new(0, false, 0).is_write());
    }

    #[test]
    fn a_region_counts_from_zero() {
        let region = PrdtEntry::new(0x1000, 512);
        assert_eq!(region.as_bytes()[12..], [0xff, 1, 0, 0]);
        assert_eq!((region.bytes(), region.is_legal()), (512, true));
        assert_eq!(PrdtEntry::new(0, PrdtEntry::BYTES_MAX).bytes(), PrdtEntry::BYTES_MAX);
        assert!(!PrdtEntry::new(1, 512).is_legal());
        assert!(!PrdtEntry::new(0, 511).is_legal());
        let odd = PrdtEntry { dbc: 0xffff_ffff.into(), ..PrdtEntry::default() };
        assert_eq!(
            odd.bytes(),
            PrdtEntry::BYTES_MAX,
            "reserved bits and I are no part of the count"
        );
    }
}
