//! [`Port`]: one host's connection to a drive.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use event::Waker;

use crate::port_descriptor::clone_fd;
use crate::remote_notify::{
    DRIVE_PARKED_OFFSET, PUBLISHED_BYTES, REGION_COSTS_OFFSET, RemoteNotify,
    STAMPS_REQUESTED_OFFSET, host_parked_offset, socket_pair,
};
use crate::{
    ControllerOwnership, DmaBus, DoorbellLayout, JoinError, PortDescriptor, PortLimits, PortRegion,
    SharedParkedFlag, SharedParkedFlagReader,
};
use mem::{
    AddressSpace, DmaWindow, Iova, PAGE_BYTES, ReadOnlyRegion, RegisterError, RegistrationExporter,
    SharedRegion,
};

/// Queue identifiers 0 (admin) to `MAX_QUEUES - 1`.
pub const MAX_QUEUES: u16 = 1025;

/// Bytes between doorbells (CAP.DSTRD = 4), so that no two share a cache line.
pub const DOORBELL_STRIDE: usize = 64;

/// CAP.DSTRD of the stride.
pub(crate) const DOORBELL_DSTRD: u8 = (DOORBELL_STRIDE / 4).ilog2() as u8;

/// Number of base address registers of a PCI function.
const BARS: usize = 6;

/// Depth of the admin queues in entries.
pub(crate) const ADMIN_DEPTH: u16 = 64;

/// Size of the memory of both admin queues in bytes.
const ADMIN_BYTES: usize = 2 * PAGE_BYTES;
const DOORBELL_BYTES: usize = 2 * MAX_QUEUES as usize * DOORBELL_STRIDE;
/// Maximum size of any part of a shared port in bytes.
const PART_BYTES_MAX: u64 = 1 << 20;

/// One host's connection to a drive, as a PCI function is to a real drive. Both sides hold it. It
/// contains the memory that the drive may access, the doorbells, the location of the admin queues
/// (the registers AQA, ASQ and ACQ), and the wakers of both sides.
///
/// Within a process, a port is one object for both sides. Between processes it is two: the drive's
/// side creates it ([`Port::shared`]) and sends its [descriptor](PortDescriptor) to the host's
/// process, which opens it ([`Port::join`]). Callers need not distinguish the two.
#[derive(Debug)]
pub struct Port {
    memory: AddressSpace,
    doorbells: Arc<SharedRegion>,
    doorbell_layout: DoorbellLayout,
    registers: Registers,
    /// Whether the host initializes the drive by its registers.
    has_registers: bool,
    bars: [OnceLock<Iova>; BARS],
    /// The persistent memory region of the drive, if the host has it.
    region: OnceLock<PortRegion>,
    admin_sq: Iova,
    admin_cq: Iova,
    /// Empty in virtual time, and for a drive that is polled without a runner.
    drive_runner: OnceLock<DriveRunner>,
    /// Read once per batch of completions; written when a queue is assigned to another runner.
    /// Empty on the host's side.
    vector_wakers: Vec<RwLock<Option<Waker>>>,
    /// Whether the drive of this process requests stamps of doorbells.
    stamps_requested: AtomicBool,
    side: PortSide,
}

/// Controller registers at their NVMe offsets; unused registers are zero.
#[derive(Debug)]
enum Registers {
    Owned(Arc<SharedRegion>),
    ReadOnly(Arc<ReadOnlyRegion>),
}

/// The runner that polls the drive in real time.
#[derive(Debug)]
enum DriveRunner {
    /// The host wakes it.
    Wakes(Waker),
    /// It also polls the host, after which it polls the drive in any case.
    PollsHost,
}

/// The location of the two sides.
#[derive(Debug)]
enum PortSide {
    /// Both sides are in this process.
    InProcess,
    /// The host is in another process. Its sockets are stored here until it receives them.
    DriveSide {
        notify: RemoteNotify,
        peer_sockets: Mutex<Option<(OwnedFd, Vec<OwnedFd>)>>,
        queues: Arc<SharedRegion>,
        /// The memory that the drive publishes.
        published: Arc<SharedRegion>,
    },
    /// The drive is in another process.
    HostSide { notify: RemoteNotify, published: Arc<ReadOnlyRegion> },
    /// The drive is a real controller.
    RealController(Arc<dyn DmaBus>),
}

impl Port {
    /// Returns a number that identifies the port while it exists, the same for host and drive.
    pub fn number(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Creates a port with memory for its admin queues and no I/O queues.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn new() -> io::Result<Arc<Port>> {
        Port::in_space(AddressSpace::default())
    }

    /// Creates a port as [`new`](Port::new) does, whose memory is that of other ports: what one of
    /// their hosts registers, all of their drives can access.
    ///
    /// # Errors
    /// As for [`new`](Port::new).
    pub fn in_space(memory: AddressSpace) -> io::Result<Arc<Port>> {
        Port::within_process(memory).map(Arc::new)
    }

    fn within_process(memory: AddressSpace) -> io::Result<Port> {
        let queues = SharedRegion::anonymous(ADMIN_BYTES)?;
        let base = memory.register(&queues).map_err(|e: RegisterError| io::Error::other(e))?;
        Ok(Port {
            has_registers: false,
            memory,
            doorbells: SharedRegion::anonymous(DOORBELL_BYTES)?,
            doorbell_layout: DoorbellLayout::EMULATED,
            registers: Registers::Owned(SharedRegion::anonymous(PAGE_BYTES)?),
            bars: Default::default(),
            region: OnceLock::new(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_runner: OnceLock::new(),
            vector_wakers: (0..MAX_QUEUES).map(|_| RwLock::default()).collect(),
            stamps_requested: AtomicBool::new(false),
            side: PortSide::InProcess,
        })
    }

    /// Creates a port as [`in_space`](Port::in_space) does, whose drive has the registers of a PCIe
    /// controller: base address register 0 with the controller registers and, behind them, the
    /// doorbells. The host initializes the drive by its registers ([NVMe1.4 §7.6.1]).
    ///
    /// # Errors
    /// As for [`new`](Port::new).
    pub fn with_registers(memory: AddressSpace) -> io::Result<Arc<Port>> {
        let bar = SharedRegion::anonymous(DoorbellLayout::BASE + DOORBELL_BYTES)?;
        let mut port = Port::within_process(memory)?;
        (port.registers, port.doorbells) = (Registers::Owned(bar.clone()), bar);
        port.doorbell_layout = DoorbellLayout::of_emulated(true);
        port.has_registers = true;
        Ok(Arc::new(port))
    }

    /// Creates the drive's side of a port whose host is in another process, which receives the
    /// [descriptor](Port::take_descriptor).
    ///
    /// # Errors
    /// The error of creating memory and sockets; `InvalidInput` for more vectors than
    /// [`PortLimits::MAX_VECTORS`].
    pub fn shared(limits: PortLimits) -> io::Result<Arc<Port>> {
        Port::between_processes(limits, false)
    }

    /// Creates the drive's side of a port as [`shared`](Port::shared) does, whose drive has registers
    /// as one [`with_registers`](Port::with_registers). The host can write all of them.
    ///
    /// # Errors
    /// As for [`shared`](Port::shared).
    pub fn shared_with_registers(limits: PortLimits) -> io::Result<Arc<Port>> {
        Port::between_processes(limits, true)
    }

    fn between_processes(limits: PortLimits, has_registers: bool) -> io::Result<Arc<Port>> {
        if limits.vectors > PortLimits::MAX_VECTORS {
            let text = format!("{} vectors, {} at most", limits.vectors, PortLimits::MAX_VECTORS);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let shown = SharedRegion::published_memfd(PUBLISHED_BYTES)?;
        let queues = SharedRegion::memfd(ADMIN_BYTES)?;
        let doorbell_layout = DoorbellLayout::of_emulated(has_registers);
        let parked_at = |vector| host_parked_offset(doorbell_layout, vector);
        let doorbells = SharedRegion::memfd(parked_at(limits.vectors))?;
        let (memory, base) = AddressSpace::for_remote_host(limits.registration(), &queues);
        let (ours, theirs) = socket_pair()?;
        let (mut our_vectors, mut their_vectors) = (Vec::new(), Vec::new());
        for _ in 0..limits.vectors {
            let (ours, theirs) = socket_pair()?;
            our_vectors.push(ours);
            their_vectors.push(theirs);
        }
        let wires = RemoteNotify::new(ours, our_vectors, 1);
        let vector = |(number, wire): (u16, &Arc<OwnedFd>)| {
            let parked = SharedParkedFlag::new(&doorbells, parked_at(number));
            RwLock::new(Some(Waker::remote(Box::new(parked), wire.clone())))
        };
        let vectors = (0..limits.vectors).zip(&wires.vectors).map(vector).collect();
        let theirs = Mutex::new(Some((theirs, their_vectors)));
        let registers = if has_registers { doorbells.clone() } else { shown.clone() };
        Ok(Arc::new(Port {
            memory,
            doorbells,
            doorbell_layout,
            registers: Registers::Owned(registers),
            has_registers,
            bars: Default::default(),
            region: OnceLock::new(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_runner: OnceLock::new(),
            vector_wakers: vectors,
            stamps_requested: AtomicBool::new(false),
            side: PortSide::DriveSide {
                notify: wires,
                peer_sockets: theirs,
                queues,
                published: shown,
            },
        }))
    }

    /// Returns the descriptor that the host's process needs to join a [shared](Port::shared) port.
    /// This side keeps no copy of it, so that the sockets close when that process ends.
    ///
    /// # Errors
    /// `Unsupported` if this is not the drive's side of a shared port, `AlreadyExists` if the
    /// descriptor was already taken, or the error that `dup(2)` returns. Also `Unsupported` for a
    /// [region](Port::set_persistent_region) in a file.
    pub fn take_descriptor(&self) -> io::Result<PortDescriptor> {
        let PortSide::DriveSide { peer_sockets: theirs, queues, published, .. } = &self.side else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (shown, doorbells, queues) =
            (clone_fd(published)?, clone_fd(&self.doorbells)?, clone_fd(queues)?);
        let has_registers = self.has_registers;
        let region = match self.region.get() {
            Some(region) => Some(region.memory.share()?.ok_or(io::ErrorKind::Unsupported)?),
            None => None,
        };
        let taken = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (drive, vectors) = taken.ok_or(io::ErrorKind::AlreadyExists)?;
        let published = shown;
        Ok(PortDescriptor { has_registers, published, doorbells, queues, drive, vectors, region })
    }

    /// Creates the host's side of a port whose drive is in another process. The exporter sends
    /// later registrations to that process.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        parts: PortDescriptor,
        hand_over: Box<dyn RegistrationExporter>,
    ) -> Result<Arc<Port>, JoinError> {
        let adopt = |what, memory, least| {
            let region = SharedRegion::import(memory, PART_BYTES_MAX)
                .map_err(|source| JoinError::Memory { what, source })?;
            let bytes = region.len();
            if bytes < least {
                return Err(JoinError::Short { what, bytes, least });
            }
            Ok(region)
        };
        let (vectors, has_registers) = (parts.vectors.len(), parts.has_registers);
        let doorbell_layout = DoorbellLayout::of_emulated(has_registers);
        let least = host_parked_offset(doorbell_layout, vectors as u16);
        let doorbells = adopt("doorbells", parts.doorbells, least)?;
        let queues = adopt("admin queues", parts.queues, ADMIN_BYTES)?;
        let what = "registers";
        let shown = ReadOnlyRegion::import(parts.published, PART_BYTES_MAX)
            .map_err(|source| JoinError::Memory { what, source })?;
        if shown.len() < PUBLISHED_BYTES {
            return Err(JoinError::Short { what, bytes: shown.len(), least: PUBLISHED_BYTES });
        }
        let region = OnceLock::new();
        if let Some(images) = parts.region {
            let _ = region.set(PortRegion::import(images, &shown).map_err(JoinError::Region)?);
        }
        let (memory, base) = AddressSpace::with_exporter(hand_over, &queues);
        let wires = RemoteNotify::new(parts.drive, parts.vectors, vectors);
        let parked = SharedParkedFlagReader::new(&shown, DRIVE_PARKED_OFFSET);
        let waker = Waker::remote(Box::new(parked), wires.drive.clone());
        let registers = match has_registers {
            true => Registers::Owned(doorbells.clone()),
            false => Registers::ReadOnly(shown.clone()),
        };
        Ok(Arc::new(Port {
            memory,
            doorbells,
            doorbell_layout,
            registers,
            has_registers,
            bars: Default::default(),
            region,
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_runner: OnceLock::from(DriveRunner::Wakes(waker)),
            vector_wakers: Vec::new(),
            stamps_requested: AtomicBool::new(false),
            side: PortSide::HostSide { notify: wires, published: shown },
        }))
    }

    /// Creates the host's side of a port whose drive is a real controller. `registers` is the
    /// mapping of its base address register 0 with registers and doorbells. Memory is registered at
    /// addresses of `window`, through `bus`.
    ///
    /// # Errors
    /// The error of creating or mapping the admin queues; `InvalidInput` for registers without
    /// doorbells.
    pub fn for_real_controller(
        registers: Arc<SharedRegion>,
        bells: DoorbellLayout,
        window: DmaWindow,
        bus: Arc<dyn DmaBus>,
    ) -> io::Result<Arc<Port>> {
        if bells.max_queues_for_bar(registers.len()) < 2 {
            let text = format!("{} bytes of registers have no doorbells", registers.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let memory = AddressSpace::on_bus(window, bus.clone());
        let (_, base) =
            memory.allocate_registered(ADMIN_BYTES).map_err(|e: RegisterError| match e {
                RegisterError::Map { kind, .. } | RegisterError::Reachable { kind, .. } => {
                    io::Error::new(kind, e)
                }
                e => io::Error::other(e),
            })?;
        Ok(Arc::new(Port {
            memory,
            doorbells: registers.clone(),
            doorbell_layout: bells,
            registers: Registers::Owned(registers),
            has_registers: true,
            bars: Default::default(),
            region: OnceLock::new(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_runner: OnceLock::new(),
            vector_wakers: Vec::new(),
            stamps_requested: AtomicBool::new(false),
            side: PortSide::RealController(bus),
        }))
    }

    /// Whether the other side is in another process.
    pub fn is_shared(&self) -> bool {
        matches!(self.side, PortSide::DriveSide { .. } | PortSide::HostSide { .. })
    }

    /// Whether the drive's side is here.
    pub fn has_drive(&self) -> bool {
        matches!(self.side, PortSide::InProcess | PortSide::DriveSide { .. })
    }

    /// Whether the drive is a real controller, whose registers are hardware.
    pub fn is_real_controller(&self) -> bool {
        matches!(self.side, PortSide::RealController(_))
    }

    /// Whether the host initializes, resets and shuts down the drive by its registers: a real
    /// controller, or a port [`with_registers`](Port::with_registers).
    #[inline]
    pub fn has_registers(&self) -> bool {
        self.has_registers
    }

    /// Returns the ownership of a real controller ([`DmaBus::ownership`]); an emulated drive is
    /// always owned.
    pub fn ownership(&self) -> ControllerOwnership {
        match &self.side {
            PortSide::RealController(bus) => bus.ownership(),
            PortSide::InProcess | PortSide::DriveSide { .. } | PortSide::HostSide { .. } => {
                ControllerOwnership::Owned
            }
        }
    }

    /// Returns the number of I/O queues for which there are doorbells and, on a real controller,
    /// interrupt vectors. The admin queue uses the first of each.
    pub fn max_io_queues(&self) -> u16 {
        let queues = self.doorbell_layout.max_queues_for_bar(self.doorbells.len()) - 1;
        match &self.side {
            PortSide::RealController(bus) if bus.vectors() > 0 => queues.min(bus.vectors() - 1),
            _ => queues,
        }
    }

    /// Returns the number of interrupt vectors.
    pub fn vectors(&self) -> u16 {
        match &self.side {
            PortSide::InProcess | PortSide::DriveSide { .. } => self.vector_wakers.len() as u16,
            PortSide::HostSide { notify: wires, .. } => wires.vectors.len() as u16,
            PortSide::RealController(bus) => bus.vectors(),
        }
    }

    /// Whether completions can wake a runner; not on a real controller without available
    /// interrupts.
    pub fn has_interrupts(&self) -> bool {
        !matches!(&self.side, PortSide::RealController(bus) if bus.vectors() == 0)
    }

    /// Returns the memory that the drive may access for this host.
    pub fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Returns the region of the doorbells: submission tails at even strides, completion heads at
    /// odd ones. A real controller has its registers before them, and its own stride.
    pub fn doorbells(&self) -> &Arc<SharedRegion> {
        &self.doorbells
    }

    /// Reads the 32-bit controller register at `offset`, a multiple of 4 below 4096 [NVMe1.4 §3.1].
    ///
    /// # Panics
    /// If there is no such register: offsets never come from the other side.
    pub fn register(&self, offset: usize) -> u32 {
        match &self.registers {
            Registers::Owned(region) => region.atomic_u32(offset).load(Ordering::Acquire),
            Registers::ReadOnly(view) => view.load_u32(offset),
        }
    }

    /// Writes a controller register: the drive's side, and a host whose port
    /// [has registers](Port::has_registers).
    ///
    /// # Panics
    /// As for [`register`](Port::register), and on the host's side of a shared port.
    pub fn set_register(&self, offset: usize, value: u32) {
        match &self.registers {
            Registers::Owned(region) => region.atomic_u32(offset).store(value, Ordering::Release),
            Registers::ReadOnly(_) => panic!("the host cannot set controller register {offset:#x}"),
        }
    }

    /// Returns the address of the drive memory behind a base address register, if there is any.
    pub fn bar(&self, number: u8) -> Option<Iova> {
        self.bars.get(usize::from(number))?.get().copied()
    }

    /// Sets the memory behind a base address register, for the drive's side, once. Later calls, and
    /// numbers over 5, have no effect.
    pub fn set_bar(&self, number: u8, at: Iova) {
        if let Some(bar) = self.bars.get(usize::from(number)) {
            let _ = bar.set(at);
        }
    }

    /// Returns the drive's persistent memory region, if the drive has one and this host has the right
    /// to it. It can be accessed while PMRSTS says that it is ready.
    pub fn persistent_region(&self) -> Option<&PortRegion> {
        self.region.get()
    }

    /// Gives the host the drive's persistent memory region, for the drive's side, once, before the
    /// [descriptor](Port::take_descriptor) is taken. Later calls have no effect.
    pub fn set_persistent_region(&self, region: PortRegion) {
        if let PortSide::DriveSide { published, .. } = &self.side {
            let costs = [region.costs.store, region.costs.persist];
            for (word, cost) in
                published.atomic_u64_array::<2>(REGION_COSTS_OFFSET).iter().zip(costs)
            {
                word.store(cost.0, Ordering::Relaxed);
            }
        }
        let _ = self.region.set(region);
    }

    /// Returns the address and depth of the admin submission queue.
    pub fn admin_submission(&self) -> (Iova, u16) {
        (self.admin_sq, ADMIN_DEPTH)
    }

    /// Returns the address and depth of the admin completion queue.
    pub fn admin_completion(&self) -> (Iova, u16) {
        (self.admin_cq, ADMIN_DEPTH)
    }

    /// Sets the waker of the runner that polls the drive, for the drive's side. Later calls have no
    /// effect.
    ///
    /// # Errors
    /// On a shared port, the error of [`Waker::add_remote`]: its host cannot wake the drive. A port
    /// within a process never fails.
    pub fn set_drive_waker(&self, waker: Waker) -> io::Result<()> {
        if let PortSide::DriveSide { notify: wires, published, .. } = &self.side {
            wires.bind_drive_waker(&waker, published)?;
        }
        let _ = self.drive_runner.set(DriveRunner::Wakes(waker));
        Ok(())
    }

    /// Records that the runner of the host also polls the drive, in real time: the host need not
    /// wake it. Has no effect after [`set_drive_waker`](Port::set_drive_waker).
    pub fn set_drive_polled_by_host(&self) {
        let _ = self.drive_runner.set(DriveRunner::PollsHost);
    }

    /// Binds interrupt vector `vector` to a waker, and wakes it once, because earlier interrupts
    /// may have woken another runner. Vectors out of range are ignored.
    ///
    /// # Errors
    /// On the host's side of a shared port, the error of [`Waker::add_remote`]; on a real
    /// controller, the error of [`DmaBus::bind_vector`]. Then the vector wakes no runner. A port
    /// within a process never fails.
    pub fn set_vector(&self, vector: u16, waker: Waker) -> io::Result<()> {
        match &self.side {
            PortSide::HostSide { notify: wires, .. } => {
                let flag = host_parked_offset(self.doorbell_layout, vector);
                return wires.bind_host_waker(vector, &waker, &self.doorbells, flag);
            }
            PortSide::RealController(bus) => {
                if vector < bus.vectors() {
                    bus.bind_vector(vector, &waker)?;
                    // Earlier completions may have raised an interrupt before the waker was bound.
                    waker.wake();
                }
                return Ok(());
            }
            // The vectors belong to the host, in its process.
            PortSide::DriveSide { .. } => return Err(io::ErrorKind::Unsupported.into()),
            PortSide::InProcess => {}
        }
        if let Some(slot) = self.vector_wakers.get(usize::from(vector)) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        }
        Ok(())
    }

    /// Closes a shared port on the drive's side: its host cannot wake the drive any more, and sees
    /// that the sockets are closed. Does nothing within a process.
    pub fn close(&self) {
        if let PortSide::DriveSide { notify: wires, .. } = &self.side {
            wires.close();
        }
    }

    /// Wakes the drive's runner if it is parked. Returns whether the drive has a runner in real time.
    #[inline]
    pub fn wake_drive(&self) -> bool {
        let runner = self.drive_runner.get();
        if let Some(DriveRunner::Wakes(waker)) = runner {
            waker.wake();
        }
        runner.is_some()
    }

    /// Requests the host to stamp the doorbells of its I/O queues, for the drive's side
    /// ([`SqConsumer::read_stamps`](crate::SqConsumer::read_stamps)).
    pub fn request_stamps(&self) {
        if let PortSide::DriveSide { published, .. } = &self.side {
            published.atomic_u32(STAMPS_REQUESTED_OFFSET).store(1, Ordering::Relaxed);
        }
        self.stamps_requested.store(true, Ordering::Relaxed);
    }

    /// Whether the drive requests stamps of doorbells; never a real controller.
    pub(crate) fn requests_stamps(&self) -> bool {
        match &self.side {
            PortSide::HostSide { published, .. } => {
                published.load_u32(STAMPS_REQUESTED_OFFSET) == 1
            }
            PortSide::InProcess | PortSide::DriveSide { .. } | PortSide::RealController(_) => {
                self.stamps_requested.load(Ordering::Relaxed)
            }
        }
    }

    /// Raises an interrupt vector.
    #[inline]
    pub fn interrupt(&self, vector: u16) {
        if let Some(slot) = self.vector_wakers.get(usize::from(vector))
            && let Some(waker) = &*slot.read().unwrap_or_else(PoisonError::into_inner)
        {
            waker.wake();
        }
    }

    /// Clears the tail doorbell register of a queue, its head doorbell register, or both, for the
    /// drive's side of a port [with registers](Port::with_registers). Returns whether one of them
    /// was not zero.
    pub fn clear_doorbells(&self, qid: u16, tail: bool, head: bool) -> bool {
        let mut written = false;
        for (clear, offset) in [(tail, self.sq_doorbell(qid)), (head, self.cq_doorbell(qid))] {
            if clear {
                written |= self.doorbells.atomic_u32(offset).swap(0, Ordering::Relaxed) != 0;
            }
        }
        written
    }

    /// Returns whether a doorbell register of a queue is not zero.
    #[inline]
    pub fn has_doorbell_value(&self, qid: u16) -> bool {
        [self.sq_doorbell(qid), self.cq_doorbell(qid)]
            .into_iter()
            .any(|offset| self.doorbells.atomic_u32(offset).load(Ordering::Relaxed) != 0)
    }

    /// Returns the stride of the doorbell buffer: that of the doorbells of a controller with
    /// registers, or four bytes.
    pub fn shadow_stride(&self) -> usize {
        if self.has_registers { self.doorbell_layout.stride } else { 4 }
    }

    /// Returns the doorbell stride as CAP.DSTRD has it.
    pub fn doorbell_dstrd(&self) -> u8 {
        (self.doorbell_layout.stride / 4).ilog2() as u8
    }

    /// Returns the offset of a submission queue's tail doorbell.
    pub(crate) fn sq_doorbell(&self, qid: u16) -> usize {
        self.doorbell_layout.submission(qid)
    }

    /// Returns the offset of a completion queue's head doorbell.
    pub(crate) fn cq_doorbell(&self, qid: u16) -> usize {
        self.doorbell_layout.completion(qid)
    }
}
