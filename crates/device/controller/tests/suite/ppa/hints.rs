//! Hints of vector commands: exact completion times. Hints change nothing but times.

// guarantee: M-12

use controller::{DriveConfig, OpenChannelConfig, PuScheduling, SuspendConfig};
use media::{InjectedFault, MediaConfig};
use nvme::PuId;
use nvme::{PlaneMode, Ppa, Sqe, Status, VectorHints, VendorExtensions};
use rng::Rng;
use time::Nanos;

use super::harness::{ERASE, Harness, PROGRAM, READ, SECTOR, drive, planes, seeds};
use crate::common::open_channel_host::{DATA, OTHER_LIST, OpenChannelHost};

const NO_HINT: VectorHints = VectorHints::NONE;

fn mode(planes: PlaneMode) -> VectorHints {
    VectorHints { planes, ..VectorHints::NONE }
}

const SUSPEND: VectorHints = VectorHints { suspend: true, ..VectorHints::NONE };
const LIMITED: VectorHints = VectorHints { limited_retry: true, ..VectorHints::NONE };

fn timed(d: &mut OpenChannelHost, sqe: Sqe, hints: VectorHints) -> (Status, Nanos) {
    let (ended, time) = d.run(sqe.with_hints(hints));
    (ended.status, time)
}

#[test]
fn planes_are_programmed_read_and_erased_a_few_at_a_time() {
    for (count, hint, rounds) in [
        (4, PlaneMode::Auto, 1),
        (4, PlaneMode::Single, 4),
        (4, PlaneMode::Dual, 2),
        (4, PlaneMode::Quad, 1),
        (3, PlaneMode::Dual, 2),
        (2, PlaneMode::Single, 2),
        (2, PlaneMode::Dual, 1),
        (1, PlaneMode::Single, 1),
    ] {
        let mut r = Harness::new(drive(planes(count)));
        let all = r.unit(0, 0);
        let d = &mut r.open;
        let sectors = u64::from(count);
        let write = d.with_data(Sqe::vector_write(1, d.list(&all)), all.len());
        let wrote = timed(d, write, mode(hint));
        let what = format!("{count} planes, {hint:?}");
        assert_eq!(wrote, (Status::SUCCESS, SECTOR * sectors + PROGRAM * rounds), "{what}");
        let read = d.with_data(Sqe::vector_read(1, d.list(&all)), all.len());
        let found = timed(d, read, mode(hint));
        assert_eq!(found, (Status::SUCCESS, READ * rounds + SECTOR * sectors), "{what}");
        // One plane is one array operation, whatever the plane mode.
        let one = d.with_data(Sqe::vector_read(1, d.list(&all[..1])), 1);
        assert_eq!(timed(d, one, mode(hint)), (Status::SUCCESS, READ + SECTOR), "{what}");
        let reset = Sqe::vector_reset(1, d.list(&all[..1]));
        assert_eq!(timed(d, reset, mode(hint)), (Status::SUCCESS, ERASE * rounds), "{what}");
        let hinted = if hint == PlaneMode::Auto { 0 } else { 4 };
        assert_eq!(d.drive.stats().hints.plane_modes, hinted);
        let busy = d.drive.stats().pus[0];
        assert_eq!((busy.program, busy.erase), (PROGRAM * rounds, ERASE * rounds), "{what}");
    }
}

#[test]
fn copies_take_their_planes_as_they_are_told() {
    let mut r = Harness::new(drive(planes(4)));
    r.open.fill(0, 0, 0, 1);
    let (from, to) = (r.unit(0, 0), r.unit(1, 0));
    let d = &mut r.open;
    let copy = Sqe::vector_copy(1, d.list(&from), d.list_at(OTHER_LIST, &to));
    let took = timed(d, copy, mode(PlaneMode::Dual));
    // The copy reads and programs, with transfers in both directions.
    let time = READ * 2 + SECTOR * 4 + SECTOR * 4 + PROGRAM * 2;
    assert_eq!(took, (Status::SUCCESS, time));
}

#[test]
fn more_planes_than_there_are_and_reserved_bits_are_refused_by_name() {
    let mut r = Harness::new(drive(planes(2)));
    assert_eq!(r.open.open_channel().extensions.planes.get(), 2);
    let all = r.unit(0, 0);
    for bits in [0x2, 0x3, 0x5, 0x7, 0x8, 0x100, 0x200] {
        let d = &mut r.open;
        let lists = [
            d.with_data(Sqe::vector_write(1, d.list(&all)), all.len()),
            d.with_data(Sqe::vector_read(1, d.list(&all)), all.len()),
            Sqe::vector_reset(1, d.list(&all[..1])),
        ];
        for mut sqe in lists {
            sqe.cdw12 |= bits << 16;
            let (status, time) = timed_raw(&mut r.open, sqe);
            assert!(status.is(Status::INVALID_FIELD), "{bits:#x}: {status}");
            assert_eq!(time, Nanos::ZERO);
            let error = r.last_error();
            assert!(error.status().is(Status::INVALID_FIELD));
            assert_eq!(
                error.location.get(),
                50,
                "the error location is byte 50, the start of the hints"
            );
        }
    }
    // Nothing was written, and an error of another field does not point to the hints.
    assert_eq!(r.open.write(&all).status, Status::SUCCESS);
    let half = r.unit(5, 0)[..1].to_vec();
    assert_eq!(r.open.write(&half).status, Status::INVALID_FIELD);
    assert_eq!(r.last_error().location.get(), 0xffff);
}

fn timed_raw(d: &mut OpenChannelHost, sqe: Sqe) -> (Status, Nanos) {
    let (ended, time) = d.run(sqe);
    (ended.status, time)
}

#[test]
fn reads_go_between_the_planes_of_a_program_where_reads_go_first() {
    for (pu_policy, waits) in [
        (PuScheduling::ReadPriority { suspend: None }, PROGRAM - Nanos(100_000)),
        (PuScheduling::Fifo, PROGRAM * 4 - Nanos(100_000)),
    ] {
        let mut r = Harness::new(DriveConfig { pu_scheduling: pu_policy, ..drive(planes(4)) });
        r.open.fill(0, 0, 0, 1);
        let all = r.unit(1, 0);
        let d = &mut r.open;
        let start = d.now;
        let write = d.with_data(Sqe::vector_write(1, d.list(&all)), 4);
        d.send(write.with_hints(mode(PlaneMode::Single)), 1);
        let begun = start + SECTOR * 4;
        d.run_to(begun + Nanos(100_000));
        let ppa = d.ppa(0, 0, 0, 0);
        let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
        d.send(read, 2);
        let mut ended: Vec<_> = d.wait().iter().map(|e| (e.user, e.at)).collect();
        ended.sort_unstable();
        let read_at = begun + Nanos(100_000) + waits + READ + SECTOR;
        let between = if pu_policy == PuScheduling::Fifo { Nanos::ZERO } else { READ + SECTOR };
        assert_eq!(ended, [(1, begun + PROGRAM * 4 + between), (2, read_at)]);
        assert_eq!(d.drive.stats().suspensions, 0, "no operation may be suspended");
    }
}

const COSTS: SuspendConfig =
    SuspendConfig { suspend: Nanos(7_000), resume: Nanos(3_000), max_per_operation: 1 };

fn suspending(costs: Option<SuspendConfig>) -> DriveConfig {
    let open_channel = OpenChannelConfig { suspend_on_hint: costs, ..OpenChannelConfig::default() };
    DriveConfig { open_channel, ..drive(planes(1)) }
}

/// Sends reads during a program; returns the completion times relative to the start of the program.
fn reads_into_a_program(
    config: DriveConfig,
    reads: &[(u64, VectorHints)],
) -> (OpenChannelHost, Vec<(u64, Nanos)>) {
    let mut r = Harness::new(config);
    r.open.fill(0, 0, 0, 1);
    let all = r.unit(1, 0);
    let mut d = r.open;
    let begun = d.now + SECTOR;
    let write = d.with_data(Sqe::vector_write(1, d.list(&all)), 1);
    d.send(write, 0);
    for (i, (at, hints)) in reads.iter().enumerate() {
        d.run_to(begun + Nanos(*at));
        let ppa = d.ppa(0, 0, 0, 0);
        let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
        d.send(read.with_hints(*hints), i as u64 + 1);
    }
    let mut ended: Vec<_> = d.wait().iter().map(|e| (e.user, e.at.since(begun))).collect();
    ended.sort_unstable();
    (d, ended)
}

#[test]
fn a_hinted_read_suspends_a_program_on_a_drive_that_works_in_order() {
    let read = COSTS.suspend + READ + SECTOR;
    let (d, ended) = reads_into_a_program(suspending(Some(COSTS)), &[(100_000, SUSPEND)]);
    assert_eq!(ended, [(0, PROGRAM + read + COSTS.resume), (1, Nanos(100_000) + read)]);
    let stats = d.drive.stats();
    assert_eq!((stats.suspensions, stats.hints.suspend, stats.hints.suspend_ignored), (1, 1, 0));
    assert!(d.open_channel().extensions.has(VendorExtensions::SUSPEND));

    // Without the hint the read waits.
    let (d, ended) = reads_into_a_program(suspending(Some(COSTS)), &[(100_000, NO_HINT)]);
    assert_eq!(ended, [(0, PROGRAM), (1, PROGRAM + READ + SECTOR)]);
    assert_eq!(d.drive.stats().suspensions, 0);
}

#[test]
fn suspension_is_a_hint_to_drives_that_cannot() {
    let (d, ended) = reads_into_a_program(suspending(None), &[(100_000, SUSPEND)]);
    assert_eq!(ended, [(0, PROGRAM), (1, PROGRAM + READ + SECTOR)]);
    let hints = d.drive.stats().hints;
    assert_eq!((hints.suspend, hints.suspend_ignored), (0, 1));
    assert!(!d.open_channel().extensions.has(VendorExtensions::SUSPEND));
    // The hint has no effect on commands other than reads.
    let mut r = Harness::new(suspending(Some(COSTS)));
    let all = r.unit(0, 0);
    let write = r.open.with_data(Sqe::vector_write(1, r.open.list(&all)), 1);
    assert_eq!(timed(&mut r.open, write, SUSPEND), (Status::SUCCESS, SECTOR + PROGRAM));
    assert_eq!(r.open.drive.stats().hints.suspend_ignored, 1);
}

#[test]
fn an_operation_is_suspended_as_often_as_may_be_and_then_in_order() {
    let read = COSTS.suspend + READ + SECTOR;
    // The second read must not suspend again: it waits with the third, which has no hint.
    let reads = [(100_000, SUSPEND), (300_000, SUSPEND), (310_000, NO_HINT)];
    let (_, ended) = reads_into_a_program(suspending(Some(COSTS)), &reads);
    let programmed = PROGRAM + read + COSTS.resume;
    let one = READ + SECTOR;
    assert_eq!(
        ended,
        [
            (0, programmed),
            (1, Nanos(100_000) + read),
            (2, programmed + one),
            (3, programmed + one * 2)
        ]
    );
    // A read that arrives while another one occupies the array continues the suspension.
    let reads = [(100_000, SUSPEND), (120_000, SUSPEND)];
    let (d, ended) = reads_into_a_program(suspending(Some(COSTS)), &reads);
    let first = Nanos(100_000) + read;
    let both = [(0, PROGRAM + read + one + COSTS.resume), (1, first), (2, first + one)];
    assert_eq!(ended, both);
    assert_eq!(d.drive.stats().suspensions, 1);
}

#[test]
fn a_policy_that_suspends_anyway_has_its_own_costs() {
    let other = SuspendConfig { suspend: Nanos(1_000), ..COSTS };
    let config = DriveConfig {
        pu_scheduling: PuScheduling::ReadPriority { suspend: Some(other) },
        ..suspending(Some(COSTS))
    };
    let (_, ended) = reads_into_a_program(config, &[(100_000, SUSPEND)]);
    assert_eq!(ended[1], (1, Nanos(100_000) + Nanos(1_000) + READ + SECTOR));
    // Reads have priority, but only hints suspend.
    let config = DriveConfig {
        pu_scheduling: PuScheduling::ReadPriority { suspend: None },
        ..suspending(Some(COSTS))
    };
    let reads = [(100_000, NO_HINT), (200_000, SUSPEND)];
    let (d, ended) = reads_into_a_program(config, &reads);
    let first = Nanos(200_000) + COSTS.suspend + READ + SECTOR;
    assert_eq!(
        ended[1..],
        [(1, first), (2, first + READ + SECTOR)],
        "the reads must complete in order"
    );
    assert_eq!(d.drive.stats().suspensions, 1);
}

/// A drive whose sectors have some 80 bit errors. ECC corrects 40, and a retry leaves half, so that
/// one or two retries are needed.
fn worn(retries: u32) -> DriveConfig {
    let mut nand = planes(1);
    nand.errors.rber = 76.0 / 32768.0;
    (nand.errors.ecc_bits, nand.errors.read_retries) = (40, retries);
    drive(nand)
}

#[test]
fn reads_are_repeated_and_with_limited_retry_fail_fast() {
    let mut r = Harness::new(worn(5));
    let extensions = r.open.open_channel().extensions;
    assert!(extensions.has(VendorExtensions::LIMITED_RETRY));
    assert_eq!(extensions.read_retries.get(), 5);
    r.open.fill(0, 0, 0, 32);
    let (mut seen, mut repeated) = ([0u64; 6], 0);
    for sector in 0..32 {
        let d = &mut r.open;
        let ppa = d.ppa(0, 0, 0, sector);
        let phys = media::PhysSector(sector);
        let needs = d.drive.nand_mut().unwrap().retries_needed(phys);
        seen[needs as usize] += 1;
        let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
        let time = READ * (1 + u64::from(needs)) + SECTOR;
        assert_eq!(timed(d, read, NO_HINT), (Status::SUCCESS, time));
        repeated += u64::from(needs);
        let status = if needs > 0 { Status::UNRECOVERED_READ } else { Status::SUCCESS };
        assert_eq!(
            timed(d, read, LIMITED),
            (status, READ + SECTOR),
            "a limited-retry read makes only one attempt"
        );
        // Reads by logical block take as long.
        let mut plain = d.with_data(Sqe::read(1, ppa.0, 1), 1);
        assert_eq!(timed_raw(d, plain), (Status::SUCCESS, time));
        repeated += u64::from(needs);
        plain.set_limited_retry();
        assert_eq!(timed_raw(d, plain), (status, READ + SECTOR));
    }
    assert!(seen[1] > 10 && seen[2] > 0, "{seen:?}");
    let stats = r.open.drive.stats();
    assert_eq!(stats.read_retries, repeated);
    assert_eq!(stats.hints.limited_retry, 64);
    assert_eq!(stats.hints.retries_forgone, 2 * (32 - seen[0]));
    assert_eq!(stats.media.unwrap().retried_reads, 2 * (32 - seen[0]));
    r.open.drive.reset_stats();
    assert_eq!(r.open.drive.stats().read_retries, 0);
}

#[test]
fn lost_data_takes_all_repetitions_and_drives_without_take_none() {
    for (retries, tried) in [(0, 1), (3, 4)] {
        let mut nand = planes(1);
        nand.errors.read_retries = retries;
        let mut r = Harness::new(drive(nand));
        r.open.fill(0, 0, 0, 1);
        let d = &mut r.open;
        let lost = InjectedFault::Uncorrectable { phys: media::PhysSector(0) };
        d.drive.nand_mut().unwrap().inject(lost).unwrap();
        let ppa = d.ppa(0, 0, 0, 0);
        let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
        assert_eq!(timed(d, read, NO_HINT), (Status::UNRECOVERED_READ, READ * tried + SECTOR));
        assert_eq!(timed(d, read, LIMITED), (Status::UNRECOVERED_READ, READ + SECTOR));
        let absent = d.ppa(0, 0, 0, 1);
        let read = d.with_data(Sqe::vector_read(1, d.list(&[absent])), 1);
        assert_eq!(timed(d, read, NO_HINT), (Status::UNWRITTEN, READ + SECTOR));
    }
}

#[test]
fn the_page_register_has_what_repetitions_have_got() {
    let mut config = worn(5);
    config.page_register = true;
    let mut r = Harness::new(config);
    r.open.fill(0, 0, 0, 8);
    let d = &mut r.open;
    let needs = |d: &mut OpenChannelHost, s| {
        d.drive.nand_mut().unwrap().retries_needed(media::PhysSector(s))
    };
    let worst = (0..8).find(|s| needs(d, *s) > 0).unwrap();
    let ppa = d.ppa(0, 0, 0, worst);
    let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
    let time = READ * (1 + u64::from(needs(d, worst))) + SECTOR;
    assert_eq!(timed(d, read, LIMITED).0, Status::UNRECOVERED_READ);
    // The register holds the page as the first attempt read it, which is uncorrectable.
    assert_eq!(timed(d, read, NO_HINT), (Status::SUCCESS, time));
    // Now it holds the page as the last retry read it, which is correctable without retries.
    assert_eq!(timed(d, read, LIMITED), (Status::SUCCESS, SECTOR));
    assert_eq!(timed(d, read, NO_HINT), (Status::SUCCESS, SECTOR));
    assert_eq!(d.drive.stats().register_hits, 2);
}

#[test]
fn limited_retry_reaches_a_drive_that_manages_its_flash() {
    let config = worn(5);
    let MediaConfig::Nand(nand) = config.media else { unreachable!() };
    let mut config = crate::common::drive(nand);
    config.write_buffer = controller::WriteBuffer::None;
    let mut d = OpenChannelHost::new(config);
    for lba in 0..8 {
        let write = d.with_data(Sqe::write(1, lba, 1, false), 1);
        assert_eq!(d.run(write).0.status, Status::SUCCESS);
    }
    let mut failed = 0;
    for lba in 0..8 {
        let mut read = d.with_data(Sqe::read(1, lba, 1), 1);
        assert_eq!(d.run(read).0.status, Status::SUCCESS);
        read.set_limited_retry();
        let status = d.run(read).0.status;
        assert!(status.is_success() || status.is(Status::UNRECOVERED_READ), "{status}");
        failed += u64::from(!status.is_success());
    }
    assert!(failed > 4, "{failed}");
    assert_eq!(d.drive.stats().hints.retries_forgone, failed);
}

/// Runs the same random commands with hints and without: only times differ.
fn hints_change_only_times(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut nand = planes(1 + rng.below(4) as u32);
    (nand.geometry.pus, nand.geometry.chunks, nand.geometry.pages) = (2, 4, 6);
    (nand.errors.program_fail, nand.errors.erase_fail) = (0.01, 0.02);
    let costs = rng.chance(0.7).then_some(COSTS);
    let pu_policy = match rng.below(3) {
        0 => PuScheduling::Fifo,
        1 => PuScheduling::ReadPriority { suspend: None },
        _ => PuScheduling::ReadPriority { suspend: Some(COSTS) },
    };
    let open_channel = OpenChannelConfig { suspend_on_hint: costs, ..OpenChannelConfig::default() };
    let config = DriveConfig { pu_scheduling: pu_policy, open_channel, ..drive(nand.clone()) };
    let mut harnesses = [Harness::new(config.clone()), Harness::new(config)];
    let unit = harnesses[0].open.open_channel().geometry.ws_min;
    let last = harnesses[0].open.open_channel().geometry.sectors - 1;
    let most = [PlaneMode::Single, PlaneMode::Dual, PlaneMode::Quad];
    for step in 0..60u64 {
        let (pu, chunk) = (rng.below(2) as u32, rng.below(4) as u32);
        let fitting = most.iter().filter(|m| m.planes() <= Some(nand.geometry.planes)).count();
        let hints = VectorHints {
            planes: match rng.below(2) {
                0 => PlaneMode::Auto,
                _ => most[rng.below(fitting as u64) as usize],
            },
            suspend: rng.chance(0.5),
            // The medium has no bit errors.
            limited_retry: rng.chance(0.5),
        };
        let (what, first) = (rng.below(6), rng.below(6) as u32 * unit);
        // The second host sends no hints.
        let mut results = Vec::new();
        for (i, harness) in harnesses.iter_mut().enumerate() {
            let d = &mut harness.open;
            let hints = if i == 0 { hints } else { VectorHints::NONE };
            let layout = *d.drive.nand_mut().unwrap().layout();
            let at = d.drive.nand_mut().unwrap().chunk_info(layout.chunk(PuId(pu), chunk)).unwrap();
            let first = if what < 3 { at.write_pointer } else { first };
            let ppas: Vec<Ppa> =
                (first..first + unit).map(|s| d.ppa(0, pu, chunk, s.min(last))).collect();
            let sqe = match what {
                0..=2 => {
                    d.memory.fill(DATA, unit as usize * 4096, step as u8);
                    d.with_data(Sqe::vector_write(1, d.list(&ppas)), ppas.len())
                }
                3 | 4 => {
                    d.memory.fill(DATA, unit as usize * 4096, 0xee);
                    d.with_data(Sqe::vector_read(1, d.list(&ppas)), ppas.len())
                }
                _ => Sqe::vector_reset(1, d.list(&ppas[..1])),
            };
            let (ended, _) = d.run(sqe.with_hints(hints));
            let mut data = vec![0; unit as usize * 4096];
            d.memory.read(DATA, &mut data);
            let info = d.drive.nand_mut().unwrap().chunk_info(layout.chunk(PuId(pu), chunk));
            results.push((ended.status, ended.result, info, data));
        }
        assert!(results[0] == results[1], "step {step}: {:?}", hints);
    }
}

#[test]
fn hints_change_times_and_nothing_else() {
    seeds(60, hints_change_only_times);
}

#[test]
fn a_hinted_read_uses_the_array_while_it_waits_for_a_programs_data() {
    let costs = OpenChannelConfig { suspend_on_hint: Some(COSTS), ..OpenChannelConfig::default() };
    for (hints, ahead) in [(SUSPEND, true), (NO_HINT, false)] {
        let mut r = Harness::new(DriveConfig { open_channel: costs, ..drive(planes(4)) });
        r.open.fill(0, 0, 0, 1);
        let all = r.unit(1, 0);
        let d = &mut r.open;
        let start = d.now;
        let write = d.with_data(Sqe::vector_write(1, d.list(&all)), 4);
        d.send(write, 1);
        d.run_to(start + SECTOR);
        let ppa = d.ppa(0, 0, 0, 0);
        let read = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
        d.send(read.with_hints(hints), 2);
        let mut ended: Vec<_> = d.wait().iter().map(|e| (e.user, e.at.since(start))).collect();
        ended.sort_unstable();
        let one = READ + SECTOR;
        let expected = match ahead {
            true => [(1, SECTOR + one + PROGRAM), (2, SECTOR + one)],
            false => [(1, SECTOR * 4 + PROGRAM), (2, SECTOR * 4 + PROGRAM + one)],
        };
        assert_eq!(ended, expected);
        assert_eq!(d.drive.stats().suspensions, 0, "no operation was in progress");
    }
}
