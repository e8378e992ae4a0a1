//! [`ScanState`]: chunk descriptors, sector tags and headers as found at power-on.

use std::collections::BTreeMap;

use nvme::{ChunkDescriptor, ChunkId, ChunkState, FlashGeometry, MAX_VECTOR_ADDRESSES};

use crate::KvOpenError;
use crate::config::HEADER_SECTORS;
use crate::format::oob::SectorTag;
use crate::format::record::{FIXED_HEADER_BYTES, RecordHeader, header_bytes};
use crate::recovery::recovered_chunk::{RecoveredChunk, RecoveredRecord};
use crate::recovery::scan::{ScanJob, ScanRunner, ScanTask, ScannedSectors};
use ocssd::vector::Addresses;

/// The state of a chunk that the drive reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedState {
    Free,
    Open,
    Closed,
    /// A program failed.
    Failing,
    Bad,
}

/// The contents of the media.
pub(crate) struct ScanState {
    pub(crate) states: Vec<Option<ReportedState>>,
    pub(crate) chunks: BTreeMap<u32, RecoveredChunk>,
    /// Sectors written, filler included.
    pub(crate) written: BTreeMap<u32, u32>,
    pub(crate) records: Vec<RecoveredRecord>,
    pub(crate) seq: u64,
}

impl ScanState {
    /// Creates the state from the chunk descriptors.
    pub(crate) fn from_descriptors(
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(u32) -> bool,
        addresses: &Addresses,
    ) -> Result<ScanState, KvOpenError> {
        let shape = addresses.shape();
        if chunks.len() != shape.total_chunks() as usize {
            let chunks_on_drive = u64::from(shape.total_chunks());
            return Err(KvOpenError::ChunkCount { given: chunks.len(), chunks: chunks_on_drive });
        }
        let mut media = ScanState {
            states: vec![None; chunks.len()],
            chunks: BTreeMap::new(),
            written: BTreeMap::new(),
            records: Vec::new(),
            seq: 0,
        };
        for (chunk, d) in (0..).zip(chunks).filter(|(chunk, _)| owned(*chunk)) {
            let (state, written) = reported_state(d, shape.sectors_per_chunk).map_err(|what| {
                let chunk = addresses.components(shape.first_sector_of(ChunkId(chunk)));
                KvOpenError::Chunk { chunk, what }
            })?;
            media.states[chunk as usize] = Some(state);
            if written > 0 {
                media.chunks.insert(chunk, RecoveredChunk { written, ..RecoveredChunk::default() });
                media.written.insert(chunk, written);
            }
        }
        Ok(media)
    }

    /// Pads open chunks, reads sector tags, and reads headers.
    pub(crate) fn read_media(
        &mut self,
        scan: &mut ScanRunner<'_>,
        addresses: &Addresses,
    ) -> Result<(), KvOpenError> {
        let shape = *addresses.shape();
        self.pad_open_chunks(scan, &shape)?;
        // The first tags of a whole chunk suffice.
        let vector = u32::from(MAX_VECTOR_ADDRESSES);
        let firsts = self.tag_jobs(|found| (0, found.written.min(vector)));
        self.read_tags(scan, firsts, shape.ws_opt)?;
        let rest = self.tag_jobs(|found| match found.large_value {
            Some(_) => (0, 0),
            None => (vector.min(found.written), found.written),
        });
        self.read_tags(scan, rest, shape.ws_opt)?;
        for (chunk, found) in &mut self.chunks {
            found.finish();
            if let Some(sector) = found.foreign {
                let first = addresses.components(shape.first_sector_of(ChunkId(*chunk)) + sector);
                return Err(KvOpenError::ForeignData { first });
            }
            self.seq = self.seq.max(found.large_value.map_or(0, |(_, seq)| seq));
        }
        self.read_headers(scan, &shape)
    }

    fn pad_open_chunks(
        &mut self,
        scan: &mut ScanRunner<'_>,
        shape: &FlashGeometry,
    ) -> Result<(), KvOpenError> {
        let (unit, pair) = (shape.ws_opt, shape.mw_cunits.next_multiple_of(shape.ws_opt));
        let mut jobs = Vec::new();
        for (chunk, written) in &self.written {
            if self.states[*chunk as usize] != Some(ReportedState::Open) {
                continue;
            }
            let target =
                written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors_per_chunk);
            let mut first = *written;
            while first < target {
                let count = unit - first % unit;
                jobs.push(ScanJob { task: ScanTask::Pad, chunk: *chunk, first, count });
                first += count;
            }
        }
        scan.run(&mut jobs.into_iter(), &mut |job, seen| self.on_padded(job, seen.failed != 0))
    }

    /// Handles the completion of a filler write; those of a chunk may complete in any order.
    fn on_padded(&mut self, job: &ScanJob, failed: bool) {
        if failed {
            self.states[job.chunk as usize] = Some(ReportedState::Failing);
        } else {
            let written = self.written.entry(job.chunk).or_default();
            *written = (job.first + job.count).max(*written);
        }
    }

    /// Returns jobs that read the tags of a range of every chunk.
    fn tag_jobs(&self, range: impl Fn(&RecoveredChunk) -> (u32, u32)) -> Vec<ScanJob> {
        let vector = u32::from(MAX_VECTOR_ADDRESSES);
        let jobs = self.chunks.iter().flat_map(|(chunk, found)| {
            let (from, to) = range(found);
            (from..to).step_by(vector as usize).map(move |first| {
                let count = vector.min(to - first);
                ScanJob { task: ScanTask::ReadTags, chunk: *chunk, first, count }
            })
        });
        jobs.collect()
    }

    fn read_tags(
        &mut self,
        scan: &mut ScanRunner<'_>,
        jobs: Vec<ScanJob>,
        unit: u32,
    ) -> Result<(), KvOpenError> {
        let found = &mut self.chunks;
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get_mut(&job.chunk) else { return };
            for i in 0..job.count {
                let label: Result<Option<SectorTag>, ()> = match seen.failed >> i & 1 {
                    0 => Ok(seen.tag(i)),
                    _ => Err(()),
                };
                found.add_sector(job.first + i, label, unit);
            }
        })
    }
}

/// The result of a header lookup.
enum HeaderLookup {
    /// The header is valid; the record ends at this byte of the chunk.
    Found(u32),
    /// More sectors are needed to decode it.
    NeedMore,
    /// There is no header, or it is unreadable.
    NotFound,
}

impl ScanState {
    /// Reads the headers of all valid records.
    fn read_headers(
        &mut self,
        scan: &mut ScanRunner<'_>,
        shape: &FlashGeometry,
    ) -> Result<(), KvOpenError> {
        let mut jobs = Vec::new();
        for (chunk, found) in &self.chunks {
            let mut run: Option<ScanJob> = None;
            for &(sector, _) in found.record_starts.iter().filter(|(s, _)| *s < found.intact) {
                // A header may extend to the next sector.
                let end = (sector + 2).min(found.intact);
                run = match run {
                    Some(job) if sector <= job.first + job.count && end - job.first <= 64 => {
                        Some(ScanJob { count: end - job.first, ..job })
                    }
                    full => {
                        jobs.extend(full);
                        let count = end - sector;
                        Some(ScanJob { task: ScanTask::Read, chunk: *chunk, first: sector, count })
                    }
                };
            }
            jobs.extend(run);
        }
        let (found, size) = (&self.chunks, shape.sector_bytes);
        let (mut records, mut seq, mut long) = (Vec::new(), self.seq, Vec::new());
        let mut buffer = Vec::new();
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get(&job.chunk) else { return };
            let end = job.first + job.count;
            let first = found.record_starts.partition_point(|(sector, _)| *sector < job.first);
            for &(sector, at) in found.record_starts[first..].iter().take_while(|(s, _)| *s < end) {
                // The sector after a run may belong to the next run.
                let mut offset = sector * size + at;
                while offset < (sector + 1) * size {
                    let place = (job, seen, offset);
                    match lookup_header(place, found, shape, &mut buffer, &mut records, &mut seq) {
                        HeaderLookup::Found(next) => offset = next,
                        HeaderLookup::NeedMore => {
                            long.push((job.chunk, offset));
                            break;
                        }
                        HeaderLookup::NotFound => break,
                    }
                }
            }
        })?;
        let jobs = long.iter().filter_map(|(chunk, offset)| {
            let first = offset / size;
            let left = found.get(chunk)?.intact.saturating_sub(first);
            let count = left.min(HEADER_SECTORS + 1);
            (count > 0).then_some(ScanJob { task: ScanTask::Read, chunk: *chunk, first, count })
        });
        let jobs: Vec<ScanJob> = jobs.collect();
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get(&job.chunk) else { return };
            let at =
                |(chunk, offset): &&(u32, u32)| *chunk == job.chunk && offset / size == job.first;
            for (_, offset) in long.iter().filter(at) {
                let place = (job, seen, *offset);
                lookup_header(place, found, shape, &mut buffer, &mut records, &mut seq);
            }
        })?;
        // A sector in which a record starts may have been read in two runs.
        records.sort_unstable_by_key(|r: &RecoveredRecord| (r.chunk, r.offset));
        records.dedup_by_key(|r| (r.chunk, r.offset));
        (self.records, self.seq) = (records, seq);
        Ok(())
    }
}

/// Decodes a header at an offset of a job's chunk, and adds the record if it is valid.
fn lookup_header(
    (job, seen, offset): (&ScanJob, &ScannedSectors<'_>, u32),
    found: &RecoveredChunk,
    shape: &FlashGeometry,
    buffer: &mut Vec<u8>,
    records: &mut Vec<RecoveredRecord>,
    seq: &mut u64,
) -> HeaderLookup {
    let size = shape.sector_bytes;
    let (start, end) = (job.first * size, (job.first + job.count) * size);
    let readable = |bytes: u32| {
        let (from, to) = (offset / size, (offset + bytes - 1) / size + 1);
        (from..to).all(|sector| seen.failed >> (sector - job.first) & 1 == 0)
    };
    for bytes in [FIXED_HEADER_BYTES, 0] {
        let bytes = match bytes {
            0 => header_bytes(buffer[38], u16::from_le_bytes([buffer[36], buffer[37]]).into()),
            fixed => fixed,
        };
        if offset + bytes > end {
            // Longer than any header, hence not a header.
            let most = (HEADER_SECTORS + 1) * size;
            return if bytes > most { HeaderLookup::NotFound } else { HeaderLookup::NeedMore };
        }
        if !readable(bytes) {
            return HeaderLookup::NotFound;
        }
        buffer.resize(bytes as usize, 0);
        seen.data((offset - start) as usize, buffer);
        if bytes == FIXED_HEADER_BYTES && !RecordHeader::has_magic(buffer) {
            return HeaderLookup::NotFound;
        }
    }
    let Some((header, key, parts)) = RecordHeader::decode(buffer) else {
        return HeaderLookup::NotFound;
    };
    *seq = (*seq).max(header.seq);
    let stamp = found.stamp.unwrap_or(0);
    let record =
        RecoveredRecord { key, header, chunk_extents: parts, chunk: job.chunk, offset, stamp };
    let next = offset.saturating_add(record.bytes());
    let (from, to) = record.header.batch.unwrap_or((offset, next));
    if found.is_valid_range(from.min(offset), to.max(next), size, shape.ws_opt) {
        records.push(record);
    }
    HeaderLookup::Found(next)
}

/// Returns the state and write pointer that a descriptor reports for its chunk of `sectors`.
fn reported_state(d: &ChunkDescriptor, sectors: u32) -> Result<(ReportedState, u32), String> {
    let (state, written) = d.checked_state(sectors)?;
    let state = match state {
        ChunkState::Offline => ReportedState::Bad,
        ChunkState::Free => ReportedState::Free,
        ChunkState::Open if written == 0 => ReportedState::Free,
        ChunkState::Open => ReportedState::Open,
        ChunkState::Closed if written == sectors => ReportedState::Closed,
        ChunkState::Closed => ReportedState::Failing,
    };
    Ok((state, written))
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
        assert_eq!(reported_state(&chunk(ChunkState::Free, 0), 64), Ok((ReportedState::Free, 0)));
        assert_eq!(reported_state(&chunk(ChunkState::Open, 0), 64), Ok((ReportedState::Free, 0)));
        assert_eq!(reported_state(&chunk(ChunkState::Open, 8), 64), Ok((ReportedState::Open, 8)));
        assert_eq!(
            reported_state(&chunk(ChunkState::Closed, 64), 64),
            Ok((ReportedState::Closed, 64))
        );
        assert_eq!(
            reported_state(&chunk(ChunkState::Closed, 60), 64),
            Ok((ReportedState::Failing, 60))
        );
        assert_eq!(
            reported_state(&chunk(ChunkState::Offline, 999), 64),
            Ok((ReportedState::Bad, 0))
        );
        for wrong in [
            chunk(ChunkState::Free, 1),
            chunk(ChunkState::Open, 65),
            chunk(ChunkState::Open, u64::MAX),
            ChunkDescriptor { state: 0b11, ..chunk(ChunkState::Free, 0) },
        ] {
            assert!(reported_state(&wrong, 64).is_err());
        }
        assert!(reported_state(&chunk(ChunkState::Open, 8), 63).is_err());
    }

    #[test]
    fn filler_counts_in_whatever_order_it_is_reported() {
        let fill = |first, count| ScanJob { task: ScanTask::Pad, chunk: 1, first, count };
        let jobs = [fill(6, 2), fill(8, 4), fill(12, 4)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            for failing in 0..4 {
                let mut media = ScanState {
                    states: vec![None, Some(ReportedState::Open)],
                    chunks: BTreeMap::new(),
                    written: BTreeMap::from([(1, 6)]),
                    records: Vec::new(),
                    seq: 0,
                };
                // Writes after a failed one fail as well.
                order.iter().for_each(|at| media.on_padded(&jobs[*at], *at >= failing));
                let (state, end) = match failing {
                    3 => (ReportedState::Open, 16),
                    at => (ReportedState::Failing, jobs[at].first),
                };
                assert_eq!(media.states[1], Some(state), "{order:?}, {failing}");
                assert_eq!(media.written[&1], end, "{order:?}, {failing}");
            }
        }
    }
}
