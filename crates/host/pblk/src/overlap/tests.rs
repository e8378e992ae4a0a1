//! Random requests on a device that completes them in any order, compared with a list of all pairs.

// guarantee: D-43

use block::Limits;
use event::Waker;
use mem::AddressSpace;
use rng::Rng;

use super::*;

/// Accepts requests, and completes any of them.
#[derive(Debug)]
struct Any {
    limits: Limits,
    port: std::sync::Arc<transport::Port>,
    taken: Vec<Request>,
    ended: VecDeque<Completion>,
}

impl Component for Any {
    fn poll(&mut self, _now: Nanos) -> bool {
        false
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl BlockDevice for Any {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&mut self, _now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.taken.len() + self.ended.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        self.taken.push(request);
        Ok(())
    }
    fn reap(&mut self) -> Option<Completion> {
        self.ended.pop_front()
    }
    fn memory(&self) -> &AddressSpace {
        self.port.memory()
    }
    fn set_waker(&mut self, _waker: Waker) {}
}

fn device(depth: u32) -> OverlapSerializer<Any> {
    let limits = Limits {
        sector_bytes: 512,
        sectors: 4_000,
        max_sectors: 4_000,
        optimal_sectors: 8,
        queue_depth: depth,
        volatile_cache: true,
        atomic: block::AtomicLimits::NONE,
    };
    let (taken, ended) = (Vec::new(), VecDeque::new());
    OverlapSerializer::new(Any { limits, port: transport::Port::new().unwrap(), taken, ended })
}

fn read(lba: u64, n: u32, tag: u64) -> Request {
    Request { tag, ..Request::read(lba, n, block::Payload::BitBucket, 0) }
}

fn conflict(a: &Request, b: &Request) -> bool {
    let overlap = a.lba < b.lba + u64::from(b.sectors) && b.lba < a.lba + u64::from(a.sectors);
    let reads = |r: &Request| matches!(r.op, Op::Read | Op::Extents);
    overlap && !(reads(a) && reads(b)) && a.op != Op::Flush && b.op != Op::Flush
}

fn case(seed: u64) -> OverlapStats {
    let mut rng = Rng::new(seed);
    let depth = [1, 4, 40][rng.below(3) as usize];
    let mut d = device(depth);
    // In order of submission.
    let mut outstanding: Vec<Request> = Vec::new();
    let (mut tag, mut waited) = (1u64 << 40, 0);
    for step in 0..2_000 {
        if rng.chance(0.55) && step < 1_500 {
            tag += 3;
            let longest = [3, 150, 300, 3_000][rng.below(4) as usize];
            let n = 1 + rng.below(longest);
            let lba = rng.below(4_000 - n + 1);
            let request = match rng.below(5) {
                0 => Request { tag, ..Request::flush(0) },
                1 | 2 => read(lba, n as u32, tag),
                3 => Request { tag, ..Request::discard(lba, n as u32, 0) },
                _ => Request { op: Op::Write, ..read(lba, n as u32, tag) },
            };
            let full = outstanding.len() == depth as usize;
            assert_eq!(d.submit(Nanos(0), request).is_err(), full, "seed {seed}");
            if !full {
                waited += u64::from(outstanding.iter().any(|o| conflict(o, &request)));
                outstanding.push(request);
            }
        } else if !d.device.taken.is_empty() {
            let at = rng.below(d.device.taken.len() as u64) as usize;
            let ended = d.device.taken.swap_remove(at);
            let status = Status::SUCCESS;
            d.device.ended.push_back(Completion { tag: ended.tag, status, result: 9 });
            let done = d.reap().unwrap();
            let at = outstanding.iter().position(|o| o.tag == done.tag).unwrap();
            let ended = outstanding.remove(at);
            let earlier = outstanding[..at].iter().any(|o| conflict(o, &ended));
            assert!(!earlier && done.result == 9, "seed {seed}: {ended:?} has overtaken");
        }
        // A check reads every list; so not after every step.
        if step % 16 == 0 {
            assert_eq!(d.check_invariants(), Ok(()), "seed {seed}, step {step}");
        }
        let due = !d.ready.is_empty();
        assert_eq!(d.deadline() == Nanos::ZERO, due);
        assert_eq!(d.poll(Nanos(0)), due);
        // The device has exactly those requests that no earlier one conflicts with.
        let free = (0..outstanding.len())
            .filter(|i| !outstanding[..*i].iter().any(|o| conflict(o, &outstanding[*i])));
        assert_eq!(d.device.taken.len(), free.count(), "seed {seed}, step {step}");
    }
    assert_eq!(d.is_empty(), outstanding.is_empty());
    assert_eq!(d.stats.waited, waited);
    assert!(!d.is_empty() || d.list_heads.iter().all(|h| *h == NIL));
    let (taken, rest) = d.close(|any| {
        let status = Status::ABORTED_SQ_DELETED;
        let ended = any.taken.iter().map(|r| Completion { tag: r.tag, status, result: 0 });
        (any.taken.len(), ended.collect())
    });
    assert!(taken <= rest.len());
    let mut tags: Vec<u64> = rest.iter().map(|c| c.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, outstanding.iter().map(|o| o.tag).collect::<Vec<_>>());
    OverlapStats { waited, ..OverlapStats::default() }
}

#[test]
fn overlapping_requests_keep_their_order_and_others_pass() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = number("SLUICE_SEED").map_or(0..40, |seed| seed..seed + 1);
    let waited: u64 = seeds.map(|seed| case(seed).waited).sum();
    assert!(waited > 0);
}

#[test]
fn what_the_device_will_refuse_passes() {
    let mut d = device(4);
    d.submit(Nanos(0), read(u64::MAX, 2, 1)).unwrap();
    d.submit(Nanos(0), read(0, 0, 2)).unwrap();
    d.submit(Nanos(0), Request { op: Op::Write, ..read(3_999, 2, 3) }).unwrap();
    d.submit(Nanos(0), Request { op: Op::Write, ..read(3_999, 2, 4) }).unwrap();
    assert_eq!(d.device.taken.len(), 4);
    assert_eq!(d.submit(Nanos(0), read(0, 1, 5)), Err(QueueFull));
    assert_eq!(*d.stats(), OverlapStats::default());
}

#[test]
fn a_broken_invariant_is_reported_by_its_name() {
    let device = || {
        let mut d = device(4);
        for tag in 0..2 {
            let write = Request { op: Op::Write, ..read(60, 10, tag) };
            d.submit(Nanos(0), write).unwrap();
        }
        assert_eq!(d.check_invariants(), Ok(()));
        d
    };
    let broken = |break_it: &dyn Fn(&mut OverlapSerializer<Any>)| {
        let mut d = device();
        break_it(&mut d);
        d.check_invariants().expect_err("a broken invariant").to_string()
    };
    assert_eq!(
        broken(&|d| d.slots[1].blockers = 0),
        "overlaps: earlier overlapping requests is broken for request 1: expected 1, found 0"
    );
    assert_eq!(
        broken(&|d| d.ready.push_back(1)),
        "overlaps: unblocked requests are ready is broken for all: expected {}, found {1}"
    );
    let list = broken(&|d| d.unlink(d.bucket(1), 5));
    assert!(list.starts_with("overlaps: granules of requests are listed"), "{list}");
    let slot = broken(&|d| d.slots.release(0));
    assert!(slot.starts_with("overlaps: a free slot has no request"), "{slot}");
}
