//! A real NVMe controller of this machine, by way of VFIO, or without an IOMMU ([`driver::pci`]).

use clock::Nanos;
use direct::Device;
use driver::AttachOptions;
use driver::pci::{
    PciAddress, PciDriver, PciSystem, open_controller, open_controller_without_iommu,
};

use super::scenario::check_depth;
use super::{OpenError, OpenOptions};

/// How long a command may take at least before it is late.
const LEAST_TIMEOUT: Nanos = Nanos::from_millis(1);

/// What is said of a controller that is driven without an IOMMU.
pub(crate) const UNSAFE: &str =
    "unsafe: there is no IOMMU between the controller and the machine's memory";

/// Opens the controller at `address`, and of it the namespace `nsid`, or the first.
///
/// # Errors
/// [`OpenError::Controller`]; options that mean nothing to a controller, or that it does not grant.
pub(super) fn open(
    (address, nsid): (PciAddress, Option<u32>),
    by: PciDriver,
    options: &OpenOptions,
) -> Result<Device, OpenError> {
    let what = format!("the controller at {address}");
    options.refuse_read_only(&what)?;
    options.refuse_drive_core(&what)?;
    let timeout = options.timeout.unwrap_or(Device::TIMEOUT);
    if timeout < LEAST_TIMEOUT {
        let (option, value) = ("timeout", format!("{} ns", timeout.0));
        let allowed = format!("{} ns and more", LEAST_TIMEOUT.0);
        return Err(OpenError::Option { option, value, what, allowed });
    }
    let (queues, doorbells) = (options.queues, options.doorbells);
    let attach = AttachOptions { nsid, data: None, queues, doorbells };
    let system = PciSystem::default();
    let opened = match by {
        PciDriver::VfioPci => open_controller(&system, address, attach)?,
        PciDriver::UioPciGeneric => {
            let opened = open_controller_without_iommu(&system, address, attach)?;
            // Whoever runs a program that others wrote is to know.
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
        return Err(OpenError::Option { option, value, what, allowed });
    }
    let name = match nsid {
        Some(nsid) => format!("{address}#{nsid}"),
        None => address.to_string(),
    };
    let device = Device::controller(name, opened, timeout);
    check_depth(options.depth, &device)?;
    Ok(device)
}
