//! [`Table`]: the partition table as pure data: the targets of a drive, and the owner of every
//! chunk ([LightNVM17 §4.1], [Thesis15 ch. 6 §4.2]). `docs/format/partition-table.md` is the byte
//! map.
//!
//! Invariants, checked when a table is loaded and for every record: a chunk has at most one owner,
//! which exists and has the chunk's parallel unit. Two targets have a common unit only if both
//! share it. Names and ids are unique. A record that violates an invariant changes nothing.

mod bytes;
pub(crate) mod record;
mod snapshot;
pub(crate) mod target;
pub(crate) mod window;

use nvme::Geometry;

use crate::{
    NewTarget, PuId, Sharing, TableError, TableRecord, TargetEntry, TargetId, Uid, is_name,
};

/// Maximum number of targets of a drive.
pub const TARGETS_MAX: usize = 64;
/// Maximum number of chunks of a drive, the range of a chunk index.
pub const CHUNKS_MAX: u64 = 1 << 28;

/// Maximum number of parallel units of a drive.
pub const PU_MAX: u32 = 1 << 16;
/// Format version that is written and read.
pub const TABLE_VERSION: u16 = 1;

/// The use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkUse {
    /// Erased, without owner.
    Free,
    /// Owned by a target.
    Owned,
    /// Without owner; must be erased before it is granted.
    Dirty,
    /// Used by the partition table.
    Reserved,
    /// Bad when the drive was registered.
    FactoryBad,
    /// Became bad later.
    GrownBad,
}

impl ChunkUse {
    pub(super) const ALL: [ChunkUse; 6] = [
        ChunkUse::Free,
        ChunkUse::Owned,
        ChunkUse::Dirty,
        ChunkUse::Reserved,
        ChunkUse::FactoryBad,
        ChunkUse::GrownBad,
    ];

    /// Returns whether a chunk in this state may have an owner, and whether it must have one.
    pub(super) fn ownership(self) -> (bool, bool) {
        match self {
            ChunkUse::Owned => (true, true),
            ChunkUse::GrownBad => (true, false),
            _ => (false, false),
        }
    }
}

/// The table's entry for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Use of the chunk.
    pub state: ChunkUse,
    /// Owner: of an owned chunk always, of a grown bad one if it had an owner.
    pub owner: Option<TargetId>,
}

/// The geometry of the drive that a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableGeometry {
    groups: u32,
    pus: u32,
    chunks: u32,
    sectors: u32,
    sector_bytes: u32,
}

impl TableGeometry {
    pub(super) fn fields(&self) -> [(&'static str, u32); 5] {
        [
            ("groups", self.groups),
            ("parallel units per group", self.pus),
            ("chunks per parallel unit", self.chunks),
            ("sectors per chunk", self.sectors),
            ("bytes per sector", self.sector_bytes),
        ]
    }
}

/// The partition table of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub(super) geometry: TableGeometry,
    pub(super) uid: Uid,
    /// Number of records applied since the drive was registered.
    pub(super) sequence: u64,
    pub(super) next_id: u32,
    /// By ascending id.
    pub(super) targets: Vec<TargetEntry>,
    pub(super) chunks: Vec<ChunkEntry>,
}

impl Table {
    /// Creates the table of a drive without one. `state` returns for every chunk whether it is
    /// free, dirty, reserved or factory bad.
    ///
    /// # Errors
    /// [`TableError::GeometryMismatch`] for a drive with more than [`CHUNKS_MAX`] chunks;
    /// [`TableError::Inconsistent`] for other states.
    pub fn new(
        geometry: &Geometry,
        uid: Uid,
        mut state: impl FnMut(u32) -> ChunkUse,
    ) -> Result<Table, TableError> {
        let total = total_chunks(geometry)?;
        let chunks: Vec<ChunkEntry> =
            (0..total).map(|c| ChunkEntry { state: state(c), owner: None }).collect();
        if let Some(chunk) = chunks.iter().position(|c| c.state.ownership().0) {
            let what = format!("chunk {chunk} of a new table is already somebody's");
            return Err(TableError::Inconsistent { what });
        }
        let bounds = table_geometry(geometry);
        Ok(Table { geometry: bounds, uid, sequence: 0, next_id: 1, targets: Vec::new(), chunks })
    }

    /// Returns the identifier of the table.
    pub fn uid(&self) -> Uid {
        self.uid
    }

    /// Returns the number of records applied since the drive was registered.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the id of the next target.
    pub fn next_id(&self) -> TargetId {
        TargetId(self.next_id)
    }

    /// Returns the targets, oldest first.
    pub fn targets(&self) -> &[TargetEntry] {
        &self.targets
    }

    /// Returns the target with this name.
    pub fn target_by_name(&self, name: &str) -> Option<&TargetEntry> {
        self.targets.iter().find(|t| t.spec.name == name)
    }

    /// Returns the target with this id.
    pub fn target(&self, id: TargetId) -> Option<&TargetEntry> {
        self.targets.binary_search_by_key(&id, |t| t.id).ok().and_then(|i| self.targets.get(i))
    }

    /// Returns the number of parallel units.
    pub fn pus(&self) -> u32 {
        self.geometry.groups * self.geometry.pus
    }

    /// Returns the number of chunks per parallel unit.
    pub fn chunks_per_pu(&self) -> u32 {
        self.geometry.chunks
    }

    /// Returns the parallel unit of a chunk.
    pub fn pu_of(&self, chunk: u32) -> u32 {
        chunk / self.geometry.chunks
    }

    /// Returns the entries of all chunks, by chunk index.
    pub fn chunks(&self) -> &[ChunkEntry] {
        &self.chunks
    }

    /// Returns whether a target owns a chunk, bad or not.
    pub fn is_owned_by(&self, target: TargetId, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).is_some_and(|c| c.owner == Some(target))
    }

    /// Returns the chunks that a target owns, without bad ones, ascending.
    pub fn owned_by(&self, target: TargetId) -> impl Iterator<Item = u32> + '_ {
        let owned = move |c: &ChunkEntry| c.state == ChunkUse::Owned && c.owner == Some(target);
        (0..).zip(&self.chunks).filter(move |(_, c)| owned(c)).map(|(chunk, _)| chunk)
    }

    /// Applies a change.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`], which names the contradiction; nothing changes.
    pub fn apply(&mut self, record: &TableRecord) -> Result<(), TableError> {
        use ChunkUse::*;
        let no_target = |id: TargetId| TableError::Inconsistent {
            what: format!("a record is about target {id}, which does not exist"),
        };
        match record {
            TableRecord::Created { target, chunks } => {
                self.check_entry(target)?;
                self.check_chunks(chunks, Free, None, Some(&target.spec))?;
                self.set_chunks(chunks, Owned, Some(target.id));
                self.next_id = target.id.0.saturating_add(1);
                self.targets.push((**target).clone());
            }
            TableRecord::Removed { target } => {
                let at = self.targets.binary_search_by_key(target, |t| t.id);
                self.targets.remove(at.map_err(|_| no_target(*target))?);
                for entry in self.chunks.iter_mut().filter(|c| c.owner == Some(*target)) {
                    entry.owner = None;
                    if entry.state == Owned {
                        entry.state = Dirty;
                    }
                }
            }
            TableRecord::Granted { target, chunks } => {
                let spec = &self.target(*target).ok_or_else(|| no_target(*target))?.spec;
                self.check_chunks(chunks, Free, None, Some(spec))?;
                self.set_chunks(chunks, Owned, Some(*target));
            }
            TableRecord::Returned { target, chunks, erased: clean } => {
                self.target(*target).ok_or_else(|| no_target(*target))?;
                self.check_chunks(chunks, Owned, Some(*target), None)?;
                self.set_chunks(chunks, if *clean { Free } else { Dirty }, None);
            }
            TableRecord::Erased { chunks } => {
                self.check_chunks(chunks, Dirty, None, None)?;
                self.set_chunks(chunks, Free, None);
            }
            TableRecord::Retired { chunks } => {
                for chunk in chunks {
                    let state = self.chunks.get(*chunk as usize).map(|c| c.state);
                    if !matches!(state, Some(Free | Owned | Dirty)) {
                        let what = format!("a record retires chunk {chunk}, which is {state:?}");
                        return Err(TableError::Inconsistent { what });
                    }
                }
                for chunk in chunks {
                    self.chunks[*chunk as usize].state = GrownBad;
                }
            }
            TableRecord::Limited { target, limits } => {
                let at = self.targets.binary_search_by_key(target, |t| t.id);
                let spec = &mut self.targets[at.map_err(|_| no_target(*target))?].spec;
                if spec.sharing == Sharing::Exclusive || limits.max_chunks == Some(0) {
                    let what = format!("a record limits target {} to {limits:?}", spec.name);
                    return Err(TableError::Inconsistent { what });
                }
                spec.limits = *limits;
            }
        }
        self.sequence += 1;
        Ok(())
    }

    pub(super) fn set_chunks(&mut self, chunks: &[u32], state: ChunkUse, owner: Option<TargetId>) {
        for chunk in chunks {
            self.chunks[*chunk as usize] = ChunkEntry { state, owner };
        }
    }

    /// Checks that all `chunks` are in `state`, with `owner`, and on units of `on`.
    pub(super) fn check_chunks(
        &self,
        chunks: &[u32],
        state: ChunkUse,
        owner: Option<TargetId>,
        on: Option<&NewTarget>,
    ) -> Result<(), TableError> {
        for chunk in chunks {
            let entry = self.chunks.get(*chunk as usize);
            let wrong = |what: String| Err(TableError::Inconsistent { what });
            if entry != Some(&ChunkEntry { state, owner }) {
                return wrong(format!(
                    "a record says that chunk {chunk} is {state:?} with owner {owner:?}, the table \
                     has {entry:?}"
                ));
            }
            let pu = self.pu_of(*chunk);
            if let Some(on) = on.filter(|on| !on.pus.contains(PuId(pu))) {
                return wrong(format!(
                    "a record gives chunk {chunk} of parallel unit {pu} to target {}, which has {}",
                    on.name, on.pus
                ));
            }
        }
        Ok(())
    }

    /// Checks whether an entry can be added.
    pub(super) fn check_entry(&self, new: &TargetEntry) -> Result<(), TableError> {
        let wrong = |what: String| Err(TableError::Inconsistent { what });
        let NewTarget { name, pus, .. } = &new.spec;
        if new.id.0 < self.next_id {
            return wrong(format!("the id of target {name}, {}, was used before", new.id));
        }
        if self.targets.len() >= TARGETS_MAX {
            return wrong(format!("target {name} is one more than the {TARGETS_MAX} there may be"));
        }
        if !is_name(name) || self.target_by_name(name).is_some() {
            return wrong(format!("target {name} has a name that is none, or is taken"));
        }
        if pus.is_empty() || pus.last() >= Some(PuId(self.pus())) {
            return wrong(format!("target {name} has units {pus} of a drive with {}", self.pus()));
        }
        if let Some((other, common)) = self.overlap(&new.spec) {
            let other = &other.spec.name;
            return wrong(format!("targets {name} and {other} both have units {common}"));
        }
        Ok(())
    }

    /// Returns the oldest target that conflicts with a new one, and their common units.
    pub fn overlap(&self, new: &NewTarget) -> Option<(&TargetEntry, crate::PuSet)> {
        let both_share =
            |t: &TargetEntry| t.spec.sharing == Sharing::Shared && new.sharing == Sharing::Shared;
        let met = self.targets.iter().filter(|t| !both_share(t));
        met.map(|t| (t, t.spec.pus.intersection(&new.pus))).find(|(_, common)| !common.is_empty())
    }
}

pub(super) fn table_geometry(g: &Geometry) -> TableGeometry {
    TableGeometry {
        groups: g.groups,
        pus: g.pus,
        chunks: g.chunks,
        sectors: g.sectors,
        sector_bytes: g.sector_bytes,
    }
}

pub(super) fn total_chunks(geometry: &Geometry) -> Result<u32, TableError> {
    let total = geometry.total_chunks();
    let fits = total <= CHUNKS_MAX && geometry.total_pus() <= PU_MAX;
    if fits {
        Ok(total as u32)
    } else {
        Err(TableError::GeometryMismatch { what: "chunks", found: total, wanted: CHUNKS_MAX })
    }
}
