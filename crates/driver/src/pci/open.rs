//! [`open_controller`]: a controller of this machine, brought up; [`ControllerKeeper`]: how it is let
//! go.

use std::sync::Arc;
use std::time::Duration;

use clock::Nanos;
use nvme::Capabilities;
use ring::{Bus, BusWindow, Doorbells, Port, Region};

use super::{PciAddress, PciDriver, PciError, PciSystem, UioFunction, VfioFunction};
use crate::bring_up;
use crate::{AttachOptions, Controller};

/// I/O queues that are asked for, unless said otherwise: each takes an interrupt vector of the
/// machine.
const QUEUES: u16 = 32;

/// How long [`pump`] takes at least.
pub const PUMP_TIME: Nanos = Nanos::from_micros(50);

/// What runs while a controller has not answered an admin command.
pub fn pump() {
    std::thread::sleep(Duration::from_nanos(PUMP_TIME.0));
}

/// A controller that has been brought up, and what keeps it.
#[derive(Debug)]
pub struct OpenedController {
    /// The controller.
    pub controller: Controller,
    /// To be dropped after everything that leads to it.
    pub keeper: ControllerKeeper,
    /// The driver of the kernel that has given it to this process.
    pub given_by: PciDriver,
}

/// Tells the controller of a normal shutdown when it is dropped, and stops it.
#[derive(Debug)]
pub struct ControllerKeeper {
    port: Arc<Port>,
}

impl Drop for ControllerKeeper {
    fn drop(&mut self) {
        // One that does not answer is reset by the kernel all the same.
        let _ = bring_up::shut_down(&self.port, &mut pump, PUMP_TIME);
    }
}

/// What a controller's registers say that it can do.
fn capabilities(registers: &Region) -> Capabilities {
    use std::sync::atomic::Ordering::Acquire;
    let half = |offset: usize| u64::from(registers.half_word(offset).load(Acquire));
    let low = half(nvme::register::CAP);
    Capabilities::from_value(low | half(nvme::register::CAP + 4) << 32)
}

/// Opens the NVMe controller at `address` by way of VFIO and brings it up.
///
/// # Errors
/// [`PciError`].
pub fn open_controller(
    system: &PciSystem,
    address: PciAddress,
    options: AttachOptions,
) -> Result<OpenedController, PciError> {
    let queues = options.queues.unwrap_or(QUEUES);
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
    system: &PciSystem,
    address: PciAddress,
    options: AttachOptions,
) -> Result<OpenedController, PciError> {
    let function = UioFunction::open(system, address)?;
    let (registers, window) = (function.registers(), function.window());
    start(address, (registers, window, Arc::new(function)), PciDriver::UioPciGeneric, options)
}

/// How a controller's registers, its memory and its interrupts are reached.
type Reached = (Arc<Region>, BusWindow, Arc<dyn Bus>);

fn start(
    address: PciAddress,
    (registers, window, bus): Reached,
    given_by: PciDriver,
    options: AttachOptions,
) -> Result<OpenedController, PciError> {
    let queues = options.queues.unwrap_or(QUEUES);
    let bells = Doorbells::of_controller(capabilities(&registers).doorbell_stride);
    let port = Port::device(registers, bells, window, bus).map_err(|source| PciError::Io {
        address,
        what: "memory for its admin queues".into(),
        source,
    })?;
    let keeper = ControllerKeeper { port: port.clone() };
    let options = AttachOptions { queues: Some(queues), ..options };
    let controller = Controller::attach_device(port, options, &mut pump, PUMP_TIME)
        .map_err(|source| PciError::Controller { address, source })?;
    Ok(OpenedController { controller, keeper, given_by })
}
