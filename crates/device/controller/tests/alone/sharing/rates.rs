//! Rate limits in virtual time, and hosts that do not reap.

// guarantee: B-34, S-06, S-07

use std::collections::VecDeque;

use controller::{AccessPolicy, AccessScope, AttachError, Controller};
use nvme::{Sqe, Status};
use time::{Component, Nanos, VirtualRunner};

use super::harness::{Host, SECTOR, block, drain, null};

/// Keeps a queue full of reads of a fixed size, and reaps.
struct Reader {
    host: Host,
    sectors: u32,
    done: u64,
}

impl Component for Reader {
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = false;
        while let Some(completed) = self.host.pair.reap() {
            assert_eq!(completed.status, Status::SUCCESS);
            self.done += 1;
            moved = true;
        }
        let mut sqe = Sqe::read(1, 0, self.sectors);
        sqe.set_sgl(self.host.block(0, self.sectors));
        while self.host.pair.submit(sqe, 0).is_ok() {}
        moved | self.host.pair.ring()
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

fn reader(drive: &mut Controller, access: AccessPolicy, sectors: u32) -> Reader {
    Reader { host: Host::attach(drive, Some(access), 33, 16), sectors, done: 0 }
}

#[test]
fn rates_are_kept_within_two_percent_and_other_hosts_do_not_wait() {
    let free = AccessPolicy::for_scope(AccessScope::All);
    let alone = {
        let mut d = Controller::new(null(Nanos::from_micros(10))).unwrap();
        let mut free = reader(&mut d, free, 1);
        VirtualRunner::new().run_until_time(&mut [&mut free, &mut d], Nanos::from_secs(1));
        free.done as f64
    };
    for (iops, bytes, sectors) in [
        (Some(20_000), None, 1),
        (Some(1_234), None, 1),
        (None, Some(50_000_000), 1),
        (None, Some(200_000_000), 16),
        (Some(10_000), Some(20_000_000), 1),
    ] {
        let mut d = Controller::new(null(Nanos::from_micros(10))).unwrap();
        let held = AccessPolicy { iops, bytes_per_sec: bytes, ..free };
        let (mut held, mut other) = (reader(&mut d, held, sectors), reader(&mut d, free, 1));
        let mut runner = VirtualRunner::new();
        runner.run_until_time(&mut [&mut held, &mut other, &mut d], Nanos::from_secs(1));
        let size = u64::from(sectors) * SECTOR as u64;
        let expected = iops.unwrap_or(u64::MAX).min(bytes.map_or(u64::MAX, |b| b / size)) as f64;
        let rate = held.done as f64;
        assert!((rate / expected - 1.0).abs() < 0.02, "measured rate {rate}, limit {expected}");
        assert!((other.done as f64 / alone - 1.0).abs() < 0.02, "{} of {alone}", other.done);
        let stats = d.port_stats(&held.host.port).unwrap();
        assert!(stats.throttled > 0 && stats.refused == 0, "{stats:?}");
        assert_eq!(d.port_stats(&other.host.port).unwrap().throttled, 0);
    }
}

/// The rates of a host that has queues change, from none to some and back.
#[test]
fn rates_of_attached_hosts_change_while_they_submit() {
    let free = AccessPolicy::for_scope(AccessScope::All);
    let mut d = Controller::new(null(Nanos::from_micros(10))).unwrap();
    let (mut held, mut other) = (reader(&mut d, free, 1), reader(&mut d, free, 1));
    let mut runner = VirtualRunner::new();
    let mut done_by = |d: &mut Controller, held: &mut Reader, second: u64| {
        let before = held.done;
        let end = Nanos::from_secs(second);
        runner.run_until_time(&mut [&mut *held, &mut other, d], end);
        held.done - before
    };
    let without = done_by(&mut d, &mut held, 1);
    assert!(without > 100_000, "{without}");
    let mut second = 1;
    for (iops, bytes, expected) in [
        (Some(1_000), None, 1_000.0),
        (Some(5_000), None, 5_000.0),
        (None, Some(2_000 * SECTOR as u64), 2_000.0),
        (None, None, without as f64),
    ] {
        d.set_rates(&held.host.port, iops, bytes).unwrap();
        second += 1;
        let rate = done_by(&mut d, &mut held, second) as f64;
        // Commands that were fetched before the change complete, too.
        let tolerance = 0.02 * expected + 33.0;
        assert!((rate - expected).abs() < tolerance, "{rate}, limit {iops:?} {bytes:?}");
    }
    let stats = d.port_stats(&held.host.port).unwrap();
    assert!(stats.throttled > 0, "{stats:?}");
    // Refused changes leave the rates as they are.
    for (iops, bytes) in [(Some(0), None), (None, Some(0))] {
        let error = d.set_rates(&held.host.port, iops, bytes).unwrap_err();
        assert!(matches!(error, AttachError::Limit { .. }), "{error}");
    }
    let port = held.host.port.clone();
    assert!(done_by(&mut d, &mut held, second + 1) as f64 > 0.97 * without as f64);
    d.detach(&port).unwrap();
    assert!(matches!(d.set_rates(&port, Some(1), None), Err(AttachError::Port)));
}

#[test]
fn nothing_that_is_held_back_is_lost() {
    let mut d = Controller::new(block()).unwrap();
    let access = AccessPolicy { iops: Some(100), ..AccessPolicy::for_scope(AccessScope::All) };
    let mut h = Host::attach(&mut d, Some(access), 33, 64);
    for lba in 0..32 {
        h.memory.fill(lba * SECTOR, SECTOR, lba as u8 + 1);
        let mut sqe = Sqe::write(1, lba as u64, 1, false);
        sqe.set_sgl(h.block(lba, 1));
        h.pair.submit(sqe, 0).unwrap();
    }
    h.pair.ring();
    let from = h.now;
    drain(&mut d, &mut h.now);
    let took = h.now.since(from);
    assert!((Nanos::from_millis(305)..Nanos::from_millis(330)).contains(&took), "{took}");
    let mut ended: VecDeque<_> = std::iter::from_fn(|| h.pair.reap()).collect();
    assert_eq!(ended.len(), 32);
    assert!(ended.drain(..).all(|c| c.status == Status::SUCCESS));
    h.pair.release();
    let read = h.read(&mut d, 0, 32).unwrap();
    assert_eq!(read, (1..=32).collect::<Vec<u8>>());
}

#[test]
fn a_host_that_does_not_reap_is_not_served_and_blocks_no_other() {
    let mut d = Controller::new(null(Nanos(500))).unwrap();
    let access = AccessPolicy { queue_depth: 16, ..AccessPolicy::for_scope(AccessScope::All) };
    let lazy = Host::attach(&mut d, Some(access), 16, 4);
    let mut other = Host::attach(&mut d, Some(access), 16, 4);
    // The host keeps writing its doorbell around the ring, whatever is outstanding.
    let bell = lazy.port.doorbells().atomic_u32(2 * transport::DOORBELL_STRIDE);
    let mut now = other.now;
    for turn in 0..10_000u32 {
        bell.store(turn * 7 % 16, std::sync::atomic::Ordering::Release);
        drain(&mut d, &mut now);
        other.now = now;
        if turn % 100 == 0 {
            assert!(other.read(&mut d, 0, 1).is_ok());
            now = other.now;
        }
        let stats = d.port_stats(&lazy.port).unwrap();
        assert!(stats.stalled <= 16 && stats.outstanding <= 16, "turn {turn}: {stats:?}");
    }
    // The drive serves the host again once it reaps.
    let head = lazy.port.doorbells().atomic_u32(3 * transport::DOORBELL_STRIDE);
    let before = d.port_stats(&lazy.port).unwrap();
    head.store(15, std::sync::atomic::Ordering::Release);
    drain(&mut d, &mut now);
    bell.store(3, std::sync::atomic::Ordering::Release);
    drain(&mut d, &mut now);
    assert!(d.port_stats(&lazy.port).unwrap().commands > before.commands);
}

#[test]
fn a_flood_of_admin_commands_leaves_the_drive_to_others() {
    let mut d = Controller::new(null(Nanos::from_micros(10))).unwrap();
    let access = AccessPolicy::for_scope(AccessScope::All);
    let mut flood = super::harness::Raw::attach(&mut d, access);
    let mut other = reader(&mut d, access, 1);
    let (mut sent, mut now) = (0u64, Nanos::ZERO);
    // The host submits 100,000 commands per second for a second.
    while now < Nanos::from_secs(1) {
        let command = nvme::AdminCommand::Identify { cns: 1, nsid: 0 };
        let mut sqe = command.to_sqe();
        sqe.set_prp(flood.at.0, 0);
        if flood.sq.push(&sqe).is_ok() {
            flood.sq.ring();
        }
        while d.poll(now) | other.poll(now) {}
        while let Some(cqe) = flood.cq.pop() {
            flood.sq.update_head(cqe.sq_head);
            sent += 1;
        }
        flood.cq.release();
        now += Nanos::from_micros(10);
    }
    assert!(
        (1_200..1_300).contains(&sent),
        "the drive admits a burst of 256 and 1000 per second, not {sent}"
    );
    assert!(other.done > 1_000_000, "{}", other.done);
}
