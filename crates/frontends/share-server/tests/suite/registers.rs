//! Clients of a drive with registers: each initializes and resets the drive for itself, and those that
//! write anything disturb no other.

// guarantee: B-98, B-99

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mem::{RegistrationExporter, SharedRegion};
use nvme::register::{ACQ, AQA, ASQ, CC, CSTS};
use rustix::net::{RecvFlags, SendFlags};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{Message, Packet, ResourceName};
use testkit::choices::{Choices, seed};
use transport::{Port, PortDescriptor};
use user_io::remote::Admin;
use user_io::{DirectError, Handle, IoDevice, NoRegionReason, Queue, QueueConfig};

use super::harness::{Server, name};

fn client(server: &Server, partition: &str) -> (IoDevice, Handle<Queue>) {
    let device = IoDevice::connect(&server.socket, Some(partition)).unwrap();
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let handle = Handle::new(&device, queue).unwrap();
    (device, handle)
}

/// Reads until a read succeeds. Returns the number of failures before.
fn read(handle: &mut Handle<Queue>, device: &IoDevice) -> u32 {
    let buffer = device.buffer(4096).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut failures = 0;
    while let Err(error) = handle.read(1, &buffer) {
        assert!(Instant::now() < until, "{error}");
        failures += 1;
    }
    failures
}

#[test]
fn clients_initialize_and_reset_a_shared_drive_by_its_registers() {
    let server = Server::with_registers();
    let (a, mut reads_a) = client(&server, "a");
    let (b, mut reads_b) = client(&server, "b");
    assert_eq!((read(&mut reads_a, &a), read(&mut reads_b, &b)), (0, 0));
    let region = a.persistent_region().unwrap_err();
    let reason = NoRegionReason::Partition;
    assert!(matches!(&region, DirectError::NoRegion { reason: r, .. } if *r == reason), "{region}");
    let registers = || server.owner.call(|drive| drive.stats().registers).unwrap().unwrap();
    assert_eq!((registers().starts, registers().resets), (2, 0));
    // Both controllers fail. Each client finds that out when a command does not complete, and resets
    // its own.
    let mut admin = Admin::connect(&server.socket).unwrap();
    admin.inject_fault(name("d"), "fatal").unwrap();
    assert_eq!(read(&mut reads_a, &a), 1, "one read was lost");
    assert_eq!((registers().starts, registers().resets), (3, 1));
    assert_eq!(read(&mut reads_b, &b), 1);
    assert_eq!((registers().starts, registers().resets), (4, 2));
    drop((reads_a, a));
    assert_eq!(read(&mut reads_b, &b), 0);
    assert!(reads_b.limits().sectors > 0);
    // A client that comes again starts the controller again.
    let (a, mut reads_a) = client(&server, "a");
    assert_eq!(read(&mut reads_a, &a), 0);
    assert_eq!(registers().starts, 5);
}

/// Registrations of a client that does not tell the server.
#[derive(Debug)]
struct Unregistered;

impl RegistrationExporter for Unregistered {
    fn export_region(&self, _: usize, _: &SharedRegion) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Opens a partition as a client does that writes its registers itself.
fn join(server: &Server, partition: ResourceName) -> (OwnedFd, Arc<Port>) {
    let client = socket::connect(&server.socket).unwrap();
    let ask = |serial, message| {
        let packet = Packet { serial, message };
        socket::send(&client, &packet, &[], SendFlags::empty()).unwrap();
        match socket::receive(&client, PortDescriptor::MAX_DESCRIPTORS, RecvFlags::empty()) {
            Ok(ReceivedPacket::Packet(packet, descriptors)) => (packet.message, descriptors),
            other => panic!("{other:?}"),
        }
    };
    ask(1, Message::Hello);
    let (answer, descriptors) =
        ask(2, Message::Open { device: ResourceName::NONE, partition, queues: 1 });
    let Message::Granted(granted) = answer else { panic!("{answer:?}") };
    let parts = PortDescriptor::from_message(granted.port, descriptors).unwrap();
    let port = Port::join(parts, Box::new(Unregistered)).unwrap();
    assert!(port.has_registers());
    (client, port)
}

#[test]
fn a_client_that_writes_any_register_disturbs_no_other() {
    let server = Server::with_registers();
    let (b, mut reads) = client(&server, "b");
    let mut choices = Choices::seeded(seed());
    println!("SLUICE_SEED={}", seed());
    for _ in 0..8 {
        let (socket, port) = join(&server, name("a"));
        for round in 0..2_000 {
            let offset = match choices.below(4) {
                0 => [CC, CSTS, AQA, ASQ, ACQ][choices.below(5) as usize],
                _ => 4 * choices.below(1024) as usize,
            };
            let value = match choices.below(3) {
                0 => 0x0046_0001,
                1 => 0,
                _ => choices.next_u64() as u32,
            };
            match choices.chance(0.7) {
                true => port.set_register(offset, value),
                false => {
                    let doorbells = port.doorbells();
                    let at = 4 * choices.below(doorbells.len() as u64 / 4) as usize;
                    doorbells.atomic_u32(at).store(value, std::sync::atomic::Ordering::Relaxed);
                }
            }
            if round % 64 == 0 {
                port.wake_drive();
                assert_eq!(read(&mut reads, &b), 0);
            }
        }
        drop((socket, port));
    }
    server
        .owner
        .call(|drive| drive.check_invariants().map_err(|e| e.to_string()))
        .unwrap()
        .unwrap();
    assert_eq!(read(&mut reads, &b), 0);
}
