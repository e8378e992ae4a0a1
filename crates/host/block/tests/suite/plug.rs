//! The two places in which a request waits for others to merge with. With a trace, all requests are
//! in the list of the plug; without one, the last request waits in the slot of its tag.

use driver::{Limits, Null};
use rng::Rng;
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Payload, Queue, Request, SubmitterStats,
};
use time::{Component, Nanos};

// guarantee: B-52

const LIMITS: Limits = Limits {
    sector_bytes: 512,
    sectors: 1 << 20,
    max_sectors: 16,
    optimal_sectors: 1,
    queue_depth: 24,
    volatile_cache: true,
    atomic: driver::AtomicLimits::NONE,
};

/// A queue, and its completions in order.
struct End {
    queue: Queue<driver::NullQueue>,
    done: Vec<u64>,
}

impl End {
    fn new(is_traced: bool) -> End {
        let config = BlockLayerConfig { queue_depth: 64, ..BlockLayerConfig::default() };
        let (_, mut queues) = BlockLayer::open(&mut Null::new(LIMITS, 1), &config).unwrap();
        let mut queue = queues.remove(0);
        if is_traced {
            queue.trace(1 << 20);
        }
        End { queue, done: Vec::new() }
    }

    fn reap(&mut self, count: usize) {
        self.done.extend(std::iter::from_fn(|| self.queue.reap()).take(count).map(|c| c.tag));
    }

    /// Returns everything that is counted.
    fn counters(&self) -> String {
        let (stats, now): (&SubmitterStats, _) = (self.queue.stats(), Nanos(1 << 40));
        format!(
            "{:?} {} {:?} {:?}",
            stats.stat(now, 512),
            stats.splits.get(),
            self.queue.staging_stats(),
            self.queue.dispatch_stats()
        )
    }
}

/// Returns a request that often touches the one at `last`, and is sometimes long or durable.
fn request(rng: &mut Rng, last: &Request, tag: u64) -> Request {
    let sectors = if rng.below(20) == 0 { 40 } else { 1 + rng.below(4) as u32 };
    let lba = match rng.below(4) {
        0 => last.lba + u64::from(last.sectors),
        1 => last.lba.saturating_sub(sectors.into()),
        _ => rng.below(1 << 19),
    };
    match rng.below(16) {
        0 => Request::flush(tag),
        1..8 => Request::read(lba, sectors, Payload::BitBucket, tag),
        _ => {
            let fua = rng.below(8) == 0;
            Request { fua, ..Request::write(lba, sectors, Payload::BitBucket, tag) }
        }
    }
}

#[test]
fn a_request_merges_alike_in_a_slot_and_in_the_list() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut ends = [End::new(false), End::new(true)];
        let (mut now, mut last) = (Nanos(1), Request::read(1 << 18, 1, Payload::BitBucket, 0));
        for turn in 0..60 {
            for _ in 0..rng.below(40) {
                last = request(&mut rng, &last, last.tag + 1);
                let [slot, list] = ends.each_mut().map(|end| end.queue.submit(now, last).is_ok());
                assert_eq!(slot, list, "seed {seed}");
            }
            now += Nanos(100);
            let count = rng.below(48) as usize;
            for end in &mut ends {
                end.queue.poll(now);
                end.reap(count);
            }
            let [slot, list] = &ends;
            assert_eq!(slot.counters(), list.counters(), "seed {seed}, turn {turn}");
            assert_eq!(slot.done, list.done, "seed {seed}, turn {turn}");
        }
        for end in &mut ends {
            while end.queue.outstanding() > 0 {
                now += Nanos(100);
                end.queue.poll(now);
                end.reap(usize::MAX);
            }
            assert!(end.queue.stats().stat(now, 512).reads().merges > 10, "seed {seed}");
        }
        assert_eq!(ends[0].done, ends[1].done, "seed {seed}");
    }
}
