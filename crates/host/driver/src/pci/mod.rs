//! Real NVMe controllers of this machine, driven from this process ([NVMe1.4 §3.1]; Linux
//! `Documentation/driver-api/vfio.rst`, type 1 IOMMU).
//!
//! The NVMe driver is common to all controllers. A [`transport::DmaBus`] gives access to a controller's
//! registers, memory and interrupts; there are two kinds:
//!
//! - **Behind an IOMMU**, VFIO drives the function ([`open_controller`]). It restricts the
//!   controller to registered memory, whatever commands say. When the process ends in any way, the
//!   kernel resets the function before it frees the memory.
//! - **Without an IOMMU** none of these guarantees holds. A controller is driven only by a caller
//!   that requests it explicitly ([`open_controller_without_iommu`]).
//!
//! [`SysfsPci`] finds controllers and binds them to drivers. `unsafe` code is confined to
//! `vfio::call`.

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
