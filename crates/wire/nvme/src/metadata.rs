//! [`MetadataFormat`]: the metadata of a namespace's blocks, and end-to-end protection [NVMe1.4
//! §8.2, §8.3].

use crate::opcode::io;
use crate::{IdentifyNamespace, Sqe};

/// PRINFO: the controller generates protection information on writes, and checks and strips it on
/// reads (CDW12 bit 29).
pub(crate) const PRACT: u32 = 1 << 29;
/// PRINFO: check the guard (CDW12 bit 28).
pub(crate) const CHECK_GUARD: u32 = 1 << 28;
/// PRINFO: check the reference tag (CDW12 bit 26).
pub(crate) const CHECK_REFERENCE: u32 = 1 << 26;
/// PRINFO: check the application tag (CDW12 bit 27).
pub(crate) const CHECK_APPLICATION: u32 = 1 << 27;
/// Size in bytes of protection information with a 16-bit guard.
const PROTECTION_BYTES: u16 = 8;

/// The end-to-end protection type of a namespace (DPS bits 2:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionType {
    /// Type 1: the reference tag is the low half of the block address.
    Type1,
    /// Type 2: the reference tag counts from an initial value of the host.
    Type2,
    /// Type 3: the reference tag is defined by the host.
    Type3,
}

/// The location of the metadata in a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataTransfer {
    /// Not transferred: the metadata is only protection information, which the controller generates
    /// and strips if requested ([`MetadataFormat::set_protection_info`]).
    ControllerOnly,
    /// In a separate contiguous buffer ([`Sqe::mptr`]).
    SeparateBuffer,
    /// After the data of each block, in the data buffer.
    ExtendedLba,
}

/// The metadata format of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataFormat {
    /// Metadata bytes per block.
    pub bytes: u16,
    /// Location in a read or write.
    pub transfer: MetadataTransfer,
    /// Type of protection information, if enabled.
    pub protection: Option<ProtectionType>,
}

impl MetadataFormat {
    /// Returns the metadata format of a namespace, if it has metadata.
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

    /// Returns the bytes per block in the data buffer that are metadata.
    pub fn extended_lba_bytes(&self) -> u32 {
        match self.transfer {
            MetadataTransfer::ExtendedLba => self.bytes.into(),
            MetadataTransfer::ControllerOnly | MetadataTransfer::SeparateBuffer => 0,
        }
    }

    /// Requests that the controller generates, checks and strips protection information, if
    /// enabled, in a Read, a Write or a Write Zeroes. Other commands do not change. Reference tags
    /// are the low halves of addresses, as in Linux.
    pub fn set_protection_info(&self, sqe: &mut Sqe) {
        let Some(protection) = self.protection else { return };
        let counts = matches!(protection, ProtectionType::Type1 | ProtectionType::Type2);
        let checks = match sqe.opcode {
            io::READ | io::WRITE if counts => CHECK_GUARD | CHECK_REFERENCE,
            io::READ | io::WRITE => CHECK_GUARD,
            // Write Zeroes checks nothing (section 6.17: PRCHK is zero).
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
        // Bit 3 is the position in the metadata.
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
