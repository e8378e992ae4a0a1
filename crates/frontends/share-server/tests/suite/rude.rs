//! Clients that send arbitrary messages, many of them valid, beside a well-behaved client that is
//! not affected.

// guarantee: S-19

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mem::SharedRegion;
use rustix::net::{RecvFlags, SendFlags};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{
    AclRule, Grant, KickTarget, LimiterSetting, ListEntry, MESSAGE_BYTES_MAX, Message,
    NamespaceAction, Packet, Principal, ResourceName, SettingChange,
};
use testkit::choices::Choices;
use transport::PortDescriptor;
use user_io::remote::Admin;

use super::harness::{Server, name, table};

/// Maximum number of messages of a case.
const MESSAGES: usize = 60;

/// Runs one case from a fuzzer's bytes, on a server shared by all cases.
pub fn fuzz(bytes: &[u8]) {
    use std::sync::OnceLock;
    static SERVER: OnceLock<Server> = OnceLock::new();
    talk(SERVER.get_or_init(|| Server::start(table())), Choices::of(bytes));
}

fn drain(socket: &OwnedFd) {
    while let Ok(ReceivedPacket::Packet(..) | ReceivedPacket::Malformed(_)) =
        socket::receive(socket, PortDescriptor::MAX_DESCRIPTORS, RecvFlags::DONTWAIT)
    {}
}

/// A few clients send arbitrary messages; then the server must still answer, without clients left.
pub fn talk(server: &Server, mut choices: Choices) {
    let good = SharedRegion::memfd(4096).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut clients: Vec<OwnedFd> = Vec::new();
    for _ in 0..MESSAGES {
        if choices.is_over() {
            break;
        }
        if clients.is_empty() || (clients.len() < 6 && choices.chance(0.2)) {
            let client = socket::connect(&server.socket).unwrap();
            if choices.chance(0.8) {
                say(&client, &mut choices, Message::Hello, &[]);
            }
            if choices.chance(0.6) {
                say(&client, &mut choices, open(name("a"), 1), &[]);
            }
            clients.push(client);
        }
        let at = choices.below(clients.len() as u64) as usize;
        if choices.chance(0.05) {
            clients.swap_remove(at);
            continue;
        }
        let message = message(&mut choices);
        let registers = matches!(message, Message::Register { .. });
        let count = match choices.below(30) {
            0 => choices.below(250) as usize,
            1 => usize::from(!registers),
            _ => usize::from(registers),
        };
        let fd = match choices.below(6) {
            0 => null.as_fd(),
            _ => good.backing().unwrap().as_fd(),
        };
        say(&clients[at], &mut choices, message, &vec![fd; count]);
        if choices.chance(0.5) {
            drain(&clients[at]);
        }
    }
    drop(clients);
    settle(server);
}

/// Checks that valid clients are served, closed ones removed, and rules unchanged.
fn settle(server: &Server) {
    for attempt in 0.. {
        assert!(attempt < 5_000, "clients stay");
        // Closed connections are noticed one by one.
        let Ok(mut admin) = Admin::connect(&server.socket) else { continue };
        let Ok(entries) = admin.list() else { continue };
        if entries.iter().any(|entry| matches!(entry, ListEntry::Client(_))) {
            std::thread::yield_now();
            continue;
        }
        assert!(entries.iter().any(|entry| matches!(entry, ListEntry::Partition { .. })));
        for entry in entries {
            if let ListEntry::Rule(AclRule { principal: subject, device, partition, .. }) = entry {
                admin.deny(subject, device, Some(partition)).unwrap();
            }
        }
        return;
    }
}

fn open(partition: ResourceName, queues: u16) -> Message {
    Message::Open { device: ResourceName::NONE, partition, queues }
}

fn message(choices: &mut Choices) -> Message {
    let place = |choices: &mut Choices| match choices.below(5) {
        0 => ResourceName::NONE,
        1 => name("d"),
        2 => name("nowhere"),
        n => name(["a", "b"][n as usize - 3]),
    };
    let small = |choices: &mut Choices| match choices.chance(0.8) {
        true => choices.below(12),
        false => choices.next_u64(),
    };
    let subject = |choices: &mut Choices| match choices.below(3) {
        0 => Principal::Anyone,
        1 => Principal::Gid(choices.below(4) as u32),
        _ => Principal::Uid(choices.below(4) as u32),
    };
    match choices.below(18) {
        0 => Message::Hello,
        16 => {
            let (device, nsid) = (place(choices), small(choices) as u32);
            let action = match choices.below(4) {
                0 => NamespaceAction::Create { bytes: Some(small(choices)) },
                1 => NamespaceAction::Delete(Some(nsid)),
                2 => NamespaceAction::Attach(nsid),
                _ => NamespaceAction::Detach(nsid),
            };
            Message::ChangeNamespaces { device, action }
        }
        17 => Message::ListNamespaces { device: place(choices), index: small(choices) as u32 },
        12 => Message::Stats { index: small(choices) as u32 },
        13 => {
            let change = SettingChange::ActivePus(small(choices) as u32);
            Message::Set { device: place(choices), change }
        }
        14 => {
            let [kp, ki, kd] = [(); 3].map(|()| small(choices) as f64);
            let change = SettingChange::RateLimiter(LimiterSetting::Pid { kp, ki, kd });
            Message::Set { device: name("f"), change }
        }
        15 => {
            let fault = ["cut", "die", "", "slow-die pu=1"][choices.below(4) as usize];
            Message::Fault { device: place(choices), fault: fault.into() }
        }
        1 => Message::List { index: small(choices) as u32 },
        2 => Message::Kick(KickTarget::Client(small(choices))),
        3 => Message::Kick(KickTarget::Subject(subject(choices))),
        4 => {
            let (subject, device) = (subject(choices), place(choices));
            Message::Deny { subject, device, partition: place(choices) }
        }
        5 => {
            let grant = Grant {
                write: choices.chance(0.5),
                queues: small(choices) as u16,
                depth: small(choices) as u16,
                iops: choices.chance(0.5).then(|| 1 + small(choices) / 2),
                bytes_per_sec: None,
            };
            let (subject, device) = (subject(choices), place(choices));
            Message::Allow(AclRule { principal: subject, device, partition: place(choices), grant })
        }
        6 => Message::Done { count: small(choices) },
        7 | 8 => open(place(choices), small(choices) as u16),
        _ => {
            let slot = small(choices) as u32;
            Message::Register { slot, bytes: if choices.chance(0.9) { 4096 } else { 1 << 50 } }
        }
    }
}

/// Sends a message, sometimes damaged. Replies are mostly not read, so a server that waited for
/// that would block here.
fn say(client: &OwnedFd, choices: &mut Choices, message: Message, fds: &[BorrowedFd<'_>]) {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut packet = Packet { serial: 1, message }.encode(&mut bytes).to_vec();
    match choices.below(16) {
        0 => packet.truncate(1 + choices.below(packet.len() as u64 - 1) as usize),
        1 => packet.resize(choices.below(3_000) as usize + 1, 7),
        2 => {
            let at = choices.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << choices.below(8);
        }
        _ => {}
    }
    let _ = socket::send_bytes(client, &packet, fds, SendFlags::DONTWAIT);
}
