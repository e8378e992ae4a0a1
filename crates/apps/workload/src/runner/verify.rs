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
/// Bytes of a header.
pub(crate) const HEADER: usize = 24;
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
    /// For records only, because a scan finds out by reading which records it has: the value of
    /// `changes` after the last change of each record.
    changed_at: HugeArray,
    /// Number of completed changes, modulo 2^32.
    changes: u32,
}

impl VerifyState {
    pub(crate) fn new(sectors: u64) -> std::io::Result<VerifyState> {
        let (last_seq, changed_at) = (HugeArray::zeroed(sectors as usize)?, HugeArray::zeroed(0)?);
        Ok(VerifyState { last_seq, seq: 0, changed_at, changes: 0 })
    }

    /// Creates the state of records in place of sectors.
    pub(crate) fn of_records(records: u64) -> std::io::Result<VerifyState> {
        let changed_at = HugeArray::zeroed(records as usize)?;
        Ok(VerifyState { changed_at, ..VerifyState::new(records)? })
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

    /// Completes a put or delete of a record. `sequence` is `Some` if the value is known to be in
    /// the store.
    pub(crate) fn complete_put(&mut self, record: u64, sequence: Option<u64>) {
        self.complete_write(record, 1, sequence);
        self.changes = self.changes.wrapping_add(1);
        self.changed_at[record as usize] = self.changes;
    }

    /// Returns the number of completed changes when a scan is issued, modulo 2^32.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Verifies a value that a scan read, which was issued at `issued_at` changes. Returns the record
    /// that it belongs to, and whether its version was checked; `None` for a value without a header,
    /// which no verifying job of this run put.
    pub(crate) fn check_scanned(
        &self,
        issued_at: u32,
        value: &[u8],
    ) -> Result<Option<(u64, bool)>, Mismatch> {
        if value[..4] != MAGIC {
            return Ok(None);
        }
        let record = word(value, 8);
        check_header(record, value)?;
        let Some(last) = self.last_seq.get(record as usize) else {
            return Err(Mismatch::WrongSector { lba: record });
        };
        let changed_at = self.changed_at[record as usize];
        // A change after the issue has a number that is up to 2^31 larger.
        let unchanged = changed_at.wrapping_sub(issued_at).wrapping_sub(1) >= IN_FLIGHT;
        let expected = if unchanged { *last } else { *last | IN_FLIGHT };
        self.check(record, expected, value).map(|checked| Some((record, checked)))
    }

    /// Verifies the value that a read-modify-write of a record read before it wrote: no other write
    /// was in flight. `expected` is the [`snapshot`](VerifyState::snapshot) before the operation.
    pub(crate) fn check_before_update(
        &self,
        record: u64,
        expected: u32,
        value: &[u8],
    ) -> Result<bool, Mismatch> {
        if expected & !IN_FLIGHT == 0 {
            return Ok(false);
        }
        match check_header(record, value)? {
            found if found as u32 & !IN_FLIGHT == expected => Ok(true),
            found => Err(Mismatch::WrongVersion { found }),
        }
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
        if sector[..4] != MAGIC && !quiet {
            // The sector was trimmed or overwritten by another writer during the read.
            return Ok(false);
        }
        let found = check_header(lba, sector)?;
        if quiet && found as u32 & !IN_FLIGHT != expected {
            return Err(Mismatch::WrongVersion { found });
        }
        Ok(true)
    }
}

/// Returns the 64-bit number at offset `at` of a sector.
fn word(sector: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(sector[at..at + 8].try_into().unwrap_or_default())
}

/// Verifies the header of the sector `lba`. Returns the sequence number of its write.
fn check_header(lba: u64, sector: &[u8]) -> Result<u64, Mismatch> {
    if sector[..4] != MAGIC {
        return Err(Mismatch::NoHeader);
    }
    if sector[4..8] != crc32c::crc32c(&sector[8..]).to_le_bytes() {
        return Err(Mismatch::Checksum);
    }
    match word(sector, 8) {
        found if found == lba => Ok(word(sector, 16)),
        found => Err(Mismatch::WrongSector { lba: found }),
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
    fn a_scan_tells_old_versions_from_changes_during_it() {
        let mut ledger = VerifyState::of_records(4).unwrap();
        let mut value = vec![0; 40];
        assert_eq!(ledger.check_scanned(ledger.changes(), &value), Ok(None), "not of this run");
        let first = ledger.begin_write(2, 1).unwrap();
        ledger.complete_put(2, Some(first));
        let issued_at = ledger.changes();
        fill_sector(&mut value, 2, first);
        assert_eq!(ledger.check_scanned(issued_at, &value), Ok(Some((2, true))));
        let second = ledger.begin_write(2, 1).unwrap();
        assert_eq!(ledger.check_scanned(issued_at, &value), Ok(Some((2, true))), "in flight");
        ledger.complete_put(2, Some(second));
        assert_eq!(ledger.check_scanned(issued_at, &value), Ok(Some((2, true))), "during the scan");
        let lost = ledger.check_scanned(ledger.changes(), &value);
        assert_eq!(lost, Err(Mismatch::WrongVersion { found: first }), "a lost put");
        value[30] ^= 1;
        assert_eq!(ledger.check_scanned(issued_at, &value), Err(Mismatch::Checksum));
        fill_sector(&mut value, 9, second);
        let other = ledger.check_scanned(issued_at, &value);
        assert_eq!(other, Err(Mismatch::WrongSector { lba: 9 }), "beyond the records");
    }

    #[test]
    fn a_read_modify_write_reads_the_version_before_it() {
        let mut ledger = VerifyState::of_records(4).unwrap();
        let mut value = vec![0; 24];
        let mut before = [0];
        ledger.snapshot(1, &mut before);
        assert_eq!(ledger.check_before_update(1, before[0], &value), Ok(false), "unknown");
        let first = ledger.begin_write(1, 1).unwrap();
        ledger.complete_put(1, Some(first));
        ledger.snapshot(1, &mut before);
        let second = ledger.begin_write(1, 1).unwrap();
        fill_sector(&mut value, 1, first);
        assert_eq!(ledger.check_before_update(1, before[0], &value), Ok(true));
        fill_sector(&mut value, 1, second);
        let wrong = ledger.check_before_update(1, before[0], &value);
        assert_eq!(wrong, Err(Mismatch::WrongVersion { found: second }));
        fill_sector(&mut value, 3, first);
        let wrong = ledger.check_before_update(1, before[0], &value);
        assert_eq!(wrong, Err(Mismatch::WrongSector { lba: 3 }));
    }

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
