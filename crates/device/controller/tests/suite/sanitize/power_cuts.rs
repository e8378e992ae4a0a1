//! Power cuts at any time of Sanitize: it continues until it has ended.

// guarantee: B-85

use controller::{Controller, DriveConfig, Fault, WriteBuffer};
use ftl::FtlConfig;
use media::{DataStore, MediaConfig};
use nvme::{AdminCommand, SanitizeAction, SanitizeCommand, SanitizeLog, Status};
use rng::Rng;
use testkit::oracle::run_seeds;

use super::*;
use crate::block_commands::harness::config;
use crate::interface::events::{event, request_event};

/// Returns the drive of a seed, and its logical block size.
fn drive_of(rng: &mut Rng) -> (DriveConfig, usize) {
    let bytes = 1 << 18;
    let mut config = DriveConfig {
        write_buffer: match rng.below(4) {
            0 => WriteBuffer::None,
            1 => WriteBuffer::Volatile { bytes: 0 },
            2 => WriteBuffer::Volatile { bytes },
            _ => WriteBuffer::PowerLossProtected { bytes },
        },
        lba_bytes: (rng.below(4) == 0).then_some(512),
        ..config()
    };
    if rng.below(3) == 0 {
        config.ftl = FtlConfig { map_cache_sectors: 1 << 20, ..config.ftl };
    }
    if let MediaConfig::Nand(nand) = &mut config.media {
        nand.seed = rng.next_u64();
        // Fewer units, so that a seed takes less time.
        (nand.geometry.channels, nand.geometry.pus) = (2, 2 + rng.below(2) as u32);
        nand.geometry.chunks = 24;
    }
    let block_bytes = config.lba_bytes.unwrap_or(4096) as usize;
    (config, block_bytes)
}

/// Cuts the power and powers the drive on, without letting time pass.
fn power_cycle(b: Bench) -> Bench {
    let mut drive = b.drive.power_cut().power_on().unwrap();
    // The clock of a drive starts at power-on.
    let host = Host::new(&mut drive);
    Bench { drive, host }
}

/// Runs a seed. Returns the number of power cuts during the operation.
fn run_seed(seed: u64) -> u64 {
    let rng = &mut Rng::new(seed);
    let (config, block_bytes) = drive_of(rng);
    let mut b = Bench::new(config);
    fill(&mut b, block_bytes);
    let action = match rng.below(2) {
        0 => SanitizeAction::BlockErase,
        _ => SanitizeAction::Overwrite,
    };
    let command = SanitizeCommand {
        passes: 1 + rng.below(3) as u8,
        inverts: rng.below(2) == 0,
        pattern: 0x0102_0304,
        ..SanitizeCommand::new(action)
    };
    // Some commands are in flight.
    for lba in 0..rng.below(8) {
        let mut sqe = Sqe::read(1, lba, 1);
        sqe.set_sgl(b.host.block(0, block_bytes as u32));
        b.host.submit(sqe);
    }
    assert_eq!(now(&mut b, AdminCommand::Sanitize(command).to_sqe()), Status::SUCCESS);
    let mut cuts = 0;
    while log(&mut b).last_status() == SanitizeLog::IN_PROGRESS {
        // Often at once, sometimes after the whole operation: a block erase has 24 instants.
        let events = 1u64 << rng.below(7);
        run(&mut b, rng.below(events));
        let before = log(&mut b);
        if cuts == 8 {
            run(&mut b, u64::MAX);
            break;
        }
        match rng.below(3) {
            0 => {
                let after_ops = rng.below(20);
                b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops }).unwrap();
                run(&mut b, 30);
            }
            _ => b = power_cycle(b),
        }
        cuts += u64::from(before.last_status() == SanitizeLog::IN_PROGRESS);
        let after = log(&mut b);
        assert!(after.passes() >= before.passes(), "passes that have ended are not repeated");
        assert_eq!(after.cdw10, before.cdw10);
    }
    let now = b.host.now;
    b.host = Host::with_queue(&mut b.drive);
    b.host.now = now;
    let ended = log(&mut b);
    assert_eq!((ended.last_status(), ended.is_erased()), (SanitizeLog::SUCCEEDED, true));
    assert_clean(&mut b, block_bytes);
    b = b.restart();
    assert_clean(&mut b, block_bytes);
    let blocks = b.drive.sectors();
    for lba in (0..blocks).step_by(7) {
        b.write(lba, 1, block_bytes, 5);
    }
    b.flush();
    b = b.restart();
    for lba in 0..blocks {
        let expected = if lba % 7 == 0 { 5 } else { 0 };
        assert_eq!(b.read(lba, 1, block_bytes), Ok(vec![expected]));
    }
    assert_eq!(b.drive.check_invariants(), Ok(()));
    cuts
}

#[test]
fn an_operation_continues_after_power_cuts_and_leaves_nothing() {
    let replay = "cargo test -p sluice-controller --test suite sanitize::power_cuts";
    let run = run_seeds(200, &[], replay, run_seed);
    let cuts: u64 = run.results.iter().sum();
    assert!(cuts > 400, "{cuts} power cuts");
}

#[test]
fn a_power_cut_with_attached_hosts_keeps_the_event() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    request_event(&mut b.host, &mut b.drive);
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    run(&mut b, 10);
    b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops: 0 }).unwrap();
    assert_eq!(log(&mut b).last_status(), SanitizeLog::IN_PROGRESS);
    run(&mut b, u64::MAX);
    assert_eq!(event(&mut b.host), Some(0x81_0106));
    assert_clean(&mut b, 4096);
    // After a power-on, all hosts get the event.
    fill(&mut b, 4096);
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    b = power_cycle(b);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::IN_PROGRESS);
    run(&mut b, u64::MAX);
    request_event(&mut b.host, &mut b.drive);
    assert_eq!(event(&mut b.host), Some(0x81_0106));
}

/// The mark is beside the image, so that the operation continues in another process.
#[test]
fn an_operation_continues_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("drive.img");
    for shuts_down in [false, true] {
        for events in [0, 3, 40, 100] {
            let mut config = config();
            if let MediaConfig::Nand(nand) = &mut config.media {
                nand.data = DataStore::File(image.clone());
            }
            let mut b = Bench::new(config.clone());
            fill(&mut b, 4096);
            b.flush();
            assert_eq!(now(&mut b, sanitize(SanitizeAction::Overwrite)), Status::SUCCESS);
            run(&mut b, events);
            let Bench { drive, host } = b;
            match shuts_down {
                true => drive.shut_down().unwrap(),
                false => drop(drive),
            }
            assert!(folder.path().join("drive.img.nvm").exists());
            drop(host);
            let mut drive = Controller::new(config).unwrap();
            let mut b = Bench { host: Host::new(&mut drive), drive };
            assert_eq!(log(&mut b).last_status(), SanitizeLog::IN_PROGRESS, "{events} events");
            run(&mut b, u64::MAX);
            assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
            b.host = Host::with_queue(&mut b.drive);
            assert_clean(&mut b, 4096);
            b.host.check_serves(&mut b.drive);
            b.drive.shut_down().unwrap();
            let bytes = std::fs::read(&image).unwrap();
            let has_value = |page: &[u8]| page.iter().all(|byte| *byte == page[0] && *byte != 0);
            let left = bytes.chunks(4096).filter(|page| has_value(page)).count();
            assert!(left <= 1, "{left} pages of the file have data; one was written afterwards");
        }
    }
}
