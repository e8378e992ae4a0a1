//! Media events: detection by the drive, reports to hosts, and refused requests.

use controller::Controller;
use driver::{DriverError, MediaEvent};
use media::{InjectedFault, PhysSector, UnitInChunk};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{
    Address, AdminCommand, ChunkNotification, ChunkNotificationKind, ChunkNotificationScope, Cqe,
    PuId, Sqe, Status, VectorHints, VendorExtensions, log_page, opcode,
};
use time::Component;
use transport::{CqConsumer, Port, SqProducer};

use super::harness::{Harness, drive, planes};
use crate::common::open_channel_host::OpenChannelHost;

fn two_pus() -> controller::DriveConfig {
    let mut nand = planes(1);
    nand.geometry.pus = 2;
    drive(nand)
}

fn watching(config: controller::DriveConfig) -> Harness {
    let mut r = Harness::new(config);
    r.controller.subscribe_events().unwrap();
    r.controller.subscribe_events().unwrap();
    assert!(r.open.open_channel().extensions.has(VendorExtensions::NOTIFICATIONS));
    r
}

fn event(
    count: u64,
    pu: u32,
    chunk: u32,
    scope: ChunkNotificationScope,
    kind: ChunkNotificationKind,
) -> MediaEvent {
    let address = Address { group: 0, pu, chunk, sector: 0 };
    MediaEvent { count, address, scope, kind, sectors: 0 }
}

fn inject(d: &mut OpenChannelHost, fault: InjectedFault) {
    d.drive.nand_mut().unwrap().inject(fault).unwrap();
}

#[test]
fn chunks_that_go_offline_are_told_of_once() {
    use ChunkNotificationKind::{ErrorRateHigh, Unrecoverable};
    use ChunkNotificationScope::Chunk;
    let mut r = watching(two_pus());
    assert_eq!(r.events(), []);
    let layout = *r.open.drive.nand_mut().unwrap().layout();
    // An erase that fails.
    inject(&mut r.open, InjectedFault::Erase { chunk: layout.chunk(PuId(0), 7) });
    assert!(!r.open.reset(&[r.open.ppa(0, 0, 7, 0)]).status.is_success());
    assert_eq!(r.events(), [event(1, 0, 7, Chunk, Unrecoverable)]);
    // The chunk was already reported: a further access is an error of the host.
    assert!(!r.open.read(&[r.open.ppa(0, 0, 7, 0)]).status.is_success());
    assert_eq!(r.events(), []);
    // A program fails: the contents of the chunk should be relocated.
    inject(
        &mut r.open,
        InjectedFault::Program { chunk: layout.chunk(PuId(0), 8), unit: UnitInChunk(1) },
    );
    r.open.fill(0, 0, 8, 1);
    let second = r.open.ppa(0, 0, 8, 1);
    assert_eq!(r.open.write(&[second]).status, Status::CHUNK_CLOSED_EARLY);
    assert_eq!(r.events(), [event(2, 0, 8, Chunk, ErrorRateHigh)]);
    // A chunk becomes bad without an event: the next read, write or reset detects it.
    for (n, chunk) in [(3, 9), (4, 10), (5, 11)] {
        r.open.fill(0, 0, chunk, 1);
        inject(&mut r.open, InjectedFault::ChunkBad { chunk: layout.chunk(PuId(0), chunk) });
        let first = r.open.ppa(0, 0, chunk, 0);
        match n {
            3 => assert!(!r.open.read(&[first]).status.is_success()),
            // The drive refuses these before they reach the media, and has already reported the
            // chunk.
            _ => {
                assert!(!r.open.write(&[r.open.ppa(0, 0, chunk, 1)]).status.is_success());
                assert!(!r.open.reset(&[first]).status.is_success());
                assert_eq!(r.events(), []);
                assert!(!r.open.read(&[first]).status.is_success());
            }
        }
        assert_eq!(r.events(), [event(n, 0, chunk, Chunk, Unrecoverable)], "chunk {chunk}");
    }
    let stats = r.open.drive.stats().notifications;
    assert_eq!((stats.logged, stats.overwritten, stats.events_sent), (5, 0, 5));
    assert_eq!(r.controller.dropped_events(), (0, 0));
}

#[test]
fn a_die_that_fails_is_one_event() {
    let mut r = watching(two_pus());
    r.open.fill(0, 1, 3, 4);
    inject(&mut r.open, InjectedFault::DieFailure { pu: PuId(1) });
    for sector in 0..4 {
        assert!(!r.open.read(&[r.open.ppa(0, 1, 3, sector)]).status.is_success());
        assert!(!r.open.read(&[r.open.ppa(0, 1, 5 + sector, 0)]).status.is_success());
    }
    let die = event(1, 1, 0, ChunkNotificationScope::Pu, ChunkNotificationKind::Unrecoverable);
    assert_eq!(r.events(), [die]);
    r.open.fill(0, 0, 0, 1);
    assert_eq!(r.events(), [], "the other parallel unit has no event");
}

#[test]
fn data_that_should_be_moved_is_told_of_by_how_urgent_it_is() {
    let mut nand = planes(1);
    // On average 36 bit errors of 40 correctable ones: most sectors exceed three quarters, some
    // exceed all.
    nand.errors.rber = 36.0 / 32768.0;
    (nand.errors.ecc_bits, nand.errors.read_retries) = (40, 2);
    let mut r = watching(drive(nand));
    r.open.fill(0, 0, 0, 64);
    let needs = |r: &mut Harness, s: u32| {
        let nand = r.open.drive.nand_mut().unwrap();
        (nand.retries_needed(PhysSector(s)), nand.check_read(PhysSector(s)).unwrap().high_ecc)
    };
    let find = |r: &mut Harness, want| (0..64).find(|s| needs(r, *s) == want).unwrap();
    let (quiet, high, bad) =
        (find(&mut r, (0, false)), find(&mut r, (0, true)), find(&mut r, (1, true)));
    let read = |r: &mut Harness, s: u32| r.open.read(&[r.open.ppa(0, 0, 0, s)]);
    assert!(read(&mut r, quiet).status.is_success());
    assert_eq!(r.events(), []);
    let chunk = ChunkNotificationScope::Chunk;
    let at = |count, sector, scope, kind| MediaEvent {
        address: Address { sector, ..Address::default() },
        ..event(count, 0, 0, scope, kind)
    };
    assert!(read(&mut r, high).status.is_success());
    assert_eq!(r.events(), [at(1, high, chunk, ChunkNotificationKind::ErrorRateMedium)]);
    assert!(read(&mut r, high).status.is_success());
    assert_eq!(r.events(), [], "the severity was already reported");
    // A limited-retry read does not make the sector permanently unreadable.
    let ppa = r.open.ppa(0, 0, 0, bad);
    let limited = VectorHints { limited_retry: true, ..VectorHints::NONE };
    let sqe = r.open.with_data(Sqe::vector_read(1, r.open.list(&[ppa])), 1);
    assert_eq!(r.open.run(sqe.with_hints(limited)).0.status, Status::UNRECOVERED_READ);
    assert_eq!(r.events(), [at(2, bad, chunk, ChunkNotificationKind::ErrorRateHigh)]);
    assert!(read(&mut r, bad).status.is_success());
    assert_eq!(r.events(), [], "the severity was already reported");
    // An uncorrectable sector is reported as a sector.
    inject(&mut r.open, InjectedFault::Uncorrectable { phys: PhysSector(quiet) });
    assert!(!read(&mut r, quiet).status.is_success());
    let lost = at(3, quiet, ChunkNotificationScope::Sector, ChunkNotificationKind::Unrecoverable);
    assert_eq!(r.events(), [MediaEvent { sectors: 1, ..lost }]);
    // An erase clears the reported severity.
    assert!(r.open.reset(&[ppa]).status.is_success());
    r.open.fill(0, 0, 0, 64);
    for sector in 0..64 {
        read(&mut r, sector);
    }
    let again = r.events();
    assert!(!again.is_empty() && again.iter().all(|e| e.count > 3), "{again:?}");
}

#[test]
fn a_host_that_looks_away_is_told_how_much_it_missed() {
    let mut r = watching(two_pus());
    let break_one = |r: &mut Harness, chunk: u32| {
        let layout = *r.open.drive.nand_mut().unwrap().layout();
        let pu = chunk / 64;
        inject(&mut r.open, InjectedFault::Erase { chunk: layout.chunk(PuId(pu), chunk % 64) });
        r.open.reset(&[r.open.ppa(0, pu, chunk % 64, 0)]);
    };
    for chunk in 0..100 {
        break_one(&mut r, chunk);
    }
    let events = r.events();
    assert_eq!(events.len(), 64, "the host gets as many events as the log holds");
    assert!(events.iter().map(|e| e.count).eq(37..=100), "events must be in order, oldest first");
    assert_eq!(r.controller.dropped_events(), (36, 0));
    assert_eq!(r.open.drive.stats().notifications.overwritten, 36);
    break_one(&mut r, 100);
    assert!(r.events().iter().map(|e| e.count).eq([101]));
    assert_eq!(r.controller.dropped_events(), (36, 0));
}

#[test]
fn what_happened_before_a_host_watched_comes_first() {
    let mut r = Harness::new(two_pus());
    assert!(matches!(r.controller.poll_events(), Err(DriverError::NotSubscribed)));
    inject(&mut r.open, InjectedFault::NextErase);
    r.open.reset(&[r.open.ppa(0, 1, 2, 0)]);
    r.controller.subscribe_events().unwrap();
    let offline =
        event(1, 1, 2, ChunkNotificationScope::Chunk, ChunkNotificationKind::Unrecoverable);
    assert_eq!(r.events(), [offline]);
}

#[test]
fn drives_that_manage_their_flash_keep_it_to_themselves() {
    let mut drive = Controller::new(crate::common::drive(planes(1))).unwrap();
    let (mut controller, _port) = crate::common::attach(&mut drive);
    assert!(matches!(controller.subscribe_events(), Err(DriverError::Unsupported { .. })));
    let mut progress = || {
        drive.poll(time::Nanos::ZERO);
    };
    let log = controller.log_page(log_page::CHUNK_NOTIFICATION, 0, &mut [0; 64], &mut progress);
    assert_eq!(log.unwrap_err().status(), Some(Status::INVALID_LOG_PAGE));
}

/// A host without a driver, with its admin queue.
pub(crate) struct RawHost {
    pub(crate) port: std::sync::Arc<Port>,
    pub(crate) memory: std::sync::Arc<SharedRegion>,
    at: Iova,
    queues: (SqProducer, CqConsumer),
    cid: u16,
    /// Time at which the drive is polled.
    pub(crate) now: time::Nanos,
}

impl RawHost {
    pub(crate) fn new(drive: &mut Controller) -> RawHost {
        let port = drive.attach().unwrap();
        let memory = SharedRegion::anonymous(2 * PAGE_BYTES).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let ((sq, depth), (cq, _)) = (port.admin_submission(), port.admin_completion());
        let queues = (
            SqProducer::open(&port, 0, sq, depth).unwrap(),
            CqConsumer::open(&port, 0, cq, depth).unwrap(),
        );
        RawHost { port, memory, at, queues, cid: 0, now: time::Nanos::ZERO }
    }

    /// Sends a command. Log pages and data of features are in the host's memory.
    fn send(&mut self, drive: &mut Controller, mut sqe: Sqe) -> u16 {
        self.cid += 1;
        sqe.cid = self.cid.into();
        let has_data =
            [opcode::admin::GET_LOG_PAGE, opcode::admin::SET_FEATURES, opcode::admin::GET_FEATURES];
        if has_data.contains(&sqe.opcode) {
            sqe.set_prp(self.at.0, self.at.0 + PAGE_BYTES as u64);
        }
        self.queues.0.push(&sqe).unwrap();
        self.queues.0.ring();
        drive.poll(self.now);
        self.cid
    }

    fn reap(&mut self) -> Option<Cqe> {
        let cqe = self.queues.1.pop()?;
        self.queues.1.release();
        self.queues.0.update_head(cqe.sq_head);
        Some(cqe)
    }

    pub(crate) fn run(&mut self, drive: &mut Controller, command: AdminCommand) -> Cqe {
        let cid = self.send(drive, command.to_sqe());
        let cqe = self.reap().unwrap();
        assert_eq!(cqe.cid, cid);
        cqe
    }

    fn log(&mut self, drive: &mut Controller, (nsid, offset): (u32, u64), retain: bool) -> Cqe {
        let lid = log_page::CHUNK_NOTIFICATION;
        self.run(drive, AdminCommand::GetLogPage { lid, nsid, bytes: 128, offset, retain })
    }
}

#[test]
fn requests_are_limited_aborted_and_answered_one_event_at_a_time() {
    let mut drive = Controller::new(two_pus()).unwrap();
    let mut host = RawHost::new(&mut drive);
    let mut other = RawHost::new(&mut drive);
    let listen = AdminCommand::AsyncEventRequest.to_sqe();
    let requests: Vec<u16> = (0..4).map(|_| host.send(&mut drive, listen)).collect();
    assert_eq!(host.reap(), None);
    let fifth = host.run(&mut drive, AdminCommand::AsyncEventRequest);
    assert_eq!(fifth.status, Status::TOO_MANY_EVENT_REQUESTS);
    let others = other.send(&mut drive, listen);
    assert_eq!(other.reap(), None, "the event requests of hosts are independent");

    // Abort completes one request with a status of its own.
    let cid = host.send(&mut drive, AdminCommand::Abort { sqid: 0, cid: requests[1] }.to_sqe());
    let aborted = host.reap().unwrap();
    assert_eq!((aborted.cid, aborted.status), (requests[1], Status::ABORTED));
    let abort = host.reap().unwrap();
    assert_eq!((abort.cid, abort.status, abort.result), (cid, Status::SUCCESS, 0));
    for (sqid, cid) in [(0, requests[1]), (0, 999), (1, requests[0])] {
        let again = host.run(&mut drive, AdminCommand::Abort { sqid, cid });
        assert_eq!(
            (again.status, again.result),
            (Status::SUCCESS, 1),
            "there is no command to abort"
        );
    }

    // Two events: each host is notified once.
    let mut d = OpenChannelHost::from_drive(drive);
    for chunk in [3, 4] {
        inject(&mut d, InjectedFault::NextErase);
        d.reset(&[d.ppa(0, 0, chunk, 0)]);
    }
    let told = host.reap().unwrap();
    assert_eq!((told.cid, told.status, told.result), (requests[0], Status::SUCCESS, 0xd0_0007));
    assert_eq!(host.reap(), None);
    assert_eq!(other.reap().map(|c| c.cid), Some(others));

    // Reading the log clears the event, unless it is retained; a failed read does not.
    let drive = &mut d.drive;
    assert_eq!(host.log(drive, (1, 0), true).status, Status::SUCCESS);
    assert_eq!(host.log(drive, (7, 0), false).status, Status::INVALID_NAMESPACE);
    assert_eq!(host.log(drive, (1, 4100), false).status, Status::INVALID_FIELD);
    let mut odd = AdminCommand::GetLogPage {
        lid: log_page::CHUNK_NOTIFICATION,
        nsid: 1,
        bytes: 64,
        offset: 0,
        retain: false,
    }
    .to_sqe();
    odd.cdw12 = 2.into();
    host.send(drive, odd);
    assert_eq!(host.reap().unwrap().status, Status::INVALID_FIELD);
    let mut bytes = [0; 128];
    host.memory.read(0, &mut bytes);
    let (entries, _) = bytes.as_chunks::<{ ChunkNotification::BYTES }>();
    let [newest, older] = [0, 1].map(|i| ChunkNotification::from_bytes(entries[i]));
    assert_eq!((newest.count.get(), older.count.get()), (2, 1));
    assert_eq!((newest.mask, newest.state.get(), newest.nsid.get()), (2, 8, 1));

    inject(&mut d, InjectedFault::NextErase);
    d.reset(&[d.ppa(0, 0, 5, 0)]);
    assert_eq!(host.reap(), None, "the host is not notified again before it reads the log");
    assert_eq!(host.log(&mut d.drive, (u32::MAX, 0), false).status, Status::SUCCESS);
    inject(&mut d, InjectedFault::NextErase);
    d.reset(&[d.ppa(0, 0, 6, 0)]);
    assert_eq!(host.reap().map(|c| c.cid), Some(requests[2]));
    assert_eq!(d.drive.stats().notifications.events_sent, 3);
}
