//! Program, erase and read in order and out of order; paired pages; data in and out.

use media::{
    CellType, ChunkId, ChunkInfo, ChunkState, DataStore, MediaError, Nand, Operation, PhysSector,
    UnitInChunk, check_pattern,
};
use mem::SharedRegion;

use super::fixture::{config, erase, nand, program, program_all, stage, verify};

const C: ChunkId = ChunkId(7);

#[test]
fn a_chunk_goes_from_free_to_open_to_closed_and_back() {
    let mut n = nand();
    let units = n.layout().units_per_chunk();
    let info = |state, wear, write_pointer| Some(ChunkInfo { state, wear, write_pointer });
    assert_eq!(n.chunk_info(C), info(ChunkState::Free, 0, 0));
    stage(&mut n, C, 0, 1).unwrap();
    assert_eq!(n.chunk_info(C), info(ChunkState::Free, 0, 0), "staged data is not programmed yet");
    n.begin_program(C, UnitInChunk(0)).unwrap();
    assert_eq!(n.chunk_info(C), info(ChunkState::Open, 0, 0));
    n.complete_program(C, UnitInChunk(0)).unwrap();
    assert_eq!(n.chunk_info(C), info(ChunkState::Open, 0, 4));
    for unit in 1..units {
        program(&mut n, C, unit, 1).unwrap();
    }
    assert_eq!(n.chunk_info(C), info(ChunkState::Closed, 0, 48));
    n.begin_erase(C).unwrap();
    assert_eq!(n.chunk_info(C), info(ChunkState::Closed, 1, 48));
    n.complete_erase(C).unwrap();
    assert_eq!(n.chunk_info(C), info(ChunkState::Free, 1, 0));
    assert_eq!(n.chunks().count(), 24);
    assert_eq!(n.chunk_info(ChunkId(24)), None);
}

#[test]
fn programs_are_in_order_and_never_over_data() {
    let mut n = nand();
    let expect = |unit, expected| Err(MediaError::OutOfOrder { chunk: C, unit, expected });
    assert_eq!(n.begin_program(C, UnitInChunk(1)), expect(UnitInChunk(1), UnitInChunk(0)));
    assert_eq!(n.begin_program(C, UnitInChunk(0)), Ok(()));
    let doing = Operation::Program;
    for unit in [0, 1] {
        let busy = MediaError::Busy { chunk: C, doing, with: Operation::Program };
        assert_eq!(n.begin_program(C, UnitInChunk(unit)), Err(busy));
    }
    assert_eq!(n.complete_program(C, UnitInChunk(0)), Ok(()));
    assert_eq!(
        n.begin_program(C, UnitInChunk(0)),
        expect(UnitInChunk(0), UnitInChunk(1)),
        "a unit must not be programmed again"
    );
    assert_eq!(
        n.begin_program(C, UnitInChunk(2)),
        expect(UnitInChunk(2), UnitInChunk(1)),
        "a unit must not be skipped"
    );
    for far in [12, 13, u32::MAX / 4 + 2, u32::MAX] {
        assert_eq!(n.begin_program(C, UnitInChunk(far)), expect(UnitInChunk(far), UnitInChunk(1)));
        assert_eq!(
            n.complete_program(C, UnitInChunk(far)),
            Err(MediaError::NotBegun { chunk: C, doing })
        );
    }
    for unit in 1..12 {
        program(&mut n, C, unit, 1).unwrap();
    }
    for unit in [0, 11, 12] {
        assert_eq!(
            n.begin_program(C, UnitInChunk(unit)),
            expect(UnitInChunk(unit), UnitInChunk(12)),
            "full"
        );
    }
    assert_eq!(n.stats().refused_programs, 12);
    assert_eq!(n.stats().programs, 12);
    erase(&mut n, C).unwrap();
    program(&mut n, C, 0, 2).unwrap();
}

#[test]
fn an_end_needs_its_beginning() {
    let mut n = nand();
    let not = |doing| Err(MediaError::NotBegun { chunk: C, doing });
    assert_eq!(n.complete_program(C, UnitInChunk(0)), not(Operation::Program));
    assert_eq!(n.complete_erase(C), not(Operation::Erase));
    n.begin_program(C, UnitInChunk(0)).unwrap();
    assert_eq!(
        n.complete_program(C, UnitInChunk(1)),
        not(Operation::Program),
        "another unit is being programmed"
    );
    assert_eq!(n.complete_erase(C), not(Operation::Erase));
    n.complete_program(C, UnitInChunk(0)).unwrap();
    assert_eq!(
        n.complete_program(C, UnitInChunk(0)),
        not(Operation::Program),
        "a program completes only once"
    );
}

#[test]
fn one_operation_is_in_flight_in_a_chunk() {
    let mut n = nand();
    let busy = |doing, with| Err(MediaError::Busy { chunk: C, doing, with });
    n.begin_program(C, UnitInChunk(0)).unwrap();
    assert_eq!(n.begin_erase(C), busy(Operation::Erase, Operation::Program));
    n.begin_erase(ChunkId(8)).unwrap();
    n.complete_program(C, UnitInChunk(0)).unwrap();
    n.begin_erase(C).unwrap();
    assert_eq!(n.begin_erase(C), busy(Operation::Erase, Operation::Erase));
    assert_eq!(n.begin_program(C, UnitInChunk(0)), busy(Operation::Program, Operation::Erase));
    let phys = n.layout().phys(C, 0);
    let during = MediaError::Busy { chunk: C, doing: Operation::Read, with: Operation::Erase };
    assert_eq!(n.check_read(phys), Err(during));
}

#[test]
fn numbers_past_the_end_are_refused() {
    let mut n = nand();
    let chunk = ChunkId(24);
    let error = MediaError::OutOfRange { what: "chunk", value: 24, limit: 24 };
    assert_eq!(n.begin_program(chunk, UnitInChunk(0)), Err(error));
    assert_eq!(n.complete_program(chunk, UnitInChunk(0)), Err(error));
    assert_eq!(n.begin_erase(chunk), Err(error));
    assert_eq!(n.complete_erase(chunk), Err(error));
    assert_eq!(n.set_wear(chunk, 1), Err(error));
    for value in [24 * 48, u32::MAX] {
        let error = MediaError::OutOfRange { what: "sector", value, limit: 24 * 48 };
        assert_eq!(n.check_read(PhysSector(value)), Err(error));
        assert_eq!(n.stage_bytes(PhysSector(value), &[0; 512]), Err(error));
        assert_eq!(n.set_oob(PhysSector(value), &[0]), Err(error));
    }
    assert!(matches!(n.stage_bytes(PhysSector(0), &[0; 511]), Err(MediaError::OutOfRange { .. })));
    assert!(matches!(n.set_oob(PhysSector(0), &[0; 17]), Err(MediaError::OutOfRange { .. })));
}

#[test]
fn data_is_placed_only_where_nothing_is() {
    let mut n = nand();
    program(&mut n, C, 0, 1).unwrap();
    let at = |n: &Nand, sector| n.layout().phys(C, sector);
    let phys = at(&n, 3);
    assert_eq!(n.stage_bytes(phys, &[0; 512]), Err(MediaError::Overwrite { phys, free: 4 }));
    assert_eq!(n.set_oob(phys, &[0; 16]), Err(MediaError::Overwrite { phys, free: 4 }));
    stage(&mut n, C, 1, 1).unwrap();
    n.begin_program(C, UnitInChunk(1)).unwrap();
    let phys = at(&n, 4);
    assert_eq!(n.stage_bytes(phys, &[0; 512]), Err(MediaError::Overwrite { phys, free: 8 }));
    stage(&mut n, C, 2, 1).expect("the next unit can be staged while the array is busy");
    n.complete_program(C, UnitInChunk(1)).unwrap();
    for unit in 2..12 {
        program(&mut n, C, unit, 1).unwrap();
    }
    let phys = at(&n, 47);
    assert!(n.stage_bytes(phys, &[0; 512]).is_err());
    n.begin_erase(C).unwrap();
    stage(&mut n, C, 0, 2).expect("a chunk being erased accepts staged data");
    n.complete_erase(C).unwrap();
    n.begin_program(C, UnitInChunk(0)).unwrap();
    n.complete_program(C, UnitInChunk(0)).unwrap();
}

#[test]
fn what_was_programmed_is_read_through_regions_and_slices() {
    for oob_bytes in [0, 3, 16] {
        let mut cfg = config();
        (cfg.cell, cfg.paired_page_distance) = (CellType::Slc, 0);
        cfg.geometry.oob_bytes = oob_bytes;
        let mut n = Nand::create(cfg).unwrap();
        let (from, to) =
            (SharedRegion::anonymous(8192).unwrap(), SharedRegion::anonymous(8192).unwrap());
        let first = n.layout().unit_start(C, UnitInChunk(0));
        for i in 0..4u32 {
            from.fill(100 + 512 * i as usize, 512, i as u8 + 1);
            n.stage(first + i, &from, 100 + 512 * i as usize).unwrap();
            n.set_oob(first + i, &vec![i as u8 + 9; oob_bytes as usize]).unwrap();
        }
        n.begin_program(C, UnitInChunk(0)).unwrap();
        n.complete_program(C, UnitInChunk(0)).unwrap();
        for i in 0..4u32 {
            let phys = first + i;
            n.check_read(phys).unwrap();
            n.copy_out(phys, &to, 4096);
            let (mut a, mut b, mut oob) = ([0; 512], [0; 512], [7; 20]);
            to.read(4096, &mut a);
            n.read_bytes(phys, &mut b);
            assert_eq!((a, b), ([i as u8 + 1; 512], [i as u8 + 1; 512]));
            n.oob(phys, &mut oob);
            let (kept, rest) = oob.split_at(oob_bytes as usize);
            assert!(kept.iter().all(|b| *b == i as u8 + 9) && rest.iter().all(|b| *b == 0));
        }
        assert_eq!(n.stats().reads, 4);
    }
}

#[test]
fn shorter_out_of_band_bytes_leave_nothing_of_the_old() {
    let mut n = nand();
    for sector in 0..4 {
        n.set_oob(PhysSector(sector), &[0xff; 16]).unwrap();
        n.set_oob(PhysSector(sector), &[1, 2]).unwrap();
    }
    let mut oob = [9; 16];
    n.oob(PhysSector(3), &mut oob);
    assert_eq!(oob, [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_medium_without_data_keeps_the_rules_and_reads_patterns() {
    for sector_bytes in [512, 4096, 65536] {
        let mut cfg = config();
        cfg.geometry.sector_bytes = sector_bytes;
        cfg.geometry.page_bytes = 2 * sector_bytes;
        cfg.data = DataStore::None;
        let mut n = Nand::create(cfg).unwrap();
        let to = SharedRegion::anonymous(1 << 17).unwrap();
        assert!(n.begin_program(C, UnitInChunk(1)).is_err());
        let phys = n.layout().phys(C, 1);
        n.stage(phys, &to, 0).unwrap();
        n.set_oob(phys, &[1; 16]).unwrap();
        for unit in 0..4 {
            n.begin_program(C, UnitInChunk(unit)).unwrap();
            assert!(n.begin_program(C, UnitInChunk(unit)).is_err());
            n.complete_program(C, UnitInChunk(unit)).unwrap();
        }
        n.check_read(phys).unwrap();
        n.copy_out(phys, &to, 8);
        let mut bytes = vec![0; sector_bytes as usize];
        to.read(8, &mut bytes);
        check_pattern(phys.0.into(), &bytes).unwrap();
        n.read_bytes(phys, &mut bytes);
        check_pattern(phys.0.into(), &bytes).unwrap();
        let mut oob = [1; 16];
        n.oob(phys, &mut oob);
        assert_eq!(oob, [0; 16]);
        n.release_free().unwrap();
        n.sync().unwrap();
    }
}

#[test]
fn a_sector_is_readable_once_its_pair_is_programmed() {
    for (cell, one_shot, distances) in [
        (CellType::Slc, false, &[0][..]),
        (CellType::Mlc, false, &[1, 2, 3, 6]),
        (CellType::Tlc, false, &[2, 5, 8, 11]),
        (CellType::Tlc, true, &[0]),
        (CellType::Qlc, false, &[3, 7, 9]),
        (CellType::Qlc, true, &[0]),
    ] {
        for &distance in distances {
            let mut cfg = config();
            (cfg.cell, cfg.one_shot, cfg.paired_page_distance) = (cell, one_shot, distance);
            let stripe = cfg.geometry.sectors_per_stripe();
            let mut n = Nand::create(cfg).unwrap();
            let (units, unit_sectors) = (n.layout().units_per_chunk(), n.layout().write_unit());
            for programmed in 1..=units {
                program(&mut n, C, programmed - 1, 5).unwrap();
                let pointer = programmed * unit_sectors;
                for sector in 0..48 {
                    let phys = n.layout().phys(C, sector);
                    let page_has_pair = sector / stripe + distance < pointer / stripe;
                    if sector >= pointer {
                        let error = MediaError::Unwritten { phys, write_pointer: pointer };
                        assert_eq!(n.check_read(phys), Err(error));
                    } else if page_has_pair || programmed == units {
                        verify(&mut n, phys, 5).unwrap();
                    } else {
                        let Err(MediaError::PairNotProgrammed { needs, .. }) = n.check_read(phys)
                        else {
                            panic!("{phys} is readable with the write pointer at {pointer}");
                        };
                        assert!(needs > pointer && needs.is_multiple_of(unit_sectors));
                    }
                }
            }
            erase(&mut n, C).unwrap();
            let phys = n.layout().phys(C, 0);
            assert_eq!(n.check_read(phys), Err(MediaError::Unwritten { phys, write_pointer: 0 }));
        }
    }
}

#[test]
fn earlier_data_stays_readable_during_a_program() {
    let mut n = nand();
    for unit in 0..4 {
        program(&mut n, C, unit, 5).unwrap();
    }
    let first = n.layout().phys(C, 0);
    verify(&mut n, first, 5).unwrap();
    n.begin_program(C, UnitInChunk(4)).unwrap();
    verify(&mut n, first, 5).unwrap();
    let phys = n.layout().phys(C, 4);
    assert!(matches!(n.check_read(phys), Err(MediaError::PairNotProgrammed { needs: 20, .. })));
}

#[test]
fn wear_counts_erases() {
    let mut n = nand();
    for _ in 0..3 {
        erase(&mut n, C).unwrap();
    }
    erase(&mut n, ChunkId(0)).unwrap();
    n.set_wear(ChunkId(1), 20).unwrap();
    let s = n.stats();
    assert_eq!((s.erases, s.wear.min, s.wear.max, s.wear.total), (4, 0, 20, 24));
    assert!((s.wear.mean - 1.0).abs() < 1e-12);
}

#[test]
fn memory_of_free_chunks_is_given_back_and_nothing_else() {
    let mut cfg = config();
    cfg.geometry.page_bytes = 8192;
    let mut n = Nand::create(cfg).unwrap();
    for chunk in [0, 1, 2, 5, 23] {
        program_all(&mut n, ChunkId(chunk), u64::from(chunk));
    }
    for chunk in [1, 23] {
        erase(&mut n, ChunkId(chunk)).unwrap();
    }
    n.release_free().unwrap();
    for chunk in [0, 2, 5] {
        for sector in 0..n.layout().sectors_per_chunk() {
            let phys = n.layout().phys(ChunkId(chunk), sector);
            verify(&mut n, phys, u64::from(chunk)).unwrap();
        }
    }
    program_all(&mut n, ChunkId(23), 9);
}

#[test]
fn impossible_media_are_refused() {
    let mut cfg = config();
    cfg.geometry.planes = 0;
    assert!(matches!(Nand::create(cfg), Err(media::OpenError::Geometry(_))));
    // Products that overflow 64 bits are refused like those that exceed the limit.
    let huge: [fn(&mut media::NandGeometry); 3] = [
        |g| (g.pages, g.planes) = (u32::MAX - 1, u32::MAX),
        |g| (g.pages, g.planes, g.page_bytes) = (u32::MAX - 1, u32::MAX, 1 << 31),
        |g| (g.channels, g.pus, g.chunks) = (u32::MAX, u32::MAX, u32::MAX),
    ];
    for change in huge {
        let mut cfg = config();
        cfg.cell = CellType::Slc;
        change(&mut cfg.geometry);
        assert!(matches!(Nand::create(cfg), Err(media::OpenError::Geometry(_))));
    }
    let mut cfg = config();
    cfg.errors.program_fail = 2.0;
    assert!(matches!(Nand::create(cfg), Err(media::OpenError::Errors(_))));
}
