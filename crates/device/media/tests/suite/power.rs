//! Power cuts in every state of a chunk.

use media::{
    ChunkId, ChunkState, InjectedFault, MediaError, Nand, Operation, PowerLossReport, UnitInChunk,
};
use nvme::PuId;

use super::fixture::{config, erase, nand, program, program_all, stage, verify};

const C: ChunkId = ChunkId(7);

#[test]
fn a_cut_between_operations_changes_nothing() {
    let mut n = nand();
    program_all(&mut n, ChunkId(0), 1);
    for unit in 0..5 {
        program(&mut n, C, unit, 1).unwrap();
    }
    stage(&mut n, C, 5, 1).unwrap();
    let before: Vec<_> = n.chunks().collect();
    assert_eq!(n.power_cut(), PowerLossReport::default());
    assert_eq!(n.chunks().collect::<Vec<_>>(), before);
    for sector in 0..8 {
        let phys = n.layout().phys(C, sector);
        verify(&mut n, phys, 1).unwrap();
    }
    program(&mut n, C, 5, 1).expect("the unit can be staged again after the cut");
    assert_eq!(n.stats().power_cuts, 1);
}

#[test]
fn a_cut_during_a_program_tears_its_unit_wherever_it_is() {
    for unit in 0..12 {
        let mut n = nand();
        for earlier in 0..unit {
            program(&mut n, C, earlier, 1).unwrap();
        }
        stage(&mut n, C, unit, 1).unwrap();
        n.begin_program(C, UnitInChunk(unit)).unwrap();
        n.begin_program(ChunkId(0), UnitInChunk(0)).unwrap();
        assert_eq!(n.power_cut(), PowerLossReport { torn_units: 2, interrupted_erases: 0 });
        let info = n.chunk_info(C).unwrap();
        assert_eq!(
            info.write_pointer,
            4 * (unit + 1),
            "the write pointer must include the torn unit"
        );
        assert_eq!(info.state == ChunkState::Closed, unit == 11);
        let doing = Operation::Program;
        let not_begun = Err(MediaError::NotBegun { chunk: C, doing });
        assert_eq!(
            n.complete_program(C, UnitInChunk(unit)),
            not_begun,
            "the power cut must drop the operation"
        );
        for later in unit + 1..12 {
            program(&mut n, C, later, 2).expect("the chunk accepts later units");
        }
        for sector in 0..48 {
            let phys = n.layout().phys(C, sector);
            if sector / 4 == unit {
                assert_eq!(n.check_read(phys), Err(MediaError::Torn { phys }));
            } else {
                verify(&mut n, phys, if sector / 4 < unit { 1 } else { 2 }).unwrap();
            }
        }
        let s = n.stats();
        assert_eq!((s.torn_units, s.torn_reads, s.reads), (2, 4, 44));
        erase(&mut n, C).unwrap();
        program_all(&mut n, C, 3);
        let phys = n.layout().phys(C, unit * 4);
        verify(&mut n, phys, 3).expect("the chunk is readable after an erase");
    }
}

#[test]
fn a_chunk_can_be_torn_again_and_again() {
    let mut n = nand();
    for unit in 0..12 {
        stage(&mut n, C, unit, 1).unwrap();
        n.begin_program(C, UnitInChunk(unit)).unwrap();
        n.power_cut();
    }
    for sector in 0..48 {
        let phys = n.layout().phys(C, sector);
        assert_eq!(n.check_read(phys), Err(MediaError::Torn { phys }));
    }
    // The marks of neighboring chunks are independent.
    program_all(&mut n, ChunkId(6), 1);
    program_all(&mut n, ChunkId(8), 1);
    for chunk in [6, 8] {
        for sector in 0..48 {
            let phys = n.layout().phys(ChunkId(chunk), sector);
            verify(&mut n, phys, 1).unwrap();
        }
    }
}

#[test]
fn a_cut_during_an_erase_leaves_a_chunk_to_be_erased_again() {
    for programmed in [0, 5, 12] {
        let mut n = nand();
        for unit in 0..programmed {
            program(&mut n, C, unit, 1).unwrap();
        }
        n.begin_erase(C).unwrap();
        assert_eq!(n.power_cut(), PowerLossReport { torn_units: 0, interrupted_erases: 1 });
        let info = n.chunk_info(C).unwrap();
        assert_eq!((info.state, info.write_pointer, info.wear), (ChunkState::Closed, 48, 1));
        let interrupted = |doing| MediaError::EraseInterrupted { chunk: C, doing };
        for sector in 0..48 {
            let phys = n.layout().phys(C, sector);
            assert_eq!(n.check_read(phys), Err(interrupted(Operation::Read)));
        }
        let phys = n.layout().phys(C, 0);
        assert_eq!(n.begin_program(C, UnitInChunk(0)), Err(interrupted(Operation::Program)));
        assert_eq!(n.stage_bytes(phys, &[0; 512]), Err(interrupted(Operation::Program)));
        n.begin_erase(C).unwrap();
        n.power_cut();
        assert!(
            n.check_read(phys).is_err(),
            "a power cut during the erase leaves the chunk unreadable"
        );
        erase(&mut n, C).unwrap();
        assert_eq!(n.chunk_info(C).unwrap().wear, 3);
        program_all(&mut n, C, 2);
        verify(&mut n, phys, 2).unwrap();
    }
}

#[test]
fn what_is_broken_stays_broken() {
    let mut n = nand();
    let failed = ChunkId(1);
    program(&mut n, failed, 0, 1).unwrap();
    n.inject(InjectedFault::NextProgram).unwrap();
    program(&mut n, failed, 1, 1).unwrap_err();
    let sector = n.layout().phys(ChunkId(2), 3);
    program_all(&mut n, ChunkId(2), 1);
    n.inject(InjectedFault::Uncorrectable { phys: sector }).unwrap();
    n.begin_program(ChunkId(3), UnitInChunk(0)).unwrap();
    n.inject(InjectedFault::ChunkBad { chunk: ChunkId(3) }).unwrap();
    n.begin_erase(ChunkId(18)).unwrap();
    n.inject(InjectedFault::DieFailure { pu: PuId(3) }).unwrap();
    n.inject(InjectedFault::NextErase).unwrap();
    assert_eq!(
        n.power_cut(),
        PowerLossReport::default(),
        "no operation on a working chunk was in flight"
    );
    assert!(matches!(n.begin_program(failed, UnitInChunk(1)), Err(MediaError::ClosedEarly { .. })));
    assert!(matches!(n.check_read(sector), Err(MediaError::Uncorrectable { .. })));
    assert!(matches!(n.begin_erase(ChunkId(3)), Err(MediaError::ChunkBad { .. })));
    assert!(matches!(n.begin_erase(ChunkId(18)), Err(MediaError::DieFailed { pu: PuId(3), .. })));
    assert!(matches!(n.complete_erase(ChunkId(18)), Err(MediaError::NotBegun { .. })));
    assert!(matches!(erase(&mut n, C), Err(MediaError::EraseFailed { .. })));
}

#[test]
fn a_one_shot_program_is_torn_as_a_whole() {
    let mut cfg = config();
    (cfg.cell, cfg.one_shot, cfg.paired_page_distance) = (media::CellType::Tlc, true, 0);
    let mut n = Nand::create(cfg).unwrap();
    program(&mut n, C, 0, 1).unwrap();
    stage(&mut n, C, 1, 1).unwrap();
    n.begin_program(C, UnitInChunk(1)).unwrap();
    n.power_cut();
    for sector in 0..24 {
        let phys = n.layout().phys(C, sector);
        assert_eq!(verify(&mut n, phys, 1).is_ok(), sector < 12);
    }
}
