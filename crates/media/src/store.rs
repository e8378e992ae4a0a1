//! [`Store`]: where a NAND medium's sectors, out-of-band bytes and records are kept
//! ([`DataStore`](crate::DataStore)).
//!
//! Knows places, not rules: [`Nand`](crate::Nand) says what may be read and written. Guarantees that
//! no store to an image's mapping can fail for want of room (which would kill the process): room is
//! made for a chunk before anything of it is touched, and asked for as an error.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ring::Region;

use crate::chunk::Record;
use crate::draw::Failures;
use crate::image::{self, Blueprint, Kind, Mode, OpenError, PAGE, make_room_for_tables};
use crate::{
    ChunkId, DataStore, Layout, MediaConfig, MediaError, NandConfig, PcmConfig, Psn, fill_pattern,
};

/// Where the areas of an image are, in bytes from its start.
#[derive(Clone, Copy, Debug)]
struct Areas {
    table: usize,
    marks: usize,
    oob: usize,
    data: usize,
    end: usize,
}

impl Areas {
    fn of(layout: &Layout) -> Areas {
        let chunks = layout.chunk_count() as usize;
        let sectors = layout.sector_count() as usize;
        let table = PAGE;
        let marks = (table + 8 * chunks).next_multiple_of(PAGE);
        let units = chunks * layout.units_per_chunk() as usize;
        let oob = (marks + units).next_multiple_of(PAGE);
        let data = (oob + sectors * layout.oob_bytes() as usize).next_multiple_of(PAGE);
        let end = (data + sectors * layout.sector_bytes() as usize).next_multiple_of(PAGE);
        Areas { table, marks, oob, data, end }
    }
}

/// Bytes per sector at some place of a region.
#[derive(Debug)]
struct Area {
    region: Arc<Region>,
    at: usize,
    each: usize,
}

impl Clone for Area {
    /// # Panics
    /// When there is no address space for another mapping: as for any other memory.
    fn clone(&self) -> Area {
        let copied = self.region.duplicate();
        let region = copied.unwrap_or_else(|e| panic!("no memory for a copy of a medium: {e}"));
        Area { region, ..*self }
    }
}

impl Clone for Store {
    /// A copy in memory, also of what is in an image.
    fn clone(&self) -> Store {
        Store { data: self.data.clone(), oob: self.oob.clone(), image: None, layout: self.layout }
    }
}

impl Area {
    #[inline]
    fn offset(&self, psn: Psn) -> usize {
        self.at + psn.0 as usize * self.each
    }
}

/// What only an image has.
#[derive(Debug)]
struct ImageFile {
    region: Arc<Region>,
    areas: Areas,
    /// Which chunks have room.
    room: Vec<Room>,
    /// Whether the next request for room is to fail.
    refuse: bool,
    _lock: Option<image::Lock>,
}

/// Whether a chunk's ranges of an image have room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Not known: nothing of the chunk may be touched.
    Unknown,
    /// There was room when it was programmed, so it may be read; a copy of the image that left out
    /// zeros may have none for more.
    Read,
    /// There is.
    Made,
}

/// A mark of a unit in an image: power was cut while it was programmed.
const TORN: u8 = 1;

#[derive(Debug)]
pub(crate) struct Store {
    data: Option<Area>,
    oob: Option<Area>,
    image: Option<ImageFile>,
    layout: Layout,
}

/// A store with what it knew of the medium.
pub(crate) struct Found {
    pub(crate) store: Store,
    pub(crate) records: Vec<Record>,
    /// The medium's seed: the one it was created with.
    pub(crate) seed: u64,
}

impl Store {
    /// The store of a medium that passed its checks.
    pub(crate) fn of(config: &NandConfig, layout: Layout, mode: Mode) -> Result<Found, OpenError> {
        let failures = Failures::of(config, config.seed);
        let first = |chunk| {
            if failures.factory(chunk) { Record::FACTORY_BAD } else { Record::FRESH }
        };
        let chunks = || (0..layout.chunk_count()).map(ChunkId);
        let sectors = layout.sector_count() as usize;
        let (each, oob_each) = (layout.sector_bytes() as usize, layout.oob_bytes() as usize);
        let mut store = Store { data: None, oob: None, image: None, layout };
        match &config.data {
            DataStore::None => {}
            DataStore::Memory => {
                let area = |each: usize| {
                    let bytes = sectors * each;
                    let region = Region::anonymous(bytes)
                        .map_err(|error| OpenError::Memory { bytes: bytes as u64, error })?;
                    Ok::<_, OpenError>(Area { region, at: 0, each })
                };
                store.data = Some(area(each)?);
                store.oob = if oob_each > 0 { Some(area(oob_each)?) } else { None };
            }
            DataStore::File(path) | DataStore::Overlay(path) => {
                let areas = Areas::of(&layout);
                let identity = identity(config, &areas);
                let blueprint = Blueprint {
                    path,
                    overlay: matches!(config.data, DataStore::Overlay(_)),
                    kind: Kind::Nand,
                    identity: &identity,
                    kept: &[config.seed, config.errors.factory_bad.to_bits()],
                    bytes: areas.end,
                    tables: areas.oob,
                };
                let opened = blueprint.build(mode, |region| {
                    for chunk in chunks() {
                        let word = region.word(areas.table + 8 * chunk.0 as usize);
                        word.store(first(chunk).sealed(), Ordering::Relaxed);
                    }
                })?;
                let region = opened.region;
                let mut records = Vec::with_capacity(layout.chunk_count() as usize);
                for chunk in chunks() {
                    let word = region.word(areas.table + 8 * chunk.0 as usize);
                    let word = word.load(Ordering::Relaxed);
                    let damaged =
                        || OpenError::Damaged { path: path.clone(), chunk: chunk.0, word };
                    records.push(Record::unsealed(word, &layout).ok_or_else(damaged)?);
                }
                make_room_for_tables(&region, path, areas.oob)?;
                let used = |r: &Record| r.pointer() > 0 || !r.is_plain();
                let room = |r| if used(r) { Room::Read } else { Room::Unknown };
                let room = records.iter().map(room).collect();
                let area = |at, each| Area { region: region.clone(), at, each };
                store.data = Some(area(areas.data, each));
                store.oob = (oob_each > 0).then(|| area(areas.oob, oob_each));
                let (region, lock) = (region.clone(), opened.lock);
                store.image = Some(ImageFile { region, areas, room, refuse: false, _lock: lock });
                return Ok(Found { store, records, seed: opened.kept[0] });
            }
        }
        Ok(Found { store, records: chunks().map(first).collect(), seed: config.seed })
    }

    /// Whether sectors are kept.
    #[inline]
    pub(crate) fn keeps(&self) -> bool {
        self.data.is_some()
    }

    /// Makes sure that everything of a chunk can be written.
    #[inline]
    pub(crate) fn prepare(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        match &mut self.image {
            Some(image) if image.room[chunk.0 as usize] != Room::Made => {
                image.prepare(chunk, &self.layout)
            }
            _ => Ok(()),
        }
    }

    /// Makes the next request for room fail.
    pub(crate) fn refuse_room(&mut self) {
        if let Some(image) = &mut self.image {
            image.refuse = true;
        }
    }

    /// Records a chunk's state, after everything written before.
    #[inline]
    pub(crate) fn record(&self, chunk: ChunkId, record: Record) {
        if let Some(image) = &self.image {
            let word = image.region.word(image.areas.table + 8 * chunk.0 as usize);
            word.store(record.sealed(), Ordering::Release);
        }
    }

    /// Records a chunk's state, before anything written afterwards as well.
    pub(crate) fn record_first(&self, chunk: ChunkId, record: Record) {
        self.record(chunk, record);
        fence(Ordering::SeqCst);
    }

    /// Forgets a chunk's marks.
    pub(crate) fn clear_marks(&self, chunk: ChunkId) {
        if let Some(image) = &self.image {
            let units = self.layout.units_per_chunk() as usize;
            image.region.fill(image.areas.marks + chunk.0 as usize * units, units, 0);
        }
    }

    /// Marks a unit as torn.
    pub(crate) fn mark_torn(&self, chunk: ChunkId, unit: u32) {
        if let Some(image) = &self.image {
            let at = chunk.0 as usize * self.layout.units_per_chunk() as usize + unit as usize;
            image.region.write(image.areas.marks + at, &[TORN]);
        }
    }

    /// Units of a chunk that are marked as torn.
    pub(crate) fn torn_units(&self, chunk: ChunkId) -> Vec<u32> {
        let Some(image) = &self.image else {
            return Vec::new();
        };
        let mut marks = vec![0; self.layout.units_per_chunk() as usize];
        image.region.read(image.areas.marks + chunk.0 as usize * marks.len(), &mut marks);
        (0..).zip(marks).filter(|(_, m)| m & TORN != 0).map(|(unit, _)| unit).collect()
    }

    /// Whether a sector's place may be touched: a hole of an image may not, if its disk is full.
    #[inline]
    fn has_room(&self, psn: Psn) -> bool {
        let chunk = self.layout.chunk_of(psn).0 as usize;
        self.image.as_ref().is_none_or(|i| i.room[chunk] != Room::Unknown)
    }

    #[inline]
    pub(crate) fn copy_in(&self, psn: Psn, from: &Region, offset: usize) {
        if let Some(data) = &self.data {
            Region::copy(from, offset, &data.region, data.offset(psn), data.each);
        }
    }

    #[inline]
    pub(crate) fn copy_out(&self, psn: Psn, to: &Region, offset: usize) {
        let len = self.layout.sector_bytes() as usize;
        match &self.data {
            Some(data) if self.has_room(psn) => {
                Region::copy(&data.region, data.offset(psn), to, offset, len);
            }
            Some(_) => to.fill(offset, len, 0),
            None => {
                let mut pattern = [0; 4096];
                for at in (0..len).step_by(pattern.len()) {
                    let piece = &mut pattern[..len.min(4096)];
                    crate::fill_pattern_from(psn.0.into(), at, piece);
                    to.write(offset + at, piece);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn write(&self, psn: Psn, bytes: &[u8]) {
        if let Some(data) = &self.data {
            data.region.write(data.offset(psn), bytes);
        }
    }

    pub(crate) fn read(&self, psn: Psn, into: &mut [u8]) {
        match &self.data {
            Some(data) if self.has_room(psn) => data.region.read(data.offset(psn), into),
            Some(_) => into.fill(0),
            None => fill_pattern(psn.0.into(), into),
        }
    }

    #[inline]
    pub(crate) fn write_oob(&self, psn: Psn, bytes: &[u8]) {
        if let Some(oob) = &self.oob {
            let at = oob.offset(psn);
            oob.region.write(at, bytes);
            oob.region.fill(at + bytes.len(), oob.each - bytes.len(), 0);
        }
    }

    #[inline]
    pub(crate) fn read_oob(&self, psn: Psn, into: &mut [u8]) {
        let kept = match &self.oob {
            Some(oob) if self.has_room(psn) => {
                let kept = into.len().min(oob.each);
                oob.region.read(oob.offset(psn), &mut into[..kept]);
                kept
            }
            _ => 0,
        };
        into[kept..].fill(0);
    }

    /// Gives the memory or disk blocks of consecutive chunks back.
    pub(crate) fn release(&mut self, first: ChunkId, chunks: u32) -> std::io::Result<()> {
        let Some(data) = &self.data else {
            return Ok(());
        };
        let chunk_bytes = self.layout.sectors_per_chunk() as usize * data.each;
        let start = data.at + first.0 as usize * chunk_bytes;
        // Only pages that no other chunk shares.
        let end = (start + chunks as usize * chunk_bytes) & !(PAGE - 1);
        let start = start.next_multiple_of(PAGE);
        if start < end {
            data.region.discard(start, end - start)?;
            if let Some(image) = &mut self.image {
                let first = first.0 as usize;
                image.room[first..first + chunks as usize].fill(Room::Unknown);
            }
        }
        Ok(())
    }

    /// Waits until everything is on the image's device.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.image.as_ref().map_or(Ok(()), |i| i.region.sync())
    }
}

impl ImageFile {
    #[cold]
    fn prepare(&mut self, chunk: ChunkId, layout: &Layout) -> Result<(), MediaError> {
        if std::mem::take(&mut self.refuse) {
            return Err(MediaError::HostDiskFull { chunk });
        }
        let sectors = layout.sectors_per_chunk() as usize;
        for (area, each) in
            [(self.areas.data, layout.sector_bytes()), (self.areas.oob, layout.oob_bytes())]
        {
            let bytes = sectors * each as usize;
            if bytes > 0 {
                let reserved = image::reserve(&self.region, area + chunk.0 as usize * bytes, bytes);
                reserved.map_err(|e| match e.raw_os_error() {
                    Some(errno) if !image::is_full(&e) => MediaError::HostDisk { chunk, errno },
                    _ => MediaError::HostDiskFull { chunk },
                })?;
            }
        }
        self.room[chunk.0 as usize] = Room::Made;
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
        ("pair_distance", config.pair_distance.into()),
        ("offset of the chunk table", areas.table as u64),
        ("offset of the marks", areas.marks as u64),
        ("offset of the out-of-band bytes", areas.oob as u64),
        ("offset of the data", areas.data as u64),
        ("length", areas.end as u64),
    ]
}

/// Bytes of memory that a medium takes at most: what it keeps in memory when everything has been
/// written. The pages of an image that the operating system caches are not counted, since it takes
/// them back at will.
pub fn memory_needed(config: &MediaConfig) -> u64 {
    match config {
        MediaConfig::Null { .. } => 0,
        MediaConfig::Pcm(PcmConfig { data, bytes, .. }) => match data {
            DataStore::Memory => *bytes,
            DataStore::Overlay(_) => *bytes + bytes.div_ceil(crate::pcm::EXTENT as u64),
            DataStore::File(_) => bytes.div_ceil(crate::pcm::EXTENT as u64),
            DataStore::None => 0,
        },
        MediaConfig::Nand(config) => {
            let g = &config.geometry;
            let chunks = u64::from(g.total_pus()) * u64::from(g.chunks);
            let records = chunks * size_of::<Record>() as u64;
            let sectors = chunks * u64::from(g.sectors_per_chunk());
            match config.data {
                DataStore::None => records,
                DataStore::File(_) => records + chunks,
                DataStore::Memory => {
                    records + sectors * (u64::from(g.sector_bytes) + u64::from(g.oob_bytes))
                }
                DataStore::Overlay(_) => {
                    let areas = Areas::of(&Layout::of(config));
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
        // 20 chunks of 48 sectors of 512 + 16 bytes.
        for (data, bytes) in [
            (DataStore::None, 20 * 8),
            (DataStore::File("x".into()), 20 * 9),
            (DataStore::Memory, 20 * 8 + 20 * 48 * 528),
        ] {
            nand.data = data;
            assert_eq!(memory_needed(&MediaConfig::Nand(nand.clone())), bytes);
        }
        assert_eq!(memory_needed(&MediaConfig::Null { bytes: 1 << 40, sector_bytes: 512 }), 0);
    }

    #[test]
    fn areas_follow_each_other_on_pages() {
        let layout = Layout::of(&testing::config());
        let a = Areas::of(&layout);
        assert_eq!((a.table, a.marks, a.oob, a.data, a.end), (4096, 8192, 12288, 28672, 520_192));
    }
}
