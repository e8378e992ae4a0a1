//! [`ProtectionInfo`]: the end-to-end protection information of a logical block, with a 16-bit guard,
//! and [`ProtectionRequest`]: the checks that a command asks for [NVMe1.4 §8.3].

use crate::metadata::{CHECK_APPLICATION, CHECK_GUARD, CHECK_REFERENCE, PRACT};
use crate::{Sqe, Status};

/// Polynomial of the guard, CRC-16 T10-DIF: 8BB7h, initial value 0, not reflected.
const POLYNOMIAL: u16 = 0x8bb7;

/// Bytes that one step of [`guard_of`] processes.
const STEP_BYTES: usize = 8;

/// `TABLES[i][byte]` is the CRC of the byte followed by `i` zero bytes.
const TABLES: [[u16; 256]; STEP_BYTES] = tables();

const fn tables() -> [[u16; 256]; STEP_BYTES] {
    let mut tables = [[0; 256]; STEP_BYTES];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < STEP_BYTES {
        let mut byte = 0;
        while byte < 256 {
            let crc: u16 = tables[table - 1][byte];
            tables[table][byte] = crc << 8 ^ tables[0][(crc >> 8) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Returns the guard of a block's data: its CRC-16 T10-DIF.
pub fn guard_of(data: &[u8]) -> u16 {
    let (steps, rest) = data.as_chunks::<STEP_BYTES>();
    let crc = steps.iter().fold(0, |crc: u16, step| {
        let [high, low] = crc.to_be_bytes();
        let mut next = TABLES[7][usize::from(step[0] ^ high)];
        next ^= TABLES[6][usize::from(step[1] ^ low)];
        step[2..]
            .iter()
            .zip(TABLES[..6].iter().rev())
            .fold(next, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| crc << 8 ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// The protection information of a logical block, 8 bytes of metadata [NVMe1.4 §8.3.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionInfo {
    /// CRC of the data ([`guard_of`]; bytes 1:0, big endian).
    pub guard: u16,
    /// Value of the host (bytes 3:2, big endian). `ffffh` disables the checks of the block.
    pub application_tag: u16,
    /// With type 1, the low half of the block's address (bytes 7:4, big endian).
    pub reference_tag: u32,
}

impl ProtectionInfo {
    /// Bytes of the encoding.
    pub const BYTES: usize = 8;

    /// The protection information of a block that was never written or was deallocated: all bytes are
    /// FFh, and nothing is checked.
    pub const UNCHECKED: ProtectionInfo =
        ProtectionInfo { guard: 0xffff, application_tag: 0xffff, reference_tag: u32::MAX };

    /// Returns the protection information of a block with this data.
    pub fn of_data(data: &[u8], application_tag: u16, reference_tag: u32) -> ProtectionInfo {
        ProtectionInfo { guard: guard_of(data), application_tag, reference_tag }
    }

    /// Decodes the bytes.
    pub fn from_bytes(bytes: [u8; ProtectionInfo::BYTES]) -> ProtectionInfo {
        let [g0, g1, a0, a1, reference @ ..] = bytes;
        ProtectionInfo {
            guard: u16::from_be_bytes([g0, g1]),
            application_tag: u16::from_be_bytes([a0, a1]),
            reference_tag: u32::from_be_bytes(reference),
        }
    }

    /// Encodes the bytes.
    pub fn to_bytes(self) -> [u8; ProtectionInfo::BYTES] {
        let [g0, g1] = self.guard.to_be_bytes();
        let [a0, a1] = self.application_tag.to_be_bytes();
        let [r0, r1, r2, r3] = self.reference_tag.to_be_bytes();
        [g0, g1, a0, a1, r0, r1, r2, r3]
    }

    /// Whether the block is checked: its application tag is not `ffffh`.
    pub fn is_checked(self) -> bool {
        self.application_tag != u16::MAX
    }
}

/// A check of protection information that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionError {
    /// The guard is not that of the data.
    Guard,
    /// The application tag is not the expected one.
    ApplicationTag,
    /// The reference tag is not that of the block.
    ReferenceTag,
}

impl ProtectionError {
    /// Returns the status of a command that meets the error.
    pub fn status(self) -> Status {
        match self {
            ProtectionError::Guard => Status::GUARD_CHECK,
            ProtectionError::ApplicationTag => Status::APPLICATION_TAG_CHECK,
            ProtectionError::ReferenceTag => Status::REFERENCE_TAG_CHECK,
        }
    }
}

/// The fields of a command that are about protection information: PRINFO (CDW12), the reference tag
/// (CDW14), and the application tag and its mask (CDW15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectionRequest {
    /// PRACT: the controller generates the information of a write, and strips that of a read. If not,
    /// the host sends and receives it.
    pub is_generated: bool,
    /// PRCHK bit 2: the guard is checked.
    pub checks_guard: bool,
    /// PRCHK bit 1: the application tag is checked.
    pub checks_application_tag: bool,
    /// PRCHK bit 0: the reference tag is checked.
    pub checks_reference_tag: bool,
    /// Application tag, to be expected or written.
    pub application_tag: u16,
    /// Bits of the application tag that are compared.
    pub application_mask: u16,
    /// Reference tag of the first block.
    pub reference_tag: u32,
}

impl ProtectionRequest {
    /// Returns the fields of an entry. Those of a Copy are of its destination.
    pub fn from_sqe(sqe: &Sqe) -> ProtectionRequest {
        ProtectionRequest::from_fields(sqe.cdw12.get(), sqe)
    }

    /// Returns what a Copy asks of its sources, in bits 15:12 of CDW12 [NVMe2.0, NVM command set
    /// §3.2.2]. Tags are in the source ranges instead.
    pub fn of_copy_sources(sqe: &Sqe) -> ProtectionRequest {
        ProtectionRequest::from_fields(sqe.cdw12.get() << 14, sqe)
    }

    fn from_fields(prinfo: u32, sqe: &Sqe) -> ProtectionRequest {
        let tags = sqe.cdw15.get();
        ProtectionRequest {
            is_generated: prinfo & PRACT != 0,
            checks_guard: prinfo & CHECK_GUARD != 0,
            checks_application_tag: prinfo & CHECK_APPLICATION != 0,
            checks_reference_tag: prinfo & CHECK_REFERENCE != 0,
            application_tag: tags as u16,
            application_mask: (tags >> 16) as u16,
            reference_tag: sqe.cdw14.get(),
        }
    }

    /// Whether any check is requested.
    pub fn has_checks(&self) -> bool {
        self.checks_guard || self.checks_application_tag || self.checks_reference_tag
    }

    /// Checks the protection information of a block with this data and the reference tag
    /// `reference_tag`.
    ///
    /// # Errors
    /// The first of the requested checks that fails: guard, application tag, reference tag.
    pub fn check(
        &self,
        info: ProtectionInfo,
        data: &[u8],
        reference_tag: u32,
    ) -> Result<(), ProtectionError> {
        let differs = (info.application_tag ^ self.application_tag) & self.application_mask != 0;
        if !info.is_checked() {
            Ok(())
        } else if self.checks_guard && info.guard != guard_of(data) {
            Err(ProtectionError::Guard)
        } else if self.checks_application_tag && differs {
            Err(ProtectionError::ApplicationTag)
        } else if self.checks_reference_tag && info.reference_tag != reference_tag {
            Err(ProtectionError::ReferenceTag)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    // guarantee: B-95

    use super::*;

    /// The vectors of SBC-3, table "CRC test vectors", and that of the CRC catalogue.
    #[test]
    fn guards_are_those_of_the_published_vectors() {
        let incrementing: Vec<u8> = (0..32).collect();
        let decrementing: Vec<u8> = (0..32).map(|i| 0xff - i).collect();
        let mut two = [0; 32];
        two[..2].fill(0xff);
        assert_eq!(guard_of(&[0; 32]), 0x0000);
        assert_eq!(guard_of(&[0xff; 32]), 0xa293);
        assert_eq!(guard_of(&incrementing), 0x0224);
        assert_eq!(guard_of(&two), 0x21b8);
        assert_eq!(guard_of(&decrementing), 0xa0b7);
        assert_eq!(guard_of(b"123456789"), 0xd0db);
    }

    #[test]
    fn steps_equal_single_bytes() {
        let data: Vec<u8> = (0..4096_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in [0, 1, 7, 8, 9, 64, 511, 512, 4096] {
            let slow = data[..len].iter().fold(0_u16, |crc, byte| {
                (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
                    0 => crc << 1,
                    _ => crc << 1 ^ POLYNOMIAL,
                })
            });
            assert_eq!(guard_of(&data[..len]), slow, "{len} bytes");
        }
    }

    #[test]
    fn bytes_are_where_the_specification_puts_them() {
        let info =
            ProtectionInfo { guard: 0x0102, application_tag: 0x0304, reference_tag: 0x0506_0708 };
        assert_eq!(info.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ProtectionInfo::from_bytes(info.to_bytes()), info);
        assert_eq!(ProtectionInfo::UNCHECKED.to_bytes(), [0xff; 8]);
    }

    #[test]
    fn requests_are_read_from_an_entry() {
        let mut sqe = Sqe::write(1, 9, 1, true);
        assert_eq!(ProtectionRequest::from_sqe(&sqe), ProtectionRequest::default());
        sqe.cdw12 |= 0b1010 << 26 | 0b1101 << 12;
        (sqe.cdw14, sqe.cdw15) = (0x1234_5678.into(), 0xff00_abcd.into());
        let request = ProtectionRequest {
            is_generated: true,
            checks_guard: false,
            checks_application_tag: true,
            checks_reference_tag: false,
            application_tag: 0xabcd,
            application_mask: 0xff00,
            reference_tag: 0x1234_5678,
        };
        assert_eq!(ProtectionRequest::from_sqe(&sqe), request);
        let sources = ProtectionRequest::of_copy_sources(&sqe);
        assert!(sources.is_generated && sources.checks_guard && sources.checks_reference_tag);
        assert!(!sources.checks_application_tag && sources.has_checks());
    }

    #[test]
    fn checks_fail_in_order_and_not_if_they_are_disabled() {
        let data = [7; 512];
        let good = ProtectionInfo::of_data(&data, 0x1234, 9);
        let all = ProtectionRequest {
            checks_guard: true,
            checks_application_tag: true,
            checks_reference_tag: true,
            application_tag: 0x12ff,
            application_mask: 0xff00,
            ..ProtectionRequest::default()
        };
        assert_eq!(all.check(good, &data, 9), Ok(()));
        let bad = ProtectionInfo { guard: !good.guard, application_tag: 0, reference_tag: 8 };
        assert_eq!(all.check(bad, &data, 9), Err(ProtectionError::Guard));
        let no_guard = ProtectionRequest { checks_guard: false, ..all };
        assert_eq!(no_guard.check(bad, &data, 9), Err(ProtectionError::ApplicationTag));
        let only_reference = ProtectionRequest { checks_application_tag: false, ..no_guard };
        assert_eq!(only_reference.check(bad, &data, 9), Err(ProtectionError::ReferenceTag));
        assert_eq!(ProtectionRequest::default().check(bad, &data, 9), Ok(()));
        let escaped = ProtectionInfo { application_tag: 0xffff, ..bad };
        assert_eq!(all.check(escaped, &data, 9), Ok(()));
        let statuses = [
            ProtectionError::Guard,
            ProtectionError::ApplicationTag,
            ProtectionError::ReferenceTag,
        ];
        assert_eq!(statuses.map(|error| error.status().to_bits()), [0x282, 0x283, 0x284]);
    }
}
