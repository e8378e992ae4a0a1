//! [`NamedScan`]: finds the valid sectors of an FTL whose sectors have names.
//!
//! Every sector with data is valid, but the source of a copy. A copy names its source, which may have been
//! erased and written again since. So the source is the sector there if its tag is that of the copy, and the
//! sequence number of its unit is smaller: a line is not erased before the copies of its sectors are on the
//! media, and no number is on the media twice.
//!
//! A source that was found is an unconfirmed move: the owner of the names is told of it again.
//!
//! # Sequence numbers
//!
//! The largest number may have been in a line that was erased since. A snapshot has the next number at its
//! time, and each later one belongs to a write unit in a line that was open then or has been opened since,
//! which the journal records. No unit gets a number before a snapshot that was made after the recovery is on
//! the media. Without a journal, [`UNITS_OF_DAMAGE`] times the units of the flash are skipped.

use nvme::PhysSector;

use super::Recovery;
use crate::durability::snapshot::{LineOpened, Snapshot};
use crate::env::Env;
use crate::ids::{ToIndex, ToU32, WriteSeq};
use crate::mapping::named::{TaggedMove, TaggedSector};
use crate::{FlashGeometry, NamedOob, Oob};

/// Sequence numbers that are skipped after the loss of the journal, per write unit of the flash.
const UNITS_OF_DAMAGE: u64 = 256;

/// Fragments of a sequence number.
const FRAGMENTS: usize = 4;
const _: () = assert!(NamedOob::FRAGMENTS == 4, "all fragments are collected");

/// A sector in a unit of sectors with names.
#[derive(Clone, Copy, Debug)]
struct ScannedSector {
    phys: PhysSector,
    oob: NamedOob,
    /// The sequence number of its unit; 0 if too few sectors of the unit can be read.
    sequence: WriteSeq,
}

/// The sectors found so far, and the numbers that the journal accounts for.
#[derive(Debug, Default)]
pub(super) struct NamedScan {
    sectors: Vec<ScannedSector>,
    /// The first number that no unit has, according to the journal.
    first_free_seq: Option<WriteSeq>,
}

/// The state of an FTL whose sectors have names, as it is on the media.
#[derive(Debug, Default)]
pub(crate) struct NamedContents {
    /// By chunk.
    pub(crate) epochs: Vec<WriteSeq>,
    /// In the order of their locations.
    pub(crate) valid: Vec<TaggedSector>,
    /// Moves whose sources have not been erased, in the order in which they happened.
    pub(crate) moves: Vec<TaggedMove>,
    /// The first number for new units.
    pub(crate) next_seq: WriteSeq,
}

impl NamedScan {
    /// Adds a sector that was read.
    fn add(&mut self, phys: PhysSector, oob: NamedOob) {
        self.sectors.push(ScannedSector { phys, oob, sequence: WriteSeq(0) });
    }

    /// Clears the sectors, because they are read again.
    pub(super) fn forget_sectors(&mut self) {
        self.sectors.clear();
    }

    /// Records the lines of the journal: all units written after the snapshot are in them.
    pub(super) fn import_lines(
        &mut self,
        geometry: &FlashGeometry,
        snapshot: &Snapshot,
        opened: &[LineOpened],
    ) {
        let open = snapshot.lines.iter().filter(|line| line.open).map(|line| line.chunks.len());
        let chunks = open.chain(opened.iter().map(|line| line.chunks.len())).sum::<usize>();
        let units = u64::from(geometry.sectors_per_chunk / geometry.ws_opt);
        let first = snapshot.base_seq.get().saturating_add(u64::from(chunks.to_u32()) * units);
        self.first_free_seq = Some(WriteSeq(first));
    }

    /// Computes the sequence number of each unit from the fragments in its sectors.
    fn assemble_numbers(&mut self, geometry: &FlashGeometry) {
        let unit = |sector: &ScannedSector| sector.phys.get() / geometry.ws_opt;
        self.sectors.sort_unstable_by_key(|sector| sector.phys);
        self.sectors.dedup_by_key(|sector| sector.phys);
        for sectors in self.sectors.chunk_by_mut(|a, b| unit(a) == unit(b)) {
            let mut fragments = [None; FRAGMENTS];
            for sector in sectors.iter() {
                let index = sector.phys.get() % geometry.ws_opt;
                fragments[(index % NamedOob::FRAGMENTS).index()] =
                    Some(sector.oob.add_fragment(index));
            }
            let number: Option<u64> = fragments.into_iter().sum();
            sectors.iter_mut().for_each(|s| s.sequence = WriteSeq(number.unwrap_or(0)));
        }
    }

    /// Returns the sector at a location.
    fn at(&self, phys: PhysSector) -> Option<&ScannedSector> {
        let at = self.sectors.binary_search_by_key(&phys, |sector| sector.phys).ok()?;
        self.sectors.get(at)
    }

    /// Returns the location of the source of a copy, if the source is still there.
    fn source_of(&self, copy: &ScannedSector) -> Option<PhysSector> {
        let source = self.at(copy.oob.source?)?;
        let is_older = WriteSeq(0) < source.sequence && source.sequence < copy.sequence;
        let is_source = !source.oob.is_padding && source.oob.tag == copy.oob.tag && is_older;
        is_source.then_some(source.phys)
    }

    /// Returns what the media has.
    pub(super) fn into_contents(mut self, env: &Env) -> NamedContents {
        let geometry = &env.geometry;
        self.assemble_numbers(geometry);
        let mut epochs = vec![WriteSeq(0); geometry.total_chunks().index()];
        let mut max_seq = WriteSeq(0);
        for sector in &self.sectors {
            let epoch = &mut epochs[geometry.chunk_of(sector.phys).index()];
            if *epoch == WriteSeq(0) {
                *epoch = sector.sequence;
            }
            max_seq = max_seq.max(sector.sequence);
        }
        let data = || self.sectors.iter().filter(|sector| !sector.oob.is_padding);
        let mut moves: Vec<(WriteSeq, TaggedMove)> = data()
            .filter_map(|copy| {
                let from = self.source_of(copy)?;
                Some((copy.sequence, TaggedMove { from, to: copy.phys, tag: copy.oob.tag }))
            })
            .collect();
        // A sector may have been moved several times.
        moves.sort_unstable_by_key(|(sequence, moved)| (*sequence, moved.to));
        let moves: Vec<TaggedMove> = moves.into_iter().map(|(_, moved)| moved).collect();
        let mut sources: Vec<PhysSector> = moves.iter().map(|moved| moved.from).collect();
        sources.sort_unstable();
        let has_name = |sector: &&ScannedSector| {
            let epoch = epochs[geometry.chunk_of(sector.phys).index()];
            epoch != WriteSeq(0) && sources.binary_search(&sector.phys).is_err()
        };
        let valid = data().filter(has_name);
        let valid = valid.map(|s| TaggedSector { phys: s.phys, tag: s.oob.tag }).collect();
        let units = geometry.total_sectors() / u64::from(geometry.ws_opt);
        let after_damage = max_seq.get().saturating_add(UNITS_OF_DAMAGE * units);
        let first_free = self.first_free_seq.unwrap_or(WriteSeq(after_damage));
        let next_seq = first_free.max(WriteSeq(max_seq.get() + 1));
        NamedContents { epochs, valid, moves, next_seq }
    }
}

impl Recovery {
    /// Imports a sector of an FTL whose sectors have names: its out-of-band bytes, or `None` if it cannot
    /// be read.
    pub(super) fn import_named_sector(
        &mut self,
        phys: PhysSector,
        bytes: Option<&[u8; Oob::BYTES]>,
    ) {
        let Some(bytes) = bytes else {
            self.observations.unreadable.insert(phys);
            return;
        };
        if let Some(oob) = NamedOob::decode(bytes) {
            self.evidence.record_own();
            self.map.named_mut().add(phys, oob);
        } else if Oob::decode(bytes).is_some_and(|oob| oob.lba.is_none()) {
            self.evidence.record_own();
        } else {
            self.evidence.record_foreign(phys);
        }
    }
}
