//! [`Metadata`]: what a namespace keeps beside the bytes of its blocks (NVMe sections 8.2 and 8.3).

use crate::opcode::io;
use crate::{IdentifyNamespace, Sqe};

/// PRINFO: the controller makes protection information when blocks are written, and checks and takes it off
/// when they are read (CDW12 bit 29).
const PRACT: u32 = 1 << 29;
/// PRINFO: the guard is checked (CDW12 bit 28).
const CHECK_GUARD: u32 = 1 << 28;
/// PRINFO: the reference tag is checked (CDW12 bit 26).
const CHECK_REFERENCE: u32 = 1 << 26;
/// Bytes of protection information, whose guard has 16 bits.
const PROTECTION_BYTES: u16 = 8;

/// How a namespace protects its blocks (DPS bits 2:0): with a guard, and with a reference tag that
/// counts blocks or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionType {
    /// The reference tag is the low half of the block's address.
    Type1,
    /// The same, from a beginning that the host chooses.
    Type2,
    /// The reference tag is the host's.
    Type3,
}

/// Where metadata of blocks goes that are read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataTransfer {
    /// Nowhere: it is protection information and nothing else, which the controller keeps to itself if it
    /// is told to ([`MetadataFormat::set_protection_info`]).
    ControllerOnly,
    /// To a buffer of its own ([`Sqe::mptr`]), in one piece.
    SeparateBuffer,
    /// Behind the bytes of each block, in the same buffer.
    ExtendedLba,
}

/// What a namespace keeps beside its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataFormat {
    /// Bytes per block.
    pub bytes: u16,
    /// Where they go.
    pub transfer: MetadataTransfer,
    /// What of them is protection information.
    pub protection: Option<ProtectionType>,
}

impl MetadataFormat {
    /// That of a namespace, if it has any.
    pub fn from_namespace(namespace: &IdentifyNamespace) -> Option<MetadataFormat> {
        let bytes = Some(namespace.format().ms.get()).filter(|bytes| *bytes > 0)?;
        let protection = match namespace.dps & 7 {
            1 => Some(ProtectionType::Type1),
            2 => Some(ProtectionType::Type2),
            3 => Some(ProtectionType::Type3),
            _ => None,
        };
        let place = match (protection, bytes, namespace.flbas & 0x10 != 0) {
            (Some(_), PROTECTION_BYTES, _) => MetadataTransfer::ControllerOnly,
            (.., true) => MetadataTransfer::ExtendedLba,
            (.., false) => MetadataTransfer::SeparateBuffer,
        };
        Some(MetadataFormat { bytes, transfer: place, protection })
    }

    /// Bytes of the data buffer per block that are not the block's.
    pub fn extended_lba_bytes(&self) -> u32 {
        match self.transfer {
            MetadataTransfer::ExtendedLba => self.bytes.into(),
            MetadataTransfer::ControllerOnly | MetadataTransfer::SeparateBuffer => 0,
        }
    }

    /// Has the controller make, check and take off protection information of a read, a write or a Write
    /// Zeroes, if there is any; other commands stay as they are. Reference tags are the low halves of
    /// addresses, as Linux has them.
    pub fn set_protection_info(&self, sqe: &mut Sqe) {
        let Some(protection) = self.protection else { return };
        let counts = matches!(protection, ProtectionType::Type1 | ProtectionType::Type2);
        let checks = match sqe.opcode {
            io::READ | io::WRITE if counts => CHECK_GUARD | CHECK_REFERENCE,
            io::READ | io::WRITE => CHECK_GUARD,
            // Of zeros nothing is checked (section 6.17: PRCHK is zero).
            io::WRITE_ZEROES => 0,
            _ => return,
        };
        sqe.cdw12 |= PRACT | checks;
        if counts {
            // The reference tag of the first block.
            sqe.cdw14 = (sqe.slba() as u32).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LbaFormat;

    fn format_of(ms: u16, flbas: u8, dps: u8) -> Option<MetadataFormat> {
        let mut namespace = IdentifyNamespace::zeroed();
        (namespace.flbas, namespace.dps) = (flbas, dps);
        namespace.lbaf[usize::from(flbas & 0xf)] = LbaFormat { ms: ms.into(), lbads: 9, rp: 0 };
        MetadataFormat::from_namespace(&namespace)
    }

    #[test]
    fn formats_are_told_apart() {
        let found = |ms, flbas, dps| format_of(ms, flbas, dps).map(|m| (m.transfer, m.protection));
        assert_eq!(found(0, 0x13, 1), None, "no bytes");
        assert_eq!(found(8, 0, 0), Some((MetadataTransfer::SeparateBuffer, None)));
        assert_eq!(found(64, 0x12, 0), Some((MetadataTransfer::ExtendedLba, None)));
        // Bit 3 says where in the metadata it is.
        for (dps, kind) in
            [(1, ProtectionType::Type1), (10, ProtectionType::Type2), (3, ProtectionType::Type3)]
        {
            for flbas in [1, 0x11] {
                assert_eq!(
                    found(8, flbas, dps),
                    Some((MetadataTransfer::ControllerOnly, Some(kind)))
                );
            }
            assert_eq!(found(16, 0x10, dps), Some((MetadataTransfer::ExtendedLba, Some(kind))));
            assert_eq!(found(16, 0, dps), Some((MetadataTransfer::SeparateBuffer, Some(kind))));
        }
        assert_eq!(format_of(16, 0x10, 0).unwrap().extended_lba_bytes(), 16);
        assert_eq!(format_of(16, 0, 0).unwrap().extended_lba_bytes(), 0);
    }

    #[test]
    fn commands_say_what_is_to_be_checked() {
        let marked = |dps| {
            let mut sqe = Sqe::write(1, 0x1_2345_6789, 8, true);
            format_of(8, 0, dps).unwrap().set_protection_info(&mut sqe);
            (sqe.cdw12.get(), sqe.cdw14.get())
        };
        let plain = 7 | 1 << 30;
        assert_eq!(marked(0), (plain, 0));
        assert_eq!(marked(1), (plain | 0b1101 << 26, 0x2345_6789));
        assert_eq!(marked(2), marked(1));
        assert_eq!(marked(3), (plain | 0b1100 << 26, 0));
        let mut zeroes = Sqe::write_zeroes(1, 5, 1, false);
        format_of(8, 0, 1).unwrap().set_protection_info(&mut zeroes);
        assert_eq!((zeroes.cdw12.get(), zeroes.cdw14.get()), (1 << 29, 5));
        let mut flush = Sqe::flush(1);
        format_of(8, 0, 1).unwrap().set_protection_info(&mut flush);
        assert_eq!((flush.cdw12.get(), flush.cdw14.get()), (0, 0));
    }
}
