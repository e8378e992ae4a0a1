//! Planted breaks: each is reported by the name of its part.

use block::{BlockDevice as _, Limits, Op, Payload, Request};
use nvme::Status;
use testkit::volatile_device::VolatileDevice;
use time::{Component as _, Nanos};

use crate::cache::frames::FrameState;
use crate::cache::{Cache, CacheConfig, CachePart};
use crate::{Buffer, IoDevice};

struct Busy {
    cache: Cache<VolatileDevice>,
    /// Owns the memory of the requests.
    _data: Buffer,
}

/// A cache with clean and dirty blocks, waiting reads, a flush and a discard.
fn busy() -> Busy {
    let limits = Limits {
        sector_bytes: 4096,
        sectors: 256,
        max_sectors: 8,
        optimal_sectors: 1,
        queue_depth: 64,
        volatile_cache: true,
        atomic: block::AtomicLimits::NONE,
    };
    let opened = IoDevice::null(limits);
    let device = VolatileDevice::for_cache(limits, opened.memory().clone(), 1);
    let bytes = 4096 * CacheConfig::FRAMES_MIN;
    let config = CacheConfig { bytes, read_ahead: 0, ..CacheConfig::default() };
    let mut cache = Cache::new(&opened, device, config).expect("a small cache");
    let data = opened.buffer(4 * 4096).expect("memory");
    let payload = Payload::Contiguous(data.iova());
    cache.device_mut().lazy = false;
    cache.submit(Nanos(0), Request::read(20, 4, payload, 0)).expect("an idle cache");
    while cache.reap().is_none() {
        cache.poll(Nanos(0));
    }
    cache.device_mut().lazy = true;
    let write = Request { op: Op::Write, ..Request::read(40, 2, payload, 1) };
    let discard = Request { op: Op::Discard, ..Request::read(60, 1, Payload::BitBucket, 4) };
    for request in [write, Request::read(50, 1, payload, 2), Request::flush(3), discard] {
        cache.submit(Nanos(0), request).expect("few requests are in flight");
    }
    cache.check_invariants().expect("nothing is broken yet");
    assert!(cache.bypass.is_active() && cache.writeback.dirty() == 2);
    Busy { cache, _data: data }
}

#[test]
fn a_broken_invariant_is_reported_by_name() {
    type Plant = (CachePart, &'static str, fn(&mut Cache<VolatileDevice>));
    let plants: &[Plant] = &[
        (CachePart::Requests, "every part of a request is queued or in flight", |cache| {
            cache.requests.break_remaining();
        }),
        (CachePart::Blocks, "the end of the LRU list", |cache| cache.blocks.frames.break_lru()),
        (CachePart::Blocks, "dirty blocks are found by writeback", |cache| {
            cache.blocks.set_clean(40);
        }),
        (CachePart::Waiters, "a waiter is free or queued on a frame", |cache| {
            cache.waiters.break_free();
        }),
        (CachePart::Commands, "a slot is free or in flight", |cache| cache.ops.break_free()),
        (CachePart::Commands, "transfers of a frame", |cache| {
            let frame = cache.blocks.find(20).expect("a clean block");
            cache.blocks.frames.set_state(frame, FrameState::Filling);
        }),
        (CachePart::Writeback, "dirty blocks", |cache| cache.writeback.break_dirty()),
        (CachePart::Bypass, "requests wait behind a bypass request", |cache| {
            cache.bypass.break_active();
        }),
    ];
    for (part, invariant, break_it) in plants {
        let mut busy = busy();
        break_it(&mut busy.cache);
        let found = busy.cache.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
        let text = found.to_string();
        assert!(text.starts_with(&format!("{part}: {invariant} is broken for ")), "{text}");
        assert!(text.contains(&found.expected) && text.contains(&found.found), "{text}");
    }
}

#[test]
#[should_panic(expected = "commands: a completion has tag 4711, and no command in flight has it")]
fn a_completion_without_a_command_stops_the_cache() {
    let completion = block::Completion { tag: 4711, status: Status::SUCCESS, result: 0 };
    busy().cache.on_op_complete(completion);
}
