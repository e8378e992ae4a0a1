//! A stopped server (`SIGSTOP`): every request to it ends within its timeout, and service resumes
//! when the server does.

// guarantee: S-17

use std::time::{Duration, Instant};

use rustix::process::Signal;
use time::Nanos;
use user_io::remote::Admin;
use user_io::{DirectError, IoDevice, QueueConfig, RemoteDeviceConfig, RemoteDeviceError, Request};

use super::harness::*;

/// Timeout of the clients of these tests.
const TIMEOUT: Nanos = Nanos::from_millis(300);
/// Maximum delay after the timeout on a loaded machine.
const LATENESS_MAX: Duration = Duration::from_secs(4);

fn config() -> RemoteDeviceConfig {
    RemoteDeviceConfig { timeout: TIMEOUT, ..RemoteDeviceConfig::parse("left").unwrap() }
}

/// A request to a stopped server times out, and the error says so.
fn unanswered<T: std::fmt::Debug>(what: &str, ask: impl FnOnce() -> Result<T, DirectError>) {
    let begin = Instant::now();
    let error = ask().unwrap_err();
    let took = begin.elapsed();
    assert!(took >= Duration::from_nanos(TIMEOUT.0 / 2), "{what}: {took:?}");
    assert!(took < Duration::from_nanos(TIMEOUT.0) + LATENESS_MAX, "{what}: {took:?}");
    match &error {
        DirectError::Remote(served) => assert!(served.is_timeout(), "{what}: {error}"),
        _ => panic!("{what}: {error:?}"),
    }
    assert!(error.to_string().contains("has not answered within 0.3 s"), "{what}: {error}");
}

#[test]
fn whatever_is_asked_of_a_stopped_server_ends_in_time_and_goes_on_later() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let device = IoDevice::connect_with(&server.socket, config()).unwrap();
    let mut h = handle(&device, user_io::WaitMode::Interrupt);
    let doomed = device.create_queue(QueueConfig::default()).unwrap();
    let buffer = device.buffer(SECTOR).unwrap();
    buffer.fill(0, SECTOR, 7);
    h.write(3, &buffer, false).unwrap();
    let queues = device.session_grant().unwrap().grant.queues;
    for round in 0..2 {
        // More than the memory that the previous round has given back.
        let much = 16 << 20 << round;
        server.freeze();
        h.submit(Request::read(3, 1, buffer.payload(), 1)).unwrap();
        h.poll();
        unanswered("a queue", || device.create_queue(QueueConfig::default()).map(drop));
        // The request that timed out makes the next one fail at once.
        let begin = Instant::now();
        assert!(device.create_queue(QueueConfig::default()).is_err());
        assert!(begin.elapsed() < LATENESS_MAX);
        unanswered("memory", || device.buffer(much).map(drop));
        unanswered("a device", || IoDevice::connect_with(&server.socket, config()).map(drop));
        unanswered("an administrator's question", || {
            Ok(Admin::connect_timeout(&server.socket, TIMEOUT).map(drop)?)
        });
        assert_eq!(device.removal_reason(), None, "a stopped server is not a removed one");
        server.signal(Signal::CONT);
        // Outstanding requests complete, and new resources can be allocated.
        assert!(h.wait().unwrap().status.is_success(), "round {round}");
        h.read(3, &buffer).unwrap();
        let mut byte = [0];
        buffer.read(9, &mut byte);
        assert_eq!(byte, [7]);
        let held = device.buffer(much).unwrap();
        let more: Vec<_> = (2..queues)
            .map(|n| {
                device.create_queue(QueueConfig::default()).unwrap_or_else(|e| panic!("{n}: {e}"))
            })
            .collect();
        assert!(
            device.create_queue(QueueConfig::default()).is_err(),
            "the device has all granted queues"
        );
        drop((held, more));
        // The user's other connections are limited only by the user's quota.
        drop(device.reconnect().unwrap());
    }
    // A queue that is returned while the server does not reply is not lost either.
    server.freeze();
    let begin = Instant::now();
    drop(doomed);
    assert!(begin.elapsed() < Duration::from_nanos(TIMEOUT.0) + LATENESS_MAX);
    server.signal(Signal::CONT);
    let begin = Instant::now();
    let all: Vec<_> = loop {
        let all: Vec<_> =
            (1..queues).map_while(|_| device.create_queue(QueueConfig::default()).ok()).collect();
        if all.len() == usize::from(queues) - 1 {
            break all;
        }
        assert!(begin.elapsed() < TEST_TIMEOUT);
    };
    h.read(3, &buffer).unwrap();
    drop(all);
    server.stop();
}

#[test]
fn a_time_of_nothing_is_refused() {
    let config = RemoteDeviceConfig { timeout: Nanos::ZERO, ..RemoteDeviceConfig::default() };
    let error = IoDevice::connect_with("/nonexistent", config).unwrap_err();
    assert!(matches!(error, DirectError::Config { key: "timeout", .. }), "{error}");
    let error = IoDevice::connect_with("/nonexistent", RemoteDeviceConfig::default()).unwrap_err();
    assert!(matches!(error, DirectError::Remote(RemoteDeviceError::Connect { .. })), "{error}");
}
