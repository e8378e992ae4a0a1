//! Random and injected faults.

use media::{
    ChunkId, ChunkState, DataStore, InjectedFault, MediaError, Nand, NandConfig, Operation,
    PhysSector, UnitInChunk,
};
use nvme::PuId;

use super::fixture::{config, erase, nand, program, program_all, verify};

const C: ChunkId = ChunkId(7);

/// A medium with many chunks, which stores no data.
fn many() -> NandConfig {
    let mut cfg = config();
    cfg.geometry.chunks = 2000;
    cfg.data = DataStore::None;
    cfg
}

/// Whether `n` of `of` agrees with probability `p`, within five standard deviations.
fn is_about(n: u64, of: u64, p: f64) -> bool {
    let (mean, deviation) = (of as f64 * p, (of as f64 * p * (1.0 - p)).sqrt());
    (n as f64 - mean).abs() <= 5.0 * deviation
}

#[test]
fn chunks_are_bad_from_the_factory_at_the_given_rate_and_by_the_seed() {
    let bad = |seed, share| -> Vec<ChunkId> {
        let mut cfg = many();
        (cfg.seed, cfg.errors.factory_bad) = (seed, share);
        let n = Nand::create(cfg).unwrap();
        let offline = n.chunks().filter(|(_, i)| i.state == ChunkState::Offline);
        let bad: Vec<ChunkId> = offline.map(|(c, _)| c).collect();
        assert_eq!(n.stats().offline_chunks as usize, bad.len());
        bad
    };
    assert!(is_about(bad(1, 0.02).len() as u64, 8000, 0.02));
    assert_eq!(bad(1, 0.02), bad(1, 0.02));
    assert_ne!(bad(1, 0.02), bad(2, 0.02));
    assert_eq!((bad(1, 0.0).len(), bad(1, 1.0).len()), (0, 8000));
    let more = bad(1, 0.1);
    assert!(
        bad(1, 0.02).iter().all(|c| more.contains(c)),
        "chunks that are bad at a low rate are also bad at a higher rate"
    );
}

#[test]
fn a_bad_chunk_refuses_everything() {
    let mut cfg = config();
    cfg.errors.factory_bad = 1.0;
    let mut n = Nand::create(cfg).unwrap();
    let bad = |doing| MediaError::ChunkBad { chunk: C, doing };
    let phys = n.layout().phys(C, 0);
    assert_eq!(n.begin_program(C, UnitInChunk(0)), Err(bad(Operation::Program)));
    assert_eq!(n.stage_bytes(phys, &[0; 512]), Err(bad(Operation::Program)));
    assert_eq!(n.begin_erase(C), Err(bad(Operation::Erase)));
    assert_eq!(n.check_read(phys), Err(bad(Operation::Read)));
    assert_eq!(n.stats().offline_operations, 4);
}

#[test]
fn programs_and_erases_fail_at_the_given_rates() {
    let mut cfg = many();
    (cfg.errors.program_fail, cfg.errors.erase_fail) = (0.002, 0.05);
    let pages = cfg.geometry.planes;
    let mut n = Nand::create(cfg).unwrap();
    let (mut programs, mut failed) = (0, 0);
    for chunk in (0..8000).map(ChunkId) {
        for unit in 0..12 {
            n.begin_program(chunk, UnitInChunk(unit)).unwrap();
            programs += 1;
            if let Err(e) = n.complete_program(chunk, UnitInChunk(unit)) {
                assert_eq!(e, MediaError::ProgramFailed { chunk, unit: UnitInChunk(unit) });
                failed += 1;
                break;
            }
        }
    }
    let p = 1.0 - (1.0f64 - 0.002).powi(pages as i32);
    assert!(is_about(failed, programs, p), "{failed} of {programs}");
    let failed_erases = (0..8000).filter(|c| erase(&mut n, ChunkId(*c)).is_err()).count() as u64;
    assert!(is_about(failed_erases, 8000, 0.05), "{failed_erases}");
    let s = n.stats();
    assert_eq!((s.program_failures, s.programs), (failed, programs - failed));
    assert_eq!((s.erase_failures, s.erases), (failed_erases, 8000 - failed_erases));
    assert_eq!(u64::from(s.offline_chunks), failed_erases);
}

#[test]
fn failures_do_not_depend_on_the_order_of_operations() {
    let run = |order: &mut dyn Iterator<Item = u32>| -> Vec<bool> {
        let mut cfg = many();
        cfg.errors.program_fail = 0.1;
        let mut n = Nand::create(cfg).unwrap();
        let mut failed = vec![false; 8000];
        for i in order {
            n.begin_program(ChunkId(i), UnitInChunk(0)).unwrap();
            failed[i as usize] = n.complete_program(ChunkId(i), UnitInChunk(0)).is_err();
        }
        failed
    };
    assert_eq!(run(&mut (0..8000)), run(&mut (0..8000).rev()));
}

#[test]
fn a_failed_program_closes_the_chunk_and_leaves_the_rest_readable() {
    let mut n = nand();
    program(&mut n, C, 0, 3).unwrap();
    n.inject(InjectedFault::Program { chunk: C, unit: UnitInChunk(1) }).unwrap();
    program(&mut n, ChunkId(8), 0, 3).unwrap();
    assert_eq!(
        program(&mut n, C, 1, 3),
        Err(MediaError::ProgramFailed { chunk: C, unit: UnitInChunk(1) })
    );
    let info = n.chunk_info(C).unwrap();
    assert_eq!((info.state, info.write_pointer), (ChunkState::Closed, 4));
    for sector in 0..48 {
        let phys = n.layout().phys(C, sector);
        match sector {
            0..4 => verify(&mut n, phys, 3)
                .expect("readable although its paired page was never programmed"),
            4..8 => assert_eq!(n.check_read(phys), Err(MediaError::FailedUnit { phys })),
            _ => {
                let error = MediaError::Unwritten { phys, write_pointer: 4 };
                assert_eq!(n.check_read(phys), Err(error));
            }
        }
    }
    let closed = MediaError::ClosedEarly { chunk: C, write_pointer: 4 };
    let phys = n.layout().phys(C, 4);
    assert_eq!(n.begin_program(C, UnitInChunk(1)), Err(closed));
    assert_eq!(n.stage_bytes(phys, &[0; 512]), Err(closed));
    erase(&mut n, C).unwrap();
    program_all(&mut n, C, 4);
}

#[test]
fn forced_failures_come_about_as_often_as_forced() {
    let mut n = nand();
    n.inject(InjectedFault::NextProgram).unwrap();
    n.inject(InjectedFault::NextProgram).unwrap();
    for chunk in [0, 1] {
        assert!(program(&mut n, ChunkId(chunk), 0, 1).is_err());
    }
    program_all(&mut n, ChunkId(2), 1);
    n.inject(InjectedFault::NextErase).unwrap();
    assert_eq!(erase(&mut n, ChunkId(0)), Err(MediaError::EraseFailed { chunk: ChunkId(0) }));
    n.inject(InjectedFault::Erase { chunk: ChunkId(2) }).unwrap();
    erase(&mut n, ChunkId(1)).unwrap();
    assert!(erase(&mut n, ChunkId(2)).is_err());
    assert_eq!(n.chunk_info(ChunkId(2)).unwrap().state, ChunkState::Offline);
    assert!(n.begin_erase(ChunkId(2)).is_err());
    let s = n.stats();
    assert_eq!((s.program_failures, s.erase_failures, s.offline_chunks), (2, 2, 2));
}

#[test]
fn an_uncorrectable_sector_fails_alone_until_erased() {
    let mut n = nand();
    let phys = n.layout().phys(C, 9);
    n.inject(InjectedFault::Uncorrectable { phys }).unwrap();
    program_all(&mut n, C, 1);
    for sector in 0..48 {
        let here = n.layout().phys(C, sector);
        let read = verify(&mut n, here, 1);
        assert_eq!(read.is_err(), here == phys);
        if here == phys {
            assert_eq!(read, Err(MediaError::Uncorrectable { phys, bits: 41, ecc_bits: 40 }));
        }
    }
    assert_eq!((n.stats().uncorrectable_reads, n.stats().reads), (1, 47));
    erase(&mut n, C).unwrap();
    program_all(&mut n, C, 2);
    verify(&mut n, phys, 2).unwrap();
}

#[test]
fn a_chunk_that_goes_bad_takes_its_data_along() {
    let mut n = nand();
    program_all(&mut n, C, 1);
    n.begin_program(ChunkId(8), UnitInChunk(0)).unwrap();
    n.begin_erase(ChunkId(9)).unwrap();
    for chunk in [C, ChunkId(8), ChunkId(9)] {
        n.inject(InjectedFault::ChunkBad { chunk }).unwrap();
        assert_eq!(n.chunk_info(chunk).unwrap().state, ChunkState::Offline);
    }
    let phys = n.layout().phys(C, 0);
    assert!(matches!(n.check_read(phys), Err(MediaError::ChunkBad { .. })));
    assert!(matches!(
        n.complete_program(ChunkId(8), UnitInChunk(0)),
        Err(MediaError::ChunkBad { .. })
    ));
    assert!(matches!(
        n.complete_program(ChunkId(8), UnitInChunk(0)),
        Err(MediaError::NotBegun { .. })
    ));
    assert!(matches!(n.complete_erase(ChunkId(9)), Err(MediaError::ChunkBad { .. })));
    assert!(matches!(n.complete_erase(ChunkId(9)), Err(MediaError::NotBegun { .. })));
    program_all(&mut n, ChunkId(10), 1);
}

#[test]
fn a_failed_die_takes_its_chunks_and_no_others() {
    let mut n = nand();
    for chunk in 0..24 {
        program_all(&mut n, ChunkId(chunk), 1);
    }
    erase(&mut n, ChunkId(8)).unwrap();
    n.begin_program(ChunkId(8), UnitInChunk(0)).unwrap();
    n.inject(InjectedFault::DieFailure { pu: PuId(1) }).unwrap();
    let dead = |doing| MediaError::DieFailed { pu: PuId(1), doing };
    assert_eq!(n.complete_program(ChunkId(8), UnitInChunk(0)), Err(dead(Operation::Program)));
    assert_eq!(n.begin_program(ChunkId(8), UnitInChunk(0)), Err(dead(Operation::Program)));
    for chunk in (0..24).map(ChunkId) {
        let phys = n.layout().phys(chunk, 5);
        if n.layout().pu_of(chunk) == PuId(1) {
            assert_eq!(n.check_read(phys), Err(dead(Operation::Read)));
            assert_eq!(n.begin_erase(chunk), Err(dead(Operation::Erase)));
            assert_eq!(n.chunk_info(chunk).unwrap().state, ChunkState::Offline);
        } else {
            verify(&mut n, phys, 1).unwrap();
            erase(&mut n, chunk).unwrap();
        }
    }
    assert_eq!(n.stats().offline_chunks, 6);
}

#[test]
fn faults_of_things_that_do_not_exist_are_refused() {
    let mut n = nand();
    for fault in [
        InjectedFault::Program { chunk: ChunkId(24), unit: UnitInChunk(0) },
        InjectedFault::Program { chunk: C, unit: UnitInChunk(12) },
        InjectedFault::Erase { chunk: ChunkId(24) },
        InjectedFault::Uncorrectable { phys: PhysSector(24 * 48) },
        InjectedFault::ChunkBad { chunk: ChunkId(u32::MAX) },
        InjectedFault::DieFailure { pu: PuId(4) },
    ] {
        assert!(matches!(n.inject(fault), Err(MediaError::OutOfRange { .. })), "{fault:?}");
    }
}

#[test]
fn bit_errors_are_corrected_up_to_the_limit_and_grow_with_wear() {
    // 32768 bits per sector; ECC corrects 30 errors. Fresh: mean 1 error. At 3000 cycles: mean 20.
    let mut cfg = many();
    cfg.geometry.sector_bytes = 4096;
    cfg.geometry.page_bytes = 8192;
    cfg.errors.rber = 1.0 / 32768.0;
    (cfg.errors.rber_growth, cfg.errors.ecc_bits) = (20.0, 30);
    let mut n = Nand::create(cfg).unwrap();
    let mut read = |first: u32, wear: u32| -> (f64, u64, bool) {
        let before = n.stats();
        let mut high = false;
        for chunk in (first..first + 1000).map(ChunkId) {
            n.set_wear(chunk, wear).unwrap();
            for unit in 0..12 {
                n.begin_program(chunk, UnitInChunk(unit)).unwrap();
                n.complete_program(chunk, UnitInChunk(unit)).unwrap();
            }
            for sector in 0..48 {
                match n.check_read(n.layout().phys(chunk, sector)) {
                    Ok(info) => {
                        assert!(info.corrected_bits <= 30);
                        assert_eq!(info.high_ecc, info.corrected_bits > 22);
                        high |= info.high_ecc;
                    }
                    Err(MediaError::Uncorrectable { bits, ecc_bits, .. }) => {
                        assert!(bits > ecc_bits && ecc_bits == 30);
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
        let s = n.stats();
        let corrected = (s.corrected_bits - before.corrected_bits) as f64;
        (
            corrected / (s.reads - before.reads) as f64,
            s.uncorrectable_reads - before.uncorrectable_reads,
            high,
        )
    };
    let (mean, lost, high) = read(0, 0);
    assert!((mean - 1.0).abs() < 0.03 && lost == 0 && !high, "{mean} {lost}");
    let (_, lost, high) = read(1000, 3000);
    // P(Poisson(20) > 30) = 0.01348 (regularised incomplete gamma P(31, 20)).
    assert!(is_about(lost, 48_000, 0.01348) && high, "{lost}");
}

#[test]
fn reads_are_repeated_as_often_as_they_need_and_no_more_than_they_may() {
    // 32768 bits per sector, mean 56 errors; ECC corrects 40. Most reads need one retry, some two.
    let mut cfg = many();
    (cfg.geometry.chunks, cfg.geometry.sector_bytes, cfg.geometry.page_bytes) = (6, 4096, 8192);
    cfg.errors.rber = 56.0 / 32768.0;
    (cfg.errors.read_retries, cfg.errors.retry_error_fraction) = (3, 0.6);
    let mut n = Nand::create(cfg.clone()).unwrap();
    let mut none = Nand::create(NandConfig {
        errors: media::ErrorModel { read_retries: 0, ..cfg.errors },
        ..cfg
    })
    .unwrap();
    let mut seen = [0; 4];
    for chunk in (0..24).map(ChunkId) {
        for unit in 0..12 {
            for medium in [&mut n, &mut none] {
                medium.begin_program(chunk, UnitInChunk(unit)).unwrap();
                medium.complete_program(chunk, UnitInChunk(unit)).unwrap();
            }
        }
        for sector in 0..48 {
            let phys = n.layout().phys(chunk, sector);
            let before = n.stats();
            let needs = n.retries_needed(phys);
            assert_eq!(n.stats(), before, "a query must not change the statistics");
            seen[needs as usize] += 1;
            let info = n.check_read(phys).unwrap();
            assert_eq!(info.retries, needs);
            assert!(info.corrected_bits <= 40 && (info.raw_bits > 40) == (needs > 0));
            assert_eq!(n.check_read_within(phys, needs), Ok(info));
            if needs > 0 {
                let short = n.check_read_within(phys, needs - 1).unwrap_err();
                assert!(matches!(short, MediaError::Uncorrectable { .. }), "{short}");
            }
            // A medium without retries fails at once on the sectors that need one.
            assert_eq!(none.retries_needed(phys), 0);
            assert_eq!(none.check_read(phys).is_ok(), needs == 0);
        }
    }
    assert!(seen[0] > 0 && seen[1] > 500 && seen[2] > 0, "{seen:?}");
    assert_eq!(n.stats().retried_reads, 2 * (seen[1] + seen[2] + seen[3]));
    // An uncorrectable sector takes all retries; an unwritten sector takes none.
    let lost = n.layout().phys(C, 0);
    n.inject(InjectedFault::Uncorrectable { phys: lost }).unwrap();
    assert_eq!(n.retries_needed(lost), 3);
    assert!(n.check_read(lost).is_err());
    erase(&mut n, C).unwrap();
    assert_eq!(n.retries_needed(lost), 0, "an unwritten sector needs no retries");
    n.inject(InjectedFault::ChunkBad { chunk: C }).unwrap();
    assert_eq!(n.retries_needed(lost), 0, "a sector of a bad chunk needs no retries");
    assert_eq!(n.retries_needed(PhysSector(u32::MAX)), 0);
}

#[test]
fn repetitions_that_cannot_be_are_refused() {
    let mut cfg = config();
    cfg.errors.retry_error_fraction = 1.5;
    assert!(Nand::create(cfg.clone()).is_err());
    (cfg.errors.retry_error_fraction, cfg.errors.read_retries) = (0.5, 1001);
    assert!(Nand::create(cfg).is_err());
}

#[test]
fn an_injected_read_failure_fails_one_read() {
    let mut n = nand();
    program_all(&mut n, C, 3);
    let (phys, other) = (n.layout().phys(C, 5), n.layout().phys(C, 6));
    let fault = InjectedFault::Read { phys };
    n.inject(fault).unwrap();
    assert!(n.is_pending(&fault));
    let error = n.check_read(phys).unwrap_err();
    assert!(matches!(error, MediaError::Uncorrectable { .. }), "{error}");
    assert!(!n.is_pending(&fault));
    for phys in [phys, other] {
        verify(&mut n, phys, 3).unwrap();
    }
    assert_eq!(n.stats().uncorrectable_reads, 1);
    // An erase removes a failure that has not occurred.
    n.inject(fault).unwrap();
    erase(&mut n, C).unwrap();
    program_all(&mut n, C, 4);
    verify(&mut n, phys, 4).unwrap();
    let phys = PhysSector(n.layout().sector_count());
    assert!(n.inject(InjectedFault::Read { phys }).is_err());
}

#[test]
fn operations_fail_at_an_injected_rate_until_it_ends() {
    let run = |seed| {
        let mut cfg = many();
        cfg.seed = seed;
        let mut n = Nand::create(cfg).unwrap();
        for operation in [Operation::Program, Operation::Erase, Operation::Read] {
            n.inject(InjectedFault::Rate { operation, rate: 0.1 }).unwrap();
        }
        let mut failed = [Vec::new(), Vec::new(), Vec::new()];
        for c in (0..4000).map(ChunkId) {
            if program(&mut n, c, 0, 1).is_err() {
                failed[1].push(c);
            } else if program(&mut n, c, 1, 1).is_err() {
                failed[1].push(c);
                if n.check_read(n.layout().phys(c, 0)).is_err() {
                    failed[0].push(c);
                }
            }
            if erase(&mut n, c).is_err() {
                failed[2].push(c);
            }
        }
        for (operation, failed) in
            [Operation::Read, Operation::Program, Operation::Erase].into_iter().zip(&failed)
        {
            assert_eq!(n.failed_at_rate(operation), Some(failed.len() as u64));
            assert_eq!(n.end_failures(operation), failed.len() as u64);
            assert_eq!(n.failed_at_rate(operation), None);
        }
        for c in (4000..5000).map(ChunkId) {
            program_all(&mut n, c, 1);
            n.check_read(n.layout().phys(c, 0)).unwrap();
            erase(&mut n, c).unwrap();
        }
        failed
    };
    let first = run(1);
    assert!(is_about(first[2].len() as u64, 4000, 0.1), "{}", first[2].len());
    assert!(first[1].len() > 500 && first[0].len() > 10, "{:?}", first[0]);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn corrupted_data_reads_without_an_error_and_nothing_else_changes() {
    let mut n = nand();
    program_all(&mut n, C, 3);
    let (phys, other) = (n.layout().phys(C, 5), n.layout().phys(C, 6));
    let bytes = |n: &Nand| {
        let mut bytes = vec![0; 512];
        n.read_bytes(phys, &mut bytes);
        bytes
    };
    let before = bytes(&n);
    n.inject(InjectedFault::Corrupt { phys }).unwrap();
    n.check_read(phys).unwrap();
    assert_ne!(bytes(&n), before);
    verify(&mut n, other, 3).unwrap();
    n.inject(InjectedFault::Corrupt { phys }).unwrap();
    assert_eq!(bytes(&n), before, "twice gives the data back");
}

#[test]
fn a_corrupted_out_of_band_byte_changes_alone() {
    let mut n = nand();
    let phys = n.layout().phys(C, 5);
    program_all(&mut n, C, 3);
    let oob = |n: &Nand, offset: usize| {
        let mut bytes = [0; 16];
        n.oob_at(phys, offset, &mut bytes);
        bytes
    };
    let before = oob(&n, 0);
    n.inject(InjectedFault::CorruptOob { phys, offset: 9 }).unwrap();
    let after = oob(&n, 0);
    assert!((0..16).all(|i| (before[i] != after[i]) == (i == 9)), "{before:?} {after:?}");
    // From an offset on, bytes past the end are zeros.
    assert_eq!(oob(&n, 9)[..7], after[9..]);
    assert_eq!(oob(&n, 9)[7..], [0; 9]);
    verify(&mut n, phys, 3).unwrap();
    for (phys, offset) in [(phys, 16), (PhysSector(u32::MAX), 0)] {
        let error = n.inject(InjectedFault::CorruptOob { phys, offset }).unwrap_err();
        assert!(matches!(error, MediaError::OutOfRange { .. }), "{error}");
    }
}

#[test]
fn out_of_band_bytes_are_staged_in_two_parts() {
    let mut n = nand();
    let phys = n.layout().phys(C, 0);
    n.stage_bytes(phys, &[1; 512]).unwrap();
    n.set_oob(phys, &[2; 8]).unwrap();
    n.set_oob_at(phys, 8, &[3; 8]).unwrap();
    for (offset, bytes) in [(9, 8), (usize::MAX, 1)] {
        let error = n.set_oob_at(phys, offset, &vec![0; bytes]).unwrap_err();
        assert!(matches!(error, MediaError::OutOfRange { limit: 16, .. }), "{error}");
    }
    program_all(&mut n, ChunkId(1), 3);
    let written = n.layout().phys(ChunkId(1), 0);
    assert!(n.set_oob_at(written, 0, &[0]).is_err(), "the sector is programmed");
    let mut bytes = [0; 16];
    n.oob(phys, &mut bytes);
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn dies_fail_with_programs_and_erases_at_the_given_rate() {
    // Certain: the first operation takes the die, and all of its chunks.
    for is_erase in [false, true] {
        let mut cfg = config();
        cfg.errors.die_fail = 1.0;
        let mut n = Nand::create(cfg).unwrap();
        let pu = n.layout().pu_of(C);
        let error = match is_erase {
            true => {
                n.begin_erase(C).unwrap();
                n.complete_erase(C).unwrap_err()
            }
            false => {
                n.begin_program(C, UnitInChunk(0)).unwrap();
                n.complete_program(C, UnitInChunk(0)).unwrap_err()
            }
        };
        let doing = if is_erase { Operation::Erase } else { Operation::Program };
        assert_eq!(error, MediaError::DieFailed { pu, doing });
        let offline = |n: &Nand| {
            let offline = n.chunks().filter(|(_, i)| i.state == ChunkState::Offline);
            offline.map(|(chunk, _)| n.layout().pu_of(chunk)).collect::<Vec<_>>()
        };
        assert_eq!(offline(&n), vec![pu; n.layout().chunks_per_pu() as usize]);
        assert!(n.begin_erase(C).is_err() && n.begin_program(C, UnitInChunk(0)).is_err());
        assert_eq!(n.stats().program_failures + n.stats().erase_failures, 1);
    }
    // Rare: about as many operations succeed before the first die fails, whatever its seed.
    let lifetimes: u64 = (0..200)
        .map(|seed| {
            let mut cfg = config();
            (cfg.seed, cfg.errors.die_fail, cfg.data) = (seed, 0.01, DataStore::None);
            let mut n = Nand::create(cfg).unwrap();
            let mut operations = 0;
            loop {
                n.begin_erase(C).unwrap();
                match n.complete_erase(C) {
                    Ok(()) => operations += 1,
                    Err(_) => return operations,
                }
            }
        })
        .sum();
    assert!((80..120).contains(&(lifetimes / 200)), "{lifetimes}");
    // Without the rate nothing fails, and with it the other faults are those of before.
    let mut cfg = config();
    cfg.errors.die_fail = -0.1;
    assert!(Nand::create(cfg).is_err());
}
