//! The journal's sectors, and [`Ring`], which of them are in use. The byte map and the argument why a
//! damaged sector is told from the end of what was written are in `docs/format/volume.md`.

use crate::bytes::{Fields, put};

/// Bytes of a sector before its payload.
pub(crate) const HEADER: usize = 40;
const MAGIC: u16 = u16::from_le_bytes(*b"SJ");
const FIRST: u32 = 1;
const LAST: u32 = 2;

/// What a sector says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: u16,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) txn: u64,
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// What a sector of the journal turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sector<'a> {
    Written(Header, &'a [u8]),
    Zeros,
    Damaged,
}

/// Makes a sector of `header` and `payload`, which fits.
pub(crate) fn encode(header: &Header, payload: &[u8], into: &mut [u8]) {
    into.fill(0);
    let flags = if header.first { FIRST } else { 0 } | if header.last { LAST } else { 0 };
    put(into, 4, &MAGIC.to_le_bytes());
    put(into, 6, &header.length.to_le_bytes());
    put(into, 8, &header.epoch.to_le_bytes());
    put(into, 16, &header.seq.to_le_bytes());
    put(into, 24, &header.txn.to_le_bytes());
    put(into, 32, &flags.to_le_bytes());
    put(into, HEADER, payload);
    let crc = crc32c::crc32c(&into[4..]);
    put(into, 0, &crc.to_le_bytes());
}

/// What a sector is.
pub(crate) fn decode(bytes: &[u8]) -> Sector<'_> {
    fields(bytes).unwrap_or_else(|| {
        if bytes.iter().all(|b| *b == 0) { Sector::Zeros } else { Sector::Damaged }
    })
}

fn fields(bytes: &[u8]) -> Option<Sector<'_>> {
    let mut f = Fields(bytes);
    let crc = f.u32()?;
    let (magic, length) = (f.u16()?, f.u16()?);
    if magic != MAGIC || crc != crc32c::crc32c(bytes.get(4..)?) {
        return None;
    }
    let (epoch, seq, txn, flags) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
    let (first, last) = (flags & FIRST != 0, flags & LAST != 0);
    let payload = bytes.get(HEADER..HEADER + usize::from(length))?;
    Some(Sector::Written(Header { length, epoch, seq, txn, first, last }, payload))
}

/// Which sectors of the journal's ring are in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// Sectors of the ring.
    pub(crate) sectors: u64,
    pub(crate) sector_bytes: u32,
    pub(crate) epoch: u64,
    /// The next sector's number.
    pub(crate) head: u64,
    /// The first one that recovery may need.
    pub(crate) tail: u64,
}

impl Ring {
    /// Bytes of records in a sector.
    pub(crate) fn payload(&self) -> usize {
        self.sector_bytes as usize - HEADER
    }

    /// Sectors that so many bytes of records take.
    pub(crate) fn sectors_for(&self, bytes: usize) -> u64 {
        bytes.div_ceil(self.payload()) as u64
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    pub(crate) fn free(&self) -> u64 {
        self.sectors - self.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_makes_a_sector_damaged_and_never_zeros_or_older() {
        let header = Header { length: 5, epoch: 2, seq: 3, txn: 4, first: true, last: false };
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
