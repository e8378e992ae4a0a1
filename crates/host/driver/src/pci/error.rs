//! [`PciError`]: errors of opening and binding controllers, with remedies.

use std::io;
use std::path::PathBuf;

use super::{DeviceUser, PciAddress, PciDriver};
use crate::DriverError;

/// The reason why a controller cannot be opened or bound.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// There is no function at the address.
    #[error("{address}: there is no such PCI function; `sluice device list` has the controllers")]
    NoSuchFunction {
        /// The function.
        address: PciAddress,
    },
    /// The function is not an NVMe controller.
    #[error("{address} is no NVMe controller: its class is {class:#08x}, not 0x010802")]
    NotNvme {
        /// The function.
        address: PciAddress,
        /// PCI class, subclass and programming interface.
        class: u32,
    },
    /// The function is bound to another driver.
    #[error(
        "{address} is bound to {}, not to {wanted}: `sluice device bind {address}{}`, as root",
        driver.as_deref().unwrap_or("no driver"), flag(*wanted)
    )]
    NotBound {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
        /// The driver that is needed.
        wanted: PciDriver,
    },
    /// The function is behind an IOMMU, which must not be bypassed.
    #[error(
        "{address} is behind an IOMMU (group {group}), and uio_pci_generic would drive it without: \
         `sluice device bind {address}`, and open it as vfio:{address}"
    )]
    HasIommu {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
    },
    /// The kernel does not have the generic driver, or the driver has not created a file for the
    /// function.
    #[error("the kernel has no driver uio_pci_generic: `modprobe uio_pci_generic`, as root")]
    NoUio,
    /// No huge page can be allocated for a controller without an IOMMU.
    #[error(
        "no huge page of 2 MiB for the controller's queues: {source}{}",
        super::uio::HUGE_PAGES_HINT
    )]
    NoHugePages {
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Physical addresses are not available.
    #[error("/proc/self/pagemap does not report physical addresses: {why}")]
    NoFrames {
        /// The reason.
        why: String,
    },
    /// The function is not behind an IOMMU, which would restrict it to registered memory.
    #[error(
        "{address} is behind no IOMMU: switch it on in the firmware, and with intel_iommu=on or \
         amd_iommu=on on the kernel's command line. `--driver uio_pci_generic` is the unsafe way \
         without"
    )]
    NoIommu {
        /// The function.
        address: PciAddress,
    },
    /// The kernel has no VFIO driver.
    #[error("the kernel has no driver vfio-pci: `modprobe vfio-pci`, as root")]
    NoVfio,
    /// The kernel's VFIO does not support a type 1 IOMMU.
    #[error("the kernel's VFIO has no type 1 IOMMU: `modprobe vfio_iommu_type1`, as root")]
    NoType1,
    /// The group's file cannot be opened by this user.
    #[error("{}: permission denied: run as root, or `chown` it to the user who is to have the \
             controller", path.display())]
    Permission {
        /// The group's file.
        path: PathBuf,
    },
    /// Another process drives the function.
    #[error("{address}: another process has IOMMU group {group}{}", format_users(users))]
    Busy {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// The processes, as far as they are visible.
        users: Vec<DeviceUser>,
    },
    /// Other functions of the group belong to the system.
    #[error(
        "{address} shares IOMMU group {group} with {others}, which the system drives: they go to a \
         process together, or not at all"
    )]
    GroupShared {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// The group's other functions.
        others: String,
    },
    /// The system uses the function.
    #[error("{address} is in use{}", format_users(users))]
    InUse {
        /// The function.
        address: PciAddress,
        /// The users.
        users: Vec<DeviceUser>,
    },
    /// The function has no registers or no interrupts, or cannot access memory.
    #[error("{address}: the controller {what}")]
    Unsupported {
        /// The function.
        address: PciAddress,
        /// The missing property.
        what: &'static str,
    },
    /// The kernel returned an error.
    #[error("{address}: {what}: {source}")]
    Io {
        /// The function.
        address: PciAddress,
        /// The attempted operation.
        what: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The controller cannot be initialized.
    #[error("{address}: {source}")]
    Controller {
        /// The function.
        address: PciAddress,
        /// The reason.
        #[source]
        source: DriverError,
    },
}

/// Returns the option with which `sluice device bind` selects another driver than the usual one.
fn flag(driver: PciDriver) -> String {
    match driver {
        PciDriver::VfioPci => String::new(),
        driver => format!(" --driver {driver}"),
    }
}

fn format_users(users: &[DeviceUser]) -> String {
    let all = users.iter().map(DeviceUser::to_string).collect::<Vec<_>>();
    if all.is_empty() { String::new() } else { format!(": {}", all.join("; ")) }
}

impl PciError {
    /// Returns whether the request was wrong, as opposed to a failure of its execution.
    pub fn is_usage_error(&self) -> bool {
        !matches!(
            self,
            PciError::Io { .. } | PciError::Controller { .. } | PciError::Unsupported { .. }
        )
    }
}
