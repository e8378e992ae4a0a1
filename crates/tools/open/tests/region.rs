//! `IoDevice::persistent_region`: the persistent memory region of drives that this process opens.

// guarantee: B-98, B-101

use std::path::Path;

use controller::Fault;
use driver::RegionError;
use scenario::Scenario;
use sluice_open::{DriveControl, OpenOptions, TargetOpenError, open_scenario};
use time::Nanos;
use user_io::{DirectError, IoDevice, NoRegionReason};

const BYTES: u64 = 64 << 10;
const PMR: &str = "pmr = { size = \"64k\", store = \"2us\", persist = \"300us\" }\n";
const SMALL: &str = "geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n";

fn open(text: &str) -> Result<(IoDevice, DriveControl), TargetOpenError> {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap();
    open_scenario(&scenario, None, &OpenOptions::default())
}

/// A drive of every kind, a target and a block layer.
fn scenarios() -> Vec<String> {
    let open_channel =
        format!("[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n{SMALL}{PMR}");
    let block = format!("[drive]\npreset = \"femu-default\"\n{SMALL}{PMR}");
    vec![
        block.clone(),
        format!("{block}controller.registers = true\n"),
        format!("{block}[path]\nqueue_model = \"mq\"\ncores = 2\n"),
        open_channel.clone(),
        format!("{open_channel}[target]\nkind = \"pblk\"\n"),
        format!("[drive]\npreset = \"pcm\"\ncapacity = \"64M\"\n{PMR}"),
    ]
}

#[test]
fn every_device_over_one_drive_has_its_region() {
    for text in scenarios() {
        let (device, control) = open(&text).unwrap();
        let region = device.persistent_region().unwrap();
        assert_eq!(region.bytes(), BYTES, "{text}");
        // The costs are spent when the call returns.
        let clock = device.clock();
        let began = clock.now();
        assert_eq!(region.store(100, &[7; 640]), Ok(Nanos::ZERO));
        assert!(clock.now().since(began) >= Nanos::from_micros(22), "{text}");
        let began = clock.now();
        region.persist(100, 640).unwrap();
        assert!(clock.now().since(began) >= Nanos::from_micros(300), "{text}");
        control.inject_fault(None, Fault::PowerCut { after_ops: 0 }).unwrap();
        let mut found = [0; 640];
        region.read(100, &mut found).unwrap();
        assert_eq!(found, [7; 640], "{text}");
        let outside = RegionError::OutOfBounds { offset: BYTES, len: 1, bytes: BYTES };
        assert_eq!(region.persist(BYTES, 1), Err(outside));
        assert_eq!(control.stats().unwrap().pmr.unwrap().lines_stored, 11);
        let region = region.clone();
        drop((device, control));
        // The drive was shut down.
        assert_eq!(region.read(0, &mut found), Err(RegionError::Removed));
    }
}

#[test]
fn devices_without_one_say_why() {
    let reason = |device: &IoDevice| match device.persistent_region() {
        Err(error @ DirectError::NoRegion { reason, .. }) => {
            assert_eq!(error.errno(), libc::EOPNOTSUPP);
            reason
        }
        other => panic!("{other:?}"),
    };
    let (device, _) = open(&format!("[drive]\npreset = \"femu-default\"\n{SMALL}")).unwrap();
    assert_eq!(reason(&device), NoRegionReason::NoRegion);
    let null = sluice_open::open("null", &OpenOptions::default()).unwrap();
    assert_eq!(reason(&null), NoRegionReason::NoRegion);
    let drives: String = (0..2)
        .map(|i| format!("[[drive]]\nname = \"d{i}\"\npreset = \"femu-default\"\n{SMALL}{PMR}"))
        .collect();
    let set = "[[set]]\nname = \"s\"\nmembers = [\"d0\", \"d1\"]\n\
        [[path]]\nname = \"p\"\nover = \"s\"\n";
    let (device, _) = open(&format!("{drives}{set}")).unwrap();
    assert_eq!(reason(&device), NoRegionReason::Several);
    // A file that is not on persistent memory.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pmem");
    std::fs::write(&path, [0; 4096]).unwrap();
    let dax = format!("[drive]\npreset = \"femu-default\"\n{SMALL}pmr.dax = {path:?}\n");
    let error = open(&dax).unwrap_err().to_string();
    assert!(error.contains("pmem") && error.contains("MAP_SYNC"), "{error}");
}
