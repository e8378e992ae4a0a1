//! Hostile clients: many, garbage, messages at the wrong time, unexpected descriptors. The server
//! continues, and well-behaved clients are not affected.

// guarantee: S-11, S-13

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use mem::SharedRegion;
use rng::Rng;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, SendFlags};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{
    Code, KickTarget, ListEntry, MESSAGE_BYTES_MAX, Message, Packet, Principal, ResourceName,
};
use transport::PortDescriptor;
use user_io::{DirectError, IoDevice};

use super::harness::*;

/// A client that sends arbitrary packets.
struct Raw(OwnedFd);

impl Raw {
    fn connect(path: &Path) -> Raw {
        let socket = socket::connect(path).unwrap();
        let (which, limit) = (rustix::net::sockopt::Timeout::Recv, Some(Duration::from_secs(20)));
        rustix::net::sockopt::set_socket_timeout(&socket, which, limit).unwrap();
        Raw(socket)
    }

    fn greeted(path: &Path) -> Raw {
        let raw = Raw::connect(path);
        assert!(matches!(raw.ask(Message::Hello, &[]), Some(Message::Welcome { .. })));
        raw
    }

    fn open(path: &Path) -> Raw {
        let raw = Raw::greeted(path);
        let answer = raw.ask(open("left"), &[]);
        assert!(matches!(answer, Some(Message::Granted(_))), "{answer:?}");
        raw
    }

    /// Sends a message, and returns the reply; `None` if the server closes the connection.
    fn ask(&self, message: Message, fds: &[BorrowedFd<'_>]) -> Option<Message> {
        let _ = socket::send(&self.0, &Packet { serial: 9, message }, fds, SendFlags::empty());
        self.hear()
    }

    fn hear(&self) -> Option<Message> {
        match socket::receive(&self.0, PortDescriptor::MAX_DESCRIPTORS, RecvFlags::empty()).unwrap()
        {
            ReceivedPacket::Packet(packet, _) => Some(packet.message),
            ReceivedPacket::Malformed(error) => panic!("{error}"),
            ReceivedPacket::Closed => None,
        }
    }

    fn code(&self, message: Message, fds: &[BorrowedFd<'_>]) -> Code {
        match self.ask(message, fds) {
            Some(Message::Refused(refusal) | Message::Disconnect(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        }
    }

    fn is_hung_up(&self) -> bool {
        self.hear().is_none()
    }
}

fn open(partition: &str) -> Message {
    Message::Open {
        device: ResourceName::NONE,
        partition: ResourceName::new(partition).unwrap(),
        queues: 1,
    }
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn memory_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let raw = Raw::open(&server.socket);
    let register = |slot, bytes| Message::Register { slot, bytes };
    let (pipe, _end) = std::io::pipe().unwrap();
    assert_eq!(raw.code(register(1, 4096), &[pipe.as_fd()]), Code::BadMemory);
    let unsealed = memfd(4096, SealFlags::empty());
    assert_eq!(raw.code(register(1, 4096), &[unsealed.as_fd()]), Code::BadMemory);
    let file = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(raw.code(register(1, 4096), &[file.as_fd()]), Code::BadMemory);
    let sealed = memfd(4096, SealFlags::SHRINK);
    assert_eq!(raw.code(register(1, 8192), &[sealed.as_fd()]), Code::BadMemory);
    assert_eq!(
        raw.code(register(0, 4096), &[sealed.as_fd()]),
        Code::BadMemory,
        "slot 0 belongs to the admin queues"
    );
    assert_eq!(raw.code(register(u32::MAX, 4096), &[sealed.as_fd()]), Code::BadMemory);
    let empty = memfd(0, SealFlags::SHRINK);
    assert_eq!(raw.code(register(1, 0), &[empty.as_fd()]), Code::BadMemory);
    let much = memfd(1 << 40, SealFlags::SHRINK);
    assert_eq!(raw.code(register(1, 1 << 40), &[much.as_fd()]), Code::Memory);
    let region = SharedRegion::memfd(4096).unwrap();
    let good = region.backing().unwrap();
    assert_eq!(raw.ask(register(1, 4096), &[good.as_fd()]), Some(Message::Done { count: 0 }));
    assert_eq!(
        raw.code(register(1, 4096), &[good.as_fd()]),
        Code::BadMemory,
        "the slot is already registered"
    );
    for slot in 2..=64 {
        let answer = raw.ask(register(slot, 4096), &[good.as_fd()]);
        assert_eq!(answer, Some(Message::Done { count: 0 }), "{slot}");
    }
    assert_eq!(
        raw.code(register(65, 4096), &[good.as_fd()]),
        Code::Memory,
        "the limit of registrations"
    );
    // Messages with unexpected descriptors end the connection.
    for (message, fds) in [
        (register(70, 4096), vec![]),
        (register(70, 4096), vec![good.as_fd(); 2]),
        (register(70, 4096), vec![good.as_fd(); 200]),
        (Message::List { index: 0 }, vec![good.as_fd()]),
    ] {
        let raw = Raw::open(&server.socket);
        let count = fds.len();
        assert_eq!(raw.code(message, &fds), Code::Malformed, "{count} descriptors");
        assert!(raw.is_hung_up());
    }
    drop(raw);
    server.wait_for_clients(0);
    server.stop();
}

#[test]
fn messages_at_the_wrong_time_end_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let raw = Raw::connect(&server.socket);
    assert_eq!(raw.code(open("left"), &[]), Code::Order);
    assert!(raw.is_hung_up());
    let raw = Raw::greeted(&server.socket);
    assert_eq!(raw.code(Message::Hello, &[]), Code::Order);
    let raw = Raw::open(&server.socket);
    assert_eq!(raw.code(open("left"), &[]), Code::Order);
    assert!(raw.is_hung_up());
    let raw = Raw::greeted(&server.socket);
    assert_eq!(raw.code(Message::Done { count: 1 }, &[]), Code::Order);
    let raw = Raw::greeted(&server.socket);
    let region = SharedRegion::memfd(4096).unwrap();
    let register = Message::Register { slot: 1, bytes: 4096 };
    assert_eq!(raw.code(register, &[region.backing().unwrap().as_fd()]), Code::Order);
    // Packets with an invalid encoding.
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let hello = Packet { serial: 1, message: Message::Hello }.encode(&mut bytes).to_vec();
    let mut other = hello.clone();
    other[4] = 2;
    for (packet, code) in [
        (other, Code::Version),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Code::Malformed),
        (hello[..20].to_vec(), Code::Malformed),
        (vec![b'S'; 100_000], Code::Malformed),
    ] {
        let raw = Raw::connect(&server.socket);
        socket::send_bytes(&raw.0, &packet, &[], SendFlags::empty()).unwrap();
        match raw.hear() {
            Some(Message::Disconnect(refusal)) => assert_eq!(refusal.code, code),
            other => panic!("{other:?}"),
        }
        assert!(raw.is_hung_up());
    }
    server.stop();
}

/// Sends random messages, many of them valid.
fn fuzz(rounds: u64) {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), SCENARIO, &[]);
    let (device, mut h) = client(&server.socket, "right");
    let buffer = device.buffer(SECTOR).unwrap();
    let mut rng = Rng::new(seed);
    let region = SharedRegion::memfd(4096).unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let unsealed = memfd(4096, SealFlags::empty());
    let mut clients: Vec<Raw> = Vec::new();
    let mut before = (0, 0, 0);
    for round in 0..rounds {
        if round == rounds / 10 {
            clients.clear();
            server.wait_for_clients(1);
            before = server.holdings();
        }
        if clients.len() < 8 || rng.chance(0.1) {
            clients.push(match rng.below(3) {
                0 => Raw::connect(&server.socket),
                1 => Raw::greeted(&server.socket),
                _ => {
                    // Other clients may hold all queues.
                    let raw = Raw::greeted(&server.socket);
                    assert!(raw.ask(open("left"), &[]).is_some());
                    raw
                }
            });
        }
        let at = rng.below(clients.len() as u64) as usize;
        if rng.chance(0.1) || clients.len() > 20 {
            clients.swap_remove(at);
            continue;
        }
        let names = ["left", "right", "net", "rest", "nowhere"];
        let name = |rng: &mut Rng| match rng.below(6) {
            0 => ResourceName::NONE,
            n => ResourceName::new(names[n as usize - 1]).unwrap(),
        };
        let small = |rng: &mut Rng| if rng.chance(0.8) { rng.below(70) } else { rng.next_u64() };
        let message = match rng.below(9) {
            0 => Message::Hello,
            1 => Message::List { index: small(&mut rng) as u32 },
            2 => Message::Kick(KickTarget::Client(u64::MAX)),
            3 => {
                let (device, partition) = (name(&mut rng), name(&mut rng));
                Message::Deny { subject: Principal::Anyone, device, partition }
            }
            // One bit away from a Kick, and without a principal, because these tests may run as
            // root.
            4 => Message::Welcome { admin: false, uid: 0, pid: 0 },
            5 | 6 => {
                let queues = small(&mut rng) as u16;
                Message::Open { device: ResourceName::NONE, partition: name(&mut rng), queues }
            }
            _ => {
                let slot = small(&mut rng) as u32;
                Message::Register { slot, bytes: if rng.chance(0.9) { 4096 } else { 1 << 50 } }
            }
        };
        let count =
            if matches!(message, Message::Register { .. }) == rng.chance(0.95) { 1 } else { 0 };
        let count = if rng.chance(0.02) { rng.below(250) as usize } else { count };
        let fd = match rng.below(6) {
            0 => pipe.as_fd(),
            1 => unsealed.as_fd(),
            _ => region.backing().unwrap().as_fd(),
        };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut packet =
            Packet { serial: rng.next_u64() as u32, message }.encode(&mut bytes).to_vec();
        match rng.below(12) {
            0 => packet.truncate(1 + rng.below(packet.len() as u64 - 1) as usize),
            1 => packet.resize(rng.below(3_000) as usize + 1, 7),
            2 => {
                let at = rng.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << rng.below(8);
            }
            _ => {}
        }
        // Usually no client reads the replies. A server that waited for that would block here.
        let flags = SendFlags::DONTWAIT;
        let _ = socket::send_bytes(&clients[at].0, &packet, &vec![fd; count], flags);
        if rng.chance(0.3) {
            let _ = socket::receive(
                &clients[at].0,
                PortDescriptor::MAX_DESCRIPTORS,
                RecvFlags::DONTWAIT,
            );
        }
        if round % 256 == 0 {
            h.read(round % COUNT, &buffer).unwrap();
            assert!(server.child.try_wait().unwrap().is_none(), "SLUICE_SEED={seed}: {round}");
        }
    }
    clients.clear();
    server.wait_for_clients(1);
    let after = server.holdings();
    assert!(after.0 <= before.0 + 4, "SLUICE_SEED={seed}: descriptors {before:?} became {after:?}");
    assert!(after.1 < before.1 + 20_000, "SLUICE_SEED={seed}: pages {before:?} became {after:?}");
    h.read(0, &buffer).unwrap();
    assert!(server.stderr().is_empty(), "{}", server.stderr());
    server.stop();
}

#[test]
fn garbage_does_not_disturb_others() {
    fuzz(5_000);
}

#[test]
#[ignore = "long: the fuzz target of the socket"]
fn fuzz_the_socket() {
    fuzz(500_000);
}

#[test]
fn a_thousand_connects_and_no_more_at_a_time_than_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let mut before = (0, 0, 0);
    for round in 0..1_000 {
        let device = IoDevice::connect(&server.socket, Some("left")).unwrap();
        if round % 100 == 0 {
            handle(&device, user_io::WaitMode::Poll)
                .read(0, &device.buffer(SECTOR).unwrap())
                .unwrap();
        }
        drop(device);
        if round == 100 {
            server.wait_for_clients(0);
            before = server.holdings();
        }
    }
    server.wait_for_clients(0);
    let after = server.holdings();
    assert!(after.0 <= before.0 + 2, "descriptors: {before:?} became {after:?}");
    assert!(after.1 < before.1 + 20_000, "mapped pages: {before:?} became {after:?}");
    // As many connections as one user may have.
    let mut idle: Vec<_> = (0..256).map(|_| Raw::greeted(&server.socket)).collect();
    let error = IoDevice::connect(&server.socket, Some("left")).unwrap_err();
    match &error {
        DirectError::Remote(e) => assert_eq!(e.protocol_error().unwrap().code, Code::Connections),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("has 256 connections open"), "{error}");
    idle.truncate(200);
    let open: Vec<_> = idle.drain(..50).collect();
    for raw in &open {
        assert!(matches!(raw.ask(open_rest(), &[]), Some(Message::Granted(_))));
    }
    let list = loop {
        // The server notices closed connections one by one.
        match user_io::remote::Admin::connect(&server.socket) {
            Ok(mut admin) => break admin.list().unwrap(),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let clients = list.iter().filter(|e| matches!(e, ListEntry::Client(_))).count();
    assert_eq!(clients, 50);
    drop((open, idle));
    server.wait_for_clients(0);
    server.stop();
}

fn open_rest() -> Message {
    open("rest")
}
