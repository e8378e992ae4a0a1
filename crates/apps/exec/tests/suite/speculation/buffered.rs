//! Programs whose sends return at once, into the outbox.

// guarantee: B-126, B-127

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use exec::{OutboxLimits, OutboxStats, ServiceStats};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::harness::{DeviceControl, Ended, Gate, Speculating, compile, new_device};

/// A program of `buffered.c` with the observer's ends of its sockets. The device completes nothing
/// before it is told to.
struct Buffering {
    running: Speculating,
    first: UnixStream,
    second: UnixStream,
    _dir: tempfile::TempDir,
}

impl Buffering {
    fn start(kind: &str, limits: OutboxLimits) -> Buffering {
        Buffering::start_with(kind, limits, UnixStream::pair().unwrap())
    }

    /// Starts the program with this pair as its first socket.
    fn start_with(
        kind: &str,
        limits: OutboxLimits,
        (first, first_theirs): (UnixStream, UnixStream),
    ) -> Buffering {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("buffered", dir.path());
        let at = dir.path().canonicalize().unwrap().join("at");
        let (second, second_theirs) = UnixStream::pair().unwrap();
        let configure = |command: &mut Command, control: &DeviceControl| {
            command.stdin(Stdio::from(OwnedFd::from(first_theirs)));
            command.stderr(Stdio::from(OwnedFd::from(second_theirs)));
            control.pause();
        };
        let gate = Gate::Buffers(limits);
        let running = Speculating::start(new_device(6), gate, &at, &program, &[kind], configure);
        for socket in [&first, &second] {
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        }
        Buffering { running, first, second, _dir: dir }
    }

    fn until_buffered(&mut self, sends: u64) {
        self.running.until("sends", |running| running.supervisor.buffered() == sends);
    }

    fn until_waiting(&mut self) {
        self.running.until("a wait", |running| running.supervisor.waiting() > 0);
    }

    /// Asserts that neither socket has data.
    fn has_nothing(&self) {
        for socket in [&self.first, &self.second] {
            socket.set_nonblocking(true).unwrap();
            let got = (&mut &*socket).read(&mut [0]);
            let kind = got.map_err(|error| error.kind());
            assert_eq!(kind, Err(std::io::ErrorKind::WouldBlock));
            socket.set_nonblocking(false).unwrap();
        }
    }

    /// Waits for the end of the program with status 0. Returns what the sockets and the pipe had
    /// received, and the counters of the outbox.
    fn end(self) -> (String, String, String, OutboxStats) {
        let Ended { status, output, service, .. } = self.running.end();
        assert_eq!(status.code(), Some(0), "{status}");
        let text = |mut socket: UnixStream| {
            let mut text = String::new();
            // A program that ends has closed its sockets.
            socket.read_to_string(&mut text).unwrap();
            text
        };
        let ServiceStats { speculation, .. } = service.unwrap();
        let output = String::from_utf8(output).unwrap();
        (text(self.first), text(self.second), output, speculation.outbox)
    }
}

#[test]
fn each_kind_of_send_returns_at_once_and_is_sent_when_it_is_durable() {
    let mut program = Buffering::start("kinds", OutboxLimits::default());
    program.until_buffered(7);
    program.until_waiting();
    program.has_nothing();
    assert!(!program.running.has_output() && program.running.supervisor.durable() == 0);
    program.running.control.resume();
    let (first, _, output, outbox) = program.end();
    assert_eq!(first, "write,ritev,send,ritev,raw,thread,");
    assert_eq!(output, "pipe");
    let OutboxStats { buffered, bytes, sent, failed, dropped, .. } = outbox;
    assert_eq!((buffered, bytes, sent, failed, dropped), (7, 38, 7, 0, 0));
    assert!(outbox.delay_max.0 > 0 && outbox.delay_max <= outbox.delay_total, "{outbox:?}");
}

#[test]
fn arguments_that_are_invalid_have_the_kernels_errors() {
    let program = Buffering::start("invalid", OutboxLimits::default());
    program.running.control.resume();
    let (first, ..) = program.end();
    assert_eq!(first, "out");
}

#[test]
fn a_send_that_does_not_fit_waits_and_keeps_its_place() {
    let limits = OutboxLimits { bytes: 16, ..OutboxLimits::default() };
    let mut program = Buffering::start("full", limits);
    program.until_waiting();
    assert_eq!(program.running.supervisor.buffered(), 2);
    program.has_nothing();
    program.running.control.resume();
    let (first, second, _, outbox) = program.end();
    assert_eq!((first.as_str(), second.as_str()), ("12345678abcdefgh+", "other"));
    assert_eq!((outbox.overflows, outbox.sent), (1, outbox.buffered), "{outbox:?}");
}

/// Also the numbers of sends, and of bytes for one target, are bounded.
#[test]
fn sends_and_bytes_of_a_target_are_bounded() {
    let default = OutboxLimits::default();
    for limits in
        [OutboxLimits { sends: 2, ..default }, OutboxLimits { target_bytes: 16, ..default }]
    {
        let mut program = Buffering::start("full", limits);
        program.until_waiting();
        assert_eq!(program.running.supervisor.buffered(), 2, "{limits:?}");
        program.running.control.resume();
        let (first, second, ..) = program.end();
        assert_eq!((first.as_str(), second.as_str()), ("12345678abcdefgh+", "other"));
    }
}

/// The peer has gone when its data is due: it is lost, and the next send has the kernel's error.
/// Other peers get theirs.
#[test]
fn data_for_a_peer_that_has_gone_is_dropped() {
    let mut program = Buffering::start("gone", OutboxLimits::default());
    program.until_buffered(2);
    let (gone, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut program.first, gone));
    program.until_waiting();
    program.running.control.resume();
    let (_, second, _, outbox) = program.end();
    assert_eq!(second, "sentagain");
    assert_eq!((outbox.sent, outbox.failed, outbox.dropped), (1, 1, 0), "{outbox:?}");
}

/// A device error in the middle of a window: data in the outbox is dropped, and later sends fail.
#[test]
fn data_behind_a_failed_barrier_is_dropped() {
    let mut program = Buffering::start("fails", OutboxLimits::default());
    program.until_buffered(1);
    program.running.control.fail();
    let Buffering { running, mut first, .. } = program;
    let Ended { status, service, .. } = running.end();
    // The exit fails, too.
    assert_eq!(status.signal(), Some(9), "{status}");
    assert!(service.is_err());
    let mut received = Vec::new();
    first.read_to_end(&mut received).unwrap();
    assert!(received.is_empty());
}

/// A socket that is handed over: the message with it waits, behind the data sent before. So what its
/// receiver writes to it comes after that.
#[test]
fn a_socket_is_handed_over_behind_its_data() {
    let mut program = Buffering::start("rights", OutboxLimits::default());
    program.until_waiting();
    assert_eq!(program.running.supervisor.buffered(), 2);
    program.has_nothing();
    program.running.control.resume();
    let mut received = Vec::new();
    let copy: OwnedFd = loop {
        let (mut bytes, mut space) = ([0; 1], [MaybeUninit::uninit(); 128]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got =
            recvmsg(&program.first, &mut parts, &mut control, RecvFlags::empty()).unwrap().bytes;
        assert_eq!(got, 1);
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        received.extend_from_slice(&bytes);
        if let Some(passed) = passed {
            break passed;
        }
    };
    assert_eq!(received, b"ab");
    let mut copy = UnixStream::from(copy);
    copy.write_all(b"after").unwrap();
    drop(copy);
    let (first, second, ..) = program.end();
    assert_eq!((first.as_str(), second.as_str()), ("c", "before,after"));
}

/// A peer that reads nothing neither delays the data of others nor the end of the program, and gets
/// all data that was accepted, and then the end.
#[test]
fn a_peer_that_reads_nothing_delays_no_other() {
    let (first, theirs) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 4608).unwrap();
    let mut program =
        Buffering::start_with("reads_nothing", OutboxLimits::default(), (first, theirs));
    // The next send to that peer does not fit.
    program.until_waiting();
    program.running.control.resume();
    let mut second = String::new();
    program.second.read_to_string(&mut second).unwrap();
    assert_eq!(second, ".done");
    let mut status = None;
    program.running.until("the end", |running| {
        status = running.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert!(program.running.supervisor.buffered() > 0);
    let mut received = Vec::new();
    program.first.read_to_end(&mut received).unwrap();
    let (_, _, output, outbox) = program.end();
    assert_eq!(output, received.len().to_string());
    assert!(outbox.sent == outbox.buffered && outbox.failed == 0, "{outbox:?}");
}

/// Outputs through the gate do not overtake those in the outbox.
#[test]
fn data_arrives_in_the_order_of_the_calls() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("buffered", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let gate = Gate::Buffers(OutboxLimits::default());
    let configure = |_: &mut Command, control: &DeviceControl| {
        control.set_latency(time::Nanos::from_micros(50));
    };
    let mut running = Speculating::start(new_device(7), gate, &at, &program, &["order"], configure);
    let mut output = running.output.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).unwrap();
        bytes
    });
    running.until("the end", |running| running.child.try_wait().unwrap().is_some());
    let received = reader.join().unwrap();
    let Ended { status, service, .. } = running.end();
    assert!(status.success(), "{status}");
    let (numbers, rest) = received.as_chunks::<4>();
    let numbers: Vec<u32> = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    assert!(numbers == (0..20_000).collect::<Vec<u32>>() && rest.is_empty());
    let speculation = service.unwrap().speculation;
    assert!(speculation.passed > 0 && speculation.outbox.buffered > 0, "{speculation:?}");
}
