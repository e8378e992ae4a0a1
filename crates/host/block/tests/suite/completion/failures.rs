//! Faults while requests are in flight.

use nvme::Status;
use sluice_block::completion::{BlockingConfig, Strategy, Transfer};
use sluice_block::{STATUS_REMOVED, Timeouts};
use time::Nanos;

use super::harness::{Harness, strategies, wait_for};
use super::mock_controller::SECTOR;

#[test]
fn a_thread_may_exit_while_its_request_is_in_flight() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(1, 1, 3, strategy);
        harness.board().allow(0);
        let mut stays = harness.queues.pop().unwrap().enter();
        let gone = harness.on_threads(|_, mut waiter| {
            waiter.submit(Transfer::read(0, 4, 0)).unwrap();
            assert!(waiter.wait(Nanos::from_millis(1)).is_none());
            let stats = waiter.stats().clone();
            assert_eq!(stats.in_flight(), 1);
            drop(waiter);
            assert_eq!((stats.in_flight(), stats.abandoned.get()), (0, 1));
        });
        gone.into_iter().for_each(|t| t.join().unwrap());
        stays.submit(Transfer::read(0, 1, 0)).unwrap();
        harness.board().allow(u64::MAX);
        assert!(stays.wait(Nanos::MAX).unwrap().status.is_success(), "{name}");
        assert_eq!(harness.board().done(0), 3, "{name}: the drive executes all commands");
        let dispatch = &harness.blocking.layers()[0].dispatch()[0];
        assert_eq!(dispatch.orphans.get(), 2, "{name}");
        assert_eq!(harness.blocking.stats().waiters.requests, 1, "{name}");
    }
}

#[test]
fn a_thread_that_panics_does_not_affect_others() {
    let mut harness = Harness::new(1, 2, 2, Strategy::SCSI);
    harness.board().allow(0);
    let mut stays = harness.queues.pop().unwrap().enter();
    let panics = harness.on_threads(|_, mut waiter| {
        waiter.submit(Transfer::read(0, 4, 0)).unwrap();
        panic!("on purpose");
    });
    for thread in panics {
        let _: Result<(), _> = thread.join();
    }
    harness.board().allow(u64::MAX);
    assert!(stays.read_at(0, 1, 0).unwrap().status.is_success());
}

#[test]
fn a_wait_that_times_out_can_be_repeated() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(2, 1, 1, strategy);
        harness.board().allow(0);
        let mut waiter = harness.queues.pop().unwrap().enter();
        let long = Transfer { tag: 5, ..Transfer::read(4, 16, 0) };
        waiter.submit(long).unwrap();
        for _ in 0..3 {
            assert_eq!(waiter.wait(Nanos::from_micros(300)), None, "{name}");
        }
        // The fragments complete one by one: 4 sectors, 8, and 4.
        harness.board().allow(2);
        assert_eq!(
            waiter.wait(Nanos::from_millis(3)),
            None,
            "{name}: a fragment is still in flight"
        );
        harness.board().allow(1);
        assert_eq!(waiter.wait(Nanos::MAX).unwrap().tag, 5, "{name}");
    }
}

fn short_timeouts(strategy: Strategy) -> BlockingConfig {
    BlockingConfig {
        threads: 3,
        request_bytes: 8 * SECTOR as u32,
        stripe_bytes: 8 * SECTOR as u32,
        strategy,
        timeouts: Timeouts {
            command: Nanos::from_millis(10),
            abort: Nanos::from_millis(10),
            retries: 1,
        },
        ..BlockingConfig::default()
    }
}

#[test]
fn commands_that_take_too_long_are_aborted() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::with_config(1, 1, &short_timeouts(strategy));
        harness.board().allow(0);
        // The second request waits for the tag of the first, whose timeout starts with its command.
        let threads = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Status::ABORTED, "{name}");
        }
        let dispatch = harness.blocking.layers()[0].dispatch()[0].clone();
        assert_eq!((dispatch.timeouts.get(), dispatch.resets.get()), (3, 0), "{name}");
        assert_eq!(harness.blocking.stats().waiters.failed, 3, "{name}");
    }
}

#[test]
fn a_device_that_takes_no_abort_is_reset_until_its_commands_have_failed() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::with_config(1, 4, &short_timeouts(strategy));
        harness.board().allow(0);
        harness.board().refuse_aborts();
        let threads = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Status::ABORTED, "{name}");
        }
        let dispatch = harness.blocking.layers()[0].dispatch()[0].clone();
        assert!(dispatch.resets.get() >= 2, "{name}");
        assert_eq!(dispatch.requeued.get(), 3, "{name}: each request is issued twice");
    }
}

#[test]
fn an_interrupt_that_is_lost_costs_a_timeout_at_most() {
    for (name, strategy) in strategies() {
        let mut config = short_timeouts(strategy);
        config.timeouts.command = Nanos::from_millis(100);
        let mut harness = Harness::with_config(1, 4, &config);
        harness.board().cut_line(true);
        let threads = harness.on_threads(|_, mut waiter| waiter.read_at(0, 1, 0).unwrap().status);
        for thread in threads {
            assert!(thread.join().unwrap().is_success(), "{name}");
        }
        assert_eq!(harness.blocking.layers()[0].dispatch()[0].timeouts.get(), 0, "{name}");
    }
}

#[test]
fn a_removed_device_wakes_its_waiters_and_other_devices_still_work() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(2, 2, 9, strategy);
        harness.board().allow(0);
        let mut other = harness.queues.pop().unwrap().enter();
        // Two requests have tags, six wait in the FIFO.
        let threads = harness.on_threads(|_, mut waiter| {
            let first = waiter.read_at(0, 1, 0).unwrap().status;
            (first, waiter.write_at(0, 1, 0).unwrap().status)
        });
        let staging = harness.blocking.layers()[0].staging()[0].clone();
        wait_for("six requests wait in the FIFO", || {
            staging.inserted.get() == 6 && harness.board().outstanding(0) == 2
        });
        harness.board().remove(0);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), (STATUS_REMOVED, STATUS_REMOVED), "{name}");
        }
        harness.board().allow(u64::MAX);
        assert!(other.read_at(8, 1, 0).unwrap().status.is_success(), "{name}");
        // A request over both members fails as a whole.
        assert_eq!(other.read_at(0, 16, 0).unwrap().status, STATUS_REMOVED, "{name}");
    }
}

#[test]
fn waiters_outlive_the_contexts() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(2, 1, 4, strategy);
        harness.board().allow(0);
        let threads = harness.on_threads(|_, mut waiter| {
            let first = waiter.read_at(0, 1, 0).unwrap().status;
            (first, waiter.read_at(8, 1, 0).unwrap().status)
        });
        wait_for("one command is in flight", || harness.board().outstanding(0) == 1);
        let Harness { blocking, running, .. } = harness;
        drop(blocking);
        running.board.allow(u64::MAX);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), (Status::SUCCESS, Status::SUCCESS), "{name}");
        }
    }
}
