//! The interrupt line: raised once per new bit, again for remaining bits, and not while masked.

use controller::SataData;
use driver::{HardwareQueue, Payload, Request};
use event::Parker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use time::Nanos;

use super::harness::{Harness, config};

fn harness() -> (Harness, Parker) {
    let harness = Harness::new(&config(2, 1 << 14, SataData::Memory));
    let parker = Parker::new().unwrap();
    harness.host.interrupt().set_line(parker.waker());
    (harness, parker)
}

/// Returns whether the line was raised since the last call. The controller raises it in this thread.
fn raised(parker: &Parker) -> bool {
    let mut fds = [PollFd::new(parker, PollFlags::IN)];
    let is_raised = poll(&mut fds, Some(&Timespec::default())).unwrap() > 0;
    parker.unpark();
    parker.prepare();
    is_raised
}

fn read(harness: &mut Harness, queue: usize) {
    harness.submit(queue, &Request::read(0, 1, Payload::BitBucket, 0)).unwrap();
}

#[test]
fn the_line_is_raised_once_until_it_is_acknowledged() {
    let (mut harness, parker) = harness();
    parker.prepare();
    let interrupt = harness.host.interrupt();
    for queue in &mut harness.queues {
        queue.set_self_acknowledge(false);
    }
    assert_eq!(interrupt.pending(), 0);
    let before = harness.controller.stats().interrupts;
    for _ in 0..4 {
        read(&mut harness, 0);
        harness.pass(Nanos::from_millis(1));
    }
    assert!(raised(&parker));
    assert_eq!(harness.controller.stats().interrupts - before, 1, "four commands, one interrupt");
    assert_eq!(interrupt.pending(), 1);
    // Another port's bit is new.
    read(&mut harness, 1);
    harness.pass(Nanos::from_millis(1));
    assert_eq!((interrupt.pending(), harness.controller.stats().interrupts - before), (3, 2));
    assert!(raised(&parker));
    // Acknowledging one of two bits raises the line for the other.
    interrupt.acknowledge(1);
    harness.settle();
    assert_eq!((interrupt.pending(), harness.controller.stats().interrupts - before), (2, 3));
    assert!(raised(&parker));
    interrupt.acknowledge(2);
    harness.settle();
    assert_eq!((interrupt.pending(), harness.controller.stats().interrupts - before), (0, 3));
    assert!(!raised(&parker));
    assert_eq!(harness.wait(5).len(), 5, "an acknowledge must not consume events");
    read(&mut harness, 0);
    harness.pass(Nanos::from_millis(1));
    assert_eq!((interrupt.pending(), harness.controller.stats().interrupts - before), (1, 4));
    interrupt.acknowledge(u32::MAX);
    assert_eq!(interrupt.pending(), 0, "bits of ports that do not exist are ignored");
}

#[test]
fn a_masked_line_is_quiet_and_remembers() {
    let (mut harness, parker) = harness();
    parker.prepare();
    let interrupt = harness.host.interrupt();
    raised(&parker);
    interrupt.mask();
    assert!(interrupt.is_masked());
    read(&mut harness, 0);
    harness.pass(Nanos::from_millis(1));
    assert_eq!(interrupt.pending(), 1, "the mask must not change the pending bits");
    assert!(!raised(&parker));
    interrupt.unmask();
    harness.settle();
    assert!(raised(&parker), "bits that were set while masked raise the line");
    // Polling with masked interrupts finds every completion, acknowledged or not.
    interrupt.mask();
    harness.queues[0].set_self_acknowledge(false);
    assert_eq!(harness.wait(1).len(), 1);
    for _ in 0..10 {
        read(&mut harness, 0);
        assert!(harness.wait(1)[0].status.is_success());
    }
    assert!(!raised(&parker));
}

#[test]
fn a_queue_that_acknowledges_itself_is_told_of_everything() {
    let (mut harness, parker) = harness();
    parker.prepare();
    raised(&parker);
    for _ in 0..20 {
        read(&mut harness, 0);
        read(&mut harness, 1);
        harness.pass(Nanos::from_millis(1));
        assert!(raised(&parker));
        let mut ended = Vec::new();
        harness.reap(&mut ended);
        assert_eq!(ended.len(), 2);
        assert_eq!(harness.host.interrupt().pending(), 0);
        assert!(!harness.queues[0].check_event());
    }
}

#[test]
fn errors_that_were_acknowledged_by_the_line_reach_the_queue() {
    let (mut harness, _parker) = harness();
    for queue in &mut harness.queues {
        queue.set_self_acknowledge(false);
    }
    let interrupt = harness.host.interrupt();
    let sectors = 0..1;
    harness.controller.inject_sector_error(
        0,
        controller::InjectedSectorError { sectors, reads: true, writes: false },
    );
    read(&mut harness, 0);
    let mut ended = Vec::new();
    while ended.is_empty() {
        // Always acknowledge before polling the queue.
        use time::Component;
        harness.controller.poll(harness.runner.now());
        interrupt.acknowledge(interrupt.pending());
        harness.reap(&mut ended);
        let now = harness.runner.now();
        harness.queues[0].poll(now);
        let next = harness.controller.deadline().min(harness.queues[0].deadline());
        if next != Nanos::MAX {
            harness.runner.advance_to(next);
        }
    }
    assert_eq!(ended[0].status, nvme::Status::UNRECOVERED_READ);
    let stats = harness.queues[0].stats();
    assert_eq!((stats.recoveries, stats.resets), (1, 0), "{stats:?}");
    // Unplugging a drive raises the line as well.
    let now = harness.now();
    harness.controller.unplug(1, now);
    harness.settle();
    interrupt.acknowledge(interrupt.pending());
    harness.queues[1].check_event();
    assert_eq!(harness.queues[1].state(), driver::QueueState::Removed);
}
