//! Opened scenarios with a log in the persistent memory region of the drive.

// guarantee: B-50

use std::path::Path;

use scenario::Scenario;
use sluice_open::{OpenOptions, TargetOpenError, open_scenario};
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
fn an_option_gives_a_device_a_log_in_the_whole_region() {
    let drive = format!("[drive]\n{GEOMETRY}");
    let open = |text: &str, name: Option<&str>| {
        let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
        let options = OpenOptions { log_in_region: true, ..OpenOptions::default() };
        open_scenario(&scenario, name, &options).map(|(device, _)| device)
    };
    let has_log = |device: IoDevice| {
        let mut magic = [0; 8];
        device.persistent_region().unwrap().read(0, &mut magic).unwrap();
        magic == *b"SLUICLOG"
    };
    assert!(has_log(open(&format!("{drive}pmr.size = \"1M\"\n"), None).unwrap()));
    let named = "pmr.size = \"1M\"\n[[path]]\nname = \"p\"\nover = \"drive0\"\n";
    assert!(has_log(open(&format!("{drive}{named}"), Some("p")).unwrap()));
    let set = "pmr.size = \"1M\"\n[[set]]\nname = \"s\"\nmembers = [\"drive0\"]\n";
    for text in [drive.clone(), format!("{drive}{set}")] {
        let error = open(&text, None).unwrap_err().to_string();
        assert!(error.contains("no persistent memory region for a log"), "{error}");
    }
    let options = OpenOptions { log_in_region: true, ..OpenOptions::default() };
    match sluice_open::open("null", &options) {
        Err(TargetOpenError::Option { option: "log_in_region", .. }) => {}
        other => panic!("{other:?}"),
    }
}
