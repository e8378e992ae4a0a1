//! Changes of strategy with requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_block::completion::{Mode, Strategy};

use super::harness::{EASY, Harness, random_io, strategies, wait_for};

#[test]
fn nothing_is_lost_when_the_strategy_changes_under_load() {
    let mut harness = Harness::new(2, 2, 8, Strategy::SCSI);
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = stop.clone();
    let threads = harness.on_threads(move |index, mut waiter| {
        let index = index as u64;
        let mut requests = 0;
        while !theirs.load(Ordering::Relaxed) {
            requests += random_io(&mut waiter, index + 1, index * 64, 64, 20);
            // The model of the next round starts with zeros.
            let discard = sluice_block::completion::Transfer::discard(index * 64, 64);
            assert!(waiter.submit_and_wait(discard).unwrap().status.is_success());
            requests += 1;
        }
        requests
    });
    for _ in 0..20 {
        for (_, strategy) in strategies() {
            harness.blocking.set_strategy(strategy).unwrap();
            std::thread::sleep(Duration::from_micros(700));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let requests: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    let waiters = harness.blocking.stats().waiters;
    assert_eq!((waiters.requests, waiters.failed), (requests, 0));
}

#[test]
fn a_change_finishes_what_another_strategy_left_half_done() {
    let all = strategies();
    for (_, from) in &all {
        for (name, to) in &all {
            let mut harness = Harness::new(1, 2, 2, *from);
            harness.board().cut_line(true);
            harness.board().allow(0);
            let threads =
                harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
            wait_for("both commands are in flight", || harness.board().outstanding(0) == 2);
            harness.board().allow(2);
            wait_for("both commands have completed", || harness.board().done(0) == 2);
            harness.blocking.set_strategy(*to).unwrap();
            for thread in threads {
                assert!(thread.join().unwrap().is_success(), "{from:?} to {name}");
            }
        }
    }
}

#[test]
fn a_hybrid_polls_under_load_and_goes_back_when_it_ends() {
    let mut harness = Harness::new(2, 4, 6, Strategy::hiops_hybrid(EASY));
    assert!(!harness.board().is_masked());
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = stop.clone();
    let threads = harness.on_threads(move |index, mut waiter| {
        let mut round = 0;
        while !theirs.load(Ordering::Relaxed) {
            waiter.read_at((index as u64 * 7 + round) % 64, 1, 0).unwrap();
            round += 1;
        }
    });
    wait_for("the poll thread polls", || {
        harness.blocking.stats().hybrid.unwrap().mode == Mode::Poll
    });
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    wait_for("the poll thread has stopped polling", || {
        harness.blocking.stats().hybrid.unwrap().mode == Mode::Interrupt
            && !harness.board().is_masked()
    });
    let hybrid = harness.blocking.stats().hybrid.unwrap();
    assert!(hybrid.switches >= 2 && hybrid.switches.is_multiple_of(2), "{hybrid:?}");
    assert!(hybrid.poll_time > time::Nanos::ZERO, "{hybrid:?}");
    harness.blocking.set_strategy(Strategy::SCSI).unwrap();
    assert_eq!(harness.blocking.stats().hybrid, None);
}
