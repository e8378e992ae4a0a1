//! [`Model`]: the entries given to a journal, and the contents that a recovery may find.

use super::format::Content;

#[derive(Clone, Debug)]
enum Entry {
    Snapshot(Vec<u8>),
    Record(Vec<u8>),
}

/// The snapshots and records given to the journal, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    entries: Vec<Entry>,
    /// Number of entries that a recovery must find.
    pub(crate) durable: usize,
}

impl Model {
    /// Creates the model of a journal whose whole content is durable.
    pub(crate) fn from_content(content: &Content) -> Model {
        let snapshot = content.snapshot.iter().cloned().map(Entry::Snapshot);
        let records = content.records.iter().cloned().map(Entry::Record);
        let entries: Vec<Entry> = snapshot.chain(records).collect();
        Model { durable: entries.len(), entries }
    }

    /// Creates the model of content that is on the media, but that a recovery could not read. A
    /// later recovery may find it, or the part that erases have left.
    pub(crate) fn hidden(content: &Content) -> Model {
        Model { durable: usize::from(content.snapshot.is_some()), ..Model::from_content(content) }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn append(&mut self, record: &[u8]) {
        self.entries.push(Entry::Record(record.to_vec()));
    }

    pub(crate) fn snapshot(&mut self, bytes: &[u8]) {
        self.entries.push(Entry::Snapshot(bytes.to_vec()));
    }

    /// Whether `content` results from a prefix of the entries that includes all durable ones.
    pub(crate) fn allows(&self, content: &Content) -> bool {
        let starts = self.entries.iter().enumerate().filter_map(|(i, entry)| match entry {
            Entry::Snapshot(bytes) => Some((i + 1, Some(bytes))),
            Entry::Record(_) => None,
        });
        std::iter::once((0, None)).chain(starts).any(|(start, snapshot)| {
            let end = start + content.records.len();
            if end < self.durable || end > self.len() || snapshot != content.snapshot.as_ref() {
                return false;
            }
            self.entries[start..end]
                .iter()
                .zip(&content.records)
                .all(|(entry, found)| matches!(entry, Entry::Record(record) if record == found))
        })
    }
}
