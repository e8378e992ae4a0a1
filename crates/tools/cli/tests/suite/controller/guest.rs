//! The suite on a real controller, and tests that need one: namespaces with several formats,
//! interrupts, health events, exclusive use. The tests run one at a time, because a controller has
//! one owner.

// guarantee: C-09, C-14, C-15

use std::time::Duration;

use block::BlockDevice as _;
use driver::pci::{PciDriver, PciError};
use driver::{ConnectOptions, DataPointers, DoorbellUse, DriverError, Payload, Request};
use nvme::{
    AsyncEvent, FeatureSelect, MetadataFormat, MetadataTransfer, ProtectionType, Status, feature,
    log_page,
};
use open::{OpenOptions, TargetOpenError};
use time::{Component, Nanos};
use user_io::{DeviceKind, DirectError, Handle, QueueConfig, WaitMode};

use super::harness::{ControllerHarness, named, open_real, target};
use super::suite;

/// Both namespaces, commands with PRP lists and, where supported, SGLs, and doorbells in memory and
/// in registers.
fn attach_variants() -> Vec<ConnectOptions> {
    let way = |nsid, data, doorbells| {
        let (nsid, data) = (Some(nsid), Some(data));
        ConnectOptions { nsid, data, queues: None, doorbells }
    };
    let mut ways = vec![
        way(1, DataPointers::Prp, DoorbellUse::Memory),
        way(2, DataPointers::Prp, DoorbellUse::Registers),
    ];
    let sgls = [
        way(1, DataPointers::SglAndPrp, DoorbellUse::Registers),
        way(2, DataPointers::SglAndPrp, DoorbellUse::Memory),
    ];
    if has_iommu() {
        ways.extend(sgls);
    }
    ways
}

/// Sector size and metadata format of the namespaces of the controller with metadata
/// (scripts/guest).
const FORMATS: [(u32, MetadataFormat); 4] = [
    (
        512,
        MetadataFormat { bytes: 8, transfer: MetadataTransfer::SeparateBuffer, protection: None },
    ),
    (4096, MetadataFormat { bytes: 64, transfer: MetadataTransfer::ExtendedLba, protection: None }),
    (
        4096,
        MetadataFormat {
            bytes: 8,
            transfer: MetadataTransfer::ControllerOnly,
            protection: Some(ProtectionType::Type1),
        },
    ),
    (
        4096,
        MetadataFormat {
            bytes: 16,
            transfer: MetadataTransfer::ExtendedLba,
            protection: Some(ProtectionType::Type1),
        },
    ),
];

macro_rules! on_every_format {
    ($($name:ident: $test:ident)*) => {$(
        #[test]
        #[ignore = "needs a controller of its own (make test-guest)"]
        fn $name() {
            for (nsid, (sector_bytes, metadata)) in (1..).zip(FORMATS) {
                for data in [DataPointers::Prp, DataPointers::SglAndPrp] {
                    if data != DataPointers::Prp && !has_iommu() {
                        continue;
                    }
                    let (nsid, data) = (Some(nsid), Some(data));
                    let mut harness = ControllerHarness::real(ConnectOptions { nsid, data, ..ConnectOptions::default() });
                    assert_eq!((harness.info.sector_bytes, harness.info.metadata), (sector_bytes, Some(metadata)));
                    suite::$test(&mut harness);
                }
            }
        }
    )*};
}

on_every_format! {
    guest_formats_data: data_is_what_was_written_at_every_size_and_place
    guest_formats_bit_bucket: what_is_thrown_away_goes_nowhere
    guest_formats_copies: memory_that_entries_cannot_name_is_copied
    guest_formats_copies_push_back: copies_push_back
    guest_formats_reset: a_queue_is_reset_under_load
    guest_formats_close: a_queue_is_closed_under_load
}

/// Returns whether the controller is behind an IOMMU, which also provides interrupts.
fn has_iommu() -> bool {
    named().1 == PciDriver::VfioPci
}

/// Returns the name of a namespace.
fn of_namespace(nsid: u32) -> String {
    format!("{}#{nsid}", target())
}

macro_rules! on_the_controller {
    ($($name:ident: $test:ident)*) => {$(
        #[test]
        #[ignore = "needs a controller of its own (make test-guest)"]
        fn $name() {
            for options in attach_variants() {
                let mut harness = ControllerHarness::real(options);
                assert_eq!(harness.info.sector_bytes, if options.nsid == Some(1) { 512 } else { 4096 });
                suite::$test(&mut harness);
            }
        }
    )*};
}

on_the_controller! {
    guest_data: data_is_what_was_written_at_every_size_and_place
    guest_bit_bucket: what_is_thrown_away_goes_nowhere
    guest_copies: memory_that_entries_cannot_name_is_copied
    guest_copies_push_back: copies_push_back
    guest_queues: queues_are_granted_up_to_a_number
    guest_health: the_health_log_counts
    guest_doorbells: doorbells_in_memory_save_registers
    guest_reset: a_queue_is_reset_under_load
    guest_close: a_queue_is_closed_under_load
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_opened_by_name_and_woken_by_interrupts() {
    for nsid in [1, 2] {
        let what = of_namespace(nsid);
        let device = open::open(&what, &OpenOptions::default()).unwrap();
        assert_eq!(device.kind(), DeviceKind::Controller);
        assert_eq!(device.name(), format!("{}#{nsid}", named().0));
        assert_eq!(device.bound_driver(), Some(named().1));
        assert_eq!(device.has_interrupts(), has_iommu());
        let sector = device.limits().sector_bytes as usize;
        let mut handles: Vec<_> = (0..3)
            .map(|_| {
                let queue = device.create_queue(QueueConfig::default()).unwrap();
                assert_eq!(queue.has_interrupts(), has_iommu());
                let mut handle = Handle::new(&device, queue).unwrap();
                match handle.set_wait(WaitMode::Interrupt) {
                    Ok(()) => assert!(has_iommu()),
                    Err(DirectError::NoInterrupts { .. }) => assert!(!has_iommu()),
                    Err(error) => panic!("{error}"),
                }
                handle
            })
            .collect();
        let data = device.buffer(8 * sector).unwrap();
        for round in 0..30u8 {
            let lba = u64::from(round) * 8;
            data.fill(0, 8 * sector, round);
            let writer = &mut handles[usize::from(round) % 3];
            writer.write(lba, &data, round % 2 == 0).unwrap();
            writer.flush().unwrap();
            data.fill(0, 8 * sector, 0xee);
            handles[usize::from(round + 1) % 3].read(lba, &data).unwrap();
            let mut bytes = vec![0; 8 * sector];
            data.read(0, &mut bytes);
            assert!(bytes.iter().all(|b| *b == round), "round {round}");
        }
        let slept: u64 = handles.iter().map(|h| h.sleep_stats().0).sum();
        assert_eq!(slept > 0, has_iommu(), "the handle sleeps only with interrupts");
        handles[0].write_zeroes(0, 8, false).unwrap();
        handles[0].discard(8, 8).unwrap();
        handles[0].read(0, &data).unwrap();
        let mut bytes = vec![0; 8 * sector];
        data.read(0, &mut bytes);
        assert!(bytes.iter().all(|b| *b == 0));
        assert!(device.health().unwrap().host_reads.get() > 0);
        // A controller has one owner; the error of a second open names it.
        let users = match open::open(&what, &OpenOptions::default()) {
            Err(TargetOpenError::Controller(PciError::Busy { users, .. })) if has_iommu() => users,
            Err(TargetOpenError::Controller(PciError::InUse { users, .. })) if !has_iommu() => {
                users
            }
            other => panic!("opened twice: {other:?}"),
        };
        assert!(!users.is_empty());
    }
    let nothing = open::open(&of_namespace(9), &OpenOptions::default()).unwrap_err();
    assert!(nothing.to_string().contains("no active namespace 9"), "{nothing}");
    let many = OpenOptions { queues: Some(9), ..OpenOptions::default() };
    let refused = open::open(&target(), &many).unwrap_err();
    assert!(matches!(refused, TargetOpenError::Option { option: "queues", .. }), "{refused}");
    let four = OpenOptions { queues: Some(4), ..OpenOptions::default() };
    let device = open::open(&target(), &four).unwrap();
    assert_eq!(device.drive_info().unwrap().io_queues, 4);
    assert_eq!(device.has_shadow_doorbells(), Some(true));
    drop(device);
    let registers = OpenOptions { doorbells: DoorbellUse::Registers, ..OpenOptions::default() };
    let device = open::open(&target(), &registers).unwrap();
    assert_eq!(device.has_shadow_doorbells(), Some(false));
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_tells_that_it_is_hot() {
    let mut harness = ControllerHarness::real(ConnectOptions::default());
    let health = harness.admin(|c, progress| c.health(progress)).unwrap();
    let threshold = feature::TEMPERATURE_THRESHOLD;
    harness.admin(|controller, progress| {
        assert!(matches!(controller.poll_event(), Err(DriverError::NotSubscribed)));
        // Enables events for temperature warnings; a threshold below the current temperature
        // triggers one.
        controller.set_feature(feature::ASYNC_EVENT, 0b10, progress).unwrap();
        controller.request_event().unwrap();
        let before = controller.get_feature(threshold, FeatureSelect::Current, progress).unwrap();
        assert_eq!(controller.poll_event().unwrap(), None);
        let below = u32::from(health.temperature.get()) - 10;
        controller.set_feature(threshold, below, progress).unwrap();
        let mut event = None;
        for _ in 0..100_000 {
            event = controller.poll_event().unwrap();
            if event.is_some() {
                break;
            }
            progress();
        }
        let event = event.expect("an asynchronous event for the temperature");
        assert_eq!((event.kind, event.info), (AsyncEvent::HEALTH, 1));
        assert_eq!(event.log_page, log_page::HEALTH);
        let warned = controller.health(progress).unwrap();
        assert_eq!(warned.critical_warning & 0b10, 0b10);
        controller.set_feature(threshold, before, progress).unwrap();
    });
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_comes_up_again_and_again() {
    for round in 0..5 {
        let opened = open_real(ConnectOptions::default());
        let opened = opened.unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(opened.controller.info().serial, "guest-0");
        assert!(opened.controller.max_entries() >= 64);
    }
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_controller_is_reset_under_load() {
    for options in attach_variants() {
        suite::the_controller_is_reset_under_load(&mut ControllerHarness::real(options));
    }
}

/// The system unbinds the controller while it is in use: every request completes once, later ones
/// are refused, and the controller is free as soon as the process has closed it.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_is_released_when_the_system_wants_it_back() {
    if !has_iommu() {
        // The generic driver does not notify the owner; `sluice device unbind` refuses.
        testkit::skip!("no IOMMU in this guest");
        return;
    }
    let what = target();
    let address = named().0.to_string();
    let device = open::open(&what, &OpenOptions::default()).unwrap();
    let mut queue = device.create_queue(QueueConfig::default()).unwrap();
    let data = device.buffer(64 << 10).unwrap();
    let clock = device.clock();
    for tag in 0..8 {
        let at = Payload::Contiguous(data.iova().offset(tag * 4096));
        queue.submit(clock.now(), Request::write(tag * 8, 1, at, tag)).unwrap();
    }
    queue.poll(clock.now());
    // QEMU's controller (7.2) crashes if it is stopped while it has unread requests. After this
    // pause it has completed them, although the completions are not reaped.
    std::thread::sleep(Duration::from_millis(500));
    let unbound = address.clone();
    let unbinding =
        std::thread::spawn(move || std::fs::write("/sys/bus/pci/drivers/vfio-pci/unbind", unbound));
    let mut ended = Vec::new();
    let begun = clock.now();
    let mut next = 8;
    loop {
        let now = clock.now();
        assert!(
            now.since(begun) < Nanos::from_millis(30_000),
            "the process did not notice the removal: {ended:?}"
        );
        assert!(!unbinding.is_finished(), "unbinding must wait while the controller is in use");
        queue.poll(now);
        ended.extend(std::iter::from_fn(|| queue.reap()).map(|done| (done.tag, done.status)));
        if ended.last().is_some_and(|(_, status)| *status == Status::HOST_PATH_ERROR) {
            break;
        }
        // Gives the owner time to notice the request and to stop.
        if now.since(begun) > Nanos::from_millis(3_000) && ended.len() as u64 == next {
            queue.submit(now, Request::flush(next)).unwrap();
            next += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut tags: Vec<u64> = ended.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..next).collect::<Vec<_>>(), "each request must complete once");
    assert!(ended[..8].iter().all(|(_, status)| status.is_success()), "{ended:?}");
    assert_eq!(next, 9, "the first request after the removal must be refused");
    drop((queue, data));
    drop(device);
    unbinding.join().unwrap().unwrap();
    // The controller is still assigned to vfio-pci.
    std::fs::write("/sys/bus/pci/drivers_probe", &address).unwrap();
    let device = open::open(&what, &OpenOptions::default()).unwrap();
    assert!(device.health().unwrap().host_writes.get() >= 8);
}

/// Memory that the controller does not reach is copied, and a queue reports it. Only registered
/// memory is passed to the controller, and none if there is no IOMMU.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_queues_say_what_they_copied() {
    let device = open::open(&of_namespace(2), &OpenOptions::default()).unwrap();
    let mut queue = device.create_queue(QueueConfig::default()).unwrap();
    assert_eq!(queue.stats().bounced.memory, 0, "bounce buffers are allocated on first use");
    let (clock, own) = (device.clock(), mem::SharedRegion::anonymous(64 << 10).unwrap());
    let own_at = device.memory().register(&own).unwrap();
    let reached = device.buffer(64 << 10).unwrap();
    own.fill(0, 64 << 10, 0x3c);
    let mut execute = |request: Request| {
        queue.submit(clock.now(), request).unwrap();
        loop {
            queue.poll(clock.now());
            if let Some(done) = queue.reap() {
                break (done.status, queue.stats());
            }
        }
    };
    let (status, written) = execute(Request::write(0, 16, Payload::Contiguous(own_at), 1));
    assert_eq!(status, Status::SUCCESS);
    let (status, read) = execute(Request::read(0, 16, reached.payload(), 2));
    assert_eq!(status, Status::SUCCESS);
    let mut bytes = vec![0; 64 << 10];
    reached.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0x3c));
    // Behind an IOMMU the controller reaches all registered memory.
    let copies = u64::from(!has_iommu());
    assert_eq!((written.bounced.commands, written.bounced.bytes), (copies, copies * (64 << 10)));
    assert_eq!(read.bounced.commands, copies, "reads into memory of the device must not be copied");
    assert_eq!(read.bounced.memory > 0, !has_iommu());
    assert_eq!(read.bounce_refused, None);
    let rung = read.doorbells.expect("QEMU supports doorbells in memory");
    assert!(rung.register_writes + rung.register_writes_saved >= 2, "{rung:?}");
    if !has_iommu() {
        let nowhere = Request::read(0, 1, Payload::Contiguous(mem::Iova(1 << 60)), 3);
        assert!(execute(nowhere).0.is(Status::DATA_TRANSFER_ERROR));
        let sgls =
            ConnectOptions { data: Some(DataPointers::SglAndPrp), ..ConnectOptions::default() };
        drop(queue);
        drop(reached);
        drop(device);
        let Err(PciError::Controller { source, .. }) = open_real(sgls) else { panic!("opened") };
        assert!(matches!(source, DriverError::Unsupported { .. }), "{source}");
        let refused = open::open(&format!("vfio:{}", named().0), &OpenOptions::default());
        assert!(matches!(refused, Err(TargetOpenError::Controller(PciError::NoIommu { .. }))));
    }
}

/// A process that is killed does not prevent the next one from opening the controller.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_killed_process_gives_the_controller_back() {
    let this = std::env::current_exe().unwrap();
    let test = testkit::test_path!(guest_reads_until_it_is_killed);
    for _ in 0..2 {
        let mut child = std::process::Command::new(&this)
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env("SLUICE_READER", "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        let begun = std::io::BufRead::lines(out).any(|line| line.unwrap().contains("reading"));
        assert!(begun, "the other process did not start in time");
        std::thread::sleep(Duration::from_millis(300));
        child.kill().unwrap();
        child.wait().unwrap();
        let opened = open_real(ConnectOptions::default()).unwrap();
        assert_eq!(opened.controller.info().serial, "guest-0");
    }
}

/// The child process of the test above.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_reads_until_it_is_killed() {
    if std::env::var_os("SLUICE_READER").is_none() {
        return;
    }
    let device = open::open(&of_namespace(2), &OpenOptions::default()).unwrap();
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    let data = device.buffer(64 << 10).unwrap();
    println!("reading");
    loop {
        handle.read(0, &data).unwrap();
        // The pause makes it likely that the process is killed without a request in flight: QEMU's
        // controller (7.2) crashes when it is reset with requests of its own.
        std::thread::sleep(Duration::from_millis(100));
    }
}
