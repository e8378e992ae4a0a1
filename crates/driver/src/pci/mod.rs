//! Real NVMe controllers, driven from this process: the PCI function, its IOMMU group, its registers
//! (NVMe section 3.1; Linux `Documentation/driver-api/vfio.rst`, type 1 IOMMU).
//!
//! The driver is one for all of them. How a controller's registers, memory and interrupts are reached is a
//! [`ring::Bus`], of which there are two kinds.
//!
//! | file | noun |
//! |---|---|
//! | [`address`](PciAddress) | which function of which device on which bus |
//! | [`system`](SysfsPci) | what sysfs says of functions; binding them to drivers |
//! | [`usage`](Usage) | what the system uses a controller for |
//! | [`vfio`](VfioFunction) | a function that is this process's: registers, memory, interrupts (`call`: all `unsafe`) |
//! | [`uio`](UioFunction) | the same without an IOMMU: unsafe |
//! | `command` | a register of configuration space |
//! | [`driver`](PciDriver) | which drivers of the kernel give functions to processes |
//! | [`open`](open_controller) | a controller, brought up; how it is let go |
//! | [`error`](PciError) | why not |
//!
//! Functions behind an IOMMU are driven by VFIO: it keeps the controller to the memory that was
//! registered, whatever commands say. When the process ends, in whatever way, the kernel resets the
//! function before the memory goes. Without an IOMMU none of that holds, and a controller is driven only by
//! who says so ([`open_controller_without_iommu`]).

mod address;
mod command;
mod driver;
mod error;
mod open;
mod system;
mod uio;
mod usage;
mod vfio;

pub use address::{ParsePciAddressError, PciAddress};
pub use driver::{ParseDriverError, PciDriver};
pub use error::PciError;
pub use open::{
    ControllerGuard, INIT_PROGRESS_INTERVAL, OpenedController, open_controller,
    open_controller_without_iommu, progress,
};
pub use system::{PciDeviceEntry, SysfsPci};
pub use uio::UioFunction;
pub use usage::{DeviceUsage, DeviceUser};
pub use vfio::VfioFunction;
