//! [`Pblk::open`]: reads the chunk descriptors, and starts empty or recovers.
//!
//! The chunk information log page tells chunks apart ([LightNVM17 §4.2.2]: *free, partially
//! written, and fully written*). If all chunks are free, the device starts empty; otherwise
//! recovery scans what is written (`scan`).
//!
//! | chunk | treated as |
//! |---|---|
//! | free | free |
//! | open | padded until all its sectors are readable from media, then written further |
//! | closed, full | read |
//! | closed, not full | a program failed: read, its data relocated, the chunk retired |
//! | offline, never erased or written | factory bad: not part of the capacity |
//! | offline | grown bad: part of the capacity, which must not change |

use std::collections::VecDeque;
use std::sync::Arc;

use block::{AtomicLimits, Limits};
use driver::{ControllerInfo, OpenChannelInfo, QueuePair};
use ftl::{
    CapacityError, ChunkReport, DeviceL2pEntry, FlashGeometry, Ftl, FtlConfig, GcReadPriority, Lba,
    NewFtlError, Oob, PHYSICAL_SECTORS_MAX, Recovery, WriteSeq,
};
use nvme::{ChunkDescriptor, ChunkId, ChunkState, Geometry, PhysSector, VendorExtensions};
use transport::Port;

use super::buffer_memory::{SlotMemory, TrimRanges};
use super::read_tracker::PuReadTracker;
use super::requests::PblkRequestTable;
use super::scan::recover;
use super::sharded::find_shards;
use super::vector_backend::VectorBackend;
use super::{Pblk, PblkError, QUEUE_DEPTH, REQUEST_SECTORS_MAX};
use crate::rrpc::DeviceL2pEntries;
use ocssd::vector::{Addresses, VectorQueue};

/// The chunks to use, and the device L2P.
#[derive(Clone, Copy)]
struct ChunkSelection<'a> {
    /// Selects the chunks by index.
    owned: &'a dyn Fn(ChunkId) -> bool,
    /// Contents of the device L2P, if it is to be used.
    map: Option<DeviceL2pEntries<'a>>,
}

/// A queue pair of a drive without outstanding commands, and the port to the drive. The device that
/// is opened on it owns the queue pair.
#[derive(Debug)]
pub struct DriveQueue {
    /// The queue pair.
    pub queue: QueuePair,
    /// The port.
    pub port: Arc<Port>,
}

impl Pblk {
    /// Opens the drive that `info` describes, through `port`.
    ///
    /// - `queue` is a queue pair of the drive without outstanding commands; the device owns it from
    ///   now on.
    /// - `chunks` are the current descriptors of all chunks ([`driver::ControllerHandle::chunks`]).
    /// - `keeps_data` says whether the drive stores contents. If not, neither data nor out-of-band
    ///   bytes are transferred, and only a drive whose chunks are all free can be opened.
    ///
    /// If chunks are written, all durable data is recovered with commands to the drive; `progress` is
    /// called while waiting. Recovery can be interrupted at any time and repeated.
    ///
    /// # Errors
    /// [`PblkError`].
    pub fn open(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        queue: QueuePair,
        port: Arc<Port>,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Pblk, PblkError> {
        let all = |_: ChunkId| true;
        Pblk::open_on(info, chunks, &all, DriveQueue { queue, port }, config, progress, keeps_data)
    }

    /// Opens a drive with a device L2P that stores contents; otherwise as
    /// [`open_on`](Pblk::open_on).
    ///
    /// # Errors
    /// [`PblkError`].
    pub(crate) fn open_with_map(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(ChunkId) -> bool,
        map: DeviceL2pEntries<'_>,
        queue: DriveQueue,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<Pblk, PblkError> {
        let selection = ChunkSelection { owned, map: Some(map) };
        Pblk::open_from(info, chunks, selection, queue, config, progress, true)
    }

    /// Opens the device on the chunks for which `owned` returns true, by chunk index; otherwise as
    /// [`open`](Pblk::open). Every open must pass the same set of chunks, except those that the
    /// device was never granted.
    ///
    /// # Errors
    /// [`PblkError`].
    pub fn open_on(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(ChunkId) -> bool,
        queue: DriveQueue,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Pblk, PblkError> {
        let selection = ChunkSelection { owned, map: None };
        Pblk::open_from(info, chunks, selection, queue, config, progress, keeps_data)
    }

    fn open_from(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        selection: ChunkSelection<'_>,
        queue: DriveQueue,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Pblk, PblkError> {
        let ChunkSelection { owned, map } = selection;
        let DriveQueue { queue, port } = queue;
        let OpenChannelInfo { geometry, format, extensions, can_copy, .. } = info
            .open_channel
            .ok_or_else(|| PblkError::NotOpenChannel { serial: info.serial.clone() })?;
        check_geometry(info, &geometry, keeps_data)?;
        if !keeps_data && config.map_cache_sectors > 0 {
            return Err(NewFtlError::from(CapacityError::MapCacheWithoutData).into());
        }
        if config.vector_copy && !(can_copy && extensions.has(VendorExtensions::COPY_METADATA)) {
            return Err(PblkError::NoVectorCopy { serial: info.serial.clone() });
        }
        let shape = FlashGeometry::from_geometry(&geometry);
        let addresses = Addresses::new(shape, geometry, format);
        let found = ReportedChunks::from_descriptors(chunks, &addresses, owned)?;
        let mut queue = VectorQueue::new(queue, port.clone(), info)?;
        let mut recovered = None;
        let is_new = found.written == 0 && found.grown_bad == 0;
        let is_whole = !found.all.contains(&ChunkReport::NotOwned);
        let mut ftl = if let (Some(DeviceL2pEntries { totals, .. }), true) = (map, is_new) {
            // Earlier trims are not on the media, but the drive compares sequence numbers with
            // them.
            let from = WriteSeq(totals.seq_max.get().saturating_add(1));
            Ftl::new_with_device_l2p(shape, config, |chunk| found.all[chunk.index()], from)?
        } else if is_new {
            Ftl::new(shape, config, |chunk| found.all[chunk.index()])?
        } else if keeps_data {
            let named = |e| PblkError::from_recovery(e, &addresses);
            let recovery = match map {
                Some(DeviceL2pEntries { entries: map, totals }) => {
                    let entries = (0..).zip(map).filter_map(|(lba, at)| {
                        // The index is in range, because addresses were checked against the
                        // geometry.
                        let phys = u32::try_from(geometry.flat((*at)?)).unwrap_or(u32::MAX);
                        Some(DeviceL2pEntry { lba: Lba(lba), phys: PhysSector(phys) })
                    });
                    Recovery::from_device_l2p(
                        shape,
                        config,
                        found.all,
                        found.usable,
                        entries,
                        WriteSeq(totals.seq_max.get()),
                    )
                }
                None => Recovery::new(shape, config, found.all, found.usable),
            };
            let opened = recovery
                .map_err(named)
                .and_then(|recovery| recover(recovery, &mut queue, &addresses, progress));
            let (ftl, stats) = opened.map_err(|error| match error {
                error if is_whole && error.is_of_other_data() => {
                    name_shards(error, &mut queue, &addresses, chunks, progress)
                }
                error => error,
            })?;
            recovered = Some(stats);
            ftl
        } else if found.written > 0 {
            return Err(PblkError::CannotRecover { chunks: found.written });
        } else {
            // There is nothing to recover on a drive that does not store contents.
            Ftl::new(shape, config, |chunk| found.all[chunk.index()])?
        };
        ftl.import_wear(|chunk| {
            chunks.get(chunk.index()).map_or(0, |d| u32::from(d.wear_index) * ERASES_PER_WEAR_STEP)
        });
        let space = port.memory();
        let trims = if map.is_some() { Some(TrimRanges::new(space)?) } else { None };
        let slots = if keeps_data {
            Some(SlotMemory::new(space, ftl.slots(), geometry.sector_bytes, geometry.oob_bytes)?)
        } else {
            None
        };
        let limits = Limits {
            sector_bytes: geometry.sector_bytes,
            sectors: ftl.sectors(),
            max_sectors: REQUEST_SECTORS_MAX,
            optimal_sectors: geometry.ws_opt,
            queue_depth: QUEUE_DEPTH,
            volatile_cache: true,
            atomic: AtomicLimits {
                sectors: if config.atomic_writes { geometry.ws_opt } else { 1 },
                boundary_sectors: 0,
            },
        };
        let requests = PblkRequestTable::new(QUEUE_DEPTH);
        let waits = (config.gc_read_priority == GcReadPriority::PerPu)
            .then(|| PuReadTracker::new(*ftl.geometry()));
        Ok(Pblk {
            ftl,
            flash: VectorBackend::new(
                queue,
                addresses,
                slots,
                trims,
                requests,
                waits,
                config.vector_copy,
            ),
            limits,
            recovery_stats: recovered,
            pending_lookups: Vec::with_capacity(QUEUE_DEPTH as usize),
            completed: VecDeque::with_capacity(QUEUE_DEPTH as usize),
            // Lets the journal start or continue.
            has_new_requests: true,
            kick: true,
            maintenance: super::Maintenance::default(),
        })
    }
}

/// Returns [`PblkError::Sharded`] if the drive is one of a pblk in shards, else `error`, which its
/// recovery has returned.
fn name_shards(
    error: PblkError,
    queue: &mut VectorQueue,
    addresses: &Addresses,
    chunks: &[ChunkDescriptor],
    progress: &mut dyn FnMut(),
) -> PblkError {
    match find_shards(queue, addresses, chunks, progress) {
        Ok(Some(shards)) => PblkError::Sharded { shards },
        _ => error,
    }
}

/// Erases per step of the wear index: the index reaches 255 at about 3,000 cycles, the rating of
/// MLC [Thesis15 ch. 6 §2]. The drive does not report the size of its steps; erases that the host
/// counts itself are exact.
const ERASES_PER_WEAR_STEP: u32 = 12;

/// Rejects drives that the FTL cannot address, write or recover.
pub(super) fn check_geometry(
    info: &ControllerInfo,
    g: &Geometry,
    keeps_data: bool,
) -> Result<(), PblkError> {
    let shape = |what, value, allowed| Err(PblkError::Shape { what, value, allowed });
    let pus = u64::from(g.groups) * u64::from(g.pus);
    let all = pus.checked_mul(g.chunks.into()).and_then(|c| c.checked_mul(g.sectors.into()));
    if all.is_none_or(|n| n > PHYSICAL_SECTORS_MAX.into()) {
        let value = all.unwrap_or(u64::MAX);
        return shape("sectors of the drive", value, format!("at most {PHYSICAL_SECTORS_MAX}"));
    }
    if g.mw_cunits > g.sectors {
        let allowed = format!("at most the sectors per chunk, {}", g.sectors);
        return shape("mw_cunits", g.mw_cunits.into(), allowed);
    }
    if g.sector_bytes < 512 {
        return shape("sector_bytes", g.sector_bytes.into(), "at least 512".into());
    }
    if info.max_sectors < g.ws_opt {
        let allowed = format!("at least a write unit, {}", g.ws_opt);
        return shape("sectors of one transfer", info.max_sectors.into(), allowed);
    }
    let needed = Oob::BYTES as u32;
    if keeps_data && g.oob_bytes < needed {
        return Err(PblkError::OobTooSmall { oob_bytes: g.oob_bytes, needed });
    }
    Ok(())
}

/// The states that the chunk descriptors report.
pub(super) struct ReportedChunks {
    pub(super) all: Vec<ChunkReport>,
    /// Number of chunks that are neither free nor offline.
    pub(super) written: u32,
    /// Number of chunks that are offline but not factory bad.
    pub(super) grown_bad: u32,
    /// Number of chunks that are not factory bad.
    pub(super) usable: u32,
}

impl ReportedChunks {
    pub(super) fn from_descriptors(
        chunks: &[ChunkDescriptor],
        addresses: &Addresses,
        owned: &dyn Fn(ChunkId) -> bool,
    ) -> Result<ReportedChunks, PblkError> {
        let shape = addresses.shape();
        if chunks.len() != shape.total_chunks() as usize {
            let chunks_on_drive = u64::from(shape.total_chunks());
            return Err(PblkError::ChunkCount { given: chunks.len(), chunks: chunks_on_drive });
        }
        let mut found = ReportedChunks {
            all: Vec::with_capacity(chunks.len()),
            written: 0,
            grown_bad: 0,
            usable: 0,
        };
        for (chunk, d) in (0..).zip(chunks) {
            if !owned(ChunkId(chunk)) {
                found.all.push(ChunkReport::NotOwned);
                continue;
            }
            let state = parse_chunk_descriptor(d, shape.sectors_per_chunk).map_err(|what| {
                PblkError::Chunk {
                    chunk: addresses.components(shape.first_sector_of(ChunkId(chunk))),
                    what,
                }
            })?;
            let from_factory = state == ChunkReport::Bad && d.wear_index == 0 && d.wp.get() == 0;
            found.grown_bad += u32::from(state == ChunkReport::Bad && !from_factory);
            found.written += u32::from(!matches!(state, ChunkReport::Free | ChunkReport::Bad));
            found.usable += u32::from(!from_factory);
            found.all.push(state);
        }
        Ok(found)
    }
}

/// Interprets a descriptor of a chunk of `sectors` sectors.
pub(super) fn parse_chunk_descriptor(
    d: &ChunkDescriptor,
    sectors: u32,
) -> Result<ChunkReport, String> {
    Ok(match d.checked_state(sectors)? {
        (ChunkState::Offline, _) => ChunkReport::Bad,
        (ChunkState::Free, _) => ChunkReport::Free,
        (ChunkState::Open, written) => ChunkReport::Open(written),
        (ChunkState::Closed, written) if written == sectors => ChunkReport::Closed(written),
        (ChunkState::Closed, written) => ChunkReport::ProgramFailed(written),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_what_its_descriptor_says_or_an_error() {
        let chunk = |state: ChunkState, wp: u64| ChunkDescriptor {
            state: state.to_bits(),
            cnlb: 64.into(),
            wp: wp.into(),
            ..ChunkDescriptor::default()
        };
        assert_eq!(parse_chunk_descriptor(&chunk(ChunkState::Free, 0), 64), Ok(ChunkReport::Free));
        assert_eq!(
            parse_chunk_descriptor(&chunk(ChunkState::Open, 8), 64),
            Ok(ChunkReport::Open(8))
        );
        assert_eq!(
            parse_chunk_descriptor(&chunk(ChunkState::Closed, 64), 64),
            Ok(ChunkReport::Closed(64))
        );
        assert_eq!(
            parse_chunk_descriptor(&chunk(ChunkState::Closed, 60), 64),
            Ok(ChunkReport::ProgramFailed(60))
        );
        assert_eq!(
            parse_chunk_descriptor(&chunk(ChunkState::Offline, 999), 64),
            Ok(ChunkReport::Bad)
        );
        assert!(parse_chunk_descriptor(&chunk(ChunkState::Free, 1), 64).is_err());
        assert!(parse_chunk_descriptor(&chunk(ChunkState::Open, 65), 64).is_err());
        assert!(parse_chunk_descriptor(&chunk(ChunkState::Open, u64::MAX), 64).is_err());
        assert!(parse_chunk_descriptor(&chunk(ChunkState::Open, 8), 63).is_err());
        let both = ChunkDescriptor { state: 0b11, ..chunk(ChunkState::Free, 0) };
        assert!(parse_chunk_descriptor(&both, 64).is_err());
    }
}
