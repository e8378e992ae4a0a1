//! [`PciError`]: why a controller cannot be had, or not be bound, and what to do about it.

use std::io;
use std::path::PathBuf;

use super::{DeviceUser, PciAddress, PciDriver};
use crate::DriverError;

/// Why a controller cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// There is nothing at the address.
    #[error("{address}: there is no such PCI function; `sluice device list` has the controllers")]
    NoSuchFunction {
        /// Which.
        address: PciAddress,
    },
    /// It is something else.
    #[error("{address} is no NVMe controller: its class is {class:#08x}, not 0x010802")]
    NotNvme {
        /// Which.
        address: PciAddress,
        /// PCI class, subclass and programming interface.
        class: u32,
    },
    /// Another driver has it.
    #[error(
        "{address} is bound to {}, not to {wanted}: `sluice device bind {address}{}`, as root",
        driver.as_deref().unwrap_or("no driver"), flag(*wanted)
    )]
    NotBound {
        /// Which.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
        /// The driver that it should have.
        wanted: PciDriver,
    },
    /// The function is behind an IOMMU, which must not be gone round.
    #[error(
        "{address} is behind an IOMMU (group {group}), and uio_pci_generic would drive it without: \
         `sluice device bind {address}`, and open it as vfio:{address}"
    )]
    HasIommu {
        /// Which.
        address: PciAddress,
        /// Its group.
        group: u32,
    },
    /// The kernel has no generic driver, or that has made no file for the function.
    #[error("the kernel has no driver uio_pci_generic: `modprobe uio_pci_generic`, as root")]
    NoUio,
    /// There is no memory that a controller without an IOMMU could be given.
    #[error(
        "no huge page of 2 MiB for the controller's queues: {source}{}",
        super::uio::HUGE_PAGES_HINT
    )]
    NoHugePages {
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It is not said where memory is.
    #[error("/proc/self/pagemap does not say where memory is: {why}")]
    NoFrames {
        /// Why not.
        why: String,
    },
    /// The function is behind no IOMMU, which would keep it to the memory that it is given.
    #[error(
        "{address} is behind no IOMMU: switch it on in the firmware, and with intel_iommu=on or \
         amd_iommu=on on the kernel's command line. `--driver uio_pci_generic` is the unsafe way \
         without"
    )]
    NoIommu {
        /// Which.
        address: PciAddress,
    },
    /// The kernel cannot give functions to processes.
    #[error("the kernel has no driver vfio-pci: `modprobe vfio-pci`, as root")]
    NoVfio,
    /// The kernel's IOMMU interface is another.
    #[error("the kernel's VFIO has no type 1 IOMMU: `modprobe vfio_iommu_type1`, as root")]
    NoType1,
    /// What the group's file says.
    #[error("{}: permission denied: run as root, or `chown` it to the user who is to have the \
             controller", path.display())]
    Permission {
        /// The group's file.
        path: PathBuf,
    },
    /// Another process drives it.
    #[error("{address}: another process has IOMMU group {group}{}", format_users(users))]
    Busy {
        /// Which.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// Who, as far as it can be seen.
        users: Vec<DeviceUser>,
    },
    /// Other functions of the group belong to the system.
    #[error(
        "{address} shares IOMMU group {group} with {others}, which the system drives: they go to a \
         process together, or not at all"
    )]
    GroupShared {
        /// Which.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// The group's other functions.
        others: String,
    },
    /// The system uses it.
    #[error("{address} is in use{}", format_users(users))]
    InUse {
        /// Which.
        address: PciAddress,
        /// By what.
        users: Vec<DeviceUser>,
    },
    /// It has no registers, no interrupts, or reaches no memory.
    #[error("{address}: the controller {what}")]
    Unsupported {
        /// Which.
        address: PciAddress,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The kernel refuses.
    #[error("{address}: {what}: {source}")]
    Io {
        /// Which.
        address: PciAddress,
        /// What was tried.
        what: String,
        /// What it says.
        #[source]
        source: io::Error,
    },
    /// The controller does not come up.
    #[error("{address}: {source}")]
    Controller {
        /// Which.
        address: PciAddress,
        /// Why.
        #[source]
        source: DriverError,
    },
}

/// What has `sluice device bind` take another driver than the usual one.
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
    /// Whether what was asked is at fault, rather than what became of it.
    pub fn is_usage_error(&self) -> bool {
        !matches!(
            self,
            PciError::Io { .. } | PciError::Controller { .. } | PciError::Unsupported { .. }
        )
    }
}
