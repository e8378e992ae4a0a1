//! [`EmulatedDevice`]: the device's side of a stack, an NVMe drive or an AHCI controller with its
//! SATA drives. [`DevicePort`]: the part that it shares with its host.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use controller::{
    AhciController, AhciStats, Controller, DoorbellToFetch, DoorbellWaitUnknown, DriveStats,
    Lateness, LatenessRecord, SataDriveStats,
};
use driver::PersistentRegion;
use event::Waker;
use ftl::Ftl;
use mem::AddressSpace;
use time::{Component, Nanos};
use transport::{PciFunction, Port};

/// A device that the run polls.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a run has few, which are moved once")]
pub enum EmulatedDevice {
    /// An NVMe drive.
    Nvme(Controller),
    /// An AHCI controller with its SATA drives.
    Ahci(AhciDevice),
    /// A device of this machine, by name: the run has nothing to poll.
    Real(String),
}

/// An AHCI controller with its SATA drives.
#[derive(Debug)]
pub struct AhciDevice {
    controller: AhciController,
    /// Names of the drives, by port; at least one.
    names: Vec<String>,
    /// Whether one of the drives stores data.
    stores_data: bool,
    /// Number of polls that made progress.
    progress: u64,
}

/// The part of a device that its host shares.
#[derive(Clone, Debug)]
pub enum DevicePort {
    /// The port of an NVMe drive.
    Nvme(Arc<Port>),
    /// The PCI function of an AHCI controller.
    Ahci(Arc<PciFunction>),
    /// A device of this machine, which is open as long as its queues.
    Real {
        /// Memory that the device may access.
        memory: AddressSpace,
        /// Dropped after the queues, if anything must be.
        guard: Option<Arc<dyn KeepOpen>>,
    },
}

/// A value that keeps a device of this machine open.
pub trait KeepOpen: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> KeepOpen for T {}

impl DevicePort {
    /// Returns the persistent memory region of the drive, if it is an emulated NVMe drive with one.
    pub fn persistent_region(&self) -> Option<PersistentRegion> {
        match self {
            DevicePort::Nvme(port) => PersistentRegion::of_port(port),
            DevicePort::Ahci(_) | DevicePort::Real { .. } => None,
        }
    }

    /// Sets the waker of the thread that polls the device.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn set_drive_waker(&self, waker: Waker) -> io::Result<()> {
        match self {
            DevicePort::Nvme(port) => port.set_drive_waker(waker),
            DevicePort::Ahci(function) => {
                function.set_device_waker(waker);
                Ok(())
            }
            DevicePort::Real { .. } => Ok(()),
        }
    }

    /// Records that the thread of the host also polls the device, in real time.
    pub fn set_drive_polled_by_host(&self) {
        if let DevicePort::Nvme(port) = self {
            port.set_drive_polled_by_host();
        }
    }

    /// Returns the memory that the device may access.
    pub fn memory(&self) -> &AddressSpace {
        match self {
            DevicePort::Nvme(port) => port.memory(),
            DevicePort::Ahci(function) => function.memory(),
            DevicePort::Real { memory, .. } => memory,
        }
    }
}

/// A device that jobs and preconditioning simulate together with one host.
pub trait SimulatedDevice: Component {
    /// Returns a number that changes with everything that a host can find when it is polled.
    fn posted(&self) -> u64;

    /// Processes the device's own events before `limit`, until [`posted`](SimulatedDevice::posted)
    /// changes. Returns the time of the last event if it has changed, and else the device's
    /// deadline, which is not before `limit`. No host may have been polled since the device was.
    #[inline]
    fn run_before(&mut self, limit: Nanos) -> Nanos {
        let posted = self.posted();
        loop {
            let next = self.deadline();
            if next >= limit {
                return next;
            }
            self.poll(next);
            if self.posted() != posted {
                return next;
            }
        }
    }

    /// Switches all latencies off or on.
    fn set_zero_latency(&mut self, instant: bool);

    /// Resets the counters to zero.
    fn reset_stats(&mut self);

    /// Returns the FTL of a drive that manages its flash.
    fn ftl(&self) -> Option<&Ftl>;

    /// Returns the drive, if it takes [direct writes](Controller::takes_direct_writes).
    fn direct_writes(&mut self) -> Option<&mut Controller> {
        None
    }
}

impl SimulatedDevice for Controller {
    #[inline]
    fn posted(&self) -> u64 {
        Controller::posted(self)
    }

    #[inline]
    fn run_before(&mut self, limit: Nanos) -> Nanos {
        Controller::run_before(self, limit)
    }

    fn set_zero_latency(&mut self, instant: bool) {
        Controller::set_zero_latency(self, instant);
    }

    fn reset_stats(&mut self) {
        Controller::reset_stats(self);
    }

    fn ftl(&self) -> Option<&Ftl> {
        Controller::ftl(self)
    }

    fn direct_writes(&mut self) -> Option<&mut Controller> {
        self.takes_direct_writes().then_some(self)
    }
}

impl AhciDevice {
    /// Returns the device of a controller. `names` are those of its drives, by port.
    pub(crate) fn new(
        controller: AhciController,
        names: Vec<String>,
        stores_data: bool,
    ) -> AhciDevice {
        AhciDevice { controller, names, stores_data, progress: 0 }
    }

    /// Returns the counters of the controller and of the drive at each port.
    pub fn stats(&self) -> AhciStats {
        self.controller.stats()
    }
}

impl Component for AhciDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = self.controller.poll(now);
        self.progress += u64::from(moved);
        moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.controller.deadline()
    }
}

impl SimulatedDevice for AhciDevice {
    fn posted(&self) -> u64 {
        self.progress
    }

    fn set_zero_latency(&mut self, instant: bool) {
        self.controller.set_zero_latency(instant);
    }

    fn reset_stats(&mut self) {
        self.controller.reset_stats();
    }

    fn ftl(&self) -> Option<&Ftl> {
        None
    }
}

impl From<Controller> for EmulatedDevice {
    fn from(drive: Controller) -> EmulatedDevice {
        EmulatedDevice::Nvme(drive)
    }
}

/// Returns the counters of a SATA drive as those of a drive.
fn sata_drive_stats(sata: &SataDriveStats, late: Lateness) -> DriveStats {
    let SataDriveStats { reads, writes, others, bytes_read, bytes_written, .. } = *sata;
    let errors = sata.errors + sata.fatal_errors;
    DriveStats {
        reads,
        writes,
        others,
        errors,
        bytes_read,
        bytes_written,
        late,
        doorbell_to_fetch: DoorbellToFetch::Unknown(DoorbellWaitUnknown::Ahci),
        ..DriveStats::default()
    }
}

impl EmulatedDevice {
    /// Returns the name of the drive; of the first one of a controller with several.
    pub fn name(&self) -> &str {
        match self {
            EmulatedDevice::Nvme(drive) => &drive.config().name,
            EmulatedDevice::Ahci(ahci) => &ahci.names[0],
            EmulatedDevice::Real(name) => name,
        }
    }

    /// Returns the NVMe drive, if it is one.
    pub fn nvme(&self) -> Option<&Controller> {
        match self {
            EmulatedDevice::Nvme(drive) => Some(drive),
            EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => None,
        }
    }

    /// Returns mutable access to the NVMe drive, if it is one.
    pub fn nvme_mut(&mut self) -> Option<&mut Controller> {
        match self {
            EmulatedDevice::Nvme(drive) => Some(drive),
            EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => None,
        }
    }

    /// Returns the name and the counters of each drive of the device: of one, or of those at the ports
    /// of an AHCI controller, in order, each with the lateness of the controller.
    pub fn drives(&self) -> Vec<(String, DriveStats)> {
        match self {
            EmulatedDevice::Nvme(drive) => vec![(drive.config().name.clone(), drive.stats())],
            EmulatedDevice::Ahci(ahci) => {
                let AhciStats { late, drives, .. } = ahci.stats();
                let stats = drives.iter().map(|sata| sata_drive_stats(sata, late));
                ahci.names.iter().cloned().zip(stats).collect()
            }
            EmulatedDevice::Real(name) => {
                let doorbell_to_fetch = DoorbellToFetch::Unknown(DoorbellWaitUnknown::RealDevice);
                vec![(name.clone(), DriveStats { doorbell_to_fetch, ..DriveStats::default() })]
            }
        }
    }

    /// Returns the counters of one of its [`drives`](EmulatedDevice::drives); zero for another name.
    pub fn stats(&self, name: &str) -> DriveStats {
        let found = self.drives().into_iter().find(|(of, _)| of == name);
        found.map(|(_, stats)| stats).unwrap_or_default()
    }

    /// Records that the machine did not run the device's thread from `from` to `to`
    /// ([`Controller::record_thread_gap`]).
    pub fn record_thread_gap(&mut self, from: Nanos, to: Nanos) {
        match self {
            EmulatedDevice::Nvme(drive) => drive.record_thread_gap(from, to),
            EmulatedDevice::Ahci(ahci) => ahci.controller.record_thread_gap(from, to),
            EmulatedDevice::Real(_) => {}
        }
    }

    /// Returns the distribution of completion lateness; empty for a real device.
    pub fn lateness(&self) -> LatenessRecord {
        match self {
            EmulatedDevice::Nvme(drive) => drive.lateness().clone(),
            EmulatedDevice::Ahci(ahci) => ahci.controller.lateness().clone(),
            EmulatedDevice::Real(_) => LatenessRecord::default(),
        }
    }

    /// Returns the number of in-flight I/O commands.
    pub fn outstanding(&self) -> usize {
        match self {
            EmulatedDevice::Nvme(drive) => drive.outstanding(),
            EmulatedDevice::Ahci(ahci) => ahci.controller.outstanding(),
            EmulatedDevice::Real(_) => 0,
        }
    }

    /// Returns whether written data can be read again.
    pub fn stores_data(&self) -> bool {
        match self {
            EmulatedDevice::Nvme(drive) => drive.stores_data(),
            EmulatedDevice::Ahci(ahci) => ahci.stores_data,
            EmulatedDevice::Real(_) => true,
        }
    }

    /// Writes what the drive buffers to its media, and syncs the image. A SATA drive stores its
    /// data in memory.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn shut_down(self) -> io::Result<()> {
        match self {
            EmulatedDevice::Nvme(drive) => drive.shut_down(),
            EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => Ok(()),
        }
    }
}

impl Component for EmulatedDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        match self {
            EmulatedDevice::Nvme(drive) => drive.poll(now),
            EmulatedDevice::Ahci(ahci) => ahci.poll(now),
            EmulatedDevice::Real(_) => false,
        }
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        match self {
            EmulatedDevice::Nvme(drive) => drive.deadline(),
            EmulatedDevice::Ahci(ahci) => ahci.deadline(),
            EmulatedDevice::Real(_) => Nanos::MAX,
        }
    }
}

impl SimulatedDevice for EmulatedDevice {
    #[inline]
    fn posted(&self) -> u64 {
        match self {
            EmulatedDevice::Nvme(drive) => drive.posted(),
            EmulatedDevice::Ahci(ahci) => ahci.posted(),
            EmulatedDevice::Real(_) => 0,
        }
    }

    fn set_zero_latency(&mut self, instant: bool) {
        match self {
            EmulatedDevice::Nvme(drive) => drive.set_zero_latency(instant),
            EmulatedDevice::Ahci(ahci) => ahci.set_zero_latency(instant),
            EmulatedDevice::Real(_) => {}
        }
    }

    fn reset_stats(&mut self) {
        match self {
            EmulatedDevice::Nvme(drive) => drive.reset_stats(),
            EmulatedDevice::Ahci(ahci) => ahci.reset_stats(),
            EmulatedDevice::Real(_) => {}
        }
    }

    fn ftl(&self) -> Option<&Ftl> {
        self.nvme().and_then(Controller::ftl)
    }

    fn direct_writes(&mut self) -> Option<&mut Controller> {
        self.nvme_mut().and_then(SimulatedDevice::direct_writes)
    }
}
