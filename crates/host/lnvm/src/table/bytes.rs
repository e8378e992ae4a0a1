//! [`PutTable`] and [`ReadTable`]: the encoding of the partition table. Numbers are varints
//! ([`collections::Reader`]); `docs/format/partition-table.md` is the byte map.
//!
//! Invariant: a reader never allocates more than its input could fill.

use collections::{PutBytes, Reader};

use crate::{PU_MAX, PuSet};

/// Appends fields of the partition table.
pub(super) trait PutTable: PutBytes {
    /// Writes a length, then the bytes.
    fn put_text(&mut self, text: &str) {
        self.put_varint(text.len() as u64).put(text.as_bytes());
    }

    /// Writes ascending numbers as runs: the number of runs, then for each the gap before it and
    /// its length minus one.
    fn put_runs(&mut self, numbers: impl Iterator<Item = u32>) {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for n in numbers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == n => *last = n,
                _ => runs.push((n, n)),
            }
        }
        self.put_varint(runs.len() as u64);
        let mut next = 0u32;
        for (first, last) in runs {
            self.put_varint(u64::from(first.wrapping_sub(next)));
            self.put_varint(u64::from(last.wrapping_sub(first)));
            next = last.wrapping_add(1);
        }
    }

    fn put_pus(&mut self, pus: &PuSet) {
        self.put_runs(pus.iter().map(|pu| pu.0));
    }

    /// Writes ascending chunks, all below `u32::MAX`.
    fn put_chunks(&mut self, chunks: &[u32]) {
        self.put_runs(chunks.iter().copied());
    }
}

impl PutTable for Vec<u8> {}

/// Reads fields of the partition table; returns `None` if the input is too short or invalid.
pub(super) trait ReadTable<'a> {
    /// Reads a length of at most `len_max`, then the bytes.
    fn text(&mut self, len_max: usize) -> Option<&'a str>;

    /// Reads runs of ascending numbers below `end`, and passes them to `put` as ranges.
    fn runs(&mut self, end: u32, put: impl FnMut(std::ops::Range<u32>)) -> Option<()>;

    fn pus(&mut self) -> Option<PuSet>;

    /// Reads ascending chunks of a drive with `total` chunks.
    fn chunks(&mut self, total: u32) -> Option<Vec<u32>>;
}

impl<'a> ReadTable<'a> for Reader<'a> {
    fn text(&mut self, len_max: usize) -> Option<&'a str> {
        let len = usize::try_from(self.varint()?).ok().filter(|len| *len <= len_max)?;
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    fn runs(&mut self, end: u32, mut put: impl FnMut(std::ops::Range<u32>)) -> Option<()> {
        let mut next = 0u32;
        for i in 0..self.varint()? {
            let gap = self.varint_u32()?;
            if i > 0 && gap == 0 {
                return None;
            }
            let first = next.checked_add(gap)?;
            next = first.checked_add(self.varint_u32()?)?.checked_add(1)?;
            if next > end {
                return None;
            }
            put(first..next);
        }
        Some(())
    }

    fn pus(&mut self) -> Option<PuSet> {
        let mut runs = Vec::new();
        self.runs(PU_MAX, |run| runs.push(run))?;
        Some(PuSet::from_ranges(runs))
    }

    fn chunks(&mut self, total: u32) -> Option<Vec<u32>> {
        let mut chunks = Vec::new();
        self.runs(total, |run| chunks.extend(run))?;
        Some(chunks)
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;
    use crate::PuId;

    #[test]
    fn what_is_written_is_read() {
        let mut rng = Rng::new(3);
        for _ in 0..2000 {
            let n = rng.next_u64() >> rng.below(64);
            let pus: PuSet = (0..rng.below(20)).map(|_| PuId(rng.below(300) as u32)).collect();
            let mut chunks: Vec<u32> = (0..rng.below(9)).map(|_| rng.below(999) as u32).collect();
            chunks.sort_unstable();
            chunks.dedup();
            let mut w = Vec::new();
            w.put_varint(n);
            w.put_pus(&pus);
            w.put_text("näme");
            w.put_chunks(&chunks);
            let mut r = Reader::new(&w);
            assert_eq!(r.varint(), Some(n));
            assert_eq!(r.pus(), Some(pus));
            assert_eq!(r.text(8), Some("näme"));
            assert_eq!(r.chunks(999), Some(chunks));
            assert!(r.is_at_end());
            for end in 0..w.len() {
                let mut r = Reader::new(&w[..end]);
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
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x7f, 1]).chunks(9), None);
        assert_eq!(Reader::new(&[2, 5, 0, 0, 0]).chunks(9), None, "two runs that are one");
        assert_eq!(Reader::new(&[1, 0, 9]).chunks(9), None, "one chunk too many");
        assert_eq!(Reader::new(&[1, 0, 8]).chunks(9).map(|c| c.len()), Some(9));
        assert_eq!(Reader::new(&[1, 0, 0xff, 0xff, 0x7f]).pus(), None, "beyond the last unit");
        assert_eq!(Reader::new(&[9, b'a']).text(8), None);
        assert_eq!(Reader::new(&[1, 0xff]).text(8), None, "not UTF-8");
    }
}
