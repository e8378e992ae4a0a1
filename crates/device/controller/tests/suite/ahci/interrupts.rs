//! The interrupt line: raised once per new bit, again for remaining bits, and not while masked.

use controller::SataData;
use driver::{HardwareQueue, Payload, Request};
use event::Parker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use time::Nanos;

use super::harness::{Rig, config};

fn rig() -> (Rig, Parker) {
    let rig = Rig::new(&config(2, 1 << 14, SataData::Memory));
    let parker = Parker::new().unwrap();
    rig.host.interrupt().set_line(parker.waker());
    (rig, parker)
}

/// Returns whether the line was raised since the last call. The controller raises it in this thread.
fn raised(parker: &Parker) -> bool {
    let mut fds = [PollFd::new(parker, PollFlags::IN)];
    let is_raised = poll(&mut fds, Some(&Timespec::default())).unwrap() > 0;
    parker.unpark();
    parker.prepare();
    is_raised
}

fn read(rig: &mut Rig, queue: usize) {
    rig.submit(queue, &Request::read(0, 1, Payload::BitBucket, 0)).unwrap();
}

#[test]
fn the_line_is_raised_once_until_it_is_acknowledged() {
    let (mut rig, parker) = rig();
    parker.prepare();
    let interrupt = rig.host.interrupt();
    for queue in &mut rig.queues {
        queue.set_self_acknowledge(false);
    }
    assert_eq!(interrupt.pending(), 0);
    let before = rig.controller.stats().interrupts;
    for _ in 0..4 {
        read(&mut rig, 0);
        rig.pass(Nanos::from_millis(1));
    }
    assert!(raised(&parker));
    assert_eq!(rig.controller.stats().interrupts - before, 1, "four commands, one interrupt");
    assert_eq!(interrupt.pending(), 1);
    // Another port's bit is new.
    read(&mut rig, 1);
    rig.pass(Nanos::from_millis(1));
    assert_eq!((interrupt.pending(), rig.controller.stats().interrupts - before), (3, 2));
    assert!(raised(&parker));
    // Acknowledging one of two bits raises the line for the other.
    interrupt.acknowledge(1);
    rig.settle();
    assert_eq!((interrupt.pending(), rig.controller.stats().interrupts - before), (2, 3));
    assert!(raised(&parker));
    interrupt.acknowledge(2);
    rig.settle();
    assert_eq!((interrupt.pending(), rig.controller.stats().interrupts - before), (0, 3));
    assert!(!raised(&parker));
    assert_eq!(rig.wait(5).len(), 5, "acknowledging takes no events");
    read(&mut rig, 0);
    rig.pass(Nanos::from_millis(1));
    assert_eq!((interrupt.pending(), rig.controller.stats().interrupts - before), (1, 4));
    interrupt.acknowledge(u32::MAX);
    assert_eq!(interrupt.pending(), 0, "ports that do not exist do not matter");
}

#[test]
fn a_masked_line_is_quiet_and_remembers() {
    let (mut rig, parker) = rig();
    parker.prepare();
    let interrupt = rig.host.interrupt();
    raised(&parker);
    interrupt.mask();
    assert!(interrupt.is_masked());
    read(&mut rig, 0);
    rig.pass(Nanos::from_millis(1));
    assert_eq!(interrupt.pending(), 1, "what is pending does not depend on the mask");
    assert!(!raised(&parker));
    interrupt.unmask();
    rig.settle();
    assert!(raised(&parker), "what came meanwhile raises the line");
    // Polling with masked interrupts finds every completion, acknowledged or not.
    interrupt.mask();
    rig.queues[0].set_self_acknowledge(false);
    assert_eq!(rig.wait(1).len(), 1);
    for _ in 0..10 {
        read(&mut rig, 0);
        assert!(rig.wait(1)[0].status.is_success());
    }
    assert!(!raised(&parker));
}

#[test]
fn a_queue_that_acknowledges_itself_is_told_of_everything() {
    let (mut rig, parker) = rig();
    parker.prepare();
    raised(&parker);
    for _ in 0..20 {
        read(&mut rig, 0);
        read(&mut rig, 1);
        rig.pass(Nanos::from_millis(1));
        assert!(raised(&parker));
        let mut ended = Vec::new();
        rig.reap(&mut ended);
        assert_eq!(ended.len(), 2);
        assert_eq!(rig.host.interrupt().pending(), 0);
        assert!(!rig.queues[0].check_event());
    }
}

#[test]
fn errors_that_were_acknowledged_by_the_line_reach_the_queue() {
    let (mut rig, _parker) = rig();
    for queue in &mut rig.queues {
        queue.set_self_acknowledge(false);
    }
    let interrupt = rig.host.interrupt();
    let sectors = 0..1;
    rig.controller.inject_sector_error(
        0,
        controller::InjectedSectorError { sectors, reads: true, writes: false },
    );
    read(&mut rig, 0);
    let mut ended = Vec::new();
    while ended.is_empty() {
        // Always acknowledge before polling the queue.
        use time::Component;
        rig.controller.poll(rig.runner.now());
        interrupt.acknowledge(interrupt.pending());
        rig.reap(&mut ended);
        let now = rig.runner.now();
        rig.queues[0].poll(now);
        let next = rig.controller.deadline().min(rig.queues[0].deadline());
        if next != Nanos::MAX {
            rig.runner.advance_to(next);
        }
    }
    assert_eq!(ended[0].status, nvme::Status::UNRECOVERED_READ);
    let stats = rig.queues[0].stats();
    assert_eq!((stats.recoveries, stats.resets), (1, 0), "{stats:?}");
    // An unplugged drive raises the line as well.
    let now = rig.now();
    rig.controller.unplug(1, now);
    rig.settle();
    interrupt.acknowledge(interrupt.pending());
    rig.queues[1].check_event();
    assert_eq!(rig.queues[1].state(), driver::QueueState::Removed);
}
