//! [`Index`]: which version of every key is current, and where it is. In memory; rebuilt at
//! power-on.
//!
//! One ordered map: look-ups, and iteration in the order of keys, without a second structure. An
//! entry takes 72 bytes, key included, and with the map's own slack some 75 to 135 bytes per key; keys
//! of more than 30 bytes, and values of several pieces, take what they need beside that.
//!
//! **Why a tombstone may be forgotten.** A record on the media that is older than a key's current one
//! is harmless while a newer record of the key is there too: the newest wins at power-on. So the
//! record of a deletion must outlive every older record of a value of its key. [`IndexEntry::older_records`]
//! counts exactly those: it grows when a record of a value stops being the current one (overwritten,
//! deleted, or moved: the copy that stays behind is as old as the one that was moved), and shrinks
//! only when the erase of the chunk that held it *has completed*. At 0 nothing on the media can bring
//! the key back, and the tombstone becomes garbage like any other. Records of deletions are not
//! counted: without the tombstone they say the same as nothing. Chunks that are never erased any more
//! (a program failed) keep their count up for ever, and with it the tombstone. At power-on the counts
//! are made anew from the records that are found; records of versions that never became whole are not
//! among them, because they never can be.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::key::Key;
use super::record::record_bytes;

/// Inline bytes of a value, in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) chunk: u32,
    /// Where the record starts in the chunk.
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

/// Where a value is that takes more than one record or chunk: the whole chunks come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentList {
    pub(crate) chunk_extents: Box<[ChunkExtent]>,
    pub(crate) records: Box<[RecordRef]>,
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyVersion {
    /// A value in one record.
    Packed(RecordRef),
    /// A value in several.
    Extents(Box<ExtentList>),
    /// Nothing, but older records are on the media.
    Tombstone(RecordRef),
    /// A value that cannot be read any more.
    Uncorrectable(RecordRef),
}

impl KeyVersion {
    /// The whole chunks of the value.
    pub(crate) fn chunk_extents(&self) -> &[ChunkExtent] {
        match self {
            KeyVersion::Extents(spread) => &spread.chunk_extents,
            _ => &[],
        }
    }

    /// The records.
    pub(crate) fn records(&self) -> &[RecordRef] {
        match self {
            KeyVersion::Packed(piece)
            | KeyVersion::Tombstone(piece)
            | KeyVersion::Uncorrectable(piece) => std::slice::from_ref(piece),
            KeyVersion::Extents(spread) => &spread.records,
        }
    }

    /// The same, to say where they have moved.
    pub(crate) fn records_mut(&mut self) -> &mut [RecordRef] {
        match self {
            KeyVersion::Packed(piece)
            | KeyVersion::Tombstone(piece)
            | KeyVersion::Uncorrectable(piece) => std::slice::from_mut(piece),
            KeyVersion::Extents(spread) => &mut spread.records,
        }
    }

    /// Whether the key exists.
    pub(crate) fn is_present(&self) -> bool {
        !matches!(self, KeyVersion::Tombstone(_))
    }

    /// Records that count as older ones once they are not current any more.
    pub(crate) fn value_record_count(&self) -> u32 {
        if self.is_present() { self.records().len() as u32 } else { 0 }
    }

    /// Bytes of the value.
    pub(crate) fn value_bytes(&self, chunk_bytes: u32) -> u64 {
        let whole = self.chunk_extents().len() as u64 * u64::from(chunk_bytes);
        whole + self.records().iter().map(|p| u64::from(p.bytes)).sum::<u64>()
    }

    /// Bytes of record number `i` in its chunk.
    pub(crate) fn record_bytes(&self, key: u8, i: usize) -> u32 {
        let parts = if i == 0 { self.chunk_extents().len() } else { 0 };
        record_bytes(key, parts, self.records()[i].bytes)
    }
}

/// A key's entry.
#[derive(Clone, Debug)]
pub(crate) struct IndexEntry {
    pub(crate) seq: u64,
    pub(crate) current: KeyVersion,
    /// Records of the key's values on the media that are not the current ones.
    pub(crate) older_records: u32,
}

/// All keys.
#[derive(Debug, Default)]
pub(crate) struct Index {
    map: BTreeMap<Key, IndexEntry>,
    /// Keys that exist.
    pub(crate) key_count: u64,
}

impl Index {
    /// The entry of a key, existing or deleted.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key)
    }

    /// The same, to say where records have moved, or that older ones came or went.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut IndexEntry> {
        self.map.get_mut(key)
    }

    /// The entry of a key that exists.
    #[inline]
    pub(crate) fn get_present(&self, key: &[u8]) -> Option<&IndexEntry> {
        self.map.get(key).filter(|e| e.current.is_present())
    }

    /// Makes a version current, and returns what was.
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

    /// Puts in what was found at power-on.
    pub(crate) fn insert_recovered(&mut self, key: Key, entry: IndexEntry) {
        self.key_count += u64::from(entry.current.is_present());
        self.map.insert(key, entry);
    }

    /// An older record of the key is gone from the media. Returns the tombstone that nothing needs
    /// any more, if that is one.
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

    /// Existing keys behind a bound, in order.
    pub(crate) fn range_from(
        &self,
        bound: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&Key, &IndexEntry)> {
        let range = self.map.range::<[u8], _>((bound, Bound::Unbounded));
        range.filter(|(_, entry)| entry.current.is_present())
    }

    /// All entries.
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
