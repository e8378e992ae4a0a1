//! [`Writer`] and [`Reader`]: the encoding of the partition table. Integers are little endian or
//! *varints* (7 bits per byte, least significant first, the top bit set on all but the last byte);
//! `docs/format/partition-table.md` is the byte map.
//!
//! Invariant: a reader never reads past its end, and never allocates more than its input could
//! fill.

use crate::{PU_MAX, PuSet};

/// A buffer for encoding.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// Writes a length, then the bytes.
    pub(super) fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    /// Writes ascending numbers as runs: the number of runs, then for each the gap before it and
    /// its length minus one.
    fn runs(&mut self, numbers: impl Iterator<Item = u32>) {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for n in numbers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == n => *last = n,
                _ => runs.push((n, n)),
            }
        }
        self.varint(runs.len() as u64);
        let mut next = 0u32;
        for (first, last) in runs {
            self.varint(u64::from(first.wrapping_sub(next)));
            self.varint(u64::from(last.wrapping_sub(first)));
            next = last.wrapping_add(1);
        }
    }

    pub(super) fn pus(&mut self, pus: &PuSet) {
        self.runs(pus.iter().map(|pu| pu.0));
    }

    /// Writes ascending chunks, all below `u32::MAX`.
    pub(super) fn chunks(&mut self, chunks: &[u32]) {
        self.runs(chunks.iter().copied());
    }
}

/// A cursor for decoding. Methods return `None` if the input is too short or invalid.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte may contribute one bit only.
            if shift == 63 && bits > 1 {
                return None;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    pub(super) fn text(&mut self, len_max: usize) -> Option<&'a str> {
        let len = usize::try_from(self.varint()?).ok().filter(|len| *len <= len_max)?;
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    /// Reads runs of ascending numbers below `end`, and passes them to `put` as ranges.
    fn runs(&mut self, end: u32, mut put: impl FnMut(std::ops::Range<u32>)) -> Option<()> {
        let mut next = 0u32;
        for i in 0..self.varint()? {
            let gap = self.u32()?;
            if i > 0 && gap == 0 {
                return None;
            }
            let first = next.checked_add(gap)?;
            next = first.checked_add(self.u32()?)?.checked_add(1)?;
            if next > end {
                return None;
            }
            put(first..next);
        }
        Some(())
    }

    pub(super) fn pus(&mut self) -> Option<PuSet> {
        let mut runs = Vec::new();
        self.runs(PU_MAX, |run| runs.push(run))?;
        Some(PuSet::from_ranges(runs))
    }

    /// Reads ascending chunks of a drive with `total` chunks.
    pub(super) fn chunks(&mut self, total: u32) -> Option<Vec<u32>> {
        let mut chunks = Vec::new();
        self.runs(total, |run| chunks.extend(run))?;
        Some(chunks)
    }

    /// Returns whether all input was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;
    use crate::PuIndex;

    #[test]
    fn what_is_written_is_read() {
        let mut rng = Rng::new(3);
        for _ in 0..2000 {
            let n = rng.next_u64() >> rng.below(64);
            let pus: PuSet = (0..rng.below(20)).map(|_| PuIndex(rng.below(300) as u32)).collect();
            let mut chunks: Vec<u32> = (0..rng.below(9)).map(|_| rng.below(999) as u32).collect();
            chunks.sort_unstable();
            chunks.dedup();
            let mut w = Writer::default();
            w.varint(n);
            w.pus(&pus);
            w.text("näme");
            w.chunks(&chunks);
            let mut r = Reader(&w.0);
            assert_eq!(r.varint(), Some(n));
            assert_eq!(r.pus(), Some(pus));
            assert_eq!(r.text(8), Some("näme"));
            assert_eq!(r.chunks(999), Some(chunks));
            assert!(r.is_at_end());
            for end in 0..w.0.len() {
                let mut r = Reader(&w.0[..end]);
                let all = r.varint().is_some()
                    && r.pus().is_some()
                    && r.text(8).is_some()
                    && r.chunks(999).is_some();
                assert!(!all, "cut at {end}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused_without_much_memory() {
        assert_eq!(Reader(&[0xff; 10]).varint(), None, "more than 64 bits");
        assert_eq!(Reader(&[0xff; 5]).varint(), None);
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff, 0x7f, 1]).chunks(9), None);
        assert_eq!(Reader(&[2, 5, 0, 0, 0]).chunks(9), None, "two runs that are one");
        assert_eq!(Reader(&[1, 0, 9]).chunks(9), None, "one chunk too many");
        assert_eq!(Reader(&[1, 0, 8]).chunks(9).map(|c| c.len()), Some(9));
        assert_eq!(Reader(&[1, 0, 0xff, 0xff, 0x7f]).pus(), None, "beyond the last unit");
        assert_eq!(Reader(&[9, b'a']).text(8), None);
        assert_eq!(Reader(&[1, 0xff]).text(8), None, "not UTF-8");
    }
}
