//! The journal's sectors, and [`JournalRing`], which tracks the sectors in use.
//! `docs/format/volume.md` has the byte map, and the argument why a damaged sector can be
//! distinguished from the end of the journal.

use collections::{Reader, Seal, put_at};

use crate::invariants::{VolumeViolation, require};
use crate::on_media::superblock::Superblock;

/// Bytes of a sector's header.
pub(crate) const HEADER_BYTES: usize = 40;
/// Maximum bytes of a transaction, unless the mount's options say more.
pub(crate) const TXN_BYTES: usize = 256 << 10;
const MAGIC: u16 = u16::from_le_bytes(*b"SJ");
const SEAL: Seal = Seal::of_bytes_behind(0);
const FLAG_FIRST: u32 = 1;
const FLAG_LAST: u32 = 2;

/// Header of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectorHeader {
    pub(crate) length: u16,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) txn: u64,
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// A decoded sector of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sector<'a> {
    Written(SectorHeader, &'a [u8]),
    Zeros,
    Damaged,
}

/// Returns the maximum bytes of a transaction in a journal of this many sectors: `limit`, and at
/// most a quarter of the journal.
pub(crate) fn txn_bytes_max(sectors: u64, sector_bytes: u32, limit: usize) -> usize {
    limit.min((sectors / 4) as usize * (sector_bytes as usize - HEADER_BYTES))
}

/// Encodes a sector of `header` and `payload`, which must fit.
pub(crate) fn encode(header: &SectorHeader, payload: &[u8], into: &mut [u8]) {
    into.fill(0);
    let flags = if header.first { FLAG_FIRST } else { 0 } | if header.last { FLAG_LAST } else { 0 };
    put_at(into, 4, &MAGIC.to_le_bytes());
    put_at(into, 6, &header.length.to_le_bytes());
    put_at(into, 8, &header.epoch.to_le_bytes());
    put_at(into, 16, &header.seq.to_le_bytes());
    put_at(into, 24, &header.txn.to_le_bytes());
    put_at(into, 32, &flags.to_le_bytes());
    put_at(into, HEADER_BYTES, payload);
    SEAL.store(into);
}

/// Decodes a sector.
pub(crate) fn decode(bytes: &[u8]) -> Sector<'_> {
    decode_fields(bytes).unwrap_or_else(|| {
        if bytes.iter().all(|b| *b == 0) { Sector::Zeros } else { Sector::Damaged }
    })
}

fn decode_fields(bytes: &[u8]) -> Option<Sector<'_>> {
    let mut f = Reader::new(bytes);
    let (_, magic, length) = (f.u32()?, f.u16()?, f.u16()?);
    if magic != MAGIC || !SEAL.is_intact(bytes) {
        return None;
    }
    let (epoch, seq, txn, flags) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
    let (first, last) = (flags & FLAG_FIRST != 0, flags & FLAG_LAST != 0);
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + usize::from(length))?;
    Some(Sector::Written(SectorHeader { length, epoch, seq, txn, first, last }, payload))
}

/// The sectors in use of the journal's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalRing {
    /// Sectors of the ring.
    sectors: u64,
    sector_bytes: u32,
    epoch: u64,
    /// Number of the next sector.
    head: u64,
    /// Number of the first sector that recovery may need.
    tail: u64,
}

impl JournalRing {
    /// Creates the ring of a volume whose journal is empty.
    pub(crate) fn new(superblock: &Superblock) -> JournalRing {
        JournalRing {
            sectors: superblock.layout.journal_sectors(),
            sector_bytes: superblock.layout.sector_bytes,
            epoch: superblock.epoch,
            head: superblock.journal_seq,
            tail: superblock.journal_seq,
        }
    }

    /// Returns the sectors of the ring.
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the next sector.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the bytes of records in a sector.
    pub(crate) fn payload(&self) -> usize {
        self.sector_bytes as usize - HEADER_BYTES
    }

    /// Returns the sectors that this many bytes of records need.
    pub(crate) fn sectors_for(&self, bytes: usize) -> u64 {
        bytes.div_ceil(self.payload()) as u64
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    pub(crate) fn free(&self) -> u64 {
        self.sectors - self.used()
    }

    /// Takes the next sectors; returns the number of the first one.
    pub(crate) fn append(&mut self, sectors: u64) -> u64 {
        assert!(
            sectors <= self.free(),
            "log: {sectors} sectors are appended to a journal with {} free ones",
            self.free()
        );
        let first = self.head;
        self.head += sectors;
        first
    }

    /// Frees the sectors before `seq`.
    pub(crate) fn discard_before(&mut self, seq: u64) {
        assert!(
            (self.tail..=self.head).contains(&seq),
            "log: sectors before {seq} are discarded, and {} to {} are in use",
            self.tail,
            self.head
        );
        self.tail = seq;
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        require!(
            self.tail <= self.head && self.head - self.tail <= self.sectors,
            Log,
            "the journal's sectors in use fit",
            format_args!("sectors {} to {}", self.tail, self.head),
            self.sectors,
            self.head.wrapping_sub(self.tail)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_makes_a_sector_damaged_and_never_zeros_or_older() {
        let header = SectorHeader { length: 5, epoch: 2, seq: 3, txn: 4, first: true, last: false };
        let mut sector = [0; 512];
        assert_eq!(decode(&sector), Sector::Zeros);
        encode(&header, b"hello", &mut sector);
        assert_eq!(decode(&sector), Sector::Written(header, b"hello"));
        for at in 0..sector.len() {
            for bit in [1, 0x80, 0xff] {
                let mut sector = sector;
                sector[at] ^= bit;
                assert_eq!(decode(&sector), Sector::Damaged, "byte {at}");
            }
        }
    }
}
