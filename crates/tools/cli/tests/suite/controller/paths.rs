//! The suite on all kinds of devices that `sluice::open` opens. In `make test`: a scenario's drive,
//! and a file. In `make test-guest`: a controller through VFIO and UIO, and under the kernel's
//! driver by passthrough commands and through its block devices.
//!
//! `SLUICE_NAMESPACES` has the device nodes in the guest, `SLUICE_CONTROLLER` the name of the
//! controller.

// guarantee: C-01, C-06, C-14, C-16

use block::BlockDevice as _;
use driver::pci::PciDriver;
use driver::{Payload, Request};
use mem::AddressSpace;
use nvme::Status;
use open::{OpenOptions, TargetOpenError};
use time::{Component, Nanos};
use user_io::{DeviceKind, Handle, HybridPolling, IoDevice, Queue, QueueConfig, WaitMode};

use super::harness::target;
use super::load::{DeviceProperties, Load, QueueProvider};

/// An opened device, and whether its discarded sectors read as zeros.
struct Opened {
    device: IoDevice,
    discards_are_zeros: bool,
}

impl Opened {
    fn new(what: &str) -> Opened {
        let device = open::open(what, &OpenOptions::default());
        let device = device.unwrap_or_else(|e| panic!("{what}: {e}"));
        let discards_are_zeros = device.kind() == DeviceKind::Drive;
        Opened { device, discards_are_zeros }
    }

    fn handle(&self, wait: WaitMode) -> Handle<Queue> {
        let queue = self.device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&self.device, queue).unwrap();
        handle.set_wait(wait).unwrap();
        handle
    }
}

impl QueueProvider for Opened {
    type Queue = Queue;

    fn properties(&self) -> DeviceProperties {
        let limits = self.device.limits();
        DeviceProperties {
            sector_bytes: limits.sector_bytes,
            sectors: limits.sectors,
            max_sectors: limits.max_sectors,
            features: self.device.features(),
            alignment: self.device.memory_alignment(),
            // The kernel requires segments of whole sectors.
            scattered: matches!(self.device.kind(), DeviceKind::Drive | DeviceKind::Controller),
            discards_are_zeros: self.discards_are_zeros,
        }
    }

    fn memory(&self) -> AddressSpace {
        self.device.memory().clone()
    }

    fn queue(&mut self, depth: u16) -> Queue {
        let config = QueueConfig { depth, ..QueueConfig::default() };
        self.device.create_queue(config).unwrap()
    }

    fn close(&mut self, mut queue: Queue) {
        assert!(queue.reap().is_none());
    }

    fn progress(&mut self) -> Nanos {
        std::thread::yield_now();
        self.device.clock().now()
    }
}

/// Random requests on one queue and on three, with every size up to 4 MiB and any alignment.
fn data(opened: &mut Opened, requests: usize) {
    // QEMU's controller may not execute a request of the kernel's driver when it has many.
    for (queues, depth, seed) in [(1, 8, 21), (3, 16, 22)] {
        let mut load = Load::new(opened, queues, depth, seed);
        load.run(opened, requests);
        assert!(load.commands >= requests as u64);
        load.close(opened);
    }
}

/// Every operation, polling and sleeping, and refused requests.
fn operations(opened: &Opened) {
    let (device, limits) = (&opened.device, *opened.device.limits());
    let sector = limits.sector_bytes as usize;
    let features = device.features();
    let buffer = device.buffer(8 * sector).unwrap();
    let mut bytes = vec![0; 8 * sector];
    let mut read = |handle: &mut Handle<Queue>, lba| {
        buffer.fill(0, 8 * sector, 0xee);
        handle.read(lba, &buffer).unwrap();
        buffer.read(0, &mut bytes);
        bytes.clone()
    };
    let data = device.buffer(8 * sector).unwrap();
    // Without interrupts, the handle must not sleep in the kernel.
    let sleeps = if device.has_interrupts() {
        WaitMode::Interrupt
    } else {
        WaitMode::Hybrid(HybridPolling::default())
    };
    for (round, wait) in [WaitMode::Poll, sleeps, sleeps].into_iter().enumerate() {
        let mut handle = opened.handle(wait);
        let byte = 0x21 + round as u8;
        data.fill(0, 8 * sector, byte);
        handle.write(16, &data, features.fua && round == 1).unwrap();
        handle.flush().unwrap();
        assert!(read(&mut handle, 16).iter().all(|b| *b == byte), "round {round}");
        if features.write_zeroes {
            handle.write_zeroes(17, 2, round == 2).unwrap();
            let found = read(&mut handle, 16);
            for (i, bytes) in found.chunks(sector).enumerate() {
                let wanted = if (1..3).contains(&i) { 0 } else { byte };
                assert!(bytes.iter().all(|b| *b == wanted), "round {round}, sector {i}");
            }
        }
        if features.discard {
            handle.discard(20, 4).unwrap();
            let found = read(&mut handle, 16);
            assert!(
                found[..sector].iter().all(|b| *b == byte),
                "the discard must not change the preceding sectors"
            );
        }
        if features.segments > 1 {
            let parts: Vec<_> = (0..4).map(|_| device.buffer(2 * sector).unwrap()).collect();
            for (i, part) in parts.iter().enumerate() {
                part.fill(0, 2 * sector, 0x40 + i as u8);
            }
            handle.write_vectored(40, &parts.iter().collect::<Vec<_>>(), false).unwrap();
            for (i, bytes) in read(&mut handle, 40).chunks(2 * sector).enumerate() {
                assert!(bytes.iter().all(|b| *b == 0x40 + i as u8), "segment {i}");
            }
        }
        // A read into the bit bucket does not change the buffer.
        data.fill(0, 8 * sector, 0x11);
        handle.run(Request::read(16, 8, Payload::BitBucket, 0)).unwrap();
        data.read(0, &mut vec![0; sector]);
        // A range past the end, and unregistered memory.
        for (request, status) in [
            (Request::read(limits.sectors, 1, data.payload(), 0), Status::LBA_OUT_OF_RANGE),
            (Request::write(limits.sectors - 1, 2, data.payload(), 0), Status::LBA_OUT_OF_RANGE),
            (
                Request::read(0, 1, Payload::Contiguous(mem::Iova(1 << 60)), 0),
                Status::DATA_TRANSFER_ERROR,
            ),
        ] {
            if device.bound_driver() == Some(PciDriver::VfioPci) && request.lba == 0 {
                // The result depends on the IOMMU and on QEMU; it is an error of some kind.
                continue;
            }
            let ended = handle.run(request).unwrap_err();
            let found = ended.status().unwrap_or_else(|| panic!("{ended}"));
            assert!(found.is(status), "{request:?}: {found}");
        }
    }
}

/// Queues dropped with requests outstanding do not write to their memory afterwards, and other
/// queues continue.
fn queues_go_under_load(opened: &Opened) {
    let sectors = 4096 / opened.device.limits().sector_bytes;
    let memory = opened.device.buffer(64 << 10).unwrap();
    let other = opened.handle(WaitMode::Poll);
    for _ in 0..4 {
        let mut queue = opened.device.create_queue(QueueConfig::default()).unwrap();
        let now = opened.device.clock().now();
        for i in 0..8u64 {
            let at = Payload::Contiguous(memory.iova().offset(i * 4096));
            let request = Request::read(i * u64::from(sectors), sectors, at, i);
            queue.submit(now, request).unwrap();
        }
        queue.poll(now);
        drop(queue);
        memory.fill(0, 64 << 10, 0x77);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut bytes = vec![0; 64 << 10];
        memory.read(0, &mut bytes);
        assert!(
            bytes.iter().all(|b| *b == 0x77),
            "the buffer was written after the queue was dropped"
        );
    }
    let mut other = other;
    other.flush().unwrap();
}

fn suite(what: &str, kind: DeviceKind, requests: usize) {
    println!("{what}");
    let mut opened = Opened::new(what);
    assert_eq!(opened.device.kind(), kind, "{what}");
    data(&mut opened, requests);
    operations(&opened);
    queues_go_under_load(&opened);
    let memory = opened.device.memory_alignment();
    if memory > 1 {
        let mut handle = opened.handle(WaitMode::Poll);
        let data = opened.device.buffer(64 << 10).unwrap();
        let odd = Payload::Contiguous(data.iova().offset(u64::from(memory) / 2));
        let refused = handle.run(Request::read(0, 1, odd, 0)).unwrap_err();
        let status = refused.status().expect("the error has an NVMe status");
        assert!(status.is(Status::PRP_OFFSET_INVALID), "{status}");
    }
}

#[test]
fn a_scenarios_drive_with_every_sector_size() {
    for sector_bytes in [512, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("drive.toml");
        let text = format!(
            "[drive]\npreset = \"femu-default\"\ncell = \"slc\"\npaired_page_distance = 0\n\
             geometry = {{ channels = 2, pus = 4, chunks = 64, pages = 64, sector_bytes = {sector_bytes} }}\n"
        );
        std::fs::write(&file, text).unwrap();
        suite(file.to_str().unwrap(), DeviceKind::Drive, 60);
    }
}

#[test]
fn a_file_is_a_device_like_any_other() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(32 << 20).unwrap();
    suite(file.path().to_str().unwrap(), DeviceKind::File, 60);
}

/// Returns the nodes of `kind` of `/dev/ng0n1 /dev/nvme0n1 …` in the guest.
pub(crate) fn nodes(kind: DeviceKind) -> Vec<String> {
    let nodes = std::env::var("SLUICE_NAMESPACES").expect("SLUICE_NAMESPACES");
    let of_kind = |node: &&str| node.starts_with("/dev/ng") == (kind == DeviceKind::Passthrough);
    let nodes: Vec<_> = nodes.split_whitespace().filter(of_kind).map(str::to_owned).collect();
    assert!(!nodes.is_empty());
    nodes
}

#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_passed_commands() {
    for node in nodes(DeviceKind::Passthrough) {
        suite(&node, DeviceKind::Passthrough, 60);
        // Passthrough nodes report the controller's identity and its statuses.
        let device = open::open(&node, &OpenOptions::default()).unwrap();
        let info = device.drive_info().expect("a passthrough device was identified");
        assert_eq!(
            (info.serial.as_str(), info.sector_bytes),
            ("guest-0", device.limits().sector_bytes)
        );
        assert!(info.io_queues >= 1);
        assert!(device.limits().max_sectors * info.sector_bytes <= 512 << 10, "MDTS of 7");
        assert!(device.health().unwrap().host_reads.get() > 0);
        // The process that has opened the node also holds its block device.
        let twice = open::open(&node, &OpenOptions::default()).unwrap_err();
        assert!(twice.to_string().contains("in use"), "{twice}");
        drop(device);
        let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
        let device = open::open(&node, &reader).unwrap();
        assert!(!device.features().discard && !device.features().fua);
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&device, queue).unwrap();
        let data = device.buffer(4096).unwrap();
        handle.run(Request::read(0, 1, data.payload(), 0)).unwrap();
        let refused = handle.run(Request::write(0, 1, data.payload(), 0)).unwrap_err();
        let status = refused.status().expect("the error has an NVMe status");
        assert!(status.is(Status::WRITE_PROTECTED), "{status}");
    }
    // The character device of the controller itself is not a namespace.
    let nothing = open::open("/dev/nvme0", &OpenOptions::default()).unwrap_err();
    assert!(matches!(nothing, TargetOpenError::Device(_)), "{nothing}");
}

#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_block_devices() {
    for node in nodes(DeviceKind::File) {
        suite(&node, DeviceKind::File, 40);
    }
}

/// A continuous load on a queue until its device is removed. Counts successful requests, and keeps
/// the errors.
struct LoadLoop {
    queue: Queue,
    data: user_io::Buffer,
    /// Outstanding requests by tag.
    in_flight: [bool; 8],
    succeeded: u64,
    failed: Vec<Status>,
}

impl LoadLoop {
    fn new(device: &IoDevice) -> LoadLoop {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let data = device.buffer(8 * 4096).unwrap();
        LoadLoop { queue, data, in_flight: [false; 8], succeeded: 0, failed: Vec::new() }
    }

    /// Submits a request for every free tag, unless a request has failed, and reaps completions.
    fn step(&mut self, device: &IoDevice) {
        let now = device.clock().now();
        let sectors = 4096 / device.limits().sector_bytes;
        for tag in 0..8 {
            if self.in_flight[tag] || !self.failed.is_empty() {
                continue;
            }
            let at = Payload::Contiguous(self.data.iova().offset(tag as u64 * 4096));
            let lba = tag as u64 * u64::from(sectors);
            let request = match (tag + self.succeeded as usize) % 2 {
                0 => Request::read(lba, sectors, at, tag as u64),
                _ => Request::write(lba, sectors, at, tag as u64),
            };
            self.in_flight[tag] = self.queue.submit(now, request).is_ok();
        }
        self.queue.poll(now);
        while let Some(ended) = self.queue.reap() {
            assert!(std::mem::take(&mut self.in_flight[ended.tag as usize]), "once");
            match ended.status {
                Status::SUCCESS => self.succeeded += 1,
                status => self.failed.push(status),
            }
        }
    }
}

/// The kernel's driver is unbound from the controller while both its nodes are in use: every
/// request completes once, and later ones fail. When the driver is bound again, a generic node
/// serves requests.
#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_driver_goes_under_load() {
    let address = std::env::var("SLUICE_TAKEN").expect("SLUICE_TAKEN");
    let (passed, blocks) = (nodes(DeviceKind::Passthrough), nodes(DeviceKind::File));
    // One namespace by its generic device, which also holds the block device, and the other by its
    // block device.
    let (first, second) = (passed[0].clone(), blocks[1].clone());
    let devices = [&first, &second].map(|node| open::open(node, &OpenOptions::default()).unwrap());
    let mut rounds = devices.each_ref().map(LoadLoop::new);
    let clock = devices[0].clock();
    while rounds.iter().any(|round| round.succeeded < 200) {
        rounds.iter_mut().zip(&devices).for_each(|(round, device)| round.step(device));
    }
    let unbinding = {
        let address = address.clone();
        std::thread::spawn(move || std::fs::write("/sys/bus/pci/drivers/nvme/unbind", address))
    };
    let begun = clock.now();
    let over = |round: &LoadLoop| !round.failed.is_empty() && round.in_flight == [false; 8];
    while !rounds.iter().all(over) {
        rounds.iter_mut().zip(&devices).for_each(|(round, device)| round.step(device));
        let now = clock.now();
        let (one, other) = (&rounds[0].failed, &rounds[1].failed);
        assert!(
            now.since(begun) < Nanos::from_millis(60_000),
            "the processes did not notice the removal: {one:?} {other:?}"
        );
        std::thread::yield_now();
    }
    for (round, node) in rounds.iter().zip([&first, &second]) {
        println!("{node}: {} well, then {:?}", round.succeeded, round.failed);
    }
    // Later requests are refused or fail.
    for (round, device) in rounds.iter_mut().zip(&devices) {
        let mut ended = 0;
        for tag in 0..3 {
            let now = device.clock().now();
            let read = Request::read(0, 1, Payload::Contiguous(round.data.iova()), tag);
            if round.queue.submit(now, read).is_err() {
                continue;
            }
            let done = loop {
                round.queue.poll(device.clock().now());
                if let Some(done) = round.queue.reap() {
                    break done;
                }
                assert!(device.clock().now().since(now) < Nanos::from_millis(20_000));
                std::thread::yield_now();
            };
            assert!(!done.status.is_success() && done.tag == tag);
            ended += 1;
        }
        println!("{ended} more ended");
    }
    drop(rounds);
    drop(devices);
    unbinding.join().unwrap().unwrap();
    std::fs::write("/sys/bus/pci/drivers/nvme/bind", &address).unwrap();
    // The kernel scans for namespaces asynchronously, and may assign other numbers.
    let begun = clock.now();
    let there = || std::fs::read_dir(format!("/sys/bus/pci/devices/{address}/nvme")).ok();
    loop {
        let name = there().and_then(|mut all| all.next()?.ok()?.file_name().into_string().ok());
        let node = name.map(|name| format!("/dev/{}n1", name.replace("nvme", "ng")));
        if let Some(device) = node.and_then(|n| open::open(&n, &OpenOptions::default()).ok()) {
            let mut round = LoadLoop::new(&device);
            while round.succeeded < 20 {
                round.step(&device);
                assert!(round.failed.is_empty(), "{:?}", round.failed);
            }
            break;
        }
        assert!(
            clock.now().since(begun) < Nanos::from_millis(30_000),
            "the controller does not come back"
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_paths() {
    for nsid in [1, 2] {
        suite(&format!("{}#{nsid}", target()), DeviceKind::Controller, 60);
    }
}
