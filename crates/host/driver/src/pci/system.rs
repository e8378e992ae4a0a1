//! [`SysfsPci`]: finds PCI functions in sysfs, and binds them to drivers (Linux
//! `Documentation/ABI/testing/sysfs-bus-pci`).
//!
//! Guarantee: a controller is taken from its driver only if no user of it was found. The caller
//! must prevent new users between the check and the unbinding.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{DeviceUser, PciAddress, PciDriver, PciError};

/// PCI class of NVMe controllers: mass storage, non-volatile memory, NVM Express I/O.
const NVME_CLASS: u32 = 0x01_08_02;

/// The system's directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsPci {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Default for SysfsPci {
    fn default() -> SysfsPci {
        SysfsPci { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// The function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDeviceEntry {
    /// The address.
    pub address: PciAddress,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier, assigned by the vendor.
    pub device: u16,
    /// Its driver, if it has one.
    pub driver: Option<String>,
    /// Its IOMMU group, if it is behind an IOMMU.
    pub group: Option<u32>,
}

impl PciDeviceEntry {
    /// Returns whether it is an NVMe controller.
    pub fn is_nvme(&self) -> bool {
        self.class == NVME_CLASS
    }

    /// Returns its driver, if that gives processes access.
    pub fn bound_to(&self) -> Option<PciDriver> {
        PciDriver::from_name(self.driver.as_deref()?)
    }

    /// Returns whether processes can open it.
    pub fn is_bound(&self) -> bool {
        self.bound_to().is_some()
    }
}

/// Returns the last component of a link's target.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

impl SysfsPci {
    pub(super) fn device_dir(&self, address: PciAddress) -> PathBuf {
        self.sys.join("bus/pci/devices").join(address.to_string())
    }

    fn driver(&self, name: &str) -> PathBuf {
        self.sys.join("bus/pci/drivers").join(name)
    }

    /// Returns the function at an address.
    ///
    /// # Errors
    /// [`PciError::NoSuchFunction`], [`PciError::Io`].
    pub fn device_entry(&self, address: PciAddress) -> Result<PciDeviceEntry, PciError> {
        let folder = self.device_dir(address);
        let number = |name: &str| -> Result<u32, PciError> {
            let failed = |source| PciError::Io { address, what: format!("its {name}"), source };
            let text = match fs::read_to_string(folder.join(name)) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(PciError::NoSuchFunction { address });
                }
                text => text.map_err(failed)?,
            };
            let digits = text.trim().trim_start_matches("0x");
            u32::from_str_radix(digits, 16).map_err(|e| failed(io::Error::other(e)))
        };
        Ok(PciDeviceEntry {
            address,
            class: number("class")?,
            vendor: number("vendor")? as u16,
            device: number("device")? as u16,
            driver: link_name(&folder.join("driver")),
            group: link_name(&folder.join("iommu_group")).and_then(|name| name.parse().ok()),
        })
    }

    /// Returns all NVMe controllers, in the order of their addresses. A system without PCI has
    /// none.
    ///
    /// # Errors
    /// [`PciError::Io`] if sysfs cannot be read.
    pub fn controllers(&self) -> Result<Vec<PciDeviceEntry>, PciError> {
        let Ok(entries) = fs::read_dir(self.sys.join("bus/pci/devices")) else {
            return Ok(Vec::new());
        };
        let names = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let mut addresses: Vec<PciAddress> = names.collect();
        addresses.sort_unstable();
        let slots = addresses.into_iter().map(|address| self.device_entry(address));
        slots.filter(|slot| slot.as_ref().map_or(true, PciDeviceEntry::is_nvme)).collect()
    }

    /// Returns the other functions of an IOMMU group, with their drivers.
    pub(super) fn others_of_group(&self, group: u32, address: PciAddress) -> String {
        let folder = self.sys.join(format!("kernel/iommu_groups/{group}/devices"));
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        let others = names.filter_map(|e| e.file_name().to_str()?.parse::<PciAddress>().ok());
        let mut others: Vec<PciAddress> = others.filter(|other| *other != address).collect();
        others.sort_unstable();
        let said = others.into_iter().map(|other| {
            match link_name(&self.device_dir(other).join("driver")) {
                Some(driver) => format!("{other} ({driver})"),
                None => other.to_string(),
            }
        });
        said.collect::<Vec<_>>().join(", ")
    }

    /// Returns the NVMe controller at an address.
    ///
    /// # Errors
    /// [`PciError::NotNvme`], and those of [`device_entry`](SysfsPci::device_entry).
    pub fn controller(&self, address: PciAddress) -> Result<PciDeviceEntry, PciError> {
        let slot = self.device_entry(address)?;
        match slot.is_nvme() {
            true => Ok(slot),
            false => Err(PciError::NotNvme { address, class: slot.class }),
        }
    }

    /// Unbinds a controller from its driver and binds it to `driver`. Has no effect if it is bound
    /// to `driver` already.
    ///
    /// # Errors
    /// [`PciError`]: the system or a process uses the controller, the kernel does not have
    /// `driver`, or the IOMMU does not fit (`vfio-pci` needs one, `uio_pci_generic` must not have
    /// one). After any other error the controller has its old driver or none.
    pub fn bind(&self, address: PciAddress, driver: PciDriver) -> Result<PciDeviceEntry, PciError> {
        let slot = self.controller(address)?;
        if slot.bound_to() == Some(driver) {
            return Ok(slot);
        }
        let (allowed, missing) = match (driver, slot.group) {
            (PciDriver::VfioPci, None) => (Err(PciError::NoIommu { address }), PciError::NoVfio),
            (PciDriver::UioPciGeneric, Some(group)) => {
                (Err(PciError::HasIommu { address, group }), PciError::NoUio)
            }
            (PciDriver::VfioPci, Some(_)) => (Ok(()), PciError::NoVfio),
            (PciDriver::UioPciGeneric, None) => (Ok(()), PciError::NoUio),
        };
        allowed?;
        if !self.driver(driver.name()).exists() {
            return Err(missing);
        }
        let users = [self.users(address), self.processes(&slot)].concat();
        if !users.is_empty() {
            return Err(PciError::InUse { address, users });
        }
        self.rebind(&slot, driver.name())?;
        let slot = self.device_entry(address)?;
        if slot.bound_to() == Some(driver) {
            return Ok(slot);
        }
        // The old driver is better than none.
        let _ = self.rebind(&slot, "");
        Err(PciError::NotBound { address, driver: slot.driver, wanted: driver })
    }

    /// Returns the processes that drive a controller.
    fn processes(&self, slot: &PciDeviceEntry) -> Vec<DeviceUser> {
        match (slot.bound_to(), slot.group) {
            (Some(PciDriver::VfioPci), Some(group)) => self.openers_of_group(group),
            (Some(PciDriver::UioPciGeneric), _) => {
                self.uio_name(slot.address).map_or_else(Vec::new, |name| self.openers_of_uio(&name))
            }
            _ => Vec::new(),
        }
    }

    /// Returns the name of the file that the generic driver has created for a function, such as
    /// `uio0`.
    pub(super) fn uio_name(&self, address: PciAddress) -> Option<String> {
        let entries = fs::read_dir(self.device_dir(address).join("uio")).ok()?.flatten();
        let mut names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.find(|name| name.starts_with("uio"))
    }

    /// Returns a controller to the system's default driver. Has no effect unless it is bound to a
    /// driver that gives processes access.
    ///
    /// # Errors
    /// [`PciError`]: a process drives it, or the kernel returned an error.
    pub fn unbind(&self, address: PciAddress) -> Result<PciDeviceEntry, PciError> {
        let slot = self.controller(address)?;
        if !slot.is_bound() {
            return Ok(slot);
        }
        // The kernel would wait until these processes release the function.
        let users = self.processes(&slot);
        if !users.is_empty() {
            return Err(PciError::InUse { address, users });
        }
        self.rebind(&slot, "")?;
        self.device_entry(address)
    }

    /// Binds a function to `driver`, overriding the matching rules; "" selects the matching driver.
    fn rebind(&self, slot: &PciDeviceEntry, driver: &str) -> Result<(), PciError> {
        let address = slot.address;
        let write = |path: PathBuf, text: String| {
            let what = format!("writing to {}", path.display());
            fs::write(&path, text).map_err(|source| PciError::Io { address, what, source })
        };
        write(self.device_dir(address).join("driver_override"), format!("{driver}\n"))?;
        if let Some(old) = &slot.driver {
            write(self.driver(old).join("unbind"), address.to_string())?;
        }
        write(self.sys.join("bus/pci/drivers_probe"), address.to_string())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const VFIO: PciDriver = PciDriver::VfioPci;

    /// Creates a sample file tree: a controller with the kernel's driver, one with vfio-pci, and a
    /// network card.
    pub(in crate::pci) fn sample_sysfs(root: &Path) -> SysfsPci {
        let system =
            SysfsPci { sys: root.join("sys"), proc: root.join("proc"), dev: root.join("dev") };
        let pci = system.sys.join("bus/pci");
        for (address, class, driver, group) in [
            ("0000:01:00.0", "0x010802", Some("nvme"), Some(7)),
            ("0000:02:00.0", "0x010802", Some("vfio-pci"), Some(8)),
            ("0000:03:00.0", "0x020000", Some("virtio"), Some(8)),
            ("0000:04:00.0", "0x010802", None, None),
        ] {
            let folder = pci.join("devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("class"), format!("{class}\n")).unwrap();
            fs::write(folder.join("vendor"), "0x1b36\n").unwrap();
            fs::write(folder.join("device"), "0x0010\n").unwrap();
            if let Some(driver) = driver {
                let at = pci.join("drivers").join(driver);
                fs::create_dir_all(&at).unwrap();
                symlink(&at, folder.join("driver")).unwrap();
            }
            if let Some(group) = group {
                let at = system.sys.join(format!("kernel/iommu_groups/{group}"));
                fs::create_dir_all(at.join("devices").join(address)).unwrap();
                symlink(&at, folder.join("iommu_group")).unwrap();
            }
        }
        fs::create_dir_all(&system.proc).unwrap();
        fs::create_dir_all(&system.dev).unwrap();
        system
    }

    fn at(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn controllers_are_told_from_other_functions() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let found = system.controllers().unwrap();
        let said: Vec<_> =
            found.iter().map(|s| (s.address.to_string(), s.driver.as_deref(), s.group)).collect();
        assert_eq!(
            said,
            [
                ("0000:01:00.0".into(), Some("nvme"), Some(7)),
                ("0000:02:00.0".into(), Some("vfio-pci"), Some(8)),
                ("0000:04:00.0".into(), None, None),
            ]
        );
        assert_eq!((found[0].vendor, found[0].device), (0x1b36, 0x10));
        assert!(!found[0].is_bound() && found[1].is_bound());
        let wrong = system.controller(at("03:00.0")).unwrap_err();
        assert!(matches!(wrong, PciError::NotNvme { class: 0x20000, .. }), "{wrong}");
        let none = system.controller(at("09:00.0")).unwrap_err();
        assert!(matches!(none, PciError::NoSuchFunction { .. }), "{none}");
        assert!(none.is_usage_error());
        let others = system.others_of_group(8, at("02:00.0"));
        assert_eq!(others, "0000:03:00.0 (virtio)");
        let nowhere = SysfsPci { sys: root.path().join("none"), ..system };
        assert_eq!(nowhere.controllers().unwrap(), []);
    }

    #[test]
    fn binding_tells_the_kernel_in_order_and_believes_only_what_it_sees() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let address = at("01:00.0");
        // Writes to these plain files do not rebind the function.
        let error = system.bind(address, VFIO).unwrap_err();
        assert!(matches!(error, PciError::NotBound { .. }), "{error}");
        let read = |path: &str| fs::read_to_string(system.sys.join("bus/pci").join(path)).unwrap();
        assert_eq!(read("drivers/nvme/unbind"), "0000:01:00.0");
        assert_eq!(read("drivers_probe"), "0000:01:00.0");
        assert_eq!(read("devices/0000:01:00.0/driver_override"), "\n", "given back");
        // Already bound, and already not bound: no effect.
        assert!(system.bind(at("02:00.0"), VFIO).unwrap().is_bound());
        assert_eq!(system.unbind(address).unwrap().driver.as_deref(), Some("nvme"));
        let exposed = system.bind(at("04:00.0"), VFIO).unwrap_err();
        assert!(matches!(exposed, PciError::NoIommu { .. }), "{exposed}");
        fs::remove_dir_all(system.sys.join("bus/pci/drivers/vfio-pci")).unwrap();
        let missing = system.bind(address, VFIO).unwrap_err();
        assert!(matches!(missing, PciError::NoVfio), "{missing}");
        assert!(missing.to_string().contains("modprobe"));
    }

    #[test]
    fn the_driver_without_iommu_is_for_controllers_without() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let uio = PciDriver::UioPciGeneric;
        let behind = system.bind(at("01:00.0"), uio).unwrap_err();
        assert!(matches!(behind, PciError::HasIommu { group: 7, .. }), "{behind}");
        let address = at("04:00.0");
        assert!(matches!(system.bind(address, uio), Err(PciError::NoUio)));
        let driver = system.sys.join("bus/pci/drivers/uio_pci_generic");
        fs::create_dir_all(&driver).unwrap();
        let refused = system.bind(address, uio).unwrap_err();
        assert!(refused.to_string().contains("not to uio_pci_generic"), "{refused}");
        let folder = system.device_dir(address);
        let probed = system.sys.join("bus/pci/drivers_probe");
        assert_eq!(fs::read_to_string(probed).unwrap(), "0000:04:00.0");
        symlink(&driver, folder.join("driver")).unwrap();
        assert_eq!(system.bind(address, uio).unwrap().bound_to(), Some(uio));
        // A process has the function's file open, so it cannot be unbound.
        fs::create_dir_all(folder.join("uio/uio1")).unwrap();
        assert_eq!(system.uio_name(address).as_deref(), Some("uio1"));
        let fds = system.proc.join("77/fd");
        fs::create_dir_all(&fds).unwrap();
        fs::write(system.proc.join("77/comm"), "driver\n").unwrap();
        symlink("/dev/uio1", fds.join("3")).unwrap();
        let used = system.unbind(address).unwrap_err();
        assert!(used.to_string().contains("process 77 (driver) has /dev/uio1 open"), "{used}");
    }
}
