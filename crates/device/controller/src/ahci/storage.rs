//! [`SectorStore`]: the stored sectors of a drive.
//!
//! The store is a sparse in-memory file, so that an unwritten sector takes no memory. A bitmap of
//! written pages keeps reads from allocating the pages that they find empty.

use std::fs::File;
use std::io;
use std::sync::Arc;

use collections::BitSet;
use media::fill_pattern_from;
use mem::{PAGE_BYTES, SharedRegion};

use super::{SataData, SataDriveConfig};

#[derive(Debug)]
pub(super) enum SectorStore {
    Memory(StoredSectors),
    Pattern { sector_bytes: u32 },
    Untouched,
}

#[derive(Debug)]
pub(super) struct StoredSectors {
    region: Arc<SharedRegion>,
    /// One bit per page: it may hold data.
    written: BitSet,
}

impl SectorStore {
    pub(super) fn new(config: &SataDriveConfig) -> io::Result<SectorStore> {
        match config.data {
            SataData::Memory => {
                let bytes = config.sectors * u64::from(config.sector_bytes);
                let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
                let file = rustix::fs::memfd_create("sata", rustix::fs::MemfdFlags::CLOEXEC)?;
                let file = File::from(file);
                file.set_len(bytes)?;
                let region = SharedRegion::file(file, bytes as usize)?;
                let pages = bytes as usize / PAGE_BYTES;
                Ok(SectorStore::Memory(StoredSectors { region, written: BitSet::new(pages) }))
            }
            SataData::Pattern => Ok(SectorStore::Pattern { sector_bytes: config.sector_bytes }),
            SataData::Untouched => Ok(SectorStore::Untouched),
        }
    }

    /// Copies `len` bytes from byte `from` of the drive to the host. The range must be valid.
    pub(super) fn read(&self, from: u64, to: &SharedRegion, offset: usize, len: usize) {
        match self {
            SectorStore::Memory(kept) => kept.read(from as usize, to, offset, len),
            SectorStore::Pattern { sector_bytes } => {
                let sector_bytes = u64::from(*sector_bytes);
                let mut piece = [0; 512];
                let mut done = 0;
                while done < len {
                    let at = from + done as u64;
                    let (lba, skip) = (at / sector_bytes, (at % sector_bytes) as usize);
                    let n = (len - done).min(512 - at as usize % 512);
                    fill_pattern_from(lba, skip, &mut piece[..n]);
                    to.write(offset + done, &piece[..n]);
                    done += n;
                }
            }
            SectorStore::Untouched => {}
        }
    }

    /// Copies `len` bytes from the host to byte `to` of the drive. The range must be valid.
    pub(super) fn write(&mut self, from: &SharedRegion, offset: usize, to: u64, len: usize) {
        if let SectorStore::Memory(kept) = self {
            kept.mark_written(to as usize, len);
            SharedRegion::copy(from, offset, &kept.region, to as usize, len);
        }
    }

    /// Zeroes `len` bytes from byte `at`. The range must be valid.
    pub(super) fn trim(&mut self, at: u64, len: u64) -> io::Result<()> {
        match self {
            SectorStore::Memory(kept) => kept.trim(at as usize, len as usize),
            SectorStore::Pattern { .. } | SectorStore::Untouched => Ok(()),
        }
    }
}

impl StoredSectors {
    fn is_written(&self, page: usize) -> bool {
        self.written.contains(page)
    }

    fn mark_written(&mut self, at: usize, len: usize) {
        for page in at / PAGE_BYTES..(at + len).div_ceil(PAGE_BYTES) {
            self.written.insert(page);
        }
    }

    fn read(&self, from: usize, to: &SharedRegion, offset: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let at = from + done;
            let written = self.is_written(at / PAGE_BYTES);
            // Extend over all following pages with an equal bit.
            let mut end = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            while end < from + len && self.is_written(end / PAGE_BYTES) == written {
                end += PAGE_BYTES;
            }
            let n = end.min(from + len) - at;
            if written {
                SharedRegion::copy(&self.region, at, to, offset + done, n);
            } else {
                to.fill(offset + done, n, 0);
            }
            done += n;
        }
    }

    fn trim(&mut self, at: usize, len: usize) -> io::Result<()> {
        let (first, last) = (at.next_multiple_of(PAGE_BYTES), (at + len) & !(PAGE_BYTES - 1));
        let whole = first..last.max(first);
        // Zero the partial pages at both ends, if they hold data.
        for (from, to) in [(at, (at + len).min(first)), (at.max(whole.end), at + len)] {
            if from < to && self.is_written(from / PAGE_BYTES) {
                self.region.fill(from, to - from, 0);
            }
        }
        if !whole.is_empty() {
            self.region.discard(whole.start, whole.len())?;
            self.written.remove_range(whole.start / PAGE_BYTES..whole.end / PAGE_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector_store(data: SataData) -> SectorStore {
        let config = SataDriveConfig { sectors: 4096, data, ..SataDriveConfig::default() };
        SectorStore::new(&config).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_what_is_trimmed_is_zero() {
        let mut kept = sector_store(SataData::Memory);
        let host = SharedRegion::anonymous(1 << 20).unwrap();
        let (at, len) = (3 * 512, 300 * 512);
        host.fill(0, len, 7);
        kept.write(&host, 0, at, len);
        // From the middle of a page to the middle of another, with more than 64 pages in between.
        let (trimmed, n) = (at + 5 * 512, 285 * 512);
        kept.trim(trimmed, n).unwrap();
        kept.trim(1 << 20, 1 << 19).unwrap();
        host.fill(0, 1 << 20, 9);
        kept.read(0, &host, 0, 400 * 512);
        let mut bytes = vec![0; 401 * 512];
        host.read(0, &mut bytes);
        for (i, byte) in bytes.iter().enumerate() {
            let i = i as u64;
            let written =
                (at..at + len as u64).contains(&i) && !(trimmed..trimmed + n).contains(&i);
            let expected = if i >= 400 * 512 { 9 } else { 7 * u8::from(written) };
            assert_eq!(*byte, expected, "byte {i}");
        }
    }

    #[test]
    fn a_trim_within_a_page_leaves_its_neighbours() {
        let mut kept = sector_store(SataData::Memory);
        let host = SharedRegion::anonymous(4096).unwrap();
        host.fill(0, 4096, 7);
        kept.write(&host, 0, 8192, 4096);
        kept.trim(8192 + 512, 1024).unwrap();
        kept.read(8192, &host, 0, 4096);
        let mut bytes = [0; 4096];
        host.read(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(i, b)| (*b == 0) == (512..1536).contains(&i)));
    }

    #[test]
    fn a_pattern_does_not_depend_on_how_it_is_cut() {
        let pattern = sector_store(SataData::Pattern);
        let host = SharedRegion::anonymous(8192).unwrap();
        pattern.read(7 * 512, &host, 0, 1536);
        pattern.read(7 * 512 + 300, &host, 4096, 700);
        let (mut whole, mut piece, mut sector) = ([0; 1536], [0; 700], [0; 512]);
        host.read(0, &mut whole);
        host.read(4096, &mut piece);
        assert_eq!(whole[300..1000], piece);
        media::fill_pattern(8, &mut sector);
        assert_eq!(whole[512..1024], sector);
    }
}
