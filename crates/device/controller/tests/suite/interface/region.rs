//! The persistent memory region: its registers byte by byte, who has it, and what survives the loss
//! of power.

// guarantee: B-98, B-100

use std::path::Path;

use controller::{
    AccessPolicy, AccessScope, Controller, ControllerConfig, DriveConfig, DriveError, Fault,
    FaultError, PmrConfig, PmrStats, PmrStore, RegionCosts, RegisterConfig, SanitizeMethod,
    SavedDrive,
};
use driver::{ControllerHandle, DriverError, PersistentRegion, RegionError};
use event::RealClock;
use media::{DataStore, MediaConfig};
use mem::{AddressSpace, PersistentMemoryError};
use nvme::Status;
use nvme::register::{CAP, CC, PMRCAP, PMRCTL, PMREBS, PMRMSC, PMRSTS, PMRSWTP};
use rng::Rng;
use time::{Component, Nanos};
use transport::Port;

use crate::common::attach;
use crate::hostile::host::{block_config, configs};
use crate::ppa::harness::seeds;

const BYTES: u64 = 64 << 10;
const COSTS: RegionCosts = RegionCosts { store: Nanos(8), persist: Nanos(300) };
/// PMRSTS.
const NOT_READY: u32 = 1 << 8;
/// PMRCTL.
const ENABLED: u32 = 1;
const CAP_PMRS: u32 = 1 << (56 - 32);

fn with_region(config: DriveConfig) -> DriveConfig {
    let pmr = PmrConfig { store: PmrStore::Emulated { bytes: BYTES }, costs: COSTS };
    DriveConfig { pmr: Some(pmr), ..config }
}

fn with_registers(config: DriveConfig) -> DriveConfig {
    let registers = Some(RegisterConfig::default());
    DriveConfig { controller: ControllerConfig { registers, ..config.controller }, ..config }
}

fn on_image(image: &Path, name: &str) -> DriveConfig {
    let mut config = with_region(block_config());
    config.name = name.into();
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::File(image.to_owned());
    config
}

fn region_of(controller: &ControllerHandle) -> PersistentRegion {
    controller.persistent_region().expect("the drive has a region")
}

fn read<const N: usize>(region: &PersistentRegion, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_registers_are_what_the_specification_asks_for() {
    let mut drive = Controller::new(with_registers(with_region(block_config()))).unwrap();
    let port = drive.attach().unwrap();
    let poll = |drive: &mut Controller| {
        for _ in 0..4 {
            drive.poll(Nanos::ZERO);
        }
    };
    let registers = |port: &Port| {
        [PMRCAP, PMRCTL, PMRSTS, PMREBS, PMRSWTP, PMRMSC, PMRMSC + 4].map(|at| port.register(at))
    };
    // PMRCAP: BIR 4, PMRWBM 10b (a read of PMRSTS), PMRTO 1; no RDS, WDS and CMSS. PMRSWTP: 64
    // bytes in 8 ns, in KiB/s.
    let capabilities = 4 << 5 | 0b10 << 10 | 1 << 16;
    let throughput = 1 | 7_812_500 << 8;
    let disabled = [capabilities, 0, NOT_READY, 0, throughput, 0, 0];
    assert_eq!(registers(&port), disabled);
    assert_eq!(port.register(CAP + 4) & CAP_PMRS, CAP_PMRS);
    let region = PersistentRegion::of_port(&port).unwrap();
    assert_eq!(region.store(0, b"early"), Err(RegionError::NotReady));
    assert_eq!(region.persist(0, 5), Err(RegionError::NotReady));
    assert_eq!(region.read(0, &mut [0; 5]), Err(RegionError::NotReady));
    // Only EN can be written.
    for at in [PMRCAP, PMRCTL, PMRSTS, PMREBS, PMRSWTP, PMRMSC, PMRMSC + 4] {
        port.set_register(at, !ENABLED);
    }
    poll(&mut drive);
    assert_eq!(registers(&port), disabled);
    port.set_register(PMRCTL, u32::MAX);
    poll(&mut drive);
    let enabled = [capabilities, ENABLED, 0, 0, throughput, 0, 0];
    assert_eq!(registers(&port), enabled, "before the controller is enabled");
    assert_eq!(region.store(0, b"keeps"), Ok(Nanos(8)));
    // A controller reset changes nothing; the driver initializes the controller twice.
    for _ in 0..2 {
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let handle = ControllerHandle::connect(port.clone(), &mut progress, 1_000_000).unwrap();
        assert_eq!(registers(&port), enabled);
        assert_eq!(&read(&region_of(&handle), 0), b"keeps");
        port.set_register(CC, 0);
        poll(&mut drive);
        assert_eq!(registers(&port), enabled, "the controller is disabled");
    }
    // Neither does a disabled region lose its contents.
    port.set_register(PMRCTL, 0);
    poll(&mut drive);
    assert_eq!(registers(&port), disabled);
    assert_eq!(region.store(0, b"never"), Err(RegionError::NotReady));
    port.set_register(PMRCTL, ENABLED);
    poll(&mut drive);
    assert_eq!(&read(&region, 0), b"keeps");
    drive.detach(&port).unwrap();
    assert_eq!(registers(&port), [u32::MAX; 7]);
    assert_eq!(region.store(0, b"gone"), Err(RegionError::Removed));
    // A drive without a region has none of the registers.
    let mut drive = Controller::new(with_registers(block_config())).unwrap();
    let port = drive.attach().unwrap();
    assert_eq!((port.register(CAP + 4) & CAP_PMRS, registers(&port)), (0, [0; 7]));
    assert!(PersistentRegion::of_port(&port).is_none());
}

#[test]
fn every_personality_has_it_and_hosts_of_a_part_do_not() {
    for registers in [false, true] {
        for config in configs() {
            let config = with_region(config);
            let config = if registers { with_registers(config) } else { config };
            let scope = AccessScope::All;
            let mut drive = Controller::new(config).unwrap();
            let (first, _) = attach(&mut drive);
            let (second, _) = attach(&mut drive);
            assert_eq!(region_of(&first).bytes(), BYTES);
            region_of(&first).store(BYTES - 3, b"all").unwrap();
            assert_eq!(&read(&region_of(&second), BYTES - 3), b"all");
            let port = match registers {
                true => Port::with_registers(AddressSpace::default()),
                false => Port::new(),
            };
            let port = port.unwrap();
            drive.attach_as(&port, AccessPolicy::for_scope(scope)).unwrap();
            let mut progress = || {
                drive.poll(Nanos::ZERO);
            };
            let part = ControllerHandle::connect(port.clone(), &mut progress, 1_000_000).unwrap();
            assert!(part.persistent_region().is_none());
            assert_eq!(port.register(CAP + 4) & CAP_PMRS, 0);
            assert_eq!(port.register(PMRSTS), 0);
        }
    }
}

#[test]
fn ranges_outside_of_the_region_are_refused() {
    let mut drive = Controller::new(with_region(block_config())).unwrap();
    let (controller, _) = attach(&mut drive);
    let region = region_of(&controller);
    for (offset, len) in [(BYTES, 1), (BYTES - 2, 3), (u64::MAX, 2), (0, BYTES + 1)] {
        let outside = RegionError::OutOfBounds { offset, len, bytes: BYTES };
        assert_eq!(region.persist(offset, len), Err(outside));
        let mut data = vec![0; len as usize];
        assert_eq!(region.read(offset, &mut data), Err(outside));
        assert_eq!(region.store(offset, &data), Err(outside));
    }
    assert_eq!(region.store(BYTES, b""), Ok(Nanos::ZERO));
    assert_eq!(drive.stats().pmr, Some(PmrStats::default()));
}

// guarantee: B-101

#[test]
fn stores_cost_their_lines_and_persists_a_constant() {
    let mut drive = Controller::new(with_region(block_config())).unwrap();
    let (controller, _) = attach(&mut drive);
    let region = region_of(&controller);
    for (offset, len, lines) in [(0, 1, 1), (0, 64, 1), (63, 2, 2), (0, 4096, 64), (32, 4096, 65)] {
        assert_eq!(region.store(offset, &vec![7; len]), Ok(Nanos(8 * lines)));
        assert_eq!(region.persist(offset, len as u64), Ok(Nanos(300)));
    }
    let stats = PmrStats { lines_stored: 133, persists: 5, words_lost: 0 };
    assert_eq!(drive.stats().pmr, Some(stats));
    drive.reset_stats();
    assert_eq!(drive.stats().pmr, Some(PmrStats::default()));
    // In real time, the caller spins for the costs.
    let slow = RegionCosts { store: Nanos::from_micros(20), persist: Nanos::from_micros(500) };
    let pmr = PmrConfig { store: PmrStore::Emulated { bytes: BYTES }, costs: slow };
    let mut drive = Controller::new(DriveConfig { pmr: Some(pmr), ..block_config() }).unwrap();
    let (controller, _) = attach(&mut drive);
    let clock = RealClock::start();
    let region = region_of(&controller).in_real_time(clock);
    let began = clock.now();
    assert_eq!(region.store(0, &[7; 640]), Ok(Nanos::ZERO));
    assert!(clock.now().since(began) >= Nanos::from_micros(200));
    let began = clock.now();
    assert_eq!(region.persist(0, 640), Ok(Nanos::ZERO));
    assert!(clock.now().since(began) >= Nanos::from_micros(500));
}

/// Cuts the power; the host stays attached, or attaches again.
fn cut(drive: Controller, stays: bool) -> (Controller, ControllerHandle) {
    let mut drive = drive;
    if stays {
        drive.inject_fault(Nanos(1), Fault::PowerCut { after_ops: 0 }).unwrap();
    } else {
        drive = drive.power_cut().power_on().unwrap();
    }
    let (controller, _) = attach(&mut drive);
    (drive, controller)
}

/// Returns the region after stores that were not persisted, and a power cut.
fn torn(seed: u64, stays: bool) -> (Vec<u8>, u64) {
    let mut config = with_region(block_config());
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.seed = seed;
    let mut drive = Controller::new(config).unwrap();
    let (controller, _) = attach(&mut drive);
    let old = region_of(&controller);
    old.store(0, &[1; 4096]).unwrap();
    old.persist(0, 4096).unwrap();
    old.store(1024, &[2; 2048]).unwrap();
    let (drive, controller) = cut(drive, stays);
    if !stays {
        assert_eq!(old.store(0, b"strays"), Err(RegionError::Removed));
    }
    let found = read::<4096>(&region_of(&controller), 0).to_vec();
    (found, drive.stats().pmr.unwrap().words_lost)
}

#[test]
fn a_power_cut_leaves_what_was_persisted_and_words_by_the_seed() {
    for stays in [false, true] {
        let (found, lost) = torn(7, stays);
        assert!(found[..1024].iter().chain(&found[3072..]).all(|byte| *byte == 1));
        let words = found[1024..3072].chunks(8);
        let reverted = words.clone().filter(|word| **word == [1; 8]).count() as u64;
        let kept = words.clone().filter(|word| **word == [2; 8]).count() as u64;
        assert_eq!((reverted + kept, reverted), (256, lost), "no word is torn");
        assert!(reverted > 20 && kept > 20, "{reverted} and {kept}");
        assert_eq!(torn(7, stays), (found.clone(), lost), "a seed decides");
        assert_ne!(torn(8, stays).0, found);
    }
    // A drive with a region has a power-cut fault, and the state of its memory is not saved.
    let config = with_region(block_config());
    config.check_fault(&Fault::PowerCut { after_ops: 3 }).unwrap();
    assert!(SavedDrive::new(&Controller::new(config).unwrap()).is_none());
}

/// A word: after a power cut it has one of both values.
#[derive(Clone, Copy, Default)]
struct Word {
    stored: u64,
    persisted: u64,
}

/// Stores, persists, power cuts and controller resets in any order: after a cut, every word has a
/// value that it may have.
fn survives(seed: u64) {
    const WORDS: usize = 512;
    let mut rng = Rng::new(seed);
    let mut config = with_region(block_config());
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.seed = seed;
    let has_registers = rng.below(2) == 0;
    let config = if has_registers { with_registers(config) } else { config };
    let mut drive = Controller::new(config).unwrap();
    let (mut controller, _) = attach(&mut drive);
    let mut words = vec![Word::default(); WORDS];
    for step in 1..200u64 {
        let region = region_of(&controller);
        let first = rng.below(WORDS as u64) as usize;
        let count = 1 + rng.below((WORDS - first).min(20) as u64) as usize;
        match rng.below(20) {
            0..12 => {
                let mut data = Vec::new();
                for (index, word) in words[first..first + count].iter_mut().enumerate() {
                    word.stored = step << 16 | index as u64;
                    data.extend(word.stored.to_le_bytes());
                }
                region.store(first as u64 * 8, &data).unwrap();
            }
            12..18 => {
                region.persist(first as u64 * 8, count as u64 * 8).unwrap();
                // Whole lines are persisted.
                for word in &mut words[first / 8 * 8..(first + count).next_multiple_of(8)] {
                    word.persisted = word.stored;
                }
            }
            _ => {
                (drive, controller) = cut(drive, rng.below(2) == 0);
                let region = region_of(&controller);
                for (index, word) in words.iter_mut().enumerate() {
                    let found = u64::from_le_bytes(read(&region, index as u64 * 8));
                    let possible = [word.persisted, word.stored];
                    assert!(
                        possible.contains(&found),
                        "word {index}: {found:x}, not {possible:x?}"
                    );
                    *word = Word { stored: found, persisted: found };
                }
            }
        }
        for (index, word) in words.iter().enumerate().step_by(37) {
            let found = u64::from_le_bytes(read(&region_of(&controller), index as u64 * 8));
            assert_eq!(found, word.stored, "word {index} is what was stored");
        }
    }
}

#[test]
fn persisted_words_survive_any_sequence_of_power_cuts() {
    seeds(60, survives);
}

#[test]
fn beside_an_image_it_survives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (image, file) = (folder.path().join("d.img"), folder.path().join("d.img.pmr"));
    let open = || {
        let mut drive = Controller::new(on_image(&image, "one")).unwrap();
        let region = region_of(&attach(&mut drive).0);
        (drive, region)
    };
    let (drive, region) = open();
    region.store(1000, b"durable").unwrap();
    region.persist(1000, 7).unwrap();
    region.store(5000, b"volatile").unwrap();
    // The process ends without a shutdown.
    drop((drive, region));
    let (mut drive, region) = open();
    assert_eq!(&read(&region, 1000), b"durable");
    assert_eq!(read(&region, 5000), [0; 8]);
    // A clean shutdown persists everything.
    region.store(5000, b"shutdown").unwrap();
    drive = drive.power_cut().power_on().unwrap();
    let region = region_of(&attach(&mut drive).0);
    region.store(9000, b"shutdown").unwrap();
    drive.shut_down().unwrap();
    drop(region);
    let good = std::fs::read(&file).unwrap();
    assert_eq!((good.len(), &good[9000..9008]), (BYTES as usize + 4096, &b"shutdown"[..]));
    // An overlay starts from the file, and does not change it.
    let mut overlay = on_image(&image, "one");
    let MediaConfig::Nand(nand) = &mut overlay.media else { unreachable!() };
    nand.data = DataStore::Overlay(image.clone());
    let mut drive = Controller::new(overlay).unwrap();
    let region = region_of(&attach(&mut drive).0);
    assert_eq!(&read(&region, 9000), b"shutdown");
    region.store(9000, b"simulate").unwrap();
    region.persist(9000, 8).unwrap();
    drive.shut_down().unwrap();
    drop(region);
    // The file of another drive, of another size, or damaged.
    let refused = |config: DriveConfig, what: &str| {
        let error = Controller::new(config).unwrap_err();
        assert!(matches!(&error, DriveError::Sidecar { path, .. } if *path == file), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(on_image(&image, "two"), "drive with another name");
    let mut other = on_image(&image, "one");
    other.pmr = Some(PmrConfig { store: PmrStore::Emulated { bytes: 4096 }, costs: COSTS });
    refused(other, "bytes");
    assert_eq!(std::fs::read(&file).unwrap(), good, "untouched");
    let mut damaged = good.clone();
    damaged[BYTES as usize + 20] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    refused(on_image(&image, "one"), "damaged");
    assert_eq!(std::fs::read(&file).unwrap(), damaged, "untouched");
}

#[test]
fn impossible_regions_are_refused() {
    let with = |store| {
        let pmr = Some(PmrConfig { store, costs: COSTS });
        Controller::new(DriveConfig { pmr, ..block_config() }).map(drop)
    };
    for bytes in [0, 1, 64, 4095, 4097, PmrConfig::BYTES_MAX + 4096, u64::MAX] {
        let error = with(PmrStore::Emulated { bytes }).unwrap_err();
        assert!(matches!(error, DriveError::Config { .. }), "{error}");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
    // A file that is not on persistent memory.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pmem");
    std::fs::write(&path, [0; 8192]).unwrap();
    let error = with(PmrStore::Dax { path: path.clone() }).unwrap_err();
    let DriveError::PersistentMemory { path: named, source } = &error else { panic!("{error}") };
    assert_eq!(*named, path);
    assert!(matches!(source, PersistentMemoryError::NotDax), "{error}");
    let missing = PmrStore::Dax { path: folder.path().join("none") };
    assert!(matches!(with(missing), Err(DriveError::PersistentMemory { .. })));
    // Flushes to the host's device do not cover the file.
    let mut config = on_image(&folder.path().join("d.img"), "one");
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::DurableFile(folder.path().join("d.img"));
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("persistent memory region"), "{error}");
}

#[test]
fn sanitize_needs_it_disabled_and_clears_it() {
    let fault = Fault::Sanitize { action: SanitizeMethod::BlockErase };
    let prohibited = FaultError::Refused {
        kind: fault.kind(),
        status: Status::SANITIZE_PROHIBITED_PMR.do_not_retry(),
    };
    // Without registers it is always enabled.
    let mut drive = Controller::new(with_region(block_config())).unwrap();
    let (mut controller, _) = attach(&mut drive);
    assert_eq!(drive.inject_fault(Nanos(1), fault), Err(prohibited.clone()));
    let mut progress = || {
        drive.poll(Nanos(1));
    };
    assert!(matches!(
        controller.set_persistent_region_enabled(false, &mut progress),
        Err(DriverError::Unsupported { what: "registers" })
    ));

    let mut drive = Controller::new(with_registers(with_region(block_config()))).unwrap();
    let (mut controller, port) = attach(&mut drive);
    let region = region_of(&controller);
    region.store(0, b"secret").unwrap();
    region.persist(0, 6).unwrap();
    assert_eq!(drive.inject_fault(Nanos(1), fault), Err(prohibited));
    let mut now = Nanos(1);
    let mut progress = || {
        drive.poll(now);
    };
    controller.set_persistent_region_enabled(false, &mut progress).unwrap();
    drive.inject_fault(now, fault).unwrap();
    // It is not ready before the end, whatever the host writes.
    port.set_register(PMRCTL, ENABLED);
    drive.poll(now);
    assert_eq!((port.register(PMRCTL), port.register(PMRSTS)), (ENABLED, NOT_READY));
    assert_eq!(region.read(0, &mut [0; 6]), Err(RegionError::NotReady));
    while drive.stats().sanitizes == 0 {
        now = drive.deadline().max(now + Nanos(1));
        drive.poll(now);
    }
    drive.poll(now);
    assert_eq!(read(&region, 0), [0; 6]);
    drive = drive.power_cut().power_on().unwrap();
    assert_eq!(read(&region_of(&attach(&mut drive).0), 0), [0; 6], "persistent");
    // A drive without a region does not know one.
    let mut drive = Controller::new(block_config()).unwrap();
    let (mut controller, _) = attach(&mut drive);
    let mut progress = || {
        drive.poll(Nanos(1));
    };
    assert!(matches!(
        controller.set_persistent_region_enabled(true, &mut progress),
        Err(DriverError::Unsupported { what: "persistent memory region" })
    ));
}
