//! A host that writes registers in the wrong order, with impossible values, and at the wrong time,
//! and doorbells of queues that were never made.

// guarantee: B-87, B-92

use std::sync::Arc;
use std::sync::atomic::Ordering;

use controller::{
    AccessPolicy, AccessScope, AttachError, Controller, ControllerConfig, DriveConfig, Fault,
    RegisterConfig, RegisterStats,
};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, VS, admin_queue_sizes};
use nvme::{AdminCommand, Cqe, QueuePriority, Sqe, Status};
use rng::Rng;
use time::{Component, Nanos};
use transport::{CqConsumer, DOORBELL_STRIDE, DoorbellLayout, Port, SqProducer};

use crate::hostile::host::{block_config, configs};

/// CC of an enabled controller with entries of 64 and 16 bytes.
const ENABLE: u32 = 0x0046_0001;
const ENTRIES: u16 = 16;
/// CSTS.
const READY: u32 = 1;
const FATAL: u32 = 2;
const SHUTDOWN_COMPLETE: u32 = 8;
/// Polls after which the doorbells of all queues have been checked.
const DOORBELL_POLLS: usize = 130;

fn with_registers(config: DriveConfig, registers: RegisterConfig) -> DriveConfig {
    DriveConfig {
        controller: ControllerConfig { registers: Some(registers), ..config.controller },
        ..config
    }
}

/// A host that writes registers, without a driver.
struct Host {
    port: Arc<Port>,
    memory: Arc<SharedRegion>,
    at: Iova,
    now: Nanos,
    cid: u16,
}

impl Host {
    fn new(drive: &mut Controller) -> Host {
        let port = drive.attach().unwrap();
        Host::on(port)
    }

    fn on(port: Arc<Port>) -> Host {
        assert!(port.has_registers() && port.has_drive() && !port.is_real_controller());
        let memory = SharedRegion::anonymous(16 * PAGE_BYTES).unwrap();
        let at = port.memory().register(&memory).unwrap();
        Host { port, memory, at, now: Nanos::ZERO, cid: 0 }
    }

    fn page(&self, page: u64) -> Iova {
        self.at.offset(page * PAGE_BYTES as u64)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.port.set_register(offset, value as u32);
        self.port.set_register(offset + 4, (value >> 32) as u32);
    }

    /// Writes AQA, ASQ and ACQ.
    fn set_admin_queues(&self) {
        self.port.set_register(AQA, admin_queue_sizes(ENTRIES));
        self.write64(ASQ, self.page(0).0);
        self.write64(ACQ, self.page(1).0);
    }

    fn poll(&mut self, drive: &mut Controller, times: usize) -> u32 {
        for _ in 0..times {
            self.now += Nanos(100);
            drive.poll(self.now);
        }
        drive.check_command_invariants().unwrap();
        self.port.register(CSTS)
    }

    /// Writes CC, and returns CSTS after some polls.
    fn set_cc(&mut self, drive: &mut Controller, value: u32) -> u32 {
        self.port.set_register(CC, value);
        self.poll(drive, 4)
    }

    /// Enables the controller, and returns its admin queues.
    fn enable(&mut self, drive: &mut Controller) -> (SqProducer, CqConsumer) {
        self.memory.fill(0, 2 * PAGE_BYTES, 0);
        self.set_admin_queues();
        assert_eq!(self.set_cc(drive, ENABLE), READY);
        self.admin_rings()
    }

    fn admin_rings(&self) -> (SqProducer, CqConsumer) {
        (
            SqProducer::open(&self.port, 0, self.page(0), ENTRIES).unwrap(),
            CqConsumer::open(&self.port, 0, self.page(1), ENTRIES).unwrap(),
        )
    }

    fn submit(&mut self, rings: &mut (SqProducer, CqConsumer), mut sqe: Sqe) {
        self.cid += 1;
        sqe.cid = self.cid.into();
        rings.0.push(&sqe).unwrap();
        rings.0.ring();
    }

    fn reap(&mut self, rings: &mut (SqProducer, CqConsumer)) -> Option<Cqe> {
        let cqe = rings.1.pop()?;
        rings.1.release();
        rings.0.update_head(cqe.sq_head);
        Some(cqe)
    }

    fn run(
        &mut self,
        drive: &mut Controller,
        rings: &mut (SqProducer, CqConsumer),
        sqe: Sqe,
    ) -> Cqe {
        self.submit(rings, sqe);
        for _ in 0..100_000 {
            self.now += Nanos::from_micros(1);
            drive.poll(self.now);
            if let Some(cqe) = self.reap(rings) {
                assert_eq!(cqe.cid, self.cid);
                return cqe;
            }
        }
        panic!("the command does not complete");
    }

    /// Identifies the controller, which shows that the admin queue works.
    fn identify(&mut self, drive: &mut Controller, rings: &mut (SqProducer, CqConsumer)) -> Status {
        let mut sqe = AdminCommand::Identify { cns: 1, nsid: 0 }.to_sqe();
        sqe.set_prp(self.page(2).0, 0);
        self.run(drive, rings, sqe).status
    }

    /// Creates I/O queue 1, in pages 4 and 5.
    fn create_io(
        &mut self,
        drive: &mut Controller,
        admin: &mut (SqProducer, CqConsumer),
    ) -> (SqProducer, CqConsumer) {
        let (sq, cq, entries) = (self.page(4), self.page(5), u32::from(ENTRIES));
        self.memory.fill(4 * PAGE_BYTES, 2 * PAGE_BYTES, 0);
        let create = AdminCommand::CreateCq { qid: 1, entries, at: cq.0, vector: None };
        assert_eq!(self.run(drive, admin, create.to_sqe()).status, Status::SUCCESS);
        let priority = QueuePriority::Medium;
        let create = AdminCommand::CreateSq { qid: 1, entries, at: sq.0, cqid: 1, priority };
        assert_eq!(self.run(drive, admin, create.to_sqe()).status, Status::SUCCESS);
        (
            SqProducer::open(&self.port, 1, sq, ENTRIES).unwrap(),
            CqConsumer::open(&self.port, 1, cq, ENTRIES).unwrap(),
        )
    }

    fn doorbell(&self, qid: usize, is_tail: bool, value: u32) {
        let offset = DoorbellLayout::BASE + (2 * qid + usize::from(!is_tail)) * DOORBELL_STRIDE;
        self.port.doorbells().atomic_u32(offset).store(value, Ordering::Release);
    }
}

fn stats(drive: &Controller) -> RegisterStats {
    drive.stats().registers.unwrap()
}

#[test]
fn every_kind_of_drive_has_registers() {
    for config in configs() {
        let mut drive = Controller::new(with_registers(config, RegisterConfig::default())).unwrap();
        let mut host = Host::new(&mut drive);
        assert_eq!((host.port.register(CSTS), host.port.register(VS)), (0, 0x0001_0400));
        let mut admin = host.enable(&mut drive);
        assert_eq!(host.identify(&mut drive, &mut admin), Status::SUCCESS);
        // A normal shutdown, a reset, and the next start.
        host.port.set_register(CC, ENABLE | 1 << 14);
        let limit = host.now + Nanos::from_millis(1_000);
        while host.poll(&mut drive, 1) != READY | SHUTDOWN_COMPLETE {
            host.now += Nanos::from_micros(10);
            assert!(host.now < limit, "the shutdown does not complete");
        }
        assert_eq!(host.set_cc(&mut drive, 0), 0);
        let mut admin = host.enable(&mut drive);
        assert_eq!(host.identify(&mut drive, &mut admin), Status::SUCCESS);
        // An abrupt one takes no time.
        assert_eq!(host.set_cc(&mut drive, ENABLE | 2 << 14), READY | SHUTDOWN_COMPLETE);
        let expected = RegisterStats { starts: 2, resets: 1, shutdowns: 2, ..Default::default() };
        assert_eq!(stats(&drive), expected);
    }
}

#[test]
fn impossible_values_fail_the_controller_until_it_is_reset() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut host = Host::new(&mut drive);
    let unregistered = 1 << 62;
    let unaligned = host.page(0).0 + 64;
    let cases: &[(&str, usize, u64, u32)] = &[
        ("no sizes", AQA, 0, ENABLE),
        ("one entry of submissions", AQA, 15 << 16, ENABLE),
        ("one entry of completions", AQA, 15, ENABLE),
        ("no submission queue", ASQ, 0, ENABLE),
        ("no completion queue", ACQ, 0, ENABLE),
        ("an unaligned submission queue", ASQ, unaligned, ENABLE),
        ("an unaligned completion queue", ACQ, unaligned, ENABLE),
        ("unregistered submissions", ASQ, unregistered, ENABLE),
        ("unregistered completions", ACQ, unregistered, ENABLE),
        ("a command set", AQA, 0x000f_000f, ENABLE | 1 << 4),
        ("large pages", AQA, 0x000f_000f, ENABLE | 1 << 7),
        ("arbitration that the drive does not have", AQA, 0x000f_000f, ENABLE | 1 << 11),
        ("vendor arbitration", AQA, 0x000f_000f, ENABLE | 7 << 11),
        ("no submission entries", AQA, 0x000f_000f, 0x0040_0001),
        ("large completion entries", AQA, 0x000f_000f, 0x0056_0001),
    ];
    for (number, (what, offset, value, cc)) in cases.iter().enumerate() {
        host.set_admin_queues();
        match *offset {
            AQA => host.port.set_register(AQA, *value as u32),
            offset => host.write64(offset, *value),
        }
        assert_eq!(host.set_cc(&mut drive, *cc), FATAL, "{what}");
        // Correct values do not help without a reset.
        host.set_admin_queues();
        assert_eq!(host.set_cc(&mut drive, ENABLE), FATAL, "{what}");
        assert_eq!(stats(&drive).failures, number as u64 + 1);
        assert_eq!(host.set_cc(&mut drive, 0), 0, "{what}");
    }
    let mut admin = host.enable(&mut drive);
    assert_eq!(host.identify(&mut drive, &mut admin), Status::SUCCESS);
}

#[test]
fn registers_in_the_wrong_order_have_no_effect() {
    let registers =
        RegisterConfig { ready_time: Nanos::from_millis(20), timeout: Nanos::from_millis(500) };
    let mut drive = Controller::new(with_registers(block_config(), registers)).unwrap();
    let mut host = Host::new(&mut drive);
    host.set_admin_queues();
    // A shutdown of a controller that is not enabled; a doorbell before it is.
    assert_eq!(host.set_cc(&mut drive, 1 << 14), 0);
    host.doorbell(0, true, 3);
    assert_eq!(host.poll(&mut drive, DOORBELL_POLLS), 0);
    assert_eq!(stats(&drive).unknown_doorbells, 1);
    // Enabled, disabled before it is ready, and enabled again: the time starts again.
    assert_eq!(host.set_cc(&mut drive, ENABLE), 0);
    host.now += Nanos::from_millis(15);
    assert_eq!(host.set_cc(&mut drive, 0), 0);
    assert_eq!(host.set_cc(&mut drive, ENABLE), 0);
    host.now += Nanos::from_millis(15);
    assert_eq!(host.poll(&mut drive, 1), 0);
    // Its deadline is the time at which it becomes ready.
    let left = drive.deadline().since(host.now);
    assert!(left > Nanos::ZERO && left <= Nanos::from_millis(5), "{left}");
    // The addresses were read when the controller was enabled; later ones belong to the next start.
    host.write64(ASQ, 0);
    host.write64(ACQ, 0);
    host.port.set_register(AQA, 0);
    // A doorbell that is written before the controller is ready is not a command.
    host.doorbell(0, true, 1);
    host.now = drive.deadline();
    assert_eq!(host.poll(&mut drive, 2), READY);
    let mut admin = host.admin_rings();
    assert!(host.reap(&mut admin).is_none());
    assert_eq!(host.identify(&mut drive, &mut admin), Status::SUCCESS);
    // Registers that only the controller writes.
    for (offset, value) in [(CSTS, FATAL), (CSTS, 0), (CAP, 0), (CAP + 4, u32::MAX), (VS, 7)] {
        let before = host.port.register(offset);
        host.port.set_register(offset, value);
        host.poll(&mut drive, 1);
        assert_eq!(host.port.register(offset), before, "{offset:#x}");
    }
    assert_eq!(host.identify(&mut drive, &mut admin), Status::SUCCESS);
    let expected = RegisterStats { starts: 1, unknown_doorbells: 1, ..Default::default() };
    assert_eq!(stats(&drive), expected);
}

#[test]
fn doorbells_of_queues_that_were_never_made_are_counted_and_logged() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut host = Host::new(&mut drive);
    let mut admin = host.enable(&mut drive);
    host.create_io(&mut drive, &mut admin);
    let doorbells = [(2, true), (2, false), (77, true), (1024, false)];
    for (number, (qid, is_tail)) in doorbells.into_iter().enumerate() {
        host.doorbell(qid, is_tail, 5);
        host.poll(&mut drive, DOORBELL_POLLS);
        assert_eq!(stats(&drive).unknown_doorbells, number as u64 + 1, "queue {qid}");
    }
    // The error log has them, without a command.
    let log =
        AdminCommand::GetLogPage { lid: 1, nsid: u32::MAX, bytes: 64, offset: 0, retain: true };
    let mut sqe = log.to_sqe();
    sqe.set_prp(host.page(2).0, 0);
    assert_eq!(host.run(&mut drive, &mut admin, sqe).status, Status::SUCCESS);
    let mut entry = [0; 12];
    host.memory.read(2 * PAGE_BYTES, &mut entry);
    assert_eq!(entry, [4, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    // An event tells of them, once until the log is read.
    let event = |host: &mut Host, drive: &mut Controller, admin: &mut _| {
        host.poll(drive, DOORBELL_POLLS);
        host.reap(admin).map(|cqe| cqe.result)
    };
    for _ in 0..2 {
        host.submit(&mut admin, AdminCommand::AsyncEventRequest.to_sqe());
    }
    assert_eq!(event(&mut host, &mut drive, &mut admin), Some(0x01_0000), "queue 2 and others");
    host.doorbell(3, true, 1);
    assert_eq!(event(&mut host, &mut drive, &mut admin), None, "masked");
    let read = |host: &mut Host, drive: &mut Controller, admin: &mut _, retain| {
        let log = AdminCommand::GetLogPage { lid: 1, nsid: u32::MAX, bytes: 64, offset: 0, retain };
        let mut sqe = log.to_sqe();
        sqe.set_prp(host.page(2).0, 0);
        assert_eq!(host.run(drive, admin, sqe).status, Status::SUCCESS);
    };
    read(&mut host, &mut drive, &mut admin, true);
    assert_eq!(event(&mut host, &mut drive, &mut admin), None, "retained");
    read(&mut host, &mut drive, &mut admin, false);
    assert_eq!(event(&mut host, &mut drive, &mut admin), None, "the log was read");
    // A value outside of the ring is another event.
    host.doorbell(1, true, u32::from(ENTRIES));
    assert_eq!(event(&mut host, &mut drive, &mut admin), Some(0x01_0100));
    assert_eq!(drive.stats().invalid_doorbells, 1);
    for delete in [AdminCommand::DeleteSq { qid: 1 }, AdminCommand::DeleteCq { qid: 1 }] {
        assert_eq!(host.run(&mut drive, &mut admin, delete.to_sqe()).status, Status::SUCCESS);
    }
    let mut io = host.create_io(&mut drive, &mut admin);
    // Queues that exist are served, also after others were deleted.
    assert_eq!(host.run(&mut drive, &mut io, Sqe::flush(1)).status, Status::SUCCESS);
    for delete in [AdminCommand::DeleteSq { qid: 1 }, AdminCommand::DeleteCq { qid: 1 }] {
        assert_eq!(host.run(&mut drive, &mut admin, delete.to_sqe()).status, Status::SUCCESS);
    }
    host.poll(&mut drive, DOORBELL_POLLS);
    assert_eq!(stats(&drive).unknown_doorbells, 5, "the doorbells of deleted queues are cleared");
    let mut io = host.create_io(&mut drive, &mut admin);
    assert_eq!(host.run(&mut drive, &mut io, Sqe::flush(1)).status, Status::SUCCESS);
}

/// A host that lets the keep alive timer end finds a controller that has failed.
#[test]
fn the_keep_alive_timer_fails_a_controller_that_its_host_forgets() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut host = Host::new(&mut drive);
    let mut admin = host.enable(&mut drive);
    let fid = nvme::feature::KEEP_ALIVE_TIMER;
    let set = |host: &mut Host, drive: &mut Controller, admin: &mut _, value| {
        let set = AdminCommand::SetFeatures { fid, save: false, value };
        host.run(drive, admin, set.to_sqe()).status
    };
    let get = AdminCommand::GetFeatures { fid, select: nvme::FeatureSelect::Current, member: 0 };
    assert_eq!(host.run(&mut drive, &mut admin, get.to_sqe()).result, 0);
    host.now += Nanos::from_secs(1);
    host.poll(&mut drive, 1);
    assert_eq!(drive.deadline(), Nanos::MAX, "no timer");
    assert_eq!(set(&mut host, &mut drive, &mut admin, 250), Status::SUCCESS);
    let timeout = host.run(&mut drive, &mut admin, get.to_sqe()).result;
    assert_eq!(timeout, 300, "rounded up to the granularity");
    for _ in 0..5 {
        host.now += Nanos::from_millis(290);
        assert_eq!(host.poll(&mut drive, 1), READY);
        let alive = AdminCommand::KeepAlive.to_sqe();
        assert_eq!(host.run(&mut drive, &mut admin, alive).status, Status::SUCCESS);
    }
    // Without a timeout, nothing ends.
    assert_eq!(set(&mut host, &mut drive, &mut admin, 0), Status::SUCCESS);
    host.now += Nanos::from_secs(100);
    assert_eq!(host.poll(&mut drive, 1), READY);
    assert_eq!(set(&mut host, &mut drive, &mut admin, 100), Status::SUCCESS);
    let ends = drive.deadline();
    assert!(ends.since(host.now) <= Nanos::from_millis(100));
    host.now = ends;
    assert_eq!(host.poll(&mut drive, 1), READY | FATAL);
    assert_eq!(stats(&drive).failures, 1);
    assert_eq!(host.set_cc(&mut drive, 0), 0);
    let mut admin = host.enable(&mut drive);
    assert_eq!(host.run(&mut drive, &mut admin, get.to_sqe()).result, 0, "a reset ends the timer");
    host.now += Nanos::from_secs(100);
    assert_eq!(host.poll(&mut drive, 1), READY);
}

/// A reset forgets queues, commands, event requests and features.
#[test]
fn a_reset_forgets_everything_that_the_host_has_set() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut host = Host::new(&mut drive);
    let mut admin = host.enable(&mut drive);
    let mut io = host.create_io(&mut drive, &mut admin);
    for _ in 0..4 {
        host.submit(&mut admin, AdminCommand::AsyncEventRequest.to_sqe());
    }
    let fid = nvme::feature::TEMPERATURE_THRESHOLD;
    let set = AdminCommand::SetFeatures { fid, save: false, value: 300 };
    assert_eq!(host.run(&mut drive, &mut admin, set.to_sqe()).status, Status::SUCCESS);
    for _ in 0..8 {
        host.submit(&mut io, Sqe::flush(1));
    }
    assert_eq!(host.set_cc(&mut drive, 0), 0);
    assert_eq!(drive.outstanding(), 0);
    let mut admin = host.enable(&mut drive);
    assert!(host.reap(&mut admin).is_none());
    for _ in 0..4 {
        host.submit(&mut admin, AdminCommand::AsyncEventRequest.to_sqe());
    }
    host.poll(&mut drive, 4);
    assert!(host.reap(&mut admin).is_none(), "the requests before the reset were forgotten");
    let select = nvme::FeatureSelect::Current;
    let get = AdminCommand::GetFeatures { fid, select, member: 0 };
    assert_eq!(host.run(&mut drive, &mut admin, get.to_sqe()).result, 343);
    // A queue that was forgotten can be made again, and not be deleted.
    let delete = AdminCommand::DeleteSq { qid: 1 };
    assert!(host.run(&mut drive, &mut admin, delete.to_sqe()).status.is(Status::INVALID_QID));
    let mut io = host.create_io(&mut drive, &mut admin);
    assert_eq!(host.run(&mut drive, &mut io, Sqe::flush(1)).status, Status::SUCCESS);
}

/// A controller that fails tells its host by an event first, if the host has asked for it.
#[test]
fn a_failure_is_an_event_before_the_controller_stops() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut host = Host::new(&mut drive);
    let mut admin = host.enable(&mut drive);
    for _ in 0..2 {
        host.submit(&mut admin, AdminCommand::AsyncEventRequest.to_sqe());
    }
    host.poll(&mut drive, 4);
    drive.inject_fault(host.now, Fault::ControllerFatal).unwrap();
    assert_eq!(host.poll(&mut drive, 4) & FATAL, FATAL);
    let cqe = host.reap(&mut admin).unwrap();
    assert_eq!((cqe.status, cqe.result), (Status::SUCCESS, 0x01_0300), "persistent internal error");
    assert!(host.reap(&mut admin).is_none(), "once");
    // The error log outlives the reset.
    assert_eq!(host.set_cc(&mut drive, 0), 0);
    let mut admin = host.enable(&mut drive);
    let (lid, nsid) = (nvme::log_page::ERROR, u32::MAX);
    let log = AdminCommand::GetLogPage { lid, nsid, bytes: 64, offset: 0, retain: false };
    let mut sqe = log.to_sqe();
    sqe.set_prp(host.page(2).0, 0);
    assert_eq!(host.run(&mut drive, &mut admin, sqe).status, Status::SUCCESS);
    let mut entry = [0; 64];
    host.memory.read(2 * PAGE_BYTES, &mut entry);
    let entry = nvme::ErrorEntry::from_bytes(entry);
    assert_eq!((entry.status(), entry.sqid.get()), (Status::INTERNAL, 0xffff));
    host.submit(&mut admin, AdminCommand::AsyncEventRequest.to_sqe());
    host.poll(&mut drive, 4);
    assert!(host.reap(&mut admin).is_none(), "the failure was before the reset");
}

#[test]
fn a_port_has_registers_if_the_drive_has() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let direct = Port::new().unwrap();
    let policy = AccessPolicy::for_scope(AccessScope::All);
    let error = drive.attach_as(&direct, policy).unwrap_err();
    assert!(matches!(error, AttachError::Registers), "{error}");
    let mut plain = Controller::new(block_config()).unwrap();
    let port = Port::with_registers(mem::AddressSpace::default()).unwrap();
    assert!(matches!(plain.attach_as(&port, policy), Err(AttachError::Registers)));
    for timeout in [Nanos::ZERO, RegisterConfig::TIMEOUT_MAX + Nanos(1)] {
        let registers = RegisterConfig { timeout, ..RegisterConfig::default() };
        let error = Controller::new(with_registers(block_config(), registers)).unwrap_err();
        assert!(error.to_string().contains("CAP.TO"), "{error}");
    }
    // A controller that is not enabled cannot fail.
    Host::new(&mut drive);
    assert!(drive.inject_fault(Nanos::ZERO, Fault::ControllerFatal).is_err());
}

/// A host with rights on a part of the drive has registers, a timer and a reset of its own.
#[test]
fn a_restricted_host_controls_its_own_queues_alone() {
    let mut drive =
        Controller::new(with_registers(block_config(), RegisterConfig::default())).unwrap();
    let mut whole = Host::new(&mut drive);
    let mut whole_admin = whole.enable(&mut drive);
    let port = Port::with_registers(mem::AddressSpace::default()).unwrap();
    let scope = AccessScope::Sectors { first: 8, count: 8 };
    let policy = AccessPolicy { queue_depth: 16, ..AccessPolicy::for_scope(scope) };
    drive.attach_as(&port, policy).unwrap();
    let mut part = Host::on(port);
    assert_eq!(part.port.register(CAP) & 0xffff, 15, "its queues have at most 16 entries");
    let mut admin = part.enable(&mut drive);
    assert_eq!(part.identify(&mut drive, &mut admin), Status::SUCCESS);
    // Its timer fails its own controller, and no other.
    let fid = nvme::feature::KEEP_ALIVE_TIMER;
    let set = AdminCommand::SetFeatures { fid, save: false, value: 100 }.to_sqe();
    assert_eq!(part.run(&mut drive, &mut admin, set).status, Status::SUCCESS);
    let get = AdminCommand::GetFeatures { fid, select: nvme::FeatureSelect::Current, member: 0 };
    assert_eq!(part.run(&mut drive, &mut admin, get.to_sqe()).result, 100);
    whole.now = part.now;
    assert_eq!(whole.run(&mut drive, &mut whole_admin, get.to_sqe()).result, 0);
    part.now = part.now.max(whole.now) + Nanos::from_millis(101);
    assert_eq!(part.poll(&mut drive, 1), READY | FATAL);
    whole.now = part.now;
    assert_eq!(whole.poll(&mut drive, 1), READY);
    assert_eq!(whole.identify(&mut drive, &mut whole_admin), Status::SUCCESS);
    // It resets its own. Other features are still those of the drive.
    part.now = whole.now;
    assert_eq!(part.set_cc(&mut drive, 0), 0);
    let mut admin = part.enable(&mut drive);
    assert_eq!(part.run(&mut drive, &mut admin, get.to_sqe()).result, 0);
    let fid = nvme::feature::TEMPERATURE_THRESHOLD;
    let set = AdminCommand::SetFeatures { fid, save: false, value: 300 }.to_sqe();
    let refused = part.run(&mut drive, &mut admin, set).status;
    assert!(refused.is(Status::FEATURE_NOT_CHANGEABLE), "{refused}");
    assert_eq!((stats(&drive).starts, stats(&drive).resets), (3, 1));
    // A doorbell of a queue that it has not made is in its own error log.
    let unknown = DoorbellLayout::BASE + 2 * 9 * DOORBELL_STRIDE;
    part.port.doorbells().atomic_u32(unknown).store(1, Ordering::Relaxed);
    part.poll(&mut drive, DOORBELL_POLLS);
    assert_eq!(stats(&drive).unknown_doorbells, 1);
}

/// Random values in all registers and doorbells, at random times. The drive keeps its invariants,
/// and a host that resets it is served.
#[test]
fn random_registers_break_nothing() {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(23);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    for config in configs() {
        let registers = RegisterConfig { ready_time: Nanos(700), ..RegisterConfig::default() };
        let mut drive = Controller::new(with_registers(config, registers)).unwrap();
        let mut host = Host::new(&mut drive);
        let mut io = None;
        for _ in 0..3_000 {
            match rng.below(12) {
                0 => host.set_admin_queues(),
                1 | 2 => host.port.set_register(CC, ENABLE),
                3 => host.port.set_register(CC, 0),
                4 => host.port.set_register(CC, ENABLE | (rng.below(4) as u32) << 14),
                5 => {
                    let offset = 4 * rng.below(0x40 / 4) as usize;
                    host.port.set_register(offset, rng.below(1 << 32) as u32);
                }
                6 => {
                    let value = rng.below(20) as u32;
                    host.doorbell(rng.below(1025) as usize, rng.below(2) == 0, value);
                }
                7 if host.port.register(CSTS) == READY && host.port.register(CC) == ENABLE => {
                    // A host that works, until the next random register.
                    host.port.set_register(CC, 0);
                    while host.poll(&mut drive, 1) & READY != 0 {
                        host.now += Nanos::from_micros(50);
                    }
                    host.poll(&mut drive, 1);
                    host.set_admin_queues();
                    host.memory.fill(0, 2 * PAGE_BYTES, 0);
                    host.port.set_register(CC, ENABLE);
                    while host.poll(&mut drive, 1) & READY == 0 {}
                    let mut admin = host.admin_rings();
                    let queue = host.create_io(&mut drive, &mut admin);
                    io = Some(queue);
                }
                8 => {
                    if let Some(io) = &mut io
                        && io.0.free() > 0
                    {
                        host.submit(io, Sqe::flush(1));
                        host.reap(io);
                    }
                }
                _ => {
                    host.now += Nanos(rng.below(200_000));
                    host.poll(&mut drive, 1);
                }
            }
        }
        host.port.set_register(CC, 0);
        while host.poll(&mut drive, 1) != 0 {
            host.now += Nanos::from_micros(50);
        }
        host.poll(&mut drive, DOORBELL_POLLS);
        host.set_admin_queues();
        host.memory.fill(0, 2 * PAGE_BYTES, 0);
        host.port.set_register(CC, ENABLE);
        while host.poll(&mut drive, 1) != READY {}
        let mut admin = host.admin_rings();
        let mut io = host.create_io(&mut drive, &mut admin);
        if !matches!(drive.config().personality, controller::PersonalityKind::OpenChannel) {
            assert_eq!(host.run(&mut drive, &mut io, Sqe::flush(1)).status, Status::SUCCESS);
        }
        let stats = stats(&drive);
        assert!(stats.starts > 10 && stats.failures > 0, "seed {seed}: {stats:?}");
    }
}
