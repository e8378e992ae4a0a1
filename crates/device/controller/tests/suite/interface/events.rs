//! Asynchronous events of namespaces and of a controller that fails, and the events that a host can
//! enable.

// guarantee: B-87

use controller::{AccessPolicy, AccessScope, Controller};
use mem::PAGE_BYTES;
use nvme::{AdminCommand, FeatureSelect, IdentifyController, Sqe, Status, feature, log_page};
use transport::Port;

use crate::hostile::host::{Host, block_config, configs};

/// CID of event requests.
const REQUEST: u16 = 1_000;

/// Sends an event request.
pub(crate) fn request_event(host: &mut Host, drive: &mut Controller) {
    let mut sqe = AdminCommand::AsyncEventRequest.to_sqe();
    sqe.cid = REQUEST.into();
    host.admin.0.push(&sqe).unwrap();
    host.admin.0.ring();
    host.drain(drive);
}

/// Returns the event that has completed a request.
pub(crate) fn event(host: &mut Host) -> Option<u64> {
    let cqe = host.admin.1.pop()?;
    host.admin.1.release();
    host.admin.0.update_head(cqe.sq_head);
    assert_eq!((cqe.cid, cqe.status), (REQUEST, Status::SUCCESS));
    Some(cqe.result)
}

/// Returns a log page, or the status.
pub(crate) fn log_page_of(
    host: &mut Host,
    drive: &mut Controller,
    (lid, nsid): (u8, u32),
    (offset, bytes): (u64, u64),
    retain: bool,
) -> Result<Vec<u8>, Status> {
    let mut sqe = AdminCommand::GetLogPage { lid, nsid, bytes, offset, retain }.to_sqe();
    sqe.set_prp(host.at.0, host.at.offset(PAGE_BYTES as u64).0);
    match host.admin(drive, sqe).status {
        Status::SUCCESS => {
            let mut data = vec![0; bytes as usize];
            host.memory.read(0, &mut data);
            Ok(data)
        }
        status => Err(status),
    }
}

fn set(fid: u8, value: u32) -> Sqe {
    AdminCommand::SetFeatures { fid, save: false, value }.to_sqe()
}

/// Returns the changed namespace list, up to the first zero.
pub(crate) fn changed(host: &mut Host, drive: &mut Controller, retain: bool) -> Vec<u32> {
    let page = (log_page::CHANGED_NAMESPACES, u32::MAX);
    let page = log_page_of(host, drive, page, (0, 4096), retain).unwrap();
    let (entries, _) = page.as_chunks::<4>();
    entries.iter().map(|entry| u32::from_le_bytes(*entry)).take_while(|nsid| *nsid != 0).collect()
}

#[test]
fn a_changed_namespace_is_an_event_if_the_host_has_enabled_it() {
    for config in configs() {
        let mut drive = Controller::new(config).unwrap();
        let mut host = Host::new(&mut drive);
        request_event(&mut host, &mut drive);
        drive.namespace_changed(1);
        host.drain(&mut drive);
        assert_eq!(event(&mut host), None, "not enabled");
        assert_eq!(changed(&mut host, &mut drive, true), [1], "and yet in the list");
        let enable = IdentifyController::OAES_NAMESPACE_ATTRIBUTES;
        assert!(host.admin(&mut drive, set(feature::ASYNC_EVENT, enable)).status.is_success());
        drive.namespace_changed(5);
        host.drain(&mut drive);
        assert_eq!(event(&mut host), Some(0x04_0002), "type 2, information 0, log page 04h");
        request_event(&mut host, &mut drive);
        drive.namespace_changed(2);
        host.drain(&mut drive);
        assert_eq!(event(&mut host), None, "masked until the list is read");
        for (retain, listed) in [(true, vec![1, 2, 5]), (false, vec![1, 2, 5]), (false, vec![])] {
            assert_eq!(changed(&mut host, &mut drive, retain), listed);
        }
        assert_eq!(event(&mut host), None, "the host knows of all of them");
        drive.namespace_changed(3);
        host.drain(&mut drive);
        assert_eq!(event(&mut host), Some(0x04_0002));
    }
}

#[test]
fn a_list_that_cannot_be_returned_is_kept() {
    let mut drive = Controller::new(block_config()).unwrap();
    let mut host = Host::new(&mut drive);
    drive.namespace_changed(1);
    let page = (log_page::CHANGED_NAMESPACES, 0);
    let (lid, nsid) = page;
    let log = AdminCommand::GetLogPage { lid, nsid, bytes: 4096, offset: 0, retain: false };
    let status = host.admin(&mut drive, log.to_sqe()).status;
    assert!(!status.is_success(), "without memory: {status}");
    let past = log_page_of(&mut host, &mut drive, page, (4100, 4), false);
    assert_eq!(past, Err(Status::INVALID_FIELD));
    for nsid in [1, 2] {
        let page = (log_page::CHANGED_NAMESPACES, nsid);
        let of_namespace = log_page_of(&mut host, &mut drive, page, (0, 4), false);
        assert_eq!(of_namespace, Err(Status::INVALID_FIELD), "the list is the controller's");
    }
    assert_eq!(changed(&mut host, &mut drive, false), [1]);
}

#[test]
fn a_host_enables_the_events_that_oaes_has() {
    let mut drive = Controller::new(block_config()).unwrap();
    let mut host = Host::new(&mut drive);
    for bit in 0..32 {
        let value = 1 << bit;
        let status = host.admin(&mut drive, set(feature::ASYNC_EVENT, value)).status;
        let is_supported = bit < 5 || bit == 8;
        let expected = if is_supported { Status::SUCCESS } else { Status::INVALID_FIELD };
        assert_eq!(status, expected, "bit {bit}");
        let get = AdminCommand::GetFeatures {
            fid: feature::ASYNC_EVENT,
            select: FeatureSelect::Current,
            member: 0,
        };
        let now = host.admin(&mut drive, get.to_sqe()).result;
        assert_eq!(now == u64::from(value), is_supported, "bit {bit}");
    }
    // A restricted host gets no events.
    let port = Port::new().unwrap();
    let scope = AccessScope::Sectors { first: 0, count: 8 };
    drive.attach_as(&port, AccessPolicy::for_scope(scope)).unwrap();
    let mut other = Host::on_port(port);
    other.now = host.now;
    request_event(&mut other, &mut drive);
    drive.namespace_changed(1);
    other.drain(&mut drive);
    assert_eq!(event(&mut other), None);
    let page = (log_page::CHANGED_NAMESPACES, 0);
    let list = log_page_of(&mut other, &mut drive, page, (0, 4), false);
    assert_eq!(list, Err(Status::INVALID_LOG_PAGE));
    let mut identify = AdminCommand::Identify { cns: 1, nsid: 0 }.to_sqe();
    identify.set_prp(other.at.0, 0);
    assert!(other.admin(&mut drive, identify).status.is_success());
    let mut oaes = [0; 4];
    other.memory.read(92, &mut oaes);
    assert_eq!(oaes, [0; 4]);
}
