//! The media manager on a drive: registration, targets, rejections that change nothing, restarts,
//! chunk ownership, health, and relocation requests.

use lnvm::{
    AcquireError, ChunkRate, ChunkUse, DataTemperature, MediaManager, MediaManagerConfig,
    MediaManagerError, NewTarget, QuotaLimits, RelocationReason, ScrubConfig, Sharing, TargetId,
    TargetKind, TargetOptions, Uid, Warranty,
};
use media::{ChunkId, InjectedFault, PhysSector};
use nvme::PuId;
use testkit::managed_drive::{ManagedDrive, config, errors, geometry, manager_config, spec};
use time::{Component, Nanos};

const OTHER: Uid = Uid(0xdead_beef);

pub(crate) fn small(pair: u32) -> ManagedDrive {
    ManagedDrive::new(config(geometry(2, 2, 24, 32), pair, None))
}

fn names(subsystem: &MediaManager) -> Vec<&str> {
    subsystem.table().targets().iter().map(|t| t.spec.name.as_str()).collect()
}

/// Acquires a chunk, polling as often as necessary.
pub(crate) fn acquire(
    harness: &ManagedDrive,
    s: &mut MediaManager,
    id: TargetId,
    pu: u32,
) -> Result<u32, AcquireError> {
    for _ in 0..1000 {
        match s.acquire(harness.now.get(), id, pu, DataTemperature::Hot) {
            Err(AcquireError::Pending { .. }) => {
                s.poll(harness.now.get());
                harness.progress();
            }
            answer => return answer,
        }
    }
    panic!("the grant stays pending")
}

#[test]
fn targets_survive_restarts_and_looking_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for pair in [0, 2] {
        let config = config(geometry(2, 2, 24, 32), pair, Some(&image));
        let harness = ManagedDrive::new(config.clone());
        let mut s = harness.open(manager_config()).unwrap();
        assert!(!s.is_registered());
        let options = TargetOptions { over_provisioning: Some(0.11), ..TargetOptions::default() };
        let data = NewTarget {
            kind: TargetKind::Pblk,
            options,
            ..spec("data", "0-1", Sharing::Exclusive)
        };
        let id = s.create(data.clone(), &mut || harness.progress()).unwrap();
        let limits = QuotaLimits { max_chunks: Some(5), rate: ChunkRate::new(1500, 3) };
        let kv = NewTarget { limits, ..spec("kv", "2-3", Sharing::Shared) };
        s.create(kv.clone(), &mut || harness.progress()).unwrap();
        s.create(spec("app", "3", Sharing::Shared), &mut || harness.progress()).unwrap();
        s.remove("app", false, &mut || harness.progress()).unwrap();
        let table = s.table().clone();
        let owned = s.holdings(id).owned;
        assert_eq!(
            owned as usize,
            48 - s.table_window().chunks.iter().filter(|c| **c < 48).count()
        );
        s.close(&mut || harness.progress()).unwrap();
        harness.shut_down();
        let before = std::fs::read(&image).unwrap();
        // Opening read-only and rejected requests change nothing.
        for _ in 0..2 {
            let harness = ManagedDrive::new(config.clone());
            let mut s = harness.open(manager_config()).unwrap();
            assert!(s.is_registered());
            assert_eq!(*s.table(), table, "pair {pair}");
            assert_eq!(
                (&s.target("data").unwrap().spec, &s.target("kv").unwrap().spec),
                (&data, &kv)
            );
            assert_eq!(s.holdings(id).owned, owned);
            assert!(
                s.create(spec("x", "1-2", Sharing::Shared), &mut || harness.progress()).is_err()
            );
            assert!(s.remove("app", true, &mut || harness.progress()).is_err());
            s.open_target("kv").unwrap();
            assert!(s.remove("kv", true, &mut || harness.progress()).is_err());
            s.close(&mut || harness.progress()).unwrap();
            harness.shut_down();
            assert!(std::fs::read(&image).unwrap() == before, "the image has changed, pair {pair}");
        }
        // An id is never reused.
        let harness = ManagedDrive::new(config);
        let mut s = harness.open(manager_config()).unwrap();
        let id = s.create(spec("late", "3", Sharing::Shared), &mut || harness.progress()).unwrap();
        assert_eq!(id, TargetId(4));
        s.close(&mut || harness.progress()).unwrap();
        harness.shut_down();
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn what_is_refused_names_both_parties() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    s.create(spec("alone", "0", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    s.create(spec("together", "1-2", Sharing::Shared), &mut || harness.progress()).unwrap();
    let told = |s: &mut MediaManager, new: NewTarget| {
        let table = s.table().clone();
        let error = s.create(new, &mut || harness.progress()).unwrap_err();
        assert_eq!(*s.table(), table);
        assert!(error.is_usage_error(), "{error}");
        error.to_string()
    };
    let exclusive = |name: &str, pus: &str| spec(name, pus, Sharing::Exclusive);
    for (new, parts) in [
        (exclusive("new", "0-3"), &["new", "alone", " 0 ", "oc0", "does not share"][..]),
        (spec("new", "0", Sharing::Shared), &["new", "alone", "does not share"]),
        (exclusive("new", "2-3"), &["new", "together", " 2 ", "only with targets that share"]),
        (exclusive("alone", "3"), &["alone", "already", "ppa", "units 0"]),
        (exclusive("new", "3-4"), &["new", "3-4", "0-3", "oc0"]),
        (exclusive("a b", "3"), &["`a b`", "letters"]),
        (
            NewTarget {
                kind: TargetKind::Kv,
                options: TargetOptions { active_pus: Some(1), ..Default::default() },
                ..exclusive("new", "3")
            },
            &["new", "kv", "active parallel units"],
        ),
        (
            NewTarget {
                kind: TargetKind::Pblk,
                options: TargetOptions { active_pus: Some(2), ..Default::default() },
                ..exclusive("new", "3")
            },
            &["new", "active parallel units", "is 2", "has 1"],
        ),
        (
            NewTarget {
                kind: TargetKind::Rrpc,
                options: TargetOptions { over_provisioning: Some(f64::NAN), ..Default::default() },
                ..exclusive("new", "3")
            },
            &["new", "over-provisioning", "NaN", "0 to 100"],
        ),
        (
            NewTarget {
                limits: QuotaLimits { max_chunks: Some(1), rate: None },
                ..exclusive("new", "3")
            },
            &["new", "only targets that share"],
        ),
        (
            NewTarget {
                limits: QuotaLimits { max_chunks: Some(0), rate: None },
                ..spec("new", "3", Sharing::Shared)
            },
            &["new", "0 chunks"],
        ),
    ] {
        let told = told(&mut s, new);
        for part in parts {
            assert!(told.contains(part), "`{part}` is missing in: {told}");
        }
    }
    let unknown = s.remove("nobody", false, &mut || harness.progress()).unwrap_err().to_string();
    assert!(["nobody", "oc0", "alone, together"].iter().all(|p| unknown.contains(p)), "{unknown}");
    s.open_target("together").unwrap();
    let id = s.open_target("together").unwrap();
    let in_use = s.remove("together", false, &mut || harness.progress()).unwrap_err();
    assert!(matches!(in_use, MediaManagerError::InUse { opens: 2, .. }), "{in_use}");
    assert!(["together", "oc0", "2 times"].iter().all(|p| in_use.to_string().contains(p)));
    s.close_target(id);
    s.close_target(id);
    s.remove("together", false, &mut || harness.progress()).unwrap();
    assert_eq!(names(&s), ["alone"]);
}

#[test]
fn drives_that_hold_something_else_are_refused_unharmed() {
    let harness = small(0);
    assert!(harness.write_chunk(30, OTHER));
    let harness = harness.cut();
    let error = harness.register(manager_config()).unwrap_err();
    assert!(matches!(&error, MediaManagerError::NotBlank { chunks: 1, .. }), "{error}");
    assert_eq!(harness.written_by(30), Some(OTHER));
    // Foreign data in the window of the partition table.
    let harness = small(0);
    assert!(harness.write_chunk(0, OTHER));
    let harness = harness.cut();
    let error = harness.register(manager_config()).unwrap_err();
    assert!(matches!(&error, MediaManagerError::Foreign { .. }), "{error}");
    assert_eq!(harness.written_by(0), Some(OTHER));
    // A drive that manages its own flash.
    let harness = small(0);
    let info = driver::ControllerInfo { open_channel: None, ..harness.info.clone() };
    let queue = harness.queue(8);
    let refused = MediaManager::open(&info, &[], queue, Nanos::ZERO, manager_config(), &mut || {});
    assert!(matches!(refused, Err(MediaManagerError::NotOpenChannel { .. })));
    let tiny = ManagedDrive::new(config(geometry(1, 1, 8, 4), 0, None));
    let refused = tiny.register(manager_config()).unwrap_err();
    assert!(matches!(&refused, MediaManagerError::NoTableWindow { .. }), "{refused}");
}

#[test]
fn a_damaged_table_is_an_error_and_stays_as_it_is() {
    // Changes single bits in the frames of the table.
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let config = config(geometry(2, 2, 24, 32), 0, Some(&image));
    let harness = ManagedDrive::new(config.clone());
    let mut s = harness.register(manager_config()).unwrap();
    s.create(spec("a", "0-1", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    s.close(&mut || harness.progress()).unwrap();
    let table = s.table().clone();
    harness.shut_down();
    let good = std::fs::read(&image).unwrap();
    let starts: Vec<usize> =
        good.windows(8).enumerate().filter(|(_, w)| *w == b"SLUICJNL").map(|(i, _)| i).collect();
    assert!(
        starts.len() >= 4,
        "the table has two copies of a snapshot and of a record: {starts:?}"
    );
    let (mut refused, mut unharmed) = (0, 0);
    // In one frame, and then in all frames.
    for at in [3, 20, 60, 100] {
        for which in 0..=starts.len() {
            let mut bytes = good.clone();
            for (i, start) in starts.iter().enumerate() {
                if which == starts.len() || which == i {
                    bytes[start + at] ^= 0x10;
                }
            }
            std::fs::write(&image, &bytes).unwrap();
            let harness = ManagedDrive::new(config.clone());
            match harness.open(manager_config()) {
                Ok(s) => {
                    assert_eq!(*s.table(), table, "byte {at} of frame {which}");
                    unharmed += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("oc0"), "{error}");
                    refused += 1;
                }
            }
            harness.shut_down();
            assert!(std::fs::read(&image).unwrap() == bytes, "the image must not change");
        }
    }
    assert!(unharmed >= 4 * starts.len(), "one undamaged copy must be enough: {unharmed}");
    assert_eq!(refused, 4, "the table must be refused if both copies are damaged");
}

#[test]
fn a_target_that_is_recreated_finds_nothing_of_the_old_one() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    for factory in [false, true, false] {
        let id =
            s.create(spec("db", "1-2", Sharing::Exclusive), &mut || harness.progress()).unwrap();
        let uid = s.target("db").unwrap().uid;
        let id_again = s.open_target("db").unwrap();
        assert_eq!(id, id_again);
        let chunks: Vec<u32> = s.allocator().acquired_by(id).collect();
        assert!(chunks.len() > 40);
        for chunk in &chunks {
            assert_eq!(harness.written_by(*chunk), None, "chunk {chunk} must be erased");
            assert!(harness.write_chunk(*chunk, uid));
        }
        s.close_target(id);
        s.remove("db", factory, &mut || harness.progress()).unwrap();
        let left = chunks.iter().filter(|c| harness.written_by(**c) == Some(uid)).count();
        match factory {
            true => assert_eq!(left, 0),
            false => assert!(left > chunks.len() / 2, "chunks must be erased lazily: {left}"),
        }
    }
    // A sharing target also gets erased chunks, until none are left.
    let id = s.create(spec("kv", "1", Sharing::Shared), &mut || harness.progress()).unwrap();
    s.open_target("kv").unwrap();
    let mut got = 0;
    loop {
        match acquire(&harness, &mut s, id, 1) {
            Ok(chunk) => {
                assert_eq!(harness.written_by(chunk), None);
                got += 1;
            }
            Err(AcquireError::Full { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(got, (24..48).filter(|c| !s.table_window().contains(*c)).count());
}

#[test]
fn a_rate_is_refused_for_targets_that_cannot_be_opened_with_it() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    let limited = |rate| QuotaLimits { max_chunks: Some(6), rate };
    let rate = ChunkRate::new(10_000, 2);
    for kind in [TargetKind::Pblk, TargetKind::Rrpc, TargetKind::Kv] {
        let new = |rate| NewTarget {
            kind,
            limits: limited(rate),
            ..spec(&format!("a-{kind}"), "2-3", Sharing::Shared)
        };
        let table = s.table().clone();
        let refused = s.create(new(rate), &mut || harness.progress()).unwrap_err();
        assert!(
            matches!(&refused, MediaManagerError::RateOfFixedChunks { kind: k, .. } if *k == kind),
            "{refused}"
        );
        assert!(refused.is_usage_error() && refused.to_string().contains("--chunks-per-second"));
        let checked = s.check(&new(rate)).unwrap_err();
        assert_eq!(checked.to_string(), refused.to_string());
        assert_eq!(*s.table(), table);
        s.create(new(None), &mut || harness.progress()).unwrap();
        let name = format!("a-{kind}");
        let refused = s.set_limits(&name, limited(rate), &mut || harness.progress()).unwrap_err();
        assert!(matches!(refused, MediaManagerError::RateOfFixedChunks { .. }), "{refused}");
        assert_eq!(s.target(&name).unwrap().spec.limits, limited(None));
        s.remove(&name, false, &mut || harness.progress()).unwrap();
    }
    let ppa = NewTarget { limits: limited(rate), ..spec("app", "2-3", Sharing::Shared) };
    s.create(ppa, &mut || harness.progress()).unwrap();
}

#[test]
fn sharing_targets_are_limited_by_their_quota() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    let limits = QuotaLimits { max_chunks: Some(6), rate: ChunkRate::new(10_000, 2) };
    let slow = NewTarget { limits, ..spec("slow", "2-3", Sharing::Shared) };
    let slow = s.create(slow, &mut || harness.progress()).unwrap();
    let free = s.create(spec("free", "2-3", Sharing::Shared), &mut || harness.progress()).unwrap();
    assert_eq!(
        s.acquire(Nanos::ZERO, slow, 2, DataTemperature::Hot),
        Err(AcquireError::NotOpen { target: slow })
    );
    s.open_target("slow").unwrap();
    s.open_target("free").unwrap();
    assert!(matches!(
        s.acquire(Nanos::ZERO, slow, 0, DataTemperature::Hot),
        Err(AcquireError::NotTargetPu { pu: 0, .. })
    ));
    // The target gets two chunks at once, then one per tenth of a second, and six in total.
    let begun = harness.now.get();
    let mut taken = Vec::new();
    let denied = loop {
        match acquire(&harness, &mut s, slow, 2 + taken.len() as u32 % 2) {
            Ok(chunk) => taken.push((harness.now.get(), chunk)),
            Err(AcquireError::RateLimited { until, .. }) => harness.now.set(until),
            Err(other) => break other,
        }
    };
    assert_eq!(denied, AcquireError::ChunkLimit { target: slow, max_chunks: 6 });
    assert_eq!(taken.len(), 6);
    let elapsed = taken[5].0.since(begun);
    assert!(elapsed >= Nanos::from_millis(400), "{elapsed:?}");
    assert!(s.holdings(slow).owned <= 6);
    // The other target gets the remaining chunks, including those that the first one did not
    // acquire.
    let mut others = 0;
    for pu in [2, 3] {
        while acquire(&harness, &mut s, free, pu).is_ok() {
            others += 1;
        }
    }
    let all = (48..96).filter(|c| !s.table_window().contains(*c)).count();
    assert_eq!(others + 6, all);
    // A chunk that one target released can be acquired by another, whichever of the two had it
    // erased.
    let chunk = taken[0].1;
    assert!(harness.write_chunk(chunk, OTHER));
    assert!(s.release(free, chunk, true).is_err(), "the target `free` does not own the chunk");
    s.release(slow, chunk, false).unwrap();
    let pu = s.table().pu_of(chunk);
    let again = acquire(&harness, &mut s, free, pu).unwrap();
    assert_eq!((again, harness.written_by(chunk)), (chunk, None));
    let stats = s.allocator().stats();
    assert!(
        stats.denied_chunk_limit == 1 && stats.denied_rate >= 4 && stats.erased == 1,
        "{stats:?}"
    );
    assert!(stats.batches < stats.acquired, "chunks must be granted in batches: {stats:?}");
}

#[test]
fn grants_are_few_writes_of_the_journal() {
    let harness = ManagedDrive::new(config(geometry(2, 2, 80, 32), 0, None));
    let mut s = harness.register(manager_config()).unwrap();
    let id = s.create(spec("kv", "0-3", Sharing::Shared), &mut || harness.progress()).unwrap();
    s.open_target("kv").unwrap();
    let frames = s.journal().unwrap().stats().frames;
    for i in 0..200 {
        acquire(&harness, &mut s, id, i % 4).unwrap();
    }
    let frames = s.journal().unwrap().stats().frames - frames;
    assert!(frames <= 2 * 200 / 2, "{frames} frames, including second copies, for 200 chunks");
    assert_eq!(s.allocator().stats().batches, frames / 2);
}

#[test]
fn bad_chunks_are_told_apart_and_wear_is_counted() {
    let mut config = config(geometry(2, 2, 40, 32), 0, None);
    errors(&mut config).factory_bad = 0.05;
    errors(&mut config).endurance = 100;
    let harness = ManagedDrive::new(config);
    let core = MediaManagerConfig { rated_cycles: 100, ..manager_config() };
    let mut s = harness.register(core).unwrap();
    let factory =
        harness.report.iter().filter(|d| d.chunk_state() == Some(nvme::ChunkState::Offline));
    let factory = factory.count() as u32;
    let new = s.health(Some(&harness.health));
    assert!(factory > 0 && new.chunks.factory_bad == factory && new.chunks.grown_bad == 0);
    assert_eq!((new.chunks.total, new.wear.max, new.wear_range()), (160, 0, 0));
    assert_eq!(new.chunks.good(), new.chunks.free + new.chunks.reserved);
    let id = s.create(spec("a", "2", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    let chunks: Vec<u32> = s.allocator().acquired_by(id).collect();
    for _ in 0..20 {
        for chunk in &chunks[..8] {
            assert!(harness.write_chunk(*chunk, OTHER));
            let mut drive = harness.drive.borrow_mut();
            let nand = drive.nand_mut().unwrap();
            nand.begin_erase(ChunkId(*chunk)).unwrap();
            nand.complete_erase(ChunkId(*chunk)).unwrap();
        }
    }
    harness.inject(InjectedFault::ChunkBad { chunk: ChunkId(chunks[9]) });
    s.refresh(harness.now.get(), &harness.fresh_report()).unwrap();
    let used = s.health(None);
    assert_eq!((used.chunks.factory_bad, used.chunks.grown_bad), (factory, 1));
    assert!((19..=20).contains(&used.wear.max) && used.wear.min == 0, "{used:?}");
    assert_eq!(used.wear.bins[3], 8, "{:?}", used.wear.bins);
    let holding = s.holdings(id);
    assert_eq!((holding.owned as usize, holding.bad), (chunks.len() - 1, 1));
    assert!(
        s.table().is_owned_by(id, chunks[9]),
        "a bad chunk must stay owned, so that the capacity does not change"
    );
    let terms = Warranty { years: 5.0, age_years: 1.0, write_amplification: 2.0 };
    let left = used.endurance(&terms);
    let mean = 8.0 * f64::from(used.wear.max) / f64::from(used.chunks.good());
    assert!((left.remaining_ratio - (1.0 - mean / 100.0)).abs() < 0.001, "{left:?}");
    // The values are unchanged after a power cut.
    s.close(&mut || harness.progress()).unwrap();
    drop(s);
    let harness = harness.cut();
    let s = harness.register(core).unwrap();
    assert_eq!(s.health(None).chunks, used.chunks);
    let entry = s.table().chunks()[chunks[9] as usize];
    assert_eq!((entry.state, entry.owner), (ChunkUse::GrownBad, Some(id)));
}

#[test]
fn cold_chunks_are_read_and_relocation_is_recommended() {
    let harness = small(0);
    let scrub = ScrubConfig {
        sectors_per_sec: 10_000,
        cold_after: Nanos::from_secs(1),
        repeat_after: Nanos::from_secs(60),
        wear_gap_cycles: Some(1000),
    };
    let core = MediaManagerConfig { scrub: Some(scrub), ..manager_config() };
    let mut s = harness.register(core).unwrap();
    let kv = s.create(spec("kv", "0-1", Sharing::Shared), &mut || harness.progress()).unwrap();
    let app = s.create(spec("app", "1-2", Sharing::Shared), &mut || harness.progress()).unwrap();
    s.open_target("kv").unwrap();
    s.open_target("app").unwrap();
    let chunks = [(kv, 0), (kv, 1), (app, 1), (app, 2)].map(|(id, pu)| {
        let chunk = acquire(&harness, &mut s, id, pu).unwrap();
        assert!(harness.write_chunk(chunk, s.table().target(id).unwrap().uid));
        s.on_chunk_closed(harness.now.get(), id, chunk, 128);
        chunk
    });
    let sector = chunks[2] * 128 + 77;
    harness.inject(InjectedFault::Uncorrectable { phys: PhysSector(sector) });
    assert_eq!(s.recommendations(app).count(), 0);
    let begun = harness.now.get();
    for _ in 0..100_000 {
        if s.scrubber().unwrap().stats().visits == 4 {
            break;
        }
        s.poll(harness.now.get());
        harness.progress();
        let due = s.deadline();
        if harness.drive.borrow().is_idle() && due != Nanos::MAX {
            harness.now.set(harness.now.get().max(due));
        }
    }
    let stats = *s.scrubber().unwrap().stats();
    assert_eq!((stats.visits, stats.sectors, stats.uncorrectable), (4, 512, 1));
    assert!(
        harness.now.get().since(begun) >= Nanos::from_secs(1),
        "the scrubber must read only cold chunks"
    );
    assert_eq!(s.recommendations(kv).count(), 0);
    let advice: Vec<_> = s.recommendations(app).collect();
    assert_eq!(advice.len(), 1);
    assert_eq!(advice[0].chunk, chunks[2]);
    assert_eq!(advice[0].reason, RelocationReason::Uncorrectable { sector: 77, sectors: 1 });
    s.report_error(chunks[3], RelocationReason::HighEcc { sector: 3 });
    assert_eq!(s.recommendations(app).count(), 2);
    s.release(app, chunks[2], false).unwrap();
    s.dismiss(chunks[3]);
    assert_eq!(s.recommendations(app).count(), 0);
}

#[test]
fn a_die_that_fails_takes_one_copy_of_the_table() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    let a = s.create(spec("a", "3", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    drop(s);
    let harness = harness.cut();
    harness.inject(InjectedFault::DieFailure { pu: PuId(0) });
    let harness = harness.cut();
    let mut s = harness.register(manager_config()).unwrap();
    assert_eq!(s.target("a").unwrap().id, a);
    s.create(spec("b", "1", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    drop(s);
    let harness = harness.cut();
    let s = harness.register(manager_config()).unwrap();
    assert_eq!(names(&s), ["a", "b"]);
    assert_eq!(
        s.health(None).chunks.grown_bad as usize,
        (0..24).filter(|c| !s.table_window().contains(*c)).count()
    );
}

#[test]
fn all_chunks_at_once_can_be_cut_and_repeated() {
    let (mut cut, mut whole) = (0, 0);
    for progress_calls in (0..400).step_by(9) {
        let harness = small(2);
        let mut s = harness.register(manager_config()).unwrap();
        let limits = QuotaLimits { max_chunks: Some(30), rate: None };
        let kv = NewTarget { kind: TargetKind::Kv, limits, ..spec("kv", "0-1", Sharing::Shared) };
        let id = s.create(kv, &mut || harness.progress()).unwrap();
        s.open_target("kv").unwrap();
        harness.left.set(progress_calls);
        let filled = s.allocate_all(id, &mut || harness.progress());
        drop(s);
        let harness = harness.cut();
        let mut s = harness.register(manager_config()).unwrap();
        // The target owns its granted chunks although it has written nothing; no other target gets
        // them.
        let before = s.holdings(id);
        assert_eq!(before.owned, before.acquired, "{progress_calls} calls");
        match filled {
            Ok(given) => {
                assert_eq!((given, before.owned), (30, 30), "{progress_calls} calls");
                whole += 1;
            }
            Err(_) => cut += 1,
        }
        s.open_target("kv").unwrap();
        let given = s.allocate_all(id, &mut || harness.progress()).unwrap();
        let after = s.holdings(id);
        assert_eq!((given + before.owned, after.owned, after.acquired), (30, 30, 30));
        assert_eq!(
            s.allocate_all(id, &mut || harness.progress()).unwrap(),
            0,
            "the target already has its chunks"
        );
    }
    assert!(cut > 3 && whole > 3, "{cut} cut, {whole} whole");
}

#[test]
fn chunks_that_are_not_there_are_not_begun_to_be_taken() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    let shared = |name: &str, kind, max_chunks| NewTarget {
        kind,
        limits: QuotaLimits { max_chunks, rate: None },
        ..spec(name, "0-1", Sharing::Shared)
    };
    for (new, parts) in [
        (shared("free", TargetKind::Pblk, None), &["free", "oc0", "--max-chunks"][..]),
        (shared("big", TargetKind::Pblk, Some(99)), &["big", "99 more", "0-1", "some (20"]),
    ] {
        let some = s.target("some").map(|t| t.id);
        if some.is_err() {
            let new = shared("some", TargetKind::Pblk, Some(20));
            let id = s.create(new, &mut || harness.progress()).unwrap();
            s.open_target("some").unwrap();
            assert_eq!(s.allocate_all(id, &mut || harness.progress()).unwrap(), 20);
        }
        let name = new.name.clone();
        let id = s.create(new, &mut || harness.progress()).unwrap();
        s.open_target(&name).unwrap();
        let table = s.table().clone();
        let error = s.allocate_all(id, &mut || harness.progress()).unwrap_err();
        assert!(error.is_usage_error(), "{error}");
        let told = error.to_string();
        for part in parts {
            assert!(told.contains(part), "`{part}` is missing in: {told}");
        }
        assert_eq!(*s.table(), table);
    }
    let alone =
        s.create(spec("alone", "3", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    assert_eq!(
        s.allocate_all(alone, &mut || harness.progress()).unwrap(),
        0,
        "the target already has all chunks"
    );
}
