//! Broken invariants are reported by the name of their part and their own.

use std::sync::Arc;

use mem::SharedRegion;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

use crate::{Key, Kv, KvConfig, KvPart, KvRequest, ValueBuffer};

const NOW: Nanos = Nanos(0);

/// A target with a read in flight and units that are not durable.
struct Busy {
    /// Keeps the queues of the target.
    _drive: MockOpenChannelDrive,
    _memory: Arc<SharedRegion>,
    kv: Kv,
}

impl Busy {
    fn new() -> Busy {
        let mut drive = MockOpenChannelDrive::new(geometry(2, 2, 64, 64, 4, 4), true, 1);
        let (port, queue) = drive.connect(64);
        let (info, chunks) = (drive.info(), drive.descriptors());
        let config = KvConfig::default();
        let mut kv = Kv::open(&info, &chunks, &|_| true, queue, port, config, &mut || {}, true)
            .expect("a fresh drive");
        let memory = SharedRegion::anonymous(8192).expect("memory");
        let at = kv.memory().register(&memory).expect("a registration");
        let value = ValueBuffer { at, bytes: 1000 };
        let key = |i: u32| Key::new(&i.to_be_bytes()).expect("a short key");
        for i in 0..400 {
            let request = KvRequest::put(key(i), value, 0);
            kv.submit(NOW, request).expect("room for a request");
            while kv.reap().is_none() {
                kv.poll(NOW);
                drive.fetch();
                drive.step();
            }
            assert_eq!(kv.check_invariants(), Ok(()));
        }
        kv.submit(NOW, KvRequest::get(key(0), value, 1)).expect("room for a request");
        kv.submit(NOW, KvRequest::put(key(1), value, 2)).expect("room for a request");
        kv.submit(NOW, KvRequest::sync(3)).expect("room for a request");
        kv.poll(NOW);
        assert_eq!(kv.check_invariants(), Ok(()));
        Busy { _drive: drive, _memory: memory, kv }
    }
}

#[test]
fn a_broken_invariant_names_its_part() {
    type Break = fn(&mut Kv);
    let plants: &[(KvPart, &str, Break)] = &[
        (KvPart::Index, "keys, tombstones, their bytes, and whole chunks are counted", |kv| {
            kv.index.break_key_count();
        }),
        (KvPart::Space, "free chunks are listed", |kv| kv.chunks.break_free_list()),
        (KvPart::Space, "live bytes and records of unfinished values are counted", |kv| {
            let open = kv.chunks.iter().find(|(_, c)| c.live_bytes() > 0).expect("records").0;
            kv.chunks.begin_unfinished(open);
        }),
        (KvPart::Buffer, "units that are not durable have sequence numbers", |kv| {
            kv.streams.break_unit_seq();
        }),
        (KvPart::Requests, "free places are empty", |kv| kv.requests.break_request()),
        (KvPart::WriteOrder, "every key is counted, parked requests, and busy keys", |kv| {
            kv.write_order.break_parked_count();
        }),
        (KvPart::Puts, "unfinished values, and their bytes and chunks, are counted", |kv| {
            kv.puts.break_reservation();
        }),
        (KvPart::Reads, "an operation is free or has an owner", |kv| kv.reads.break_free_list()),
        (KvPart::Reads, "the values that are read keep their chunks", |kv| {
            let read = kv.chunks.iter().find(|(_, c)| c.readers() > 0).expect("a reader").0;
            kv.chunks.end_read(read);
        }),
        (KvPart::Compaction, "a failed chunk is queued or being evacuated", |kv| {
            kv.compaction.break_failing();
        }),
        (KvPart::Reclaim, "an obsolete chunk is in one stage", |kv| kv.reclaim.break_stage()),
        (KvPart::Durability, "requests wait in the order of the units", |kv| {
            kv.durability.break_order();
        }),
    ];
    for (part, invariant, break_it) in plants {
        let mut busy = Busy::new();
        break_it(&mut busy.kv);
        let found = busy.kv.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
        let text = found.to_string();
        assert!(text.starts_with(&format!("{part}: {invariant} is broken for ")), "{text}");
        assert!(text.contains(&found.expected) && text.contains(&found.found), "{text}");
    }
}
