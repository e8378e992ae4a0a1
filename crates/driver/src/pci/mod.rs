//! Real NVMe controllers, driven from this process: the PCI function, its IOMMU group, its registers
//! (NVMe section 3.1; Linux `Documentation/driver-api/vfio.rst`, type 1 IOMMU).
//!
//! | file | noun |
//! |---|---|
//! | [`address`](PciAddress) | which function of which device on which bus |
//! | [`system`](PciSystem) | what sysfs says of functions; binding them to drivers |
//! | [`usage`](Usage) | what the system uses a controller for |
//! | [`vfio`](VfioFunction) | a function that is this process's: registers, memory, interrupts (`call`: all `unsafe`) |
//! | [`open`](open_controller) | a controller, brought up; how it is let go |
//! | [`error`](PciError) | why not |
//!
//! Only functions behind an IOMMU are driven: it keeps the controller to the memory that was
//! registered, whatever commands say. When the process ends, in whatever way, the kernel resets the
//! function before the memory goes.

mod address;
mod error;
mod open;
mod system;
mod usage;
mod vfio;

pub use address::{NotAnAddress, PciAddress};
pub use error::PciError;
pub use open::{ControllerKeeper, OpenedController, PUMP_TIME, open_controller, pump};
pub use system::{PciSlot, PciSystem};
pub use usage::{Usage, User};
pub use vfio::VfioFunction;
