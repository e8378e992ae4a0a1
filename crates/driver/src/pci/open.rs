//! [`open_controller`]: a controller of this machine, brought up; [`ControllerGuard`]: how it is let
//! go.

use std::sync::Arc;
use std::time::Duration;

use clock::Nanos;
use nvme::Cap;
use ring::{DmaBus, DmaWindow, DoorbellLayout, Port, SharedRegion};

use super::{PciAddress, PciDriver, PciError, SysfsPci, UioFunction, VfioFunction};
use crate::init;
use crate::{ConnectOptions, ControllerHandle};

/// I/O queues that are asked for, unless said otherwise: each takes an interrupt vector of the
/// machine.
const QUEUES_DEFAULT: u16 = 32;

/// How long [`pump`] takes at least.
pub const INIT_PROGRESS_INTERVAL: Nanos = Nanos::from_micros(50);

/// What runs while a controller has not answered an admin command.
pub fn progress() {
    std::thread::sleep(Duration::from_nanos(INIT_PROGRESS_INTERVAL.0));
}

/// A controller that has been brought up, and what keeps it.
#[derive(Debug)]
pub struct OpenedController {
    /// The controller.
    pub controller: ControllerHandle,
    /// To be dropped after everything that leads to it.
    pub guard: ControllerGuard,
    /// The driver of the kernel that has given it to this process.
    pub kernel_driver: PciDriver,
}

/// Tells the controller of a normal shutdown when it is dropped, and stops it.
#[derive(Debug)]
pub struct ControllerGuard {
    port: Arc<Port>,
}

impl Drop for ControllerGuard {
    fn drop(&mut self) {
        // One that does not answer is reset by the kernel all the same.
        let _ = init::shut_down(&self.port, &mut progress, INIT_PROGRESS_INTERVAL);
    }
}

/// What a controller's registers say that it can do.
fn capabilities(registers: &SharedRegion) -> Cap {
    use std::sync::atomic::Ordering::Acquire;
    let half = |offset: usize| u64::from(registers.atomic_u32(offset).load(Acquire));
    let low = half(nvme::register::CAP);
    Cap::from_value(low | half(nvme::register::CAP + 4) << 32)
}

/// Opens the NVMe controller at `address` by way of VFIO and brings it up.
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

/// The same without an IOMMU, by way of `uio_pci_generic`. **Unsafe**: nothing keeps the controller to the
/// memory that it is given, so that an error in it, in this driver or in what uses it can overwrite any
/// memory of the machine. Its completions are looked for: it has no interrupts.
///
/// # Errors
/// [`PciError`]; [`PciError::HasIommu`] for a controller that need not be driven so.
pub fn open_controller_without_iommu(
    system: &SysfsPci,
    address: PciAddress,
    options: ConnectOptions,
) -> Result<OpenedController, PciError> {
    let function = UioFunction::open(system, address)?;
    let (registers, window) = (function.registers(), function.window());
    start(address, (registers, window, Arc::new(function)), PciDriver::UioPciGeneric, options)
}

/// How a controller's registers, its memory and its interrupts are reached.
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
