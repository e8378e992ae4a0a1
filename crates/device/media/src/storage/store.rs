//! [`Store`]: the storage of a NAND medium's sectors, out-of-band bytes and chunk records
//! ([`DataStore`](crate::DataStore)).
//!
//! The store knows locations, not rules: [`Nand`](crate::Nand) decides which accesses are allowed.
//! Invariant: a store to an image's mapping never fails for lack of space, which would kill the
//! process. Space for a chunk is allocated before the first access, and a failed allocation is an
//! error.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

mod discard;

use crate::layout::UnitInChunk;

use mem::SharedRegion;
use serde::{Deserialize, Serialize};

use crate::chunk::ChunkRecord;
use crate::faults::fault_model::FailureModel;
use crate::storage::host_flush::errno_of;
use crate::storage::image::{
    self, ImageSpec, MediumKind, OpenError, OpenMode, PAGE_BYTES, reserve_tables,
};
use crate::storage::sector_buffers::{Holder, SectorBufferStats, SectorBuffers};
use crate::storage::synced_records::{ImageLog, SyncedRecords};
use crate::{
    BufferSlot, ChunkId, DataStore, HostFlushStats, MediaConfig, MediaError, NandConfig,
    NandLayout, PcmConfig, PhysSector, fill_pattern,
};

/// Offsets of the areas of an image in bytes.
#[derive(Clone, Copy, Debug)]
struct Areas {
    table: usize,
    marks: usize,
    oob: usize,
    data: usize,
    end: usize,
}

impl Areas {
    fn new(layout: &NandLayout) -> Areas {
        let chunks = layout.chunk_count() as usize;
        let sectors = layout.sector_count() as usize;
        let table = PAGE_BYTES;
        let marks = (table + 8 * chunks).next_multiple_of(PAGE_BYTES);
        let units = chunks * layout.units_per_chunk() as usize;
        let oob = (marks + units).next_multiple_of(PAGE_BYTES);
        let data = (oob + sectors * layout.oob_bytes() as usize).next_multiple_of(PAGE_BYTES);
        let end = (data + sectors * layout.sector_bytes() as usize).next_multiple_of(PAGE_BYTES);
        Areas { table, marks, oob, data, end }
    }
}

/// An array of per-sector bytes in a region.
#[derive(Debug, Serialize, Deserialize)]
struct Area {
    region: Arc<SharedRegion>,
    base: usize,
    bytes_per_sector: usize,
}

impl Clone for Area {
    /// # Panics
    /// If there is no address space for another mapping.
    fn clone(&self) -> Area {
        let copied = self.region.duplicate();
        let region = copied.unwrap_or_else(|e| panic!("no memory for a copy of a medium: {e}"));
        Area { region, ..*self }
    }
}

impl Clone for Store {
    /// Copies the data into memory, even if it is in an image.
    fn clone(&self) -> Store {
        Store {
            buffers: self.buffers.clone(),
            image_data: self.image_data.clone(),
            oob: self.oob.clone(),
            image: None,
            layout: self.layout,
        }
    }
}

impl Area {
    #[inline]
    fn offset(&self, phys: PhysSector) -> usize {
        self.base + phys.0 as usize * self.bytes_per_sector
    }

    /// Stores the bytes of one sector in another; zeros without a source.
    fn copy_sector(&self, from: Option<PhysSector>, to: PhysSector) {
        let (region, at, len) = (&self.region, self.offset(to), self.bytes_per_sector);
        match from {
            Some(from) => SharedRegion::copy(region, self.offset(from), region, at, len),
            None => region.fill(at, len, 0),
        }
    }
}

/// The state that only an image has.
#[derive(Debug)]
struct ImageFile {
    region: Arc<SharedRegion>,
    areas: Areas,
    /// The allocation state of each chunk.
    allocations: Vec<ChunkAllocation>,
    /// Whether the next allocation is to fail.
    fail_next_allocation: bool,
    /// The records on the host's device, if flushes reach it.
    synced: Option<Box<SyncedRecords>>,
    _lock: Option<image::FileLock>,
}

/// Whether space for a chunk is allocated in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkAllocation {
    /// Unknown: the chunk must not be accessed.
    Unknown,
    /// Space was allocated when the chunk was programmed, so it may be read. A copy of the image
    /// may have holes instead of zeros, so it may not be written.
    Readable,
    /// Space is allocated.
    Allocated,
}

/// Mark of a unit in an image: a power cut interrupted its program.
const TORN: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Store {
    /// The slots of the write buffer, and the sectors of a medium in memory; `None` if the medium
    /// stores no data.
    buffers: Option<SectorBuffers>,
    /// The sectors of a medium in an image.
    image_data: Option<Area>,
    oob: Option<Area>,
    #[serde(skip)]
    image: Option<ImageFile>,
    layout: NandLayout,
}

/// A store, with the seed of its medium.
pub(crate) struct OpenedStore {
    pub(crate) store: Store,
    pub(crate) records: Vec<ChunkRecord>,
    /// The seed with which the medium was created.
    pub(crate) seed: u64,
}

impl Store {
    /// Opens the store of a medium whose configuration was checked.
    pub(crate) fn open(
        config: &NandConfig,
        layout: NandLayout,
        mode: OpenMode,
    ) -> Result<OpenedStore, OpenError> {
        let failures = FailureModel::new(config, config.seed);
        let first = |chunk| {
            if failures.is_factory_bad(chunk) {
                ChunkRecord::FACTORY_BAD
            } else {
                ChunkRecord::ERASED
            }
        };
        let chunks = || (0..layout.chunk_count()).map(ChunkId);
        let sectors = layout.sector_count() as usize;
        let (each, oob_each) = (layout.sector_bytes() as usize, layout.oob_bytes() as usize);
        let mut store = Store { buffers: None, image_data: None, oob: None, image: None, layout };
        let no_memory =
            |bytes: usize| move |error| OpenError::Memory { bytes: bytes as u64, error };
        match &config.data {
            DataStore::None => {}
            DataStore::Memory | DataStore::Preallocated(_) => {
                let buffers = SectorBuffers::new(sectors, each);
                let buffers = buffers.map_err(no_memory(sectors * each))?;
                let prealloc = config.data.preallocated().min((sectors * each) as u64) as usize;
                buffers.populate(prealloc).map_err(no_memory(prealloc))?;
                store.buffers = Some(buffers);
                if oob_each > 0 {
                    let bytes = sectors * oob_each;
                    let region = SharedRegion::anonymous(bytes).map_err(no_memory(bytes))?;
                    store.oob = Some(Area { region, base: 0, bytes_per_sector: oob_each });
                }
            }
            DataStore::File(path) | DataStore::DurableFile(path) | DataStore::Overlay(path) => {
                let areas = Areas::new(&layout);
                let identity = identity(config, &areas);
                let blueprint = ImageSpec {
                    path,
                    overlay: matches!(config.data, DataStore::Overlay(_)),
                    kind: MediumKind::Nand,
                    identity: &identity,
                    creation_values: &[config.seed, config.errors.factory_bad.to_bits()],
                    bytes: areas.end,
                    table_bytes: areas.oob,
                };
                let opened = blueprint.open_or_create(mode, |region| {
                    for chunk in chunks() {
                        let word = region.atomic_u64(areas.table + 8 * chunk.0 as usize);
                        word.store(first(chunk).to_image_word(), Ordering::Relaxed);
                    }
                })?;
                let region = opened.region;
                let log = ImageLog::open(config, opened.file, areas.end as u64, &layout)?;
                let mut records = Vec::with_capacity(layout.chunk_count() as usize);
                match log.lost_since_flush() {
                    Some(flushed) => records.extend_from_slice(flushed),
                    None => {
                        for chunk in chunks() {
                            let word = region.atomic_u64(areas.table + 8 * chunk.0 as usize);
                            let word = word.load(Ordering::Relaxed);
                            let damaged =
                                || OpenError::Damaged { path: path.clone(), chunk: chunk.0, word };
                            let record = ChunkRecord::from_image_word(word, &layout);
                            records.push(record.ok_or_else(damaged)?);
                        }
                    }
                }
                reserve_tables(&region, path, areas.oob)?;
                let used = |r: &ChunkRecord| r.write_pointer() > 0 || !r.has_no_flags();
                let room =
                    |r| if used(r) { ChunkAllocation::Readable } else { ChunkAllocation::Unknown };
                let room = records.iter().map(room).collect();
                let area =
                    |at, each| Area { region: region.clone(), base: at, bytes_per_sector: each };
                store.buffers = Some(SectorBuffers::new(0, each).map_err(no_memory(0))?);
                store.image_data = Some(area(areas.data, each));
                store.oob = (oob_each > 0).then(|| area(areas.oob, oob_each));
                let (region, lock) = (region.clone(), opened.lock);
                let mut image = ImageFile {
                    region,
                    areas,
                    allocations: room,
                    fail_next_allocation: false,
                    synced: None,
                    _lock: lock,
                };
                if log.lost_since_flush().is_some() {
                    image.restore(&records, &layout);
                }
                image.synced = log.start(&records)?;
                store.image = Some(image);
                return Ok(OpenedStore { store, records, seed: opened.creation_values[0] });
            }
        }
        Ok(OpenedStore { store, records: chunks().map(first).collect(), seed: config.seed })
    }

    /// Whether sector data is stored.
    #[inline]
    pub(crate) fn stores_data(&self) -> bool {
        self.buffers.is_some()
    }

    /// Allocates space for all data of a chunk, which is about to be written. `records` are the
    /// present ones.
    #[inline]
    pub(crate) fn allocate_chunk(
        &mut self,
        chunk: ChunkId,
        records: &[ChunkRecord],
    ) -> Result<(), MediaError> {
        match &mut self.image {
            Some(image) if image.allocations[chunk.0 as usize] != ChunkAllocation::Allocated => {
                image.keep_flushed(chunk, records)?;
                image.allocate_chunk(chunk, &self.layout)
            }
            _ => Ok(()),
        }
    }

    /// Makes the first write to an erased chunk look whether its old contents are needed after a
    /// crash of the host.
    #[inline]
    pub(crate) fn on_erase(&mut self, chunk: ChunkId) {
        if let Some(ImageFile { synced: Some(_), allocations, .. }) = &mut self.image {
            let allocation = &mut allocations[chunk.0 as usize];
            if *allocation == ChunkAllocation::Allocated {
                *allocation = ChunkAllocation::Readable;
            }
        }
    }

    /// Makes the next allocation fail.
    pub(crate) fn fail_next_allocation(&mut self) {
        if let Some(image) = &mut self.image {
            image.fail_next_allocation = true;
        }
    }

    /// Stores a chunk's record, after all earlier stores.
    #[inline]
    pub(crate) fn record(&self, chunk: ChunkId, record: ChunkRecord) {
        if let Some(image) = &self.image {
            let word = image.region.atomic_u64(image.areas.table + 8 * chunk.0 as usize);
            word.store(record.to_image_word(), Ordering::Release);
        }
    }

    /// Stores a chunk's record, after all earlier stores and before all later ones.
    pub(crate) fn record_and_fence(&self, chunk: ChunkId, record: ChunkRecord) {
        self.record(chunk, record);
        fence(Ordering::SeqCst);
    }

    /// Clears a chunk's marks.
    pub(crate) fn clear_marks(&self, chunk: ChunkId) {
        if let Some(image) = &self.image {
            let units = self.layout.units_per_chunk() as usize;
            image.region.fill(image.areas.marks + chunk.0 as usize * units, units, 0);
        }
    }

    /// Marks a unit as torn.
    pub(crate) fn mark_torn(&self, chunk: ChunkId, unit: UnitInChunk) {
        if let Some(image) = &self.image {
            let at = chunk.0 as usize * self.layout.units_per_chunk() as usize + unit.index();
            image.region.write(image.areas.marks + at, &[TORN]);
        }
    }

    /// Returns the units of a chunk that are marked as torn.
    pub(crate) fn torn_units(&self, chunk: ChunkId) -> Vec<u32> {
        let Some(image) = &self.image else {
            return Vec::new();
        };
        let mut marks = vec![0; self.layout.units_per_chunk() as usize];
        image.region.read(image.areas.marks + chunk.0 as usize * marks.len(), &mut marks);
        (0..).zip(marks).filter(|(_, m)| m & TORN != 0).map(|(unit, _)| unit).collect()
    }

    /// Whether a sector may be accessed: in an image, a hole may not, because the disk may be full.
    #[inline]
    fn is_accessible(&self, phys: PhysSector) -> bool {
        let chunk = self.layout.chunk_of(phys).0 as usize;
        self.image.as_ref().is_none_or(|i| i.allocations[chunk] != ChunkAllocation::Unknown)
    }

    /// Returns the region and the offset of a sector whose data is to be written; `None` if the
    /// medium stores no data.
    #[inline]
    fn sector_to_write(&mut self, phys: PhysSector) -> Option<(&SharedRegion, usize)> {
        match &self.image_data {
            Some(data) => Some((&data.region, data.offset(phys))),
            None => Some(self.buffers.as_mut()?.allocate_for_copy(Holder::Sector(phys))),
        }
    }

    /// Returns the region and the offset of the data of a sector; `None` for zeros.
    #[inline]
    fn sector_data(&self, phys: PhysSector) -> Option<(&SharedRegion, usize)> {
        match &self.image_data {
            // A hole of an image may not be accessed, because the disk may be full.
            Some(data) if self.is_accessible(phys) => Some((&data.region, data.offset(phys))),
            Some(_) => None,
            None => self.buffers.as_ref()?.data(Holder::Sector(phys)),
        }
    }

    #[inline]
    pub(crate) fn copy_in(&mut self, phys: PhysSector, from: &SharedRegion, offset: usize) {
        let len = self.layout.sector_bytes() as usize;
        if let Some((region, at)) = self.sector_to_write(phys) {
            SharedRegion::copy(from, offset, region, at, len);
        }
    }

    #[inline]
    pub(crate) fn copy_out(&self, phys: PhysSector, to: &SharedRegion, offset: usize) {
        let len = self.layout.sector_bytes() as usize;
        match self.sector_data(phys) {
            Some((region, at)) => SharedRegion::copy(region, at, to, offset, len),
            None if self.stores_data() => to.fill(offset, len, 0),
            None => {
                let mut pattern = [0; 4096];
                for at in (0..len).step_by(pattern.len()) {
                    let piece = &mut pattern[..len.min(4096)];
                    crate::fill_pattern_from(phys.0.into(), at, piece);
                    to.write(offset + at, piece);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn write(&mut self, phys: PhysSector, bytes: &[u8]) {
        if let Some((region, at)) = self.sector_to_write(phys) {
            region.write(at, bytes);
        }
    }

    pub(crate) fn read(&self, phys: PhysSector, into: &mut [u8]) {
        match self.sector_data(phys) {
            Some((region, at)) => region.read(at, into),
            None if self.stores_data() => into.fill(0),
            None => fill_pattern(phys.0.into(), into),
        }
    }

    /// Stores the data and the out-of-band bytes of one sector in another.
    pub(crate) fn copy_sector(&mut self, from: PhysSector, to: PhysSector) {
        // A hole of an image is not accessed.
        let source = self.is_accessible(from).then_some(from);
        match (&self.image_data, &mut self.buffers) {
            (Some(data), _) => data.copy_sector(source, to),
            (None, Some(buffers)) => buffers.share(Holder::Sector(from), Holder::Sector(to)),
            (None, None) => {}
        }
        if let Some(oob) = &self.oob {
            oob.copy_sector(source, to);
        }
    }

    /// Replaces the slots of the write buffer by `slots` empty ones.
    pub(crate) fn set_slots(&mut self, slots: u32) -> std::io::Result<()> {
        self.buffers.as_mut().map_or(Ok(()), |buffers| buffers.set_slots(slots))
    }

    /// Returns the region and the offset of a slot whose data is to be written; `None` if the medium
    /// stores no data.
    #[inline]
    pub(crate) fn slot_to_write(&mut self, slot: BufferSlot) -> Option<(&SharedRegion, usize)> {
        self.buffers.as_mut().map(|buffers| buffers.allocate_for_copy(Holder::Slot(slot)))
    }

    /// Writes contents of the FTL to the start of a slot; the remaining bytes are 0.
    pub(crate) fn write_slot(&mut self, slot: BufferSlot, bytes: &[u8]) {
        let Some(buffers) = &mut self.buffers else { return };
        if bytes.is_empty() {
            return buffers.clear(Holder::Slot(slot));
        }
        let (region, at) = buffers.allocate(Holder::Slot(slot));
        region.write(at, bytes);
        region.fill(at + bytes.len(), self.layout.sector_bytes() as usize - bytes.len(), 0);
    }

    /// Returns the region and the offset of a slot's data; `None` for zeros.
    #[inline]
    pub(crate) fn slot_data(&self, slot: BufferSlot) -> Option<(&SharedRegion, usize)> {
        self.buffers.as_ref()?.data(Holder::Slot(slot))
    }

    /// Stores the data of a slot in a sector: by reference, or as a copy in an image.
    #[inline]
    pub(crate) fn store_slot(&mut self, slot: BufferSlot, phys: PhysSector) {
        match (&self.image_data, &mut self.buffers) {
            (Some(data), Some(buffers)) => {
                let (at, len) = (data.offset(phys), data.bytes_per_sector);
                match buffers.data(Holder::Slot(slot)) {
                    Some((from, offset)) => {
                        SharedRegion::copy(from, offset, &data.region, at, len);
                    }
                    None => data.region.fill(at, len, 0),
                }
            }
            (None, Some(buffers)) => buffers.share(Holder::Slot(slot), Holder::Sector(phys)),
            (_, None) => {}
        }
    }

    /// Loads the data of a sector into a slot: by reference, or as a copy from an image.
    #[inline]
    pub(crate) fn load_slot(&mut self, phys: PhysSector, slot: BufferSlot) {
        let is_accessible = self.is_accessible(phys);
        match (&self.image_data, &mut self.buffers) {
            (Some(data), Some(buffers)) if is_accessible => {
                let (region, at) = buffers.allocate_for_copy(Holder::Slot(slot));
                let len = data.bytes_per_sector;
                SharedRegion::copy(&data.region, data.offset(phys), region, at, len);
            }
            (Some(_), Some(buffers)) => buffers.clear(Holder::Slot(slot)),
            (None, Some(buffers)) => buffers.share(Holder::Sector(phys), Holder::Slot(slot)),
            (_, None) => {}
        }
    }

    /// Returns the counters of the buffers.
    pub(crate) fn buffer_stats(&self) -> SectorBufferStats {
        self.buffers.as_ref().map_or_else(Default::default, SectorBuffers::stats)
    }

    #[inline]
    pub(crate) fn write_oob(&self, phys: PhysSector, bytes: &[u8]) {
        if let Some(oob) = &self.oob {
            let at = oob.offset(phys);
            oob.region.write(at, bytes);
            oob.region.fill(at + bytes.len(), oob.bytes_per_sector - bytes.len(), 0);
        }
    }

    /// Writes out-of-band bytes of a sector from byte `offset` on.
    pub(crate) fn write_oob_at(&self, phys: PhysSector, offset: usize, bytes: &[u8]) {
        if let Some(oob) = &self.oob {
            oob.region.write(oob.offset(phys) + offset, bytes);
        }
    }

    /// Reads out-of-band bytes of a sector from byte `offset` on; zeros where none are stored.
    #[inline]
    pub(crate) fn read_oob_at(&self, phys: PhysSector, offset: usize, into: &mut [u8]) {
        let mut stored = 0;
        if let Some(oob) = self.oob.as_ref().filter(|_| self.is_accessible(phys)) {
            stored = into.len().min(oob.bytes_per_sector.saturating_sub(offset));
            oob.region.read(oob.offset(phys) + offset, &mut into[..stored]);
        }
        into[stored..].fill(0);
    }

    /// Waits until the host's device has all data, if flushes reach it.
    pub(crate) fn flush_to_host(&mut self, records: &[ChunkRecord]) -> std::io::Result<()> {
        self.synced_mut().map_or(Ok(()), |synced| synced.flush(records))
    }

    /// Waits until the host's device has all data, and ends the log of flushed records.
    pub(crate) fn close(&mut self, records: &[ChunkRecord]) -> std::io::Result<()> {
        match self.synced_mut() {
            Some(synced) => synced.close(records),
            None => self.sync(),
        }
    }

    /// Returns the log of flushed records, if flushes reach the host's device.
    pub(crate) fn synced_mut(&mut self) -> Option<&mut SyncedRecords> {
        self.image.as_mut()?.synced.as_deref_mut()
    }

    /// Returns the counters of flushes, if they reach the host's device.
    pub(crate) fn host_flush_stats(&self) -> Option<HostFlushStats> {
        Some(self.image.as_ref()?.synced.as_ref()?.stats())
    }

    /// Waits until all data is on the image's device.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.image.as_ref().map_or(Ok(()), |i| i.region.sync())
    }
}

impl ImageFile {
    /// Stores the records of the last flush after a crash of the host.
    fn restore(&self, records: &[ChunkRecord], layout: &NandLayout) {
        let units = layout.units_per_chunk() as usize;
        for (i, record) in records.iter().enumerate() {
            let word = self.region.atomic_u64(self.areas.table + 8 * i);
            word.store(record.to_image_word(), Ordering::Release);
            // Marks of units that were torn after the flush.
            let first = layout.unit_of(record.write_pointer()).index().min(units);
            self.region.fill(self.areas.marks + i * units + first, units - first, 0);
        }
    }

    /// Flushes before a write replaces data of a chunk that the last flush refers to.
    #[cold]
    fn keep_flushed(&mut self, chunk: ChunkId, records: &[ChunkRecord]) -> Result<(), MediaError> {
        let Some(synced) = &mut self.synced else { return Ok(()) };
        if !synced.refers_to_erased(chunk, records[chunk.0 as usize]) {
            return Ok(());
        }
        synced
            .flush(records)
            .map_err(|error| MediaError::HostFlush { chunk, errno: errno_of(&error) })
    }

    #[cold]
    fn allocate_chunk(&mut self, chunk: ChunkId, layout: &NandLayout) -> Result<(), MediaError> {
        if std::mem::take(&mut self.fail_next_allocation) {
            return Err(MediaError::HostDiskFull { chunk });
        }
        let sectors = layout.sectors_per_chunk() as usize;
        for (area, each) in
            [(self.areas.data, layout.sector_bytes()), (self.areas.oob, layout.oob_bytes())]
        {
            let bytes = sectors * each as usize;
            if bytes > 0 {
                let reserved =
                    image::reserve_range(&self.region, area + chunk.0 as usize * bytes, bytes);
                reserved.map_err(|e| match e.raw_os_error() {
                    Some(errno) if !image::is_disk_full(&e) => {
                        MediaError::HostDisk { chunk, errno }
                    }
                    _ => MediaError::HostDiskFull { chunk },
                })?;
            }
        }
        self.allocations[chunk.0 as usize] = ChunkAllocation::Allocated;
        Ok(())
    }
}

fn identity(config: &NandConfig, areas: &Areas) -> [(&'static str, u64); 16] {
    let g = &config.geometry;
    [
        ("number of channels", g.channels.into()),
        ("number of PUs per channel", g.pus.into()),
        ("number of planes", g.planes.into()),
        ("number of chunks per PU", g.chunks.into()),
        ("number of pages per chunk", g.pages.into()),
        ("page_bytes", g.page_bytes.into()),
        ("sector_bytes", g.sector_bytes.into()),
        ("oob_bytes", g.oob_bytes.into()),
        ("number of bits per cell", config.cell.bits().into()),
        ("one_shot (0 no, 1 yes)", config.one_shot.into()),
        ("pair_distance", config.paired_page_distance.into()),
        ("offset of the chunk table", areas.table as u64),
        ("offset of the marks", areas.marks as u64),
        ("offset of the out-of-band bytes", areas.oob as u64),
        ("offset of the data", areas.data as u64),
        ("length", areas.end as u64),
    ]
}

/// Returns the maximum memory of a medium in bytes, reached when all of it has been written. Pages
/// of an image in the page cache are not counted, because the operating system can reclaim them.
pub fn estimate_memory(config: &MediaConfig) -> u64 {
    match config {
        MediaConfig::Null { .. } => 0,
        MediaConfig::Pcm(PcmConfig { data, bytes, .. }) => match data {
            DataStore::Memory | DataStore::Preallocated(_) => *bytes,
            DataStore::Overlay(_) => *bytes + bytes.div_ceil(crate::pcm::EXTENT_BYTES as u64),
            DataStore::File(_) | DataStore::DurableFile(_) => {
                bytes.div_ceil(crate::pcm::EXTENT_BYTES as u64)
            }
            DataStore::None => 0,
        },
        MediaConfig::Nand(config) => {
            let g = &config.geometry;
            let chunks = u64::from(g.total_pus()) * u64::from(g.chunks);
            let records = chunks * size_of::<ChunkRecord>() as u64;
            let sectors = chunks * u64::from(g.sectors_per_chunk());
            match config.data {
                DataStore::None => records,
                DataStore::File(_) => records + chunks,
                DataStore::DurableFile(_) => 2 * records + chunks,
                DataStore::Memory | DataStore::Preallocated(_) => {
                    let table = SectorBuffers::TABLE_BYTES_PER_SECTOR;
                    records + sectors * (u64::from(g.sector_bytes) + u64::from(g.oob_bytes) + table)
                }
                DataStore::Overlay(_) => {
                    let areas = Areas::new(&NandLayout::new(config));
                    records + chunks + areas.end as u64
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_medium_needs_what_it_keeps() {
        let mut nand = testing::config();
        // 20 chunks of 48 sectors of 512 + 16 bytes, and 5 bytes of tables for each in memory.
        for (data, bytes) in [
            (DataStore::None, 20 * 8),
            (DataStore::File("x".into()), 20 * 9),
            (DataStore::Memory, 20 * 8 + 20 * 48 * 533),
            (DataStore::Preallocated(4096), 20 * 8 + 20 * 48 * 533),
        ] {
            nand.data = data;
            assert_eq!(estimate_memory(&MediaConfig::Nand(nand.clone())), bytes);
        }
        assert_eq!(estimate_memory(&MediaConfig::Null { bytes: 1 << 40, sector_bytes: 512 }), 0);
    }

    #[test]
    fn areas_follow_each_other_on_pages() {
        let layout = NandLayout::new(&testing::config());
        let a = Areas::new(&layout);
        assert_eq!((a.table, a.marks, a.oob, a.data, a.end), (4096, 8192, 12288, 28672, 520_192));
    }
}
