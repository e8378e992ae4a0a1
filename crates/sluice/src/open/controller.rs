//! A real NVMe controller of this machine, by way of VFIO ([`driver::pci`]).

use direct::Device;
use driver::AttachOptions;
use driver::pci::{PciAddress, PciSystem, open_controller};

use super::scenario::check_depth;
use super::{OpenError, OpenOptions};

/// Opens the controller at `address`, and of it the namespace `nsid`, or the first.
///
/// # Errors
/// [`OpenError::Controller`]; options that mean nothing to a controller, or that it does not grant.
pub(super) fn open(
    address: PciAddress,
    nsid: Option<u32>,
    options: &OpenOptions,
) -> Result<Device, OpenError> {
    let what = format!("the controller at {address}");
    options.refuse_read_only(&what)?;
    options.refuse_drive_core(&what)?;
    let (queues, doorbells) = (options.queues, options.doorbells);
    let attach = AttachOptions { nsid, data: None, queues, doorbells };
    let opened = open_controller(&PciSystem::default(), address, attach)?;
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
    let device = Device::controller(name, opened);
    check_depth(options.depth, &device)?;
    Ok(device)
}
