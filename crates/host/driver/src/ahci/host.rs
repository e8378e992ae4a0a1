//! [`AhciHost`]: initialization, and the controller as a low-level driver.

use std::sync::Arc;

use ahci::hba::{self, cap, ghc};
use ahci::port::{cmd, is, ssts};
use ahci::{COMMAND_SLOTS_MAX, Identify, PORTS_MAX, port};
use mem::AddressSpace;
use transport::PciFunction;

use super::command::DriveCapabilities;
use super::irq_line::HbaShared;
use super::memory::{PRDT_ENTRIES_MAX, PortMemory, SCRATCH_BYTES, TRIM_BLOCKS_MAX};
use super::port::{ENABLED, PortRegisters};
use super::{AhciError, AhciInterrupt, AhciPort};
use crate::hal::{Features, Limits, LowLevelDriver};

/// Maximum bytes per request: what the regions of a bit bucket cover, with any sector size.
const TRANSFER_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(TRANSFER_BYTES_MAX / SCRATCH_BYTES <= PRDT_ENTRIES_MAX);

/// A drive of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveIdentity {
    /// Port of the drive.
    pub port: u8,
    /// IDENTIFY DEVICE data of the drive.
    pub identify: Identify,
    /// Limits of the drive's queue.
    pub limits: Limits,
}

/// An initialized controller and its drives.
///
/// As a [`LowLevelDriver`] it has as many hardware queues as drives, **and queue `i` is drive
/// `i`**. A request must go to the queue of the drive that has its sectors. The owner of the queues
/// distributes sectors over them; [HIOPS14 §4] uses software RAID 0.
/// [`map_queue`](LowLevelDriver::map_queue) has no meaning here. [`limits`](LowLevelDriver::limits)
/// returns the smallest limits of all drives.
#[derive(Debug)]
pub struct AhciHost {
    shared: Arc<HbaShared>,
    drives: Vec<DriveIdentity>,
    queues: Vec<Option<AhciPort>>,
    limits: Limits,
    discard: bool,
}

/// Polls the controller until a condition is true.
struct BoundedPoll<'a> {
    progress: &'a mut dyn FnMut(),
    polls: u64,
}

impl BoundedPoll<'_> {
    fn wait(
        &mut self,
        step: &'static str,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), AhciError> {
        for _ in 0..self.polls {
            if done() {
                return Ok(());
            }
            (self.progress)();
        }
        if done() { Ok(()) } else { Err(AhciError::Timeout { step, polls: self.polls }) }
    }
}

impl AhciHost {
    /// Resets the controller at the other end of `function` and initializes it and its drives
    /// ([AHCI1.3 §10.1.2]).
    ///
    /// Calls `progress` between polls of the controller: it lets time pass in virtual time, and yields
    /// in real time. A step may take `timeout_polls` calls. Interrupts are enabled afterwards.
    ///
    /// # Errors
    /// [`AhciError`]: the controller does not react, is not usable, has no drive, or has a drive
    /// that is not usable (native command queuing is required).
    pub fn connect(
        function: Arc<PciFunction>,
        progress: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<AhciHost, AhciError> {
        if function.register_bytes() < hba::bytes(1) {
            return Err(AhciError::Unsupported("it has no port registers"));
        }
        let mut patience = BoundedPoll { progress, polls: timeout_polls };
        function.set_bits(hba::GHC, ghc::AE);
        function.set_bits(hba::GHC, ghc::HR);
        function.wake_device();
        patience.wait("the reset of the controller", || function.read(hba::GHC) & ghc::HR == 0)?;
        function.set_bits(hba::GHC, ghc::AE);
        let capabilities = function.read(hba::CAP);
        if capabilities & cap::SNCQ == 0 || capabilities & cap::S64A == 0 {
            return Err(AhciError::Unsupported("no native command queuing, or 32-bit addresses"));
        }
        let implemented = function.read(hba::PI);
        let there = (function.register_bytes() - hba::PORT_BASE) / hba::PORT_BYTES;
        if implemented.checked_shr(there as u32).unwrap_or(0) != 0 {
            return Err(AhciError::Unsupported("ports without registers"));
        }
        let slots = cap::slots(capabilities);
        let shared = Arc::new(HbaShared::new(function.clone()));
        let (mut drives, mut queues) = (Vec::new(), Vec::new());
        for index in (0..PORTS_MAX as u8).filter(|i| implemented >> i & 1 != 0) {
            if let Some((drive, queue)) = init_port(&shared, index, slots, &mut patience)? {
                drives.push(drive);
                queues.push(Some(queue));
            }
        }
        let every = drives.iter().map(|drive| drive.limits).reduce(|a, b| Limits {
            sector_bytes: a.sector_bytes,
            sectors: a.sectors.min(b.sectors),
            max_sectors: a.max_sectors.min(b.max_sectors),
            optimal_sectors: a.optimal_sectors.max(b.optimal_sectors),
            queue_depth: a.queue_depth.min(b.queue_depth),
            volatile_cache: a.volatile_cache || b.volatile_cache,
            atomic: crate::AtomicLimits::NONE,
        });
        let limits = every.ok_or(AhciError::NoDrive { ports: implemented.count_ones() })?;
        if let Some(odd) = drives.iter().find(|d| d.limits.sector_bytes != limits.sector_bytes) {
            let reason = "its sectors have another size than those of the drives before it";
            return Err(AhciError::Drive { port: odd.port, reason });
        }
        let discard = drives.iter().all(|drive| drive.identify.trim);
        function.set_bits(hba::GHC, ghc::IE);
        function.wake_device();
        Ok(AhciHost { shared, drives, queues, limits, discard })
    }

    /// Returns the drives, by queue.
    pub fn drives(&self) -> &[DriveIdentity] {
        &self.drives
    }

    /// Returns the controller's interrupt.
    pub fn interrupt(&self) -> AhciInterrupt {
        AhciInterrupt::new(self.shared.clone())
    }

    /// Hands out all remaining queues, in order.
    pub fn take_queues(&mut self) -> Vec<AhciPort> {
        self.queues.iter_mut().filter_map(Option::take).collect()
    }
}

/// Initializes a port ([AHCI1.3 §10.1.2]); returns `None` if it has no drive.
fn init_port(
    shared: &Arc<HbaShared>,
    index: u8,
    slots: u32,
    patience: &mut BoundedPoll<'_>,
) -> Result<Option<(DriveIdentity, AhciPort)>, AhciError> {
    let function = shared.function.clone();
    let wiring = PortRegisters { shared: shared.clone(), index };
    if ssts::det(wiring.read(port::SSTS)) == 0 {
        return Ok(None);
    }
    let memory = PortMemory::new(function.memory())?;
    wiring.set_base_addresses(memory.list(), memory.received());
    wiring.set(port::CMD, cmd::FRE | cmd::SUD | cmd::POD);
    function.wake_device();
    patience.wait("the link of a port", || ssts::det(wiring.read(port::SSTS)) == ssts::DET_UP)?;
    patience.wait("a drive's readiness", || !wiring.is_busy())?;
    wiring.clear_errors();
    wiring.set(port::CMD, cmd::ST);
    function.wake_device();
    patience.wait("the start of a port", || wiring.read(port::CMD) & cmd::CR != 0)?;
    wiring.issue_identify(&memory);
    patience.wait("IDENTIFY DEVICE", || {
        wiring.read(port::CI) & 1 == 0 || wiring.read(port::IS) & is::FATAL != 0
    })?;
    let failed = |reason| AhciError::Drive { port: index, reason };
    if wiring.read(port::IS) & is::FATAL != 0 {
        return Err(failed("it refused IDENTIFY DEVICE"));
    }
    let identify = Identify::from_bytes(&memory.read_page());
    let identify = identify.ok_or(failed("the checksum of its IDENTIFY DEVICE is wrong"))?;
    let limits = limits(&identify, slots).map_err(failed)?;
    wiring.clear_errors();
    wiring.write(port::IE, ENABLED);
    let trim_blocks =
        if identify.trim { identify.trim_blocks.clamp(1, TRIM_BLOCKS_MAX as u16) } else { 0 };
    let queue = AhciPort::new(wiring, memory, DriveCapabilities { limits, trim_blocks });
    Ok(Some((DriveIdentity { port: index, identify, limits }, queue)))
}

fn limits(identify: &Identify, slots: u32) -> Result<Limits, &'static str> {
    if !identify.queuing {
        return Err("it has no native command queuing");
    }
    let sector_bytes = identify.sector_bytes;
    if !sector_bytes.is_power_of_two() || !(512..=65_536).contains(&sector_bytes) {
        return Err("the size of its sectors is not a power of two from 512 to 65,536");
    }
    if identify.sectors == 0 || identify.sectors >> 48 != 0 {
        return Err("it has no sectors, or more than 48 bits can name");
    }
    Ok(Limits {
        sector_bytes,
        sectors: identify.sectors,
        max_sectors: TRANSFER_BYTES_MAX as u32 / sector_bytes,
        optimal_sectors: (4096 / sector_bytes).max(1),
        queue_depth: identify.queue_depth.min(slots).clamp(1, COMMAND_SLOTS_MAX as u32),
        volatile_cache: identify.write_cache,
        atomic: crate::AtomicLimits::NONE,
    })
}

impl LowLevelDriver for AhciHost {
    type Queue = AhciPort;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn features(&self) -> Features {
        Features {
            segments: PRDT_ENTRIES_MAX as u16,
            fua: true,
            discard: self.discard,
            write_zeroes: false,
            extents: false,
            atomic: crate::AtomicLimits::NONE,
        }
    }

    fn queues(&self) -> u16 {
        self.drives.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        self.shared.function.memory()
    }

    fn take_queue(&mut self, index: u16) -> Option<AhciPort> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}
