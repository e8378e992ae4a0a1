//! [`Found`]: what a chunk's labels say; [`Versions`]: which records are current, after power was
//! lost.
//!
//! **Which records count.** Within a chunk units are programmed in order, and only the last one can be
//! torn. So everything before a unit that can be read was programmed; a record, or a batch, counts if
//! it ends within what is known to be programmed, and in the last such unit only if none of its
//! sectors is unreadable. Filler that a power-on wrote says nothing of what precedes it. Where a chunk
//! goes on being written behind a torn unit, a seal lies between: what was not intact when it was
//! written is void for ever, whatever follows, and so is a record that would have gone on there.
//!
//! **Which record is current.** Of all versions of a key that are complete, the one with the largest
//! sequence number. A version of several records is complete if all are there: all were durable before
//! anything older was erased, and all of the current one are kept. Of several copies of a record (one
//! was moved, and power went before the other was erased) the one in the chunk that was opened last.

use super::index::{Current, Entry, Part, Piece, Spread};
use super::key::Key;
use super::oob::Label;
use super::record::{Header, Kind, record_bytes};

/// A chunk as its labels show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Sectors written before this power-on.
    pub(crate) written: u32,
    /// Sectors known to be programmed.
    pub(crate) intact: u32,
    /// Sectors that cannot be read, in order.
    pub(crate) bad: Vec<u32>,
    /// The last sector that is padding or a seal: no record goes on behind it.
    pub(crate) closed_at: Option<u32>,
    /// Ranges of sectors that are void, end not included.
    pub(crate) void: Vec<(u32, u32)>,
    /// Sectors in which a record starts, with the place of the first one.
    pub(crate) starts: Vec<(u32, u32)>,
    /// The chunk's stamp, if it holds records.
    pub(crate) stamp: Option<u64>,
    /// Which whole chunk of which value it is.
    pub(crate) whole: Option<(u32, u64)>,
    /// A sector that somebody else wrote.
    pub(crate) foreign: Option<u32>,
}

impl Found {
    /// Takes the label of a sector, in any order; `Err` if it cannot be read.
    pub(crate) fn sector(&mut self, sector: u32, label: Result<Option<Label>, ()>, unit: u32) {
        let programmed = (sector / unit + 1) * unit;
        match label {
            Err(()) => self.bad.push(sector),
            Ok(None) => self.foreign = Some(self.foreign.map_or(sector, |s| s.min(sector))),
            Ok(Some(Label::Filler)) => {}
            Ok(Some(Label::Seal { intact })) => {
                self.void.push((intact, programmed));
                self.closed_at = self.closed_at.max(Some(sector));
                self.intact = self.intact.max(programmed);
            }
            Ok(Some(Label::Whole { part, seq })) => {
                self.whole = Some((part, seq));
                self.intact = self.intact.max(programmed);
            }
            Ok(Some(Label::Padding { stamp })) => {
                self.closed_at = self.closed_at.max(Some(sector));
                self.intact = self.intact.max(programmed);
                self.stamp = self.stamp.max((stamp > 0).then_some(stamp));
            }
            Ok(Some(Label::Packed { first, stamp })) => {
                self.intact = self.intact.max(programmed);
                self.stamp = self.stamp.max(Some(stamp));
                self.starts.extend(first.map(|at| (sector, at)));
            }
        }
    }

    /// All labels have been taken.
    pub(crate) fn finish(&mut self) {
        self.bad.sort_unstable();
        self.starts.sort_unstable();
    }

    /// Whether a record may have been going on when power went away: the last unit is torn, or ends
    /// with a record, which the next unit would have gone on with.
    pub(crate) fn is_cut(&self) -> bool {
        self.intact < self.written || self.closed_at.map(|sector| sector + 1) != Some(self.written)
    }

    /// Whether the bytes from `start` up to `end` count.
    pub(crate) fn counts(&self, start: u32, end: u32, sector_bytes: u32, unit: u32) -> bool {
        let (from, to) = (start / sector_bytes, (end.max(1) - 1) / sector_bytes + 1);
        let tail = self.intact.saturating_sub(unit);
        to <= self.intact
            && !self.void.iter().any(|(first, past)| from < *past && *first < to)
            && !self.bad.iter().any(|bad| (from.max(tail)..to).contains(bad))
    }
}

/// A record that counts.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) header: Header,
    pub(crate) parts: Vec<Part>,
    pub(crate) chunk: u32,
    pub(crate) offset: u32,
    /// Stamp of its chunk.
    pub(crate) stamp: u64,
}

impl Record {
    pub(crate) fn bytes(&self) -> u32 {
        record_bytes(self.key.len(), self.parts.len(), self.header.bytes)
    }

    fn piece(&self) -> Piece {
        let Record { chunk, offset, ref header, .. } = *self;
        Piece { chunk, offset, bytes: header.bytes, crc: header.crc }
    }
}

/// The versions of one key.
#[derive(Debug)]
pub(crate) struct Versions {
    pub(crate) key: Key,
    /// What is current, if the key is to be in the index.
    pub(crate) entry: Option<Entry>,
    /// Places in the list of records, of those that are complete and of those that never were.
    pub(crate) complete: Vec<usize>,
    pub(crate) void: Vec<usize>,
}

/// Sorts records for [`versions`]: by key, the newest version first, its copies by piece, and of each
/// the one in the chunk that was opened last in front.
pub(crate) fn sort(records: &mut [Record]) {
    let rank = |kind| u8::from(kind != Kind::Lost);
    records.sort_unstable_by(|a, b| {
        let version = |r: &Record| (u64::MAX - r.header.seq, rank(r.header.kind), r.header.piece);
        let copy = |r: &Record| (u64::MAX - r.stamp, r.chunk, r.offset);
        a.key.cmp(&b.key).then((version(a), copy(a)).cmp(&(version(b), copy(b))))
    });
}

/// The versions of the key at `from` of sorted records, and where those of the next one begin.
pub(crate) fn versions(records: &[Record], from: usize) -> Option<(Versions, usize)> {
    let key = &records.get(from)?.key;
    let end = from + records[from..].iter().take_while(|r| r.key == *key).count();
    let mut found =
        Versions { key: key.clone(), entry: None, complete: Vec::new(), void: Vec::new() };
    let mut at = from;
    while at < end {
        let seq = records[at].header.seq;
        let past = at + records[at..end].iter().take_while(|r| r.header.seq == seq).count();
        match complete(&records[at..past]) {
            None => found.void.extend(at..past),
            Some(current) => {
                found.complete.extend(at..past);
                found.entry.get_or_insert(Entry { seq, current, older: 0 });
            }
        }
        at = past;
    }
    let values = found.complete.iter().filter(|i| records[**i].header.kind != Kind::Deleted);
    let values = values.count() as u32;
    if let Some(entry) = &mut found.entry {
        entry.older = values - entry.current.counted();
        if entry.older == 0 && !entry.current.exists() {
            found.entry = None;
        }
    }
    Some((found, end))
}

/// What the sorted records of one version make, if it is complete.
fn complete(records: &[Record]) -> Option<Current> {
    let first = records.first()?;
    match first.header.kind {
        Kind::Deleted => return Some(Current::Deleted(first.piece())),
        Kind::Lost => return Some(Current::Lost(first.piece())),
        Kind::Value => {}
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for record in records {
        if usize::from(record.header.piece) == pieces.len() {
            pieces.push(record.piece());
        }
    }
    if pieces.len() != usize::from(first.header.pieces) {
        return None;
    }
    Some(match pieces[..] {
        [piece] if first.parts.is_empty() => Current::Packed(piece),
        _ => {
            let (parts, pieces) = (first.parts.clone().into(), pieces.into());
            Current::Spread(Box::new(Spread { parts, pieces }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, seq: u64, (piece, pieces): (u16, u16), kind: Kind, chunk: u32) -> Record {
        let header = Header { seq, bytes: 8, crc: 0, batch: None, piece, pieces, kind };
        let key = Key::new(key.as_bytes()).unwrap();
        Record { key, header, parts: Vec::new(), chunk, offset: 0, stamp: chunk.into() }
    }

    fn only(mut records: Vec<Record>) -> Versions {
        sort(&mut records);
        let (found, end) = versions(&records, 0).unwrap();
        assert_eq!(end, records.len());
        found
    }

    #[test]
    fn the_newest_complete_version_is_current() {
        let value = Kind::Value;
        let found = only(vec![
            record("k", 1, (0, 1), value, 1),
            record("k", 3, (0, 2), value, 2),
            record("k", 2, (0, 1), value, 3),
            record("k", 2, (0, 1), value, 4),
        ]);
        let entry = found.entry.unwrap();
        assert_eq!((entry.seq, entry.older), (2, 2));
        assert_eq!(entry.current.pieces()[0].chunk, 4, "the copy in the younger chunk");
        assert_eq!((found.complete.len(), found.void.len()), (3, 1));
    }

    #[test]
    fn a_loss_takes_the_place_of_its_version_and_a_lone_tombstone_is_forgotten() {
        let lost = only(vec![
            record("k", 2, (0, 1), Kind::Value, 1),
            record("k", 2, (0, 1), Kind::Lost, 0),
        ]);
        let entry = lost.entry.unwrap();
        assert_eq!((matches!(entry.current, Current::Lost(_)), entry.older), (true, 1));
        assert!(only(vec![record("k", 2, (0, 1), Kind::Deleted, 1)]).entry.is_none());
        let kept = only(vec![
            record("k", 2, (0, 1), Kind::Deleted, 1),
            record("k", 1, (0, 1), Kind::Value, 1),
        ]);
        assert_eq!(kept.entry.unwrap().older, 1);
    }

    #[test]
    fn what_counts_ends_in_what_was_programmed() {
        let mut found = Found { written: 24, ..Found::default() };
        let packed = |first| Ok(Some(Label::Packed { first, stamp: 5 }));
        for sector in 0..8 {
            found.sector(sector, packed(Some(0)), 4);
        }
        for sector in 8..12 {
            found.sector(sector, Err(()), 4);
        }
        found.sector(12, Ok(Some(Label::Filler)), 4);
        found.finish();
        assert_eq!((found.intact, found.is_cut(), found.stamp), (8, true, Some(5)));
        assert!(found.counts(0, 8 * 512, 512, 4));
        assert!(!found.counts(0, 8 * 512 + 1, 512, 4));
        // A seal, and what was written behind it.
        found.sector(16, Ok(Some(Label::Seal { intact: 8 })), 4);
        found.sector(20, packed(None), 4);
        found.finish();
        assert_eq!((found.intact, found.is_cut()), (24, true), "a record may go on");
        found.sector(23, Ok(Some(Label::Padding { stamp: 5 })), 4);
        assert!(!found.is_cut());
        assert!(!found.counts(7 * 512, 9 * 512, 512, 4), "torn then, void now");
        assert!(found.counts(20 * 512, 24 * 512, 512, 4));
        // A bad sector fails alone, but what may have been torn with it is not trusted.
        found.bad.push(21);
        assert!(found.counts(4 * 512, 8 * 512, 512, 4));
        assert!(!found.counts(20 * 512, 22 * 512, 512, 4));
    }
}
