//! Reads meet their target beside writes that would fill the device. If no target is missed,
//! throughput does not suffer.

use sluice_block::sched::{Kyber, KyberConfig, Scheduler};
use sluice_block::{Op, StagedRequest};
use time::Nanos;

use super::build;
use super::model::{MS, Outcome, Pace, SEC, US, User, simulate};
use super::properties::staged;

const DEPTH: u16 = 64;
const SERVERS: usize = 8;

fn service(staged: &StagedRequest) -> Nanos {
    match staged.request.op {
        Op::Read => US * 100,
        _ => US * 800,
    }
}

fn run(name: &str, users: &[User], end: Nanos) -> Vec<Outcome> {
    simulate(build(name, DEPTH), DEPTH.into(), SERVERS, service, users, end)
}

#[test]
fn reads_meet_their_target_beside_a_flood_of_writes() {
    let users =
        [User::new(0, Op::Write, Pace::Closed(512)), User::new(1, Op::Read, Pace::Closed(4))];
    let settled = SEC * 10;
    let (none, kyber) = (run("none", &users, SEC * 30), run("kyber", &users, SEC * 30));
    let p99 = |o: &[Outcome]| o[1].percentile(99.0, settled);
    let writes = |o: &[Outcome]| o[0].count(settled);
    println!(
        "read p99: none {}, kyber {}; writes: none {}, kyber {}",
        p99(&none),
        p99(&kyber),
        writes(&none),
        writes(&kyber)
    );
    assert!(p99(&none) >= MS * 20, "{}", p99(&none));
    assert!(p99(&kyber) <= MS * 2, "{}", p99(&kyber));
    assert!(
        writes(&kyber) as f64 >= 0.8 * writes(&none) as f64,
        "writes must keep the servers busy"
    );
}

#[test]
fn writes_recover_when_the_reads_are_gone() {
    let mut reads = User::new(1, Op::Read, Pace::Closed(4));
    reads.until = SEC * 10;
    let users = [User::new(0, Op::Write, Pace::Closed(512)), reads];
    // A device with as many servers as tags needs the whole depth, so every token counts for
    // throughput.
    let run =
        |name| simulate(build(name, DEPTH), DEPTH.into(), DEPTH.into(), service, &users, SEC * 20);
    let (none, kyber) = (run("none"), run("kyber"));
    let writes = |o: &[Outcome]| o[0].count(SEC * 12) as f64;
    assert!(writes(&kyber) >= 0.98 * writes(&none), "{} {}", writes(&kyber), writes(&none));
}

#[test]
fn nothing_is_throttled_while_targets_are_met() {
    // As many servers as tags: all requests meet their targets, and every missing token reduces
    // throughput.
    let users =
        [User::new(0, Op::Write, Pace::Closed(40)), User::new(1, Op::Read, Pace::Closed(24))];
    let total = |name| -> usize {
        let outcomes = simulate(build(name, DEPTH), 64, 64, service, &users, SEC * 5);
        outcomes.iter().map(|o| o.count(Nanos::ZERO)).sum()
    };
    let (none, kyber) = (total("none"), total("kyber"));
    println!("nothing to protect: none {none}, kyber {kyber}");
    assert!(kyber as f64 >= 0.98 * none as f64, "{kyber} {none}");
}

#[test]
fn writes_alone_have_the_whole_device() {
    let users = [User::new(0, Op::Write, Pace::Closed(256))];
    let total =
        |name| simulate(build(name, DEPTH), 64, 64, service, &users, SEC * 5)[0].count(Nanos::ZERO);
    let (none, kyber) = (total("none"), total("kyber"));
    assert!(kyber as f64 >= 0.98 * none as f64, "{kyber} {none}");
}

#[test]
fn tokens_follow_how_badly_the_target_is_missed() {
    let mut kyber = Kyber::new(KyberConfig::default(), 64).unwrap();
    let mut now = Nanos::ZERO;
    // Returns the tokens after a window with a thousand requests of each domain.
    let mut tokens = |reads: Option<Nanos>, writes: Nanos| {
        for tag in 0..1000 {
            now += US * 100;
            for (op, latency) in [(Op::Read, reads), (Op::Write, Some(writes))] {
                let Some(latency) = latency else { continue };
                let new = StagedRequest { since: now - latency, ..staged(tag, op, tag, 1, 0) };
                kyber.insert(now, new);
                let given = kyber.dispatch(now).expect("the only queued request is dispatched");
                kyber.completed(now, &given, latency);
            }
        }
        let tokens = kyber.tokens();
        (tokens.read, tokens.write)
    };
    assert_eq!(tokens(Some(US * 500), MS), (64, 64), "all targets are met");
    let (_, once) = tokens(Some(MS * 10), MS);
    assert!(once <= 32, "reads that miss their target by far must throttle writes: {once}");
    let (reads, least) = (0..20).map(|_| tokens(Some(MS * 10), MS * 40)).last().unwrap();
    assert_eq!(
        (reads, least),
        (64, 1),
        "late writes must not throttle late reads, and keep their last token"
    );
    let (_, held) = tokens(Some(US * 1500), MS);
    assert_eq!(held, 1, "reads just below their target must not change the tokens");
    let (_, more) = tokens(Some(US * 500), MS);
    assert!(
        (2..=4).contains(&more),
        "reads far below their target must return one token at a time, {more}"
    );
    let (reads, _) = tokens(Some(US * 500), MS * 40);
    assert!(reads < 64, "reads far below their target must give up tokens for late writes");
}
