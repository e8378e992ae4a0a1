//! Threads that process completions of other threads, step by step. The interrupt line is cut, so
//! that no context processes them.

use sluice_block::completion::{ContextKind, Strategy, Transfer};
use time::Nanos;

use super::harness::{Harness, INTERVAL, wait_for};

#[test]
fn threads_that_come_by_find_what_others_wait_for() {
    for poll in [false, true] {
        let mut harness = Harness::new(2, 4, 3, Strategy::HIOPS_IRQ);
        harness.board().cut_line(true);
        if poll {
            // A poll thread that practically never polls.
            harness.blocking.set_strategy(Strategy::hiops_poll(Nanos::from_secs(1))).unwrap();
        }
        harness.board().allow(0);
        let mut passer_by = harness.queues.pop().unwrap().enter();
        let sleepers = harness
            .on_threads(|index, mut waiter| waiter.read_at(index as u64 * 8, 1, 0).unwrap().status);
        wait_for("both commands are in flight", || {
            harness.board().outstanding(0) == 1 && harness.board().outstanding(1) == 1
        });
        // The threads have released the paths that others are to run.
        wait_for("both threads are asleep", || harness.blocking.stats().waiters.sleeps == 2);
        harness.board().allow(2);
        wait_for("both commands have completed", || {
            harness.board().done(0) == 1 && harness.board().done(1) == 1
        });
        assert_eq!(
            harness.blocking.stats().waiters.requests,
            0,
            "no thread has found the completions"
        );
        // The issue path polls the member to which it issues, and wakes the first sleeper. The
        // completion path polls the whole controller, and wakes the second.
        passer_by.submit(Transfer::read(0, 1, 0)).unwrap();
        assert!(sleepers.into_iter().all(|t| t.join().unwrap().is_success()));
        let waiters = harness.blocking.stats().waiters;
        assert_eq!((waiters.requests, waiters.stolen, waiters.woken), (2, 2, 2));
        assert_eq!(
            harness.context(ContextKind::HardIrq).0 + harness.context(ContextKind::Poll).0,
            0
        );
        assert_eq!(harness.board().is_masked(), poll);
        // No further thread enters a path that would find the completion.
        harness.board().allow(1);
        wait_for("the third command has completed", || harness.board().done(0) == 2);
        harness.blocking.set_strategy(Strategy::HIOPS_IRQ).unwrap();
        harness.board().cut_line(false);
        assert!(passer_by.wait(Nanos::MAX).unwrap().status.is_success());
    }
}

#[test]
fn threads_that_do_not_cooperate_find_nothing_of_others() {
    for strategy in [Strategy::SCSI, Strategy::NVME, Strategy::NON_BLOCKING, Strategy::LAZY] {
        let mut harness = Harness::new(1, 4, 2, strategy);
        harness.board().cut_line(true);
        harness.board().allow(1);
        let mut passer_by = harness.queues.pop().unwrap().enter();
        let sleeper = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
        wait_for("the command has completed", || harness.board().done(0) == 1);
        passer_by.submit(Transfer::read(0, 1, 0)).unwrap();
        assert_eq!(passer_by.wait(Nanos::from_millis(5)), None);
        assert_eq!(harness.blocking.stats().waiters.requests, 0, "{strategy:?}");
        harness.board().allow(u64::MAX);
        harness.board().cut_line(false);
        assert!(sleeper.into_iter().all(|t| t.join().unwrap().is_success()));
        assert!(passer_by.wait(Nanos::MAX).unwrap().status.is_success());
    }
}

#[test]
fn the_thread_that_frees_a_tag_issues_the_waiting_request() {
    for (strategy, kind) in [
        (Strategy::LAZY, ContextKind::HardIrq),
        (Strategy::SCSI, ContextKind::QueueRun),
        (Strategy::NVME, ContextKind::IrqThread),
        (Strategy::async_poll(INTERVAL), ContextKind::Poll),
    ] {
        let mut harness = Harness::new(1, 1, 3, strategy);
        harness.board().allow(0);
        let threads = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
        let staging = harness.blocking.layers()[0].staging()[0].clone();
        wait_for("two requests wait for the tag", || staging.inserted.get() == 2);
        assert_eq!(harness.context(kind).1, 0);
        for left in [2, 1, 0] {
            harness.board().allow(1);
            wait_for("one command has completed", || harness.board().done(0) == 3 - left);
            wait_for("the next is issued", || left == 0 || harness.board().outstanding(0) == 1);
        }
        assert!(threads.into_iter().all(|t| t.join().unwrap().is_success()));
        assert_eq!(harness.context(kind).1, 2, "{strategy:?}");
        assert_eq!(harness.blocking.stats().waiters.issued_for_others, 0, "{strategy:?}");
    }
}

#[test]
fn an_issuing_thread_goes_on_with_the_fifo() {
    let mut harness = Harness::new(1, 1, 3, Strategy::HIOPS_IRQ);
    harness.board().cut_line(true);
    harness.board().allow(0);
    let mut passer_by = harness.queues.pop().unwrap().enter();
    let threads = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
    let staging = harness.blocking.layers()[0].staging()[0].clone();
    wait_for("one request waits for the tag", || staging.inserted.get() == 1);
    // The threads have released the paths that `passer_by` is to run.
    wait_for("both threads are asleep", || harness.blocking.stats().waiters.sleeps == 2);
    harness.board().allow(1);
    wait_for("the first command has completed", || harness.board().done(0) == 1);
    assert_eq!(harness.board().outstanding(0), 0, "no thread has issued the second request");
    harness.board().allow(0);
    // `passer_by` stages its own request behind the second one, finds the completion of the first,
    // and issues the second.
    passer_by.submit(Transfer::read(0, 1, 0)).unwrap();
    assert_eq!(harness.board().outstanding(0), 1);
    let waiters = harness.blocking.stats().waiters;
    assert_eq!((waiters.stolen, waiters.issued_for_others), (1, 1));
    harness.board().cut_line(false);
    harness.board().allow(u64::MAX);
    assert!(passer_by.wait(Nanos::MAX).unwrap().status.is_success());
    assert!(threads.into_iter().all(|t| t.join().unwrap().is_success()));
}
