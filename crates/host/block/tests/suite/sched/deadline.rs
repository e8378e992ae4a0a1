//! Reads do not wait for a flood of writes, no request waits past its expiry, and seek distances
//! shrink.

use sluice_block::sched::{DeadlineConfig, SchedulerConfig};
use sluice_block::{Op, StagedRequest};
use time::Nanos;

use super::build;
use super::model::{AccessPattern, MS, Pace, SEC, US, User, simulate};

#[test]
fn reads_pass_a_flood_of_writes() {
    let users =
        [User::new(0, Op::Write, Pace::Closed(512)), User::new(1, Op::Read, Pace::Closed(1))];
    let p99 = |name| {
        let outcomes = simulate(build(name, 4), 4, 1, |_| US * 100, &users, SEC * 5);
        (outcomes[1].percentile(99.0, SEC), outcomes[0].done.len() + outcomes[1].done.len())
    };
    let ((none, none_all), (deadline, all)) = (p99("none"), p99("deadline"));
    println!("read p99 under 512 writes: none {none}, deadline {deadline}");
    assert!(
        none >= MS * 50,
        "without a scheduler, each read waits for 512 writes of 100 us: {none}"
    );
    // A batch of writes, and the requests in the device.
    assert!(deadline <= US * 100 * (16 + 4 + 1), "{deadline}");
    assert_eq!(none_all, all, "the device must stay as busy");
}

#[test]
fn no_request_is_passed_over_beyond_its_deadline() {
    // An endless ascending stream never returns to requests behind its position; only their expiry
    // gets them dispatched.
    for (op, expire) in [(Op::Read, MS * 500), (Op::Write, SEC * 5)] {
        let mut stream = User::new(0, op, Pace::Closed(64));
        stream.pattern = AccessPattern::Ascending(1 << 30);
        let mut behind = User::new(1, op, Pace::Closed(1));
        (behind.pattern, behind.from) = (AccessPattern::Descending(1 << 20), MS);
        let outcomes =
            simulate(build("deadline", 1), 1, 1, |_| US * 100, &[stream, behind], SEC * 20);
        let (longest, shortest) = (outcomes[1].max(), outcomes[1].percentile(1.0, Nanos::ZERO));
        println!("{op:?} behind a sweep: {shortest} to {longest}");
        let slack = US * 100 * (16 + 2);
        assert!(
            shortest >= expire,
            "the sweep must pass the request over until it expires: {shortest}"
        );
        assert!(longest <= expire + slack, "{longest}");
    }
}

#[test]
fn writes_get_their_turn_under_a_flood_of_reads() {
    let users =
        [User::new(0, Op::Read, Pace::Closed(512)), User::new(1, Op::Write, Pace::Closed(1))];
    let outcomes = simulate(build("deadline", 1), 1, 1, |_| US * 100, &users, SEC * 5);
    let longest = outcomes[1].max();
    // Two batches of reads, the current batch, and the write itself.
    assert!(longest <= US * 100 * (3 * 16 + 1), "{longest}");
}

#[test]
fn the_head_travels_less() {
    let users = [User::new(0, Op::Read, Pace::Closed(128))];
    let run = |scheduler| {
        let (mut head, mut travelled) = (0, 0);
        let service = |staged: &StagedRequest| {
            let distance = head.max(staged.request.lba) - head.min(staged.request.lba);
            head = staged.request.lba;
            travelled += distance;
            US * 100 + Nanos(distance * 8)
        };
        let done = simulate(scheduler, 1, 1, service, &users, SEC * 20)[0].done.len();
        (travelled / done as u64, done)
    };
    let ((none, none_done), (sorted, sorted_done)) =
        (run(build("none", 1)), run(build("deadline", 1)));
    println!(
        "sectors per request: none {none}, deadline {sorted}; requests {none_done}, {sorted_done}"
    );
    assert!(sorted * 10 < none, "{sorted} {none}");
    assert!(sorted_done > 8 * none_done, "{sorted_done} {none_done}");
}

#[test]
fn a_batch_as_long_as_you_like() {
    let users =
        [User::new(0, Op::Write, Pace::Closed(512)), User::new(1, Op::Read, Pace::Closed(1))];
    let longest = |fifo_batch| {
        let config = DeadlineConfig { fifo_batch, ..Default::default() };
        let scheduler = SchedulerConfig::Deadline(config).build(1).unwrap();
        simulate(scheduler, 1, 1, |_| US * 100, &users, SEC * 2)[1].max()
    };
    // A batch of writes, and the read.
    assert_eq!(longest(1), US * 200);
    assert_eq!(longest(64), US * 6500);
}
