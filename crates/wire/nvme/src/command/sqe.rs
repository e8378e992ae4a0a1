//! [`Sqe`]: the submission queue entry.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A submission queue entry, 64 bytes, little endian, as a controller fetches it [NVMe1.4 fig. 105].
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// Opcode (CDW0 bits 7:0).
    pub opcode: u8,
    /// Fused operation and PRP-or-SGL selection, PSDT (CDW0 bits 15:8).
    pub flags: u8,
    /// Command identifier (CDW0 bits 31:16).
    pub cid: zerocopy::byteorder::little_endian::U16,
    /// Namespace identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer: I/O virtual address of the out-of-band bytes of all sectors, contiguous.
    pub mptr: U64,
    /// Data pointer: two PRP entries, or one SGL descriptor.
    pub dptr: [U64; 2],
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Sqe>() == 64);

/// PSDT: the data pointer is an SGL (CDW0 bits 15:14 = 01b).
const FLAG_SGL: u8 = 0x40;
const FLAG_PSDT: u8 = 0xc0;

/// The data pointer of an entry, before its addresses are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// Two physical region page (PRP) entries [NVMe1.4 §4.3]: the second is a page, or a list
    /// of pages, depending on the transfer length.
    Prp(u64, u64),
    /// One scatter-gather descriptor [NVMe1.4 §4.4].
    Sgl(SglDescriptor),
    /// PSDT has a reserved value.
    Reserved,
}

/// The scatter-gather descriptors that Sluice's drives accept ([NVMe1.4 fig. 115] and following).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglDescriptor {
    /// `length` bytes at `address`.
    DataBlock {
        /// I/O virtual address.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Bit Bucket: read data is discarded, write data is undefined, and nothing is transferred.
    BitBucket {
        /// Bytes.
        length: u32,
    },
    /// A segment of further descriptors, 16 bytes each, at `address`.
    Segment {
        /// I/O virtual address.
        address: u64,
        /// Bytes of descriptors.
        length: u32,
        /// Whether no further segment follows.
        last: bool,
    },
    /// Any other type.
    Unsupported(u8),
}

impl SglDescriptor {
    /// Decodes the 16 bytes of a descriptor given as two little-endian words.
    #[inline]
    pub fn decode(words: [u64; 2]) -> SglDescriptor {
        let (address, length, id) = (words[0], words[1] as u32, (words[1] >> 56) as u8);
        match id >> 4 {
            0 if id & 0xf == 0 => SglDescriptor::DataBlock { address, length },
            1 => SglDescriptor::BitBucket { length },
            2 => SglDescriptor::Segment { address, length, last: false },
            3 => SglDescriptor::Segment { address, length, last: true },
            _ => SglDescriptor::Unsupported(id),
        }
    }

    /// Encodes a descriptor as two little-endian words.
    #[inline]
    pub fn encode(self) -> [u64; 2] {
        let word = |length: u32, id: u8| u64::from(length) | u64::from(id) << 56;
        match self {
            SglDescriptor::DataBlock { address, length } => [address, word(length, 0)],
            SglDescriptor::BitBucket { length } => [0, word(length, 0x10)],
            SglDescriptor::Segment { address, length, last } => {
                [address, word(length, if last { 0x30 } else { 0x20 })]
            }
            SglDescriptor::Unsupported(id) => [0, word(0, id)],
        }
    }
}

impl Sqe {
    /// Creates an entry with an opcode, a namespace and zeros.
    #[inline]
    pub fn new(opcode: u8, nsid: u32) -> Sqe {
        Sqe { opcode, nsid: nsid.into(), ..Sqe::default() }
    }

    /// Returns the data pointer.
    #[inline]
    pub fn data(&self) -> DataPointer {
        let words = [self.dptr[0].get(), self.dptr[1].get()];
        match self.flags & FLAG_PSDT {
            0 => DataPointer::Prp(words[0], words[1]),
            // 10b differs from 01b only in the metadata pointer, which must be a buffer.
            FLAG_SGL => DataPointer::Sgl(SglDescriptor::decode(words)),
            _ => DataPointer::Reserved,
        }
    }

    /// Sets the data pointer to two PRP entries.
    #[inline]
    pub fn set_prp(&mut self, prp1: u64, prp2: u64) {
        self.flags &= !FLAG_PSDT;
        self.dptr = [prp1.into(), prp2.into()];
    }

    /// Sets the data pointer to one SGL descriptor.
    #[inline]
    pub fn set_sgl(&mut self, descriptor: SglDescriptor) {
        self.flags = self.flags & !FLAG_PSDT | FLAG_SGL;
        let [a, b] = descriptor.encode();
        self.dptr = [a.into(), b.into()];
    }

    /// Returns the 64-bit value in command dwords 10 (low) and 11 (high): a starting LBA, a
    /// physical page address, or the address of a list of these.
    #[inline]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// Sets command dwords 10 and 11.
    #[inline]
    pub fn set_slba(&mut self, value: u64) {
        self.cdw10 = (value as u32).into();
        self.cdw11 = ((value >> 32) as u32).into();
    }

    /// Encodes the entry as eight 64-bit words, for a ring.
    #[inline]
    pub fn to_words(self) -> [u64; 8] {
        zerocopy::transmute!(self)
    }

    /// Decodes eight 64-bit words of a ring.
    #[inline]
    pub fn from_words(words: [u64; 8]) -> Sqe {
        zerocopy::transmute!(words)
    }
}

impl std::fmt::Debug for Sqe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Sqe {{ opcode: {:#04x}, cid: {}, nsid: {}, data: {:x?}, mptr: {:#x}, \
             cdw10..15: [{:#x}, {:#x}, {:#x}, {:#x}, {:#x}, {:#x}] }}",
            self.opcode,
            self.cid,
            self.nsid,
            self.data(),
            self.mptr,
            self.cdw10,
            self.cdw11,
            self.cdw12,
            self.cdw13,
            self.cdw14,
            self.cdw15,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_the_specification_puts_them() {
        let mut sqe = Sqe::new(0x92, 1);
        sqe.cid = 0xbeef.into();
        sqe.set_slba(0x1122_3344_5566_7788);
        sqe.cdw12 = 7.into();
        sqe.set_prp(0xaaaa_0000, 0xbbbb_0000);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[0], 0x92);
        assert_eq!(bytes[2..4], [0xef, 0xbe]);
        assert_eq!(bytes[4..8], [1, 0, 0, 0]);
        assert_eq!(bytes[24..28], [0, 0, 0xaa, 0xaa]);
        assert_eq!(bytes[40..48], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[48], 7);
        assert_eq!(Sqe::from_words(sqe.to_words()), sqe);
    }

    #[test]
    fn data_pointers_survive_the_wire() {
        let mut sqe = Sqe::default();
        for d in [
            SglDescriptor::DataBlock { address: 0x1000, length: 4096 },
            SglDescriptor::BitBucket { length: 65536 },
            SglDescriptor::Segment { address: 0x2000, length: 32, last: true },
            SglDescriptor::Segment { address: 0x2000, length: 32, last: false },
        ] {
            sqe.set_sgl(d);
            assert_eq!(sqe.data(), DataPointer::Sgl(d));
        }
        sqe.set_prp(1, 2);
        assert_eq!(sqe.data(), DataPointer::Prp(1, 2));
        sqe.flags = 0xc0;
        assert_eq!(sqe.data(), DataPointer::Reserved);
    }
}
