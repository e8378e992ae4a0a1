//! [`VerifyState`]: the expected contents of the device, for `verify=crc32c`.
//!
//! Every sector that a verifying job writes starts with a header:
//!
//! ```text
//! bytes  0..4   magic "SLVF"
//! bytes  4..8   CRC-32C of bytes 8 to the end of the sector
//! bytes  8..16  the sector's address
//! bytes 16..24  sequence number of the write, from 1
//! bytes 24..    a pattern drawn from address and sequence number
//! ```
//!
//! The state has the sequence number of each sector's last write: four bytes per sector of the
//! device, whose memory is only populated when it is first written. Two writes to one sector are
//! never in flight at the same time (as with fio's `serialize_overlap`), so a sector without a
//! write in flight has exactly one correct content. A sector that was written or trimmed during a
//! read only has to be consistent.

use mem::HugeArray;

const MAGIC: [u8; 4] = *b"SLVF";
const HEADER: usize = 24;
/// Flag: a write or trim of the sector is in flight.
const IN_FLIGHT: u32 = 1 << 31;

/// Verification error of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The sector has no header although this run wrote one.
    NoHeader,
    /// The checksum in the header does not match the data.
    Checksum,
    /// The sector has the data of another sector.
    WrongSector {
        /// Sector that the data belongs to.
        lba: u64,
    },
    /// The sector has the data of an earlier or unknown write.
    WrongVersion {
        /// Sequence number found in the header.
        found: u64,
    },
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mismatch::NoHeader => write!(f, "no verify header"),
            Mismatch::Checksum => write!(f, "wrong CRC-32C"),
            Mismatch::WrongSector { lba } => write!(f, "data of sector {lba}"),
            Mismatch::WrongVersion { found } => write!(f, "data of write {found}, not of the last"),
        }
    }
}

/// Per sector: 0 if its content is unknown, otherwise the low 31 bits of the sequence number of its
/// last write.
#[derive(Debug)]
pub(crate) struct VerifyState {
    last_seq: HugeArray,
    seq: u64,
}

impl VerifyState {
    pub(crate) fn new(sectors: u64) -> std::io::Result<VerifyState> {
        Ok(VerifyState { last_seq: HugeArray::zeroed(sectors as usize)?, seq: 0 })
    }

    fn range(&mut self, lba: u64, sectors: u32) -> &mut [u32] {
        let start = lba as usize;
        &mut self.last_seq[start..start + sectors as usize]
    }

    /// Starts a write or trim. Returns the sequence number that all its sectors share, or `None` if
    /// one of the sectors has a write or trim in flight.
    pub(crate) fn begin_write(&mut self, lba: u64, sectors: u32) -> Option<u64> {
        let range = self.range(lba, sectors);
        if range.iter().any(|s| s & IN_FLIGHT != 0) {
            return None;
        }
        range.iter_mut().for_each(|s| *s |= IN_FLIGHT);
        self.seq += 1;
        if self.seq as u32 & !IN_FLIGHT == 0 {
            self.seq += 1;
        }
        Some(self.seq)
    }

    /// Completes a write or trim. `sequence` is `Some` if the data is known to be on the device.
    pub(crate) fn complete_write(&mut self, lba: u64, sectors: u32, sequence: Option<u64>) {
        let value = sequence.map_or(0, |s| s as u32 & !IN_FLIGHT);
        self.range(lba, sectors).fill(value);
    }

    /// Stores the expected content of a read's sectors at the time when the read is issued.
    pub(crate) fn snapshot(&self, lba: u64, into: &mut [u32]) {
        let start = lba as usize;
        into.copy_from_slice(&self.last_seq[start..start + into.len()]);
    }

    /// Returns whether the content of the sector is known.
    pub(crate) fn is_known(&self, lba: u64) -> bool {
        let last = self.last_seq[lba as usize];
        last != 0 && last & IN_FLIGHT == 0
    }

    /// Verifies a sector that was read against `expected`, its [`snapshot`](VerifyState::snapshot).
    /// Returns `Ok(false)` if the expected content is unknown.
    pub(crate) fn check(&self, lba: u64, expected: u32, sector: &[u8]) -> Result<bool, Mismatch> {
        if expected == 0 || expected == IN_FLIGHT {
            return Ok(false);
        }
        let quiet = expected & IN_FLIGHT == 0 && self.last_seq[lba as usize] == expected;
        let word =
            |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().unwrap_or_default());
        if sector[..4] != MAGIC {
            // The sector was trimmed or overwritten by another writer during the read.
            return if quiet { Err(Mismatch::NoHeader) } else { Ok(false) };
        }
        if sector[4..8] != crc32c::crc32c(&sector[8..]).to_le_bytes() {
            return Err(Mismatch::Checksum);
        }
        if word(8) != lba {
            return Err(Mismatch::WrongSector { lba: word(8) });
        }
        let found = word(16);
        if quiet && found as u32 & !IN_FLIGHT != expected {
            return Err(Mismatch::WrongVersion { found });
        }
        Ok(true)
    }
}

/// Fills a sector with header and pattern.
pub(crate) fn fill_sector(sector: &mut [u8], lba: u64, sequence: u64) {
    let mut word = lba.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sequence;
    for chunk in sector[HEADER..].chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    sector[..4].copy_from_slice(&MAGIC);
    sector[8..16].copy_from_slice(&lba.to_le_bytes());
    sector[16..24].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32c::crc32c(&sector[8..]).to_le_bytes();
    sector[4..8].copy_from_slice(&crc);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_every_kind_of_damage() {
        let mut ledger = VerifyState::new(10).unwrap();
        let mut sector = vec![0; 512];
        let mut seen = [0; 1];
        ledger.snapshot(3, &mut seen);
        assert_eq!(ledger.check(3, seen[0], &sector), Ok(false), "never written");
        let first = ledger.begin_write(3, 2).unwrap();
        assert_eq!(ledger.begin_write(4, 1), None, "one write at a time");
        ledger.complete_write(3, 2, Some(first));
        fill_sector(&mut sector, 3, first);
        ledger.snapshot(3, &mut seen);
        assert_eq!(ledger.check(3, seen[0], &sector), Ok(true));
        let mut bad = sector.clone();
        bad[400] ^= 1;
        assert_eq!(ledger.check(3, seen[0], &bad), Err(Mismatch::Checksum));
        fill_sector(&mut bad, 4, first);
        assert_eq!(ledger.check(3, seen[0], &bad), Err(Mismatch::WrongSector { lba: 4 }));
        fill_sector(&mut bad, 3, 77);
        assert_eq!(ledger.check(3, seen[0], &bad), Err(Mismatch::WrongVersion { found: 77 }));
        bad.fill(0);
        assert_eq!(ledger.check(3, seen[0], &bad), Err(Mismatch::NoHeader));
        // A sector that was written during the read may have the old or the new content, but must
        // be consistent.
        let second = ledger.begin_write(3, 1).unwrap();
        assert_eq!(ledger.check(3, seen[0], &sector), Ok(true));
        ledger.complete_write(3, 1, Some(second));
        assert_eq!(ledger.check(3, seen[0], &sector), Ok(true));
        ledger.snapshot(3, &mut seen);
        assert_eq!(
            ledger.check(3, seen[0], &sector),
            Err(Mismatch::WrongVersion { found: first }),
            "a lost write"
        );
    }
}
