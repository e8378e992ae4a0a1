//! Every invariant of the parts of a recovery, broken.

use nvme::{Geometry, PhysSector};

use super::*;
use crate::check::{Part, Violation};
use crate::ids::{Lba, ToIndex, WriteSeq};

fn recovery() -> Recovery {
    let geometry = FlashGeometry::from_geometry(&Geometry {
        groups: 2,
        pus: 2,
        chunks: 32,
        sectors: 64,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 4,
        ws_opt: 4,
        mw_cunits: 8,
    });
    let found = vec![ChunkReport::Free; geometry.total_chunks().index()];
    let counted = geometry.total_chunks();
    Recovery::new(geometry, FtlConfig::default(), found, counted).expect("a recovery")
}

fn check(recovery: &Recovery) -> Result<(), Violation> {
    recovery.check_invariants()?;
    recovery.map.check_invariants(&recovery.env, recovery.pages.found())
}

#[test]
fn what_is_broken_is_reported_by_name() {
    check(&recovery()).expect("nothing is broken");
    type Plant = (&'static str, fn(&mut Recovery));
    let plants: [Plant; 6] = [
        ("a chunk is in one line, or the journal's", |r| r.lines.break_owner()),
        ("a probe has read what is written", |r| r.scan.break_probe()),
        ("translation pages are in order", |r| r.pages.break_pages(false)),
        ("a lost page is not read", |r| r.pages.break_pages(true)),
        ("a word per logical sector", |r| r.map.break_length()),
        ("a physical sector is mapped once", |r| r.map.break_locations()),
    ];
    for (invariant, break_it) in plants {
        let mut broken = recovery();
        break_it(&mut broken);
        let found = check(&broken).expect_err(invariant);
        assert_eq!((found.part, found.invariant), (Part::Recovery, invariant), "{found}");
    }
}

#[test]
#[should_panic(expected = "no recovery operation 7 is outstanding")]
fn an_unknown_operation_is_refused() {
    let mut recovery = recovery();
    recovery.next_ops();
    recovery.complete(7, RecoveryOpResult::Padded(Status::SUCCESS));
}

#[test]
fn the_first_sector_behind_an_empty_map_is_named() {
    let mut recovery = recovery();
    recovery.device_l2p = Some(DeviceL2pImport::new(Vec::new(), WriteSeq(0)));
    for (phys, lba) in [(8, 3), (4, 7)] {
        let oob =
            Oob { lba: Some(Lba(lba)), poison: false, metadata: false, sequence: WriteSeq(1) };
        recovery.import_sector(PhysSector(phys), Some(Some(oob)));
    }
    let error = recovery.finish().expect_err("the map was lost");
    let named = matches!(error, RecoveryError::DeviceL2pLost { lba: Lba(3), phys: PhysSector(8) });
    assert!(named, "{error}");
}
