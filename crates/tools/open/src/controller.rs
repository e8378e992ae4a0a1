//! Opens an NVMe controller of this machine through VFIO, or without an IOMMU ([`driver::pci`]).

use driver::ConnectOptions;
use driver::pci::{
    PciAddress, PciDriver, SysfsPci, open_controller, open_controller_without_iommu,
};
use time::Nanos;
use user_io::IoDevice;

use super::scenario::check_depth;
use super::{OpenOptions, TargetOpenError};

/// Minimum timeout of a command.
const TIMEOUT_MIN: Nanos = Nanos::from_millis(1);

/// Warning that is printed for a controller that is driven without an IOMMU.
pub const UNSAFE: &str =
    "unsafe: there is no IOMMU between the controller and the machine's memory";

/// Opens the controller at `address`, and its namespace `nsid` or the first one.
///
/// # Errors
/// [`TargetOpenError::Controller`]; also for options that do not apply to a controller or that it does
/// not grant.
pub(super) fn open(
    address: PciAddress,
    nsid: Option<u32>,
    by: PciDriver,
    options: &OpenOptions,
) -> Result<IoDevice, TargetOpenError> {
    let what = format!("the controller at {address}");
    options.refuse_read_only(&what)?;
    options.refuse_drive_options(&what)?;
    let timeout = options.timeout.unwrap_or(IoDevice::COMMAND_TIMEOUT_DEFAULT);
    if timeout < TIMEOUT_MIN {
        let (option, value) = ("timeout", format!("{} ns", timeout.0));
        let allowed = format!("{} ns and more", TIMEOUT_MIN.0);
        return Err(TargetOpenError::Option { option, value, what, allowed });
    }
    let (queues, doorbells) = (options.queues, options.doorbells);
    let attach = ConnectOptions { nsid, data: None, queues, doorbells };
    let system = SysfsPci::default();
    let opened = match by {
        PciDriver::VfioPci => open_controller(&system, address, attach)?,
        PciDriver::UioPciGeneric => {
            let opened = open_controller_without_iommu(&system, address, attach)?;
            // The user must be warned, even by a program that others wrote.
            eprintln!("{address}: {}", UNSAFE);
            opened
        }
    };
    let granted = opened.controller.info().io_queues;
    if let Some(queues) = options.queues
        && granted < queues
    {
        let (option, value) = ("queues", queues.to_string());
        let allowed = format!("it grants {granted}");
        return Err(TargetOpenError::Option { option, value, what, allowed });
    }
    let name = match nsid {
        Some(nsid) => format!("{address}#{nsid}"),
        None => address.to_string(),
    };
    let device = IoDevice::controller(name, opened, timeout);
    check_depth(options.depth, &device)?;
    Ok(device)
}
