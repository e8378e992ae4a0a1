//! Killed processes: clients under load, and the server.

// guarantee: S-09, S-10

use std::time::{Duration, Instant};

use share_proto::Code;
use user_io::{
    DirectError, IoDevice, IoError, RemoteDeviceError, RemovalReason, Request, WaitMode,
};

use super::harness::*;

/// Kills clients during 100,000 writes; only their flushed data remains.
fn kill_clients(times: u64) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let (device, mut h) = client(&server.socket, "right");
    let buffer = device.buffer(SECTOR).unwrap();
    let mut before = (0, 0, 0);
    for round in 0..times {
        let mut other = ChildClient::start("write", &server, "left", None);
        assert_eq!(other.line(), "begun");
        std::thread::sleep(Duration::from_micros(round * 1_237 % 9_000));
        let who = u64::from(other.child.id());
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        // The other clients are not affected.
        buffer.fill(0, SECTOR, round as u8);
        h.write(round % COUNT, &buffer, false).unwrap();
        server.wait_for_clients(1);
        let (left, mut again) = client(&server.socket, "left");
        let found = left.buffer(SECTOR).unwrap();
        for lba in 0..FLUSHED {
            again.read(lba, &found).unwrap();
            let mut bytes = vec![0; SECTOR];
            found.read(0, &mut bytes);
            assert!(bytes == content(who, lba, 1), "flushed sector {lba} must have its data");
        }
        drop((found, again, left));
        server.wait_for_clients(1);
        if round == 4 {
            before = server.holdings();
        }
    }
    let after = server.holdings();
    assert!(after.0 <= before.0 + 2, "descriptors: {before:?} became {after:?}");
    // Mapped pages: a client has 4 MiB and its rings, so that leaks accumulate over the rounds.
    let grown = |a: u64, b: u64| a.saturating_sub(b) / (times - 5);
    assert!(grown(after.1, before.1) < 64, "mapped pages: {before:?} became {after:?}");
    // The data of the medium is resident as well: at most all of it.
    let most = before.2 + MEDIUM_PAGES + 8 * times;
    assert!(after.2 < most, "resident pages: {before:?} became {after:?}");
    server.stop();
}

#[test]
fn clients_that_are_killed_leave_nothing() {
    kill_clients(20);
}

#[test]
#[ignore = "long: a thousand clients are killed"]
fn a_thousand_clients_that_are_killed_leave_nothing() {
    kill_clients(1_000);
}

#[test]
fn the_servers_death_is_heard_at_once_and_its_return_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = in_file(SCENARIO);
    let mut server = Server::start(dir.path(), &scenario, &[]);
    for round in 0..3u8 {
        let device = IoDevice::connect(&server.socket, Some("left")).unwrap();
        let waits = [WaitMode::Poll, WaitMode::Interrupt];
        let mut handles: Vec<_> = waits.into_iter().map(|w| handle(&device, w)).collect();
        let buffer = device.buffer(SECTOR).unwrap();
        buffer.fill(0, SECTOR, round + 1);
        handles[0].write(7, &buffer, false).unwrap();
        handles[0].flush().unwrap();
        // The server is stopped first, so that new requests stay outstanding, and then killed.
        server.freeze();
        for h in &mut handles {
            for tag in 0..20 {
                h.submit(Request::read(tag, 1, buffer.payload(), tag)).unwrap();
            }
            h.poll();
        }
        let waiters: Vec<_> = handles
            .into_iter()
            .map(|mut h| {
                std::thread::spawn(move || {
                    let statuses: Vec<_> = std::iter::from_fn(|| h.wait()).collect();
                    (Instant::now(), h, statuses)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        assert!(waiters.iter().all(|w| !w.is_finished()), "all clients must still wait");
        let killed = Instant::now();
        server.kill();
        for waiter in waiters {
            let (at, mut h, statuses) = waiter.join().unwrap();
            assert!(at - killed < Duration::from_secs(1), "{:?}", at - killed);
            assert_eq!(statuses.len(), 20, "each request must complete exactly once");
            for done in statuses {
                assert!(done.status.is(nvme::Status::HOST_PATH_ERROR), "{done:?}");
            }
            // Later requests fail as well, and do not hang.
            let error = h.write(1, &buffer, false).unwrap_err();
            assert!(error.is_removed(), "{error}");
            assert!(h.flush().unwrap_err().is_removed());
            for tag in 0..1000 {
                match h.submit(Request::read(0, 1, buffer.payload(), tag)) {
                    Ok(()) => {}
                    Err(IoError::Busy(_)) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            while h.outstanding() > 0 {
                assert!(h.wait().unwrap().status.is(nvme::Status::HOST_PATH_ERROR));
            }
        }
        assert_eq!(device.removal_reason(), Some(RemovalReason::ServerDied));
        match device.reconnect() {
            Err(DirectError::Remote(error)) => assert!(error.is_disconnected(), "{error}"),
            other => panic!("{other:?}"),
        }
        server = Server::start(dir.path(), &scenario, &[]);
        let again = device.reconnect().unwrap();
        let found = again.buffer(SECTOR).unwrap();
        handle(&again, WaitMode::Interrupt).read(7, &found).unwrap();
        let mut byte = [0];
        found.read(0, &mut byte);
        assert_eq!(byte, [round + 1], "flushed data must survive the kill");
    }
    // On a clean shutdown, the server notifies its clients.
    let (device, mut h) = client(&server.socket, "left");
    let buffer = device.buffer(SECTOR).unwrap();
    h.read(0, &buffer).unwrap();
    server.stop();
    assert!(h.read(0, &buffer).unwrap_err().is_removed());
    match device.removal_reason() {
        Some(RemovalReason::Disconnected(refusal)) => assert_eq!(refusal.code, Code::Stopping),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        device.buffer(64 << 20),
        Err(DirectError::Remote(RemoteDeviceError::Removed(_)))
    ));
}
