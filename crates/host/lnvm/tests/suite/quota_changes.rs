//! Chunk quotas that change: while a target is open, over power cuts, and changes that are refused.

// guarantee: B-45

use lnvm::{AcquireError, ChunkRate, MediaManager, MediaManagerError, NewTarget, QuotaLimits};
use lnvm::{Sharing, TargetKind};
use testkit::managed_drive::{manager_config, spec};

use crate::media_manager::{acquire, small};

#[test]
fn a_quota_changes_while_the_target_is_open_and_survives() {
    let harness = small(2);
    let mut s = harness.register(manager_config()).unwrap();
    let limit = |max_chunks: u32| QuotaLimits { max_chunks: Some(max_chunks), rate: None };
    let app = NewTarget { limits: limit(4), ..spec("app", "2-3", Sharing::Shared) };
    let id = s.create(app, &mut || harness.progress()).unwrap();
    s.open_target("app").unwrap();
    let fill = |s: &mut MediaManager| {
        let mut taken = Vec::new();
        loop {
            match acquire(&harness, s, id, 2 + taken.len() as u32 % 2) {
                Ok(chunk) => taken.push(chunk),
                Err(AcquireError::ChunkLimit { max_chunks, .. }) => return (taken, max_chunks),
                Err(other) => panic!("{other}"),
            }
        }
    };
    let (mut taken, most) = fill(&mut s);
    assert_eq!((taken.len(), most), (4, 4));
    // It grows at once.
    s.set_limits("app", limit(9), &mut || harness.progress()).unwrap();
    let (more, most) = fill(&mut s);
    assert_eq!((more.len(), most), (5, 9));
    taken.extend(more);
    // Below what the target has, it keeps its chunks, and gets none until it has released enough.
    s.set_limits("app", limit(6), &mut || harness.progress()).unwrap();
    assert_eq!(s.holdings(id).acquired, 9);
    for left in [8, 7, 6] {
        assert_eq!(fill(&mut s), (vec![], 6), "with {} chunks", left + 1);
        s.release(id, taken.pop().unwrap(), false).unwrap();
        assert_eq!(s.holdings(id).acquired, left);
    }
    assert_eq!(fill(&mut s), (vec![], 6));
    s.release(id, taken.pop().unwrap(), false).unwrap();
    assert_eq!(fill(&mut s).0.len(), 1);
    // Chunks that were granted and not acquired return to the other targets.
    s.set_limits("app", QuotaLimits::default(), &mut || harness.progress()).unwrap();
    acquire(&harness, &mut s, id, 2).unwrap();
    harness.run(&mut s);
    let owned = s.holdings(id).owned;
    s.set_limits("app", limit(1), &mut || harness.progress()).unwrap();
    let held = s.holdings(id);
    assert!(held.owned == held.acquired && held.owned <= owned, "{held:?}");
    // A rate that is set holds from now on.
    let slow = QuotaLimits { max_chunks: Some(20), rate: ChunkRate::new(1000, 1) };
    s.set_limits("app", slow, &mut || harness.progress()).unwrap();
    acquire(&harness, &mut s, id, 2).unwrap();
    let denied = acquire(&harness, &mut s, id, 2);
    assert!(matches!(denied, Err(AcquireError::RateLimited { .. })), "{denied:?}");
    // A power cut afterwards loses nothing of it.
    drop(s);
    let harness = harness.cut();
    let s = harness.register(manager_config()).unwrap();
    assert_eq!(s.target("app").unwrap().spec.limits, slow);
}

#[test]
fn a_quota_is_the_old_or_the_new_one_after_a_power_cut() {
    let (mut old, mut new) = (0, 0);
    for progress_calls in 0..60 {
        let harness = small(2);
        let mut s = harness.register(manager_config()).unwrap();
        let limit = |max_chunks: u32| QuotaLimits { max_chunks: Some(max_chunks), rate: None };
        let app = NewTarget { limits: limit(4), ..spec("app", "2-3", Sharing::Shared) };
        s.create(app, &mut || harness.progress()).unwrap();
        harness.left.set(progress_calls);
        let changed = s.set_limits("app", limit(9), &mut || harness.progress());
        drop(s);
        let harness = harness.cut();
        let s = harness.register(manager_config()).unwrap();
        match s.target("app").unwrap().spec.limits.max_chunks {
            Some(4) => old += 1,
            Some(9) => new += 1,
            other => panic!("{other:?}"),
        }
        let is_new = s.target("app").unwrap().spec.limits == limit(9);
        assert!(changed.is_err() || is_new, "{progress_calls} calls");
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

#[test]
fn quotas_that_cannot_be_are_refused_and_change_nothing() {
    let harness = small(0);
    let mut s = harness.register(manager_config()).unwrap();
    let limit = |max_chunks: u32| QuotaLimits { max_chunks: Some(max_chunks), rate: None };
    let shared =
        |name: &str, kind, limits| NewTarget { kind, limits, ..spec(name, "2-3", Sharing::Shared) };
    s.create(spec("alone", "0", Sharing::Exclusive), &mut || harness.progress()).unwrap();
    s.create(shared("kv", TargetKind::Kv, limit(10)), &mut || harness.progress()).unwrap();
    let ppa = shared("ppa", TargetKind::Ppa, limit(10));
    s.create(ppa, &mut || harness.progress()).unwrap();
    let good = (48..96).filter(|chunk| !s.table_window().contains(*chunk)).count() as u32;
    let set = |s: &mut MediaManager, name: &str, limits: QuotaLimits| {
        let before = (s.table().clone(), s.allocator().records_made());
        let result = s.set_limits(name, limits, &mut || harness.progress());
        if let Err(error) = &result {
            assert!(error.is_usage_error(), "{error}");
            assert_eq!((s.table().clone(), s.allocator().records_made()), before, "{error}");
        }
        result.map_err(|error| Box::new((error.to_string(), error)))
    };
    let (says, error) = *set(&mut s, "nobody", limit(3)).unwrap_err();
    assert!(matches!(error, MediaManagerError::UnknownTarget { .. }), "{says}");
    let (says, error) = *set(&mut s, "alone", limit(3)).unwrap_err();
    assert!(matches!(error, MediaManagerError::InvalidOption { .. }), "{says}");
    let (says, error) = *set(&mut s, "ppa", limit(0)).unwrap_err();
    assert!(matches!(error, MediaManagerError::InvalidOption { .. }), "{says}");
    // Beyond its own parallel units, and beyond those of all targets that share.
    let (says, error) = *set(&mut s, "ppa", limit(good + 1)).unwrap_err();
    assert!(matches!(error, MediaManagerError::LimitBeyondDrive { others: 0, .. }), "{says}");
    let (says, error) = *set(&mut s, "ppa", limit(good - 9)).unwrap_err();
    let other = MediaManagerError::LimitBeyondDrive {
        drive: s.serial().to_owned(),
        name: "ppa".into(),
        wanted: good - 9,
        others: 10,
        pus: "2-3".into(),
        chunks: good.into(),
    };
    assert_eq!(format!("{error:?}"), format!("{other:?}"), "{says}");
    set(&mut s, "ppa", limit(good - 10)).unwrap();
    // A `kv` has a limit that can change until it has its chunks.
    set(&mut s, "kv", limit(8)).unwrap();
    let id = s.open_target("kv").unwrap();
    assert_eq!(s.allocate_all(id, &mut || harness.progress()).unwrap(), 8);
    for chunks in [7, 9] {
        let (says, error) = *set(&mut s, "kv", limit(chunks)).unwrap_err();
        assert!(matches!(error, MediaManagerError::FixedChunks { chunks: 8, .. }), "{says}");
    }
    set(&mut s, "kv", limit(8)).unwrap();
}
