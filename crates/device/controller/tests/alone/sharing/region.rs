//! The persistent memory region of a host in another process.

// guarantee: B-98

use std::io::stdin;
use std::sync::mpsc::channel;

use controller::{
    AccessPolicy, AccessScope, AttachError, Controller, ControllerConfig, DriveConfig, Fault,
    PmrConfig, PmrStore, RegionCosts, RegisterConfig,
};
use driver::{ControllerHandle, PersistentRegion, RegionError};
use media::{DataStore, MediaConfig};
use testkit::two_processes::{self as socket, kind};
use time::{Component, Nanos};
use transport::{Port, PortLimits};

use super::harness::block;
use crate::common::attach;

const BYTES: u64 = 64 << 10;
const COSTS: RegionCosts = RegionCosts { store: Nanos(8), persist: Nanos(5_000_000_000) };

fn config() -> DriveConfig {
    let pmr = Some(PmrConfig { store: PmrStore::Emulated { bytes: BYTES }, costs: COSTS });
    DriveConfig { pmr, ..block() }
}

fn whole() -> AccessPolicy {
    AccessPolicy { persistent_region: true, ..AccessPolicy::for_scope(AccessScope::All) }
}

/// Tells the drive's process to go on, and waits until it has.
fn next_step() {
    socket::send(stdin(), kind::NOTE, b"next", &[]).unwrap();
    assert_eq!(socket::receive(stdin()).unwrap().0, kind::NOTE);
}

/// Runs as the other process.
#[test]
fn child() {
    if std::env::var(socket::ROLE).as_deref() != Ok("region") {
        // The test runs as a normal test, not as a host's process.
        return;
    }
    let port = socket::join();
    let progress = &mut std::thread::yield_now;
    let controller = ControllerHandle::connect(port, progress, u64::MAX).unwrap();
    let region = controller.persistent_region().unwrap();
    assert_eq!((region.bytes(), region.costs()), (BYTES, COSTS));
    assert_eq!(region.store(100, b"persisted"), Ok(COSTS.store));
    assert_eq!(region.persist(100, 9), Ok(COSTS.persist));
    region.store(4096, &[7; 4096]).unwrap();
    next_step();
    // The power was cut.
    let mut found = [0; 9];
    region.read(100, &mut found).unwrap();
    assert_eq!(&found, b"persisted");
    let mut words = [0; 4096];
    region.read(4096, &mut words).unwrap();
    assert!(words.chunks(8).all(|word| word == [0; 8] || word == [7; 8]));
    assert!(words.contains(&0) && words.contains(&7));
    next_step();
    // The host was detached.
    assert_eq!(region.read(0, &mut found), Err(RegionError::Removed));
    assert_eq!(region.store(0, b"late"), Err(RegionError::Removed));
}

#[test]
fn a_host_of_the_whole_drive_in_another_process_has_it() {
    for registers in [None, Some(RegisterConfig::default())] {
        let plain = config();
        let controller = ControllerConfig { registers, ..plain.controller };
        let mut drive = Controller::new(DriveConfig { controller, ..plain }).unwrap();
        let limits = PortLimits { vectors: 2, ..PortLimits::default() };
        let port = match registers {
            Some(_) => Port::shared_with_registers(limits),
            None => Port::shared(limits),
        };
        let port = port.unwrap();
        drive.attach_as(&port, whole()).unwrap();
        let (mut process, stream) = socket::spawn(testkit::test_path!(child), "region", |_| {});
        socket::send_port(&stream, &port);
        let (note, notes) = channel();
        let (theirs, shared) = (stream.clone(), port.clone());
        let served = std::thread::spawn(move || {
            socket::serve(&theirs, &shared, |_| note.send(()).unwrap());
        });
        let mut now = Nanos::ZERO;
        let mut wait = |drive: &mut Controller| {
            while notes.try_recv().is_err() {
                now += Nanos(1_000);
                drive.poll(now);
                assert!(now < Nanos::from_secs(600), "no answer");
                std::thread::yield_now();
            }
        };
        wait(&mut drive);
        // A host in this process has the same memory.
        let (ours, _) = attach(&mut drive);
        let mut found = [0; 9];
        ours.persistent_region().unwrap().read(100, &mut found).unwrap();
        assert_eq!(&found, b"persisted");
        drive.inject_fault(Nanos(1), Fault::PowerCut { after_ops: 0 }).unwrap();
        socket::send(&stream, kind::NOTE, b"cut", &[]).unwrap();
        wait(&mut drive);
        drive.detach(&port).unwrap();
        socket::send(&stream, kind::NOTE, b"gone", &[]).unwrap();
        assert!(process.wait().unwrap().success());
        served.join().unwrap();
    }
}

#[test]
fn hosts_of_parts_and_regions_in_files_are_refused() {
    let mut drive = Controller::new(config()).unwrap();
    let part = AccessScope::Sectors { first: 0, count: 8 };
    let policy = AccessPolicy { persistent_region: true, ..AccessPolicy::for_scope(part) };
    let port = Port::new().unwrap();
    let error = drive.attach_as(&port, policy).unwrap_err();
    assert!(matches!(error, AttachError::Region { part: refused } if refused == part), "{error}");
    drive.attach_as(&port, AccessPolicy::for_scope(part)).unwrap();
    assert!(PersistentRegion::of_port(&port).is_none());
    // Within a process, a region in a file is a region as any.
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::File(folder.path().join("d.img"));
    let mut drive = Controller::new(config).unwrap();
    let port = Port::shared(PortLimits::default()).unwrap();
    let error = drive.attach_as(&port, whole()).unwrap_err();
    assert!(matches!(error, AttachError::RegionInFile), "{error}");
    let port = Port::new().unwrap();
    drive.attach_as(&port, whole()).unwrap();
    assert_eq!(PersistentRegion::of_port(&port).unwrap().bytes(), BYTES);
}
