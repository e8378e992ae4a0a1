//! The encoding of the partition table: a written table is read back, damaged tables are rejected,
//! and inconsistent records change nothing.

use lnvm::{
    ChunkUse, NewTarget, PuId, PuSet, QuotaLimits, Sharing, TARGETS_MAX, Table, TableError,
    TableRecord, TargetEntry, TargetId, TargetKind, TargetOptions, Uid,
};
use nvme::Geometry;
use rng::Rng;

fn geometry(groups: u32, pus: u32, chunks: u32) -> Geometry {
    Geometry {
        groups,
        pus,
        chunks,
        sectors: 64,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 8,
        ws_opt: 8,
        mw_cunits: 0,
    }
}

fn target(id: u32, name: &str, pus: &str, sharing: Sharing) -> Box<TargetEntry> {
    let spec = NewTarget {
        name: name.into(),
        kind: TargetKind::Kv,
        pus: pus.parse().unwrap(),
        sharing,
        options: TargetOptions::default(),
        limits: QuotaLimits::default(),
    };
    Box::new(TargetEntry { id: TargetId(id), uid: Uid(id.into()), spec, created_at: 0 })
}

fn created(id: u32, name: &str, pus: &str, sharing: Sharing, chunks: Vec<u32>) -> TableRecord {
    TableRecord::Created { target: target(id, name, pus, sharing), chunks }
}

/// Returns a table with entries of all kinds.
fn some() -> (Table, Geometry) {
    let g = geometry(2, 2, 10);
    let state = |chunk: u32| match chunk {
        0 | 20 => ChunkUse::Reserved,
        7 => ChunkUse::FactoryBad,
        _ => ChunkUse::Free,
    };
    let mut table = Table::new(&g, Uid(99), state).unwrap();
    for record in [
        created(1, "a", "0", Sharing::Exclusive, vec![1, 2, 3]),
        created(2, "b", "1-2", Sharing::Shared, vec![]),
        created(4, "c", "2-3", Sharing::Shared, vec![]),
        TableRecord::Granted { target: TargetId(2), chunks: vec![10, 12, 21] },
        TableRecord::Granted { target: TargetId(4), chunks: vec![22, 39] },
        TableRecord::Returned { target: TargetId(4), chunks: vec![39], erased: false },
        TableRecord::Retired { chunks: vec![12, 30] },
    ] {
        table.apply(&record).unwrap();
    }
    (table, g)
}

#[test]
fn a_snapshot_is_read_as_it_was_written() {
    let (table, g) = some();
    assert_eq!(Table::load(&table.snapshot(), &g), Ok(table.clone()));
    assert_eq!(table.next_id(), TargetId(5));
    assert!(table.is_owned_by(TargetId(2), 12), "a bad chunk must stay owned");
    assert_eq!(table.owned_by(TargetId(2)).collect::<Vec<_>>(), [10, 21]);
}

#[test]
fn the_largest_table_is_as_large_as_announced() {
    let g = geometry(4, 16, 200);
    let mut rng = Rng::new(1);
    let mut table = Table::new(&g, Uid(1), |_| ChunkUse::Free).unwrap();
    let every_second: PuSet = (0..32).map(|i| PuId(2 * i)).collect();
    for id in 1..=TARGETS_MAX as u32 {
        let name = format!("{id:032}");
        let mut new = target(u32::MAX - 100 + id, &name, "0", Sharing::Shared);
        new.spec.pus = every_second.clone();
        new.created_at = u64::MAX;
        table.apply(&TableRecord::Created { target: new, chunks: vec![] }).unwrap();
    }
    let one_more = created(u32::MAX, "one-more", "1", Sharing::Shared, vec![]);
    assert!(table.apply(&one_more).is_err());
    // No two adjacent chunks of these parallel units have the same owner.
    let on_its_units = |chunk: &u32| every_second.contains(PuId(chunk / 200));
    for chunk in (0..g.total_chunks() as u32).filter(on_its_units) {
        let target = TargetId(u32::MAX - 99 + rng.below(TARGETS_MAX as u64) as u32);
        table.apply(&TableRecord::Granted { target, chunks: vec![chunk] }).unwrap();
    }
    let bytes = table.snapshot();
    let most = Table::snapshot_bytes_max(&g);
    assert!(bytes.len() as u64 <= most, "{} of {most}", bytes.len());
    assert!(
        bytes.len() as u64 > most / 3,
        "the limit must not be much larger than needed: {} of {most}",
        bytes.len()
    );
    assert_eq!(Table::load(&bytes, &g), Ok(table));
}

#[test]
fn no_damage_goes_unnoticed_and_nonsense_never_panics() {
    let (table, g) = some();
    let good = table.snapshot();
    for end in 0..good.len() {
        assert!(Table::load(&good[..end], &g).is_err(), "cut at {end}");
    }
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Table::load(&bytes, &g).is_err(), "bit {bit}");
    }
    // With a recomputed CRC, invalid contents reach the later checks.
    let mut rng = Rng::new(5);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(3) {
            let at = 10 + rng.below(bytes.len() as u64 - 14) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        let body = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
        match Table::load(&bytes, &g) {
            Ok(table) => {
                read += 1;
                assert_eq!(Table::load(&table.snapshot(), &g), Ok(table));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 100 && refused > 1000, "{read} read, {refused} refused");
}

#[test]
fn what_is_refused_says_why() {
    let (table, g) = some();
    let good = table.snapshot();
    assert_eq!(Table::load(b"something else", &g), Err(TableError::NotATable));
    let mut newer = good.clone();
    newer[8] = 2;
    assert_eq!(Table::load(&newer, &g), Err(TableError::Version { found: 2, known: 1 }));
    let mut bad = good.clone();
    bad[50] ^= 1;
    assert!(matches!(Table::load(&bad, &g), Err(TableError::Checksum { .. })));
    let other = geometry(2, 2, 11);
    let differs =
        TableError::GeometryMismatch { what: "chunks per parallel unit", found: 10, wanted: 11 };
    assert_eq!(Table::load(&good, &other), Err(differs));
    let huge = geometry(1 << 10, 1 << 10, 1 << 10);
    assert!(matches!(
        Table::new(&huge, Uid(1), |_| ChunkUse::Free),
        Err(TableError::GeometryMismatch { .. })
    ));
    assert!(Table::new(&g, Uid(1), |_| ChunkUse::Owned).is_err());
}

#[test]
fn a_record_that_contradicts_the_table_changes_nothing() {
    let (table, _) = some();
    let (a, b, c) = (TargetId(1), TargetId(2), TargetId(4));
    let limited = |target, max_chunks| {
        let limits = QuotaLimits { max_chunks, rate: None };
        TableRecord::Limited { target, limits }
    };
    for (record, part) in [
        (created(5, "d", "0", Sharing::Shared, vec![]), "targets d and a both have units 0"),
        (created(5, "d", "2", Sharing::Exclusive, vec![]), "targets d and b both have units 2"),
        (created(5, "a", "3", Sharing::Shared, vec![]), "a name that is none, or is taken"),
        (created(3, "d", "3", Sharing::Shared, vec![]), "was used before"),
        (created(5, "d", "4", Sharing::Shared, vec![]), "units 4 of a drive with 4"),
        (created(5, "d", "3", Sharing::Shared, vec![31, 39]), "chunk 39"),
        (created(5, "d", "3", Sharing::Shared, vec![25]), "chunk 25 of parallel unit 2"),
        (TableRecord::Granted { target: a, chunks: vec![4, 10] }, "chunk 10"),
        (TableRecord::Granted { target: a, chunks: vec![7] }, "chunk 7"),
        (TableRecord::Granted { target: b, chunks: vec![31] }, "parallel unit 3 to target b"),
        (TableRecord::Granted { target: b, chunks: vec![40] }, "chunk 40"),
        (
            TableRecord::Granted { target: TargetId(3), chunks: vec![11] },
            "#3, which does not exist",
        ),
        (TableRecord::Returned { target: b, chunks: vec![10, 22], erased: true }, "chunk 22"),
        (TableRecord::Returned { target: c, chunks: vec![39], erased: true }, "chunk 39"),
        (TableRecord::Erased { chunks: vec![39, 4] }, "chunk 4"),
        (TableRecord::Retired { chunks: vec![1, 0] }, "chunk 0"),
        (TableRecord::Retired { chunks: vec![12] }, "chunk 12"),
        (TableRecord::Removed { target: TargetId(3) }, "#3, which does not exist"),
        (limited(TargetId(3), Some(7)), "#3, which does not exist"),
        (limited(a, Some(7)), "limits target a"),
        (limited(b, Some(0)), "limits target b"),
    ] {
        let mut changed = table.clone();
        let told = changed.apply(&record).unwrap_err().to_string();
        assert!(told.contains(part), "`{part}` is missing in: {told}");
        assert_eq!(changed, table, "{record:?}");
    }
    let mut removed = table.clone();
    removed.apply(&TableRecord::Removed { target: b }).unwrap();
    let of = |chunk: usize| (removed.chunks()[chunk].state, removed.chunks()[chunk].owner);
    assert_eq!((of(10), of(12)), ((ChunkUse::Dirty, None), (ChunkUse::GrownBad, None)));
    assert_eq!(removed.targets().len(), 2);
}
