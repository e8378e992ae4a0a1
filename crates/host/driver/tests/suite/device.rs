//! Initialization, reset and removal of a controller with registers. A model of the registers in
//! front of the mock drive is slow or fails on request.

// guarantee: C-05, C-08, C-09, C-10

use crate::common;
use crate::device_bus;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::MockDrive;
use device_bus::TestBus;
use mem::{DmaWindow, Iova, RegisterError, SharedRegion};
use nvme::opcode::admin;
use nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS};
use nvme::{Cap, Cc, Csts, IdentifyController, Status};
use sluice_driver::{
    ConnectOptions, ControllerHandle, DataPointers, DoorbellUse, DriverError, HardwareQueue,
    NvmeDeviceError, NvmeQueue, Payload, QueueState, Request, Tag,
};
use time::Nanos;
use transport::{DoorbellLayout, Port};

/// Virtual time of one call of `progress`.
const PROGRESS_STEP: Nanos = Nanos::from_millis(10);
const SECTORS: usize = 64;

/// A controller with registers.
struct Model {
    registers: Arc<SharedRegion>,
    port: Arc<Port>,
    bus: Arc<TestBus>,
    drive: Option<MockDrive>,
    /// The data that survives a reset.
    sectors: Vec<u8>,
    /// Number of `progress` calls that enabling and disabling take; `None` if they never finish.
    slow: Option<u32>,
    waited: u32,
    fails_to_start: bool,
    ignores: Option<u8>,
    refuses: Option<(u8, Status)>,
    starts: u32,
    shut_down: bool,
    identify: IdentifyController,
}

fn capabilities() -> Cap {
    Cap {
        max_entries: 32,
        timeout_500ms: 2,
        weighted_arbitration: false,
        doorbell_stride: 0,
        nvm_commands: true,
        page_min: 0,
        page_max: 4,
        persistent_region: false,
    }
}

impl Model {
    fn new(capabilities: Cap) -> Model {
        let registers = SharedRegion::anonymous(0x3000).unwrap();
        let bus = Arc::new(TestBus { vectors: 9, regions_max: 1000.into(), ..TestBus::default() });
        let bells = DoorbellLayout::from_dstrd(capabilities.doorbell_stride);
        let window =
            DmaWindow::largest_range(&[0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]).unwrap();
        let port =
            Port::for_real_controller(registers.clone(), bells, window, bus.clone()).unwrap();
        let model = Model {
            identify: MockDrive::new(&Port::new().unwrap(), 1).controller,
            registers,
            port,
            bus,
            drive: None,
            sectors: vec![0; SECTORS * common::SECTOR],
            slow: Some(3),
            waited: 0,
            fails_to_start: false,
            ignores: None,
            refuses: None,
            starts: 0,
            shut_down: false,
        };
        let value = capabilities.to_value();
        model.set(CAP, value as u32);
        model.set(CAP + 4, (value >> 32) as u32);
        model
    }

    fn set(&self, offset: usize, value: u32) {
        self.registers.atomic_u32(offset).store(value, Ordering::Release);
    }

    fn get(&self, offset: usize) -> u32 {
        self.registers.atomic_u32(offset).load(Ordering::Acquire)
    }

    fn is_removed(&self) -> bool {
        self.get(CSTS) == u32::MAX
    }

    /// Makes all registers read as ones from now on.
    fn pull(&mut self) {
        for offset in (0..0x40).step_by(4) {
            self.set(offset, u32::MAX);
        }
        self.drive = None;
    }

    fn is_due(&mut self) -> bool {
        self.waited += 1;
        let due = self.slow.is_some_and(|slow| self.waited > slow);
        if due {
            self.waited = 0;
        }
        due
    }

    fn progress(&mut self) {
        if self.is_removed() {
            return;
        }
        let wanted = Cc::from_value(self.get(CC));
        match (wanted.enabled, self.drive.is_some()) {
            (true, false) if self.fails_to_start => {
                self.set(CSTS, Csts { fatal: true, ..Default::default() }.to_value());
            }
            (true, false) if self.is_due() => self.start(),
            (false, true) if self.is_due() => {
                self.sectors = self.drive.take().unwrap().sectors;
                self.set(CSTS, 0);
            }
            _ => {}
        }
        let Some(drive) = &mut self.drive else { return };
        drive.faults.ignore_admin = self.ignores;
        drive.faults.refuse_admin = self.refuses;
        drive.progress();
        if wanted.shut_down {
            self.shut_down = true;
            let status = Csts { ready: true, shut_down: true, ..Default::default() };
            self.set(CSTS, status.to_value());
        }
    }

    fn start(&mut self) {
        let ((sq, entries), (cq, _)) = (self.port.admin_submission(), self.port.admin_completion());
        let long = |at| u64::from(self.get(at)) | u64::from(self.get(at + 4)) << 32;
        assert_eq!((long(ASQ), long(ACQ)), (sq.0, cq.0));
        let size = u32::from(entries) - 1;
        assert_eq!(self.get(AQA), size | size << 16);
        assert_eq!(self.get(CC), 0x0046_0001, "entries of 64 and 16 bytes, pages of 4096");
        let mut drive = MockDrive::new(&self.port, SECTORS);
        drive.sectors = std::mem::take(&mut self.sectors);
        drive.controller = self.identify;
        self.drive = Some(drive);
        self.starts += 1;
        self.set(CSTS, Csts { ready: true, ..Default::default() }.to_value());
    }

    fn connect(&mut self, options: ConnectOptions) -> Result<ControllerHandle, DriverError> {
        ControllerHandle::connect_pci(
            self.port.clone(),
            options,
            &mut || self.progress(),
            PROGRESS_STEP,
        )
    }
}

fn queues(model: &mut Model, count: usize) -> (Arc<Mutex<ControllerHandle>>, Vec<NvmeQueue>) {
    let controller = Arc::new(Mutex::new(model.connect(ConnectOptions::default()).unwrap()));
    let open = |_| {
        let vector = controller.lock().unwrap().next_qid();
        NvmeQueue::open(&controller, 8, vector, &mut || model.progress()).unwrap()
    };
    let queues = (0..count).map(open).collect();
    (controller, queues)
}

/// Starts writes of one sector each, with distinct contents.
fn start(queue: &mut NvmeQueue, region: &SharedRegion, at: Iova, count: usize, now: Nanos) {
    for i in 0..count {
        region.fill(i * 4096, 4096, 0x40 + i as u8);
        let mut tag = [Tag(0)];
        assert_eq!(queue.get_free_tags(&mut tag), 1);
        let data = Payload::Contiguous(at.offset(i as u64 * 4096));
        queue.bind_tag_cmd(tag[0], &Request::write(i as u64, 1, data, i as u64), now).unwrap();
    }
    queue.issue_tags();
}

fn reclaim_tags(queue: &mut NvmeQueue) -> usize {
    let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
    for tag in &bound {
        queue.detach_tag_cmd(*tag).unwrap();
        queue.release_tags(&[*tag]).unwrap();
    }
    bound.len()
}

fn finish(model: &mut Model, queue: &mut NvmeQueue, count: usize) {
    for _ in 0..4 {
        model.progress();
    }
    for _ in 0..count {
        let event = queue.fetch_event().expect("the command completes");
        assert_eq!(event.status, Status::SUCCESS);
        queue.detach_tag_cmd(event.tag).unwrap();
        queue.release_tags(&[event.tag]).unwrap();
    }
    assert!(queue.fetch_event().is_none());
}

#[test]
fn a_controller_comes_up_whatever_its_stride() {
    for doorbell_stride in [0, 1, 4] {
        let mut model = Model::new(Cap { doorbell_stride, ..capabilities() });
        let (controller, mut all) = queues(&mut model, 2);
        let info = controller.lock().unwrap().info().clone();
        assert_eq!(info.data, DataPointers::Sgl);
        assert!(
            info.features.discard && !info.features.extents,
            "the drive has no vendor commands"
        );
        let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
        for queue in &mut all {
            start(queue, &region, at, 5, Nanos(1));
            finish(&mut model, queue, 5);
        }
        assert_eq!(model.drive.as_ref().unwrap().sectors[3 * 4096], 0x43);
        let mapped = model.bus.mapped.lock().unwrap().clone();
        assert!(
            mapped.iter().all(|(at, bytes)| at.0 >= 1 << 32 && at.0 + *bytes as u64 <= 1 << 39)
        );
        let parker = event::Parker::new().unwrap();
        all[1].set_waker(parker.waker());
        assert_eq!(*model.bus.connected.lock().unwrap(), [2]);
    }
}

/// The doorbell buffer with any stride: the driver uses it if the drive supports it, and sets it up
/// again after a controller reset. It repeats a missed doorbell.
#[test]
fn doorbells_in_memory_outlive_a_reset() {
    for doorbell_stride in [0, 4] {
        let mut model = Model::new(Cap { doorbell_stride, ..capabilities() });
        model.identify.oacs = IdentifyController::OACS_DOORBELL_BUFFER_CONFIG.into();
        let (controller, mut all) = queues(&mut model, 2);
        assert!(controller.lock().unwrap().has_shadow_doorbells());
        let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
        let mut now = Nanos(1);
        for round in 1..4 {
            for queue in &mut all {
                for _ in 0..3 {
                    start(queue, &region, at, 5, now);
                    finish(&mut model, queue, 5);
                }
                // Two consecutive submissions: the second needs no register write.
                start(queue, &region, at, 1, now);
                start(queue, &region, at, 1, now);
                finish(&mut model, queue, 2);
                let counts = queue.pair().doorbells().unwrap();
                assert!(
                    counts.register_writes_saved >= round && counts.register_writes >= 4 * round,
                    "{counts:?}"
                );
            }
            // The controller misses the doorbell; half a second later the host repeats it.
            let (queue, register) = (&mut all[0], 0x1000 + 2 * (4 << doorbell_stride));
            start(queue, &region, at, 3, now);
            model.set(register, u32::MAX);
            finish(&mut model, queue, 0);
            now += Nanos::from_millis(1_000);
            queue.poll(now);
            assert_eq!(queue.pair().doorbells().unwrap().register_rewrites, 2 * round);
            finish(&mut model, queue, 3);
            // A controller reset drops the drive's state.
            controller.lock().unwrap().reset(now).unwrap();
            for _ in 0..400 {
                model.progress();
                now += Nanos::from_millis(5);
                for queue in &mut all {
                    queue.poll(now);
                }
            }
            assert!(all.iter().all(|queue| queue.state() == QueueState::Ready));
            assert!(
                model.drive.as_ref().unwrap().shadows.is_some(),
                "the doorbell buffer must be set up again"
            );
        }
    }
}

#[test]
fn doorbells_are_registers_where_memory_is_not_wanted_not_offered_or_refused() {
    let offered = IdentifyController::OACS_DOORBELL_BUFFER_CONFIG;
    for (oacs, doorbells, refuses) in [
        (0, DoorbellUse::Memory, false),
        (offered, DoorbellUse::Registers, false),
        (offered, DoorbellUse::Memory, true),
    ] {
        let mut model = Model::new(capabilities());
        model.identify.oacs = oacs.into();
        model.refuses = refuses.then_some((admin::DOORBELL_BUFFER_CONFIG, Status::INTERNAL));
        let options = ConnectOptions { doorbells, ..ConnectOptions::default() };
        let controller = Arc::new(Mutex::new(model.connect(options).unwrap()));
        assert!(!controller.lock().unwrap().has_shadow_doorbells());
        let mut queue = NvmeQueue::open(&controller, 8, None, &mut || model.progress()).unwrap();
        assert!(model.drive.as_ref().unwrap().shadows.is_none());
        let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
        start(&mut queue, &region, at, 5, Nanos(1));
        finish(&mut model, &mut queue, 5);
        assert!(queue.pair().doorbells().is_none());
    }
}

#[test]
fn a_controller_that_runs_is_stopped_first() {
    let mut model = Model::new(capabilities());
    drop(model.connect(ConnectOptions::default()).unwrap());
    model.connect(ConnectOptions::default()).unwrap();
    assert_eq!(model.starts, 2);
}

#[test]
fn limits_of_the_controller_are_kept() {
    let mut model = Model::new(capabilities());
    let (controller, _queues) = queues(&mut model, 1);
    assert_eq!(controller.lock().unwrap().max_entries(), 32);
    let deep = NvmeQueue::open(&controller, 33, None, &mut || model.progress()).unwrap_err();
    assert!(
        matches!(deep, NvmeDeviceError::Driver(DriverError::Depth { depth: 33, .. })),
        "{deep}"
    );
    NvmeQueue::open(&controller, 32, None, &mut || model.progress()).unwrap();
    // The admin queue uses one vector.
    assert_eq!(model.port.max_io_queues(), 8);
    assert!(model.port.is_real_controller() && !model.port.is_shared() && !model.port.has_drive());
}

#[test]
fn what_is_no_controller_for_this_driver_is_refused() {
    let lacks = |capabilities: Cap, what: &str| {
        let error = Model::new(capabilities).connect(ConnectOptions::default()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    lacks(Cap { nvm_commands: false, ..capabilities() }, "NVM command set");
    lacks(Cap { page_min: 1, ..capabilities() }, "pages of 4096");
    lacks(Cap { max_entries: 1, ..capabilities() }, "1 entry");
    let mut model = Model::new(capabilities());
    model.identify.sgls = 0.into();
    let sgls = ConnectOptions { data: Some(DataPointers::Sgl), ..ConnectOptions::default() };
    assert!(matches!(model.connect(sgls), Err(DriverError::Unsupported { .. })));
    let named = ConnectOptions { nsid: Some(2), ..ConnectOptions::default() };
    assert!(matches!(model.connect(named), Err(DriverError::NoSuchNamespace { nsid: 2 })));
    assert_eq!(model.connect(ConnectOptions::default()).unwrap().info().data, DataPointers::Prp);
}

#[test]
fn a_controller_that_is_slow_fails_or_goes_is_told_apart() {
    // CAP.TO is 1 s: 100 calls of `progress`.
    let mut model = Model::new(capabilities());
    model.slow = Some(95);
    model.connect(ConnectOptions::default()).unwrap();
    model.slow = Some(120);
    let error = model.connect(ConnectOptions::default()).unwrap_err();
    let stop = DriverError::InitTimeout { step: "stop", waited: Nanos::from_millis(1000) };
    assert_eq!(error.to_string(), stop.to_string());
    let mut model = Model::new(capabilities());
    model.slow = None;
    let error = model.connect(ConnectOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the controller did not become ready within 1000 ms");
    let mut model = Model::new(capabilities());
    model.fails_to_start = true;
    assert!(matches!(model.connect(ConnectOptions::default()), Err(DriverError::Failed)));
    let mut model = Model::new(capabilities());
    model.pull();
    assert!(matches!(model.connect(ConnectOptions::default()), Err(DriverError::Removed)));
}

#[test]
fn memory_that_cannot_be_mapped_is_an_error() {
    let mut model = Model::new(capabilities());
    model.bus.regions_max.store(2, Ordering::Relaxed);
    let controller = Arc::new(Mutex::new(model.connect(ConnectOptions::default()).unwrap()));
    let error = NvmeQueue::open(&controller, 8, None, &mut || model.progress()).unwrap_err();
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    let place = model.port.memory().allocate_registered((1 << 30) + 1).unwrap_err();
    assert!(matches!(place, RegisterError::TooLong { max_bytes: 0x4000_0000, .. }), "{place}");
}

/// Advances time by a millisecond and polls everything.
fn poll_once(model: &mut Model, all: &mut [NvmeQueue], now: Nanos) -> Nanos {
    let now = now + Nanos::from_millis(1);
    for queue in all.iter_mut() {
        queue.poll(now);
    }
    model.progress();
    now
}

/// Polls everything until no queue is being reset, for at most `limit`; returns the time.
fn poll_until_ready(model: &mut Model, all: &mut [NvmeQueue], from: Nanos, limit: Nanos) -> Nanos {
    let mut now = from;
    loop {
        now += Nanos::from_millis(1);
        model.progress();
        for queue in all.iter_mut() {
            queue.poll(now);
        }
        if all.iter().all(|q| q.state() != QueueState::Resetting) {
            return now;
        }
        assert!(now < from + limit, "a queue is still being reset after {limit}");
    }
}

#[test]
fn a_controller_that_does_not_delete_a_queue_is_reset() {
    for ignored in [admin::DELETE_SQ, admin::DELETE_CQ, admin::CREATE_CQ] {
        let mut model = Model::new(capabilities());
        let (controller, mut all) = queues(&mut model, 3);
        let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
        for queue in &mut all {
            start(queue, &region, at, 4, Nanos(1));
        }
        model.ignores = Some(ignored);
        all[0].reset(Nanos(2));
        // Polls until the timeout resets the controller.
        let mut now = Nanos(2);
        while controller.lock().unwrap().resets() == 0 {
            now += Nanos::from_millis(1);
            all[0].poll(now);
            assert!(now < Nanos::from_millis(10_100), "{ignored:#x}");
        }
        assert!(now > Nanos::from_millis(9_900));
        model.ignores = None;
        // The other queues see the reset, and no command completes twice.
        all[1].poll(now);
        assert_eq!(all[1].state(), QueueState::Resetting);
        assert!(!all[1].check_event() && all[1].fetch_event().is_none());
        poll_until_ready(&mut model, &mut all, now, Nanos::from_millis(2_000));
        for queue in &mut all {
            assert_eq!(queue.state(), QueueState::Ready, "{ignored:#x}");
            assert!(queue.fetch_event().is_none());
            assert_eq!(reclaim_tags(queue), 4);
            start(queue, &region, at, 7, now);
            finish(&mut model, queue, 7);
            assert_eq!(queue.pair().spurious_completions(), 0);
        }
        assert_eq!((model.starts, controller.lock().unwrap().resets()), (2, 1));
        controller.lock().unwrap().health(&mut || model.progress()).unwrap();
        for queue in all {
            let back = &mut |_| panic!("nothing is outstanding");
            queue.close(back, &mut || model.progress()).unwrap();
        }
    }
}

#[test]
fn a_controller_that_does_not_come_back_is_given_up() {
    for fails in [true, false] {
        let mut model = Model::new(capabilities());
        let (controller, mut all) = queues(&mut model, 2);
        let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
        start(&mut all[0], &region, at, 4, Nanos(1));
        controller.lock().unwrap().reset(Nanos(2)).unwrap();
        let error = controller.lock().unwrap().health(&mut || ()).unwrap_err();
        assert!(error.is_unresponsive(), "{error}");
        match fails {
            true => model.fails_to_start = true,
            false => model.slow = None,
        }
        poll_until_ready(&mut model, &mut all, Nanos(2), Nanos::from_millis(3_000));
        for queue in &mut all {
            assert_eq!(queue.state(), QueueState::Removed);
        }
        assert_eq!(reclaim_tags(&mut all[0]), 4);
        let refused = controller.lock().unwrap().reset(Nanos(3)).unwrap_err();
        assert!(matches!(refused, DriverError::Removed), "{refused}");
        let mut held = controller.lock().unwrap();
        let unheard =
            held.health(&mut || panic!("the driver must not wait for a reply")).unwrap_err();
        assert!(held.is_removed() && matches!(unheard, DriverError::Removed), "{unheard}");
    }
}

#[test]
fn a_controller_that_is_pulled_out_is_removed_at_once() {
    let mut model = Model::new(capabilities());
    let (_controller, mut all) = queues(&mut model, 2);
    let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
    for queue in &mut all {
        start(queue, &region, at, 4, Nanos(1));
    }
    // One queue is already being reset.
    all[1].reset(Nanos(1));
    model.pull();
    all[0].reset(Nanos(2));
    all[1].poll(Nanos(2));
    for queue in &mut all {
        assert_eq!(queue.state(), QueueState::Removed);
        assert!(queue.fetch_event().is_none());
        assert_eq!(reclaim_tags(queue), 4);
    }
}

#[test]
fn a_waiter_finds_that_the_controller_was_removed() {
    let mut model = Model::new(capabilities());
    let (_controller, mut all) = queues(&mut model, 2);
    let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
    for queue in &mut all {
        queue.poll(Nanos(1));
        assert_eq!(
            queue.deadline(),
            Nanos::MAX,
            "without outstanding commands, no check is scheduled"
        );
        start(queue, &region, at, 4, Nanos(1));
        assert!(queue.deadline() <= Nanos::from_millis(501), "a removal check must be scheduled");
    }
    model.pull();
    for queue in &mut all {
        assert!(!queue.poll(Nanos::from_millis(400)), "the queue must not check at every poll");
    }
    let mut now = all[0].deadline();
    for queue in &mut all {
        // The first queue reads the registers; the others see the result.
        assert!(queue.poll(now));
        now = Nanos::from_millis(450);
        assert_eq!((queue.state(), queue.deadline()), (QueueState::Removed, Nanos::MAX));
        assert_eq!(reclaim_tags(queue), 4);
        assert!(!queue.poll(Nanos::from_millis(2_000)));
    }
}

#[test]
fn a_controller_that_is_called_back_is_stopped_before_its_memory_is_anybodys() {
    let mut model = Model::new(capabilities());
    let (controller, mut all) = queues(&mut model, 2);
    let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
    for queue in &mut all {
        queue.poll(Nanos(1));
        start(queue, &region, at, 4, Nanos(1));
    }
    model.slow = Some(20);
    model.bus.release_requested.store(true, Ordering::Relaxed);
    let mut now = Nanos::from_millis(600);
    for queue in &mut all {
        queue.poll(now);
        queue.poll(now);
        assert_eq!(
            queue.state(),
            QueueState::Resetting,
            "the controller may still write to memory"
        );
    }
    while model.drive.is_some() {
        assert!(all.iter().all(|queue| queue.state() == QueueState::Resetting));
        now = poll_once(&mut model, &mut all, now);
    }
    poll_until_ready(&mut model, &mut all, now, Nanos::from_millis(100));
    for queue in &mut all {
        assert_eq!(queue.state(), QueueState::Removed);
        assert_eq!(reclaim_tags(queue), 4);
    }
    assert_eq!(model.starts, 1, "the controller must not be started again");
    assert!(matches!(controller.lock().unwrap().reset(now), Err(DriverError::Removed)));
}

/// Removal on a bus without notifications: the registers stay mapped, and may belong to another
/// device.
#[test]
fn a_lost_controller_completes_everything_and_its_registers_are_not_accessed() {
    let mut model = Model::new(capabilities());
    let (controller, mut all) = queues(&mut model, 2);
    let (region, at) = model.port.memory().allocate_registered(8 * 4096).unwrap();
    for queue in &mut all {
        queue.poll(Nanos(1));
        start(queue, &region, at, 4, Nanos(1));
    }
    assert!(!controller.lock().unwrap().is_removed());
    // One queue has requested a reset, and waits for the admin queue.
    all[1].reset(Nanos(2));
    let asked = model.bus.asked.load(Ordering::Relaxed);
    for at in 3..1_000 {
        all[0].poll(Nanos(at));
    }
    assert_eq!(
        model.bus.asked.load(Ordering::Relaxed),
        asked,
        "the queue must not read the registers at every poll"
    );
    let before: Vec<u32> = (0..0x1100).step_by(4).map(|offset| model.get(offset)).collect();
    model.bus.removed.store(true, Ordering::Relaxed);
    let now = Nanos::from_millis(600);
    for queue in &mut all {
        assert!(queue.poll(now));
        assert_eq!((queue.state(), queue.deadline()), (QueueState::Removed, Nanos::MAX));
        assert!(queue.fetch_event().is_none());
        assert_eq!(reclaim_tags(queue), 4);
        let again = queue.bind_tag_cmd(Tag(0), &Request::flush(1), now);
        assert!(again.is_err(), "{again:?}");
    }
    let mut held = controller.lock().unwrap();
    assert!(held.is_removed());
    for error in [
        held.health(&mut || panic!("the driver must not wait for a reply")).unwrap_err(),
        held.create_queue_pair(8, None, &mut || panic!("the driver must not wait for a reply"))
            .unwrap_err(),
        held.request_event().unwrap_err(),
        held.reset(now).unwrap_err(),
    ] {
        assert!(matches!(error, DriverError::Removed), "{error}");
    }
    drop(held);
    for queue in all {
        let back = &mut |_| panic!("nothing is outstanding");
        let error = queue
            .close(back, &mut || panic!("the driver must not wait for a removed controller"))
            .unwrap_err();
        assert!(matches!(error, DriverError::Removed), "{error}");
    }
    let after: Vec<u32> = (0..0x1100).step_by(4).map(|offset| model.get(offset)).collect();
    assert_eq!(after, before);
    assert_eq!((model.starts, controller.lock().unwrap().resets()), (1, 0));
}

/// Removal while a caller waits for a reply: all registers read as ones.
#[test]
fn a_caller_that_waits_for_a_reply_learns_that_the_controller_was_removed() {
    let mut model = Model::new(capabilities());
    let (controller, all) = queues(&mut model, 1);
    let mut progress_calls = 0;
    let error = controller.lock().unwrap().health(&mut || {
        progress_calls += 1;
        if progress_calls == 3 {
            model.pull();
        }
    });
    let error = error.unwrap_err();
    assert!(matches!(error, DriverError::Removed), "{error}");
    assert_eq!(progress_calls, 3, "the caller must not wait for the timeout of ten seconds");
    assert!(controller.lock().unwrap().is_removed());
    drop(all);
}

#[test]
fn an_emulated_drive_has_no_registers_to_be_reset_by() {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, 8);
    let mut controller = ControllerHandle::connect(port, &mut || drive.progress(), 100).unwrap();
    assert!(matches!(controller.reset(Nanos(1)), Err(DriverError::Unsupported { .. })));
    assert_eq!(controller.resets(), 0);
}

#[test]
fn events_are_asked_for_one_at_a_time_and_again_after_a_reset() {
    let mut model = Model::new(capabilities());
    let mut controller = model.connect(ConnectOptions::default()).unwrap();
    assert!(matches!(controller.poll_event(), Err(DriverError::NotSubscribed)));
    controller.request_event().unwrap();
    controller.request_event().unwrap();
    model.progress();
    assert_eq!(model.drive.as_ref().unwrap().requests.len(), 1);
    assert_eq!(controller.poll_event().unwrap(), None);
    let event = nvme::AsyncEvent { kind: nvme::AsyncEvent::HEALTH, info: 1, log_page: 2 };
    model.drive.as_mut().unwrap().send_event(event.to_dword());
    assert_eq!(controller.poll_event().unwrap(), Some(event));
    assert!(controller.poll_event().is_err(), "the event must be requested again");
    controller.request_event().unwrap();
    let controller = Arc::new(Mutex::new(controller));
    let mut queue = NvmeQueue::open(&controller, 8, None, &mut || model.progress()).unwrap();
    controller.lock().unwrap().reset(Nanos(1)).unwrap();
    poll_until_ready(
        &mut model,
        std::slice::from_mut(&mut queue),
        Nanos(1),
        Nanos::from_millis(500),
    );
    queue.poll(Nanos::from_millis(600));
    poll_until_ready(
        &mut model,
        std::slice::from_mut(&mut queue),
        Nanos(1),
        Nanos::from_millis(500),
    );
    model.progress();
    let drive = model.drive.as_mut().unwrap();
    assert_eq!(drive.requests.len(), 1, "the event must be requested again");
    drive.send_event(event.to_dword());
    assert_eq!(controller.lock().unwrap().poll_event().unwrap(), Some(event));
}
