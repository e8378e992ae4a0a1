//! ARCHITECTURE.md, R9: reads of the key-value target do not allocate, and neither do puts of
//! existing keys, except for the record lists of chunks. A counting allocator verifies this.

use kv::{Key, Kv, KvAnswer, KvConfig, KvRequest, ValueBuffer};
use mem::SharedRegion;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

/// Runs a request. Returns the number of allocations of the target.
fn run(drive: &mut MockOpenChannelDrive, kv: &mut Kv, request: KvRequest) -> u64 {
    let submit = || kv.submit(Nanos(0), request).expect("room for a request");
    let mut made = allocation_counter::measure(submit).count_total;
    loop {
        let mut done = None;
        let poll = || {
            kv.poll(Nanos(0));
            done = kv.reap();
        };
        made += allocation_counter::measure(poll).count_total;
        if let Some(done) = done {
            assert!(matches!(done.result, Ok(KvAnswer::Done | KvAnswer::Value(100))), "{done:?}");
            return made;
        }
        drive.fetch();
        drive.step();
    }
}

#[test]
fn reads_do_not_allocate_and_puts_hardly() {
    let mut drive = MockOpenChannelDrive::new(geometry(2, 2, 64, 64, 4, 4), true, 1);
    let (port, queue) = drive.connect(64);
    let (info, chunks) = (drive.info(), drive.descriptors());
    let config = KvConfig::default();
    let mut kv =
        Kv::open(&info, &chunks, &|_| true, queue, port, config, &mut || {}, true).unwrap();
    let memory = SharedRegion::anonymous(4096).unwrap();
    let room = ValueBuffer { at: kv.memory().register(&memory).unwrap(), bytes: 100 };
    let key = |i: u64| Key::new(format!("user{i:020}").as_bytes()).unwrap();
    let keys: Vec<Key> = (0..200).map(key).collect();
    for key in &keys {
        run(&mut drive, &mut kv, KvRequest::put(key.clone(), room, 0));
    }
    let mut puts = 0;
    for i in 0..4000 {
        puts += run(&mut drive, &mut kv, KvRequest::put(keys[i * 7 % 200].clone(), room, 0));
    }
    assert!(puts < 4000 / 20, "{puts} allocations in 4000 puts");
    for key in &keys[..20] {
        run(&mut drive, &mut kv, KvRequest::get(key.clone(), room, 0));
    }
    let reads: u64 = (0..2000)
        .map(|i| run(&mut drive, &mut kv, KvRequest::get(keys[i % 200].clone(), room, 0)))
        .sum();
    assert_eq!(reads, 0);
}
