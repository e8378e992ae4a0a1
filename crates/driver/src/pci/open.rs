//! [`open_controller`]: a controller of this machine, brought up; [`ControllerKeeper`]: how it is let
//! go.

use std::sync::Arc;
use std::time::Duration;

use clock::Nanos;
use nvme::Capabilities;
use ring::{Doorbells, Port, Region};

use super::{PciAddress, PciError, PciSystem, VfioFunction};
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
    let registers = function.registers()?;
    let bells = Doorbells::of_controller(capabilities(&registers).doorbell_stride);
    let window = function.window();
    let port = Port::device(registers, bells, window, Arc::new(function)).map_err(|source| {
        PciError::Io { address, what: "memory for its admin queues".into(), source }
    })?;
    let keeper = ControllerKeeper { port: port.clone() };
    let options = AttachOptions { queues: Some(queues), ..options };
    let controller = Controller::attach_device(port, options, &mut pump, PUMP_TIME)
        .map_err(|source| PciError::Controller { address, source })?;
    Ok(OpenedController { controller, keeper })
}
