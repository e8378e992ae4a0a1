//! [`RecoveredChunk`]: the contents of a chunk according to its sector tags; [`resolve_versions`]:
//! selects the current records after a power loss.
//!
//! **Valid records.** Units of a chunk are programmed in order, and only the last one can be torn.
//! Everything before a readable unit was therefore programmed. A record, or a batch, is valid if it
//! ends within the sectors known to be programmed; in the last such unit, only if all sectors of
//! the unit are readable. Filler written at power-on gives no information about the preceding
//! sectors. If a chunk is written further after a torn unit, a seal lies between: what was not
//! intact when the seal was written is void for ever, as is a record that would continue there.
//!
//! **Current record.** The current version of a key is the complete one with the largest sequence
//! number. A version of several records is complete if all of them exist: all were durable before
//! anything older was erased, and all records of the current version are kept. If a record has
//! several copies, because power was cut between its relocation and the erase, the copy in the
//! chunk opened last is used.

use crate::format::key::Key;
use crate::format::oob::SectorTag;
use crate::format::record::{RecordHeader, RecordKind, record_bytes};
use crate::index::{ChunkExtent, ExtentList, IndexEntry, KeyVersion, RecordRef};

/// A chunk according to its sector tags.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveredChunk {
    /// Sectors written before this power-on.
    pub(crate) written: u32,
    /// Sectors known to be programmed.
    pub(crate) intact: u32,
    /// Unreadable sectors, in order.
    pub(crate) failed_sectors: Vec<u32>,
    /// The last sector with padding or a seal; no record continues after it.
    pub(crate) closed_at: Option<u32>,
    /// Ranges of void sectors, end excluded.
    pub(crate) void_ranges: Vec<(u32, u32)>,
    /// Sectors in which a record starts, with the offset of the first one.
    pub(crate) record_starts: Vec<(u32, u32)>,
    /// Stamp of the chunk, if it contains records.
    pub(crate) stamp: Option<u64>,
    /// For a whole chunk: its index in the value, and the value's sequence number.
    pub(crate) large_value: Option<(u32, u64)>,
    /// A sector written by another target.
    pub(crate) foreign: Option<u32>,
}

impl RecoveredChunk {
    /// Adds the tag of a sector, in any order; `Err` if it is unreadable.
    pub(crate) fn add_sector(
        &mut self,
        sector: u32,
        label: Result<Option<SectorTag>, ()>,
        unit: u32,
    ) {
        let programmed = (sector / unit + 1) * unit;
        match label {
            Err(()) => self.failed_sectors.push(sector),
            Ok(None) => self.foreign = Some(self.foreign.map_or(sector, |s| s.min(sector))),
            Ok(Some(SectorTag::Filler)) => {}
            Ok(Some(SectorTag::Seal { intact })) => {
                self.void_ranges.push((intact, programmed));
                self.closed_at = self.closed_at.max(Some(sector));
                self.intact = self.intact.max(programmed);
            }
            Ok(Some(SectorTag::LargeValue { chunk_index: part, seq })) => {
                self.large_value = Some((part, seq));
                self.intact = self.intact.max(programmed);
            }
            Ok(Some(SectorTag::Padding { stamp })) => {
                self.closed_at = self.closed_at.max(Some(sector));
                self.intact = self.intact.max(programmed);
                self.stamp = self.stamp.max((stamp > 0).then_some(stamp));
            }
            Ok(Some(SectorTag::Packed { first, stamp })) => {
                self.intact = self.intact.max(programmed);
                self.stamp = self.stamp.max(Some(stamp));
                self.record_starts.extend(first.map(|at| (sector, at)));
            }
        }
    }

    /// Finishes after all tags were added.
    pub(crate) fn finish(&mut self) {
        self.failed_sectors.sort_unstable();
        self.record_starts.sort_unstable();
    }

    /// Returns whether a record may have been interrupted by the power loss: the last unit is torn,
    /// or ends with a record that may continue in the next unit.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.intact < self.written || self.closed_at.map(|sector| sector + 1) != Some(self.written)
    }

    /// Returns whether the bytes from `start` up to `end` are valid.
    pub(crate) fn is_valid_range(
        &self,
        start: u32,
        end: u32,
        sector_bytes: u32,
        unit: u32,
    ) -> bool {
        let (from, to) = (start / sector_bytes, (end.max(1) - 1) / sector_bytes + 1);
        let tail = self.intact.saturating_sub(unit);
        to <= self.intact
            && !self.void_ranges.iter().any(|(first, past)| from < *past && *first < to)
            && !self.failed_sectors.iter().any(|bad| (from.max(tail)..to).contains(bad))
    }
}

/// A valid record.
#[derive(Clone, Debug)]
pub(crate) struct RecoveredRecord {
    pub(crate) key: Key,
    pub(crate) header: RecordHeader,
    pub(crate) chunk_extents: Vec<ChunkExtent>,
    pub(crate) chunk: u32,
    pub(crate) offset: u32,
    /// Stamp of its chunk.
    pub(crate) stamp: u64,
}

impl RecoveredRecord {
    pub(crate) fn bytes(&self) -> u32 {
        record_bytes(self.key.len(), self.chunk_extents.len(), self.header.bytes)
    }

    fn record_ref(&self) -> RecordRef {
        let RecoveredRecord { chunk, offset, ref header, .. } = *self;
        RecordRef { chunk, offset, bytes: header.bytes, crc: header.crc }
    }
}

/// The versions of one key.
#[derive(Debug)]
pub(crate) struct RecoveredKey {
    pub(crate) key: Key,
    /// The current version, if the key belongs in the index.
    pub(crate) entry: Option<IndexEntry>,
    /// Indexes of the records of complete versions, and of those that were never complete.
    pub(crate) complete_records: Vec<usize>,
    pub(crate) incomplete_records: Vec<usize>,
}

/// Sorts records for [`resolve_versions`]: by key, newest version first, then by record index; of
/// several copies, the one in the chunk opened last is first.
pub(crate) fn sort_records(records: &mut [RecoveredRecord]) {
    let rank = |kind| u8::from(kind != RecordKind::Uncorrectable);
    records.sort_unstable_by(|a, b| {
        let version = |r: &RecoveredRecord| {
            (u64::MAX - r.header.seq, rank(r.header.kind), r.header.record_index)
        };
        let copy = |r: &RecoveredRecord| (u64::MAX - r.stamp, r.chunk, r.offset);
        a.key.cmp(&b.key).then((version(a), copy(a)).cmp(&(version(b), copy(b))))
    });
}

/// Resolves the versions of the key at index `from` of sorted records. Also returns the index of
/// the next key.
pub(crate) fn resolve_versions(
    records: &[RecoveredRecord],
    from: usize,
) -> Option<(RecoveredKey, usize)> {
    let key = &records.get(from)?.key;
    let end = from + records[from..].iter().take_while(|r| r.key == *key).count();
    let mut found = RecoveredKey {
        key: key.clone(),
        entry: None,
        complete_records: Vec::new(),
        incomplete_records: Vec::new(),
    };
    let mut at = from;
    while at < end {
        let seq = records[at].header.seq;
        let past = at + records[at..end].iter().take_while(|r| r.header.seq == seq).count();
        match assemble_version(&records[at..past]) {
            None => found.incomplete_records.extend(at..past),
            Some(current) => {
                found.complete_records.extend(at..past);
                found.entry.get_or_insert(IndexEntry { seq, current, older_records: 0 });
            }
        }
        at = past;
    }
    let values =
        found.complete_records.iter().filter(|i| records[**i].header.kind != RecordKind::Tombstone);
    let values = values.count() as u32;
    if let Some(entry) = &mut found.entry {
        entry.older_records = values - entry.current.value_record_count();
        if entry.older_records == 0 && !entry.current.is_present() {
            found.entry = None;
        }
    }
    Some((found, end))
}

/// Assembles a version from its sorted records, if it is complete.
fn assemble_version(records: &[RecoveredRecord]) -> Option<KeyVersion> {
    let first = records.first()?;
    match first.header.kind {
        RecordKind::Tombstone => return Some(KeyVersion::Tombstone(first.record_ref())),
        RecordKind::Uncorrectable => return Some(KeyVersion::Uncorrectable(first.record_ref())),
        RecordKind::Value => {}
    }
    let mut pieces: Vec<RecordRef> = Vec::new();
    for record in records {
        if usize::from(record.header.record_index) == pieces.len() {
            pieces.push(record.record_ref());
        }
    }
    if pieces.len() != usize::from(first.header.record_count) {
        return None;
    }
    Some(match pieces[..] {
        [piece] if first.chunk_extents.is_empty() => KeyVersion::Packed(piece),
        _ => {
            let (parts, pieces) = (first.chunk_extents.clone().into(), pieces.into());
            KeyVersion::Extents(Box::new(ExtentList { chunk_extents: parts, records: pieces }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(
        key: &str,
        seq: u64,
        (piece, pieces): (u16, u16),
        kind: RecordKind,
        chunk: u32,
    ) -> RecoveredRecord {
        let header = RecordHeader {
            seq,
            bytes: 8,
            crc: 0,
            batch: None,
            record_index: piece,
            record_count: pieces,
            kind,
        };
        let key = Key::new(key.as_bytes()).unwrap();
        RecoveredRecord {
            key,
            header,
            chunk_extents: Vec::new(),
            chunk,
            offset: 0,
            stamp: chunk.into(),
        }
    }

    fn only(mut records: Vec<RecoveredRecord>) -> RecoveredKey {
        sort_records(&mut records);
        let (found, end) = resolve_versions(&records, 0).unwrap();
        assert_eq!(end, records.len());
        found
    }

    #[test]
    fn the_newest_complete_version_is_current() {
        let value = RecordKind::Value;
        let found = only(vec![
            record("k", 1, (0, 1), value, 1),
            record("k", 3, (0, 2), value, 2),
            record("k", 2, (0, 1), value, 3),
            record("k", 2, (0, 1), value, 4),
        ]);
        let entry = found.entry.unwrap();
        assert_eq!((entry.seq, entry.older_records), (2, 2));
        assert_eq!(entry.current.records()[0].chunk, 4, "the copy in the younger chunk");
        assert_eq!((found.complete_records.len(), found.incomplete_records.len()), (3, 1));
    }

    #[test]
    fn an_uncorrectable_record_replaces_its_version_and_a_lone_tombstone_is_dropped() {
        let lost = only(vec![
            record("k", 2, (0, 1), RecordKind::Value, 1),
            record("k", 2, (0, 1), RecordKind::Uncorrectable, 0),
        ]);
        let entry = lost.entry.unwrap();
        assert_eq!(
            (matches!(entry.current, KeyVersion::Uncorrectable(_)), entry.older_records),
            (true, 1)
        );
        assert!(only(vec![record("k", 2, (0, 1), RecordKind::Tombstone, 1)]).entry.is_none());
        let kept = only(vec![
            record("k", 2, (0, 1), RecordKind::Tombstone, 1),
            record("k", 1, (0, 1), RecordKind::Value, 1),
        ]);
        assert_eq!(kept.entry.unwrap().older_records, 1);
    }

    #[test]
    fn a_valid_range_ends_in_what_was_programmed() {
        let mut found = RecoveredChunk { written: 24, ..RecoveredChunk::default() };
        let packed = |first| Ok(Some(SectorTag::Packed { first, stamp: 5 }));
        for sector in 0..8 {
            found.add_sector(sector, packed(Some(0)), 4);
        }
        for sector in 8..12 {
            found.add_sector(sector, Err(()), 4);
        }
        found.add_sector(12, Ok(Some(SectorTag::Filler)), 4);
        found.finish();
        assert_eq!((found.intact, found.is_interrupted(), found.stamp), (8, true, Some(5)));
        assert!(found.is_valid_range(0, 8 * 512, 512, 4));
        assert!(!found.is_valid_range(0, 8 * 512 + 1, 512, 4));
        // A seal, and data written after it.
        found.add_sector(16, Ok(Some(SectorTag::Seal { intact: 8 })), 4);
        found.add_sector(20, packed(None), 4);
        found.finish();
        assert_eq!((found.intact, found.is_interrupted()), (24, true), "a record may go on");
        found.add_sector(23, Ok(Some(SectorTag::Padding { stamp: 5 })), 4);
        assert!(!found.is_interrupted());
        assert!(!found.is_valid_range(7 * 512, 9 * 512, 512, 4), "torn then, void now");
        assert!(found.is_valid_range(20 * 512, 24 * 512, 512, 4));
        // An uncorrectable sector affects only itself, but data that may have been torn with it is
        // not trusted.
        found.failed_sectors.push(21);
        assert!(found.is_valid_range(4 * 512, 8 * 512, 512, 4));
        assert!(!found.is_valid_range(20 * 512, 22 * 512, 512, 4));
    }
}
