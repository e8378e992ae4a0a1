//! `flush = "host"` of opened scenarios: a flush reaches the device of the machine.

// guarantee: D-56

use std::path::Path;

use scenario::Scenario;
use sluice_open::{OpenOptions, open_scenario};
use user_io::{Handle, QueueConfig};

const GEOMETRY: &str = "preset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n";
const SECTORS: u64 = 100;

#[test]
fn a_flush_reaches_the_host_through_every_layer() {
    let open_channel = "personality = \"open-channel\"\n";
    for (name, more, layers) in [
        ("drive", "", ""),
        ("pblk", open_channel, "[target]\nkind = \"pblk\"\n"),
        ("block layer", "", "[path]\nqueue_model = \"mq\"\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let keys = format!("data = \"file\"\npath = {image:?}\nflush = \"host\"\n");
        let text = format!("[drive]\n{GEOMETRY}{keys}{more}{layers}");
        let scenario = Scenario::parse(Path::new("x.toml"), &text).unwrap();
        for round in 1..=2u8 {
            let (device, control) =
                open_scenario(&scenario, None, &OpenOptions::default()).unwrap();
            let queue = device.create_queue(QueueConfig::default()).unwrap();
            let mut handle = Handle::new(&device, queue).unwrap();
            let bytes = device.limits().sector_bytes as usize;
            let data = device.buffer(bytes).unwrap();
            let mut back = vec![0; bytes];
            for lba in 0..SECTORS {
                if round > 1 {
                    handle.read(lba, &data).unwrap();
                    data.read(0, &mut back);
                    assert!(back.iter().all(|b| *b == round - 1), "{name}: sector {lba}");
                }
                data.fill(0, bytes, round);
                handle.write(lba, &data, false).unwrap();
            }
            handle.flush().unwrap();
            let stats = control.stats().unwrap().host_flush.expect("flushes reach the host");
            assert!(stats.flushes > 0 && stats.failures == 0, "{name}: {stats:?}");
        }
    }
}
