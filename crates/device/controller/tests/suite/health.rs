//! The health log of a drive that manages its own flash, from new to read only.

// guarantee: B-78

use crate::ppa::events::RawHost;
use crate::{common, full};

use block::{Payload, Request};
use common::{drive, nand};
use controller::{DriveConfig, PersonalityKind};
use media::{ChunkState, DataStore, InjectedFault, MediaConfig, NandConfig, UnitInChunk};
use nvme::{AdminCommand, CLOUD_HEALTH, CloudHealthLog, ErrorEntry, HealthLog, Status, log_page};
use rng::Rng;
use time::Nanos;

/// Bits of the critical warning.
const SPARE_LOW: u8 = 1;
const READ_ONLY: u8 = 1 << 3;

fn small() -> DriveConfig {
    let mut nand = NandConfig { data: DataStore::Memory, ..nand() };
    (nand.geometry.channels, nand.geometry.pus) = (2, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (64, 16);
    nand.errors.endurance = 40;
    drive(nand)
}

/// A host with an I/O queue, and another one that reads the logs.
pub(crate) struct Host {
    pub(crate) io: full::Host,
    pub(crate) admin: RawHost,
}

impl Host {
    pub(crate) fn new(config: DriveConfig) -> Host {
        let mut io = full::Host::new(config);
        let admin = RawHost::new(&mut io.drive);
        Host { io, admin }
    }

    /// Reads a log page of up to 512 bytes.
    pub(crate) fn log_page(&mut self, lid: u8, nsid: u32) -> [u8; 512] {
        self.admin.now = self.admin.now.max(self.io.runner.now());
        let command = AdminCommand::GetLogPage { lid, nsid, bytes: 512, offset: 0, retain: false };
        assert_eq!(self.admin.run(&mut self.io.drive, command).status, Status::SUCCESS);
        let mut bytes = [0; 512];
        self.admin.memory.read(0, &mut bytes);
        bytes
    }

    fn health(&mut self) -> HealthLog {
        HealthLog::from_bytes(self.log_page(log_page::HEALTH, u32::MAX))
    }

    /// Returns the newest entry of the error log.
    fn newest_error(&mut self) -> ErrorEntry {
        let page = self.log_page(log_page::ERROR, u32::MAX);
        ErrorEntry::from_bytes(*page.first_chunk().unwrap())
    }

    /// Makes the program of an open chunk fail that is in no journal.
    fn fail_a_chunk(&mut self) {
        let nand = self.io.drive.nand_mut().unwrap();
        let unit = nand.config().write_unit();
        let open = nand.chunks().find(|(c, i)| i.state == ChunkState::Open && c.get() % 64 > 3);
        if let Some((chunk, info)) = open {
            let unit = UnitInChunk(info.write_pointer / unit);
            nand.inject(InjectedFault::Program { chunk, unit }).unwrap();
        }
    }
}

#[test]
fn a_drive_warns_before_it_is_read_only() {
    let mut h = Host::new(small());
    let sectors = h.io.drive.sectors();
    let new = h.health();
    assert_eq!((new.available_spare, new.spare_threshold, new.critical_warning), (100, 10, 0));
    for lba in 0..sectors {
        assert_eq!(h.io.write(lba), Status::SUCCESS);
    }
    let (mut writes, mut spare, mut warned_at) = (sectors, 100, None);
    let refused = loop {
        if writes.is_multiple_of(8) {
            h.fail_a_chunk();
        }
        let status = h.io.write(writes * 7 % sectors);
        let log = h.health();
        assert!(log.available_spare <= spare, "{} after {spare}", log.available_spare);
        spare = log.available_spare;
        let is_low = spare < log.spare_threshold;
        assert_eq!(log.critical_warning & SPARE_LOW != 0, is_low, "{spare} %");
        if !status.is_success() {
            break status;
        }
        writes += 1;
        if is_low {
            warned_at.get_or_insert(writes);
        }
        assert_eq!(log.critical_warning & READ_ONLY, 0, "{spare} %");
        assert_eq!(log.host_writes.get(), u128::from(writes));
        assert_eq!(log.data_units_written.get(), u128::from((writes * 4096).div_ceil(512_000)));
        assert!(writes < 100_000, "the drive does not run out of space");
    };
    assert!(refused.is(Status::WRITE_PROTECTED), "{refused}");
    let warned_at = warned_at.expect("the warning comes before the first refusal");
    assert!(warned_at < writes, "{warned_at} of {writes} writes");
    let log = h.health();
    assert_eq!(log.critical_warning & (SPARE_LOW | READ_ONLY), SPARE_LOW | READ_ONLY);
    assert_eq!(log.error_entries.get(), 1);
    assert!(log.percentage_used > 0);
    let error = h.newest_error();
    let lba = writes * 7 % sectors;
    assert_eq!((error.sqid.get(), error.lba.get()), (1, lba));
    assert!(error.status().is(Status::WRITE_PROTECTED));
    // All data is there, and a write succeeds after a trim: the drive is not read only any more.
    for lba in 0..sectors {
        assert_eq!(h.io.run(Request::read(lba, 1, Payload::BitBucket, 0)), Status::SUCCESS);
    }
    assert_eq!(h.io.run(Request::discard(0, sectors as u32 / 2, 0)), Status::SUCCESS);
    assert_eq!(h.io.write(0), Status::SUCCESS);
    let log = h.health();
    assert_eq!(log.critical_warning & (SPARE_LOW | READ_ONLY), SPARE_LOW);
    assert_eq!(log.available_spare, spare);
}

/// Nothing but overwrites: erases fail at a rate, until the drive has no space left.
#[test]
fn a_drive_wears_out_by_overwrites_alone() {
    let mut config = small();
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!("it is NAND") };
    nand.errors.erase_fail = 0.02;
    let mut h = Host::new(config);
    let (sectors, mut rng) = (h.io.drive.sectors(), Rng::new(1));
    for lba in 0..sectors {
        assert_eq!(h.io.write(lba), Status::SUCCESS);
    }
    let (mut writes, mut before, mut warned_at) = (sectors, h.health(), None);
    let refused = loop {
        let status = h.io.write(rng.below(sectors));
        if !status.is_success() {
            break status;
        }
        writes += 1;
        assert!(writes < 1_000_000, "the drive does not wear out");
        if !writes.is_multiple_of(64) {
            continue;
        }
        let log = h.health();
        assert!(log.available_spare <= before.available_spare);
        assert!(log.percentage_used >= before.percentage_used);
        assert!(log.busy_minutes.get() >= before.busy_minutes.get());
        let is_low = log.available_spare < log.spare_threshold;
        assert_eq!(log.critical_warning, if is_low { SPARE_LOW } else { 0 });
        assert_eq!(log.host_writes.get(), u128::from(writes));
        assert_eq!((log.media_errors.get(), log.error_entries.get()), (0, 0));
        assert_eq!((log.power_cycles.get(), log.unsafe_shutdowns.get()), (1, 0));
        if is_low {
            warned_at.get_or_insert(writes);
        }
        before = log;
    };
    assert!(refused.is(Status::WRITE_PROTECTED), "{refused}");
    assert!(warned_at.expect("the warning comes first") < writes);
    let (log, stats) = (h.health(), h.io.drive.stats());
    assert_eq!(log.critical_warning, SPARE_LOW | READ_ONLY);
    assert_eq!((log.available_spare, log.error_entries.get()), (before.available_spare, 1));
    let (media, ftl) = (stats.media.unwrap(), stats.ftl.unwrap());
    assert!(ftl.erase_failures > 20 && ftl.erase_failures == ftl.retired_chunks, "{ftl:?}");
    assert!(media.wear.max > 0 && log.percentage_used > 0);
    for lba in 0..sectors {
        assert_eq!(h.io.run(Request::read(lba, 1, Payload::BitBucket, 0)), Status::SUCCESS);
    }
    assert_eq!(h.health().host_reads.get(), u128::from(sectors));
}

#[test]
fn the_first_sector_in_error_is_named() {
    let mut h = Host::new(small());
    for lba in 0..256 {
        assert_eq!(h.io.write(lba), Status::SUCCESS);
    }
    assert_eq!(h.io.run(Request::flush(0)), Status::SUCCESS);
    for lba in [77, 71] {
        let sector = controller::FaultSector::lba(lba);
        let fault = controller::Fault::Uncorrectable { sector };
        h.io.drive.inject_fault(h.io.runner.now(), fault).unwrap();
    }
    assert_eq!(h.io.run(Request::read(64, 16, Payload::BitBucket, 0)), Status::UNRECOVERED_READ);
    let error = h.newest_error();
    assert_eq!((error.sqid.get(), error.lba.get(), error.nsid.get()), (1, 71, 1));
    let log = h.health();
    assert_eq!((log.media_errors.get(), log.error_entries.get()), (2, 1));
}

/// Time is busy while a command is outstanding, and only then.
#[test]
fn busy_time_is_that_with_a_command() {
    let mut config = small();
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!("it is NAND") };
    nand.timing.read = [Nanos::from_millis(90_000); 4];
    let mut h = Host::new(config);
    for lba in 0..64 {
        assert_eq!(h.io.write(lba), Status::SUCCESS);
    }
    assert_eq!(h.io.run(Request::flush(0)), Status::SUCCESS);
    let before = h.health().busy_minutes.get();
    for reads in 1..=4 {
        assert_eq!(h.io.run(Request::read(0, 1, Payload::BitBucket, 0)), Status::SUCCESS);
        // Nothing is outstanding for an hour.
        let idle = h.io.runner.now() + Nanos::from_millis(3_600_000);
        h.io.runner.advance_to(idle);
        let busy = h.health().busy_minutes.get() - before;
        assert!((reads * 3 / 2..=reads * 3 / 2 + 1).contains(&busy), "{reads} reads: {busy}");
    }
    assert_eq!(h.health().power_on_hours.get(), 4);
}

/// The cloud health log has the counters of the drive's statistics.
#[test]
fn the_cloud_health_log_counts_as_the_statistics_do() {
    let mut h = Host::new(small());
    let sectors = h.io.drive.sectors();
    for lba in (0..sectors).chain((0..2 * sectors).map(|n| n * 7 % sectors)) {
        if lba % 512 == 5 {
            h.fail_a_chunk();
        }
        assert_eq!(h.io.write(lba), Status::SUCCESS);
    }
    assert_eq!(h.io.run(Request::read(3, 8, Payload::BitBucket, 0)), Status::SUCCESS);
    let cloud = CloudHealthLog::from_bytes(h.log_page(CLOUD_HEALTH, u32::MAX));
    let health = h.health();
    let stats = h.io.drive.stats();
    let (media, ftl) = (stats.media.unwrap(), stats.ftl.unwrap());
    let unit = u64::from(h.io.drive.nand_mut().unwrap().config().write_unit());
    assert_eq!(cloud.guid, CloudHealthLog::GUID);
    assert_eq!(cloud.media_bytes_written.get(), u128::from(media.programs * unit * 4096));
    assert_eq!(cloud.media_bytes_read.get(), u128::from(media.reads * 4096));
    // Programs that failed, and those of the journal, are not among the FTL's.
    let amplification = cloud.media_bytes_written.get() as f64 / (3 * sectors * 4096) as f64;
    let of_ftl = ftl.write_amplification().unwrap();
    assert!(amplification > 1.0 && (amplification / of_ftl - 1.0).abs() < 0.2, "{of_ftl}");
    let bad = cloud.bad_user_blocks.get();
    assert!(bad & 0xffff_ffff_ffff > 0);
    assert_eq!(bad >> 48, u64::from(health.available_spare));
    assert_eq!(cloud.erases_max.get(), media.wear.max);
    assert_eq!(cloud.erases_min.get(), media.wear.min);
    assert_eq!((cloud.mapped.get(), cloud.capacitor_health.get()), (sectors, 0xffff));
    let wrong = AdminCommand::GetLogPage {
        lid: CLOUD_HEALTH,
        nsid: 1,
        bytes: 512,
        offset: 0,
        retain: false,
    };
    assert_eq!(h.admin.run(&mut h.io.drive, wrong).status, Status::INVALID_NAMESPACE);
    let media = MediaConfig::Null { bytes: 1 << 24, sector_bytes: 4096 };
    let mut null = Host::new(DriveConfig { personality: PersonalityKind::Null, media, ..small() });
    let log = AdminCommand::GetLogPage {
        lid: CLOUD_HEALTH,
        nsid: u32::MAX,
        bytes: 512,
        offset: 0,
        retain: false,
    };
    assert_eq!(null.admin.run(&mut null.io.drive, log).status, Status::INVALID_LOG_PAGE);
}
