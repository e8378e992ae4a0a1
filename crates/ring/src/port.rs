//! [`Port`]: one host's connection to a drive.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use clock::Waker;

use crate::port_descriptor::clone_fd;
use crate::remote_notify::{
    DRIVE_PARKED_OFFSET, PUBLISHED_BYTES, RemoteNotify, host_parked_offset, socket_pair,
};
use crate::{
    AddressSpace, ControllerOwnership, DmaBus, DmaWindow, DoorbellLayout, Iova, JoinError,
    PAGE_BYTES, PortDescriptor, PortLimits, ReadOnlyRegion, RegisterError, RegistrationExporter,
    SharedParkedFlag, SharedParkedFlagReader, SharedRegion,
};

/// Queue identifiers 0 (admin) to `MAX_QUEUES - 1`.
pub const MAX_QUEUES: u16 = 1025;

/// Bytes between doorbells (NVMe CAP.DSTRD = 4), so that no two share a cache line.
pub const DOORBELL_STRIDE: usize = 64;

/// Base address registers of a PCI function.
const BARS: usize = 6;

/// Entries of the admin queues.
pub(crate) const ADMIN_DEPTH: u16 = 64;

/// Memory of both admin queues.
const ADMIN_BYTES: usize = 2 * PAGE_BYTES;
const DOORBELL_BYTES: usize = 2 * MAX_QUEUES as usize * DOORBELL_STRIDE;
/// Of any part of a shared port.
const PART_BYTES_MAX: u64 = 1 << 20;

/// One host's connection to a drive: what a PCI function is to a real one. Both sides hold it; it
/// has the memory the drive may touch, the doorbells, where the admin queues are (NVMe's AQA, ASQ
/// and ACQ registers), and how each side wakes the other.
///
/// A port within a process is one object for both sides. One between processes is two: the drive's
/// side makes it ([`Port::shared`]) and gives its [parts](PortDescriptor) to the host's process, which puts
/// them together ([`Port::join`]). Whoever has the port need not know which it is.
#[derive(Debug)]
pub struct Port {
    memory: AddressSpace,
    doorbells: Arc<SharedRegion>,
    doorbell_layout: DoorbellLayout,
    registers: Registers,
    bars: [OnceLock<Iova>; BARS],
    admin_sq: Iova,
    admin_cq: Iova,
    drive_waker: OnceLock<Waker>,
    /// Read once for a batch of completions, and written to when a queue changes hands. None on
    /// the host's side.
    vector_wakers: Vec<RwLock<Option<Waker>>>,
    side: PortSide,
}

/// Controller registers, at their NVMe offsets; those that nobody needs are zero.
#[derive(Debug)]
enum Registers {
    Owned(Arc<SharedRegion>),
    ReadOnly(Arc<ReadOnlyRegion>),
}

/// Where the two sides are.
#[derive(Debug)]
enum PortSide {
    /// Both here.
    InProcess,
    /// The host is in another process. Its ends of the wires are here until it gets them.
    DriveSide {
        notify: RemoteNotify,
        peer_sockets: Mutex<Option<(OwnedFd, Vec<OwnedFd>)>>,
        queues: Arc<SharedRegion>,
    },
    /// The drive is in another process.
    HostSide(RemoteNotify),
    /// The drive is a real controller.
    RealController(Arc<dyn DmaBus>),
}

impl Port {
    /// A port with its admin queues' memory and no I/O queues.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new() -> io::Result<Arc<Port>> {
        let memory = AddressSpace::default();
        let queues = SharedRegion::anonymous(ADMIN_BYTES)?;
        let base = memory.register(&queues).map_err(|e: RegisterError| io::Error::other(e))?;
        Ok(Arc::new(Port {
            memory,
            doorbells: SharedRegion::anonymous(DOORBELL_BYTES)?,
            doorbell_layout: DoorbellLayout::EMULATED,
            registers: Registers::Owned(SharedRegion::anonymous(PAGE_BYTES)?),
            bars: Default::default(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_waker: OnceLock::new(),
            vector_wakers: (0..MAX_QUEUES).map(|_| RwLock::default()).collect(),
            side: PortSide::InProcess,
        }))
    }

    /// The drive's side of a port whose host is in another process, which gets the
    /// [parts](Port::take_descriptor).
    ///
    /// # Errors
    /// What making memory and sockets returns; `InvalidInput` for more vectors than
    /// [`Limits::MAX_VECTORS`].
    pub fn shared(limits: PortLimits) -> io::Result<Arc<Port>> {
        if limits.vectors > PortLimits::MAX_VECTORS {
            let text = format!("{} vectors, {} at most", limits.vectors, PortLimits::MAX_VECTORS);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let shown = SharedRegion::published_memfd(PUBLISHED_BYTES)?;
        let queues = SharedRegion::memfd(ADMIN_BYTES)?;
        let doorbells = SharedRegion::memfd(host_parked_offset(limits.vectors))?;
        let (memory, base) = AddressSpace::for_remote_host(limits, &queues);
        let (ours, theirs) = socket_pair()?;
        let (mut our_vectors, mut their_vectors) = (Vec::new(), Vec::new());
        for _ in 0..limits.vectors {
            let (ours, theirs) = socket_pair()?;
            our_vectors.push(ours);
            their_vectors.push(theirs);
        }
        let wires = RemoteNotify::new(ours, our_vectors, 1);
        let vector = |(number, wire): (u16, &Arc<OwnedFd>)| {
            let parked = SharedParkedFlag::new(&doorbells, host_parked_offset(number));
            RwLock::new(Some(Waker::remote(Box::new(parked), wire.clone())))
        };
        let vectors = (0..limits.vectors).zip(&wires.vectors).map(vector).collect();
        let theirs = Mutex::new(Some((theirs, their_vectors)));
        Ok(Arc::new(Port {
            memory,
            doorbells,
            doorbell_layout: DoorbellLayout::EMULATED,
            registers: Registers::Owned(shown),
            bars: Default::default(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_waker: OnceLock::new(),
            vector_wakers: vectors,
            side: PortSide::DriveSide { notify: wires, peer_sockets: theirs, queues },
        }))
    }

    /// What the host's process needs of a [shared](Port::shared) port; nothing of it stays here, so
    /// that the wires break when that process ends.
    ///
    /// # Errors
    /// `Unsupported` for a port that is not the drive's side of a shared one, `AlreadyExists` when
    /// they have been given out, or what `dup(2)` returns.
    pub fn take_descriptor(&self) -> io::Result<PortDescriptor> {
        let (PortSide::DriveSide { peer_sockets: theirs, queues, .. }, Registers::Owned(shown)) =
            (&self.side, &self.registers)
        else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (shown, doorbells, queues) =
            (clone_fd(shown)?, clone_fd(&self.doorbells)?, clone_fd(queues)?);
        let taken = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (drive, vectors) = taken.ok_or(io::ErrorKind::AlreadyExists)?;
        Ok(PortDescriptor { published: shown, doorbells, queues, drive, vectors })
    }

    /// The host's side of a port whose drive is in another process. Memory that is registered from
    /// now on goes there by way of `hand_over`.
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
        let vectors = parts.vectors.len();
        let doorbells = adopt("doorbells", parts.doorbells, host_parked_offset(vectors as u16))?;
        let queues = adopt("admin queues", parts.queues, ADMIN_BYTES)?;
        let what = "registers";
        let shown = ReadOnlyRegion::import(parts.published, PART_BYTES_MAX)
            .map_err(|source| JoinError::Memory { what, source })?;
        if shown.len() < PUBLISHED_BYTES {
            return Err(JoinError::Short { what, bytes: shown.len(), least: PUBLISHED_BYTES });
        }
        let (memory, base) = AddressSpace::with_exporter(hand_over, &queues);
        let wires = RemoteNotify::new(parts.drive, parts.vectors, vectors);
        let parked = SharedParkedFlagReader::new(&shown, DRIVE_PARKED_OFFSET);
        let waker = Waker::remote(Box::new(parked), wires.drive.clone());
        Ok(Arc::new(Port {
            memory,
            doorbells,
            doorbell_layout: DoorbellLayout::EMULATED,
            registers: Registers::ReadOnly(shown),
            bars: Default::default(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_waker: OnceLock::from(waker),
            vector_wakers: Vec::new(),
            side: PortSide::HostSide(wires),
        }))
    }

    /// The host's side of a port whose drive is a real controller: its registers and doorbells are
    /// `registers` (what its base address register 0 maps), and memory is registered at addresses
    /// of `window`, by way of `bus`.
    ///
    /// # Errors
    /// Making or mapping the admin queues' memory; `InvalidInput` for registers without doorbells.
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
            bars: Default::default(),
            admin_sq: base,
            admin_cq: base.offset(PAGE_BYTES as u64),
            drive_waker: OnceLock::new(),
            vector_wakers: Vec::new(),
            side: PortSide::RealController(bus),
        }))
    }

    /// Whether the other side is in another process.
    pub fn is_shared(&self) -> bool {
        matches!(self.side, PortSide::DriveSide { .. } | PortSide::HostSide(_))
    }

    /// Whether the drive's side is here.
    pub fn has_drive(&self) -> bool {
        matches!(self.side, PortSide::InProcess | PortSide::DriveSide { .. })
    }

    /// Whether the drive is a real controller, with registers that do something.
    pub fn is_real_controller(&self) -> bool {
        matches!(self.side, PortSide::RealController(_))
    }

    /// Whose a real controller is ([`DmaBus::ownership`]); a drive is its port's.
    pub fn ownership(&self) -> ControllerOwnership {
        match &self.side {
            PortSide::RealController(bus) => bus.ownership(),
            PortSide::InProcess | PortSide::DriveSide { .. } | PortSide::HostSide(_) => {
                ControllerOwnership::Owned
            }
        }
    }

    /// I/O queues that there are doorbells and, on a real controller, interrupt vectors for; the
    /// admin queue has the first of each.
    pub fn max_io_queues(&self) -> u16 {
        let queues = self.doorbell_layout.max_queues_for_bar(self.doorbells.len()) - 1;
        match &self.side {
            PortSide::RealController(bus) if bus.vectors() > 0 => queues.min(bus.vectors() - 1),
            _ => queues,
        }
    }

    /// Interrupt vectors.
    pub fn vectors(&self) -> u16 {
        match &self.side {
            PortSide::InProcess | PortSide::DriveSide { .. } => self.vector_wakers.len() as u16,
            PortSide::HostSide(wires) => wires.vectors.len() as u16,
            PortSide::RealController(bus) => bus.vectors(),
        }
    }

    /// Whether completions can wake anybody: not those of a real controller whose interrupts are not
    /// to be had.
    pub fn has_interrupts(&self) -> bool {
        !matches!(&self.side, PortSide::RealController(bus) if bus.vectors() == 0)
    }

    /// The memory that the drive may touch for this host.
    pub fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// The region of the doorbells: submission tails at even strides, completion heads at odd. A
    /// real controller has its registers before them, and strides of its own.
    pub fn doorbells(&self) -> &Arc<SharedRegion> {
        &self.doorbells
    }

    /// The 32-bit controller register at `offset`, a multiple of 4 below 4096 (NVMe section 3.1).
    ///
    /// # Panics
    /// When there is no such register: offsets are the code's own, never the other side's.
    pub fn register(&self, offset: usize) -> u32 {
        match &self.registers {
            Registers::Owned(region) => region.atomic_u32(offset).load(Ordering::Acquire),
            Registers::ReadOnly(view) => view.load_u32(offset),
        }
    }

    /// Sets a controller register, which is for the drive to do; those of a real controller are set
    /// by its driver.
    ///
    /// # Panics
    /// As for [`register`](Port::register), and on the host's side of a shared port.
    pub fn set_register(&self, offset: usize, value: u32) {
        match &self.registers {
            Registers::Owned(region) => region.atomic_u32(offset).store(value, Ordering::Release),
            Registers::ReadOnly(_) => panic!("a host sets no controller register ({offset:#x})"),
        }
    }

    /// Where the memory behind a base address register is, if there is some: memory of the drive
    /// that the host reaches into.
    pub fn bar(&self, number: u8) -> Option<Iova> {
        self.bars.get(usize::from(number))?.get().copied()
    }

    /// Says what memory is behind a base address register, which is for the drive to do, once.
    /// Later calls, and those for numbers over 5, are ignored.
    pub fn set_bar(&self, number: u8, at: Iova) {
        if let Some(bar) = self.bars.get(usize::from(number)) {
            let _ = bar.set(at);
        }
    }

    /// Address and entries of the admin submission queue.
    pub fn admin_submission(&self) -> (Iova, u16) {
        (self.admin_sq, ADMIN_DEPTH)
    }

    /// Address and entries of the admin completion queue.
    pub fn admin_completion(&self) -> (Iova, u16) {
        (self.admin_cq, ADMIN_DEPTH)
    }

    /// Says how to wake the runner that polls the drive, which is for the drive's side to do. Later
    /// calls are ignored.
    ///
    /// # Errors
    /// On a shared port, what [`Waker::add_remote`] returns: its host cannot wake the drive. A port within
    /// a process refuses nothing.
    pub fn set_drive_waker(&self, waker: Waker) -> io::Result<()> {
        if let (PortSide::DriveSide { notify: wires, .. }, Registers::Owned(shown)) =
            (&self.side, &self.registers)
        {
            wires.bind_drive_waker(&waker, shown)?;
        }
        let _ = self.drive_waker.set(waker);
        Ok(())
    }

    /// Says whom interrupt vector `vector` wakes from now on: what came before may have woken
    /// another. Vectors out of range are ignored.
    ///
    /// # Errors
    /// On the host's side of a shared port, what [`Waker::add_remote`] returns, and on a real
    /// controller's, what [`DmaBus::bind_vector`] returns: the vector wakes nobody.
    /// A port within a process refuses nothing.
    pub fn set_vector(&self, vector: u16, waker: Waker) -> io::Result<()> {
        match &self.side {
            PortSide::HostSide(wires) => {
                return wires.bind_host_waker(vector, &waker, &self.doorbells);
            }
            PortSide::RealController(bus) => {
                if vector < bus.vectors() {
                    bus.bind_vector(vector, &waker)?;
                    // What was completed before raised an interrupt that woke nobody.
                    waker.wake();
                }
                return Ok(());
            }
            // The host's own, in its process.
            PortSide::DriveSide { .. } => return Err(io::ErrorKind::Unsupported.into()),
            PortSide::InProcess => {}
        }
        if let Some(slot) = self.vector_wakers.get(usize::from(vector)) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        }
        Ok(())
    }

    /// The drive has let go of a shared port: its host wakes it no more, and hears that the wires are
    /// closed. Nothing to do within a process.
    pub fn close(&self) {
        if let PortSide::DriveSide { notify: wires, .. } = &self.side {
            wires.close();
        }
    }

    /// Wakes the drive's runner if it sleeps.
    #[inline]
    pub fn wake_drive(&self) {
        if let Some(waker) = self.drive_waker.get() {
            waker.wake();
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

    /// How far apart doorbells in memory are: as a real controller's registers, or four bytes.
    pub fn shadow_stride(&self) -> usize {
        if self.is_real_controller() { self.doorbell_layout.stride } else { 4 }
    }

    /// Offset of a submission queue's tail doorbell.
    pub(crate) fn sq_doorbell(&self, qid: u16) -> usize {
        self.doorbell_layout.submission(qid)
    }

    /// Offset of a completion queue's head doorbell.
    pub(crate) fn cq_doorbell(&self, qid: u16) -> usize {
        self.doorbell_layout.completion(qid)
    }
}
