//! [`Index`]: the current version of every key and its location. The index is in memory, and
//! rebuilt at power-on.
//!
//! It is one ordered map for lookups and for iteration in key order. An entry takes 72 bytes, key
//! included; with the slack of the map, about 75 to 135 bytes per key. Keys longer than 30 bytes,
//! and values of several records, take additional memory.
//!
//! **When a tombstone can be dropped.** A record on the media that is older than a key's current
//! record is harmless while the newer record exists, because the newest wins at power-on. A
//! tombstone must therefore outlive every older value record of its key.
//!
//! [`IndexEntry::older_records`] counts exactly these. It is incremented when a value record stops
//! being current: overwritten, deleted, or relocated, because the copy left behind is as old as the
//! relocated one. It is decremented only when the erase of the record's chunk *has completed*. At 0
//! nothing on the media can restore the key, and the tombstone becomes garbage.
//!
//! Tombstones are not counted, because they have no effect without the current tombstone. Chunks
//! that are never erased (a program failed) keep their count, and with it the tombstone, for ever.
//! At power-on the counts are recomputed from the records found; records of versions that were
//! never complete are not counted, because they can never become current.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::format::key::Key;
use super::format::record::record_bytes;

/// The location of inline bytes of a value in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) chunk: u32,
    /// Offset of the record in the chunk.
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
}

/// A whole chunk of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkExtent {
    pub(crate) chunk: u32,
    pub(crate) crc: u32,
}

/// The location of a value that takes more than one record or chunk; whole chunks precede records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentList {
    pub(crate) chunk_extents: Box<[ChunkExtent]>,
    pub(crate) records: Box<[RecordRef]>,
}

/// The version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyVersion {
    /// A value in one record.
    Packed(RecordRef),
    /// A value in several records or chunks.
    Extents(Box<ExtentList>),
    /// Deleted; older records are still on the media.
    Tombstone(RecordRef),
    /// A value that is uncorrectable.
    Uncorrectable(RecordRef),
}

impl KeyVersion {
    /// Returns the whole chunks of the value.
    pub(crate) fn chunk_extents(&self) -> &[ChunkExtent] {
        match self {
            KeyVersion::Extents(spread) => &spread.chunk_extents,
            _ => &[],
        }
    }

    /// Returns the records.
    pub(crate) fn records(&self) -> &[RecordRef] {
        match self {
            KeyVersion::Packed(piece)
            | KeyVersion::Tombstone(piece)
            | KeyVersion::Uncorrectable(piece) => std::slice::from_ref(piece),
            KeyVersion::Extents(spread) => &spread.records,
        }
    }

    /// Returns the records, to update their locations.
    pub(crate) fn records_mut(&mut self) -> &mut [RecordRef] {
        match self {
            KeyVersion::Packed(piece)
            | KeyVersion::Tombstone(piece)
            | KeyVersion::Uncorrectable(piece) => std::slice::from_mut(piece),
            KeyVersion::Extents(spread) => &mut spread.records,
        }
    }

    /// Returns the chunks with records or whole chunks of the value.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u32> {
        let records = self.records().iter().map(|p| p.chunk);
        records.chain(self.chunk_extents().iter().map(|p| p.chunk))
    }

    /// Returns whether the key exists.
    pub(crate) fn is_present(&self) -> bool {
        !matches!(self, KeyVersion::Tombstone(_))
    }

    /// Returns the number of records that count as older ones once this version is superseded.
    pub(crate) fn value_record_count(&self) -> u32 {
        if self.is_present() { self.records().len() as u32 } else { 0 }
    }

    /// Returns the size of the value in bytes.
    pub(crate) fn value_bytes(&self, chunk_bytes: u32) -> u64 {
        let whole = self.chunk_extents().len() as u64 * u64::from(chunk_bytes);
        whole + self.records().iter().map(|p| u64::from(p.bytes)).sum::<u64>()
    }

    /// Returns the size of record `i` in bytes.
    pub(crate) fn record_bytes(&self, key: u8, i: usize) -> u32 {
        let parts = if i == 0 { self.chunk_extents().len() } else { 0 };
        record_bytes(key, parts, self.records()[i].bytes)
    }
}

/// The entry of a key.
#[derive(Clone, Debug)]
pub(crate) struct IndexEntry {
    pub(crate) seq: u64,
    pub(crate) current: KeyVersion,
    /// Number of value records of the key on the media that are not current.
    pub(crate) older_records: u32,
}

/// All keys.
#[derive(Debug, Default)]
pub(crate) struct Index {
    map: BTreeMap<Key, IndexEntry>,
    /// Number of keys that exist.
    key_count: u64,
    /// Number of tombstones, and the bytes of their records.
    tombstones: u64,
    tombstone_bytes: u64,
    /// Number of whole chunks of current values.
    chunk_extents: u32,
    /// The last sequence number of a version.
    last_seq: u64,
}

impl Index {
    /// Creates an empty index whose first version gets the sequence number after `last_seq`.
    pub(crate) fn new(last_seq: u64) -> Index {
        Index { last_seq, ..Index::default() }
    }

    /// Returns the number of keys that exist.
    #[inline]
    pub(crate) fn key_count(&self) -> u64 {
        self.key_count
    }

    /// Returns the number of live tombstones.
    pub(crate) fn tombstones(&self) -> u64 {
        self.tombstones
    }

    /// Returns the bytes of the records of live tombstones.
    pub(crate) fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes
    }

    /// Returns the number of whole chunks of current values.
    pub(crate) fn chunk_extents(&self) -> u32 {
        self.chunk_extents
    }

    /// Returns the last sequence number that was assigned to a version.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Assigns the next sequence number to a version.
    #[inline]
    pub(crate) fn assign_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Returns the entry of a key, existing or deleted.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key)
    }

    /// Returns the entry of a key that exists.
    #[inline]
    pub(crate) fn get_present(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key).filter(|e| e.current.is_present())
    }

    /// Adds or subtracts a current version in the counts.
    fn count(&mut self, key: u8, version: &KeyVersion, is_added: bool) {
        let step = |count: &mut u64, by: u64| match is_added {
            true => *count += by,
            false => *count -= by,
        };
        if version.is_present() {
            step(&mut self.key_count, 1);
        } else {
            step(&mut self.tombstones, 1);
            step(&mut self.tombstone_bytes, u64::from(version.record_bytes(key, 0)));
        }
        let extents = version.chunk_extents().len() as u32;
        match is_added {
            true => self.chunk_extents += extents,
            false => self.chunk_extents -= extents,
        }
    }

    /// Counts a value record of a key that is on the media and not current. Returns whether the key
    /// has an entry.
    pub(crate) fn add_older_record(&mut self, key: &[u8]) -> bool {
        let entry = self.map.get_mut(key);
        entry.map(|entry| entry.older_records += 1).is_some()
    }

    /// Changes the location of a record of a key's current version.
    pub(crate) fn relocate(&mut self, key: &[u8], record: usize, to: RecordRef) {
        if let Some(entry) = self.map.get_mut(key) {
            entry.current.records_mut()[record] = to;
        }
    }

    /// Makes a version current, and returns the previous one.
    pub(crate) fn replace(
        &mut self,
        key: &Key,
        seq: u64,
        current: KeyVersion,
    ) -> Option<KeyVersion> {
        self.count(key.len(), &current, true);
        let old = match self.map.get_mut(key.as_bytes()) {
            Some(entry) => {
                let old = std::mem::replace(&mut entry.current, current);
                entry.seq = seq;
                entry.older_records += old.value_record_count();
                Some(old)
            }
            None => {
                self.map.insert(key.clone(), IndexEntry { seq, current, older_records: 0 });
                None
            }
        };
        if let Some(old) = &old {
            self.count(key.len(), old, false);
        }
        old
    }

    /// Inserts an entry found at power-on.
    pub(crate) fn insert_recovered(&mut self, key: Key, entry: IndexEntry) {
        self.count(key.len(), &entry.current, true);
        self.map.insert(key, entry);
    }

    /// Records that an older record of the key was erased. Returns the tombstone if it is no longer
    /// needed.
    pub(crate) fn release_older(&mut self, key: &[u8]) -> Option<RecordRef> {
        let entry = self.map.get_mut(key)?;
        entry.older_records = entry.older_records.saturating_sub(1);
        let KeyVersion::Tombstone(piece) = entry.current else { return None };
        if entry.older_records > 0 {
            return None;
        }
        let (key, entry) = self.map.remove_entry(key)?;
        self.count(key.len(), &entry.current, false);
        Some(piece)
    }

    /// Iterates over existing keys after a bound, in order.
    pub(crate) fn range_from(
        &self,
        bound: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&Key, &IndexEntry)> {
        let range = self.map.range::<[u8], _>((bound, Bound::Unbounded));
        range.filter(|(_, entry)| entry.current.is_present())
    }

    /// Iterates over all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &IndexEntry)> {
        self.map.iter()
    }

    /// Recomputes the counts. Takes time proportional to the number of keys; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Index);
        let mut counted = Index::new(self.last_seq);
        for (key, entry) in &self.map {
            counted.count(key.len(), &entry.current, true);
            let subject = || KvSubject::key(key);
            check.require(
                entry.seq <= self.last_seq,
                "sequence numbers are at most the last one",
                subject(),
                format_args!("at most {}", self.last_seq),
                entry.seq,
            )?;
            check.require(
                entry.current.is_present() || entry.older_records > 0,
                "a tombstone has an older record",
                subject(),
                "at least 1",
                entry.older_records,
            )?;
        }
        let counts = |i: &Index| (i.key_count, i.tombstones, i.tombstone_bytes, i.chunk_extents);
        check.equal(
            "keys, tombstones, their bytes, and whole chunks are counted",
            KvSubject::Part,
            counts(&counted),
            counts(self),
        )
    }

    /// Miscounts the keys.
    #[cfg(test)]
    pub(crate) fn break_key_count(&mut self) {
        self.key_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_ref(chunk: u32) -> RecordRef {
        RecordRef { chunk, offset: 8, bytes: 3, crc: 0 }
    }

    #[test]
    fn a_tombstone_lives_as_long_as_an_older_record() {
        let mut index = Index::default();
        let key = Key::new(b"k").unwrap();
        assert_eq!(index.replace(&key, 1, KeyVersion::Packed(record_ref(1))), None);
        assert!(index.replace(&key, 2, KeyVersion::Packed(record_ref(2))).is_some());
        assert!(index.replace(&key, 3, KeyVersion::Tombstone(record_ref(3))).is_some());
        assert_eq!((index.key_count(), index.get(b"k").unwrap().older_records), (0, 2));
        assert!(index.get_present(b"k").is_none());
        assert_eq!(index.release_older(b"k"), None);
        assert_eq!(index.release_older(b"k"), Some(record_ref(3)));
        assert!(index.get(b"k").is_none());
        assert_eq!(index.release_older(b"k"), None);
    }

    #[test]
    fn a_put_after_a_delete_does_not_count_the_tombstone() {
        let mut index = Index::default();
        let key = Key::new(b"k").unwrap();
        index.replace(&key, 1, KeyVersion::Packed(record_ref(1)));
        index.replace(&key, 2, KeyVersion::Tombstone(record_ref(2)));
        index.replace(&key, 3, KeyVersion::Packed(record_ref(3)));
        assert_eq!((index.key_count(), index.get(b"k").unwrap().older_records), (1, 1));
    }

    #[test]
    fn an_entry_is_as_small_as_it_says() {
        assert_eq!(size_of::<Key>() + size_of::<IndexEntry>(), 72);
    }
}
