//! [`Media`]: what chunk descriptors, labels and headers say at power-on.

use std::collections::BTreeMap;

use ftl::Shape;
use nvme::{ChunkDescriptor, ChunkState, MAX_VECTOR};

use super::KvOpenError;
use super::config::HEADER_SECTORS;
use super::found::{Found, Record};
use super::oob::Label;
use super::record::{FIXED, Header, header_bytes};
use super::scan::{Job, Scan, Seen, Task};
use crate::vector::Addresses;

/// What the drive says of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Open,
    Closed,
    /// A program failed.
    Failing,
    Bad,
}

/// What was found on the media.
pub(super) struct Media {
    pub(super) states: Vec<Option<State>>,
    pub(super) found: BTreeMap<u32, Found>,
    /// Sectors written, filler included.
    pub(super) written: BTreeMap<u32, u32>,
    pub(super) records: Vec<Record>,
    pub(super) seq: u64,
}

impl Media {
    /// Takes what the descriptors say.
    pub(super) fn look(
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(u32) -> bool,
        addresses: &Addresses,
    ) -> Result<Media, KvOpenError> {
        let shape = addresses.shape();
        if chunks.len() != shape.total_chunks() as usize {
            let chunks_on_drive = u64::from(shape.total_chunks());
            return Err(KvOpenError::ChunkCount { given: chunks.len(), chunks: chunks_on_drive });
        }
        let mut media = Media {
            states: vec![None; chunks.len()],
            found: BTreeMap::new(),
            written: BTreeMap::new(),
            records: Vec::new(),
            seq: 0,
        };
        for (chunk, d) in (0..).zip(chunks).filter(|(chunk, _)| owned(*chunk)) {
            let (state, written) = state_of(d, shape.sectors).map_err(|what| {
                let chunk = addresses.components(shape.first_psn(chunk));
                KvOpenError::Chunk { chunk, what }
            })?;
            media.states[chunk as usize] = Some(state);
            if written > 0 {
                media.found.insert(chunk, Found { written, ..Found::default() });
                media.written.insert(chunk, written);
            }
        }
        Ok(media)
    }

    /// Fills up, reads labels, reads headers.
    pub(super) fn read(
        &mut self,
        scan: &mut Scan<'_>,
        addresses: &Addresses,
    ) -> Result<(), KvOpenError> {
        let shape = *addresses.shape();
        self.fill(scan, &shape)?;
        // Of whole chunks the first labels say it all.
        let vector = u32::from(MAX_VECTOR);
        let firsts = self.labels(|found| (0, found.written.min(vector)));
        self.read_labels(scan, firsts, shape.unit)?;
        let rest = self.labels(|found| match found.whole {
            Some(_) => (0, 0),
            None => (vector.min(found.written), found.written),
        });
        self.read_labels(scan, rest, shape.unit)?;
        for (chunk, found) in &mut self.found {
            found.finish();
            if let Some(sector) = found.foreign {
                let first = addresses.components(shape.first_psn(*chunk) + sector);
                return Err(KvOpenError::ForeignData { first });
            }
            self.seq = self.seq.max(found.whole.map_or(0, |(_, seq)| seq));
        }
        self.read_headers(scan, &shape)
    }

    fn fill(&mut self, scan: &mut Scan<'_>, shape: &Shape) -> Result<(), KvOpenError> {
        let (unit, pair) = (shape.unit, shape.pair.next_multiple_of(shape.unit));
        let mut jobs = Vec::new();
        for (chunk, written) in &self.written {
            if self.states[*chunk as usize] != Some(State::Open) {
                continue;
            }
            let target = written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors);
            let mut first = *written;
            while first < target {
                let count = unit - first % unit;
                jobs.push(Job { task: Task::Fill, chunk: *chunk, first, count });
                first += count;
            }
        }
        scan.run(&mut jobs.into_iter(), &mut |job, seen| self.filled(job, seen.failed != 0))
    }

    /// Filler has been written, or has failed: of one chunk in any order.
    fn filled(&mut self, job: &Job, failed: bool) {
        if failed {
            self.states[job.chunk as usize] = Some(State::Failing);
        } else {
            let written = self.written.entry(job.chunk).or_default();
            *written = (job.first + job.count).max(*written);
        }
    }

    /// Jobs that read the labels of a range of every chunk.
    fn labels(&self, range: impl Fn(&Found) -> (u32, u32)) -> Vec<Job> {
        let vector = u32::from(MAX_VECTOR);
        let jobs = self.found.iter().flat_map(|(chunk, found)| {
            let (from, to) = range(found);
            (from..to).step_by(vector as usize).map(move |first| {
                let count = vector.min(to - first);
                Job { task: Task::Labels, chunk: *chunk, first, count }
            })
        });
        jobs.collect()
    }

    fn read_labels(
        &mut self,
        scan: &mut Scan<'_>,
        jobs: Vec<Job>,
        unit: u32,
    ) -> Result<(), KvOpenError> {
        let found = &mut self.found;
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get_mut(&job.chunk) else { return };
            for i in 0..job.count {
                let label: Result<Option<Label>, ()> = match seen.failed >> i & 1 {
                    0 => Ok(seen.label(i)),
                    _ => Err(()),
                };
                found.sector(job.first + i, label, unit);
            }
        })
    }
}

/// What became of a header that was looked for.
enum Looked {
    /// It is there; the record ends at this byte of the chunk.
    There(u32),
    /// More sectors are needed to read it.
    Short,
    /// There is none, or it cannot be read.
    Nothing,
}

impl Media {
    /// Reads the header of every record that counts.
    fn read_headers(&mut self, scan: &mut Scan<'_>, shape: &Shape) -> Result<(), KvOpenError> {
        let mut jobs = Vec::new();
        for (chunk, found) in &self.found {
            let mut run: Option<Job> = None;
            for &(sector, _) in found.starts.iter().filter(|(s, _)| *s < found.intact) {
                // Headers that begin in a sector may end in the next.
                let end = (sector + 2).min(found.intact);
                run = match run {
                    Some(job) if sector <= job.first + job.count && end - job.first <= 64 => {
                        Some(Job { count: end - job.first, ..job })
                    }
                    full => {
                        jobs.extend(full);
                        let count = end - sector;
                        Some(Job { task: Task::Read, chunk: *chunk, first: sector, count })
                    }
                };
            }
            jobs.extend(run);
        }
        let (found, size) = (&self.found, shape.sector_bytes);
        let (mut records, mut seq, mut long) = (Vec::new(), self.seq, Vec::new());
        let mut buffer = Vec::new();
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get(&job.chunk) else { return };
            let end = job.first + job.count;
            let first = found.starts.partition_point(|(sector, _)| *sector < job.first);
            for &(sector, at) in found.starts[first..].iter().take_while(|(s, _)| *s < end) {
                // The sector behind a run may belong to the next run.
                let mut offset = sector * size + at;
                while offset < (sector + 1) * size {
                    let place = (job, seen, offset);
                    match header(place, found, shape, &mut buffer, &mut records, &mut seq) {
                        Looked::There(next) => offset = next,
                        Looked::Short => {
                            long.push((job.chunk, offset));
                            break;
                        }
                        Looked::Nothing => break,
                    }
                }
            }
        })?;
        let jobs = long.iter().filter_map(|(chunk, offset)| {
            let first = offset / size;
            let left = found.get(chunk)?.intact.saturating_sub(first);
            let count = left.min(HEADER_SECTORS + 1);
            (count > 0).then_some(Job { task: Task::Read, chunk: *chunk, first, count })
        });
        let jobs: Vec<Job> = jobs.collect();
        scan.run(&mut jobs.into_iter(), &mut |job, seen| {
            let Some(found) = found.get(&job.chunk) else { return };
            let at =
                |(chunk, offset): &&(u32, u32)| *chunk == job.chunk && offset / size == job.first;
            for (_, offset) in long.iter().filter(at) {
                let place = (job, seen, *offset);
                header(place, found, shape, &mut buffer, &mut records, &mut seq);
            }
        })?;
        // A sector in which a record starts may have been read in two runs.
        records.sort_unstable_by_key(|r: &Record| (r.chunk, r.offset));
        records.dedup_by_key(|r| (r.chunk, r.offset));
        (self.records, self.seq) = (records, seq);
        Ok(())
    }
}

/// Looks for a header at an offset of a job's chunk, and takes the record if it counts.
fn header(
    (job, seen, offset): (&Job, &Seen<'_>, u32),
    found: &Found,
    shape: &Shape,
    buffer: &mut Vec<u8>,
    records: &mut Vec<Record>,
    seq: &mut u64,
) -> Looked {
    let size = shape.sector_bytes;
    let (start, end) = (job.first * size, (job.first + job.count) * size);
    let readable = |bytes: u32| {
        let (from, to) = (offset / size, (offset + bytes - 1) / size + 1);
        (from..to).all(|sector| seen.failed >> (sector - job.first) & 1 == 0)
    };
    for bytes in [FIXED, 0] {
        let bytes = match bytes {
            0 => header_bytes(buffer[38], u16::from_le_bytes([buffer[36], buffer[37]]).into()),
            fixed => fixed,
        };
        if offset + bytes > end {
            // What is longer than headers are is none.
            let most = (HEADER_SECTORS + 1) * size;
            return if bytes > most { Looked::Nothing } else { Looked::Short };
        }
        if !readable(bytes) {
            return Looked::Nothing;
        }
        buffer.resize(bytes as usize, 0);
        seen.data((offset - start) as usize, buffer);
        if bytes == FIXED && !Header::begins(buffer) {
            return Looked::Nothing;
        }
    }
    let Some((header, key, parts)) = Header::decode(buffer) else { return Looked::Nothing };
    *seq = (*seq).max(header.seq);
    let stamp = found.stamp.unwrap_or(0);
    let record = Record { key, header, parts, chunk: job.chunk, offset, stamp };
    let next = offset.saturating_add(record.bytes());
    let (from, to) = record.header.batch.unwrap_or((offset, next));
    if found.counts(from.min(offset), to.max(next), size, shape.unit) {
        records.push(record);
    }
    Looked::There(next)
}

/// State and write pointer that a descriptor gives its chunk of `sectors`.
fn state_of(d: &ChunkDescriptor, sectors: u32) -> Result<(State, u32), String> {
    let state = d
        .chunk_state()
        .ok_or_else(|| format!("the drive reports state {:#04x}, which does not exist", d.state))?;
    if state == ChunkState::Offline {
        return Ok((State::Bad, 0));
    }
    if d.cnlb.get() != u64::from(sectors) {
        return Err(format!("it has {} sectors, but the geometry says {sectors}", d.cnlb));
    }
    let written = u32::try_from(d.wp.get()).ok().filter(|wp| *wp <= sectors);
    let written = written
        .ok_or_else(|| format!("its write pointer is {}, but it has {sectors} sectors", d.wp))?;
    match state {
        ChunkState::Free if written > 0 => {
            Err(format!("it is free, but its write pointer is {written}"))
        }
        ChunkState::Free | ChunkState::Offline => Ok((State::Free, 0)),
        ChunkState::Open if written == 0 => Ok((State::Free, 0)),
        ChunkState::Open => Ok((State::Open, written)),
        ChunkState::Closed if written == sectors => Ok((State::Closed, written)),
        ChunkState::Closed => Ok((State::Failing, written)),
    }
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
        assert_eq!(state_of(&chunk(ChunkState::Free, 0), 64), Ok((State::Free, 0)));
        assert_eq!(state_of(&chunk(ChunkState::Open, 0), 64), Ok((State::Free, 0)));
        assert_eq!(state_of(&chunk(ChunkState::Open, 8), 64), Ok((State::Open, 8)));
        assert_eq!(state_of(&chunk(ChunkState::Closed, 64), 64), Ok((State::Closed, 64)));
        assert_eq!(state_of(&chunk(ChunkState::Closed, 60), 64), Ok((State::Failing, 60)));
        assert_eq!(state_of(&chunk(ChunkState::Offline, 999), 64), Ok((State::Bad, 0)));
        for wrong in [
            chunk(ChunkState::Free, 1),
            chunk(ChunkState::Open, 65),
            chunk(ChunkState::Open, u64::MAX),
            ChunkDescriptor { state: 0b11, ..chunk(ChunkState::Free, 0) },
        ] {
            assert!(state_of(&wrong, 64).is_err());
        }
        assert!(state_of(&chunk(ChunkState::Open, 8), 63).is_err());
    }

    #[test]
    fn filler_counts_in_whatever_order_it_is_told_of() {
        let fill = |first, count| Job { task: Task::Fill, chunk: 1, first, count };
        let jobs = [fill(6, 2), fill(8, 4), fill(12, 4)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            for failing in 0..4 {
                let mut media = Media {
                    states: vec![None, Some(State::Open)],
                    found: BTreeMap::new(),
                    written: BTreeMap::from([(1, 6)]),
                    records: Vec::new(),
                    seq: 0,
                };
                // What comes behind one that failed fails, too.
                order.iter().for_each(|at| media.filled(&jobs[*at], *at >= failing));
                let (state, end) = match failing {
                    3 => (State::Open, 16),
                    at => (State::Failing, jobs[at].first),
                };
                assert_eq!(media.states[1], Some(state), "{order:?}, {failing}");
                assert_eq!(media.written[&1], end, "{order:?}, {failing}");
            }
        }
    }
}
