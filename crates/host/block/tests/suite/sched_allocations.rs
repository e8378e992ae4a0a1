//! Verifies that schedulers do not allocate memory in steady state, and retain little after a
//! spike.

use sluice_block::sched::{
    DirectionThrottle, GroupThrottle, RateLimit, Scheduler, SchedulerConfig, Scheduling,
    ThrottleConfig,
};
use sluice_block::{Group, Op, Payload, Request, StagedRequest, Submitter};
use time::Nanos;

const DEPTH: u16 = 32;

fn schedulings() -> Vec<Scheduling> {
    let rate = Some(RateLimit::per_sec(1_000_000_000));
    let direction =
        DirectionThrottle { operations: rate, bytes: Some(RateLimit::per_sec(1 << 40)) };
    let groups = [0, 1, 2, 3]
        .map(|group| (Group(group), GroupThrottle { read: direction, write: direction }));
    let limits = ThrottleConfig { sector_bytes: 4096, groups: groups.to_vec() };
    ["none", "deadline", "kyber", "fair"]
        .map(|name| name.parse::<SchedulerConfig>().unwrap())
        .into_iter()
        .flat_map(|scheduler| {
            let limited = Scheduling { scheduler: scheduler.clone(), limits: Some(limits.clone()) };
            [Scheduling::from(scheduler), limited]
        })
        .collect()
}

fn request(tag: u64) -> StagedRequest {
    let op = [Op::Read, Op::Write, Op::Read, Op::Discard, Op::Write][tag as usize % 5];
    let read =
        Request::read(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, 8, Payload::BitBucket, tag);
    StagedRequest {
        request: Request { op, ..read },
        since: Nanos(tag),
        submitter: Submitter(tag as u16 % 3),
        group: Group(tag as u16 % 4),
        merged: 1,
        requeues: 0,
    }
}

/// Passes `count` requests through, starting with tag `from`, with `waiting` requests in the
/// scheduler and up to [`DEPTH`] in the device.
fn pass(
    scheduler: &mut dyn Scheduler,
    given: &mut Vec<StagedRequest>,
    waiting: usize,
    from: u64,
    count: u64,
) {
    for tag in from..from + count {
        let now = Nanos(tag * 1000);
        let new = request(tag);
        scheduler.find_merge(&new, &mut |_| false);
        scheduler.insert(now, new);
        while scheduler.len() > waiting && given.len() < DEPTH.into() {
            let Some(mut next) = scheduler.dispatch(now) else { break };
            if tag % 7 == 0 {
                scheduler.requeue(now, next);
                next = scheduler.dispatch(now).expect("the requeued request is dispatched again");
            }
            given.push(next);
        }
        if given.len() >= 4 {
            for staged in given.drain(..) {
                scheduler.completed(now, &staged, Nanos(500));
            }
        }
    }
}

#[test]
fn steady_state_does_not_allocate() {
    for scheduling in schedulings() {
        for waiting in [0, 100, 1000] {
            let mut scheduler = scheduling.build(DEPTH).unwrap();
            let mut given = Vec::with_capacity(DEPTH.into());
            pass(scheduler.as_mut(), &mut given, waiting, 0, 20_000);
            let made = allocation_counter::measure(|| {
                pass(scheduler.as_mut(), &mut given, waiting, 20_000, 20_000);
            });
            assert_eq!(
                made.count_total,
                0,
                "{} with {waiting} waiting",
                scheduling.scheduler.name()
            );
        }
    }
}

/// Returns the number of bytes that `work` allocates and does not free.
fn retained_bytes(work: impl FnOnce()) -> i64 {
    allocation_counter::measure(work).bytes_current
}

#[test]
fn memory_comes_back_after_a_spike() {
    for scheduling in schedulings() {
        let name = scheduling.scheduler.name();
        let mut given = Vec::with_capacity(DEPTH.into());
        let mut scheduler = None;
        let spike = retained_bytes(|| {
            let scheduler = scheduler.insert(scheduling.build(DEPTH).unwrap());
            for tag in 0..100_000 {
                scheduler.insert(Nanos::ZERO, request(tag));
            }
        });
        assert!(spike >= 100_000 * size_of::<StagedRequest>() as i64);
        let mut scheduler = scheduler.unwrap();
        let drained = spike
            + retained_bytes(|| {
                let mut now = Nanos::ZERO;
                while !scheduler.is_empty() {
                    now += Nanos(1_000_000);
                    while given.len() < DEPTH.into() {
                        let Some(staged) = scheduler.dispatch(now) else { break };
                        given.push(staged);
                    }
                    let end = |staged: StagedRequest| scheduler.completed(now, &staged, Nanos(500));
                    given.drain(..).for_each(end);
                }
            });
        let after = drained
            + retained_bytes(|| pass(scheduler.as_mut(), &mut given, 0, 1_000_000_000, 20_000));
        println!(
            "{name}: {spike} bytes for 100,000, {drained} when drained, {after} a little later"
        );
        assert!(drained <= spike / 4, "{name}: {drained} of {spike}");
        assert!(after <= 100 << 10, "{name}: {after}");
    }
}
