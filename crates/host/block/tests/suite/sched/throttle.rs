//! Rates are accurate to one percent, bursts have the configured size, and other groups are not
//! affected.

use sluice_block::sched::{
    DirectionThrottle, GroupThrottle, RateLimit, Scheduler, SchedulerConfig, Scheduling,
    ThrottleConfig,
};
use sluice_block::{Group, Op};
use time::Nanos;

use super::model::{MS, Outcome, Pace, SEC, US, User, simulate};
use super::properties::staged;

const SECTOR: u32 = 4096;

fn throttled(scheduler: &str, groups: Vec<(Group, GroupThrottle)>) -> Box<dyn Scheduler> {
    let limits = Some(ThrottleConfig { sector_bytes: SECTOR, groups });
    let scheduler: SchedulerConfig = scheduler.parse().unwrap();
    Scheduling { scheduler, limits }.build(32).unwrap()
}

fn operations(per_sec: u64, burst: u64) -> DirectionThrottle {
    DirectionThrottle { operations: Some(RateLimit { per_sec, burst }), bytes: None }
}

fn bytes(per_sec: u64, burst: u64) -> DirectionThrottle {
    DirectionThrottle { operations: None, bytes: Some(RateLimit { per_sec, burst }) }
}

fn run(scheduler: Box<dyn Scheduler>, users: &[User], end: Nanos) -> Vec<Outcome> {
    simulate(scheduler, 32, 8, |_| US * 50, users, end)
}

fn within_a_percent(got: f64, want: f64) {
    assert!((got / want - 1.0).abs() <= 0.01, "{got}, not {want}");
}

#[test]
fn operations_per_second_are_held() {
    for scheduler in ["none", "deadline", "kyber", "fair"] {
        for per_sec in [100, 3333, 50_000] {
            let limits = GroupThrottle { read: operations(per_sec, 1), ..Default::default() };
            let mut user = User::new(0, Op::Read, Pace::Closed(64));
            user.group = 1;
            let outcomes = run(throttled(scheduler, vec![(Group(1), limits)]), &[user], SEC * 10);
            within_a_percent(outcomes[0].count(Nanos::ZERO) as f64, per_sec as f64 * 10.0);
        }
    }
}

#[test]
fn bytes_per_second_are_held_whatever_the_size() {
    for sectors in [1, 8, 256] {
        let rate = 20 << 20;
        let limits = GroupThrottle { write: bytes(rate, 1 << 16), ..Default::default() };
        let mut user = User::new(0, Op::Write, Pace::Closed(64));
        (user.group, user.sectors) = (1, sectors);
        let outcomes = run(throttled("none", vec![(Group(1), limits)]), &[user], SEC * 10);
        let got = outcomes[0].count(Nanos::ZERO) as f64 * f64::from(sectors * SECTOR);
        // 256 sectors are 1 MiB, sixteen times the burst: such requests pass nevertheless.
        within_a_percent(got, rate as f64 * 10.0);
    }
}

#[test]
fn a_burst_goes_at_once_and_idling_saves_no_more_than_that() {
    let limits = GroupThrottle { read: operations(1000, 200), ..Default::default() };
    let mut user = User::new(0, Op::Read, Pace::Closed(1000));
    (user.group, user.from) = (1, SEC * 100);
    let outcomes = run(throttled("none", vec![(Group(1), limits)]), &[user], SEC * 101);
    let at = |after: Nanos| outcomes[0].count(Nanos::ZERO) - outcomes[0].count(SEC * 100 + after);
    println!("burst of 200 at 1000/s after 100 s: {} in 10 ms, {} in 1 s", at(MS * 10), at(SEC));
    assert!((200..=212).contains(&at(MS * 10)), "{}", at(MS * 10));
    assert!((1190..=1202).contains(&at(SEC)), "{}", at(SEC));
}

#[test]
fn who_stays_below_a_rate_is_not_delayed() {
    let limits = GroupThrottle { read: operations(1001, 1), ..Default::default() };
    let mut user = User::new(0, Op::Read, Pace::Every(MS));
    user.group = 1;
    let outcomes = run(throttled("none", vec![(Group(1), limits)]), &[user], SEC * 10);
    assert!(outcomes[0].count(Nanos::ZERO) >= 10_000);
    assert_eq!(outcomes[0].max(), US * 50, "the request takes only the device's service time");
}

#[test]
fn other_groups_and_the_other_direction_do_not_notice() {
    let mut users = [
        User::new(0, Op::Read, Pace::Closed(64)),
        User::new(0, Op::Write, Pace::Closed(16)),
        User::new(1, Op::Read, Pace::Closed(16)),
    ];
    users[0].group = 1;
    users[1].group = 1;
    let limits = GroupThrottle { read: operations(500, 1), ..Default::default() };
    let outcomes = run(throttled("none", vec![(Group(1), limits)]), &users, SEC * 2);
    let without = run(throttled("none", vec![]), &users[1..], SEC * 2);
    within_a_percent(outcomes[0].count(Nanos::ZERO) as f64, 1000.0);
    for (with, without) in outcomes[1..].iter().zip(&without) {
        within_a_percent(with.count(Nanos::ZERO) as f64, without.count(Nanos::ZERO) as f64);
        assert!(with.max() <= without.max() + US * 100);
    }
}

#[test]
fn the_tighter_of_two_limits_holds() {
    let read = DirectionThrottle {
        operations: Some(RateLimit { per_sec: 1000, burst: 1 }),
        bytes: Some(RateLimit { per_sec: 1 << 20, burst: 1 << 12 }),
    };
    let limits = GroupThrottle { read, ..Default::default() };
    for (sectors, want) in [(1, 256.0), (8, 32.0)] {
        let mut user = User::new(0, Op::Read, Pace::Closed(64));
        (user.group, user.sectors) = (1, sectors);
        let outcomes = run(throttled("none", vec![(Group(1), limits)]), &[user], SEC * 10);
        within_a_percent(outcomes[0].count(Nanos::ZERO) as f64, want * 10.0);
    }
}

#[test]
fn what_comes_back_from_the_hardware_is_paid_for() {
    let limits = GroupThrottle { read: operations(10, 2), ..Default::default() };
    let mut scheduler = throttled("none", vec![(Group(1), limits)]);
    let now = SEC;
    for tag in 0..4 {
        scheduler.insert(now, staged(tag, Op::Read, 100 * tag, 1, 1));
    }
    assert_eq!(scheduler.len(), 4);
    for _ in 0..10 {
        let given = scheduler.dispatch(now).unwrap();
        assert_eq!(given.request.tag, 0);
        scheduler.requeue(now, given);
        assert_eq!(scheduler.len(), 4);
    }
    assert_eq!(scheduler.dispatch(now).map(|s| s.request.tag), Some(0));
    assert_eq!(scheduler.dispatch(now).map(|s| s.request.tag), Some(1));
    assert_eq!(scheduler.dispatch(now), None);
    assert_eq!(scheduler.deadline(), now + MS * 100);
    assert_eq!(scheduler.dispatch(now + MS * 100 - Nanos(1)), None);
    assert_eq!(scheduler.dispatch(now + MS * 100).map(|s| s.request.tag), Some(2));
    assert_eq!(scheduler.deadline(), now + MS * 200);
    assert_eq!((scheduler.len(), scheduler.is_empty()), (1, false));
}

#[test]
fn merging_does_not_get_around_a_limit() {
    let limits = GroupThrottle { write: bytes(SECTOR.into(), SECTOR.into()), ..Default::default() };
    let mut scheduler = throttled("none", vec![(Group(1), limits)]);
    let join = |held: &mut sluice_block::StagedRequest| {
        held.request.sectors += 1;
        true
    };
    scheduler.insert(SEC, staged(0, Op::Write, 10, 1, 1));
    // That request has been charged: the next one must not merge with it.
    let next = staged(1, Op::Write, 11, 1, 1);
    assert!(!scheduler.find_merge(&next, &mut { join }));
    scheduler.insert(SEC, next);
    assert!(scheduler.find_merge(&staged(2, Op::Write, 12, 1, 1), &mut { join }));
    assert_eq!(scheduler.dispatch(SEC).map(|s| s.request.tag), Some(0));
    assert_eq!(scheduler.dispatch(SEC * 2 - Nanos(1)), None);
    let given = scheduler.dispatch(SEC * 2).expect("the burst allows a larger request");
    assert_eq!((given.request.tag, given.request.sectors), (1, 2));
    scheduler.insert(SEC * 2, staged(3, Op::Write, 50, 1, 1));
    assert_eq!(
        scheduler.dispatch(SEC * 3),
        None,
        "the group must first earn credit for both sectors"
    );
    assert_eq!(scheduler.deadline(), SEC * 4);
    // A group without limits must not merge its requests with another group's.
    scheduler.insert(SEC, staged(4, Op::Write, 70, 1, 2));
    assert!(!scheduler.find_merge(&staged(5, Op::Write, 71, 1, 3), &mut { join }));
    assert!(scheduler.find_merge(&staged(5, Op::Write, 71, 1, 2), &mut { join }));
}
