//! [`Pcm`]: phase-change memory: written in place, byte-addressable, without erase ([Thesis15 ch.
//! 5], [Spec14 table 1]).
//!
//! Invariants: a write is durable in the medium when it returns. If the process dies during a
//! write, each byte is old or new. No operation is open across a power cut. A store to an image
//! never fails for lack of space: space is allocated first, and a failed allocation is an error.

use std::sync::Arc;

use mem::SharedRegion;
use nvme::{GeometryError, Status};
use serde::{Deserialize, Serialize};

use crate::storage::host_flush::HostFlush;
use crate::storage::image::{
    self, ImageSpec, MediumKind, OpenError, OpenMode, OpenedImage, PAGE_BYTES, reserve_tables,
};
use crate::{DataStore, HostFlushStats, PcmConfig, fill_pattern_from};

/// Granularity in bytes at which image space is allocated.
pub(crate) const EXTENT_BYTES: usize = 1 << 20;

/// The reason for which PCM refused an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcmError {
    /// The range exceeds the medium.
    #[error("bytes {offset}..+{len} are out of range: the medium has {bytes}")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Capacity in bytes.
        bytes: u64,
    },
    /// The file system of the image file has no space. Nothing was written.
    #[error("the image file's disk is full: free some space for byte {offset}")]
    HostDiskFull {
        /// First byte without space.
        offset: u64,
    },
    /// The file system of the image file could not allocate space, for another reason. Nothing was
    /// written.
    #[error("cannot allocate space for byte {offset} in the image file: error {errno}")]
    HostDisk {
        /// First byte without space.
        offset: u64,
        /// The operating system's error number.
        errno: i32,
    },
}

impl PcmError {
    /// Returns the status with which a drive completes the command.
    pub fn status(&self) -> Status {
        match self {
            PcmError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
            PcmError::HostDiskFull { .. } => Status::CAPACITY_EXCEEDED,
            PcmError::HostDisk { .. } => Status::WRITE_FAULT,
        }
    }
}

/// Counters since the medium was created or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcmStats {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Operations refused.
    pub refused: u64,
}

impl PcmConfig {
    /// Checks the geometry.
    ///
    /// # Errors
    /// The first value that is zero or inconsistent with the others.
    pub fn check(&self) -> Result<(), GeometryError> {
        for (what, n) in [
            ("channels", u64::from(self.channels)),
            ("pus", u64::from(self.pus)),
            ("bytes", self.bytes),
            ("sector_bytes", u64::from(self.sector_bytes)),
        ] {
            if n == 0 {
                return Err(GeometryError::Zero { what });
            }
        }
        let unfit = |what, value, allowed| Err(GeometryError::Unfit { what, value, allowed });
        if !self.sector_bytes.is_power_of_two() || !(512..=65536).contains(&self.sector_bytes) {
            let allowed = "it must be a power of two from 512 to 65536".into();
            return unfit("sector_bytes", self.sector_bytes.into(), allowed);
        }
        if !self.bytes.is_multiple_of(self.sector_bytes.into()) || self.bytes > 1 << 46 {
            let allowed = format!(
                "it must be a multiple of sector_bytes ({}) and at most 64 TiB",
                self.sector_bytes
            );
            return unfit("bytes", self.bytes, allowed);
        }
        if self.channels.checked_mul(self.pus).is_none_or(|n| n > 1 << 16) {
            let allowed = "a medium has at most 65536 parallel units".into();
            return unfit("pus", self.pus.into(), allowed);
        }
        Ok(())
    }

    /// Returns the flat index (`channel × pus + pu`) of a sector's parallel unit: sectors are
    /// striped over the channels, then over the parallel units of each.
    #[inline]
    pub fn pu_of(&self, sector: u64) -> u32 {
        let i = (sector % u64::from(self.channels * self.pus)) as u32;
        i % self.channels * self.pus + i / self.channels
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum PcmStorage {
    None,
    Memory(Arc<SharedRegion>),
    #[serde(skip)]
    Image {
        region: Arc<SharedRegion>,
        /// Offset of the data. Between the header and the data, one byte per extent states whether
        /// the extent has been written.
        data: usize,
        extents: Vec<ImageExtentState>,
        /// If flushes reach the host's device.
        flush: Option<PcmFlush>,
        _lock: Option<image::FileLock>,
    },
}

impl Clone for PcmStorage {
    /// Copies the data into memory, even if it is in an image.
    ///
    /// # Panics
    /// If there is no address space for another mapping.
    fn clone(&self) -> PcmStorage {
        let (region, at) = match self {
            PcmStorage::None => return PcmStorage::None,
            PcmStorage::Memory(region) => (region, 0),
            PcmStorage::Image { region, data, .. } => (region, *data),
        };
        let no_memory =
            |e| -> Arc<SharedRegion> { panic!("no memory for a copy of a medium: {e}") };
        if at == 0 {
            return PcmStorage::Memory(region.duplicate().unwrap_or_else(no_memory));
        }
        let len = region.len() - at;
        let copy = SharedRegion::anonymous(len).unwrap_or_else(no_memory);
        SharedRegion::copy(region, at, &copy, 0, len);
        PcmStorage::Memory(copy)
    }
}

/// The flushes of an image to the host's device.
#[derive(Debug, Default)]
struct PcmFlush {
    /// Whether the image was written since the last flush.
    has_changes: bool,
    outcome: HostFlush,
}

/// The allocation state of an extent of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageExtentState {
    /// Never written: reads return zeros without accessing the file.
    Unwritten,
    /// Written by an earlier process.
    Readable,
    /// Space is allocated.
    Allocated,
}

/// Phase-change memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pcm {
    config: PcmConfig,
    storage: PcmStorage,
    stats: PcmStats,
}

impl Pcm {
    /// Creates a fresh medium of zeros. An image file must be missing or empty.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create(config: PcmConfig) -> Result<Pcm, OpenError> {
        Pcm::build(config, OpenMode::Create)
    }

    /// Opens the medium in an existing image file; a medium without a file is fresh.
    ///
    /// # Errors
    /// [`OpenError`]; a refused file is not changed.
    pub fn open(config: PcmConfig) -> Result<Pcm, OpenError> {
        Pcm::build(config, OpenMode::Open)
    }

    /// Opens the medium in the image file, or creates a fresh one if the file is missing or empty.
    ///
    /// # Errors
    /// [`OpenError`]; a refused file is not changed.
    pub fn open_or_create(config: PcmConfig) -> Result<Pcm, OpenError> {
        Pcm::build(config, OpenMode::OpenOrCreate)
    }

    fn build(config: PcmConfig, mode: OpenMode) -> Result<Pcm, OpenError> {
        config.check()?;
        let bytes = config.bytes as usize;
        let cells = match &config.data {
            DataStore::None => PcmStorage::None,
            DataStore::Memory | DataStore::Preallocated(_) => {
                let no_memory = |error| OpenError::Memory { bytes: config.bytes, error };
                let region = SharedRegion::anonymous(bytes).map_err(no_memory)?;
                let prealloc = config.data.preallocated().min(config.bytes) as usize;
                if prealloc > 0 {
                    region.populate(0, prealloc).map_err(no_memory)?;
                }
                PcmStorage::Memory(region)
            }
            DataStore::File(path) | DataStore::DurableFile(path) | DataStore::Overlay(path) => {
                let extents = bytes.div_ceil(EXTENT_BYTES);
                let data = (PAGE_BYTES + extents).next_multiple_of(PAGE_BYTES);
                let end = (data + bytes).next_multiple_of(PAGE_BYTES);
                let blueprint = ImageSpec {
                    path,
                    overlay: matches!(config.data, DataStore::Overlay(_)),
                    kind: MediumKind::Pcm,
                    identity: &[
                        ("number of bytes", config.bytes),
                        ("sector_bytes", config.sector_bytes.into()),
                        ("offset of the extent table", PAGE_BYTES as u64),
                        ("offset of the data", data as u64),
                        ("length", end as u64),
                    ],
                    creation_values: &[],
                    bytes: end,
                    table_bytes: data,
                };
                let OpenedImage { region, lock, .. } = blueprint.open_or_create(mode, |_| {})?;
                reserve_tables(&region, path, data)?;
                let mut table = vec![0; extents];
                region.read(PAGE_BYTES, &mut table);
                let extent = |b| {
                    if b == 0 { ImageExtentState::Unwritten } else { ImageExtentState::Readable }
                };
                let extents = table.into_iter().map(extent).collect();
                let flush = config.data.flushes_to_host().then(PcmFlush::default);
                PcmStorage::Image { region, data, extents, flush, _lock: lock }
            }
        };
        Ok(Pcm { config, storage: cells, stats: PcmStats::default() })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PcmConfig {
        &self.config
    }

    /// Returns the counters.
    pub fn stats(&self) -> PcmStats {
        self.stats
    }

    fn check(&mut self, offset: u64, len: usize) -> Result<(), PcmError> {
        let (len, bytes) = (len as u64, self.config.bytes);
        if offset > bytes || len > bytes - offset {
            self.stats.refused += 1;
            return Err(PcmError::OutOfRange { offset, len, bytes });
        }
        Ok(())
    }

    /// Reads any range of bytes. A medium that stores no data returns the patterns of the sector
    /// numbers.
    ///
    /// # Errors
    /// [`PcmError::OutOfRange`].
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), PcmError> {
        self.check(offset, into.len())?;
        let len = into.len();
        self.for_each_segment(offset, len, |at, piece| {
            let part = &mut into[at..at + piece.len];
            match piece.source {
                SegmentSource::Region(region, from) => region.read(from, part),
                SegmentSource::Zeros => part.fill(0),
                SegmentSource::Pattern(sector, skip) => fill_pattern_from(sector, skip, part),
            }
        });
        self.count_read(len);
        Ok(())
    }

    /// Reads `len` bytes into `to` at `to_offset`.
    ///
    /// # Errors
    /// [`PcmError::OutOfRange`].
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn copy_out(
        &mut self,
        offset: u64,
        to: &SharedRegion,
        to_offset: usize,
        len: usize,
    ) -> Result<(), PcmError> {
        self.check(offset, len)?;
        self.for_each_segment(offset, len, |at, piece| {
            let to_offset = to_offset + at;
            match piece.source {
                SegmentSource::Region(region, from) => {
                    SharedRegion::copy(region, from, to, to_offset, piece.len)
                }
                SegmentSource::Zeros => to.fill(to_offset, piece.len, 0),
                SegmentSource::Pattern(sector, skip) => {
                    let mut pattern = [0; 512];
                    for at in (0..piece.len).step_by(pattern.len()) {
                        let part = &mut pattern[..(piece.len - at).min(512)];
                        fill_pattern_from(sector, skip + at, part);
                        to.write(to_offset + at, part);
                    }
                }
            }
        });
        self.count_read(len);
        Ok(())
    }

    /// Writes any range of bytes in place.
    ///
    /// # Errors
    /// [`PcmError`]; nothing was written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), PcmError> {
        self.prepare_write(offset, from.len())?;
        match &self.storage {
            PcmStorage::None => {}
            PcmStorage::Memory(region) => region.write(offset as usize, from),
            PcmStorage::Image { region, data, .. } => region.write(data + offset as usize, from),
        }
        self.count_write(from.len());
        Ok(())
    }

    /// Writes `len` bytes of `from` at `from_offset`.
    ///
    /// # Errors
    /// [`PcmError`]; nothing was written.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn copy_in(
        &mut self,
        offset: u64,
        from: &SharedRegion,
        from_offset: usize,
        len: usize,
    ) -> Result<(), PcmError> {
        self.prepare_write(offset, len)?;
        let at = offset as usize;
        match &self.storage {
            PcmStorage::None => {}
            PcmStorage::Memory(region) => SharedRegion::copy(from, from_offset, region, at, len),
            PcmStorage::Image { region, data, .. } => {
                SharedRegion::copy(from, from_offset, region, data + at, len);
            }
        }
        self.count_write(len);
        Ok(())
    }

    /// Waits until all data is on the image's device. Does nothing without an image.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn sync(&self) -> std::io::Result<()> {
        match &self.storage {
            PcmStorage::Image { region, .. } => region.sync(),
            _ => Ok(()),
        }
    }

    /// Waits until everything written is on the host's stable storage. Does nothing unless the data
    /// is in a [`DataStore::DurableFile`], or if nothing was written since the last flush.
    ///
    /// # Errors
    /// The error of `fdatasync(2)`. After a failure, data may be lost: all later flushes fail.
    pub fn flush_to_host(&mut self) -> std::io::Result<()> {
        let PcmStorage::Image { region, flush: Some(flush), .. } = &mut self.storage else {
            return Ok(());
        };
        if !flush.has_changes {
            return flush.outcome.check();
        }
        flush.outcome.run(|| region.sync_data())?;
        flush.has_changes = false;
        Ok(())
    }

    /// Makes the next flush to the host's stable storage fail, and with it all later ones. No effect
    /// unless flushes reach it.
    pub fn fail_next_host_flush(&mut self) {
        if let PcmStorage::Image { flush: Some(flush), .. } = &mut self.storage {
            flush.outcome.fail_next();
        }
    }

    /// Returns the counters of flushes to the host's stable storage; `None` unless flushes reach it.
    pub fn host_flush_stats(&self) -> Option<HostFlushStats> {
        match &self.storage {
            PcmStorage::Image { flush, .. } => Some(flush.as_ref()?.outcome.stats()),
            _ => None,
        }
    }

    fn count_read(&mut self, len: usize) {
        self.stats.reads += 1;
        self.stats.bytes_read += len as u64;
    }

    fn count_write(&mut self, len: usize) {
        self.stats.writes += 1;
        self.stats.bytes_written += len as u64;
    }

    /// Calls the closure with the source of each segment of a range, and the segment's offset in
    /// the range.
    fn for_each_segment(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, ReadSegment<'_>),
    ) {
        let sector_bytes = self.config.sector_bytes as usize;
        let (start, end) = (offset as usize, offset as usize + len);
        let mut at = start;
        while at < end {
            // Up to the next boundary of an extent or sector.
            let to_border = |border: usize| (border - at % border).min(end - at);
            let piece = match &self.storage {
                PcmStorage::None => ReadSegment {
                    len: to_border(sector_bytes),
                    source: SegmentSource::Pattern((at / sector_bytes) as u64, at % sector_bytes),
                },
                PcmStorage::Memory(region) => {
                    ReadSegment { len: end - at, source: SegmentSource::Region(region, at) }
                }
                PcmStorage::Image { region, data, extents, .. } => ReadSegment {
                    len: to_border(EXTENT_BYTES),
                    source: match extents[at / EXTENT_BYTES] {
                        ImageExtentState::Unwritten => SegmentSource::Zeros,
                        ImageExtentState::Readable | ImageExtentState::Allocated => {
                            SegmentSource::Region(region, data + at)
                        }
                    },
                },
            };
            let len = piece.len;
            each(at - start, piece);
            at += len;
        }
    }

    /// Checks a range that is about to be written, and allocates space for it.
    fn prepare_write(&mut self, offset: u64, len: usize) -> Result<(), PcmError> {
        self.check(offset, len)?;
        let PcmStorage::Image { region, data, extents, flush, .. } = &mut self.storage else {
            return Ok(());
        };
        if len == 0 {
            return Ok(());
        }
        if let Some(flush) = flush {
            flush.has_changes = true;
        }
        let (first, last) =
            (offset as usize / EXTENT_BYTES, (offset as usize + len - 1) / EXTENT_BYTES);
        for (i, extent) in (first..=last).zip(&mut extents[first..=last]) {
            if *extent == ImageExtentState::Allocated {
                continue;
            }
            let at = i * EXTENT_BYTES;
            let bytes = EXTENT_BYTES.min(self.config.bytes as usize - at);
            if let Err(e) = image::reserve_range(region, *data + at, bytes) {
                self.stats.refused += 1;
                let offset = at as u64;
                return Err(match e.raw_os_error() {
                    Some(errno) if !image::is_disk_full(&e) => PcmError::HostDisk { offset, errno },
                    _ => PcmError::HostDiskFull { offset },
                });
            }
            *extent = ImageExtentState::Allocated;
            region.write(PAGE_BYTES + i, &[1]);
        }
        Ok(())
    }
}

enum SegmentSource<'a> {
    Region(&'a SharedRegion, usize),
    Zeros,
    /// A sector number, and the bytes of its pattern to skip.
    Pattern(u64, usize),
}

struct ReadSegment<'a> {
    len: usize,
    source: SegmentSource<'a>,
}
