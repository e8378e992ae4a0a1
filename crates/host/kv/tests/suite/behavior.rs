//! Individual behaviors of the key-value target, on a drive that enforces the NAND rules.

// guarantee: D-50, D-51

use std::sync::Arc;

use driver::{ControllerInfo, OpenChannelInfo};
use kv::{
    BlockingKv, BlockingMutation, Cursor, Key, Kv, KvAnswer, KvConfig, KvError, KvMutation,
    KvOpenError, KvRequest, ValueBuffer,
};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

const NOW: Nanos = Nanos(0);

struct Bench {
    drive: MockOpenChannelDrive,
    kv: Kv,
}

fn try_open(drive: &mut MockOpenChannelDrive, config: KvConfig) -> Result<Kv, KvOpenError> {
    let (port, queue) = drive.connect(64);
    let (info, chunks) = (drive.info(), drive.descriptors());
    let progress = &mut || {
        drive.fetch();
        for _ in 0..4 {
            drive.step();
        }
    };
    Kv::open(&info, &chunks, &|_| true, queue, port, config, progress, true)
}

/// Runs a synchronous operation of a target.
macro_rules! now {
    ($bench:expr, $now:ident => $what:expr) => {{
        let Bench { drive, kv } = &mut $bench;
        let progress = &mut || {
            drive.fetch();
            drive.step();
        };
        let $now = &mut BlockingKv::new(kv, progress);
        $what
    }};
}

impl Bench {
    fn new(seed: u64) -> Bench {
        Bench::with(small(seed), KvConfig::default())
    }

    fn with(mut drive: MockOpenChannelDrive, config: KvConfig) -> Bench {
        let kv = try_open(&mut drive, config).expect("a drive that can be opened");
        Bench { drive, kv }
    }

    fn cut(mut self) -> Bench {
        self.drive.cut_power();
        Bench::with(self.drive, KvConfig::default())
    }

    fn put(&mut self, key: &str, value: &[u8]) {
        now!(*self, now => now.put(key.as_bytes(), value)).unwrap();
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        now!(*self, now => now.get(key.as_bytes()))
    }

    fn sync(&mut self) {
        now!(*self, now => now.sync()).unwrap();
    }

    fn run_until_idle(&mut self) {
        while self.kv.poll(NOW) | self.drive.fetch() | self.drive.step() {}
    }

    fn memory(&self, bytes: usize) -> (Arc<SharedRegion>, Iova) {
        let memory = SharedRegion::anonymous(bytes).unwrap();
        let at = self.kv.memory().register(&memory).unwrap();
        (memory, at)
    }

    fn run(&mut self, request: KvRequest) -> Result<KvAnswer, KvError> {
        self.kv.submit(NOW, request).unwrap();
        for _ in 0..1_000_000 {
            self.kv.poll(NOW);
            if let Some(done) = self.kv.reap() {
                return done.result;
            }
            self.drive.fetch();
            self.drive.step();
        }
        panic!("never ends: {}", self.kv.debug_state());
    }
}

/// Chunks of 32 KB: 64 sectors of 512 bytes in 16 units.
fn small(seed: u64) -> MockOpenChannelDrive {
    MockOpenChannelDrive::new(geometry(2, 2, 16, 64, 4, 8), true, seed)
}

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn values_of_every_length_come_back_from_memory_from_flash_and_after_a_power_cut() {
    let mut b = Bench::new(1);
    let chunk = b.kv.layout().chunk_bytes as usize;
    let record = b.kv.layout().record_bytes as usize;
    let lens = [
        0,
        1,
        7,
        8,
        511,
        512,
        513,
        2048,
        record - 60,
        record,
        record + 1,
        chunk - 1,
        chunk,
        chunk + 1,
        3 * chunk,
        3 * chunk + 4097,
    ];
    let key = |i: usize| "k".repeat(1 + i * 254 / (lens.len() - 1));
    for (i, len) in lens.iter().enumerate() {
        b.put(&key(i), &value(i as u64, *len));
        assert_eq!(b.get(&key(i)), Ok(Some(value(i as u64, *len))), "{len}");
    }
    b.sync();
    for round in 0..2 {
        for (i, len) in lens.iter().enumerate() {
            assert_eq!(b.get(&key(i)), Ok(Some(value(i as u64, *len))), "{len}, {round}");
            let found = now!(b, now => now.exists(key(i).as_bytes()));
            assert_eq!(found, Ok(true));
        }
        assert_eq!(b.kv.len(), lens.len() as u64);
        assert_eq!(b.kv.check_invariants(), Ok(()));
        b = b.cut();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut b = Bench::new(2);
    let long = [b'k'; 256];
    let refused = |bytes| Err(KvError::KeyLength(kv::KeyLengthError { bytes }));
    assert_eq!(now!(b, now => now.put(b"", b"x")), refused(0));
    assert_eq!(now!(b, now => now.put(&long, b"x")), refused(256));
    assert_eq!(now!(b, now => now.get(&long)), Err(refused(256).unwrap_err()));
    assert_eq!(now!(b, now => now.update(b"a", b"x")), Err(KvError::NotFound));
    assert_eq!(now!(b, now => now.delete(b"a")), Err(KvError::NotFound));
    assert_eq!(b.get("a"), Ok(None));
    let missing = [BlockingMutation::Put(b"a", b"x"), BlockingMutation::Update(b"b", b"y")];
    assert_eq!(now!(b, now => now.batch(&missing)), Err(KvError::NotFound));
    assert_eq!(b.get("a"), Ok(None), "no part of a batch");
    let (_, at) = b.memory(4096);
    let key = || Key::new(b"a").unwrap();
    let most = b.kv.layout().value_bytes();
    let huge = ValueBuffer { at, bytes: most + 1 };
    let too_large = KvError::ValueTooLarge { bytes: most + 1, bytes_max: most };
    assert_eq!(b.run(KvRequest::put(key(), huge, 0)), Err(too_large));
    let nowhere = ValueBuffer { at: Iova(8), bytes: 4 };
    assert_eq!(b.run(KvRequest::put(key(), nowhere, 0)), Err(KvError::NotRegistered));
    let past = ValueBuffer { at: at.offset(4000), bytes: 100 };
    assert_eq!(b.run(KvRequest::get(key(), past, 0)), Err(KvError::NotRegistered));
    b.put("a", &[7; 100]);
    let little = ValueBuffer { at, bytes: 99 };
    assert_eq!(
        b.run(KvRequest::get(key(), little, 0)),
        Err(KvError::BufferTooSmall { bytes: 100 })
    );
    let values = [7; 2000];
    let names: Vec<String> = (0..20).map(|i| format!("{i}")).collect();
    let batch: Vec<BlockingMutation<'_>> =
        names.iter().map(|n| BlockingMutation::Put(n.as_bytes(), &values)).collect();
    let result = now!(b, now => now.batch(&batch));
    assert!(matches!(result, Err(KvError::BatchTooLarge { .. })), "{result:?}");
    assert_eq!(b.kv.len(), 1);
    assert_eq!(b.kv.stats().errors, 8, "keys of no length are not even asked for");
}

#[test]
fn large_value_chunks_are_never_moved_and_deleting_one_is_an_erase() {
    let mut b = Bench::new(3);
    let chunk = b.kv.layout().chunk_bytes as usize;
    let free = b.kv.stats().free_chunks;
    for round in 0..40u64 {
        for i in 0..10 {
            b.put(&format!("{i}"), &value(round * 10 + i, chunk));
        }
    }
    let stats = b.kv.stats();
    assert_eq!(stats.large_value_chunks_written, 400);
    assert!(stats.relocated_bytes < 400 * 100, "only what names them is moved: {stats:?}");
    let wa = stats.write_amplification(b.kv.layout().unit_bytes, chunk as u32).unwrap();
    assert!(wa < 1.05, "{wa}");
    for i in 0..10 {
        assert_eq!(b.get(&format!("{i}")), Ok(Some(value(390 + i, chunk))));
    }
    b.sync();
    b.run_until_idle();
    let erased = b.kv.stats().chunks_erased;
    for i in 0..10 {
        now!(b, now => now.delete(format!("{i}").as_bytes())).unwrap();
    }
    b.sync();
    b.run_until_idle();
    let stats = b.kv.stats();
    assert_eq!((stats.large_value_chunks, stats.chunks_erased - erased), (0, 10));
    assert!(free - stats.free_chunks <= b.kv.layout().concurrency.streams_max);
}

#[test]
fn small_values_are_packed_and_compacted_by_relocating_what_lives() {
    let mut b = Bench::new(4);
    let mut rng = Rng::new(4);
    let put = |b: &mut Bench, i: u64, round: u64| {
        b.put(&format!("key{i:04}"), &value(i ^ round << 32, 200))
    };
    for i in 0..3500 {
        put(&mut b, i, 0);
    }
    b.run_until_idle();
    let stats = b.kv.stats();
    let wa =
        stats.write_amplification(b.kv.layout().unit_bytes, b.kv.layout().chunk_bytes).unwrap();
    assert!(wa < 256.0 / 200.0 * 1.02, "headers and keys, and nothing else: {wa}");
    let mut last = vec![0; 3500];
    for round in 1..20_000 {
        let i = rng.below(3500);
        put(&mut b, i, round);
        last[i as usize] = round;
    }
    let stats = b.kv.stats();
    assert!(stats.chunks_compacted > 50 && stats.relocated_bytes > 0, "{stats:?}");
    assert!(stats.live_ratio() > 0.3 && stats.live_ratio() <= 1.0, "{}", stats.live_ratio());
    b.sync();
    let mut b = b.cut();
    for (i, round) in (0..).zip(last) {
        assert_eq!(b.get(&format!("key{i:04}")), Ok(Some(value(i ^ round << 32, 200))));
    }
    assert_eq!(b.kv.check_invariants(), Ok(()));
}

#[test]
fn durable_is_durable_and_a_sync_covers_what_came_before() {
    let mut b = Bench::new(5);
    let (memory, at) = b.memory(4096);
    memory.fill(0, 4096, 9);
    b.put("buffered", b"x");
    b.run_until_idle();
    assert_eq!((b.drive.stats.programs, b.kv.stats().units_written), (0, 0), "in memory");
    let durable = ValueBuffer { at, bytes: 30 };
    b.run(KvRequest::put(Key::new(b"durable").unwrap(), durable, 0).durably()).unwrap();
    assert!(b.drive.stats.programs > 0);
    b.put("late", b"y");
    let mut b = b.cut();
    assert_eq!(b.get("durable"), Ok(Some(vec![9; 30])));
    assert_eq!(b.get("late"), Ok(None));
    // A durable mutation includes all earlier ones.
    assert_eq!(b.get("buffered"), Ok(Some(b"x".to_vec())));
    now!(b, now => now.delete(b"durable")).unwrap();
    b.put("late", b"z");
    b.sync();
    let mut b = b.cut();
    assert_eq!((b.get("durable"), b.get("late")), (Ok(None), Ok(Some(b"z".to_vec()))));
}

#[test]
fn a_deleted_key_stays_deleted_until_nothing_is_left_of_it() {
    let mut b = Bench::new(6);
    for i in 0..300 {
        b.put(&format!("gone{i:03}"), &value(i, 100));
    }
    b.sync();
    for i in 0..300 {
        now!(b, now => now.delete(format!("gone{i:03}").as_bytes())).unwrap();
    }
    b.sync();
    assert_eq!((b.kv.len(), b.kv.stats().tombstones), (0, 300));
    // Writes of other keys cause compaction of the old records; tombstones are dropped last.
    let mut rng = Rng::new(6);
    for round in 0..6 {
        b = b.cut();
        let old = now!(b, now => now.keys(b"gone"));
        assert!(old.is_empty(), "round {round}: {old:?}");
        for i in 0..6000 {
            b.put(&format!("other{:04}", rng.below(2200)), &value(i, 300));
        }
        b.sync();
        assert_eq!(b.kv.check_invariants(), Ok(()));
    }
    assert_eq!(b.kv.stats().tombstones, 0);
    let mut b = b.cut();
    assert_eq!(now!(b, now => now.keys(b"gone")), []);
}

#[test]
fn a_sector_that_cannot_be_read_fails_its_keys_alone_and_for_ever() {
    let mut b = Bench::new(7);
    let chunk = b.kv.layout().chunk_bytes as usize;
    for i in 0..600 {
        b.put(&format!("{i:04}"), &value(i, 400));
        b.put(&format!("{i:04}"), &value(i + 1000, 400));
    }
    b.put("whole", &value(5, chunk));
    b.put("other whole", &value(6, chunk));
    b.sync();
    // One sector in fifty.
    let sectors = b.drive.geometry.total_sectors();
    b.drive.faults.unreadable.extend((0..sectors).step_by(50));
    let mut lost = Vec::new();
    for i in 0..600 {
        match b.get(&format!("{i:04}")) {
            Ok(found) => assert_eq!(found, Some(value(i + 1000, 400))),
            Err(KvError::Media { .. }) => lost.push(i),
            Err(e) => panic!("{e}"),
        }
    }
    assert!((3..60).contains(&lost.len()), "{lost:?}");
    assert!(matches!(b.get("whole"), Err(KvError::Media { .. })));
    assert!(matches!(b.get("other whole"), Err(KvError::Media { .. })));
    // Everything is relocated: lost values stay lost, and no older value reappears.
    let mut rng = Rng::new(7);
    for i in 0..30_000 {
        b.put(&format!("x{:04}", rng.below(1300)), &value(i, 400));
    }
    b.sync();
    let stats = b.kv.stats();
    assert!(stats.values_uncorrectable > 0, "{stats:?}");
    assert_eq!(b.kv.check_invariants(), Ok(()));
    let check = |b: &mut Bench| {
        for i in 0..600 {
            match b.get(&format!("{i:04}")) {
                Ok(found) => {
                    assert_eq!(found, Some(value(i + 1000, 400)), "{i}");
                    assert!(!lost.contains(&i), "{i}");
                }
                Err(KvError::Media { status }) => {
                    assert!(status.is(Status::UNRECOVERED_READ) && lost.contains(&i), "{i}");
                }
                Err(e) => panic!("{e}"),
            }
        }
    };
    check(&mut b);
    b.drive.faults.unreadable.clear();
    let mut b = b.cut();
    for i in [lost[0], lost[lost.len() - 1]] {
        b.put(&format!("{i:04}"), b"again");
        assert_eq!(b.get(&format!("{i:04}")), Ok(Some(b"again".to_vec())));
    }
}

#[test]
fn a_full_store_says_so_and_goes_on_when_something_is_deleted() {
    for len in [100, 3000, 32 << 10, 40_000] {
        let mut b = Bench::new(8);
        let mut count = 0u64;
        let error = loop {
            let result =
                now!(b, now => now.put(format!("{count:05}").as_bytes(), &value(count, len)));
            match result {
                Ok(()) => count += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(error, KvError::Full, "{len}");
        let layout = *b.kv.layout();
        let room = u64::from(layout.budget.capacity) * u64::from(layout.chunk_bytes);
        let share = count as f64 * len as f64 / room as f64;
        assert!(share > if len == 100 { 0.4 } else { 0.55 }, "{len}: {share}");
        // Every value can be put again, unless it needs whole chunks in addition to the old ones.
        if len < layout.chunk_bytes as usize {
            for i in 0..count {
                let result =
                    now!(b, now => now.update(format!("{i:05}").as_bytes(), &value(i + 1, len)));
                assert_eq!(result, Ok(()), "{len}: {i} of {count}");
            }
        }
        for i in 0..count / 2 {
            now!(b, now => now.delete(format!("{i:05}").as_bytes())).unwrap();
        }
        for i in 0..count / 3 {
            b.put(&format!("new{i:05}"), &value(i, len));
        }
        b.sync();
        let mut b = b.cut();
        assert_eq!(b.kv.len(), count - count / 2 + count / 3);
        assert_eq!(b.get("new00000"), Ok(Some(value(0, len))));
        assert_eq!(b.kv.check_invariants(), Ok(()));
    }
}

#[test]
fn an_exhausted_spare_makes_it_read_only() {
    let mut b = Bench::new(9);
    for i in 0..200 {
        b.put(&format!("{i:03}"), &value(i, 300));
    }
    b.sync();
    b.drive.faults.program_fail = 0.2;
    let mut error = None;
    for i in 0..100_000u64 {
        let key = format!("{:03}", i % 200);
        let result = now!(b, now => now.put(key.as_bytes(), &value(i % 200, 300)));
        if let Err(e) = result {
            error = Some(e);
            break;
        }
    }
    assert_eq!(error, Some(KvError::ReadOnly));
    b.drive.faults.program_fail = 0.0;
    b.sync();
    assert_eq!(now!(b, now => now.delete(b"000")), Err(KvError::ReadOnly));
    let one = [BlockingMutation::Put(b"000", b"x")];
    assert_eq!(now!(b, now => now.batch(&one)), Err(KvError::ReadOnly));
    for i in 0..200 {
        assert_eq!(b.get(&format!("{i:03}")), Ok(Some(value(i, 300))));
    }
    assert!(b.kv.stats().chunks_retired > 3);
    let mut b = b.cut();
    for i in 0..200 {
        assert_eq!(b.get(&format!("{i:03}")), Ok(Some(value(i, 300))));
    }
}

#[test]
fn keys_are_walked_in_order_while_they_change() {
    let mut b = Bench::new(10);
    for i in (0..100).rev() {
        b.put(&format!("a{i:02}"), &[1; 10]);
        b.put(&format!("b{i:02}"), &[2; 20]);
    }
    let keys = now!(b, now => now.keys(b"a"));
    assert_eq!(keys.len(), 100);
    assert!(keys.windows(2).all(|w| w[0] < w[1]));
    let mut cursor = Cursor::prefix(b"a");
    let mut seen = Vec::new();
    while let Some((key, bytes)) = b.kv.next(&mut cursor) {
        assert_eq!(bytes, 10);
        seen.push(String::from_utf8(key.as_bytes().to_vec()).unwrap());
        if seen.len() == 50 {
            // Before the cursor, at it, and after it.
            for key in ["a10", "a49", "a80"] {
                now!(b, now => now.delete(key.as_bytes())).unwrap();
            }
            b.put("a00x", &[1; 10]);
            b.put("a90x", &[1; 10]);
        }
    }
    let mut expected: Vec<String> = (0..100).map(|i| format!("a{i:02}")).collect();
    expected.retain(|k| k != "a80");
    expected.insert(90, "a90x".into());
    assert_eq!(seen, expected);
    let mut scan = Cursor::starting_at(Key::new(b"b50").unwrap());
    let from = b.kv.next(&mut scan).unwrap().0;
    assert_eq!(from.as_bytes(), b"b50");
    assert_eq!(std::iter::from_fn(|| b.kv.next(&mut scan)).count(), 49);
}

#[test]
fn requests_for_a_key_keep_their_order_and_others_go_past() {
    let mut b = Bench::new(11);
    let chunk = b.kv.layout().chunk_bytes as usize;
    b.put("other", b"here");
    let (memory, at) = b.memory(4 * chunk);
    memory.fill(0, chunk, 1);
    memory.fill(chunk, chunk, 2);
    let key = || Key::new(b"k").unwrap();
    let room = |i: usize, bytes| ValueBuffer { at: at.offset((i * chunk) as u64), bytes };
    let whole = chunk as u64;
    let requests = [
        KvRequest::put(key(), room(0, whole), 1),
        KvRequest::get(key(), room(2, whole), 2),
        KvRequest::put(key(), room(1, 50), 3),
        KvRequest::get(key(), room(3, whole), 4),
        KvRequest::delete(key(), 5),
        KvRequest::exists(key(), 6),
        KvRequest::get(Key::new(b"other").unwrap(), room(3, whole), 7),
    ];
    for request in requests {
        b.kv.submit(NOW, request).unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 7 {
        b.kv.poll(NOW);
        done.extend(std::iter::from_fn(|| b.kv.reap()));
        b.drive.fetch();
        b.drive.step();
    }
    assert_eq!(done[0].tag, 7, "a read of another key waits for nobody");
    let of_key: Vec<u64> = done.iter().map(|d| d.tag).filter(|t| *t != 7).collect();
    assert_eq!(of_key[0], 1);
    let result = |tag| done.iter().find(|d| d.tag == tag).unwrap().result;
    assert_eq!(result(2), Ok(KvAnswer::Value(whole)));
    assert_eq!(result(4), Ok(KvAnswer::Value(50)));
    assert_eq!((result(5), result(6)), (Ok(KvAnswer::Done), Ok(KvAnswer::Exists(None))));
    let mut bytes = vec![0; chunk];
    memory.read(2 * chunk, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 1));
}

#[test]
fn a_batch_on_the_same_keys_is_made_in_order() {
    let mut b = Bench::new(12);
    let changes = [
        BlockingMutation::Put(b"a", b"1"),
        BlockingMutation::Update(b"a", b"2"),
        BlockingMutation::Put(b"b", b"3"),
        BlockingMutation::Delete(b"b"),
        BlockingMutation::Put(b"c", b""),
    ];
    now!(b, now => now.batch(&changes)).unwrap();
    for _ in 0..2 {
        assert_eq!(b.get("a"), Ok(Some(b"2".to_vec())));
        assert_eq!((b.get("b"), b.get("c")), (Ok(None), Ok(Some(Vec::new()))));
        b.sync();
        b = b.cut();
    }
    let twice = [BlockingMutation::Delete(b"a"), BlockingMutation::Delete(b"a")];
    assert_eq!(now!(b, now => now.batch(&twice)), Err(KvError::NotFound));
    assert_eq!(b.get("a"), Ok(Some(b"2".to_vec())));
}

#[test]
fn a_drive_that_does_not_fit_is_refused() {
    let config = KvConfig::default();
    let open = |info: ControllerInfo, drive: &mut MockOpenChannelDrive, chunks: usize, keeps| {
        let (port, queue) = drive.connect(64);
        let descriptors = drive.descriptors();
        let progress = &mut || {
            drive.fetch();
            drive.step();
        };
        Kv::open(&info, &descriptors[..chunks], &|_| true, queue, port, config, progress, keeps)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let mut d = small(13);
    let info = d.info();
    let all = d.descriptors().len();
    let closed = ControllerInfo { open_channel: None, ..info.clone() };
    assert!(open(closed, &mut d, all, true).contains("not open-channel"));
    assert!(open(info.clone(), &mut d, all, false).contains("stores no contents"));
    assert!(open(info.clone(), &mut d, all - 1, true).contains("63 chunk descriptors"));
    let narrow = ControllerInfo { max_sectors: 3, ..info.clone() };
    assert!(open(narrow, &mut d, all, true).contains("at least a write unit, 4"));
    let oob = |oob_bytes| {
        let oc = info.open_channel.unwrap();
        let geometry = nvme::Geometry { oob_bytes, ..oc.geometry };
        ControllerInfo { open_channel: Some(OpenChannelInfo { geometry, ..oc }), ..info.clone() }
    };
    assert!(open(oob(8), &mut d, all, true).contains("out-of-band bytes of a sector is 8"));
    d.scribble(3);
    let message = open(info, &mut d, all, true);
    assert!(message.contains("was not written by kv"), "{message}");
    let mut few = MockOpenChannelDrive::new(geometry(1, 1, 8, 64, 4, 0), true, 1);
    let info = few.info();
    assert!(open(info, &mut few, 8, true).contains("8 good chunks"));
}

#[test]
fn only_owned_chunks_are_touched() {
    let mut drive = small(14);
    drive.scribble(5);
    let (port, queue) = drive.connect(64);
    let (info, chunks) = (drive.info(), drive.descriptors());
    let owned = |chunk: u32| chunk >= 16;
    let progress = &mut || {};
    let config = KvConfig::default();
    let kv = Kv::open(&info, &chunks, &owned, queue, port, config, progress, true).unwrap();
    assert_eq!(kv.layout().budget.chunks, 48);
    let mut b = Bench { drive, kv };
    for i in 0..3000 {
        b.put(&format!("{:02}", i % 40), &value(i, 500));
    }
    b.run_until_idle();
    let touched = b.drive.descriptors();
    assert!(touched[..16].iter().zip(&chunks).all(|(now, before)| now.wp == before.wp));
    assert!(touched[16..].iter().any(|c| c.wp.get() > 0));
}

#[test]
fn too_many_requests_are_given_back_and_a_closed_target_ends_the_rest() {
    let config = KvConfig { queue_depth: 3, ..KvConfig::default() };
    let mut b = Bench::with(small(15), config);
    b.put("k", &[1; 100]);
    b.sync();
    for _ in 0..9 {
        b.put("fill", &[0; 4000]);
    }
    b.run_until_idle();
    let (_, at) = b.memory(4096);
    let get = |tag| KvRequest::get(Key::new(b"k").unwrap(), ValueBuffer { at, bytes: 4096 }, tag);
    for tag in 0..3 {
        b.kv.submit(NOW, get(tag)).unwrap();
    }
    let back = b.kv.submit(NOW, get(3)).unwrap_err();
    assert_eq!(back.0.tag, 3);
    let (queue, left) = b.kv.into_queue();
    assert_eq!(queue.spurious_completions(), 0);
    let mut tags: Vec<u64> = left.iter().map(|c| c.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2]);
    assert!(left.iter().all(|c| c.result == Err(KvError::Closed)));
}

#[test]
fn the_same_requests_make_the_same_history() {
    let history = || {
        let mut b = Bench::new(16);
        let mut rng = Rng::new(16);
        for _ in 0..4000 {
            let key = format!("{}", rng.below(300));
            let len = rng.below(900) as usize;
            b.put(&key, &value(rng.next_u64(), len));
        }
        b.sync();
        let b = b.cut();
        (b.drive.stats.history, b.kv.stats())
    };
    assert_eq!(history(), history());
}

#[test]
fn a_change_of_many_keys_at_once_needs_keys_that_exist() {
    let mut b = Bench::new(17);
    let (_, at) = b.memory(4096);
    let value = ValueBuffer { at, bytes: 10 };
    let put = |name: &str| KvMutation::Put { key: Key::new(name.as_bytes()).unwrap(), value };
    let request = KvRequest::batch(vec![put("x"), put("y")], 0).durably();
    assert_eq!(b.run(request), Ok(KvAnswer::Done));
    assert_eq!(b.run(KvRequest::batch(Vec::new(), 0)), Ok(KvAnswer::Done), "nothing to change");
    let b = b.cut();
    assert_eq!(b.kv.len(), 2);
}
