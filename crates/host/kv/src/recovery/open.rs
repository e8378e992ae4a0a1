//! [`Kv::open`]: recovery at power-on.
//!
//! 1. Open chunks are padded with filler until everything in them is readable [LightNVM17 §4.2.2].
//! 2. Sector tags show the contents of every chunk and where records start; for whole chunks one
//!    vector suffices.
//! 3. Headers are read, and the index is built from them
//!    ([`recovered_chunk`](crate::recovery::recovered_chunk)).
//! 4. Chunks without current data are erased when the target runs. Others are written further,
//!    after a seal if a record may have been interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use driver::{ControllerInfo, OpenChannelInfo, QueuePair};
use nvme::{ChunkDescriptor, ChunkId, FlashGeometry, Geometry, PuId};
use transport::Port;

use crate::buffer::streams::{AppendStreams, OpenChunk};
use crate::buffer::unit_memory::{UnitMemory, UnitMemorySize};
use crate::chunks::{KvChunkRole, KvChunks, RecordSpan, RecoveredContents};
use crate::compaction::Compaction;
use crate::config::{ChunkSupply, KvConfig, KvLayout};
use crate::device::KvDevice;
use crate::durability::DurabilityWaiters;
use crate::format::oob::SectorTag;
use crate::index::{Index, KeyVersion};
use crate::puts::Puts;
use crate::puts::large_value::LargeValues;
use crate::read_ops::ReadOps;
use crate::reclaim::Reclaim;
use crate::recovery::power_on_scan::{ReportedState, ScanState};
use crate::recovery::recovered_chunk::{
    RecoveredChunk, RecoveredKey, resolve_versions, sort_records,
};
use crate::recovery::scan::{ScanJob, ScanRunner, ScanTask};
use crate::request::KvRequestTable;
use crate::stats::KvStats;
use crate::write_order::WriteOrder;
use crate::{Kv, KvOpenError, PollProgress, Scratch};
use ocssd::vector::{Addresses, VectorQueue};

/// Maximum number of physical sectors that can be addressed.
const PHYSICAL_SECTORS_MAX: u64 = 0x7000_0000;

/// Maximum number of concurrent reads of any record, of whole chunks, and of small records.
const ANY_READS_MAX: u32 = 16;
const LARGE_VALUE_READS_MAX: u32 = 32;
const SMALL_READS_MAX: u32 = 256;

/// The records of a chunk found at power-on.
#[derive(Clone, Copy)]
struct ChunkContents {
    has_records: bool,
    has_live_records: bool,
}

impl Kv {
    /// Opens the drive that `info` describes, through `port`.
    ///
    /// - `queue` is a queue pair of the drive without outstanding commands; the target owns it from
    ///   now on.
    /// - `chunks` are the current descriptors of all chunks ([`driver::ControllerHandle::chunks`]);
    ///   `owned` selects those of the target.
    /// - `keeps_data` says whether the drive stores contents.
    ///
    /// All durable data is recovered with commands to the drive; `progress` is called while waiting.
    /// Recovery can be interrupted at any time and repeated. An unreadable sector in which a record
    /// starts loses this record; [`KvStats::unreadable_at_open`] counts such sectors.
    ///
    /// # Errors
    /// [`KvOpenError`].
    #[expect(clippy::too_many_arguments, reason = "the drive, and what to make of it")]
    pub fn open(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(u32) -> bool,
        queue: QueuePair,
        port: Arc<Port>,
        config: KvConfig,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Kv, KvOpenError> {
        let OpenChannelInfo { geometry, format, max_open_chunks, .. } = info
            .open_channel
            .ok_or_else(|| KvOpenError::NotOpenChannel { serial: info.serial.clone() })?;
        if !keeps_data {
            return Err(KvOpenError::DataNotStored);
        }
        check_geometry(info, &geometry)?;
        let shape = FlashGeometry::from_geometry(&geometry);
        let addresses = Addresses::new(shape, geometry, format);
        let mut media = ScanState::from_descriptors(chunks, owned, &addresses)?;
        let counted = (0..).zip(chunks).filter(|(chunk, d)| {
            let from_factory = d.wear_index == 0 && d.wp.get() == 0;
            match media.states[*chunk as usize] {
                None => false,
                Some(ReportedState::Bad) => !from_factory,
                Some(_) => true,
            }
        });
        let counted = counted.count() as u32;
        let mut pus: Vec<PuId> = (0..shape.total_chunks())
            .filter(|c| media.states[*c as usize].is_some())
            .map(|c| shape.pu_of(ChunkId(c)))
            .collect();
        pus.dedup();
        let pus = pus.len() as u32;
        let supply = ChunkSupply { chunks: counted, pus, open_chunks_max: max_open_chunks };
        let layout = KvLayout::new(&shape, &config, supply)?;
        let mut queue = VectorQueue::new(queue, port.clone(), info)?;
        media.read_media(&mut ScanRunner::new(&mut queue, &addresses, progress)?, &addresses)?;

        let space = port.memory();
        let memory = UnitMemorySize {
            units: AppendStreams::slots_needed(&layout),
            unit_sectors: shape.ws_opt,
            sector_bytes: geometry.sector_bytes,
            oob_bytes: geometry.oob_bytes,
        };
        let memory = UnitMemory::new(space, memory)?;
        let counts =
            [SMALL_READS_MAX.min(config.queue_depth), ANY_READS_MAX, LARGE_VALUE_READS_MAX];
        let reads = ReadOps::new(space, &layout, counts)?;
        let writes = LargeValues::new(space, &layout, geometry.oob_bytes)?;
        let last_stamp = media.chunks.values().filter_map(|f| f.stamp).max().unwrap_or(0);
        let mut kv = Kv {
            layout,
            device: KvDevice { queue, addresses, blocking_memory: None },
            stats: KvStats::default(),
            scratch: Scratch::new(),
            progress: PollProgress::default(),
            // Leaves a gap for records that could not be read.
            index: Index::new(media.seq + 1024),
            chunks: KvChunks::new(shape),
            streams: AppendStreams::new(layout, memory, last_stamp),
            requests: KvRequestTable::new(config.queue_depth),
            write_order: WriteOrder::default(),
            durability: DurabilityWaiters::default(),
            puts: Puts::new(writes, config.checksum_large_values),
            reads,
            compaction: Compaction::new(layout.concurrency.compactors),
            reclaim: Reclaim::default(),
        };
        kv.stats.unreadable_at_open =
            media.chunks.values().map(|f| f.failed_sectors.len() as u64).sum();
        kv.rebuild_index(&mut media, progress)?;
        Ok(kv)
    }

    /// Builds the index from the records, and sets the role of every chunk.
    fn rebuild_index(
        &mut self,
        media: &mut ScanState,
        progress: &mut dyn FnMut(),
    ) -> Result<(), KvOpenError> {
        let mut records = std::mem::take(&mut media.records);
        self.stats.records_recovered = records.len() as u64;
        sort_records(&mut records);
        let mut directory: BTreeMap<u32, Vec<RecordSpan>> = BTreeMap::new();
        let mut live: BTreeMap<u32, u32> = BTreeMap::new();
        let mut wholes: BTreeSet<u32> = BTreeSet::new();
        let mut from = 0;
        while let Some((found, next)) = resolve_versions(&records, from) {
            from = next;
            let RecoveredKey { key, entry, complete_records: complete, incomplete_records: void } =
                found;
            self.stats.incomplete_at_open += void.len() as u64;
            for i in complete {
                let record = &records[i];
                let found = RecordSpan { offset: record.offset, bytes: record.bytes() };
                directory.entry(record.chunk).or_default().push(found);
            }
            let Some(mut entry) = entry else { continue };
            for i in 0..entry.current.records().len() {
                let bytes = entry.current.record_bytes(key.len(), i);
                *live.entry(entry.current.records()[i].chunk).or_default() += bytes;
            }
            if let KeyVersion::Extents(spread) = &mut entry.current {
                for (i, part) in (0..).zip(spread.chunk_extents.iter_mut()) {
                    let there = media.chunks.get(&part.chunk).and_then(|f| f.large_value);
                    if there == Some((i, entry.seq)) {
                        wholes.insert(part.chunk);
                    } else {
                        // The chunk became bad or has another owner: reads of the value fail.
                        part.chunk = u32::MAX;
                    }
                }
            }
            self.index.insert_recovered(key, entry);
        }
        let mut seals = Vec::new();
        for chunk in 0..media.states.len() as u32 {
            let Some(state) = media.states[chunk as usize] else { continue };
            let records = directory.remove(&chunk).unwrap_or_default();
            let live = live.get(&chunk).copied().unwrap_or(0);
            let contents =
                ChunkContents { has_records: !records.is_empty(), has_live_records: live > 0 };
            let usage = self.recovered_role(media, chunk, state, contents, &wholes);
            let stamp = media.chunks.get(&chunk).and_then(|f| f.stamp).unwrap_or(0);
            let contents = RecoveredContents { role: usage, live_bytes: live, stamp, records };
            self.chunks.set_recovered(chunk, contents);
            match usage {
                KvChunkRole::Failing => self.compaction.add_failing(chunk),
                KvChunkRole::Obsolete => {
                    self.reclaim.add(chunk, self.streams.next_unit_seq(), Vec::new());
                }
                KvChunkRole::Open
                    if media.chunks.get(&chunk).is_some_and(RecoveredChunk::is_interrupted) =>
                {
                    seals.push(chunk);
                }
                _ => {}
            }
        }
        self.write_seals(media, &seals, progress)?;
        for (chunk, c) in self.chunks.iter().filter(|(_, c)| c.role() == KvChunkRole::Open) {
            debug_assert!(!c.records().is_empty());
            let sectors = media.written.get(&chunk).copied().unwrap_or(0);
            let fill = sectors * self.layout.sector_bytes;
            let stamp = media.chunks.get(&chunk).and_then(|f| f.stamp).unwrap_or(0);
            self.streams.resume_later(OpenChunk { chunk, fill_bytes: fill, stamp });
        }
        Ok(())
    }

    /// Returns the role of a chunk at power-on.
    fn recovered_role(
        &self,
        media: &ScanState,
        chunk: u32,
        state: ReportedState,
        contents: ChunkContents,
        wholes: &BTreeSet<u32>,
    ) -> KvChunkRole {
        let room = media.written.get(&chunk).is_some_and(|written| {
            u64::from(*written) * u64::from(self.layout.sector_bytes)
                < u64::from(self.layout.chunk_bytes)
        });
        match state {
            ReportedState::Bad => KvChunkRole::Retired,
            ReportedState::Free => KvChunkRole::Free,
            _ if wholes.contains(&chunk) => KvChunkRole::LargeValue,
            ReportedState::Failing if contents.has_live_records => KvChunkRole::Failing,
            ReportedState::Failing => KvChunkRole::Retired,
            _ if !contents.has_records => KvChunkRole::Obsolete,
            ReportedState::Open if room => KvChunkRole::Open,
            ReportedState::Open | ReportedState::Closed => KvChunkRole::Closed,
        }
    }

    /// Writes seals after the torn units of chunks that are written further.
    fn write_seals(
        &mut self,
        media: &mut ScanState,
        seals: &[u32],
        progress: &mut dyn FnMut(),
    ) -> Result<(), KvOpenError> {
        let unit = self.layout.unit_bytes / self.layout.sector_bytes;
        let jobs = seals.iter().filter_map(|chunk| {
            let (found, first) = (media.chunks.get(chunk)?, *media.written.get(chunk)?);
            Some(ScanJob { task: ScanTask::Seal(found.intact), chunk: *chunk, first, count: unit })
        });
        let jobs: Vec<ScanJob> = jobs.collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let mut failed = Vec::new();
        let mut scan = ScanRunner::new(&mut self.device.queue, &self.device.addresses, progress)?;
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            if seen.failed != 0 {
                failed.push(job.chunk);
            } else {
                media.written.insert(job.chunk, job.first + job.count);
            }
        })?;
        for chunk in failed {
            self.chunks.fail(chunk);
            self.compaction.add_failing(chunk);
        }
        let full = self.layout.chunk_bytes / self.layout.sector_bytes;
        for chunk in seals {
            let is_open = self.chunks.get(*chunk).role() == KvChunkRole::Open;
            if is_open && media.written.get(chunk) == Some(&full) {
                self.chunks.close(*chunk);
            }
        }
        Ok(())
    }
}

/// Rejects drives that kv cannot address, write or recover.
fn check_geometry(info: &ControllerInfo, g: &Geometry) -> Result<(), KvOpenError> {
    let shape = |what, value, allowed| Err(KvOpenError::Shape { what, value, allowed });
    let pus = u64::from(g.groups) * u64::from(g.pus);
    let all = pus.checked_mul(g.chunks.into()).and_then(|c| c.checked_mul(g.sectors.into()));
    if all.is_none_or(|n| n > PHYSICAL_SECTORS_MAX) {
        let value = all.unwrap_or(u64::MAX);
        return shape("sectors of the drive", value, format!("at most {PHYSICAL_SECTORS_MAX}"));
    }
    if !(512..=1 << 16).contains(&g.sector_bytes) {
        return shape("sector_bytes", g.sector_bytes.into(), "512 to 65,536".into());
    }
    if !(1..=64).contains(&g.ws_opt) || !g.sectors.is_multiple_of(g.ws_opt) {
        let allowed = "1 to 64, a divisor of the sectors of a chunk".into();
        return shape("ws_opt", g.ws_opt.into(), allowed);
    }
    if info.max_sectors < g.ws_opt {
        let allowed = format!("at least a write unit, {}", g.ws_opt);
        return shape("sectors of one transfer", info.max_sectors.into(), allowed);
    }
    if g.oob_bytes < SectorTag::BYTES as u32 {
        let allowed = format!("at least {}", SectorTag::BYTES);
        return shape("out-of-band bytes of a sector", g.oob_bytes.into(), allowed);
    }
    Ok(())
}
