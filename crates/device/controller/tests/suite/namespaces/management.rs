//! Creation, deletion, attachment and detachment: the statuses, and what other hosts see.

// guarantee: B-89, B-46

use controller::{
    AccessPolicy, AccessScope, AttachError, Controller, ControllerConfig, DriveConfig, DriveError,
    Fault, FaultError, FaultSector, NamespaceLayout, NamespaceLayoutError,
};
use driver::{ConnectOptions, ControllerHandle, DriverError, NamespaceAdmin};
use media::{DataStore, MediaConfig};
use nvme::{AdminCommand, ControllerList, NamespaceChange, NewNamespace, SecureErase, Sqe, Status};
use time::{Component, Nanos};

use super::harness::NamespaceBench;
use crate::hostile::host::{Host, block_config, configs};
use crate::interface::events::changed;

/// A drive whose only namespace was deleted.
fn empty(config: DriveConfig) -> NamespaceBench {
    let mut b = NamespaceBench::new(config);
    assert_eq!(b.delete(1), Status::SUCCESS);
    b
}

#[test]
fn namespaces_that_cannot_be_are_refused() {
    let mut b = empty(block_config());
    let capacity = b.drive.sectors();
    let field = Status::INVALID_FIELD.do_not_retry();
    let ten = NewNamespace::with_blocks(10);
    let mut reserved = ten;
    reserved.reserved31[7] = 1;
    for (new, status) in [
        (NewNamespace::with_blocks(0), field),
        (NewNamespace { ncap: 11.into(), ..ten }, field),
        (NewNamespace { nmic: 1, ..ten }, field),
        (NewNamespace { anagrpid: 1.into(), ..ten }, field),
        (NewNamespace { nvmsetid: 1.into(), ..ten }, field),
        (reserved, field),
        (NewNamespace { ncap: 9.into(), ..ten }, Status::THIN_PROVISIONING.do_not_retry()),
        (NewNamespace { flbas: 1, ..ten }, Status::INVALID_FORMAT.do_not_retry()),
        (NewNamespace { flbas: 1 << 4, ..ten }, Status::INVALID_FORMAT.do_not_retry()),
        (NewNamespace { dps: 1, ..ten }, Status::INVALID_FORMAT.do_not_retry()),
        (NewNamespace::with_blocks(capacity + 1), Status::NAMESPACE_CAPACITY),
        (NewNamespace::with_blocks(u64::MAX), Status::NAMESPACE_CAPACITY),
    ] {
        let sqe = b.create_entry(new);
        assert_eq!(b.admin(sqe), status, "{} blocks", new.nsze);
    }
    let sqe = b.create_entry(NewNamespace::with_blocks(capacity + 1));
    b.admin(sqe);
    let error = b.newest_error();
    assert!(error.status().is(Status::NAMESPACE_CAPACITY));
    assert_eq!(error.command_specific.get(), (capacity + 1) * 4096);
    // The entry: operation, command set, reserved bits, a namespace that has an identifier already.
    for (cdw10, cdw11, nsid) in [(2, 0, 0), (0, 1 << 24, 0), (1 << 4, 0, 0), (0, 0, 5)] {
        let mut sqe = b.create_entry(ten);
        (sqe.cdw10, sqe.cdw11, sqe.nsid) = (cdw10.into(), cdw11.into(), nsid.into());
        assert!(b.admin(sqe).is(Status::INVALID_FIELD), "{cdw10:#x} {cdw11:#x} {nsid}");
    }
    let mut sqe = b.create_entry(ten);
    sqe.set_sgl(nvme::SglDescriptor::BitBucket { length: 4096 });
    assert_eq!(b.admin(sqe), Status::SGL_LENGTH_INVALID);
    assert!(b.drive.namespaces().is_empty());
    // All identifiers.
    for nsid in 1..=32 {
        assert_eq!(b.create(1), Ok(nsid));
    }
    assert_eq!(b.create(1), Err(Status::NAMESPACE_ID_UNAVAILABLE));
    assert_eq!(b.delete(7), Status::SUCCESS);
    assert_eq!(b.create(1), Ok(7));
}

#[test]
fn deletes_and_attachments_that_cannot_be_are_refused() {
    let mut b = NamespaceBench::new(block_config());
    let (field, namespace) =
        (Status::INVALID_FIELD.do_not_retry(), Status::INVALID_NAMESPACE.do_not_retry());
    for (nsid, status) in [(2, field), (32, field), (0, namespace), (33, namespace)] {
        assert_eq!(b.delete(nsid), status, "{nsid}");
        assert_eq!(b.attach(nsid, true), status, "{nsid}");
        assert_eq!(b.attach(nsid, false), status, "{nsid}");
    }
    assert_eq!(b.attach(u32::MAX, true), namespace);
    assert_eq!(b.attach(1, true), Status::NAMESPACE_ATTACHED.do_not_retry());
    let mut odd = ControllerList::of(&[0]);
    odd.count = 2048.into();
    for list in [
        ControllerList::of(&[]),
        ControllerList::of(&[1]),
        ControllerList::of(&[0, 1]),
        ControllerList::of(&[0, 0]),
        odd,
    ] {
        let command = AdminCommand::NamespaceAttachment { nsid: 1, attach: false };
        let sqe = b.with_data(command, &list.to_bytes());
        assert_eq!(b.admin(sqe), Status::CONTROLLER_LIST_INVALID.do_not_retry());
    }
    for cdw10 in [2, 1 << 4] {
        let mut sqe = b.attach_entry(1, false);
        sqe.cdw10 = cdw10.into();
        assert!(b.admin(sqe).is(Status::INVALID_FIELD));
    }
    assert_eq!(b.attach(1, false), Status::SUCCESS);
    assert_eq!(b.attach(1, false), Status::NAMESPACE_NOT_ATTACHED.do_not_retry());
    // Commands for it are those for an inactive namespace.
    assert_eq!(b.read(1, 0, 1), Err(Status::INVALID_FIELD));
    let error = b.newest_error();
    assert_eq!((error.status(), error.nsid.get()), (Status::INVALID_FIELD, 1));
    let format = NamespaceBench::format_entry(1, SecureErase::None);
    assert_eq!(b.admin(format), Status::INVALID_FIELD);
    assert_eq!(b.read(33, 0, 1), Err(Status::INVALID_NAMESPACE));
    assert_eq!(b.attach(1, true), Status::SUCCESS);
    assert_eq!(b.read(1, 0, 1), Ok(vec![0]));
}

#[test]
fn capacity_is_exact_and_every_part_of_it_can_be_allocated() {
    for lba_bytes in [None, Some(512)] {
        let mut b = NamespaceBench::new(DriveConfig { lba_bytes, ..block_config() });
        let blocks = b.drive.sectors();
        let bytes = |blocks: u64| blocks * u64::from(lba_bytes.unwrap_or(4096));
        assert_eq!(b.unallocated(), 0);
        assert_eq!(b.create(1), Err(Status::NAMESPACE_CAPACITY));
        assert_eq!(b.delete(u32::MAX), Status::SUCCESS);
        assert_eq!(b.unallocated(), bytes(blocks));
        let small: Vec<u32> = (0..20).map(|_| b.add(40)).collect();
        assert_eq!(b.unallocated(), bytes(blocks - 800));
        for nsid in small.iter().step_by(2) {
            assert_eq!(b.delete(*nsid), Status::SUCCESS);
        }
        // The unallocated capacity has gaps. One namespace takes all of it.
        let rest = b.add(blocks - 400);
        assert_eq!((b.unallocated(), b.create(1)), (0, Err(Status::NAMESPACE_CAPACITY)));
        assert_eq!(b.write(rest, blocks - 401, &[7]), Status::SUCCESS);
        assert_eq!(b.read(rest, blocks - 401, 1), Ok(vec![7]));
        assert!(b.read(rest, blocks - 400, 1).unwrap_err().is(Status::LBA_OUT_OF_RANGE));
        assert!(b.read(rest, u64::MAX, 1).unwrap_err().is(Status::LBA_OUT_OF_RANGE));
        assert_eq!(b.drive.check_invariants(), Ok(()));
    }
}

#[test]
fn one_change_at_a_time() {
    let mut b = NamespaceBench::new(block_config());
    let values: Vec<u8> = (1..=50).collect();
    assert_eq!(b.delete(1), Status::SUCCESS);
    let (first, second) = (b.add(100), b.add(100));
    for nsid in [first, second] {
        assert_eq!(b.write(nsid, 0, &values), Status::SUCCESS);
    }
    // During the format of one namespace the other one serves.
    b.send(NamespaceBench::format_entry(first, SecureErase::UserData));
    assert_eq!(b.run(3), None);
    for (sqe, status) in [
        (NamespaceBench::format_entry(second, SecureErase::None), Status::FORMAT_IN_PROGRESS),
        (NamespaceBench::delete_entry(second), Status::FORMAT_IN_PROGRESS),
    ] {
        b.send(sqe);
        assert_eq!(b.run(1), Some(status));
    }
    let detach = b.attach_entry(first, false);
    b.send(detach);
    assert_eq!(b.run(1), Some(Status::FORMAT_IN_PROGRESS));
    let mut read = Sqe::read(first, 0, 1);
    read.set_sgl(b.host.block(0, 4096));
    b.host.submit(read);
    assert_eq!(b.host.reap_refused(&mut b.drive).status, Status::FORMAT_IN_PROGRESS);
    read.nsid = second.into();
    b.host.submit(read);
    assert_eq!(b.run(100_000), Some(Status::SUCCESS));
    assert_eq!(b.host.reap().unwrap().status, Status::SUCCESS);
    assert_eq!(b.read(first, 0, 50), Ok(vec![0; 50]));
    assert_eq!(b.read(second, 0, 50), Ok(values));
    // A deletion waits for the commands in flight; new ones, and other changes, are refused.
    b.host.submit(read);
    while b.drive.poll(b.host.now) {}
    b.send(NamespaceBench::delete_entry(second));
    let create = b.create_entry(NewNamespace::with_blocks(1));
    b.send(create);
    assert_eq!(b.run(1), Some(Status::NOT_READY));
    b.host.submit(read);
    assert_eq!(b.run(100_000), Some(Status::SUCCESS));
    let ended: Vec<_> = std::iter::from_fn(|| b.host.reap()).map(|cqe| cqe.status).collect();
    assert_eq!(ended.len(), 2);
    assert!(
        ended.contains(&Status::SUCCESS) && ended.contains(&Status::INVALID_FIELD),
        "{ended:?}"
    );
}

#[test]
fn drives_without_management_refuse_it() {
    for config in configs() {
        let is_block = config.personality == controller::PersonalityKind::Block
            && matches!(config.media, MediaConfig::Nand(_));
        let mut b = NamespaceBench::new(config.clone());
        let attach = b.attach_entry(1, true);
        let status = b.admin(attach);
        assert_eq!(status.is(Status::INVALID_OPCODE), !is_block, "{status}");
        assert_eq!(b.drive.namespaces().len(), 1);
        let layout = NamespaceLayout::of_sizes(&[Some(1 << 16), None]).unwrap();
        let controller = ControllerConfig { namespaces: layout, ..config.controller };
        let opened = Controller::new(DriveConfig { controller, ..config });
        assert_eq!(matches!(opened, Err(DriveError::Config { .. })), !is_block);
    }
    // A host with a part of the drive.
    let mut b = NamespaceBench::new(block_config());
    let port = transport::Port::new().unwrap();
    let part = AccessPolicy::for_scope(AccessScope::Sectors { first: 0, count: 10 });
    b.drive.attach_as(&port, part).unwrap();
    let change = NamespaceChange::Delete;
    let delete = AdminCommand::NamespaceManagement { change, nsid: 1 };
    let attach = AdminCommand::NamespaceAttachment { nsid: 1, attach: false };
    let mut host = Host::on_port(port);
    for command in [delete, attach] {
        let status = host.admin(&mut b.drive, command.to_sqe()).status;
        assert_eq!(status, Status::INVALID_OPCODE);
    }
}

/// A host with a part of a namespace reaches nothing else, also if the namespace is gone, or is
/// another one under its identifier.
#[test]
fn restricted_hosts_have_a_part_of_one_namespace() {
    let mut b = empty(block_config());
    let (first, second) = (b.add(100), b.add(100));
    assert_eq!(b.write(first, 0, &[1; 40]), Status::SUCCESS);
    assert_eq!(b.write(second, 0, &[2; 40]), Status::SUCCESS);
    let scope = AccessScope::Sectors { first: 20, count: 30 };
    let part = AccessPolicy { namespace: second, ..AccessPolicy::for_scope(scope) };
    let port = transport::Port::new().unwrap();
    let other = AccessPolicy { namespace: 3, ..part };
    let refused = b.drive.attach_as(&port, other);
    assert!(matches!(refused, Err(AttachError::Namespace { nsid: 3 })), "{refused:?}");
    let large = AccessPolicy { scope: AccessScope::Sectors { first: 20, count: 81 }, ..part };
    assert!(matches!(b.drive.attach_as(&port, large), Err(AttachError::Scope { .. })));
    b.drive.attach_as(&port, part).unwrap();
    let mut host = Host::on_port(port);
    host.io = Some(host.create(&mut b.drive, 1, 64, nvme::QueuePriority::Medium));
    std::mem::swap(&mut host, &mut b.host);
    assert_eq!(b.read(second, 0, 30), Ok([vec![2; 20], vec![0; 10]].concat()));
    assert!(b.read(second, 0, 31).unwrap_err().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(b.read(first, 0, 1), Err(Status::INVALID_NAMESPACE));
    assert_eq!(b.write(second, 29, &[9]), Status::SUCCESS);
    let status = AdminCommand::GetLbaStatus { nsid: second, slba: 0, nlb: 0, bytes: 4096 };
    let page = b.query(status.to_sqe()).unwrap();
    let extents = u32::from_le_bytes(page[..4].try_into().unwrap());
    let lba = |entry: usize| u64::from_le_bytes(page[8 + 16 * entry..][..8].try_into().unwrap());
    assert_eq!((extents, lba(0), lba(1), lba(2)), (3, 0, 20, 29));
    std::mem::swap(&mut host, &mut b.host);
    assert_eq!(b.read(second, 49, 1), Ok(vec![9]));
    // It is created again, smaller than the host's part.
    assert_eq!(b.delete(second), Status::SUCCESS);
    assert_eq!(b.delete(first), Status::SUCCESS);
    std::mem::swap(&mut host, &mut b.host);
    assert_eq!(b.read(second, 0, 1), Err(Status::INVALID_NAMESPACE));
    std::mem::swap(&mut host, &mut b.host);
    let all = b.add(b.drive.sectors() - 22);
    assert_eq!(b.add(22), second);
    assert_eq!(b.write(all, 0, &[3; 50]), Status::SUCCESS);
    std::mem::swap(&mut host, &mut b.host);
    assert_eq!(b.read(second, 0, 2), Ok(vec![0; 2]));
    for (lba, blocks) in [(2, 1), (0, 3), (29, 1)] {
        assert!(b.read(second, lba, blocks).unwrap_err().is(Status::LBA_OUT_OF_RANGE));
        assert!(b.write(second, lba, &vec![7; blocks as usize]).is(Status::LBA_OUT_OF_RANGE));
    }
    // Only the original namespace is left: the host does not get it.
    std::mem::swap(&mut host, &mut b.host);
    assert_eq!(b.delete(u32::MAX), Status::SUCCESS);
    b.add(b.drive.sectors());
    std::mem::swap(&mut host, &mut b.host);
    for nsid in [1, second] {
        assert_eq!(b.read(nsid, 0, 1), Err(Status::INVALID_NAMESPACE), "{nsid}");
    }
}

#[test]
fn faults_name_blocks_of_a_namespace() {
    let mut b = empty(block_config());
    let gap = b.add(100);
    let first = b.add(100);
    assert_eq!((gap, first), (1, 2));
    assert_eq!(b.write(first, 3, &[1]), Status::SUCCESS);
    b.flush();
    let in_namespace =
        |namespace, lba| Fault::Uncorrectable { sector: FaultSector::Lba { namespace, lba } };
    let fault = |lba| Fault::Uncorrectable { sector: FaultSector::lba(lba) };
    assert_eq!(fault(3), in_namespace(1, 3));
    let now = b.host.now;
    assert!(matches!(b.drive.inject_fault(now, fault(3)), Err(FaultError::NotOnMedia { .. })));
    for nsid in [0, 3, 33] {
        let missing = Err(FaultError::NoNamespace { nsid });
        assert_eq!(b.drive.inject_fault(now, in_namespace(nsid, 3)), missing);
    }
    let missing = Err(FaultError::OutOfRange { key: "lba", value: 100, limit: 100 });
    assert_eq!(b.drive.inject_fault(now, fault(100)), missing);
    assert_eq!(b.write(gap, 3, &[1]), Status::SUCCESS);
    b.flush();
    b.drive.inject_fault(b.host.now, fault(3)).unwrap();
    assert!(b.read(gap, 3, 1).unwrap_err().is(Status::UNRECOVERED_READ));
    assert_eq!(b.read(first, 3, 1), Ok(vec![1]));
    assert_eq!(b.delete(gap), Status::SUCCESS);
    let missing = Err(FaultError::NoNamespace { nsid: 1 });
    assert_eq!(b.drive.inject_fault(b.host.now, fault(0)), missing);
    // A namespace that is not attached has its data.
    assert_eq!(b.attach(first, false), Status::SUCCESS);
    b.drive.inject_fault(b.host.now, in_namespace(first, 3)).unwrap();
    assert_eq!(b.attach(first, true), Status::SUCCESS);
    assert!(b.read(first, 3, 1).unwrap_err().is(Status::UNRECOVERED_READ));
}

#[test]
fn a_layout_is_that_of_a_new_drive() {
    use NamespaceLayoutError::{Count, Empty, TwoRests};
    assert_eq!(NamespaceLayout::of_sizes(&[Some(1); 33]), Err(Count { count: 33 }));
    assert_eq!(NamespaceLayout::of_sizes(&[None, Some(0)]), Err(Empty { nsid: 2 }));
    assert_eq!(NamespaceLayout::of_sizes(&[None, None]), Err(TwoRests { nsid: 2 }));
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("drive.img");
    let with = |sizes: &[Option<u64>]| {
        let namespaces = NamespaceLayout::of_sizes(sizes).unwrap();
        let mut config = block_config();
        config.controller = ControllerConfig { namespaces, ..config.controller };
        if let MediaConfig::Nand(nand) = &mut config.media {
            nand.data = DataStore::File(image.clone());
        }
        config
    };
    let too_large = Controller::new(with(&[Some(1 << 40), None])).unwrap_err().to_string();
    assert!(too_large.contains("the drive has a capacity of"), "{too_large}");
    let mut b = NamespaceBench::new(with(&[Some(40 << 12), None]));
    let sizes = |b: &NamespaceBench| -> Vec<(u32, u64)> {
        b.drive.namespaces().iter().map(|n| (n.nsid, n.blocks)).collect()
    };
    let found = sizes(&b);
    assert_eq!(found, [(1, 40), (2, b.drive.sectors() - 40)]);
    assert_eq!(b.write(2, 0, &[5]), Status::SUCCESS);
    assert_eq!(b.delete(1), Status::SUCCESS);
    b.drive.shut_down().unwrap();
    // The table of the image is the one that counts.
    for asked in [&[][..], &[None, Some(1 << 12)]] {
        let mut b = NamespaceBench::new(with(asked));
        assert_eq!(sizes(&b), found[1..]);
        assert_eq!(b.read(2, 0, 1), Ok(vec![5]));
        b.drive.shut_down().unwrap();
    }
    // Another capacity, or block size, is refused.
    let mut other = with(&[]);
    other.ftl.over_provisioning = 0.5;
    let error = Controller::new(other).unwrap_err().to_string();
    assert!(error.contains("over_provisioning"), "{error}");
    let error = Controller::new(DriveConfig { lba_bytes: Some(512), ..with(&[]) });
    assert!(error.unwrap_err().to_string().contains("lba_bytes"));
    // A drive with one namespace does not get several by opening it.
    std::fs::remove_file(folder.path().join("drive.img.nvm")).unwrap();
    let error = Controller::new(with(&[None, Some(1 << 12)])).unwrap_err().to_string();
    assert!(error.contains("is not new"), "{error}");
}

/// The administrator's side of the driver, and hosts that connect to namespaces by their identifiers.
#[test]
fn a_driver_changes_namespaces_and_connects_to_them() {
    let mut drive = Controller::new(block_config()).unwrap();
    let capacity = drive.sectors();
    let (mut controller, _) = crate::common::attach(&mut drive);
    let mut poll = || {
        drive.poll(Nanos::ZERO);
    };
    drive_namespaces(&mut controller, capacity, &mut poll);
    let status = |error: DriverError| match error {
        DriverError::Command { status, .. } => status,
        other => panic!("{other}"),
    };
    let mut namespaces = NamespaceAdmin::of(&mut controller);
    let refused = namespaces.create(capacity, &mut poll).unwrap_err();
    assert_eq!(status(refused), Status::NAMESPACE_CAPACITY);
    let refused = namespaces.set_attached(2, true, &mut poll).unwrap_err();
    assert!(status(refused).is(Status::NAMESPACE_ATTACHED));
    let refused = namespaces.delete(9, &mut poll).unwrap_err();
    assert!(status(refused).is(Status::INVALID_FIELD));
    let connect = |drive: &mut Controller, nsid| {
        let port = drive.attach().unwrap();
        let options = ConnectOptions { nsid, ..ConnectOptions::default() };
        let mut poll = || {
            drive.poll(Nanos::ZERO);
        };
        ControllerHandle::connect_with(port, options, &mut poll, 1_000)
    };
    for (nsid, blocks) in [(None, 30), (Some(1), 30), (Some(2), capacity - 30)] {
        let info = connect(&mut drive, nsid).unwrap().info().clone();
        assert_eq!((info.nsid, info.sectors), (nsid.unwrap_or(1), blocks));
    }
    let missing = connect(&mut drive, Some(3)).unwrap_err();
    assert!(matches!(missing, DriverError::NoSuchNamespace { nsid: 3 }), "{missing}");
}

/// Leaves a drive with two namespaces: of 30 blocks, and of the rest.
fn drive_namespaces(controller: &mut ControllerHandle, capacity: u64, poll: &mut dyn FnMut()) {
    let mut namespaces = NamespaceAdmin::of(controller);
    let listed = |namespaces: &mut NamespaceAdmin<'_>, poll: &mut dyn FnMut()| -> Vec<_> {
        let list = namespaces.list(poll).unwrap();
        list.iter().map(|n| (n.nsid, n.blocks, n.is_attached)).collect()
    };
    assert_eq!(listed(&mut namespaces, poll), [(1, capacity, true)]);
    namespaces.set_attached(1, false, poll).unwrap();
    assert_eq!(listed(&mut namespaces, poll), [(1, capacity, false)]);
    namespaces.delete(1, poll).unwrap();
    assert_eq!(namespaces.unallocated_bytes(poll).unwrap(), u128::from(capacity) * 4096);
    for (nsid, blocks) in [(1, 30), (2, capacity - 30)] {
        assert_eq!(namespaces.create(blocks, poll).unwrap(), nsid);
        namespaces.set_attached(nsid, true, poll).unwrap();
    }
    assert_eq!(listed(&mut namespaces, poll), [(1, 30, true), (2, capacity - 30, true)]);
    assert_eq!(namespaces.unallocated_bytes(poll).unwrap(), 0);
}

/// Attachments, detachments and deletions of attached namespaces are changes that hosts are told of.
#[test]
fn changes_of_namespaces_enter_their_list() {
    let mut b = empty(block_config());
    let changes = |b: &mut NamespaceBench| changed(&mut b.host, &mut b.drive, false);
    assert_eq!(changes(&mut b), [1], "the deletion of the first");
    let (first, second) = (b.create(8).unwrap(), b.create(8).unwrap());
    assert!(changes(&mut b).is_empty(), "no host has them yet");
    for attach in [true, false, true] {
        assert_eq!(b.attach(first, attach), Status::SUCCESS);
        assert_eq!(changes(&mut b), [first]);
    }
    assert!(!b.attach(first, true).is_success());
    assert_eq!(b.admin(NamespaceBench::format_entry(first, SecureErase::None)), Status::SUCCESS);
    assert!(changes(&mut b).is_empty(), "what fails, and a format, change nothing");
    let third = b.add(8);
    assert_eq!(changes(&mut b), [third]);
    assert_eq!(b.delete(u32::MAX), Status::SUCCESS);
    assert_eq!(changes(&mut b), [first, third], "not {second}, which was not attached");
}
