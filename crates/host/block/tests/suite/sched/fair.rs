//! A deep queue cannot starve a shallow one, and shares follow weights.

use sluice_block::sched::{Fair, FairBy, FairConfig, Scheduler, SchedulerConfig};
use sluice_block::{Op, StagedRequest};
use time::Nanos;

use super::build;
use super::model::{MS, Outcome, Pace, SEC, US, User, simulate};
use super::properties::staged;

const DEPTH: u16 = 32;
const SERVERS: usize = 4;
const SERVICE: Nanos = Nanos::from_micros(100);
/// Time to process as many requests as the queue is deep.
const ROUND: Nanos = Nanos(SERVICE.0 * DEPTH as u64 / SERVERS as u64);

fn fair(config: FairConfig) -> Box<dyn Scheduler> {
    SchedulerConfig::Fair(config).build(DEPTH).unwrap()
}

fn run(scheduler: Box<dyn Scheduler>, users: &[User]) -> Vec<Outcome> {
    simulate(scheduler, DEPTH.into(), SERVERS, |_| SERVICE, users, SEC)
}

fn deep_and_shallow() -> [User; 2] {
    [1024, 1].map(|depth| User::new((depth == 1).into(), Op::Read, Pace::Closed(depth)))
}

fn total(outcomes: &[Outcome]) -> usize {
    outcomes.iter().map(|o| o.count(Nanos::ZERO)).sum()
}

#[test]
fn a_queue_of_one_waits_for_a_round_and_not_for_a_thousand_requests() {
    let none = run(build("none", DEPTH), &deep_and_shallow());
    let fairly = run(build("fair", DEPTH), &deep_and_shallow());
    let strict =
        run(fair(FairConfig { work_conserving: false, ..Default::default() }), &deep_and_shallow());
    let p50 = |o: &[Outcome]| o[1].percentile(50.0, Nanos::ZERO);
    let worst = |o: &[Outcome]| o[1].max();
    println!(
        "QD1 beside QD1024: none p50 {} (share {}), fair p50 {} max {} (share {}), strict p50 {}",
        p50(&none),
        none[1].done.len(),
        p50(&fairly),
        worst(&fairly),
        fairly[1].done.len(),
        p50(&strict),
    );
    assert!(p50(&none) >= SERVICE * (1000 / SERVERS as u64), "{}", p50(&none));
    assert!(worst(&fairly) <= ROUND * 2, "{}", worst(&fairly));
    assert!(p50(&fairly) <= ROUND + SERVICE, "{}", p50(&fairly));
    assert!(fairly[1].done.len() >= 25 * none[1].done.len());
    // Without work conservation, each flow has half of the device, and the shallow queue waits for
    // half a round.
    assert!(p50(&strict) <= Nanos(ROUND.0 * 6 / 10), "{}", p50(&strict));
    // Both configurations keep four servers busy.
    assert!(total(&fairly) as f64 >= 0.99 * total(&none) as f64);
    assert!(total(&strict) as f64 >= 0.99 * total(&none) as f64);
}

#[test]
fn with_all_places_lent_a_device_as_parallel_as_deep_stays_busy() {
    let run = |scheduler| {
        simulate(scheduler, DEPTH.into(), DEPTH.into(), |_| SERVICE, &deep_and_shallow(), SEC)
    };
    let none = total(&run(build("none", DEPTH)));
    let lent = total(&run(build("fair", DEPTH)));
    let strict = total(&run(fair(FairConfig { work_conserving: false, ..Default::default() })));
    println!("32 servers: none {none}, fair {lent}, nothing lent {strict}");
    assert!(lent as f64 >= 0.98 * none as f64);
    assert!(
        (strict as f64 / none as f64 - 17.0 / 32.0).abs() < 0.02,
        "`work_conserving: false` must cost 15 of 32 servers"
    );
}

/// Returns the shares of users that always have 64 requests waiting.
fn shares(config: FairConfig, users: &[User], service: fn(&StagedRequest) -> Nanos) -> Vec<f64> {
    let scheduler = fair(config);
    let outcomes = simulate(scheduler, DEPTH.into(), SERVERS, service, users, SEC);
    let sectors = |(outcome, user): (&Outcome, &User)| {
        outcome.count(MS * 100) as f64 * f64::from(user.sectors + 4)
    };
    let costs: Vec<f64> = outcomes.iter().zip(users).map(sectors).collect();
    let all: f64 = costs.iter().sum();
    costs.iter().map(|cost| cost / all).collect()
}

#[track_caller]
fn assert_shares(shares: &[f64], weights: &[f64]) {
    let all: f64 = weights.iter().sum();
    println!("shares {shares:.4?} of weights {weights:?}");
    for (share, weight) in shares.iter().zip(weights) {
        let want = weight / all;
        assert!((share / want - 1.0).abs() < 0.05, "{shares:?} for {weights:?}");
    }
}

#[test]
fn shares_follow_weights() {
    let users = [0, 1, 2].map(|who| User::new(who, Op::Read, Pace::Closed(64)));
    for weights in [[1, 2, 4], [100, 200, 400], [1, 10, 100]] {
        let config = FairConfig { weights: (0..).zip(weights).collect(), ..Default::default() };
        assert_shares(&shares(config, &users, |_| SERVICE), &weights.map(f64::from));
    }
}

#[test]
fn shares_are_of_groups_if_asked_for() {
    // Two submitters in group 1, one in group 2: each group gets half.
    let mut users = [0, 1, 2].map(|who| User::new(who, Op::Read, Pace::Closed(64)));
    [users[0].group, users[1].group, users[2].group] = [1, 1, 2];
    let config = FairConfig { by: FairBy::Group, ..Default::default() };
    let shares = shares(config, &users, |_| SERVICE);
    assert_shares(&[shares[0] + shares[1], shares[2]], &[1.0, 1.0]);
}

#[test]
fn large_requests_cost_what_they_move() {
    // 32 sectors and 1 sector; the device time is proportional to the cost.
    let mut users = [0, 1].map(|who| User::new(who, Op::Read, Pace::Closed(64)));
    users[0].sectors = 32;
    let by_cost = |staged: &StagedRequest| US * (10 * u64::from(staged.request.sectors + 4));
    assert_shares(&shares(FairConfig::default(), &users, by_cost), &[1.0, 1.0]);
}

#[test]
fn idle_flows_gain_no_credit() {
    let mut users = [0, 1].map(|who| User::new(who, Op::Read, Pace::Closed(256)));
    users[1].from = MS * 900;
    let outcomes = run(build("fair", DEPTH), &users);
    let per_ms = |outcome: &Outcome, from: Nanos, to: Nanos| {
        (outcome.count(from) - outcome.count(to)) as f64 / ((to - from).0 as f64 / MS.0 as f64)
    };
    let alone = per_ms(&outcomes[0], MS * 100, MS * 890);
    assert!((alone - 40.0).abs() < 0.5, "{alone}: 4 servers of 100 us");
    // From the second round on, each flow has half of the device.
    let early = per_ms(&outcomes[0], MS * 902, MS * 910);
    let late = per_ms(&outcomes[0], MS * 910, SEC);
    println!("alone {alone}/ms, just after the other came {early}/ms, later {late}/ms");
    assert!(early >= 0.9 * alone / 2.0, "{early}");
    assert!((late / alone - 0.5).abs() < 0.025, "{late}");
}

#[test]
fn slow_requests_do_not_pile_up_at_the_device() {
    // Writes take ten times as long as reads. With ordering alone, they would fill the device, and
    // reads would proceed at the pace of writes. With half of the device for each, reads are far
    // faster.
    let users =
        [User::new(0, Op::Write, Pace::Closed(256)), User::new(1, Op::Read, Pace::Closed(16))];
    let service =
        |s: &StagedRequest| if s.request.op == Op::Write { SERVICE * 10 } else { SERVICE };
    let run = |scheduler| simulate(scheduler, DEPTH.into(), DEPTH.into(), service, &users, SEC);
    let (none, fairly) = (run(build("none", DEPTH)), run(build("fair", DEPTH)));
    let [none, fairly] = [none, fairly].map(|o| o[1].count(Nanos::ZERO));
    println!("reads beside slow writes: none {none}, fair {fairly}");
    assert!(fairly >= 10 * none, "{none} {fairly}");
}

#[test]
fn many_flows_of_one_are_equal() {
    let users: Vec<_> = (0..100).map(|who| User::new(who, Op::Read, Pace::Closed(2))).collect();
    let outcomes = run(build("fair", DEPTH), &users);
    let counts: Vec<_> = outcomes.iter().map(|o| o.count(Nanos::ZERO)).collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 2, "{least} to {most}");
}

#[test]
fn what_is_at_the_device_is_counted_and_given_back() {
    let mut fair = Fair::new(FairConfig::default(), DEPTH).unwrap();
    for tag in 0..40 {
        fair.insert(Nanos::ZERO, staged(tag, Op::Read, 100 * tag, 8, (tag % 2) as u16));
    }
    let mut given: Vec<_> = (0..20).map(|_| fair.dispatch(Nanos::ZERO).unwrap()).collect();
    assert_eq!([0, 1].map(|flow| fair.in_flight(flow)), [10, 10]);
    for _ in 0..4 {
        fair.requeue(Nanos::ZERO, given.pop().unwrap());
    }
    assert_eq!([0, 1].map(|flow| fair.in_flight(flow)), [8, 8]);
    assert_eq!(fair.len(), 24);
    given.extend(std::iter::from_fn(|| fair.dispatch(Nanos::ZERO)));
    assert_eq!((given.len(), fair.active()), (40, 2));
    given.drain(..).for_each(|staged| fair.completed(Nanos::ZERO, &staged, SERVICE));
    assert_eq!([0, 1, 77].map(|flow| fair.in_flight(flow)), [0, 0, 0]);
    // Flow 1 has been idle for two rounds, so it is no longer active.
    for tag in 0..3 * u64::from(DEPTH) {
        fair.insert(Nanos::ZERO, staged(tag, Op::Read, tag, 1, 0));
        let given = fair.dispatch(Nanos::ZERO).unwrap();
        fair.completed(Nanos::ZERO, &given, SERVICE);
    }
    assert_eq!(fair.active(), 1);
}

#[test]
fn over_its_share_a_flow_waits_for_others_or_leaves_them_tags() {
    let config = FairConfig { work_conserving: false, ..Default::default() };
    let mut strict = Fair::new(config, DEPTH).unwrap();
    let mut lending = Fair::new(FairConfig::default(), DEPTH).unwrap();
    for fair in [&mut strict, &mut lending] {
        // Flow 1 was active in this round.
        fair.insert(Nanos::ZERO, staged(1000, Op::Read, 0, 1, 1));
        let given = fair.dispatch(Nanos::ZERO).unwrap();
        fair.completed(Nanos::ZERO, &given, SERVICE);
        for tag in 0..100 {
            fair.insert(Nanos::ZERO, staged(tag, Op::Read, tag, 1, 0));
        }
    }
    let give = |fair: &mut Fair| std::iter::from_fn(|| fair.dispatch(Nanos::ZERO)).count();
    assert_eq!(give(&mut strict), 16, "half of the device");
    assert_eq!(give(&mut lending), 31, "all but one tag, which is left for flow 1");
    assert_eq!(lending.deadline(), Nanos::MAX, "only completions allow further dispatches");
    for fair in [&mut strict, &mut lending] {
        fair.insert(Nanos::ZERO, staged(2000, Op::Read, 0, 1, 1));
        assert_eq!(fair.dispatch(Nanos::ZERO).map(|s| s.request.tag), Some(2000));
    }
}
