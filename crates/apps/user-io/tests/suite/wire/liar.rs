//! A malicious server: messages of any kind at any time, arbitrary descriptors, inconsistent ports,
//! and a drive that answers admin commands with garbage. The client opens the device or reports an
//! error in bounded time, and never accesses memory that it was not given.

// guarantee: S-19

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{Iova, PAGE_BYTES, SharedRegion};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, accept, bind, listen};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{
    Grant, MESSAGE_BYTES_MAX, Message, Packet, PartitionSpan, ResourceName, SessionGrant,
};
use testkit::choices::Choices;
use time::Nanos;
use transport::{Port, PortLimits};
use user_io::remote::Admin;
use user_io::{IoDevice, QueueConfig, RemoteDeviceConfig};

use super::message::message;

/// The client's timeout for replies that do not arrive.
const TIMEOUT: Nanos = Nanos::from_millis(10);

/// State of the server.
struct Liar {
    choices: Choices,
    port: Option<Arc<Port>>,
    /// Admin commands answered.
    answered: u16,
}

/// Runs one case from a fuzzer's bytes.
pub(crate) fn fuzz(bytes: &[u8]) {
    talk(Choices::of(bytes));
}

/// Runs a client against such a server. Returns whether it could open a device.
pub(crate) fn talk(choices: Choices) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = socket::socket().unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 4).unwrap();
    let mut liar = Liar { choices, port: None, answered: 0 };
    let admin = liar.choices.chance(0.2);
    let server = std::thread::spawn(move || {
        let client = accept(&listener).unwrap();
        drop(listener);
        liar.serve(&client);
    });
    let opened = match admin {
        true => Admin::connect_timeout(&path, TIMEOUT).is_ok_and(|mut a| a.list().is_ok()),
        false => {
            let config = RemoteDeviceConfig { timeout: TIMEOUT, ..RemoteDeviceConfig::default() };
            IoDevice::connect_with(&path, config).is_ok_and(|device| {
                let _ = device.buffer(4096);
                let _ = device.create_queue(QueueConfig::default());
                let _ = device.vector_queue(QueueConfig::default());
                true
            })
        }
    };
    server.join().unwrap();
    opened
}

impl Liar {
    fn serve(&mut self, client: &OwnedFd) {
        // For a limited number of messages, and until shortly after the client's timeout.
        let within = std::time::Duration::from_nanos(TIMEOUT.0 / 4);
        set_socket_timeout(client, Timeout::Recv, Some(within)).unwrap();
        let mut silent = 0;
        for _ in 0..100 {
            match socket::receive(client, 8, RecvFlags::empty()) {
                Ok(ReceivedPacket::Packet(packet, descriptors)) => {
                    silent = 0;
                    self.answer(client, packet, descriptors);
                }
                Ok(ReceivedPacket::Malformed(_)) => {}
                Ok(ReceivedPacket::Closed) => return,
                // No message: the client may be waiting for the drive.
                Err(_) => {
                    self.admin();
                    silent += 1;
                }
            }
            if silent > 12 || self.choices.chance(0.02) {
                return;
            }
        }
    }

    fn answer(&mut self, client: &OwnedFd, packet: Packet, descriptors: Vec<OwnedFd>) {
        let honest = self.choices.chance(0.9);
        let (message, fds) = match packet.message {
            Message::Hello if honest => {
                (Message::Welcome { admin: true, uid: 0, pid: 1 }, Vec::new())
            }
            Message::Open { .. } if honest => self.session_grant(),
            Message::Register { slot, .. } if honest => {
                self.adopt(slot, descriptors);
                (Message::Done { count: 0 }, Vec::new())
            }
            Message::List { index } if honest && index > 20 => {
                (Message::Done { count: 0 }, Vec::new())
            }
            _ => (message(&mut self.choices), Vec::new()),
        };
        let serial = if self.choices.chance(0.95) { packet.serial } else { 7 };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut encoded = Packet { serial, message }.encode(&mut bytes).to_vec();
        if self.choices.chance(0.05) {
            let at = self.choices.below(encoded.len() as u64) as usize;
            encoded[at] ^= 1 << self.choices.below(8);
        }
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let _ = socket::send_bytes(client, &encoded, &fds, SendFlags::DONTWAIT);
        self.admin();
    }

    /// Builds a port, possibly an inconsistent one.
    fn session_grant(&mut self) -> (Message, Vec<OwnedFd>) {
        let vectors = 1 + self.choices.below(3) as u16;
        let port = Port::shared(PortLimits { vectors, ..PortLimits::default() }).unwrap();
        let (mut header, mut fds) = port.take_descriptor().unwrap().into_message();
        self.port = Some(port);
        if self.choices.chance(0.15) {
            header[self.choices.below(8) as usize] ^= 1 << self.choices.below(8);
        }
        if self.choices.chance(0.15) {
            let at = self.choices.below(fds.len() as u64) as usize;
            match self.choices.below(4) {
                0 => drop(fds.swap_remove(at)),
                1 => fds[at] = std::fs::File::open("/dev/null").unwrap().into(),
                2 => {
                    fds[at] = SharedRegion::memfd(4096)
                        .unwrap()
                        .backing()
                        .unwrap()
                        .try_clone()
                        .unwrap()
                        .into()
                }
                _ => {
                    let other = self.choices.below(fds.len() as u64) as usize;
                    fds.swap(at, other);
                }
            }
        }
        let granted = SessionGrant {
            client: 1,
            device: ResourceName::new("d").unwrap(),
            partition: ResourceName::new("p").unwrap(),
            span: PartitionSpan::Sectors { first: 0, count: self.choices.next_u64() },
            grant: Grant::with_queues(vectors),
            regions: 64,
            bytes: 1 << 28,
            port: header,
        };
        (Message::Granted(granted), fds)
    }

    fn adopt(&mut self, slot: u32, mut descriptors: Vec<OwnedFd>) {
        if let (Some(port), Some(memory)) = (&self.port, descriptors.pop())
            && let Ok(region) = SharedRegion::import(memory, port.memory().remaining_bytes())
        {
            let _ = port.memory().register_at(slot as usize, &region);
        }
    }

    /// Answers admin commands as a drive would, or not; with arbitrary data.
    fn admin(&mut self) {
        let Some(port) = self.port.clone() else { return };
        for _ in 0..4 {
            let (at, entries) = port.admin_submission();
            let tail = port.doorbells().atomic_u32(0).load(Ordering::Acquire);
            // Sometimes answers a command that was not submitted.
            if tail == u32::from(self.answered % entries) && self.choices.chance(0.95) {
                return;
            }
            let entry = at.offset(64 * u64::from(self.answered % 64));
            let mut sqe = [0; 64];
            if port.memory().read(entry, &mut sqe).is_err() {
                return;
            }
            let data = u64::from_le_bytes(sqe[24..32].try_into().unwrap());
            if self.choices.chance(0.8) {
                self.describe(&port, Iova(data));
            }
            let (ring, depth) = port.admin_completion();
            let slot = self.answered % depth;
            let phase = u64::from((self.answered / depth).is_multiple_of(2));
            let cid = u64::from(u16::from_le_bytes([sqe[2], sqe[3]]));
            let honest = self.choices.chance(0.9);
            let status = if honest { 0 } else { self.choices.below(1 << 15) };
            let cid = if self.choices.chance(0.95) { cid } else { self.choices.below(1 << 16) };
            let head = if honest {
                u64::from(self.answered + 1) % 64
            } else {
                self.choices.next_u64() & 0xffff
            };
            // The number of queues, or a random result.
            let result =
                if self.choices.chance(0.7) { 0x0003_0003 } else { self.choices.next_u64() };
            let second = head | cid << 32 | (phase | status << 1) << 48;
            let to = ring.offset(16 * u64::from(slot));
            let Ok(found) = port.memory().find(to, 16) else { return };
            found.region.atomic_u64(found.offset).store(result, Ordering::Relaxed);
            found.region.atomic_u64(found.offset + 8).store(second, Ordering::Release);
            self.answered = self.answered.wrapping_add(1);
            port.interrupt(0);
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Writes a page that a drive might return for Identify.
    fn describe(&mut self, port: &Port, at: Iova) {
        let mut page = vec![0u8; PAGE_BYTES];
        // As of [NVMe1.2 fig. 90, 92]: entry sizes, one namespace, sectors of 4096 bytes.
        (page[512], page[513], page[516]) = (0x66, 0x44, 1);
        (page[1], page[8], page[130]) = (1, 1, 12);
        if self.choices.chance(0.5) {
            // A list of namespaces.
            page[0] = 1;
        }
        for _ in 0..self.choices.below(12) {
            let at = self.choices.below(PAGE_BYTES as u64) as usize;
            page[at] = self.choices.next_u64() as u8;
        }
        let _ = port.memory().write(at, &page);
    }
}
