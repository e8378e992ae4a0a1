//! Emulated drives that the driver of real controllers initializes, resets and loses by their
//! registers, in virtual time.

// guarantee: B-90, B-91

use std::sync::Arc;

use block::{BlockDevice, Raw};
use controller::{Controller, Fault, RegisterConfig, RegisterStats};
use driver::{
    ConnectOptions, ControllerHandle, DriverError, HardwareQueue, NvmeQueue, Op, Payload,
    QueueState, Request, Tag,
};
use mem::{Iova, SharedRegion};
use nvme::Status;
use nvme::register::{CAP, CC, CSTS, VS};
use time::{Component, Nanos};
use transport::Port;

use super::harness::{ControllerHarness, EMULATED_STEP, config};
use super::{CONNECTIONS, emulated, suite};

/// Commands per queue.
const TAGS: usize = 12;
/// Sectors of 4096 bytes.
const SECTOR: usize = 4096;

fn harness(registers: RegisterConfig) -> Result<ControllerHarness, DriverError> {
    let drive = Controller::new(config(SECTOR as u32, Some(registers))).unwrap();
    ControllerHarness::on_drive(drive, ConnectOptions::default())
}

fn running() -> ControllerHarness {
    harness(RegisterConfig::default()).unwrap()
}

fn stats(harness: &mut ControllerHarness) -> RegisterStats {
    harness.drive().stats().registers.unwrap()
}

/// Two queues with memory for their commands.
struct Load {
    queues: Vec<NvmeQueue>,
    region: Arc<SharedRegion>,
    at: Iova,
}

impl Load {
    fn new(harness: &mut ControllerHarness) -> Load {
        let (region, at) = harness.port.memory().allocate_registered(2 * TAGS * SECTOR).unwrap();
        let queues = (0..2).map(|_| harness.queue(TAGS as u16 + 1).unwrap()).collect();
        Load { queues, region, at }
    }

    fn request(&self, op: Op, i: usize) -> Request {
        let data = Payload::Contiguous(self.at.offset((i * SECTOR) as u64));
        Request { op, ..Request::read(i as u64, 1, data, i as u64) }
    }

    /// Starts a command for each tag of each queue.
    fn start(&mut self, op: Op, now: Nanos) {
        for number in 0..2 {
            for i in number * TAGS..(number + 1) * TAGS {
                let request = self.request(op, i);
                let queue = &mut self.queues[number];
                let mut tag = [Tag(0)];
                assert_eq!(queue.get_free_tags(&mut tag), 1);
                queue.bind_tag_cmd(tag[0], &request, now).unwrap();
            }
            assert!(self.queues[number].issue_tags());
        }
    }

    /// Polls until every queue has the state, and returns the time.
    fn poll_until(&mut self, harness: &mut ControllerHarness, state: QueueState) -> Nanos {
        let limit = harness.world.progress() + Nanos::from_millis(30_000);
        loop {
            let now = harness.world.progress();
            assert!(now < limit, "no queue becomes {state:?}");
            for queue in &mut self.queues {
                queue.poll(now);
            }
            if self.queues.iter().all(|queue| queue.state() == state) {
                return now;
            }
        }
    }

    /// Takes the commands back that did not complete. Returns their number.
    fn take_back(&mut self) -> usize {
        let mut count = 0;
        for queue in &mut self.queues {
            let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
            for tag in bound {
                queue.detach_tag_cmd(tag).unwrap();
                queue.release_tags(&[tag]).unwrap();
                count += 1;
            }
        }
        count
    }

    /// Waits for `count` completions.
    fn finish(&mut self, harness: &mut ControllerHarness, mut count: usize) {
        let limit = harness.world.progress() + Nanos::from_millis(1_000);
        while count > 0 {
            assert!(harness.world.progress() < limit, "{count} commands do not complete");
            for queue in &mut self.queues {
                while let Some(event) = queue.fetch_event() {
                    assert_eq!(event.status, Status::SUCCESS);
                    queue.detach_tag_cmd(event.tag).unwrap();
                    queue.release_tags(&[event.tag]).unwrap();
                    count -= 1;
                }
            }
        }
    }

    /// Writes every sector with a byte, and reads it again.
    fn check(&mut self, harness: &mut ControllerHarness, byte: u8) {
        for (op, before) in [(Op::Write, byte), (Op::Read, !byte)] {
            self.region.fill(0, 2 * TAGS * SECTOR, before);
            let now = harness.world.progress();
            self.start(op, now);
            self.finish(harness, 2 * TAGS);
        }
        self.expect(byte);
    }

    fn expect(&self, byte: u8) {
        let mut bytes = vec![0; 2 * TAGS * SECTOR];
        self.region.read(0, &mut bytes);
        assert!(bytes.iter().all(|found| *found == byte), "{byte:#x} was written");
    }
}

#[test]
fn the_registers_say_what_the_controller_can() {
    let timeout = Nanos::from_millis(2_100);
    let registers = RegisterConfig { timeout, ..RegisterConfig::default() };
    let mut harness = harness(registers).unwrap();
    let cap = nvme::Cap::from_value(
        u64::from(harness.port.register(CAP)) | u64::from(harness.port.register(CAP + 4)) << 32,
    );
    assert_eq!((cap.max_entries, cap.timeout_500ms, cap.doorbell_stride), (4096, 5, 4));
    assert!(cap.nvm_commands && !cap.weighted_arbitration);
    assert_eq!((cap.page_min, cap.page_max), (0, 0));
    assert_eq!(harness.port.register(VS), 0x0001_0400);
    assert_eq!((harness.port.register(CC), harness.port.register(CSTS)), (0x0046_0001, 1));
    assert_eq!(harness.admin(|c, _| c.max_entries()), 4096);
    assert_eq!(stats(&mut harness), RegisterStats { starts: 1, ..RegisterStats::default() });
}

#[test]
fn the_controller_is_reset_under_load() {
    for (sector_bytes, data, doorbells) in CONNECTIONS {
        let ready_time = Nanos::from_millis(7);
        let registers = Some(RegisterConfig { ready_time, ..RegisterConfig::default() });
        let mut harness = emulated(sector_bytes, data, doorbells, registers);
        suite::the_controller_is_reset_under_load(&mut harness);
        let RegisterStats { starts, resets, .. } = stats(&mut harness);
        assert_eq!((starts, resets), (4, 3));
    }
}

/// The controller is reset while commands are in flight. It becomes disabled only when it has no
/// command any more, and then forgets its queues.
#[test]
fn a_reset_waits_for_commands_in_flight() {
    let mut harness = running();
    let mut load = Load::new(&mut harness);
    load.check(&mut harness, 0x11);
    let now = harness.world.progress();
    load.start(Op::Flush, now);
    let now = harness.world.progress();
    assert!(harness.drive().outstanding() > 0);
    harness.controller.lock().unwrap().reset(now).unwrap();
    let mut waited = 0;
    while harness.port.register(CSTS) & 1 != 0 {
        waited += u32::from(harness.drive().outstanding() > 0);
        harness.world.progress();
    }
    assert!(waited > 0, "commands must have been in flight");
    assert_eq!(harness.drive().outstanding(), 0);
    load.poll_until(&mut harness, QueueState::Ready);
    assert_eq!(load.take_back(), 2 * TAGS);
    load.check(&mut harness, 0x22);
    harness.drive().check_invariants().unwrap();
}

#[test]
fn a_late_controller_is_waited_for_and_a_later_one_is_not() {
    let (ready_time, timeout) = (Nanos::from_millis(900), Nanos::from_millis(1_000));
    let mut late = harness(RegisterConfig { ready_time, timeout }).unwrap();
    assert!(late.world.progress() >= ready_time, "the controller was not ready before");
    let mut load = Load::new(&mut late);
    load.check(&mut late, 0x33);

    let ready_time = Nanos::from_millis(1_100);
    let error = harness(RegisterConfig { ready_time, timeout }).err().unwrap();
    let expected = DriverError::InitTimeout { step: "become ready", waited: timeout };
    assert_eq!(error.to_string(), expected.to_string());
}

/// The host of a controller that runs already, as after the start of another kernel, stops it first.
#[test]
fn a_controller_that_runs_is_stopped_first() {
    let mut harness = running();
    let mut load = Load::new(&mut harness);
    let now = harness.world.progress();
    load.start(Op::Write, now);
    let (port, world) = (harness.port.clone(), &mut harness.world);
    let options = ConnectOptions::default();
    let progress = &mut || world.admin_progress();
    let mut again = ControllerHandle::connect_pci(port, options, progress, EMULATED_STEP).unwrap();
    let mut queue = again.create_queue_pair(4, None, progress).unwrap();
    assert!(queue.reap().is_none());
    let RegisterStats { starts, resets, failures, .. } = stats(&mut harness);
    assert_eq!((starts, resets, failures), (2, 1, 0));
}

/// The controller fails with commands in flight. The queues notice within half a second, and reset
/// the controller; each command ends once.
#[test]
fn a_controller_that_fails_is_reset() {
    let mut harness = running();
    let mut load = Load::new(&mut harness);
    load.check(&mut harness, 0x44);
    let now = harness.world.progress();
    for queue in &mut load.queues {
        queue.poll(now);
    }
    load.start(Op::Flush, now);
    let failed = harness.world.progress();
    harness.drive().inject_fault(failed, Fault::ControllerFatal).unwrap();
    assert_eq!(harness.port.register(CSTS), 0b11);
    let again = harness.drive().inject_fault(failed, Fault::ControllerFatal).unwrap_err();
    assert_eq!(again.to_string(), "controller-fatal: one like it is in force already");
    let noticed = load.poll_until(&mut harness, QueueState::Resetting);
    assert!(noticed.since(failed) <= Nanos::from_millis(510), "{}", noticed.since(failed));
    load.poll_until(&mut harness, QueueState::Ready);
    assert_eq!(load.take_back(), 2 * TAGS);
    load.check(&mut harness, 0x55);
    let expected = RegisterStats { starts: 2, resets: 1, failures: 1, ..RegisterStats::default() };
    assert_eq!(stats(&mut harness), expected);
    let record = harness.drive().faults()[0];
    assert_eq!((record.is_open, record.count), (false, Some(2 * TAGS as u64)));
    harness.admin(|c, progress| c.health(progress)).unwrap();
}

/// The controller leaves the bus with commands in flight: its registers read as ones.
#[test]
fn a_controller_that_is_pulled_out_is_removed() {
    let mut harness = running();
    let mut load = Load::new(&mut harness);
    load.check(&mut harness, 0x66);
    let now = harness.world.progress();
    for queue in &mut load.queues {
        queue.poll(now);
    }
    load.start(Op::Write, now);
    let gone = harness.world.progress();
    let port = harness.port.clone();
    harness.drive().detach(&port).unwrap();
    assert!((0..0x40).step_by(4).all(|offset| port.register(offset) == u32::MAX));
    let noticed = load.poll_until(&mut harness, QueueState::Removed);
    assert!(noticed.since(gone) <= Nanos::from_millis(510), "{}", noticed.since(gone));
    for queue in &mut load.queues {
        assert!(queue.fetch_event().is_none());
        assert!(queue.bind_tag_cmd(Tag(0), &Request::flush(1), noticed).is_err());
    }
    assert_eq!(load.take_back(), 2 * TAGS);
    let mut held = harness.controller.lock().unwrap();
    for error in
        [held.health(&mut || panic!("no reply")).unwrap_err(), held.reset(noticed).unwrap_err()]
    {
        assert!(matches!(error, DriverError::Removed), "{error}");
    }
    drop(held);
    // The drive serves another host.
    let DriveHost { mut controller, mut now } = DriveHost::attach(harness.drive(), noticed);
    let drive = harness.drive();
    let poll = &mut || {
        now += EMULATED_STEP;
        drive.poll(now);
    };
    controller.health(poll).unwrap();
}

/// A second host of a drive.
struct DriveHost {
    controller: ControllerHandle,
    now: Nanos,
}

impl DriveHost {
    fn attach(drive: &mut Controller, mut now: Nanos) -> DriveHost {
        let port: Arc<Port> = drive.attach().unwrap();
        let controller = ControllerHandle::connect_pci(
            port,
            ConnectOptions::default(),
            &mut || {
                now += EMULATED_STEP;
                drive.poll(now);
            },
            EMULATED_STEP,
        );
        DriveHost { controller: controller.unwrap(), now }
    }
}

/// Executes one request on sector 7, and returns the first byte of its data.
fn one(drive: &mut Controller, host: &mut DriveHost, op: Op, byte: u8) -> u8 {
    let DriveHost { controller, now } = host;
    let port = controller.port().clone();
    let (region, at) = port.memory().allocate_registered(SECTOR).unwrap();
    region.fill(0, SECTOR, byte);
    let pair = controller.create_queue_pair(4, None, &mut || {
        *now += EMULATED_STEP;
        drive.poll(*now);
    });
    let mut raw = Raw::from_pair(controller.info(), pair.unwrap(), port).unwrap();
    let request = Request { op, ..Request::read(7, 1, Payload::Contiguous(at), 1) };
    raw.submit(*now, request).unwrap();
    loop {
        *now += EMULATED_STEP;
        drive.poll(*now);
        raw.poll(*now);
        if let Some(done) = raw.reap() {
            assert_eq!(done.status, Status::SUCCESS);
            let mut byte = [0];
            region.read(0, &mut byte);
            return byte[0];
        }
    }
}

/// A normal shutdown writes buffered data to the media, which then survives a power cut.
#[test]
fn a_shutdown_makes_buffered_data_durable() {
    for shuts_down in [true, false] {
        let config = config(SECTOR as u32, Some(RegisterConfig::default()));
        let mut drive = Controller::new(config).unwrap();
        let mut host = DriveHost::attach(&mut drive, Nanos::ZERO);
        one(&mut drive, &mut host, Op::Write, 0x77);
        let DriveHost { controller, mut now } = host;
        let port = controller.port().clone();
        if shuts_down {
            let progress = &mut || {
                now += EMULATED_STEP;
                drive.poll(now);
            };
            controller.shut_down(progress, EMULATED_STEP).unwrap();
            assert_eq!((port.register(CC) & 1, port.register(CSTS)), (0, 0));
            let stats = drive.stats().registers.unwrap();
            assert_eq!((stats.starts, stats.shutdowns, stats.resets), (1, 1, 1));
        }
        let mut drive = drive.power_cut().power_on().unwrap();
        assert_eq!(port.register(CSTS), u32::MAX, "a drive without power is not on the bus");
        let mut host = DriveHost::attach(&mut drive, now);
        let found = one(&mut drive, &mut host, Op::Read, 0xee);
        assert_eq!(found, if shuts_down { 0x77 } else { 0 }, "shut down: {shuts_down}");
    }
}

#[test]
fn a_direct_connection_has_no_registers() {
    let mut drive = Controller::new(config(SECTOR as u32, None)).unwrap();
    let port = drive.attach().unwrap();
    let options = ConnectOptions::default();
    let progress = &mut || panic!("the driver must not wait");
    let error = ControllerHandle::connect_pci(port, options, progress, EMULATED_STEP).unwrap_err();
    assert!(matches!(error, DriverError::Unsupported { what: "registers" }), "{error}");
    let fault = drive.inject_fault(Nanos::ZERO, Fault::ControllerFatal).unwrap_err();
    assert!(fault.to_string().contains("controller.registers = true"), "{fault}");
    assert_eq!(drive.stats().registers, None);
}
