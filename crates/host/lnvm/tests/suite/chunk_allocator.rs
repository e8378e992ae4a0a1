//! Chunk ownership compared with an oracle: random targets acquire, write, release and retire
//! chunks, with erases, removals, and power cuts. A power cut keeps any prefix of the records that
//! contains all durable ones.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-lnvm
//! chunk_allocator`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-32

use std::collections::{BTreeMap, BTreeSet};

use lnvm::{
    AcquireError, ChunkAllocator, ChunkAllocatorConfig, ChunkRate, ChunkUse, DataTemperature,
    EraseOutcome, NewTarget, PuId, PuSet, QuotaLimits, Sharing, Table, TableRecord, TargetEntry,
    TargetId, TargetKind, TargetOptions, Uid, WearPolicy,
};
use nvme::{ChunkDescriptor, ChunkState, Geometry};
use rng::Rng;
use time::Nanos;

const SECTORS: u64 = 16;

/// A chunk on the media.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The target that wrote its contents.
    by: Option<Uid>,
    bad: bool,
    /// Whether its last erase was interrupted.
    interrupted: bool,
    erases: u32,
}

struct Case {
    rng: Rng,
    geometry: Geometry,
    config: ChunkAllocatorConfig,
    media: Vec<Cell>,
    pool: ChunkAllocator,
    /// The table at the last restart, the records since then, and how many of these are popped and
    /// durable.
    base: Table,
    records: Vec<TableRecord>,
    durable: u64,
    /// The chunks that each target acquired and did not release.
    acquired_by_target: BTreeMap<TargetId, BTreeSet<u32>>,
    erasing: BTreeSet<u32>,
    now: Nanos,
    made: u32,
    /// By target whose limits have changed: the most chunks that it held at a change, which it keeps
    /// under a smaller limit.
    kept_at_change: BTreeMap<TargetId, u32>,
    counts: Counts,
}

/// How often something happened.
#[derive(Clone, Copy, Default)]
struct Counts {
    cuts: u64,
    acquired: u64,
    removed: u64,
    limited: u64,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let geometry = Geometry {
            groups: 1 + rng.below(3) as u32,
            pus: 1 + rng.below(3) as u32,
            chunks: 4 + rng.below(24) as u32,
            sectors: SECTORS as u32,
            sector_bytes: 512,
            oob_bytes: 0,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        };
        let config = ChunkAllocatorConfig {
            policy: [WearPolicy::Leveling, WearPolicy::FirstFree][rng.below(2) as usize],
            batch_chunks: 1 + rng.below(6) as u32,
        };
        let total = geometry.total_chunks() as usize;
        let mut media = vec![Cell::default(); total];
        media.iter_mut().for_each(|cell| cell.bad = rng.chance(0.05));
        let state = |chunk: u32| match (media[chunk as usize].bad, chunk % geometry.chunks) {
            (true, _) => ChunkUse::FactoryBad,
            (_, 0) => ChunkUse::Reserved,
            _ => ChunkUse::Free,
        };
        let base = Table::new(&geometry, Uid(seed.into()), state).unwrap();
        let report = report(&geometry, &media);
        let pool = ChunkAllocator::new(base.clone(), &report, 100, config).unwrap();
        Case {
            rng,
            geometry,
            config,
            media,
            pool,
            base,
            records: Vec::new(),
            durable: 0,
            acquired_by_target: BTreeMap::new(),
            erasing: BTreeSet::new(),
            now: Nanos::ZERO,
            made: 0,
            kept_at_change: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    fn uid(&self, id: TargetId) -> Uid {
        self.pool.table().target(id).expect("the target exists").uid
    }

    fn any_target(&mut self) -> Option<(TargetId, Sharing)> {
        let targets = self.pool.table().targets();
        let at = self.rng.below(targets.len() as u64) as usize;
        targets.get(at).map(|t| (t.id, t.spec.sharing))
    }

    fn create(&mut self) {
        let pus = self.geometry.total_pus();
        let first = self.rng.below(pus.into()) as u32;
        let pus = PuSet::range(
            PuId(first),
            PuId(first + 1 + self.rng.below((pus - first).into()) as u32),
        );
        let sharing = [Sharing::Exclusive, Sharing::Shared][usize::from(self.rng.chance(0.7))];
        let limits = QuotaLimits {
            max_chunks: self.rng.chance(0.5).then(|| 1 + self.rng.below(12) as u32),
            rate: if self.rng.chance(0.3) {
                ChunkRate::new(1 + self.rng.below(50_000) as u32, 1 + self.rng.below(5) as u32)
            } else {
                None
            },
        };
        self.made += 1;
        let spec = NewTarget {
            name: format!("t{}", self.made),
            kind: TargetKind::Ppa,
            pus,
            sharing,
            options: TargetOptions::default(),
            limits: if sharing == Sharing::Shared { limits } else { QuotaLimits::default() },
        };
        if self.pool.table().overlap(&spec).is_some() {
            return;
        }
        if sharing == Sharing::Exclusive {
            self.pool.erase_all_dirty(&spec.pus);
            while !self.pool.is_erased(&spec.pus) {
                self.start_erases();
                self.complete_erases();
            }
        }
        let id = self.pool.table().next_id();
        let created_at = self.pool.table().sequence();
        let target = TargetEntry { id, uid: Uid(self.rng.next_u64().into()), spec, created_at };
        self.pool.create(target).unwrap();
        self.take_records();
        // The creator of a target waits until it is durable.
        self.make_durable(self.records.len() as u64);
        if sharing == Sharing::Exclusive {
            let all: BTreeSet<u32> = self.pool.table().owned_by(id).collect();
            for chunk in &all {
                let cell = self.media[*chunk as usize];
                assert!(
                    cell.by.is_none() && !cell.bad,
                    "chunk {chunk} of the new target {id} is not erased or is bad: {cell:?}"
                );
            }
            self.acquired_by_target.insert(id, all);
        }
        self.pool.open(id);
    }

    fn acquire(&mut self, id: TargetId) {
        let pu = self.rng.below(self.geometry.total_pus().into()) as u32;
        let heat = [DataTemperature::Hot, DataTemperature::Cold][usize::from(self.rng.chance(0.2))];
        let spec = self.pool.table().target(id).unwrap().spec.clone();
        let holds = self.acquired_by_target.entry(id).or_default().len() as u32;
        match self.pool.acquire(self.now, id, pu, heat) {
            Ok(chunk) => {
                self.counts.acquired += 1;
                assert!(spec.pus.contains(PuId(pu)) && self.pool.table().pu_of(chunk) == pu);
                assert!(spec.limits.max_chunks.is_none_or(|max| holds < max));
                let cell = &mut self.media[chunk as usize];
                let own = self.pool.table().target(id).unwrap().uid;
                assert!(cell.by.is_none() && !cell.bad, "{id} gets chunk {chunk}: {cell:?}");
                if self.rng.chance(0.9) {
                    cell.by = Some(own);
                }
                let others = self.acquired_by_target.values().all(|held| !held.contains(&chunk));
                assert!(others, "chunk {chunk} has two owners");
                self.acquired_by_target.get_mut(&id).unwrap().insert(chunk);
            }
            Err(AcquireError::ChunkLimit { max_chunks, .. }) => {
                let kept = self.kept_at_change.get(&id).copied().unwrap_or(0);
                let expected = max_chunks..=max_chunks.max(kept);
                assert!(expected.contains(&holds), "{holds} of {max_chunks}, {kept} at a change");
            }
            Err(AcquireError::RateLimited { until, .. }) => {
                assert!(until > self.now && spec.limits.rate.is_some());
                if self.rng.chance(0.5) {
                    self.now = until;
                }
            }
            Err(AcquireError::NotTargetPu { .. }) => assert!(!spec.pus.contains(PuId(pu))),
            Err(AcquireError::Full { .. }) => {
                // Every good chunk of the parallel unit has an owner or is being granted.
                assert_eq!(self.pool.free_counts(pu), (0, 0));
            }
            Err(AcquireError::Pending { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let Some(max) = spec.limits.max_chunks else { return };
        let owned = self.pool.holdings(id).owned;
        // The target keeps what it held when the limit became smaller, and nothing beyond.
        let kept = self.kept_at_change.get(&id).copied().unwrap_or(0);
        assert!(owned <= max.max(kept), "{id} owns {owned} of {max}, {kept} at a change");
    }

    fn set_limits(&mut self, id: TargetId, sharing: Sharing) {
        let limits = QuotaLimits {
            max_chunks: self.rng.chance(0.8).then(|| self.rng.below(12) as u32),
            rate: self.rng.chance(0.3).then(|| ChunkRate::new(30_000, 3).unwrap()),
        };
        let before = self.pool.table().clone();
        let acquired = self.acquired_by_target.get(&id).map_or(0, BTreeSet::len) as u32;
        let held = self.pool.holdings(id).owned.max(acquired);
        let changed = self.pool.set_limits(id, limits);
        if sharing == Sharing::Exclusive || limits.max_chunks == Some(0) {
            assert!(changed.is_err());
            assert_eq!(*self.pool.table(), before);
            return;
        }
        changed.unwrap();
        assert_eq!(self.pool.table().target(id).unwrap().spec.limits, limits);
        let kept = self.kept_at_change.entry(id).or_default();
        *kept = (*kept).max(held);
        self.counts.limited += 1;
    }

    /// Returns a chunk that a target acquired.
    fn any_acquired(&mut self, id: TargetId) -> Option<u32> {
        let held = self.acquired_by_target.get(&id)?;
        held.iter().nth(self.rng.below(held.len() as u64) as usize).copied()
    }

    fn release(&mut self, id: TargetId) {
        let Some(chunk) = self.any_acquired(id) else { return };
        if self.rng.chance(0.1) {
            // A target cannot release a chunk that it did not acquire.
            let other = self.rng.below(self.geometry.total_chunks()) as u32;
            if !self.acquired_by_target[&id].contains(&other) {
                let before = self.pool.table().clone();
                assert!(self.pool.release(id, other, true).is_err());
                assert_eq!(*self.pool.table(), before);
            }
        }
        let clean = self.rng.chance(0.5);
        if clean {
            self.erase(chunk);
        }
        self.pool.release(id, chunk, clean).unwrap();
        self.acquired_by_target.get_mut(&id).unwrap().remove(&chunk);
    }

    fn erase(&mut self, chunk: u32) {
        let cell = &mut self.media[chunk as usize];
        *cell = Cell { by: None, interrupted: false, erases: cell.erases + 1, ..*cell };
    }

    fn start_erases(&mut self) {
        while let Some(chunk) = self.pool.next_erase() {
            assert!(
                self.acquired_by_target.values().all(|held| !held.contains(&chunk)),
                "the erased chunk {chunk} is acquired by a target"
            );
            assert!(self.erasing.insert(chunk));
        }
    }

    fn complete_erases(&mut self) {
        for chunk in std::mem::take(&mut self.erasing) {
            let how = match self.rng.below(30) {
                0 => EraseOutcome::Bad,
                1 => EraseOutcome::Unknown,
                _ => EraseOutcome::Erased,
            };
            match how {
                EraseOutcome::Bad => self.media[chunk as usize].bad = true,
                EraseOutcome::Erased => self.erase(chunk),
                EraseOutcome::Unknown => {}
            }
            self.pool.erase_done(chunk, how).unwrap();
        }
    }

    fn take_records(&mut self) {
        while let Some(record) = self.pool.pop_record() {
            let bytes = record.encode();
            let total = self.geometry.total_chunks() as u32;
            assert_eq!(TableRecord::decode(&bytes, total).as_ref(), Some(&record));
            self.records.push(record);
        }
    }

    fn make_durable(&mut self, records: u64) {
        self.durable = self.durable.max(records);
        self.pool.on_durable(self.durable);
    }

    fn remove(&mut self, id: TargetId) {
        let before = self.pool.table().clone();
        assert!(self.pool.remove(id).is_err(), "an open target must not be removed");
        assert_eq!(*self.pool.table(), before);
        self.pool.close(id);
        self.pool.remove(id).unwrap();
        self.acquired_by_target.remove(&id);
        self.counts.removed += 1;
    }

    fn cut(&mut self) {
        self.counts.cuts += 1;
        self.take_records();
        for chunk in std::mem::take(&mut self.erasing) {
            match self.rng.below(3) {
                0 => self.erase(chunk),
                1 => self.media[chunk as usize].interrupted = true,
                _ => {}
            }
        }
        // The cut keeps a random prefix that contains all durable records.
        let kept = self.durable + self.rng.below(self.records.len() as u64 - self.durable + 1);
        let mut table = self.base.clone();
        for record in &self.records[..kept as usize] {
            table.apply(record).unwrap();
        }
        let table = Table::load(&table.snapshot(), &self.geometry).unwrap();
        let report = report(&self.geometry, &self.media);
        self.pool = ChunkAllocator::new(table.clone(), &report, 100, self.config).unwrap();
        // Chunks that were released or removed since may be owned again; acquired chunks must still
        // be owned.
        let whole = kept == self.records.len() as u64;
        for (id, held) in &self.acquired_by_target {
            for chunk in held {
                let owner = self.pool.table().chunks()[*chunk as usize].owner;
                assert_eq!(owner, Some(*id), "chunk {chunk} was acquired by a target");
            }
        }
        assert_eq!(
            self.pool.orphaned_chunks().count(),
            0,
            "no chunk with data may be without an owner"
        );
        let mut now_held: BTreeMap<TargetId, BTreeSet<u32>> = BTreeMap::new();
        for target in self.pool.table().targets() {
            for chunk in self.pool.table().owned_by(target.id) {
                let by = self.media[chunk as usize].by;
                assert!(by.is_none_or(|by| by == target.uid), "{} sees {by:?}", target.spec.name);
            }
            let held = self.pool.acquired_by(target.id).collect();
            now_held.insert(target.id, held);
        }
        if whole {
            assert_eq!(now_held.keys().count(), self.pool.table().targets().len());
        }
        for chunk in 0..self.media.len() as u32 {
            let (entry, cell) =
                (self.pool.table().chunks()[chunk as usize], self.media[chunk as usize]);
            if entry.state == ChunkUse::Free {
                assert!(cell.by.is_none() && !cell.interrupted && !cell.bad, "{chunk}: {cell:?}");
            }
        }
        self.acquired_by_target = now_held;
        (self.base, self.durable) = (table, 0);
        self.records.clear();
        let ids: Vec<TargetId> = self.pool.table().targets().iter().map(|t| t.id).collect();
        ids.into_iter().for_each(|id| self.pool.open(id));
        self.take_records();
    }

    /// Checks the allocator's counters: every chunk is in exactly one state.
    fn count(&self) {
        let table = self.pool.table();
        let of = |state| table.chunks().iter().filter(|c| c.state == state).count() as u32;
        let (mut free, mut dirty) = (0, 0);
        for pu in 0..self.geometry.total_pus() {
            let (f, d) = self.pool.free_counts(pu);
            (free, dirty) = (free + f, dirty + d);
        }
        assert_eq!((free, dirty), (of(ChunkUse::Free), of(ChunkUse::Dirty)));
        let owned: u32 = table.targets().iter().map(|t| self.pool.holdings(t.id).owned).sum();
        assert_eq!(owned, of(ChunkUse::Owned));
        for (id, held) in &self.acquired_by_target {
            assert_eq!(self.pool.holdings(*id).acquired as usize, held.len(), "{id}");
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..5 => self.create(),
                5..50 => {
                    if let Some((id, Sharing::Shared)) = self.any_target() {
                        self.acquire(id);
                    }
                }
                50..70 => {
                    if let Some((id, Sharing::Shared)) = self.any_target() {
                        self.release(id);
                    }
                }
                70..72 => {
                    if let Some((id, _)) = self.any_target()
                        && let Some(chunk) = self.any_acquired(id)
                    {
                        self.media[chunk as usize].bad = true;
                        self.pool.retire(id, chunk).unwrap();
                        self.acquired_by_target.get_mut(&id).unwrap().remove(&chunk);
                    }
                }
                72..74 => {
                    if let Some((id, Sharing::Exclusive)) = self.any_target()
                        && let Some(chunk) = self.any_acquired(id)
                    {
                        self.media[chunk as usize].by = Some(self.uid(id));
                    }
                }
                74..76 => {
                    if let Some((id, _)) = self.any_target() {
                        self.remove(id);
                    }
                }
                76 => {
                    if let Some((id, sharing)) = self.any_target() {
                        self.set_limits(id, sharing);
                    }
                }
                77..82 => self.start_erases(),
                82..87 => self.complete_erases(),
                87..97 => {
                    self.take_records();
                    let more = self.records.len() as u64 - self.durable;
                    let to = self.durable + self.rng.below(more + 1);
                    self.make_durable(to);
                    self.now += Nanos::from_millis(self.rng.below(100));
                }
                97..98 if self.rng.chance(0.3) => {
                    let report = report(&self.geometry, &self.media);
                    self.pool.refresh(&report).unwrap();
                }
                _ => self.cut(),
            }
            self.count();
        }
    }
}

/// Returns the report of a drive with these chunks.
fn report(geometry: &Geometry, media: &[Cell]) -> Vec<ChunkDescriptor> {
    let describe = |cell: &Cell| {
        let (state, wp) = match (cell.bad, cell.interrupted, cell.by) {
            (true, ..) => (ChunkState::Offline, 0),
            (_, true, _) => (ChunkState::Closed, SECTORS),
            (.., Some(_)) => (ChunkState::Closed, SECTORS),
            _ => (ChunkState::Free, 0),
        };
        ChunkDescriptor {
            state: state.to_bits(),
            wear_index: (cell.erases * 255).div_ceil(100).min(255) as u8,
            cnlb: u64::from(geometry.sectors).into(),
            wp: wp.into(),
            ..ChunkDescriptor::default()
        }
    };
    media.iter().map(describe).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_chunk_never_has_two_owners_and_none_leaks() {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(1500),
    };
    let all = seeds.end - seeds.start;
    let one = all == 1;
    let (mut cuts, mut handed, mut removed, mut limited) = (0, 0, 0, 0);
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| {
            let mut case = Case::new(seed);
            case.run(400);
            case.counts
        });
        let Ok(done) = failed else { panic!("SLUICE_SEED={seed} fails") };
        (cuts, handed) = (cuts + done.cuts, handed + done.acquired);
        (removed, limited) = (removed + done.removed, limited + done.limited);
    }
    println!("{cuts} power cuts, {handed} chunks handed out, {removed} targets removed");
    assert!(one || limited > 2 * all, "{limited} changed limits");
    assert!(one || cuts > 7 * all && handed > 12 * all && removed > 4 * all);
}

#[test]
fn the_least_worn_free_chunk_is_handed_out_and_the_most_worn_for_cold_data() {
    let geometry = Geometry {
        groups: 1,
        pus: 1,
        chunks: 10,
        sectors: SECTORS as u32,
        sector_bytes: 512,
        oob_bytes: 0,
        ws_min: 4,
        ws_opt: 4,
        mw_cunits: 0,
    };
    for (policy, hot, cold) in [(WearPolicy::Leveling, 7, 4), (WearPolicy::FirstFree, 0, 1)] {
        let media: Vec<Cell> =
            (0..10).map(|i| Cell { erases: 10 + (i * 7 + 1) % 10, ..Cell::default() }).collect();
        let table = Table::new(&geometry, Uid(1), |_| ChunkUse::Free).unwrap();
        let config = ChunkAllocatorConfig { policy, batch_chunks: 1 };
        let mut pool = ChunkAllocator::new(table, &report(&geometry, &media), 100, config).unwrap();
        let spec = NewTarget {
            name: "t".into(),
            kind: TargetKind::Kv,
            pus: PuSet::range(PuId(0), PuId(1)),
            sharing: Sharing::Shared,
            options: TargetOptions::default(),
            limits: QuotaLimits::default(),
        };
        let target = TargetEntry { id: TargetId(1), uid: Uid(2), spec, created_at: 0 };
        pool.create(target).unwrap();
        pool.open(TargetId(1));
        let mut take = |heat| {
            assert!(
                pool.acquire(Nanos::ZERO, TargetId(1), 0, heat).is_err_and(|d| d.is_temporary())
            );
            pool.on_durable(pool.records_made());
            pool.acquire(Nanos::ZERO, TargetId(1), 0, heat).unwrap()
        };
        assert_eq!(
            (take(DataTemperature::Hot), take(DataTemperature::Cold)),
            (hot, cold),
            "{policy:?}"
        );
    }
}
