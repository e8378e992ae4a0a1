//! Removal and return of a controller in use. The system removes it, or it is pulled out of its
//! slot by QEMU's monitor. `SLUICE_SLOT` has its address.

// guarantee: C-09, C-10

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::BlockDevice as _;
use driver::pci::{PciAddress, PciDriver, SysfsPci};
use driver::{Payload, Request};
use event::RealClock;
use nvme::Status;
use open::OpenOptions;
use rng::Rng;
use time::{Component as _, Nanos};
use user_io::{IoDevice, Queue, QueueConfig, RemovalReason};

use super::harness::named;

/// Longer than any operation in a guest, whose time is emulated.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Sectors of 512 bytes that are written and flushed before the removal.
const FLUSHED_SECTORS: u64 = 256;
/// Requests in flight on each queue.
const DEPTH: usize = 24;

/// Returns the address of the controller in the slot.
fn address() -> PciAddress {
    std::env::var("SLUICE_SLOT").expect("SLUICE_SLOT has an address").parse().unwrap()
}

/// Returns the controller's folder in sysfs.
fn folder() -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(address().to_string())
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a command to QEMU's monitor by a line of the output (`scripts/guest`), and repeats it
/// until it has been executed.
fn monitor_command(command: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "{command}");
        println!("\nmonitor: {command}");
        let told = Instant::now();
        while !done() && told.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Kind of the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalKind {
    /// The system removes the PCI function.
    Removed,
    /// The controller is pulled out of its slot.
    PulledOut,
}

impl RemovalKind {
    /// Begins the removal. With VFIO the system waits until the controller is released.
    fn begin(self) -> JoinHandle<()> {
        std::thread::spawn(move || match self {
            RemovalKind::Removed => fs::write(folder().join("remove"), "1").unwrap(),
            RemovalKind::PulledOut => {
                let pull = r#"{"execute": "device_del", "arguments": {"id": "nvme2"}}"#;
                monitor_command(pull, || !folder().exists());
            }
        })
    }

    /// Adds the controller again.
    fn restore(self) {
        match self {
            RemovalKind::Removed => fs::write("/sys/bus/pci/rescan", "1").unwrap(),
            RemovalKind::PulledOut => monitor_command(
                "{\"execute\": \"device_add\", \"arguments\": {\"driver\": \"nvme\", \"id\": \"nvme2\", \
                 \"bus\": \"bay\", \"serial\": \"guest-2\", \"drive\": \"again\", \
                 \"max_ioqpairs\": 8, \"mdts\": 7}}",
                || folder().exists(),
            ),
        }
    }
}

/// Waits until the kernel's driver has bound the controller, takes the controller from it, and
/// opens it.
fn open() -> IoDevice {
    let system = SysfsPci::default();
    let by = named().1;
    wait("no driver has bound the controller", || {
        system.device_entry(address()).is_ok_and(|slot| slot.driver.is_some())
    });
    let bound = system.bind(address(), by).unwrap();
    assert_eq!(bound.bound_to(), Some(by));
    let what = match by {
        PciDriver::VfioPci => format!("vfio:{}", address()),
        PciDriver::UioPciGeneric => format!("uio:{}?unsafe=1", address()),
    };
    open::open(&what, &OpenOptions::default()).unwrap()
}

/// A queue under load, and the results of its requests.
struct Load {
    queue: Queue,
    /// Statuses by tag; `None` while the request is in flight.
    statuses: Vec<Option<Status>>,
    outstanding: usize,
}

impl Load {
    fn new(device: &IoDevice) -> Load {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        Load { queue, statuses: Vec::new(), outstanding: 0 }
    }

    fn submit(&mut self, now: Nanos, request: impl FnOnce(u64) -> Request) {
        let tag = self.statuses.len() as u64;
        self.queue.submit(now, request(tag)).unwrap();
        self.statuses.push(None);
        self.outstanding += 1;
    }

    fn poll(&mut self, now: Nanos) {
        self.queue.poll(now);
        while let Some(done) = self.queue.reap() {
            let end = &mut self.statuses[done.tag as usize];
            assert!(end.replace(done.status).is_none(), "request {} completed twice", done.tag);
            self.outstanding -= 1;
        }
    }

    /// Polls until nothing is outstanding.
    fn finish(&mut self, clock: RealClock) {
        let begun = Instant::now();
        while self.outstanding > 0 {
            assert!(
                begun.elapsed() < HANG_TIMEOUT,
                "{} requests did not complete",
                self.outstanding
            );
            self.poll(clock.now());
            std::thread::yield_now();
        }
    }

    fn is_removed(&self) -> bool {
        self.statuses.iter().flatten().any(|status| *status == Status::HOST_PATH_ERROR)
    }
}

fn remove_under_load(going: RemovalKind) {
    let device = open();
    let clock = device.clock();
    assert_eq!((device.removal_reason(), device.limits().sector_bytes), (None, 512));
    let bytes = FLUSHED_SECTORS as usize * 512;
    let data = device.buffer(bytes).unwrap();
    let mut rng = Rng::new(7);
    let pattern: Vec<u8> = (0..bytes).map(|_| rng.below(256) as u8).collect();
    data.write(0, &pattern);
    let mut idle = Load::new(&device);
    idle.submit(clock.now(), |tag| Request::write(0, FLUSHED_SECTORS as u32, data.payload(), tag));
    idle.finish(clock);
    idle.submit(clock.now(), Request::flush);
    idle.finish(clock);
    assert!(
        idle.statuses.iter().flatten().all(|status| status.is_success()),
        "{:?}",
        idle.statuses
    );

    let scratch = device.buffer(64 << 10).unwrap();
    let mut loads = [Load::new(&device), Load::new(&device)];
    let mut draw = |tag| {
        let (lba, sectors) = (FLUSHED_SECTORS + rng.below(4096), 1 + rng.below(64) as u32);
        match rng.below(8) {
            0 => Request::flush(tag),
            1..=4 => Request::read(lba, sectors, Payload::Contiguous(scratch.iova()), tag),
            _ => Request::write(lba, sectors, Payload::Contiguous(scratch.iova()), tag),
        }
    };
    let mut round = |loads: &mut [Load]| {
        for load in loads {
            let now = clock.now();
            while load.outstanding < DEPTH && !load.is_removed() {
                load.submit(now, &mut draw);
            }
            load.poll(now);
        }
        std::thread::yield_now();
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        round(&mut loads);
    }
    if device.has_interrupts() {
        // The system stops the controller through its registers. QEMU's controller (7.2) crashes if
        // it has unread requests then. After this pause it has completed them, although the
        // completions are not reaped.
        std::thread::sleep(Duration::from_millis(500));
    }
    let going_on = going.begin();
    let begun = Instant::now();
    // Submits no new requests until the process has noticed the removal and stopped the queues.
    while device.has_interrupts() && device.removal_reason().is_none() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "the process did not notice the removal");
        loads.iter_mut().for_each(|load| load.poll(clock.now()));
        std::thread::sleep(Duration::from_millis(1));
    }
    while !loads.iter().all(Load::is_removed) {
        assert!(begun.elapsed() < HANG_TIMEOUT, "the process did not notice the removal");
        round(&mut loads);
    }
    println!("{going:?}: noticed after {} ms", begun.elapsed().as_millis());
    // Every request completes once. Later ones fail in the same way, including those on an idle
    // queue.
    for load in loads.iter_mut().chain([&mut idle]) {
        load.finish(clock);
        let before = load.statuses.len();
        for _ in 0..3 {
            load.submit(clock.now(), |tag| Request::read(0, 1, scratch.payload(), tag));
        }
        load.finish(clock);
        let (earlier, later) = load.statuses.split_at(before);
        let refused = |status: &&Status| **status == Status::HOST_PATH_ERROR;
        assert_eq!(later.iter().flatten().filter(refused).count(), 3, "{later:?}");
        let (mut ended, mut failed) = (0, 0);
        for status in earlier.iter().flatten() {
            ended += u64::from(status.is_success());
            failed += u64::from(refused(&status));
        }
        assert_eq!(ended + failed, before as u64, "{earlier:?}");
        println!("{ended} requests ended well, {failed} with the controller");
    }
    assert_eq!(device.removal_reason(), Some(RemovalReason::Removed));
    for error in
        [device.health().unwrap_err(), device.create_queue(QueueConfig::default()).unwrap_err()]
    {
        assert!(error.to_string().ends_with("the controller has been removed"), "{error}");
    }
    drop((loads, idle, data, scratch));
    drop(device);
    going_on.join().unwrap();
    assert!(!folder().exists());

    going.restore();
    let device = open();
    let data = device.buffer(bytes).unwrap();
    let mut load = Load::new(&device);
    load.submit(clock.now(), |tag| Request::read(0, FLUSHED_SECTORS as u32, data.payload(), tag));
    load.finish(clock);
    assert_eq!(load.statuses, [Some(Status::SUCCESS)]);
    let mut found = vec![0; bytes];
    data.read(0, &mut found);
    assert!(found == pattern, "flushed data must survive the removal");
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_controller_is_removed_under_load() {
    remove_under_load(RemovalKind::Removed);
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_controller_is_pulled_out_under_load() {
    remove_under_load(RemovalKind::PulledOut);
}

/// The function is unbound from the generic driver and stays present; commands that it has executed
/// are not undone. No other driver may bind the function before the process has noticed: the kernel
/// would revoke the registers, and a signal would end the process.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_controller_is_taken_from_its_driver() {
    if named().1 == PciDriver::VfioPci {
        // With VFIO the kernel waits instead; `guest_is_released_when_the_system_wants_it_back`
        // tests that.
        testkit::skip!("an IOMMU in this guest");
        return;
    }
    let device = open();
    let command = || {
        let config = fs::read(folder().join("config")).unwrap();
        u16::from_le_bytes([config[4], config[5]])
    };
    assert_eq!(command() & 0b110, 0b110, "bus mastering must be enabled");
    let mut load = Load::new(&device);
    load.submit(device.clock().now(), Request::flush);
    load.finish(device.clock());
    fs::write(folder().join("driver/unbind"), address().to_string()).unwrap();
    assert_eq!(command() & 0b110, 0b010, "the kernel must have disabled bus mastering");
    let begun = Instant::now();
    while device.removal_reason().is_none() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "the process did not notice the removal");
        std::thread::yield_now();
    }
    // The kernel's driver binds the function and enables bus mastering.
    fs::write(folder().join("driver_override"), "\n").unwrap();
    fs::write("/sys/bus/pci/drivers_probe", address().to_string()).unwrap();
    wait("the kernel's driver does not come up", || command() & 0b100 != 0);
    load.submit(device.clock().now(), Request::flush);
    load.finish(device.clock());
    assert_eq!(load.statuses[1], Some(Status::HOST_PATH_ERROR));
    drop(load);
    drop(device);
    assert_eq!(
        command() & 0b110,
        0b110,
        "closing the device must not disable another driver's bus mastering"
    );
    drop(open());
}
