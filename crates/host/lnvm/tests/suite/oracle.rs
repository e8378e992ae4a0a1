//! The media manager on a drive that loses power at any event, with program and erase failures.
//! Targets are created, removed and opened; chunks are acquired, written and released;
//! registrations and recoveries are interrupted.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-lnvm
//! oracle`. `SLUICE_CASES` sets the number of seeds.

// guarantee: B-45, D-32

use std::collections::{BTreeMap, BTreeSet};

use lnvm::{
    AcquireError, ChunkAllocatorConfig, ChunkRate, ChunkUse, DataTemperature, MediaManager,
    MediaManagerConfig, MediaManagerError, QuotaLimits, Sharing, TargetId, Uid, WearPolicy,
};
use rng::Rng;
use testkit::managed_drive::{FOREVER, ManagedDrive, config, errors, geometry, spec};
use testkit::oracle::run_seeds;
use time::Component;

/// The expected state of a target.
#[derive(Clone, Debug)]
struct ExpectedTarget {
    id: TargetId,
    uid: Uid,
    pus: String,
    sharing: Sharing,
    /// Its limits; after an interrupted change the former ones and the new ones, either of them
    /// durable.
    limits: Vec<QuotaLimits>,
    /// Chunks that it acquired and did not release, and whether it has written them.
    acquired: BTreeMap<u32, bool>,
}

struct Case {
    rng: Rng,
    harness: Option<ManagedDrive>,
    config: MediaManagerConfig,
    failing: bool,
    /// Existing targets, by name.
    targets: BTreeMap<String, ExpectedTarget>,
    /// A target whose creation or removal was interrupted by a power cut: it may or may not exist.
    unsure: Option<(String, Option<ExpectedTarget>)>,
    registered: bool,
    made: u32,
    cuts: u64,
    cuts_inside: u64,
    created: u64,
    limited: u64,
    acquired: u64,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let pair = [0, 0, 1, 2, 4][rng.below(5) as usize];
        let (channels, pus) = (1 + rng.below(3) as u32, 1 + rng.below(3) as u32);
        let pages = [16, 24, 32][rng.below(3) as usize];
        let chunks = 30 + rng.below(30) as u32;
        let mut drive = config(geometry(channels, pus, chunks, pages), pair, None);
        let failing = rng.chance(0.4);
        if failing {
            let errors = errors(&mut drive);
            errors.factory_bad = 0.02;
            errors.program_fail = 0.004;
            errors.erase_fail = 0.01;
        }
        let config = MediaManagerConfig {
            allocator: ChunkAllocatorConfig {
                policy: WearPolicy::Leveling,
                batch_chunks: 1 + rng.below(5) as u32,
            },
            seed,
            poll_limit: 300,
            ..MediaManagerConfig::default()
        };
        Case {
            rng,
            harness: Some(ManagedDrive::new(drive)),
            config,
            failing,
            targets: BTreeMap::new(),
            unsure: None,
            registered: false,
            made: 0,
            cuts: 0,
            cuts_inside: 0,
            created: 0,
            limited: 0,
            acquired: 0,
        }
    }

    fn harness(&self) -> &ManagedDrive {
        self.harness.as_ref().expect("the drive has power")
    }

    /// Registers the drive, possibly after interrupted attempts; `None` if it is worn out.
    fn start(&mut self) -> Option<MediaManager> {
        loop {
            if self.rng.chance(0.3) {
                let after = self.rng.below(60);
                self.harness().left.set(after);
            }
            let registered = self.harness().register(self.config);
            match registered {
                Ok(subsystem) => {
                    self.harness().left.set(FOREVER);
                    self.registered = true;
                    return Some(subsystem);
                }
                Err(MediaManagerError::Timeout { .. }) if self.harness().is_cut() => self.cut(true),
                Err(MediaManagerError::NoTableWindow { .. })
                    if self.failing && !self.registered =>
                {
                    return None;
                }
                Err(MediaManagerError::Journal { .. }) if self.failing => return None,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn cut(&mut self, inside: bool) {
        self.cuts += 1;
        self.cuts_inside += u64::from(inside);
        self.harness = self.harness.take().map(ManagedDrive::cut);
    }

    /// Checks the invariants after each registration of the drive.
    fn check(&mut self, s: &MediaManager) {
        if let Some((name, known)) = self.unsure.take() {
            match (s.table().target_by_name(&name), known) {
                // The creation had started before the power cut.
                (Some(t), None) => {
                    let (pus, sharing) = (t.spec.pus.to_string(), t.spec.sharing);
                    let (limits, acquired) = (vec![t.spec.limits], BTreeMap::new());
                    let known =
                        ExpectedTarget { id: t.id, uid: t.uid, pus, sharing, limits, acquired };
                    self.targets.insert(name, known);
                }
                (Some(_), Some(known)) => {
                    self.targets.insert(name, known);
                }
                (None, _) => {}
            }
        }
        let names: Vec<String> = s.table().targets().iter().map(|t| t.spec.name.clone()).collect();
        let mut expected: Vec<&String> = self.targets.keys().collect();
        expected.sort();
        let mut found: Vec<&String> = names.iter().collect();
        found.sort();
        assert_eq!(found, expected);
        let harness = self.harness();
        for (name, known) in &self.targets {
            let target = s.table().target_by_name(name).unwrap();
            assert_eq!((target.id, target.uid), (known.id, known.uid), "{name}");
            assert!(known.limits.contains(&target.spec.limits), "{name}: {:?}", known.limits);
            for (chunk, written) in &known.acquired {
                let entry = s.table().chunks()[*chunk as usize];
                assert_eq!(entry.owner, Some(known.id), "chunk {chunk} of {name}");
                let lost = entry.state == ChunkUse::GrownBad && self.failing;
                if *written && !lost {
                    assert_eq!(
                        harness.written_by(*chunk),
                        Some(known.uid),
                        "chunk {chunk} of {name}"
                    );
                }
            }
            for chunk in s.table().owned_by(known.id) {
                let by = harness.written_by(chunk);
                assert!(by.is_none_or(|by| by == known.uid), "{name} sees chunk {chunk} of {by:?}");
            }
        }
        for (chunk, entry) in (0..).zip(s.table().chunks()) {
            if entry.state == ChunkUse::Free {
                assert_eq!(
                    harness.written_by(chunk),
                    None,
                    "the free chunk {chunk} must not hold data"
                );
            }
        }
        assert_eq!(s.allocator().orphaned_chunks().count(), 0);
        let health = s.health(None).chunks;
        let sum = health.free + health.owned + health.dirty + health.reserved;
        assert_eq!(sum, health.good());
    }

    /// Updates the acquired chunks after a restart.
    fn reopen(&mut self, s: &mut MediaManager) {
        for (name, known) in &mut self.targets {
            known.limits = vec![s.target(name).unwrap().spec.limits];
            let was = std::mem::take(&mut known.acquired);
            for chunk in s.allocator().acquired_by(known.id) {
                // A chunk whose release was not durable belongs to the target again.
                let written = was.get(&chunk).copied().unwrap_or(false);
                known.acquired.insert(chunk, written);
            }
        }
    }

    /// Runs a call that a power cut may interrupt. Returns its result, or `None` if the power was
    /// cut.
    fn with_cut<T>(
        &mut self,
        s: &mut MediaManager,
        call: impl FnOnce(&mut MediaManager, &ManagedDrive) -> Result<T, MediaManagerError>,
    ) -> Option<Result<T, MediaManagerError>> {
        if self.rng.chance(0.4) {
            let after = self.rng.below(80);
            self.harness().left.set(after);
        }
        let result = call(s, self.harness());
        if self.harness().is_cut() {
            return None;
        }
        self.harness().left.set(FOREVER);
        Some(result)
    }

    /// Creates a target. Returns whether power remains.
    fn create(&mut self, s: &mut MediaManager) -> bool {
        let pus = s.table().pus();
        let first = self.rng.below(pus.into()) as u32;
        let last = first + self.rng.below((pus - first).into()) as u32;
        let sharing = [Sharing::Exclusive, Sharing::Shared][usize::from(self.rng.chance(0.6))];
        // Names are reused.
        self.made = (self.made + 1) % 6;
        let name = format!("t{}", self.made);
        let mut new = spec(&name, &format!("{first}-{last}"), sharing);
        if sharing == Sharing::Shared && self.rng.chance(0.5) {
            let max_chunks = Some(1 + self.rng.below(10) as u32);
            new.limits = QuotaLimits { max_chunks, rate: ChunkRate::new(1_000_000, 4) };
        }
        let (pus, limits) = (new.pus.to_string(), new.limits);
        let before = s.table().clone();
        let done = self.with_cut(s, |s, harness| s.create(new, &mut || harness.progress()));
        match done {
            None => {
                self.unsure = (!self.targets.contains_key(&name)).then_some((name, None));
                false
            }
            Some(Ok(id)) => {
                self.created += 1;
                let uid = s.target(&name).unwrap().uid;
                let (limits, acquired) = (vec![limits], BTreeMap::new());
                let expected = ExpectedTarget { id, uid, pus, sharing, limits, acquired };
                self.targets.insert(name.clone(), expected);
                s.open_target(&name).unwrap();
                let known = self.targets.get_mut(&name).unwrap();
                known.acquired =
                    s.allocator().acquired_by(id).map(|chunk| (chunk, false)).collect();
                true
            }
            Some(Err(error)) => {
                let usage = error.is_usage_error();
                assert!(usage || self.failing, "{error}");
                assert!(!usage || *s.table() == before, "{error}");
                usage
            }
        }
    }

    fn any_name(&mut self) -> Option<String> {
        let at = self.rng.below(self.targets.len() as u64) as usize;
        self.targets.keys().nth(at).cloned()
    }

    /// Removes a target. Returns whether power remains.
    fn remove(&mut self, s: &mut MediaManager) -> bool {
        let Some(name) = self.any_name() else { return true };
        let known = self.targets[&name].clone();
        assert!(matches!(
            s.remove(&name, false, &mut || {}),
            Err(MediaManagerError::InUse { opens: 1, .. })
        ));
        s.close_target(known.id);
        let factory = self.rng.chance(0.4);
        let done =
            self.with_cut(s, |s, harness| s.remove(&name, factory, &mut || harness.progress()));
        self.targets.remove(&name);
        match done {
            None => {
                // The target may exist, but it was closed, so it need not own its former chunks.
                self.unsure =
                    Some((name, Some(ExpectedTarget { acquired: BTreeMap::new(), ..known })));
                false
            }
            Some(Ok(())) => {
                if factory {
                    for chunk in known.acquired.keys() {
                        assert_ne!(self.harness().written_by(*chunk), Some(known.uid), "{name}");
                    }
                }
                true
            }
            Some(Err(error)) => {
                assert!(self.failing, "{error}");
                self.unsure =
                    Some((name, Some(ExpectedTarget { acquired: BTreeMap::new(), ..known })));
                false
            }
        }
    }

    /// Changes the limits of a target. Returns whether power remains.
    fn set_limits(&mut self, s: &mut MediaManager) -> bool {
        let Some(name) = self.any_name() else { return true };
        let max_chunks = self.rng.chance(0.8).then(|| self.rng.below(12) as u32);
        let rate = self.rng.chance(0.5).then(|| ChunkRate::new(1_000_000, 4).unwrap());
        let limits = QuotaLimits { max_chunks, rate };
        let before = s.table().clone();
        let done =
            self.with_cut(s, |s, harness| s.set_limits(&name, limits, &mut || harness.progress()));
        let known = self.targets.get_mut(&name).unwrap();
        match done {
            None => {
                known.limits.push(limits);
                false
            }
            Some(Ok(())) => {
                known.limits = vec![limits];
                self.limited += 1;
                true
            }
            Some(Err(error)) => {
                let usage = error.is_usage_error();
                assert!(usage || self.failing, "{error}");
                assert!(!usage || *s.table() == before, "{error}");
                if !usage {
                    known.limits.push(limits);
                }
                usage
            }
        }
    }

    fn acquire(&mut self, s: &mut MediaManager) {
        let Some(name) = self.any_name() else { return };
        let known = &self.targets[&name];
        let pus: lnvm::PuSet = known.pus.parse().unwrap();
        let pu = pus.iter().nth(self.rng.below(pus.len()) as usize).unwrap().0;
        let now = self.harness().now.get();
        match s.acquire(now, known.id, pu, DataTemperature::Hot) {
            Ok(chunk) => {
                self.acquired += 1;
                assert!(self.targets.values().all(|k| !k.acquired.contains_key(&chunk)), "{chunk}");
                assert_eq!(self.harness().written_by(chunk), None, "chunk {chunk} for {name}");
                let write = self.rng.chance(0.8);
                let uid = self.targets[&name].uid;
                let written = write && self.harness().write_chunk(chunk, uid);
                self.targets.get_mut(&name).unwrap().acquired.insert(chunk, written);
            }
            Err(AcquireError::Exclusive { .. }) => assert_eq!(known.sharing, Sharing::Exclusive),
            Err(
                AcquireError::Pending { .. }
                | AcquireError::Full { .. }
                | AcquireError::ChunkLimit { .. }
                | AcquireError::RateLimited { .. },
            ) => {}
            Err(AcquireError::Table(_)) => assert!(self.failing),
            Err(other) => panic!("{other}"),
        }
    }

    fn release(&mut self, s: &mut MediaManager) {
        let Some(name) = self.any_name() else { return };
        let known = self.targets.get_mut(&name).unwrap();
        let at = self.rng.below(known.acquired.len() as u64) as usize;
        let Some(chunk) = known.acquired.keys().nth(at).copied() else { return };
        if known.sharing == Sharing::Exclusive {
            // An exclusive target keeps its chunks, and writes them.
            assert!(s.release(known.id, chunk, false).is_err());
            let (uid, written) = (known.uid, known.acquired[&chunk]);
            if !written && self.harness.as_ref().unwrap().write_chunk(chunk, uid) {
                known.acquired.insert(chunk, true);
            }
            return;
        }
        known.acquired.remove(&chunk);
        s.release(known.id, chunk, false).unwrap();
    }

    fn run(&mut self, sessions: u64) {
        for _ in 0..sessions {
            let Some(mut s) = self.start() else { return };
            self.check(&s);
            self.reopen(&mut s);
            let names: BTreeSet<String> = self.targets.keys().cloned().collect();
            names.iter().for_each(|name| {
                s.open_target(name).unwrap();
            });
            let mut power = true;
            for _ in 0..self.rng.below(60) {
                power = match self.rng.below(20) {
                    0..2 => self.create(&mut s),
                    2 => self.remove(&mut s),
                    3 => self.set_limits(&mut s),
                    4..11 => {
                        self.acquire(&mut s);
                        true
                    }
                    11..15 => {
                        self.release(&mut s);
                        true
                    }
                    15..19 => {
                        for _ in 0..self.rng.below(12) {
                            s.poll(self.harness().now.get());
                            self.harness().progress();
                        }
                        true
                    }
                    _ => {
                        self.harness().run(&mut s);
                        true
                    }
                };
                if !power {
                    break;
                }
            }
            if power && self.rng.chance(0.3) {
                // After a clean close, opening the drive must not write.
                let closed = s.close(&mut || self.harness().progress());
                assert!(closed.is_ok() || self.failing, "{closed:?}");
                if closed.is_ok() && s.failure().is_none() {
                    let table = s.table().clone();
                    drop(s);
                    self.cut(false);
                    let frames = self.harness().drive.borrow().stats().media.unwrap().programs;
                    let s = self.harness().open(self.config).unwrap();
                    assert_eq!(s.table().targets(), table.targets());
                    let after = self.harness().drive.borrow().stats().media.unwrap().programs;
                    assert_eq!(frames, after, "opening the drive read-only must not write");
                    drop(s);
                    self.cut(false);
                    continue;
                }
            }
            drop(s);
            self.cut(!power);
        }
    }
}

#[test]
fn power_cuts_leave_targets_and_chunks_as_they_were() {
    let run = run_seeds(150, &[], "cargo test -p sluice-lnvm oracle", |seed| {
        let mut case = Case::new(seed);
        case.run(30);
        (case.cuts, case.cuts_inside, case.created, case.acquired, case.limited)
    });
    let (all, one) = (run.results.len() as u64, run.is_single);
    let (mut cuts, mut inside, mut created, mut handed, mut limited) = (0, 0, 0, 0, 0);
    for done in &run.results {
        (cuts, inside, created, handed) =
            (cuts + done.0, inside + done.1, created + done.2, handed + done.3);
        limited += done.4;
    }
    println!(
        "{cuts} power cuts, {inside} inside of a call, {created} targets, {handed} chunks, {limited} \
         changed limits"
    );
    assert!(one || limited > 5 * all);
    assert!(one || cuts > 20 * all && inside > 5 * all && created > 10 * all && handed > 20 * all);
}
