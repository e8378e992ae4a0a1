//! The suite on a real controller, and what only a real one has: namespaces of several formats,
//! interrupts, events of its health, exclusive use. One test at a time: a controller has one owner.

use std::time::Duration;

use clock::{Component, Nanos};
use driver::pci::{PciError, PciSystem, open_controller};
use driver::{AttachOptions, DataPointers, DoorbellUse, DriverError, Payload, Request};
use nvme::{AsyncEvent, FeatureSelect, Status, feature, log_page};
use sluice::block::Device as _;
use sluice::direct::{DeviceKind, Handle, QueueConfig, Wait};
use sluice::open::{OpenError, OpenOptions};

use crate::rig::Rig;
use crate::suite;

/// Both namespaces, commands with lists of pages as well as SGLs, and doorbells in memory and not.
fn ways() -> [AttachOptions; 4] {
    let way = |nsid, data, doorbells| {
        let (nsid, data) = (Some(nsid), Some(data));
        AttachOptions { nsid, data, queues: None, doorbells }
    };
    [
        way(1, DataPointers::Prp, DoorbellUse::Memory),
        way(2, DataPointers::Prp, DoorbellUse::Registers),
        way(1, DataPointers::SglAndPrp, DoorbellUse::Registers),
        way(2, DataPointers::SglAndPrp, DoorbellUse::Memory),
    ]
}

macro_rules! on_the_controller {
    ($($name:ident: $test:ident)*) => {$(
        #[test]
        #[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
        fn $name() {
            for options in ways() {
                let mut rig = Rig::real(options);
                assert_eq!(rig.info.sector_bytes, if options.nsid == Some(1) { 512 } else { 4096 });
                suite::$test(&mut rig);
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

fn target() -> String {
    format!("vfio:{}", std::env::var("SLUICE_CONTROLLER").expect("SLUICE_CONTROLLER"))
}

#[test]
#[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
fn guest_opened_by_name_and_woken_by_interrupts() {
    for nsid in [1, 2] {
        let what = format!("{}#{nsid}", target());
        let device = sluice::open(&what, &OpenOptions::default()).unwrap();
        assert_eq!(device.kind(), DeviceKind::Controller);
        assert_eq!(format!("vfio:{}", device.name()), what);
        let sector = device.limits().sector_bytes as usize;
        let mut handles: Vec<_> = (0..3)
            .map(|_| {
                let queue = device.create_queue(QueueConfig::default()).unwrap();
                let mut handle = Handle::new(&device, queue).unwrap();
                handle.set_wait(Wait::Event).unwrap();
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
        let slept: u64 = handles.iter().map(|h| h.slept().0).sum();
        assert!(slept > 0, "interrupts ended sleeps");
        handles[0].write_zeroes(0, 8, false).unwrap();
        handles[0].discard(8, 8).unwrap();
        handles[0].read(0, &data).unwrap();
        let mut bytes = vec![0; 8 * sector];
        data.read(0, &mut bytes);
        assert!(bytes.iter().all(|b| *b == 0));
        assert!(device.health().unwrap().host_reads.get() > 0);
        // One owner at a time, and it is told whose it is.
        let Err(OpenError::Controller(PciError::Busy { users, .. })) =
            sluice::open(&what, &OpenOptions::default())
        else {
            panic!("opened twice")
        };
        assert!(!users.is_empty());
    }
    let nothing = sluice::open(&format!("{}#9", target()), &OpenOptions::default()).unwrap_err();
    assert!(nothing.to_string().contains("no active namespace 9"), "{nothing}");
    let many = OpenOptions { queues: Some(9), ..OpenOptions::default() };
    let refused = sluice::open(&target(), &many).unwrap_err();
    assert!(matches!(refused, OpenError::Option { option: "queues", .. }), "{refused}");
    let four = OpenOptions { queues: Some(4), ..OpenOptions::default() };
    let device = sluice::open(&target(), &four).unwrap();
    assert_eq!(device.drive_info().unwrap().io_queues, 4);
    assert_eq!(device.has_shadow_doorbells(), Some(true));
    drop(device);
    let registers = OpenOptions { doorbells: DoorbellUse::Registers, ..OpenOptions::default() };
    let device = sluice::open(&target(), &registers).unwrap();
    assert_eq!(device.has_shadow_doorbells(), Some(false));
}

#[test]
#[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
fn guest_tells_that_it_is_hot() {
    let mut rig = Rig::real(AttachOptions::default());
    let health = rig.admin(|c, pump| c.health(pump)).unwrap();
    let threshold = feature::TEMPERATURE_THRESHOLD;
    rig.admin(|controller, pump| {
        assert!(matches!(controller.poll_event(), Err(DriverError::NotWatching)));
        // Critical temperature warnings are reported, and it is warmer than the threshold from now on.
        controller.set_feature(feature::ASYNC_EVENT, 0b10, pump).unwrap();
        controller.await_event().unwrap();
        let before = controller.get_feature(threshold, FeatureSelect::Current, pump).unwrap();
        assert_eq!(controller.poll_event().unwrap(), None);
        let below = u32::from(health.temperature.get()) - 10;
        controller.set_feature(threshold, below, pump).unwrap();
        let mut event = None;
        for _ in 0..100_000 {
            event = controller.poll_event().unwrap();
            if event.is_some() {
                break;
            }
            pump();
        }
        let event = event.expect("an event");
        assert_eq!((event.kind, event.info), (AsyncEvent::HEALTH, 1));
        assert_eq!(event.log_page, log_page::HEALTH);
        let warned = controller.health(pump).unwrap();
        assert_eq!(warned.critical_warning & 0b10, 0b10);
        controller.set_feature(threshold, before, pump).unwrap();
    });
}

#[test]
#[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
fn guest_comes_up_again_and_again() {
    for round in 0..5 {
        let opened = open_controller(
            &PciSystem::default(),
            target()["vfio:".len()..].parse().unwrap(),
            AttachOptions::default(),
        );
        let opened = opened.unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(opened.controller.info().serial, "guest-0");
        assert!(opened.controller.max_entries() >= 64);
    }
}

#[test]
#[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
fn guest_controller_is_reset_under_load() {
    for options in ways() {
        suite::the_controller_is_reset_under_load(&mut Rig::real(options));
    }
}

/// The system takes the controller back while it is in use: every request ends once, those after it are
/// refused, and it is free as soon as it is closed.
#[test]
#[ignore = "needs a controller that is bound to vfio-pci (make test-guest)"]
fn guest_is_let_go_when_the_system_wants_it_back() {
    let what = target();
    let address = what["vfio:".len()..].to_owned();
    let device = sluice::open(&what, &OpenOptions::default()).unwrap();
    let mut queue = device.create_queue(QueueConfig::default()).unwrap();
    let data = device.buffer(64 << 10).unwrap();
    let clock = device.clock();
    for tag in 0..8 {
        let at = Payload::At(data.at().offset(tag * 4096));
        queue.submit(clock.now(), Request::write(tag * 8, 1, at, tag)).unwrap();
    }
    queue.poll(clock.now());
    // QEMU's controller (7.2) crashes when it is stopped with requests of its own under way: it has
    // answered by then, and nobody has looked.
    std::thread::sleep(Duration::from_millis(500));
    let unbound = address.clone();
    let unbinding =
        std::thread::spawn(move || std::fs::write("/sys/bus/pci/drivers/vfio-pci/unbind", unbound));
    let mut ended = Vec::new();
    let begun = clock.now();
    let mut next = 8;
    loop {
        let now = clock.now();
        assert!(now.since(begun) < Nanos::from_millis(30_000), "nobody noticed: {ended:?}");
        assert!(!unbinding.is_finished(), "it was in use");
        queue.poll(now);
        ended.extend(std::iter::from_fn(|| queue.reap()).map(|done| (done.tag, done.status)));
        if ended.last().is_some_and(|(_, status)| *status == Status::HOST_PATH_ERROR) {
            break;
        }
        // Time enough to be noticed and stopped.
        if now.since(begun) > Nanos::from_millis(3_000) && ended.len() as u64 == next {
            queue.submit(now, Request::flush(next)).unwrap();
            next += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut tags: Vec<u64> = ended.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..next).collect::<Vec<_>>(), "each once");
    assert!(ended[..8].iter().all(|(_, status)| status.is_success()), "{ended:?}");
    assert_eq!(next, 9, "the first one after it was refused");
    drop((queue, data));
    drop(device);
    unbinding.join().unwrap().unwrap();
    // It is still meant for vfio-pci.
    std::fs::write("/sys/bus/pci/drivers_probe", &address).unwrap();
    let device = sluice::open(&what, &OpenOptions::default()).unwrap();
    assert!(device.health().unwrap().host_writes.get() >= 8);
}
