//! Hosts that detach, with or without commands in flight. The drive must release all their
//! resources.

// guarantee: S-04, S-05

use std::sync::Arc;

use controller::{AccessPolicy, AccessScope, Controller};
use nvme::{AdminCommand, Sqe, Status};
use rng::Rng;
use time::{Component, Nanos};
use transport::{Port, PortLimits};

use super::harness::{Host, Raw, SECTOR, block, drain, null, open_channel, pcm};

/// Returns the numbers of descriptors and mappings of this process.
pub fn fds_and_mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), maps.lines().count())
}

#[test]
fn commands_in_flight_complete_without_their_host() {
    for config in [block(), pcm(), null(Nanos::from_micros(10))] {
        let mut d = Controller::new(config).unwrap();
        let part = |first| AccessPolicy::for_scope(AccessScope::Sectors { first, count: 256 });
        let mut rng = Rng::new(3);
        let mut other = Host::attach(&mut d, Some(part(256)), 64, 64);
        let keeps = d.stores_data();
        for round in 0..60u64 {
            let mut h = Host::attach(&mut d, Some(part(0)), 64, 64);
            assert_eq!(h.write(&mut d, 0, 1, round as u8), Status::SUCCESS);
            assert_eq!(h.io(&mut d, Sqe::flush(1)).status, Status::SUCCESS);
            h.memory.fill(0, 64 * SECTOR, 0xcc);
            for i in 0..60 {
                let lba = 1 + rng.below(200);
                let mut sqe = match rng.below(4) {
                    0 => Sqe::read(1, lba, 4),
                    1 => Sqe::write_zeroes(1, lba, 4, rng.chance(0.5)),
                    2 => Sqe::flush(1),
                    _ => Sqe::write(1, lba, 4, rng.chance(0.3)),
                };
                sqe.set_sgl(h.block(i, 4));
                h.pair.submit(sqe, 0).unwrap();
            }
            h.pair.ring();
            let mut now = h.now;
            for _ in 0..rng.below(40) {
                d.poll(now);
                now = now.max(d.deadline().min(now + Nanos::from_micros(3)));
            }
            h.memory.fill(0, 64 * SECTOR, 0xcc);
            let at = h.at;
            d.detach(&h.port).unwrap();
            assert!(d.detach(&h.port).is_err() && d.port_stats(&h.port).is_none());
            let before: Vec<_> = std::iter::from_fn(|| h.pair.reap()).collect();
            drain(&mut d, &mut now);
            assert!(
                h.pair.reap().is_none(),
                "{} completions before the detach, none after",
                before.len()
            );
            let mut bytes = vec![0; 64 * SECTOR];
            h.port.memory().read(at, &mut bytes).unwrap();
            assert!(
                bytes.iter().all(|b| *b == 0xcc),
                "the drive wrote to the detached host's memory"
            );
            assert!(d.is_idle() && d.host_count() == 1);
            // The controller handle, the queue pair and the test hold references to the port; the
            // drive does not.
            let port = h.port.clone();
            drop(h);
            assert_eq!(Arc::strong_count(&port), 1);
            // Flushed data is durable, and the other host is not affected.
            let mut again = Host::attach(&mut d, Some(part(0)), 8, 8);
            again.now = now;
            let read = again.read(&mut d, 0, 1).unwrap();
            assert!(!keeps || read == [round as u8]);
            d.detach(&again.port).unwrap();
            other.now = again.now;
            assert_eq!(other.write(&mut d, 7, 2, !round as u8), Status::SUCCESS);
            let read = other.read(&mut d, 7, 2).unwrap();
            assert!(!keeps || read == [!round as u8; 2]);
        }
    }
}

#[test]
fn requests_and_deletions_that_wait_go_with_their_host() {
    let mut d = Controller::new(open_channel()).unwrap();
    for _ in 0..10 {
        let mut h = Host::attach(&mut d, None, 8, 8);
        h.controller.subscribe_events().unwrap();
        d.poll(h.now);
        // A queue with a command in flight is being deleted.
        let mut sqe = Sqe::write(1, 0, 1, false);
        sqe.set_sgl(h.block(0, 1));
        h.pair.submit(sqe, 0).unwrap();
        h.pair.ring();
        d.poll(h.now);
        let port = h.port.clone();
        drop(h);
        d.detach(&port).unwrap();
        let mut raw = Raw::attach(&mut d, AccessPolicy::for_scope(AccessScope::All));
        for cid in 0..2 {
            let mut sqe = AdminCommand::AsyncEventRequest.to_sqe();
            sqe.cid = cid.into();
            raw.sq.push(&sqe).unwrap();
        }
        raw.sq.ring();
        drain(&mut d, &mut raw.now);
        assert_eq!(d.port_stats(&raw.port).unwrap().outstanding, 2);
        d.detach(&raw.port).unwrap();
        assert!(d.is_idle() && d.host_count() == 0);
        assert_eq!(Arc::strong_count(&port), 1);
        let port = raw.port.clone();
        drop(raw);
        assert_eq!(Arc::strong_count(&port), 1);
    }
}

#[test]
fn a_queue_that_is_being_deleted_goes_with_its_host() {
    let mut d = Controller::new(null(Nanos::from_millis(5))).unwrap();
    let access = AccessPolicy::for_scope(AccessScope::All);
    let mut raw = Raw::attach(&mut d, access);
    let (at, priority) = (raw.at, nvme::QueuePriority::Medium);
    let cq = AdminCommand::CreateCq { qid: 1, entries: 8, at: at.0, vector: None };
    assert_eq!(raw.admin(&mut d, cq).status, Status::SUCCESS);
    let sq_at = at.offset(SECTOR as u64);
    let sq = AdminCommand::CreateSq { qid: 1, entries: 8, at: sq_at.0, cqid: 1, priority };
    assert_eq!(raw.admin(&mut d, sq).status, Status::SUCCESS);
    let mut io = transport::SqProducer::open(&raw.port, 1, sq_at, 8).unwrap();
    io.push(&Sqe::flush(1)).unwrap();
    io.ring();
    d.poll(raw.now);
    raw.sq.push(&AdminCommand::DeleteSq { qid: 1 }.to_sqe()).unwrap();
    raw.sq.ring();
    d.poll(raw.now);
    assert_eq!(
        d.port_stats(&raw.port).unwrap().outstanding,
        2,
        "the deletion waits for the command in flight"
    );
    d.detach(&raw.port).unwrap();
    assert!(!d.is_idle());
    // The index is not reused while a command is in flight.
    let _other = Host::attach(&mut d, Some(access), 8, 8);
    drain(&mut d, &mut raw.now);
    assert!(d.is_idle() && d.host_count() == 1);
    drop(io);
    let port = raw.port.clone();
    drop(raw);
    assert_eq!(Arc::strong_count(&port), 1);
}

#[test]
fn a_hundred_thousand_hosts_leave_nothing() {
    let mut d = Controller::new(null(Nanos(100))).unwrap();
    let mut stays = Host::attach(&mut d, Some(AccessPolicy::for_scope(AccessScope::All)), 8, 8);
    let access = AccessPolicy::for_scope(AccessScope::Sectors { first: 3, count: 5 });
    let mut before = (0, 0);
    for round in 0..100_000 {
        let port = match round % 50 {
            0 => Port::shared(PortLimits { vectors: 1, ..PortLimits::default() }).unwrap(),
            _ => Port::new().unwrap(),
        };
        match round % 3 {
            0 => d.attach_as(&port, access).unwrap(),
            _ => d.attach_as(&port, AccessPolicy::for_scope(AccessScope::All)).unwrap(),
        }
        if round % 1_000 == 999 {
            assert!(stays.read(&mut d, 0, 1).is_ok());
        }
        d.detach(&port).unwrap();
        assert_eq!((Arc::strong_count(&port), d.host_count()), (1, 1));
        if round == 1_000 {
            before = fds_and_mappings();
        }
    }
    let after = fds_and_mappings();
    // Concurrent tests have descriptors and mappings of their own.
    assert!(after.0 < before.0 + 200 && after.1 < before.1 + 400, "{before:?} became {after:?}");
}
