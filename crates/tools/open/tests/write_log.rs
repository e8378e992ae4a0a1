//! Opened scenarios with a log in the persistent memory region of the drive.

// guarantee: B-50

use std::path::Path;

use controller::{Fault, NamespaceRequest};
use scenario::Scenario;
use sluice_open::{OpenOptions, RegionLog, TargetOpenError, open_scenario};
use stack::StackError;
use user_io::{Handle, IoDevice, QueueConfig};

const GEOMETRY: &str = "preset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n";
/// More data than the log takes.
const SECTORS: u64 = 600;

fn open(text: &str) -> Result<IoDevice, TargetOpenError> {
    let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    open_scenario(&scenario, None, &OpenOptions::default()).map(|(device, _)| device)
}

fn log_error(text: &str) -> String {
    match open(text) {
        Err(TargetOpenError::Stack(error)) if matches!(*error, StackError::Log { .. }) => {
            error.to_string()
        }
        other => panic!("{text}: {other:?}"),
    }
}

/// Durable writes are in the log or were destaged, and the next opening finds them.
#[test]
fn durable_writes_are_in_the_log_of_the_next_opening() {
    let open_channel = "personality = \"open-channel\"\n";
    let layer = "queue_model = \"mq\"\ncores = 2\n";
    for (more, target, path) in
        [("", "", ""), ("", "", layer), (open_channel, "[target]\nkind = \"pblk\"\n", "")]
    {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let pmr = "pmr = { size = \"1M\", store = \"10ns\", persist = \"1us\" }\n";
        let drive =
            format!("[drive]\n{GEOMETRY}data = \"file\"\npath = {image:?}\n{pmr}{more}{target}");
        let with = format!("{drive}[path]\nlog = \"1M\"\n{path}");
        let mut sectors = 0;
        for round in 1..=3u8 {
            let device = open(&with).unwrap();
            let queue = device.create_queue(QueueConfig::default()).unwrap();
            let mut handle = Handle::new(&device, queue).unwrap();
            sectors = device.limits().sectors;
            let bytes = device.limits().sector_bytes as usize;
            let data = device.buffer(bytes).unwrap();
            let mut back = vec![0; bytes];
            for lba in 0..SECTORS {
                if round > 1 {
                    handle.read(lba, &data).unwrap();
                    data.read(0, &mut back);
                    assert!(back.iter().all(|b| *b == round - 1), "sector {lba}: {}", back[0]);
                }
                data.fill(0, bytes, round);
                handle.write(lba, &data, lba % 2 == 0).unwrap();
            }
            handle.flush().unwrap();
            let region = device.persistent_region().unwrap();
            let mut header = [0; 8];
            region.read(0, &mut header).unwrap();
            assert_eq!(&header, b"SLUICLOG");
        }
        // The device has one sector more without the log, which may have data.
        let error = log_error(&format!("{drive}{}", if path.is_empty() { "" } else { "[path]\n" }));
        assert!(error.contains("open the device with its own log"), "{error}");
        let other_size = format!("{drive}[path]\nlog = \"512k\"\n");
        assert!(log_error(&other_size).contains("1048576 bytes"), "another size");
        let member = drive.replace("[drive]\n", "[[drive]]\n");
        if target.is_empty() {
            let set = "[[set]]\nname = \"s\"\nmembers = [\"drive0\"]\n\
                [[path]]\nname = \"p\"\nover = \"s\"\n";
            let error = log_error(&format!("{}{set}", member.replace(pmr, "")));
            assert!(error.contains("open the device with its own log"), "{error}");
        }
        // The region of another drive.
        let own = folder.path().join("image.pmr");
        let kept = std::fs::read(&own).unwrap();
        std::fs::remove_file(&own).unwrap();
        assert!(log_error(&with).contains("this memory has no log"));
        std::fs::write(&own, kept).unwrap();
        let device = open(&with).unwrap();
        assert_eq!(device.limits().sectors, sectors, "the refused log is unharmed");
    }
}

#[test]
fn an_image_with_data_in_the_last_sector_gets_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let drive =
        format!("[drive]\n{GEOMETRY}data = \"file\"\npath = {image:?}\npmr.size = \"1M\"\n");
    {
        let device = open(&drive).unwrap();
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&device, queue).unwrap();
        let limits = device.limits();
        let data = device.buffer(limits.sector_bytes as usize).unwrap();
        data.fill(0, limits.sector_bytes as usize, 7);
        handle.write(limits.sectors - 1, &data, true).unwrap();
    }
    let error = log_error(&format!("{drive}[path]\nlog = \"1M\"\n"));
    assert!(error.contains("the log needs this sector"), "{error}");
    open(&drive).unwrap();
}

#[test]
fn an_option_gives_a_device_a_log_in_its_region() {
    let drive = format!("[drive]\n{GEOMETRY}");
    let open_with = |text: &str, name: Option<&str>, size| {
        let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
        let options = OpenOptions { log: Some(size), ..OpenOptions::default() };
        open_scenario(&scenario, name, &options).map(|(device, _)| device)
    };
    let open = |text: &str, name: Option<&str>| open_with(text, name, RegionLog::Whole);
    // Lines of the ring, from the header of the log.
    let lines = |device: IoDevice| {
        let mut header = [0; 64];
        device.persistent_region().unwrap().read(0, &mut header).unwrap();
        assert_eq!(header[..8], *b"SLUICLOG");
        u32::from_le_bytes(header[56..60].try_into().unwrap())
    };
    let region = format!("{drive}pmr.size = \"1M\"\n");
    assert_eq!(lines(open(&region, None).unwrap()), (1 << 14) - 2);
    let named = format!("{region}[[path]]\nname = \"p\"\nover = \"drive0\"\n");
    assert_eq!(lines(open(&named, Some("p")).unwrap()), (1 << 14) - 2);
    let half = RegionLog::Bytes(512 << 10);
    assert_eq!(lines(open_with(&named, Some("p"), half).unwrap()), (1 << 13) - 2);
    let has = format!("{region}[path]\nlog = \"512k\"\n");
    assert_eq!(lines(open(&has, None).unwrap()), (1 << 13) - 2);
    assert_eq!(lines(open_with(&has, None, half).unwrap()), (1 << 13) - 2);
    for (text, bytes, says) in [
        (&region, 0, "multiples of 64 bytes"),
        (&region, 65_535, "multiples of 64 bytes"),
        (&region, 65_536 + 32, "multiples of 64 bytes"),
        (&region, (1 << 20) + 64, "up to 1048576"),
        (&region, u64::MAX, "up to 1048576"),
        (&has, 1 << 20, "524288, as `log` of the scenario"),
    ] {
        match open_with(text, None, RegionLog::Bytes(bytes)) {
            Err(TargetOpenError::Option { option: "log", value, allowed, .. }) => {
                assert_eq!(value, bytes.to_string());
                assert!(allowed.contains(says), "{bytes}: {allowed}");
            }
            other => panic!("{bytes}: {other:?}"),
        }
    }
    let set = "pmr.size = \"1M\"\n[[set]]\nname = \"s\"\nmembers = [\"drive0\"]\n";
    for text in [drive.clone(), format!("{drive}{set}")] {
        let error = open(&text, None).unwrap_err().to_string();
        assert!(error.contains("no persistent memory region for a log"), "{error}");
    }
    let options = OpenOptions { log: Some(RegionLog::Whole), ..OpenOptions::default() };
    match sluice_open::open("null", &options) {
        Err(TargetOpenError::Option { option: "log", .. }) => {}
        other => panic!("{other:?}"),
    }
}

// guarantee: B-110

/// The log would bring formatted blocks back, so that the drive refuses formats while it is open, also
/// after a loss of power.
#[test]
fn a_drive_whose_log_is_open_refuses_formats() {
    let drive = format!("[drive]\n{GEOMETRY}pmr.size = \"1M\"\n");
    let open = |text: &str| {
        let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
        open_scenario(&scenario, None, &OpenOptions::default()).unwrap()
    };
    let (device, control) = open(&format!("{drive}[path]\nlog = \"1M\"\n"));
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    let bytes = device.limits().sector_bytes as usize;
    let data = device.buffer(bytes).unwrap();
    data.fill(0, bytes, 7);
    handle.write(3, &data, true).unwrap();
    for round in 0..2 {
        for erase in [false, true] {
            let error = control.inject_fault(None, Fault::Format { erase }).unwrap_err();
            assert!(error.to_string().contains("operation denied"), "{error}");
        }
        for nsid in [Some(1), None] {
            let delete = NamespaceRequest::Delete { nsid };
            let error = control.change_namespaces(None, delete).unwrap_err();
            assert!(error.to_string().contains("operation denied"), "{error}");
        }
        if round == 0 {
            control.inject_fault(None, Fault::PowerCut { after_ops: 0 }).unwrap();
        }
        data.fill(0, bytes, 0);
        handle.read(3, &data).unwrap();
        let mut back = vec![0; bytes];
        data.read(0, &mut back);
        assert_eq!((back[0], back[bytes - 1]), (7, 7));
    }
    let (_device, control) = open(&drive);
    control.inject_fault(None, Fault::Format { erase: false }).unwrap();
}
