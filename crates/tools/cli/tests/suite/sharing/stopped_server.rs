//! A stopped server (`SIGSTOP`): every request to it ends within its timeout, and service resumes
//! when the server does.

// guarantee: S-17, B-51, B-81

use std::time::{Duration, Instant};

use rustix::process::Signal;
use share_proto::{DoorbellSummary, DoorbellUnknown};
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

/// A drive whose commands take so long that a stop ends after they are due.
const SLOW: &str = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull.latency = \"100ms\"\n\
    [[partition]]\nname = \"left\"\nfirst = 0\nsectors = 2000\n";

#[test]
fn the_lateness_that_a_stop_causes_is_the_machines() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SLOW, &[]);
    let config = RemoteDeviceConfig::parse("left").unwrap();
    let device = IoDevice::connect_with(&server.socket, config).unwrap();
    let mut h = handle(&device, user_io::WaitMode::Interrupt);
    let buffer = device.buffer(SECTOR).unwrap();
    // On a loaded machine, the drive may fetch the commands only after the stop.
    let stats = (0..20)
        .map(|_| {
            (0..4).for_each(|tag| h.submit(Request::read(3, 1, buffer.payload(), tag)).unwrap());
            h.poll();
            std::thread::sleep(Duration::from_millis(20));
            server.freeze();
            std::thread::sleep(Duration::from_millis(400));
            server.signal(Signal::CONT);
            (0..4).for_each(|_| assert!(h.wait().unwrap().status.is_success()));
            server.admin().stats().unwrap()[0].1
        })
        .find(|stats| stats.lateness.max >= Nanos::from_millis(250))
        .expect("the commands are in flight during one of the stops");
    let [total, machine, own] =
        [stats.lateness, stats.lateness_machine, stats.lateness_own].map(|late| late.max);
    assert!(machine >= Nanos::from_millis(240), "{stats:?}");
    assert!(own < Nanos::from_millis(40), "{stats:?}");
    assert!(machine <= total, "{stats:?}");
    server.stop();
}

#[test]
fn commands_wait_from_their_doorbell_while_the_server_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SLOW, &[]);
    let config = RemoteDeviceConfig::parse("left").unwrap();
    let device = IoDevice::connect_with(&server.socket, config).unwrap();
    let mut h = handle(&device, user_io::WaitMode::Interrupt);
    let buffer = device.buffer(SECTOR).unwrap();
    let mut round_trip = |stop: bool| {
        if stop {
            server.freeze();
        }
        h.submit(Request::read(3, 1, buffer.payload(), 0)).unwrap();
        h.poll();
        if stop {
            std::thread::sleep(Duration::from_millis(400));
            server.signal(Signal::CONT);
        }
        assert!(h.wait().unwrap().status.is_success());
        server.admin().stats().unwrap()[0].1.doorbell_to_fetch
    };
    let unknown = DoorbellSummary::Unknown(DoorbellUnknown::NoStamps);
    assert_eq!(round_trip(false), unknown, "the first doorbell has no stamp");
    let DoorbellSummary::Measured(waits) = round_trip(true) else { panic!("it was stamped") };
    let bounds = Nanos::from_millis(380)..Nanos(LATENESS_MAX.as_nanos() as u64);
    assert!(bounds.contains(&waits.max), "{waits:?}");
    server.stop();
}
