//! [`open_controller`] opens and initializes a controller of this machine; [`ControllerGuard`]
//! shuts it down.

use std::sync::Arc;
use std::time::Duration;

use mem::{DmaWindow, SharedRegion};
use nvme::Cap;
use time::Nanos;
use transport::{DmaBus, DoorbellLayout, Port};

use super::{PciAddress, PciDriver, PciError, SysfsPci, UioFunction, VfioFunction};
use crate::controller::init::{self, ProgressPace};
use crate::{ConnectOptions, ControllerHandle};

/// Default number of I/O queues to request: each takes an interrupt vector of the machine.
const QUEUES_DEFAULT: u16 = 32;

/// Minimum duration of [`progress`].
pub const INIT_PROGRESS_INTERVAL: Nanos = Nanos::from_micros(50);

/// Waits for [`INIT_PROGRESS_INTERVAL`], while a controller has not completed an admin command.
pub fn progress() {
    std::thread::sleep(Duration::from_nanos(INIT_PROGRESS_INTERVAL.0));
}

/// An initialized controller and its guard.
#[derive(Debug)]
pub struct OpenedController {
    /// The controller.
    pub controller: ControllerHandle,
    /// The guard. Drop it after everything that uses the controller.
    pub guard: ControllerGuard,
    /// The kernel driver that gives access to the controller.
    pub kernel_driver: PciDriver,
}

/// Notifies the controller of a normal shutdown when it is dropped, and disables it.
#[derive(Debug)]
pub struct ControllerGuard {
    port: Arc<Port>,
}

impl Drop for ControllerGuard {
    fn drop(&mut self) {
        // The kernel resets a controller that does not respond.
        let _ = init::shut_down(
            &self.port,
            &mut progress,
            ProgressPace::Interval(INIT_PROGRESS_INTERVAL),
        );
    }
}

/// Returns the capabilities in a controller's registers.
fn capabilities(registers: &SharedRegion) -> Cap {
    use std::sync::atomic::Ordering::Acquire;
    let half = |offset: usize| u64::from(registers.atomic_u32(offset).load(Acquire));
    let low = half(nvme::register::CAP);
    Cap::from_value(low | half(nvme::register::CAP + 4) << 32)
}

/// Opens the NVMe controller at `address` through VFIO and initializes it.
///
/// # Errors
/// [`PciError`].
pub fn open_controller(
    system: &SysfsPci,
    address: PciAddress,
    options: ConnectOptions,
) -> Result<OpenedController, PciError> {
    let queues = options.queues.unwrap_or(QUEUES_DEFAULT);
    let function = VfioFunction::open(system, address, queues.saturating_add(1))?;
    let (registers, window) = (function.registers()?, function.window());
    start(address, (registers, window, Arc::new(function)), PciDriver::VfioPci, options)
}

/// Opens and initializes a controller without an IOMMU, through `uio_pci_generic`. It has no
/// interrupts, so its queues are polled.
///
/// **Unsafe**: nothing restricts the controller to registered memory. A fault of the controller,
/// this driver or its user can overwrite any memory of the machine.
///
/// # Errors
/// [`PciError`]; [`PciError::HasIommu`] for a controller behind an IOMMU.
pub fn open_controller_without_iommu(
    system: &SysfsPci,
    address: PciAddress,
    options: ConnectOptions,
) -> Result<OpenedController, PciError> {
    let function = UioFunction::open(system, address)?;
    let (registers, window) = (function.registers(), function.window());
    start(address, (registers, window, Arc::new(function)), PciDriver::UioPciGeneric, options)
}

/// Access to a controller's registers, memory and interrupts.
type PciAccess = (Arc<SharedRegion>, DmaWindow, Arc<dyn DmaBus>);

fn start(
    address: PciAddress,
    (registers, window, bus): PciAccess,
    given_by: PciDriver,
    options: ConnectOptions,
) -> Result<OpenedController, PciError> {
    let queues = options.queues.unwrap_or(QUEUES_DEFAULT);
    let bells = DoorbellLayout::from_dstrd(capabilities(&registers).doorbell_stride);
    let port = Port::for_real_controller(registers, bells, window, bus).map_err(|source| {
        PciError::Io { address, what: "memory for its admin queues".into(), source }
    })?;
    let keeper = ControllerGuard { port: port.clone() };
    let options = ConnectOptions { queues: Some(queues), ..options };
    let controller =
        ControllerHandle::connect_pci(port, options, &mut progress, INIT_PROGRESS_INTERVAL)
            .map_err(|source| PciError::Controller { address, source })?;
    Ok(OpenedController { controller, guard: keeper, kernel_driver: given_by })
}
