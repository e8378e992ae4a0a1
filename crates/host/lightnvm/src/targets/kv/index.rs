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
    pub(crate) key_count: u64,
}

impl Index {
    /// Returns the entry of a key, existing or deleted.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key)
    }

    /// Returns the entry of a key, to update record locations or the count of older records.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut IndexEntry> {
        self.map.get_mut(key)
    }

    /// Returns the entry of a key that exists.
    #[inline]
    pub(crate) fn get_present(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key).filter(|e| e.current.is_present())
    }

    /// Makes a version current, and returns the previous one.
    pub(crate) fn replace(
        &mut self,
        key: &Key,
        seq: u64,
        current: KeyVersion,
    ) -> Option<KeyVersion> {
        let exists = current.is_present();
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
        self.key_count += u64::from(exists);
        self.key_count -= u64::from(old.as_ref().is_some_and(KeyVersion::is_present));
        old
    }

    /// Inserts an entry found at power-on.
    pub(crate) fn insert_recovered(&mut self, key: Key, entry: IndexEntry) {
        self.key_count += u64::from(entry.current.is_present());
        self.map.insert(key, entry);
    }

    /// Records that an older record of the key was erased. Returns the tombstone if it is no longer
    /// needed.
    pub(crate) fn release_older(&mut self, key: &[u8]) -> Option<RecordRef> {
        let entry = self.map.get_mut(key)?;
        entry.older_records = entry.older_records.saturating_sub(1);
        match (entry.older_records, &entry.current) {
            (0, KeyVersion::Tombstone(piece)) => {
                let piece = *piece;
                self.map.remove(key);
                Some(piece)
            }
            _ => None,
        }
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
        assert_eq!((index.key_count, index.get(b"k").unwrap().older_records), (0, 2));
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
        assert_eq!((index.key_count, index.get(b"k").unwrap().older_records), (1, 1));
    }

    #[test]
    fn an_entry_is_as_small_as_it_says() {
        assert_eq!(size_of::<Key>() + size_of::<IndexEntry>(), 72);
    }
}
