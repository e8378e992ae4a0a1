//! Events that no plugin writes: the ring is memory that a profiled program could change.

use std::time::{Duration, Instant};

use speculation_profile::{EVENT_WORDS, EventKind, EventRing, ProfileEvent, WindowRecorder};
use syscall_table::Object;

/// guarantee: V-22
#[test]
fn random_words_are_no_event_or_an_event_that_changes_counts_only() {
    let mut recorder = WindowRecorder::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut decoded = 0;
    for turn in 0..200_000 {
        let mut words = [0; EVENT_WORDS];
        for word in &mut words {
            *word = random();
        }
        // Half of them are nearly valid.
        if turn % 2 == 0 {
            words[1] = (random() % 11) | (random() % 12) << 16 | (random() % 512) << 32;
            words[2] = (random() % 4) | ((random() % 3) << 32);
            words[3] >>= 8 + random() % 56;
            words[12] %= 16;
        }
        if let Some(event) = ProfileEvent::decode(&words) {
            decoded += 1;
            recorder.record(&event);
        }
        if turn % 1000 == 0 {
            recorder.process_gone((random() % 4) as u32);
        }
    }
    assert!(decoded > 50_000);
    let profile = recorder.finish(Duration::from_secs(1));
    assert!(profile.dropped_events() > 0);
    for of in profile.io(None) {
        for rule in [&of.paper, &of.sluice] {
            assert!(rule.mean.is_finite() && rule.deviation.is_finite());
            assert!(rule.min <= rule.max);
            assert_eq!(rule.windows, rule.stops.values().sum::<u64>());
        }
    }
    assert!(!profile.table().is_empty());
}

/// guarantee: V-22
#[test]
fn a_slot_of_a_killed_process_is_skipped_and_counted() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("events");
    let mut ring = EventRing::create(&path, &[]).expect("created");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
    let write = |at: u64, word: u64| {
        use std::os::unix::fs::FileExt as _;
        file.write_all_at(&word.to_le_bytes(), at).expect("written");
    };
    let slot = |index: u64, word: u64| 24_576 + 128 * index + 8 * word;
    let now = Instant::now();
    assert_eq!(ring.next(now), None);
    assert!(ring.is_empty());
    // Two are reserved; the first is never written; the second is, and the third is no event.
    write(64, 3);
    write(slot(1, 1), 1);
    write(slot(1, 2), 77);
    write(slot(1, 0), 2);
    write(slot(2, 1), 999);
    write(slot(2, 0), 3);
    assert_eq!(ring.next(now), None);
    assert!(!ring.is_empty());
    assert_eq!(ring.next(now + Duration::from_secs(1)), None);
    let event = ring.next(now + Duration::from_secs(5)).expect("the second");
    assert_eq!((event.process, event.kind), (77, EventKind::Start));
    assert_eq!(ring.next(now + Duration::from_secs(5)), None);
    assert_eq!((ring.lost(), ring.invalid(), ring.is_empty()), (1, 1, true));
}

#[test]
fn events_of_a_process_that_never_started_are_invalid() {
    let mut recorder = WindowRecorder::new();
    let kind = EventKind::SharedStore { object: Object::None };
    let event = ProfileEvent { kind, process: 5, thread: 0, count: 10, name: String::new() };
    recorder.record(&event);
    let profile = recorder.finish(Duration::ZERO);
    assert_eq!((profile.dropped_events(), profile.processes()), (1, 0));
}
