//! Behavior of the cache: hits, batched writeback, sequential read-ahead, and refused requests.

use block::{BlockDevice as _, Limits, Request};
use nvme::Status;
use testkit::volatile_device::VolatileDevice;
use time::{Component, Nanos};
use user_io::{Cache, CacheConfig, DirectError, EvictionPolicy, Handle, IoDevice, WritePolicy};

const LIMITS: Limits = Limits {
    sector_bytes: 4096,
    sectors: 4096,
    max_sectors: 64,
    optimal_sectors: 1,
    queue_depth: 64,
    volatile_cache: true,
    atomic: block::AtomicLimits::NONE,
};

fn handle(config: CacheConfig) -> (IoDevice, Handle<Cache<VolatileDevice>>) {
    let opened = IoDevice::null(LIMITS);
    let mut flaky = VolatileDevice::for_cache(LIMITS, opened.memory().clone(), 1);
    flaky.lazy = false;
    let cache = Cache::new(&opened, flaky, config).unwrap();
    let handle = Handle::new(&opened, cache).unwrap();
    (opened, handle)
}

fn config() -> CacheConfig {
    CacheConfig { bytes: 256 * 4096, read_ahead: 0, ..CacheConfig::default() }
}

#[test]
fn what_was_read_is_there() {
    for replace in [EvictionPolicy::Lru, EvictionPolicy::Clock] {
        let (opened, mut handle) = handle(CacheConfig { eviction: replace, ..config() });
        let buffer = opened.buffer(4096).unwrap();
        for _ in 0..10 {
            for lba in 0..200 {
                handle.read(lba, &buffer).unwrap();
            }
        }
        let stats = handle.device().stats();
        // Waiting for a block and then finding it counts once more.
        assert_eq!((stats.misses, stats.fills, stats.evictions), (200, 200, 0), "{stats:?}");
        assert_eq!(handle.device().device().request_count(), 200);
        // More blocks than the cache holds.
        for lba in 0..1000 {
            handle.read(lba, &buffer).unwrap();
        }
        let stats = handle.device().stats();
        assert!(stats.evictions >= 740, "{stats:?}");
    }
}

#[test]
fn dirty_units_are_written_together_and_when_they_are_wanted() {
    let write = WritePolicy::WriteBack { dirty_percent: 80, background_percent: 50 };
    let (opened, mut handle) = handle(CacheConfig { write_policy: write, ..config() });
    let buffer = opened.buffer(4096).unwrap();
    for lba in (0..100).rev() {
        buffer.fill(0, 4096, lba as u8);
        handle.write(lba, &buffer, false).unwrap();
    }
    assert_eq!((handle.device().dirty(), handle.device().device().request_count()), (100, 0));
    handle.flush().unwrap();
    let stats = handle.device().stats();
    assert_eq!(handle.device().dirty(), 0);
    assert_eq!(
        (stats.written, stats.write_commands),
        (100, 4),
        "one command writes 32 blocks: {stats:?}"
    );
    for lba in 0..100u64 {
        assert_eq!(handle.device().device().durable[lba as usize * 4096], lba as u8);
    }
    // Beyond half of the cache, background writeback starts.
    for lba in 0..200 {
        handle.write(1000 + lba, &buffer, false).unwrap();
    }
    for _ in 0..100 {
        handle.poll();
    }
    assert!(handle.device().dirty() <= 128, "{}", handle.device().dirty());
}

#[test]
fn write_through_and_force_unit_access_are_at_the_device_when_they_complete() {
    let (opened, mut through) =
        handle(CacheConfig { write_policy: WritePolicy::WriteThrough, ..config() });
    let buffer = opened.buffer(2 * 4096).unwrap();
    buffer.fill(0, 8192, 9);
    through.write(5, &buffer, false).unwrap();
    assert_eq!((through.device().dirty(), through.device().device().sector(6)[0]), (0, 9));
    let (opened, mut back) = handle(config());
    let buffer = opened.buffer(4096).unwrap();
    buffer.fill(0, 4096, 7);
    back.write(3, &buffer, false).unwrap();
    back.write(4, &buffer, true).unwrap();
    let device = back.device().device();
    assert_eq!(
        (device.durable[3 * 4096], device.durable[4 * 4096]),
        (7, 7),
        "the neighbors of a written block are written with it"
    );
    back.write(8, &buffer, false).unwrap();
    assert_eq!(back.device().device().sector(8)[0], 0);
}

#[test]
fn who_reads_one_after_the_other_finds_it_there() {
    let (opened, mut handle) = handle(CacheConfig { read_ahead: 32, ..config() });
    let buffer = opened.buffer(4096).unwrap();
    for lba in 0..2000 {
        handle.read(lba, &buffer).unwrap();
        handle.poll();
    }
    let stats = handle.device().stats();
    assert!(stats.read_ahead > 1900 && stats.misses < 60, "{stats:?}");
    assert!(
        handle.device().device().request_count() < 200,
        "{}",
        handle.device().device().request_count()
    );
    // Random reads cause no read-ahead.
    let before = handle.device().stats().read_ahead;
    for i in 0..300u64 {
        handle.read(i * 2654435761 % 4096, &buffer).unwrap();
    }
    assert!(handle.device().stats().read_ahead - before < 40);
}

#[test]
fn what_cannot_be_written_is_said_by_the_flush_and_tried_again() {
    let (opened, mut handle) = handle(config());
    let buffer = opened.buffer(4096).unwrap();
    buffer.fill(0, 4096, 3);
    handle.device_mut().device_mut().unwritable.insert(11);
    for lba in 8..16 {
        handle.write(lba, &buffer, false).unwrap();
    }
    let error = handle.flush().unwrap_err();
    assert_eq!(error.status(), Some(Status::WRITE_FAULT), "{error}");
    assert_eq!(handle.device().dirty(), 1, "the other blocks must be written");
    handle.read(11, &buffer).unwrap();
    handle.device_mut().device_mut().unwritable.clear();
    handle.flush().unwrap();
    assert_eq!((handle.device().dirty(), handle.device().device().durable[11 * 4096]), (0, 3));
}

#[test]
fn a_device_that_takes_no_writes_stops_writes_and_nothing_else() {
    let (opened, mut handle) = handle(config());
    let buffer = opened.buffer(4096).unwrap();
    handle.device_mut().device_mut().unwritable.extend(0..4096);
    let mut taken = 0;
    let error = loop {
        match handle.write(taken, &buffer, false) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 4096, "the cache took all requests");
    };
    assert_eq!(error.status(), Some(Status::WRITE_FAULT), "{error}");
    assert!((100..=103).contains(&taken), "40 percent of 256: {taken}");
    for lba in 0..4096 {
        handle.read(lba, &buffer).unwrap();
    }
}

#[test]
fn an_unreadable_sector_fails_alone() {
    let (opened, mut handle) = handle(config());
    handle.device_mut().device_mut().unreadable.insert(20);
    let sixteen = opened.buffer(16 * 4096).unwrap();
    let error = handle.read(16, &sixteen).unwrap_err();
    assert_eq!(error.status(), Some(Status::UNRECOVERED_READ));
    let one = opened.buffer(4096).unwrap();
    for lba in 16..32 {
        assert_eq!(handle.read(lba, &one).is_err(), lba == 20, "{lba}");
    }
    handle.write(20, &one, false).unwrap();
    handle.read(20, &one).unwrap();
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let opened = IoDevice::null(LIMITS);
    let refused = |change: fn(&mut CacheConfig)| {
        let mut config = config();
        change(&mut config);
        let flaky = VolatileDevice::for_cache(LIMITS, opened.memory().clone(), 1);
        let error = Cache::new(&opened, flaky, config).unwrap_err();
        assert!(
            matches!(error, DirectError::Config { .. } | DirectError::Memory { .. }),
            "{error}"
        );
        error.to_string()
    };
    assert!(refused(|c| c.bytes = 4096).contains("64 units"));
    assert!(refused(|c| c.bytes = 1 << 50).contains("bytes"));
    assert!(refused(|c| c.bytes = 1 << 42).contains("bytes"), "a cache larger than memory");
    assert!(refused(|c| c.read_ahead = 100).contains("quarter"));
    assert!(refused(|c| c.depth = 0).contains("1 or more"));
    assert!(
        refused(|c| {
            c.write_policy = WritePolicy::WriteBack { dirty_percent: 95, background_percent: 1 };
        })
        .contains("1 to 90")
    );
    assert!(
        refused(|c| {
            c.write_policy = WritePolicy::WriteBack { dirty_percent: 20, background_percent: 30 };
        })
        .contains("dirty_percent")
    );
    let small = Limits { sector_bytes: 512, max_sectors: 4, ..LIMITS };
    let flaky = VolatileDevice::for_cache(small, opened.memory().clone(), 1);
    assert!(
        Cache::new(&opened, flaky, config()).is_err(),
        "a cache block is larger than the largest transfer"
    );
}

#[test]
fn requests_that_cannot_be_carried_out_are_answered() {
    let (opened, mut handle) = handle(config());
    let buffer = opened.buffer(4096).unwrap();
    let error = handle.read(4096, &buffer).unwrap_err();
    assert_eq!(error.status(), Some(Status::LBA_OUT_OF_RANGE));
    let nowhere = block::Payload::Contiguous(mem::Iova(12));
    let error = handle.run(Request::read(0, 1, nowhere, 0)).unwrap_err();
    assert_eq!(error.status(), Some(Status::DATA_TRANSFER_ERROR));
    let mut cache = handle.into_device();
    let depth = cache.limits().queue_depth;
    for tag in 0..u64::from(depth) {
        let at = buffer.payload();
        cache.submit(Nanos::ZERO, Request::read(tag % 4096, 1, at, tag)).unwrap();
    }
    assert!(cache.submit(Nanos::ZERO, Request::flush(0)).is_err(), "the queue depth is reached");
    let mut left = depth;
    while left > 0 {
        cache.poll(Nanos::ZERO);
        while cache.reap().is_some() {
            left -= 1;
        }
    }
}
