//! Media events, the controller memory buffer and the device L2P, with drives that report wrong
//! data about them.

use crate::common;

use common::{Faults, MockDrive};
use mem::SharedRegion;
use nvme::opcode::admin;
use nvme::register::{CMBLOC, CMBSZ};
use nvme::{
    Address, AsyncEvent, ChunkNotification, ChunkNotificationKind, ChunkNotificationScope, CmbSize,
    Geometry, Status, VendorExtensions,
};
use sluice_driver::{ControllerHandle, DriverError};
use transport::Port;

const POLLS: u64 = 100;

fn shape() -> Geometry {
    Geometry {
        groups: 2,
        pus: 3,
        chunks: 67,
        sectors: 96,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 8,
        ws_opt: 24,
        mw_cunits: 48,
    }
}

/// Connects to an open-channel drive with all extensions.
fn connect() -> (MockDrive, ControllerHandle) {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::open_channel(&port, &shape());
    let flags = VendorExtensions::NOTIFICATIONS | VendorExtensions::DEVICE_L2P;
    let extensions =
        VendorExtensions { l2p_entries: 10.into(), ..VendorExtensions::with_flags(flags) };
    extensions.write_to(&mut drive.geometry.as_mut().unwrap().vendor);
    let controller = ControllerHandle::connect(port, &mut || drive.progress(), POLLS).unwrap();
    (drive, controller)
}

/// Sector 5 of chunk 3 of the last parallel unit of the second group.
const AT: Address = Address { group: 1, pu: 2, chunk: 3, sector: 5 };

fn entry(controller: &ControllerHandle, count: u64) -> ChunkNotification {
    let format = controller.info().open_channel.unwrap().format;
    let (scope, what) = (ChunkNotificationScope::Sector, ChunkNotificationKind::ErrorRateHigh);
    let entry = ChunkNotification::new(count, format.pack(AT).0, 1, scope, what);
    ChunkNotification { nlb: 7.into(), ..entry }
}

/// Returns the counts of all available events.
fn counts(drive: &mut MockDrive, controller: &mut ControllerHandle) -> Vec<u64> {
    let mut counts = Vec::new();
    for _ in 0..5 {
        while let Some(event) = controller.poll_events().unwrap() {
            counts.push(event.count);
        }
        drive.progress();
    }
    counts
}

#[test]
fn events_come_out_in_order_with_what_they_say() {
    let (mut drive, mut controller) = connect();
    controller.subscribe_events().unwrap();
    assert_eq!(counts(&mut drive, &mut controller), []);
    assert_eq!(drive.requests.len(), 1, "the driver must send only one event request");
    drive.notifications = [2, 1].map(|n| entry(&controller, n)).to_vec();
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    assert_eq!(controller.poll_events().unwrap(), None, "the log is being read");
    drive.progress();
    let event = controller.poll_events().unwrap().unwrap();
    assert_eq!((event.count, event.address, event.sectors), (1, AT, 8));
    assert_eq!(
        (event.scope, event.kind),
        (ChunkNotificationScope::Sector, ChunkNotificationKind::ErrorRateHigh)
    );
    assert_eq!(counts(&mut drive, &mut controller), [2]);
    // Known entries are not returned again, and missing ones are counted.
    drive.notifications = [7, 6, 2, 1].map(|n| entry(&controller, n)).to_vec();
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    assert_eq!(counts(&mut drive, &mut controller), [6, 7]);
    assert_eq!(controller.dropped_events(), (3, 0));
    // Other admin commands continue in the meantime.
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    let health = controller.health(&mut || drive.progress()).unwrap();
    assert_eq!(health.percentage_used, 7);
    assert_eq!(counts(&mut drive, &mut controller), []);
    assert_eq!(drive.requests.len(), 1);
}

#[test]
fn what_means_nothing_is_counted_and_skipped() {
    let (mut drive, mut controller) = connect();
    controller.subscribe_events().unwrap();
    drive.progress();
    let good = entry(&controller, 9);
    drive.notifications = vec![
        good,
        ChunkNotification { mask: 0, count: 8.into(), ..good },
        ChunkNotification { mask: 3, count: 7.into(), ..good },
        ChunkNotification { state: 0x20.into(), count: 6.into(), ..good },
        // An address in a hole of the address format.
        ChunkNotification { address: u64::MAX.into(), count: 5.into(), ..good },
        ChunkNotification { count: 1.into(), ..good },
    ];
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    assert_eq!(counts(&mut drive, &mut controller), [1, 9]);
    assert_eq!(controller.dropped_events(), (3, 4));
    // Entries are out of order: lower counts are not returned.
    let counted = |n: u64| ChunkNotification { count: n.into(), ..good };
    drive.notifications = vec![counted(10), counted(12), counted(11)];
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    assert_eq!(counts(&mut drive, &mut controller), [11, 12]);
    assert_eq!(controller.dropped_events(), (4, 5));
    // The largest possible count.
    drive.notifications = vec![ChunkNotification { count: u64::MAX.into(), ..good }];
    drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
    assert_eq!(counts(&mut drive, &mut controller), [u64::MAX]);
    // Another kind of event: the driver does not read the log, and the subscription continues.
    drive.send_event(AsyncEvent { kind: AsyncEvent::HEALTH, info: 1, log_page: 2 }.to_dword());
    assert_eq!(counts(&mut drive, &mut controller), []);
    assert_eq!(drive.requests.len(), 1);
}

#[test]
fn refusals_end_the_watch_and_it_can_begin_anew() {
    for opcode in [admin::ASYNC_EVENT_REQUEST, admin::GET_LOG_PAGE] {
        let (mut drive, mut controller) = connect();
        assert!(matches!(controller.poll_events(), Err(DriverError::NotSubscribed)));
        drive.faults =
            Faults { refuse_admin: Some((opcode, Status::INTERNAL)), ..Faults::default() };
        controller.subscribe_events().unwrap();
        drive.progress();
        if opcode == admin::GET_LOG_PAGE {
            drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
            assert_eq!(controller.poll_events().unwrap(), None);
            drive.progress();
        }
        let error = controller.poll_events().unwrap_err();
        assert_eq!(error.status(), Some(Status::INTERNAL));
        assert!(matches!(controller.poll_events(), Err(DriverError::NotSubscribed)));
        drive.faults = Faults::default();
        controller.subscribe_events().unwrap();
        drive.progress();
        drive.notifications = vec![entry(&controller, 1)];
        drive.send_event(AsyncEvent::CHUNK_NOTIFICATION.to_dword());
        assert_eq!(counts(&mut drive, &mut controller), [1]);
    }
    // A drive without chunk notifications.
    let port = Port::new().unwrap();
    let mut drive = MockDrive::open_channel(&port, &shape());
    let mut controller = ControllerHandle::connect(port, &mut || drive.progress(), POLLS).unwrap();
    assert!(matches!(controller.subscribe_events(), Err(DriverError::Unsupported { .. })));
}

#[test]
fn a_map_of_impossible_locations_is_an_error() {
    let (mut drive, mut controller) = connect();
    let mut progress = || drive.progress();
    let error = controller.dual_map(2, 3, &mut progress).unwrap_err();
    assert!(matches!(&error, DriverError::Implausible { .. }), "{error}");
    assert!(error.to_string().contains("logical address 2"), "{error}");
    assert!(matches!(
        controller.dual_map(8, 3, &mut progress),
        Err(DriverError::Unsupported { .. })
    ));
}

#[test]
fn buffers_that_are_not_there_are_refused() {
    let attach = |size: u32, location: u32, bar: Option<u8>| {
        let port = Port::new().unwrap();
        let region = SharedRegion::anonymous(8192).unwrap();
        let at = port.memory().register(&region).unwrap();
        if let Some(bar) = bar {
            port.set_bar(bar, at);
        }
        port.set_register(CMBSZ, size);
        port.set_register(CMBLOC, location);
        let mut drive = MockDrive::new(&port, 10);
        let attached = ControllerHandle::connect(port, &mut || drive.progress(), POLLS);
        attached.map(|c| c.cmb().map(|cmb| (cmb.bytes(), cmb.is_protected())))
    };
    let size = |bytes| CmbSize::from_size_bytes(bytes).unwrap().to_value();
    assert_eq!(attach(0, 0, None).unwrap(), None);
    assert_eq!(attach(size(8192), 2, Some(2)).unwrap(), Some((8192, false)));
    assert_eq!(attach(size(4096), 1 << 12 | 3, Some(3)).unwrap(), Some((4096, false)));
    for (size, location, bar, why) in [
        (size(8192), 2, None, "behind register 2"),
        (size(8192), 7, Some(2), "behind register 7"),
        (size(8192), 1 << 12 | 2, Some(2), "not registered"),
        (size(1 << 30), 2, Some(2), "not registered"),
        (size(8192), 0xffff_f002, Some(2), "not registered"),
        (0xffff_f61f, 0xffff_f002, Some(2), "not registered"),
        (1 << 12 | 0x700, 2, Some(2), "units"),
    ] {
        let error = attach(size, location, bar).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
