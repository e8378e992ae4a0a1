//! [`TableRecord`]: one change of the partition table in its journal. A table is a snapshot and the
//! records after it. A record is applied completely or not at all, so a journal that ends after any
//! record yields a table that was once valid.

use collections::{PutBytes, Reader};

use crate::table::bytes::{PutTable, ReadTable};
use crate::{QuotaLimits, TargetEntry, TargetId};

/// A change of the partition table. Chunks are chunk indexes, ascending.
#[derive(Clone, Debug, PartialEq)]
pub enum TableRecord {
    /// A target was created, and owns these chunks from the beginning.
    Created {
        /// The target.
        target: Box<TargetEntry>,
        /// The chunks, which were free.
        chunks: Vec<u32>,
    },
    /// A target was removed. Its chunks are dirty.
    Removed {
        /// The target.
        target: TargetId,
    },
    /// Free chunks were granted to a target.
    Granted {
        /// The target.
        target: TargetId,
        /// The chunks.
        chunks: Vec<u32>,
    },
    /// A target's chunks were returned.
    Returned {
        /// The target.
        target: TargetId,
        /// The chunks.
        chunks: Vec<u32>,
        /// Whether they are erased, and therefore free; otherwise they are dirty.
        erased: bool,
    },
    /// Dirty chunks were erased, and are free.
    Erased {
        /// The chunks.
        chunks: Vec<u32>,
    },
    /// Chunks became bad. They keep their owner, because a target's capacity must not change.
    Retired {
        /// The chunks.
        chunks: Vec<u32>,
    },
    /// A sharing target has other limits.
    Limited {
        /// The target.
        target: TargetId,
        /// All of its limits.
        limits: QuotaLimits,
    },
}

mod kind {
    pub(super) const CREATED: u8 = 1;
    pub(super) const REMOVED: u8 = 2;
    pub(super) const GRANTED: u8 = 3;
    pub(super) const RETURNED_DIRTY: u8 = 4;
    pub(super) const RETURNED_ERASED: u8 = 5;
    pub(super) const ERASED: u8 = 6;
    pub(super) const RETIRED: u8 = 7;
    pub(super) const LIMITED: u8 = 8;
}

impl TableRecord {
    /// Returns the maximum size of a record in bytes, for a number of parallel units and chunks.
    pub(super) fn bytes_max(pus: u32, chunks: u32) -> u64 {
        // A run covers at least two chunks, and takes two numbers of at most five bytes.
        1 + 5 + TargetEntry::bytes_max(pus) + 5 * u64::from(chunks) + 5
    }

    /// Encodes the record for the journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Vec::new();
        match self {
            TableRecord::Created { target, chunks } => {
                w.put_u8(kind::CREATED);
                target.encode(&mut w);
                w.put_chunks(chunks);
            }
            TableRecord::Removed { target } => {
                w.put_u8(kind::REMOVED);
                w.put_varint(target.0.into());
            }
            TableRecord::Granted { target, chunks } => {
                w.put_u8(kind::GRANTED);
                w.put_varint(target.0.into());
                w.put_chunks(chunks);
            }
            TableRecord::Returned { target, chunks, erased: clean } => {
                w.put_u8(if *clean { kind::RETURNED_ERASED } else { kind::RETURNED_DIRTY });
                w.put_varint(target.0.into());
                w.put_chunks(chunks);
            }
            TableRecord::Erased { chunks } => {
                w.put_u8(kind::ERASED);
                w.put_chunks(chunks);
            }
            TableRecord::Retired { chunks } => {
                w.put_u8(kind::RETIRED);
                w.put_chunks(chunks);
            }
            TableRecord::Limited { target, limits } => {
                w.put_u8(kind::LIMITED);
                w.put_varint(target.0.into());
                limits.encode(&mut w);
            }
        }
        w
    }

    /// Decodes a record, on a drive with `total` chunks; `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8], total: u32) -> Option<TableRecord> {
        let mut r = Reader::new(bytes);
        let record = match r.u8()? {
            kind::CREATED => {
                let target = Box::new(TargetEntry::decode(&mut r)?);
                TableRecord::Created { target, chunks: r.chunks(total)? }
            }
            kind::REMOVED => TableRecord::Removed { target: TargetId(r.varint_u32()?) },
            kind::GRANTED => {
                TableRecord::Granted { target: TargetId(r.varint_u32()?), chunks: r.chunks(total)? }
            }
            kind @ (kind::RETURNED_DIRTY | kind::RETURNED_ERASED) => TableRecord::Returned {
                target: TargetId(r.varint_u32()?),
                chunks: r.chunks(total)?,
                erased: kind == kind::RETURNED_ERASED,
            },
            kind::ERASED => TableRecord::Erased { chunks: r.chunks(total)? },
            kind::RETIRED => TableRecord::Retired { chunks: r.chunks(total)? },
            kind::LIMITED => TableRecord::Limited {
                target: TargetId(r.varint_u32()?),
                limits: QuotaLimits::decode(&mut r)?,
            },
            _ => return None,
        };
        r.finish(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::target::tests::full;

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_if_cut() {
        let (target, chunks) = (TargetId(300), vec![0, 1, 2, 900]);
        let records = [
            TableRecord::Created { target: Box::new(full()), chunks: (0..1000).collect() },
            TableRecord::Created {
                target: Box::new(full()),
                chunks: (0..500).map(|i| 2 * i).collect(),
            },
            TableRecord::Removed { target },
            TableRecord::Granted { target, chunks: chunks.clone() },
            TableRecord::Returned { target, chunks: chunks.clone(), erased: false },
            TableRecord::Returned { target, chunks: Vec::new(), erased: true },
            TableRecord::Erased { chunks: chunks.clone() },
            TableRecord::Retired { chunks },
            TableRecord::Limited { target, limits: full().spec.limits },
            TableRecord::Limited { target, limits: QuotaLimits::default() },
        ];
        for record in records {
            let mut bytes = record.encode();
            assert!(bytes.len() as u64 <= TableRecord::bytes_max(128, 1000), "{record:?}");
            assert_eq!(TableRecord::decode(&bytes, 1000), Some(record.clone()));
            for end in 0..bytes.len() {
                assert_eq!(
                    TableRecord::decode(&bytes[..end], 1000),
                    None,
                    "{record:?} cut at {end}"
                );
            }
            bytes.push(0);
            assert_eq!(TableRecord::decode(&bytes, 1000), None, "one byte too many");
        }
        assert_eq!(TableRecord::decode(&[99], 1000), None);
        let far = TableRecord::Erased { chunks: vec![1000] }.encode();
        assert_eq!(TableRecord::decode(&far, 1000), None, "no such chunk");
    }
}
