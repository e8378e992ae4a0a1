//! Faults on demand: each kind has the effect on hosts that a real drive shows, and no other.

// guarantee: B-63

use controller::{
    Controller, CorruptedPart, DriveConfig, Fault, FaultError, FaultRecord, FaultScope,
    FaultSector, PersonalityKind, WriteBuffer,
};
use media::{DataStore, MediaConfig, Operation};
use nvme::{PuId, Sqe, Status};
use rng::Rng;
use time::Nanos;

use crate::common;
use crate::common::open_channel_host::{DATA, OpenChannelHost, open_channel};

/// Sectors that tests write.
const SECTORS: u64 = 256;

const MS: u64 = 1_000_000;

const NONE: [u64; 0] = [];

fn memory() -> media::NandConfig {
    media::NandConfig { data: DataStore::Memory, ..common::nand() }
}

/// A drive with its own FTL, whose writes complete on the media.
fn block() -> DriveConfig {
    DriveConfig { write_buffer: WriteBuffer::None, ..common::drive(memory()) }
}

struct Host(OpenChannelHost);

impl Host {
    /// Returns the host of a drive whose first sectors are written and on the media.
    fn new(config: DriveConfig) -> Host {
        let mut host = Host(OpenChannelHost::new(config));
        for lba in 0..SECTORS {
            assert_eq!(host.write(lba), Status::SUCCESS);
        }
        assert_eq!(host.0.run(Sqe::flush(1)).0.status, Status::SUCCESS);
        host
    }

    fn inject(&mut self, fault: Fault) -> Result<(), FaultError> {
        let now = self.0.now;
        self.0.drive.inject_fault(now, fault)
    }

    fn send(&mut self, sqe: Sqe, user: u64) {
        let sqe = self.0.with_data(sqe, 1);
        self.0.send(sqe, user);
    }

    fn write(&mut self, lba: u64) -> Status {
        self.0.memory.write(DATA, &lba.to_le_bytes().repeat(512));
        let sqe = self.0.with_data(Sqe::write(1, lba, 1, false), 1);
        self.0.run(sqe).0.status
    }

    /// Reads a sector; returns the status and whether the data is the sector's.
    fn read(&mut self, lba: u64) -> (Status, bool) {
        self.0.memory.fill(DATA, 4096, 0xee);
        let sqe = self.0.with_data(Sqe::read(1, lba, 1), 1);
        let status = self.0.run(sqe).0.status;
        let mut bytes = [0; 4096];
        self.0.memory.read(DATA, &mut bytes);
        (status, bytes[..] == lba.to_le_bytes().repeat(512))
    }

    /// Returns the written sectors whose reads fail, all with one status; the others have their data.
    fn failing(&mut self, expected: Status) -> Vec<u64> {
        let failing = |lba: &u64| match self.read(*lba) {
            (Status::SUCCESS, is_right) => {
                assert!(is_right, "sector {lba} has other data");
                false
            }
            (status, _) => {
                assert_eq!(status, expected);
                true
            }
        };
        (0..SECTORS).filter(failing).collect()
    }

    fn last(&self) -> FaultRecord {
        *self.0.drive.faults().last().unwrap()
    }
}

fn next(operation: Operation, sector: FaultSector) -> Fault {
    Fault::OperationFailure { operation, scope: FaultScope::Next(sector) }
}

fn rate(operation: Operation, rate: f64, ms: u64) -> Fault {
    let scope = FaultScope::Rate { rate, duration: Nanos(ms * MS) };
    Fault::OperationFailure { operation, scope }
}

#[test]
fn a_failed_die_fails_its_reads_and_no_other() {
    let mut host = Host::new(block());
    let fault = Fault::DieFailure { pu: PuId(3) };
    host.inject(fault).unwrap();
    assert_eq!(host.last().count, Some(64), "all chunks of the die");
    // One of 16 dies.
    let lost = host.failing(Status::UNRECOVERED_READ);
    assert!((8..=24).contains(&lost.len()), "{lost:?}");
    for lba in &lost {
        assert_eq!(host.write(*lba), Status::SUCCESS);
    }
    assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE, "what is written again is elsewhere");
    let error = host.inject(fault).unwrap_err();
    assert_eq!(error, FaultError::AlreadyOffline { what: "the die of PU 3".into() });
    host.0.drive.check_invariants().unwrap();
}

#[test]
fn an_offline_chunk_fails_its_own_reads() {
    let mut host = Host::new(block());
    // The chunk of sector 0: a read of each chunk of the drive finds it.
    let chunks = (0..16).flat_map(|pu| (0..64).map(move |chunk| (PuId(pu), chunk)));
    let mut lost = Vec::new();
    for (pu, chunk) in chunks {
        if let Err(error) = host.inject(Fault::ChunkOffline { pu, chunk }) {
            panic!("{error}");
        }
        lost = host.failing(Status::UNRECOVERED_READ);
        if !lost.is_empty() {
            break;
        }
    }
    assert!((8..=24).contains(&lost.len()), "{lost:?}");
}

#[test]
fn an_uncorrectable_sector_fails_until_it_is_written() {
    for sector in [FaultSector::lba(17), FaultSector::lba(200)] {
        let mut host = Host::new(block());
        let FaultSector::Lba { lba, .. } = sector else { unreachable!() };
        host.inject(Fault::Uncorrectable { sector }).unwrap();
        assert_eq!(host.failing(Status::UNRECOVERED_READ), [lba]);
        assert_eq!(host.failing(Status::UNRECOVERED_READ), [lba], "again");
        assert_eq!(host.write(lba), Status::SUCCESS);
        assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
    }
}

#[test]
fn a_read_failure_fails_one_read() {
    let mut host = Host::new(block());
    let fault = next(Operation::Read, FaultSector::lba(9));
    host.inject(fault).unwrap();
    assert!(host.last().is_open);
    assert_eq!(host.inject(fault), Err(FaultError::InForce { kind: "read-failure" }));
    assert_eq!(host.failing(Status::UNRECOVERED_READ), [9]);
    assert_eq!((host.last().is_open, host.last().count), (false, Some(1)));
    assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
}

/// A full drive of 16,384 physical sectors, and the number of logical ones.
fn full() -> (Host, u64) {
    let mut nand = memory();
    nand.geometry.chunks = 16;
    let drive = DriveConfig { write_buffer: WriteBuffer::None, ..common::drive(nand) };
    let (mut host, mut sectors) = (Host::new(drive), SECTORS);
    while host.write(sectors) == Status::SUCCESS {
        sectors += 1;
    }
    (host, sectors)
}

/// Overwrites sectors other than the first ones, until collection has read sector 9.
fn overwrite_until((host, sectors): &mut (Host, u64), is_relocated: impl Fn(&Host) -> bool) {
    let mut rng = Rng::new(1);
    for _ in 0..100_000 {
        if is_relocated(host) {
            return;
        }
        assert_eq!(host.write(SECTORS + rng.below(*sectors - SECTORS)), Status::SUCCESS);
    }
    panic!("the line of sector 9 is not collected");
}

#[test]
fn a_relocation_reads_again_what_it_could_not_read() {
    let mut drive = full();
    drive.0.inject(next(Operation::Read, FaultSector::lba(9))).unwrap();
    overwrite_until(&mut drive, |host| !host.last().is_open);
    assert_eq!(drive.0.last().count, Some(1));
    assert_eq!(drive.0.failing(Status::UNRECOVERED_READ), NONE);
    // What cannot be read the second time either is lost, and its neighbors are not.
    let mut drive = full();
    drive.0.inject(Fault::Uncorrectable { sector: FaultSector::lba(9) }).unwrap();
    let lost =
        |host: &Host| host.0.drive.stats().ftl.is_some_and(|ftl| ftl.uncorrectable_sectors > 0);
    overwrite_until(&mut drive, lost);
    assert_eq!(drive.0.failing(Status::UNRECOVERED_READ), [9]);
    drive.0.0.drive.check_invariants().unwrap();
}

#[test]
fn corrupted_data_is_read_without_an_error() {
    let mut host = Host::new(block());
    host.inject(Fault::CorruptedData { sector: FaultSector::lba(9), part: CorruptedPart::Data })
        .unwrap();
    for lba in 0..SECTORS {
        assert_eq!(host.read(lba), (Status::SUCCESS, lba != 9));
    }
    assert_eq!(host.write(9), Status::SUCCESS);
    assert_eq!(host.read(9), (Status::SUCCESS, true));
}

#[test]
fn reads_fail_at_a_rate_for_a_duration_and_equally_in_every_run() {
    let run = || {
        let mut host = Host::new(block());
        let fault = rate(Operation::Read, 0.25, 10);
        host.inject(fault).unwrap();
        assert_eq!(host.inject(fault), Err(FaultError::InForce { kind: "read-failure" }));
        let (start, mut failed) = (host.0.now, Vec::new());
        for lba in (0..SECTORS).cycle() {
            if host.0.now.since(start) >= Nanos(10 * MS) {
                break;
            }
            match host.read(lba) {
                (Status::SUCCESS, is_right) => assert!(is_right),
                (status, _) => {
                    assert_eq!(status, Status::UNRECOVERED_READ);
                    failed.push(lba);
                }
            }
        }
        assert_eq!(host.last().count, Some(failed.len() as u64));
        assert!(!host.last().is_open);
        assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE, "the rate has ended");
        failed
    };
    let failed = run();
    assert!((5..60).contains(&failed.len()), "{failed:?}");
    assert_eq!(run(), failed);
}

#[test]
fn failed_programs_lose_no_data() {
    let mut host = Host::new(block());
    host.inject(rate(Operation::Program, 0.03, 100_000)).unwrap();
    let sectors = host.0.drive.sectors();
    for lba in 0..SECTORS {
        assert_eq!(host.write(lba), Status::SUCCESS, "the drive writes it elsewhere");
    }
    assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
    let stats = host.0.drive.stats();
    let failed = stats.media.unwrap().program_failures;
    assert!(failed > 3, "{failed}");
    assert_eq!(host.0.drive.faults()[0].count, Some(failed));
    assert_eq!(host.0.drive.sectors(), sectors);
}

#[test]
fn one_program_and_one_erase_fail_at_their_addresses() {
    let mut host = Host(OpenChannelHost::new(open_channel(common::nand())));
    let sector = |sector| FaultSector::Flash { pu: PuId(5), chunk: 7, sector };
    host.inject(next(Operation::Program, sector(1))).unwrap();
    host.0.fill(1, 1, 7, 1);
    let ppa = |host: &Host, sector| host.0.ppa(1, 1, 7, sector);
    let failing = ppa(&host, 1);
    assert_eq!(host.0.write(&[failing]).status, Status::CHUNK_CLOSED_EARLY);
    assert_eq!(host.last().count, Some(1));
    let written = ppa(&host, 0);
    assert_eq!(host.0.read(&[written]).status, Status::SUCCESS);
    host.inject(next(Operation::Erase, sector(0))).unwrap();
    assert!(host.last().is_open);
    let status = host.0.reset(&[written]).status;
    assert_eq!(status, Status::WRITE_FAULT);
    assert_eq!(host.0.reset(&[written]).status, Status::OFFLINE_CHUNK);
    assert!(!host.last().is_open);
    let error = host.inject(next(Operation::Erase, sector(0))).unwrap_err();
    assert!(matches!(error, FaultError::AlreadyOffline { .. }), "{error}");
}

#[test]
fn a_slow_die_takes_its_factor_and_then_its_own_time() {
    let mut host = Host(OpenChannelHost::new(open_channel(common::nand())));
    host.0.fill(1, 1, 7, 2);
    host.0.fill(1, 2, 7, 2);
    let time = |host: &mut Host, pu| {
        let start = host.0.now;
        let ppa = host.0.ppa(1, pu, 7, 0);
        assert_eq!(host.0.read(&[ppa]).status, Status::SUCCESS);
        host.0.now.since(start).0
    };
    let plain = time(&mut host, 1);
    let slow = Fault::SlowDie { pu: PuId(5), factor: 4.0, duration: Some(Nanos(MS)) };
    host.inject(slow).unwrap();
    assert_eq!(host.inject(slow), Err(FaultError::InForce { kind: "slow-die" }));
    assert_eq!(time(&mut host, 1) - plain, 150_000, "three times 50 us more");
    assert_eq!(time(&mut host, 2), plain, "another die");
    let later = host.0.now + Nanos(MS);
    host.0.run_to(later);
    assert_eq!(time(&mut host, 1), plain);
    host.inject(Fault::SlowDie { pu: PuId(5), factor: 2.0, duration: None }).unwrap();
    let later = host.0.now + Nanos(1_000 * MS);
    host.0.run_to(later);
    assert_eq!(time(&mut host, 1) - plain, 50_000);
}

#[test]
fn a_stalled_queue_is_served_after_its_duration() {
    let mut host = Host::new(block());
    let start = host.0.now;
    let plain = {
        host.read(1);
        host.0.now.since(start)
    };
    host.inject(Fault::StalledQueue { queue: 1, duration: Nanos(7 * MS) }).unwrap();
    let stalled = host.0.now;
    assert_eq!(
        host.inject(Fault::StalledQueue { queue: 1, duration: Nanos(MS) }),
        Err(FaultError::InForce { kind: "stalled-queue" })
    );
    assert_eq!(host.read(1), (Status::SUCCESS, true));
    assert_eq!(host.0.now.since(stalled), Nanos(7 * MS) + plain);
    let served = host.0.now;
    host.read(1);
    assert_eq!(host.0.now.since(served), plain);
    let none = Fault::StalledQueue { queue: 9, duration: Nanos(MS) };
    assert_eq!(host.inject(none), Err(FaultError::NoQueue { queue: 9 }));
    host.0.drive.check_invariants().unwrap();
}

#[test]
fn a_lost_completion_is_one() {
    let mut host = Host::new(block());
    let fault = Fault::LostCompletion { queue: 1 };
    host.inject(fault).unwrap();
    assert_eq!(host.last().count, Some(0));
    assert_eq!(host.inject(fault), Err(FaultError::InForce { kind: "lost-completion" }));
    for user in 0..4 {
        host.send(Sqe::read(1, 3, 1), user);
        let later = host.0.now + Nanos(10 * MS);
        host.0.run_to(later);
    }
    let users: Vec<u64> = std::mem::take(&mut host.0.completed).iter().map(|c| c.user).collect();
    assert_eq!(users, [1, 2, 3]);
    assert_eq!((host.last().is_open, host.last().count), (false, Some(1)));
    assert_eq!(host.0.drive.outstanding(), 0, "the drive has executed all");
}

/// A drive whose writes complete in a volatile write buffer.
fn volatile() -> DriveConfig {
    DriveConfig { write_buffer: WriteBuffer::Volatile { bytes: 1 << 20 }, ..block() }
}

#[test]
fn a_power_cut_ends_commands_in_flight_and_loses_nothing_flushed() {
    for (buffer, keeps) in [
        (WriteBuffer::Volatile { bytes: 1 << 20 }, false),
        (WriteBuffer::PowerLossProtected { bytes: 1 << 20 }, true),
    ] {
        let mut host = Host::new(DriveConfig { write_buffer: buffer, ..block() });
        let before = *host.0.drive.ftl().unwrap().stats();
        assert_eq!(host.write(SECTORS), Status::SUCCESS, "in the write buffer");
        for user in 0..5 {
            host.send(Sqe::read(1, user * 3, 1), user);
        }
        host.inject(Fault::PowerCut { after_ops: 0 }).unwrap();
        let ended = host.0.wait();
        assert_eq!(ended.len(), 5);
        assert!(ended.iter().all(|command| command.at == host.0.now), "at once");
        let lost = ended.iter().filter(|command| command.status == Status::POWER_LOSS).count();
        // A protected buffer still has some of the sectors, whose reads have completed.
        assert!(if keeps { lost > 0 } else { lost == 5 }, "{lost}");
        let others = ended.iter().filter(|command| command.status.is_success()).count();
        assert_eq!((others, host.last().count), (5 - lost, Some(lost as u64)));
        assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
        assert_eq!(host.read(SECTORS), (Status::SUCCESS, keeps));
        assert_eq!(host.write(7), Status::SUCCESS);
        assert_eq!(host.read(7), (Status::SUCCESS, true));
        let after = host.0.drive.ftl().unwrap().stats().since(&before);
        assert_eq!(after.host_writes, 2, "the counters go on");
        host.0.drive.check_invariants().unwrap();
    }
}

#[test]
fn a_power_cut_comes_after_the_given_media_operations() {
    for after_ops in [1, 2, 7, 40] {
        let mut host = Host::new(volatile());
        let reads = |host: &Host| host.0.drive.stats().media.unwrap().reads;
        let before = reads(&host);
        host.inject(Fault::PowerCut { after_ops }).unwrap();
        let again = host.inject(Fault::PowerCut { after_ops });
        assert_eq!(again, Err(FaultError::InForce { kind: "power-cut" }));
        for user in 0..64 {
            host.send(Sqe::read(1, user, 1), user);
        }
        let ended = host.0.wait();
        let lost = ended.iter().filter(|c| c.status == Status::POWER_LOSS).count() as u64;
        // A command that was read may wait for its transfer to the host.
        assert!((64 - after_ops..=64).contains(&lost), "{lost} after {after_ops}");
        assert_eq!(host.last().count, Some(lost));
        assert!(!host.last().is_open);
        assert!(reads(&host) - before >= after_ops);
        assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
    }
}

#[test]
fn a_cut_in_a_program_tears_it_and_flushed_data_survives() {
    let mut cut = 0;
    for after_ops in 1..60 {
        let mut host = Host::new(volatile());
        host.inject(Fault::PowerCut { after_ops }).unwrap();
        for user in 0..64 {
            host.send(Sqe::write(1, SECTORS + user, 1, false), user);
        }
        host.send(Sqe::flush(1), 64);
        host.0.wait();
        if !host.last().is_open {
            cut += host.0.drive.stats().media.unwrap().torn_units;
            assert_eq!(host.0.drive.stats().media.unwrap().power_cuts, 1);
        }
        assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);
        host.0.drive.check_invariants().unwrap();
    }
    assert!(cut > 50, "{cut} torn units");
}

#[test]
fn a_power_cut_of_other_drives_ends_their_commands() {
    let null = MediaConfig::Null { bytes: 1 << 30, sector_bytes: 4096 };
    let config = DriveConfig { media: null, personality: PersonalityKind::Null, ..block() };
    let latency = controller::NullConfig { latency: Nanos(MS), ..config.null };
    let mut host = Host(OpenChannelHost::new(DriveConfig { null: latency, ..config }));
    host.send(Sqe::read(1, 0, 1), 5);
    host.inject(Fault::PowerCut { after_ops: 0 }).unwrap();
    assert_eq!(host.0.wait()[0].status, Status::POWER_LOSS);
    assert_eq!(host.write(3), Status::SUCCESS);

    let mut host = Host(OpenChannelHost::new(open_channel(common::nand())));
    host.0.fill(1, 1, 7, 2);
    let ppa = host.0.ppa(1, 1, 7, 2);
    let sqe = Sqe::vector_write(1, host.0.list(&[ppa]));
    host.send(sqe, 5);
    let later = host.0.now + Nanos(MS / 4);
    host.0.run_to(later);
    host.inject(Fault::PowerCut { after_ops: 0 }).unwrap();
    assert_eq!(host.0.wait()[0].status, Status::POWER_LOSS);
    let earlier = host.0.ppa(1, 1, 7, 1);
    assert_eq!(host.0.read(&[earlier]).status, Status::SUCCESS);
    assert_eq!(host.0.read(&[ppa]).status, Status::UNRECOVERED_READ, "the unit is torn");
}

#[test]
fn a_drive_that_cannot_recover_is_unavailable() {
    let mut host = Host::new(block());
    for pu in 0..16 {
        host.inject(Fault::DieFailure { pu: PuId(pu) }).unwrap();
    }
    host.inject(Fault::PowerCut { after_ops: 0 }).unwrap();
    let gone = Status::NOT_READY.do_not_retry();
    assert_eq!(host.read(1).0, gone);
    assert_eq!(host.write(1), gone);
    assert_eq!(host.0.run(Sqe::flush(1)).0.status, gone);
    let error = host.inject(Fault::DieFailure { pu: PuId(0) }).unwrap_err();
    assert_eq!(error, FaultError::NoFlash { kind: "die-failure" });
}

#[test]
fn faults_that_a_drive_cannot_have_are_refused_and_change_nothing() {
    let mut host = Host::new(block());
    let flash = |pu, chunk, sector| FaultSector::Flash { pu: PuId(pu), chunk, sector };
    let uncorrectable = |sector| Fault::Uncorrectable { sector };
    let sectors = host.0.drive.sectors();
    let slow = |factor| Fault::SlowDie { pu: PuId(0), factor, duration: None };
    for (fault, text) in [
        (Fault::DieFailure { pu: PuId(16) }, "`pu` 16 does not exist: there are 16, from 0 on"),
        (Fault::ChunkOffline { pu: PuId(0), chunk: 64 }, "`chunk` 64 does not exist"),
        (uncorrectable(flash(0, 0, 64)), "`sector` 64 does not exist"),
        (uncorrectable(flash(15, 63, 63)), "the sector is not written"),
        (uncorrectable(FaultSector::lba(sectors)), "`lba` "),
        (uncorrectable(FaultSector::lba(sectors - 1)), "the sector is not written"),
        (next(Operation::Program, FaultSector::lba(0)), "program-failure has no `lba`"),
        (next(Operation::Erase, FaultSector::lba(0)), "erase-failure has no `lba`"),
        (rate(Operation::Read, 0.0, 1), "`rate` is 0, but it is a share above 0 and at most 1"),
        (rate(Operation::Read, 1.5, 1), "`rate` is 1.5"),
        (rate(Operation::Read, f64::NAN, 1), "`rate` is NaN"),
        (rate(Operation::Read, 0.5, 0), "`duration` is 0"),
        (slow(1.0), "`factor` is 1, but it is above 1"),
        (slow(1e7), "`factor` is 10000000"),
        (Fault::StalledQueue { queue: 0, duration: Nanos(1) }, "no host has an I/O queue 0"),
        (Fault::LostCompletion { queue: 2 }, "no host has an I/O queue 2"),
    ] {
        let error = host.inject(fault).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}, not {text}");
    }
    assert_eq!(host.0.drive.faults(), []);
    assert_eq!(host.failing(Status::UNRECOVERED_READ), NONE);

    let mut plain = Controller::new(common::drive(common::nand())).unwrap();
    let cut = plain.inject_fault(Nanos(1), Fault::PowerCut { after_ops: 0 });
    assert_eq!(cut, Err(FaultError::NoRecovery));
    let corrupted = Fault::CorruptedData { sector: flash(0, 0, 0), part: CorruptedPart::Data };
    assert_eq!(plain.inject_fault(Nanos(1), corrupted), Err(FaultError::NoData));
    let null = MediaConfig::Null { bytes: 1 << 30, sector_bytes: 4096 };
    let config = DriveConfig { media: null, personality: PersonalityKind::Null, ..block() };
    for fault in [Fault::DieFailure { pu: PuId(0) }, Fault::PowerCut { after_ops: 3 }] {
        assert_eq!(config.check_fault(&fault), Err(FaultError::NoFlash { kind: fault.kind() }));
    }
    let open = open_channel(common::nand());
    let error = open.check_fault(&uncorrectable(FaultSector::lba(0)));
    assert_eq!(error, Err(FaultError::NoFtl));
    let cmb = controller::CmbConfig { bytes: 1 << 20, protected: true };
    let with_cmb = controller::ControllerConfig { cmb: Some(cmb), ..block().controller };
    let config = DriveConfig { controller: with_cmb, ..block() };
    assert_eq!(
        config.check_fault(&Fault::PowerCut { after_ops: 0 }),
        Err(FaultError::MemoryBuffer)
    );
}
