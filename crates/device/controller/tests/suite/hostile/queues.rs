//! Many queues, queues that are not reaped, and arbitration.

use controller::{ArbitrationConfig, Controller, NullConfig};
use mem::{PAGE_BYTES, SharedRegion};
use nvme::{AdminCommand, QueuePriority, Sqe, Status};
use time::{Component, Nanos};
use transport::{CqConsumer, SqProducer};

use super::host::{Host, block_config, configs};

#[test]
fn completions_wait_for_a_host_that_does_not_reap() {
    let mut d = Controller::new(block_config()).unwrap();
    let mut h = Host::new(&mut d);
    // A completion ring far smaller than the submission ring.
    let ring = SharedRegion::anonymous(8 * PAGE_BYTES).unwrap();
    let at = h.port.memory().register(&ring).unwrap();
    let (cq, priority) = (at.offset(4 * PAGE_BYTES as u64), QueuePriority::Medium);
    let create = AdminCommand::CreateCq { qid: 1, entries: 4, at: cq.0, vector: None };
    assert!(h.admin(&mut d, create.to_sqe()).status.is_success());
    let create = AdminCommand::CreateSq { qid: 1, entries: 64, at: at.0, cqid: 1, priority };
    assert!(h.admin(&mut d, create.to_sqe()).status.is_success());
    h.io = Some((
        SqProducer::open(&h.port, 1, at, 64).unwrap(),
        CqConsumer::open(&h.port, 1, cq, 4).unwrap(),
    ));
    let sent: Vec<u16> = (0..60).map(|_| h.submit(Sqe::flush(1))).collect();
    h.drain(&mut d);
    assert_eq!(d.deadline(), Nanos::MAX, "the drive must not poll for a host that does not reap");
    let mut other = Host::with_queue(&mut d);
    other.check_serves(&mut d);
    let mut seen = Vec::new();
    while seen.len() < sent.len() {
        let cqe = h.reap().expect("waiting completions are posted");
        seen.push(cqe.cid);
        h.drain(&mut d);
    }
    assert_eq!(seen, sent, "completions must be in order, each once");
}

#[test]
fn a_thousand_queues_of_several_hosts() {
    let mut config = block_config();
    config.controller.max_io_queues = 1_000;
    let mut d = Controller::new(config).unwrap();
    let mut hosts: Vec<Host> = (0..3).map(|_| Host::new(&mut d)).collect();
    let mut queues = Vec::new();
    for i in 0..1_000u16 {
        let host = &mut hosts[usize::from(i % 3)];
        let rings = host.create(&mut d, i / 3 + 1, 8, QueuePriority::Medium);
        queues.push(rings);
    }
    for round in 0..3u16 {
        for (sq, _) in &mut queues {
            for i in 0..2u16 {
                let mut sqe = Sqe::flush(1);
                sqe.cid = (round * 2 + i).into();
                sq.push(&sqe).unwrap();
            }
            sq.ring();
        }
        hosts[0].drain(&mut d);
        for (sq, cq) in &mut queues {
            for i in 0..2u16 {
                let cqe = cq.pop().unwrap();
                assert_eq!((cqe.cid, cqe.status), (round * 2 + i, Status::SUCCESS));
                sq.update_head(cqe.sq_head);
            }
            cq.release();
        }
    }
}

/// Sends `each` flushes on every queue; returns the queues in the order of service.
fn order_of_service(
    arbitration: ArbitrationConfig,
    priorities: &[QueuePriority],
    each: u16,
) -> Vec<usize> {
    let mut config = configs().swap_remove(2);
    config.controller.arbitration = arbitration;
    config.null = NullConfig { latency: Nanos::ZERO, bytes_per_sec: 4_096_000_000 };
    let mut d = Controller::new(config).unwrap();
    let mut h = Host::new(&mut d);
    let pairs = priorities.iter().enumerate();
    let mut queues: Vec<_> = pairs.map(|(i, p)| h.create(&mut d, i as u16 + 1, 256, *p)).collect();
    let block = h.block(0, 4096);
    for (sq, _) in &mut queues {
        for _ in 0..each {
            let mut sqe = Sqe::read(1, 0, 1);
            sqe.set_sgl(block);
            sq.push(&sqe).unwrap();
        }
        sq.ring();
    }
    // One read of 4 KiB takes a microsecond: completions reveal the order of fetching.
    let mut order = Vec::new();
    loop {
        while d.poll(h.now) {}
        for (i, (_, cq)) in queues.iter_mut().enumerate() {
            while cq.pop().is_some() {
                order.push(i);
            }
        }
        match d.deadline() {
            Nanos::MAX => return order,
            at => h.now = at,
        }
    }
}

#[test]
fn round_robin_is_fair() {
    let priorities = [QueuePriority::Medium; 5];
    for burst in [1, 4] {
        let order = order_of_service(ArbitrationConfig::RoundRobin { burst }, &priorities, 40);
        assert_eq!(order.len(), 200);
        for (turn, served) in order.chunks(usize::from(burst)).enumerate() {
            assert!(served.iter().all(|q| *q == turn % 5), "turn {turn}: {served:?}");
        }
    }
}

#[test]
fn weights_are_kept_and_urgent_queues_come_first() {
    use QueuePriority::{High, Low, Medium, Urgent};
    let arbitration = ArbitrationConfig::Weighted { burst: 1, high: 4, medium: 2, low: 1 };
    let order = order_of_service(arbitration, &[Low, Medium, High, Urgent], 70);
    assert_eq!(order[..70], [3; 70], "urgent commands must be fetched first");
    let shares = |part: &[usize]| [0, 1, 2].map(|q| part.iter().filter(|s| **s == q).count());
    // While all queues have commands: seven commands per arbitration round.
    assert_eq!(shares(&order[70..70 + 70]), [10, 20, 40]);
    assert_eq!(shares(&order[70..]), [70, 70, 70]);
}
