//! [`Seal`]: the CRC-32C of a stored structure; [`SealedHeader`]: a magic number, a version and a
//! seal. The checksum is stored little endian.

use std::ops::Range;

use crate::{put_at, u16_at, u32_at};

/// Bytes of the magic number of a [`SealedHeader`].
const MAGIC_BYTES: usize = 8;
/// Bytes of a seal.
const SEAL_BYTES: usize = 4;

/// Where the checksum of a structure is, and which bytes it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    offset: usize,
    covers: Coverage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    /// All bytes before the checksum.
    Before,
    /// All bytes behind the checksum.
    Behind,
    /// All bytes, with zeros in place of the checksum.
    All,
}

/// A checksum that does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealError {
    /// The stored checksum.
    pub found: u32,
    /// The checksum of the stored bytes.
    pub computed: u32,
}

impl Seal {
    /// A checksum at `offset` of all bytes before it.
    pub const fn of_bytes_before(offset: usize) -> Seal {
        Seal { offset, covers: Coverage::Before }
    }

    /// A checksum at `offset` of all bytes behind it.
    pub const fn of_bytes_behind(offset: usize) -> Seal {
        Seal { offset, covers: Coverage::Behind }
    }

    /// A checksum at `offset` of all bytes, with zeros in its place.
    pub const fn of_all_bytes(offset: usize) -> Seal {
        Seal { offset, covers: Coverage::All }
    }

    /// Returns where the checksum is.
    pub const fn range(self) -> Range<usize> {
        self.offset..self.offset + SEAL_BYTES
    }

    /// Computes the checksum.
    ///
    /// # Panics
    /// If `bytes` end before the checksum does.
    #[inline]
    pub fn compute(self, bytes: &[u8]) -> u32 {
        let Range { start, end } = self.range();
        match self.covers {
            Coverage::Before => crc32c::crc32c(&bytes[..start]),
            Coverage::Behind => crc32c::crc32c(&bytes[end..]),
            Coverage::All => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..start]), &[0; SEAL_BYTES]);
                crc32c::crc32c_append(crc, &bytes[end..])
            }
        }
    }

    /// Stores the checksum, after everything that it covers.
    ///
    /// # Panics
    /// If `bytes` end before the checksum does.
    #[inline]
    pub fn store(self, bytes: &mut [u8]) {
        let crc = match self.covers {
            Coverage::Before | Coverage::Behind => self.compute(bytes),
            Coverage::All => {
                put_at(bytes, self.offset, &[0; SEAL_BYTES]);
                crc32c::crc32c(bytes)
            }
        };
        put_at(bytes, self.offset, &crc.to_le_bytes());
    }

    /// Checks the stored checksum.
    ///
    /// # Errors
    /// [`SealError`] if it does not match.
    ///
    /// # Panics
    /// If `bytes` end before the checksum does.
    #[inline]
    pub fn check(self, bytes: &[u8]) -> Result<(), SealError> {
        let found = u32_at(bytes, self.offset).expect("a structure contains its checksum");
        let computed = self.compute(bytes);
        if found == computed { Ok(()) } else { Err(SealError { found, computed }) }
    }

    /// Returns whether `bytes` contain a checksum that matches.
    #[inline]
    pub fn is_intact(self, bytes: &[u8]) -> bool {
        bytes.len() >= self.range().end && self.check(bytes).is_ok()
    }
}

/// The first bytes of a stored structure: 8 bytes of magic number, then the version in `u16` or
/// `u32`. The seal makes a version without its checksum unreadable.
#[derive(Clone, Copy, Debug)]
pub struct SealedHeader {
    /// Identifies the structure.
    pub magic: [u8; 8],
    /// The version that is written and read.
    pub version: u32,
    /// Bytes of the version: 2 or 4.
    pub version_bytes: usize,
    /// The checksum.
    pub seal: Seal,
}

/// Why bytes are not the structure of a [`SealedHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Another magic number.
    Magic,
    /// The bytes end before the version or the checksum.
    Truncated,
    /// Another version.
    Version(u32),
    /// The checksum does not match.
    Seal(SealError),
}

impl SealedHeader {
    /// Stores the magic number and the version. The [`seal`](SealedHeader::seal) is stored last.
    ///
    /// # Panics
    /// If `bytes` are too short.
    pub fn begin(&self, bytes: &mut [u8]) {
        put_at(bytes, 0, &self.magic);
        put_at(bytes, MAGIC_BYTES, &self.version.to_le_bytes()[..self.version_bytes]);
    }

    /// Returns the stored version.
    fn version_of(&self, bytes: &[u8]) -> Result<u32, HeaderError> {
        if !bytes.starts_with(&self.magic) {
            return Err(HeaderError::Magic);
        }
        let version = match self.version_bytes {
            2 => u16_at(bytes, MAGIC_BYTES).map(u32::from),
            _ => u32_at(bytes, MAGIC_BYTES),
        };
        version.ok_or(HeaderError::Truncated)
    }

    fn check_seal(&self, bytes: &[u8]) -> Result<(), HeaderError> {
        if bytes.len() < self.seal.range().end {
            return Err(HeaderError::Truncated);
        }
        self.seal.check(bytes).map_err(HeaderError::Seal)
    }

    fn known(&self, version: u32) -> Result<(), HeaderError> {
        if version == self.version { Ok(()) } else { Err(HeaderError::Version(version)) }
    }

    /// Checks the header of a structure whose versions may have their seals elsewhere.
    ///
    /// # Errors
    /// [`HeaderError`]: of the magic number, the version and the seal the first that is wrong.
    pub fn check(&self, bytes: &[u8]) -> Result<(), HeaderError> {
        self.known(self.version_of(bytes)?)?;
        self.check_seal(bytes)
    }

    /// Checks the header of a structure all of whose versions have the seal in the same place, so
    /// that a damaged version is not taken for another version.
    ///
    /// # Errors
    /// [`HeaderError`]: of the magic number, the seal and the version the first that is wrong.
    pub fn check_seal_first(&self, bytes: &[u8]) -> Result<(), HeaderError> {
        let version = self.version_of(bytes)?;
        self.check_seal(bytes)?;
        self.known(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_covers_its_bytes_and_no_others() {
        for (seal, covered) in [
            (Seal::of_bytes_before(8), 0..8),
            (Seal::of_bytes_behind(0), 4..16),
            (Seal::of_all_bytes(4), 0..16),
        ] {
            let mut bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
            seal.store(&mut bytes);
            assert!(seal.is_intact(&bytes) && !seal.is_intact(&bytes[..seal.range().start + 3]));
            for at in 0..16 {
                let mut damaged = bytes;
                damaged[at] ^= 1;
                let is_seen = covered.contains(&at) || seal.range().contains(&at);
                assert_eq!(seal.is_intact(&damaged), !is_seen, "{seal:?}, byte {at}");
            }
        }
        assert_eq!(Seal::of_bytes_before(9).compute(b"123456789\0\0\0\0"), 0xe306_9283);
    }

    #[test]
    fn errors_have_an_order() {
        for version_bytes in [2, 4] {
            let seal = Seal::of_bytes_before(16);
            let header = SealedHeader { magic: *b"SLUICTST", version: 3, version_bytes, seal };
            let mut bytes = [0; 20];
            header.begin(&mut bytes);
            header.seal.store(&mut bytes);
            assert_eq!(bytes[..10], *b"SLUICTST\x03\0");
            assert_eq!((header.check(&bytes), header.check_seal_first(&bytes)), (Ok(()), Ok(())));
            assert_eq!(header.check(&bytes[..19]), Err(HeaderError::Truncated));
            assert_eq!(header.check(&bytes[..7]), Err(HeaderError::Magic));
            bytes[8] = 4;
            assert_eq!(header.check(&bytes), Err(HeaderError::Version(4)));
            let found = header.check_seal_first(&bytes);
            assert!(matches!(found, Err(HeaderError::Seal(SealError { .. }))), "{found:?}");
            header.seal.store(&mut bytes);
            assert_eq!(header.check_seal_first(&bytes), Err(HeaderError::Version(4)));
            bytes[0] = 0;
            assert_eq!(header.check_seal_first(&bytes), Err(HeaderError::Magic));
        }
    }
}
