//! Cost of a scheduler per request: insert, dispatch and completed, with some requests waiting.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use sluice_block::sched::{
    DirectionThrottle, GroupThrottle, RateLimit, SchedulerConfig, Scheduling, ThrottleConfig,
};
use sluice_block::{Group, Op, Payload, Request, StagedRequest, Submitter};
use time::Nanos;

fn main() {
    divan::main();
}

const DEPTH: u16 = 32;
/// Requests per measurement: a single one is below the resolution of the timer.
const REQUESTS: u64 = 10_000;

/// Returns a request of one of four submitters: reads and writes on the whole device, none of them
/// adjacent.
fn request(tag: u64) -> StagedRequest {
    let place = (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30) & !15;
    let op = if tag.is_multiple_of(3) { Op::Write } else { Op::Read };
    let read = Request::read(place, 8, Payload::BitBucket, tag);
    StagedRequest {
        request: Request { op, ..read },
        since: Nanos(tag * 1000),
        submitter: Submitter(tag as u16 % 4),
        group: Group(0),
        merged: 1,
        requeues: 0,
    }
}

fn measure(bencher: Bencher<'_, '_>, scheduling: Scheduling, waiting: u64, merge: bool) {
    let mut scheduler = scheduling.build(DEPTH).unwrap();
    let mut tag = 0;
    while tag + 1 < waiting {
        scheduler.insert(Nanos::ZERO, request(tag));
        tag += 1;
    }
    bencher.counter(ItemsCount::new(REQUESTS)).bench_local(|| {
        for _ in 0..REQUESTS {
            let now = Nanos(tag * 1000);
            let new = request(tag);
            if merge {
                black_box(scheduler.find_merge(&new, &mut |_| false));
            }
            scheduler.insert(now, new);
            if let Some(staged) = black_box(scheduler.dispatch(now)) {
                scheduler.completed(now, &staged, Nanos(80_000));
            }
            tag += 1;
        }
    });
}

/// With `waiting` requests in the scheduler.
#[divan::bench(consts = [1, 32, 1024], args = ["none", "deadline", "kyber", "fair"])]
fn pass<const WAITING: u64>(bencher: Bencher<'_, '_>, name: &str) {
    let scheduler: SchedulerConfig = name.parse().unwrap();
    measure(bencher, scheduler.into(), WAITING, false);
}

/// With `waiting` requests in the scheduler, after an unsuccessful search for a merge.
#[divan::bench(consts = [32, 1024], args = ["none", "deadline", "kyber", "fair"])]
fn pass_and_look<const WAITING: u64>(bencher: Bencher<'_, '_>, name: &str) {
    let scheduler: SchedulerConfig = name.parse().unwrap();
    measure(bencher, scheduler.into(), WAITING, true);
}

/// `none` behind limits that are never reached.
#[divan::bench(args = [1, 32, 1024])]
fn limited(bencher: Bencher<'_, '_>, waiting: u64) {
    let rate = Some(RateLimit::per_sec(1 << 45));
    let direction = DirectionThrottle { operations: rate, bytes: rate };
    let groups = vec![(Group(0), GroupThrottle { read: direction, write: direction })];
    let limits = Some(ThrottleConfig { sector_bytes: 512, groups });
    let scheduling = Scheduling { scheduler: SchedulerConfig::None, limits };
    measure(bencher, scheduling, waiting, false);
}

/// `fair` with many submitters, all of them waiting.
#[divan::bench(args = [4, 16, 64])]
fn fair_of(bencher: Bencher<'_, '_>, submitters: u16) {
    let mut scheduler = "fair".parse::<SchedulerConfig>().unwrap().build(DEPTH).unwrap();
    let by = |tag: u64| {
        let submitter = Submitter((tag % u64::from(submitters)) as u16);
        StagedRequest { submitter, ..request(tag) }
    };
    let mut tag = 0;
    while tag < 4 * u64::from(submitters) {
        scheduler.insert(Nanos::ZERO, by(tag));
        tag += 1;
    }
    bencher.counter(ItemsCount::new(REQUESTS)).bench_local(|| {
        for _ in 0..REQUESTS {
            scheduler.insert(Nanos(tag), by(tag));
            if let Some(staged) = black_box(scheduler.dispatch(Nanos(tag))) {
                scheduler.completed(Nanos(tag), &staged, Nanos(80_000));
            }
            tag += 1;
        }
    });
}
