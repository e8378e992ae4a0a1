//! Requests of administrators without queues: they do what commands of hosts do.

// guarantee: B-42

use controller::{
    Controller, DriveConfig, Fault, NamespaceError, NamespaceReply, NamespaceRequest,
    PersonalityKind, SanitizeMethod,
};
use media::MediaConfig;
use nvme::{SecureErase, Sqe, Status};
use rng::Rng;
use time::{Component, Nanos};

use super::harness::NamespaceBench;
use crate::hostile::host::{block_config, configs};
use crate::interface::events::changed;

/// Runs the drive until a request has ended.
fn ended(b: &mut NamespaceBench, reply: &NamespaceReply) -> Result<u32, NamespaceError> {
    for _ in 0..100_000 {
        while b.drive.poll(b.host.now) {}
        match reply.result() {
            Err(NamespaceError::Unfinished { .. }) => {}
            end => return end,
        }
        match b.drive.deadline() {
            Nanos::MAX => panic!("nothing is left to do, and the request has not ended"),
            at => b.host.now = b.host.now.max(at),
        }
    }
    panic!("the request does not end");
}

fn request(b: &mut NamespaceBench, request: NamespaceRequest) -> Result<u32, NamespaceError> {
    let reply = b.drive.change_namespaces(b.host.now, request)?;
    ended(b, &reply)
}

fn create(b: &mut NamespaceBench, bytes: u64) -> Result<u32, NamespaceError> {
    request(b, NamespaceRequest::Create { bytes: Some(bytes) })
}

/// Executes a request as a command of a host.
fn command(b: &mut NamespaceBench, request: NamespaceRequest) -> Result<u32, Status> {
    let status = match request {
        NamespaceRequest::Create { bytes } => return b.create(bytes.unwrap() / 4096),
        NamespaceRequest::Delete { nsid } => b.delete(nsid.unwrap_or(u32::MAX)),
        NamespaceRequest::Attach { nsid } => b.attach(nsid, true),
        NamespaceRequest::Detach { nsid } => b.attach(nsid, false),
    };
    if status.is_success() { Ok(0) } else { Err(status) }
}

/// Two drives get the same changes, one by commands and one by requests.
#[test]
fn requests_and_commands_are_one_mechanism() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let [mut by_command, mut by_request] = [(); 2].map(|()| {
            let mut b = NamespaceBench::new(block_config());
            assert_eq!(b.delete(1), Status::SUCCESS);
            b
        });
        let blocks = by_command.drive.sectors();
        for step in 0..60 {
            let nsid = rng.below(7) as u32;
            let change = match rng.below(8) {
                0..3 => {
                    NamespaceRequest::Create { bytes: Some((1 + rng.below(blocks / 2)) * 4096) }
                }
                3 => NamespaceRequest::Delete { nsid: (nsid > 0).then_some(nsid) },
                4..7 => NamespaceRequest::Attach { nsid },
                _ => NamespaceRequest::Detach { nsid },
            };
            let expected = command(&mut by_command, change);
            let found = request(&mut by_request, change);
            let what = format!("seed {seed}, step {step}: {change:?}: {found:?}");
            match (expected, &found) {
                (Ok(expected), Ok(found)) => assert_eq!(expected, *found, "{what}"),
                (Err(status), Err(NamespaceError::Unknown { nsid: found, .. })) => {
                    let is_unknown =
                        status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_NAMESPACE);
                    assert!(is_unknown && *found == nsid, "{what}");
                }
                (Err(status), Err(error)) => {
                    let expected = match error {
                        NamespaceError::Capacity { .. } => Status::NAMESPACE_CAPACITY,
                        NamespaceError::TooMany => Status::NAMESPACE_ID_UNAVAILABLE,
                        NamespaceError::Attached { .. } => Status::NAMESPACE_ATTACHED,
                        NamespaceError::NotAttached { .. } => Status::NAMESPACE_NOT_ATTACHED,
                        other => panic!("{what}: {other:?}"),
                    };
                    assert!(status.is(expected), "{what}");
                }
                (expected, _) => panic!("{what}, but the command {expected:?}"),
            }
            assert_eq!(by_command.drive.namespaces(), by_request.drive.namespaces(), "{what}");
            let unallocated = by_request.drive.unallocated_bytes();
            assert_eq!(by_command.unallocated(), unallocated, "{what}");
            by_request.drive.check_invariants().unwrap();
            let told = |b: &mut NamespaceBench| changed(&mut b.host, &mut b.drive, false);
            assert_eq!(told(&mut by_command), told(&mut by_request), "{what}");
        }
    }
}

#[test]
fn refused_requests_have_reasons_and_change_nothing() {
    let mut b = NamespaceBench::new(block_config());
    let capacity = b.drive.sectors() * 4096;
    let before = b.drive.namespaces();
    let full = NamespaceError::Capacity { needed_bytes: 4096, unallocated_bytes: 0 };
    for (change, expected) in [
        (NamespaceRequest::Create { bytes: Some(1) }, full.clone()),
        (NamespaceRequest::Create { bytes: None }, full),
        (NamespaceRequest::Create { bytes: Some(0) }, NamespaceError::Empty),
        (NamespaceRequest::Attach { nsid: 1 }, NamespaceError::Attached { nsid: 1 }),
    ] {
        assert_eq!(request(&mut b, change), Err(expected), "{change:?}");
    }
    let too_large = create(&mut b, u64::MAX).unwrap_err().to_string();
    assert!(too_large.contains("0 are unallocated"), "{too_large}");
    for nsid in [0, 2, 33, u32::MAX] {
        for change in [
            NamespaceRequest::Delete { nsid: Some(nsid) },
            NamespaceRequest::Attach { nsid },
            NamespaceRequest::Detach { nsid },
        ] {
            let expected = NamespaceError::Unknown { nsid, present: "1".to_owned() };
            assert_eq!(request(&mut b, change), Err(expected));
        }
    }
    assert_eq!(b.drive.namespaces(), before);
    // During a format, and Sanitize.
    for lba in 0..32 {
        assert_eq!(b.write(1, lba, &[1]), Status::SUCCESS);
    }
    b.flush();
    b.send(NamespaceBench::format_entry(1, SecureErase::UserData));
    while b.drive.poll(b.host.now) {}
    let refused = |status| Err(NamespaceError::Refused { status });
    let detach = NamespaceRequest::Detach { nsid: 1 };
    let delete = NamespaceRequest::Delete { nsid: Some(1) };
    for change in [detach, delete] {
        assert_eq!(request(&mut b, change), refused(Status::FORMAT_IN_PROGRESS));
    }
    assert_eq!(b.run(100_000), Some(Status::SUCCESS));
    b.drive
        .inject_fault(b.host.now, Fault::Sanitize { action: SanitizeMethod::BlockErase })
        .unwrap();
    for change in [detach, delete] {
        assert_eq!(request(&mut b, change), refused(Status::SANITIZE_IN_PROGRESS));
    }
    b.run(100_000);
    assert_eq!(request(&mut b, delete), Ok(0));
    assert_eq!(request(&mut b, NamespaceRequest::Create { bytes: None }), Ok(1));
    let expected = NamespaceError::NotAttached { nsid: 1 };
    assert_eq!(request(&mut b, detach), Err(expected));
    assert_eq!(b.drive.unallocated_bytes(), 0);
    assert_eq!(request(&mut b, delete), Ok(0));
    for nsid in 1..=32 {
        assert_eq!(create(&mut b, 1), Ok(nsid));
    }
    assert_eq!(create(&mut b, 1), Err(NamespaceError::TooMany));
    assert_eq!(b.drive.namespaces()[31].blocks, 1);
    assert!(b.drive.unallocated_bytes() < capacity);
}

/// A request ends with its change, with a power cut, or with the drive.
#[test]
fn requests_end_once() {
    let mut b = NamespaceBench::new(block_config());
    assert_eq!(b.delete(1), Status::SUCCESS);
    let (first, second) = (b.add(100), b.add(100));
    assert_eq!(b.write(first, 3, &[1]), Status::SUCCESS);
    assert_eq!(b.write(second, 3, &[2]), Status::SUCCESS);
    let delete = NamespaceRequest::Delete { nsid: Some(first) };
    let reply = b.drive.change_namespaces(b.host.now, delete).unwrap();
    // The second change comes too early; commands of others are served.
    let busy = NamespaceError::Refused { status: Status::NOT_READY };
    let other = NamespaceRequest::Delete { nsid: Some(second) };
    assert_eq!(b.drive.change_namespaces(b.host.now, other).unwrap_err(), busy);
    assert_eq!(b.read(first, 3, 1), Err(Status::INVALID_FIELD));
    assert_eq!(b.read(second, 3, 1), Ok(vec![2]));
    assert_eq!(ended(&mut b, &reply), Ok(0));
    assert_eq!(reply.result(), Err(NamespaceError::Stopped), "it has ended once");
    // A power cut before the end.
    let create = NamespaceRequest::Create { bytes: Some(4096) };
    let reply = b.drive.change_namespaces(b.host.now, create).unwrap();
    b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops: 0 }).unwrap();
    let lost = NamespaceError::Refused { status: Status::POWER_LOSS };
    assert_eq!(ended(&mut b, &reply), Err(lost));
    assert_eq!(b.drive.namespaces().len(), 1);
    let reply = b.drive.change_namespaces(b.host.now, create).unwrap();
    assert_eq!(reply.result(), Err(NamespaceError::Unfinished { seconds: 0 }));
    drop(b.drive);
    assert_eq!(reply.result(), Err(NamespaceError::Stopped));
}

#[test]
fn drives_without_an_ftl_have_one_namespace() {
    let is_other = |config: &DriveConfig| {
        config.personality != PersonalityKind::Block || matches!(config.media, MediaConfig::Pcm(_))
    };
    for config in configs().into_iter().filter(is_other) {
        let mut drive = Controller::new(config).unwrap();
        let before = drive.namespaces();
        for change in [
            NamespaceRequest::Create { bytes: Some(4096) },
            NamespaceRequest::Delete { nsid: None },
            NamespaceRequest::Detach { nsid: 1 },
        ] {
            let refused = drive.change_namespaces(Nanos::ZERO, change).unwrap_err();
            assert_eq!(refused, NamespaceError::NotManaged);
        }
        assert_eq!(drive.namespaces(), before);
        let [only] = before[..] else { panic!("{before:?}") };
        assert_eq!((only.nsid, only.blocks, only.is_attached), (1, drive.sectors(), true));
        assert_eq!(drive.unallocated_bytes(), 0);
    }
}

/// The sizes of requests are in bytes, and the blocks of the listing those of the drive.
#[test]
fn sizes_are_rounded_up_to_blocks() {
    let mut b = NamespaceBench::new(DriveConfig { lba_bytes: Some(512), ..block_config() });
    assert_eq!(request(&mut b, NamespaceRequest::Delete { nsid: None }), Ok(0));
    assert_eq!(create(&mut b, 1025), Ok(1));
    assert_eq!(b.attach(1, true), Status::SUCCESS);
    let [only] = b.drive.namespaces()[..] else { panic!("one namespace") };
    assert_eq!((only.blocks, only.block_bytes, only.used_blocks), (3, 512, 0));
    assert!(only.allocated_bytes >= 4096 && only.is_attached && only.nguid != [0; 16]);
    assert_eq!(b.io(1, Sqe::write(1, 0, 1, false), 1), Status::SUCCESS);
    assert_eq!(b.drive.namespaces()[0].used_blocks, 3, "the blocks of the sector");
    assert_eq!(b.namespace(1).nuse.get(), 3);
}
