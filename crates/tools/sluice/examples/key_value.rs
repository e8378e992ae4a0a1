//! Keys and values on flash managed by the host, without a block device in between.
//!
//! `cargo run -p sluice-ssd --example key_value`

use std::error::Error;
use std::path::Path;

use sluice::controller::Controller;
use sluice::driver::ControllerHandle;
use sluice::kv::{BlockingKv, BlockingMutation, Kv, KvConfig};
use sluice::scenario::Scenario;
use sluice::time::{Component, Nanos, VirtualRunner};

const SCENARIO: &str = r#"
[drive]
preset = "ocssd-mlc-128pu-small"
data = "memory"
geometry = { channels = 4, pus = 2, planes = 1, pages = 16, chunks = 24 }
"#;

/// Maximum number of polls of the drive per admin command.
const POLLS_MAX: u64 = 1_000_000;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: open
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let mut drive = Controller::new(scenario.drives[0].config.clone())?;
    let port = drive.attach()?;
    // The drive and the host share this thread: `progress` lets the drive run while the host waits.
    let mut runner = VirtualRunner::new();
    let mut progress = || {
        runner.step(&mut [&mut drive as &mut dyn Component], Nanos::MAX);
    };
    let mut controller = ControllerHandle::connect(port.clone(), &mut progress, POLLS_MAX)?;
    let queue = controller.create_queue_pair(256, None, &mut progress)?;
    let info = controller.info().clone();
    let chunk_count = info.open_channel.as_ref().map_or(0, |oc| oc.geometry.total_chunks());
    let chunks = controller.chunks(0, chunk_count, &mut progress)?;
    let every_chunk = |_| true;
    let config = KvConfig::default();
    let mut kv = Kv::open(&info, &chunks, &every_chunk, queue, port, config, &mut progress, true)?;
    // ANCHOR_END: open

    // ANCHOR: use
    let mut now = BlockingKv::new(&mut kv, &mut progress); // one request at a time
    now.put(b"key", b"value")?;
    // A batch becomes durable as a whole or not at all.
    now.batch(&[BlockingMutation::Update(b"key", b"other"), BlockingMutation::Put(b"new", b"")])?;
    now.sync()?;
    assert_eq!(now.get(b"key")?, Some(b"other".to_vec()));
    assert_eq!(now.get(b"new")?, Some(Vec::new()));

    // A value that fills whole chunks is written to them directly, and garbage collection never
    // moves it.
    let large: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
    now.put(b"large", &large)?;
    assert_eq!(now.get(b"large")?, Some(large));
    now.delete(b"large")?;
    assert_eq!(now.keys(b"").len(), 2);
    // ANCHOR_END: use
    println!("{} keys after {} of virtual time", kv.stats().keys, runner.now());
    Ok(())
}
