//! [`PciDriver`]: kernel drivers that give processes access to PCI functions.

use std::fmt;
use std::str::FromStr;

/// A kernel driver that gives processes access to PCI functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PciDriver {
    /// `vfio-pci`: behind an IOMMU, with interrupts.
    #[default]
    VfioPci,
    /// `uio_pci_generic`: without an IOMMU, and without interrupts. Unsafe: the controller can
    /// access all of the machine's memory.
    UioPciGeneric,
}

/// A text that is not the name of such a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no driver that gives controllers to processes: vfio-pci, or uio_pci_generic where \
         there is no IOMMU"
)]
pub struct ParseDriverError {
    /// The text.
    pub text: String,
}

impl PciDriver {
    /// All drivers.
    pub const ALL: [PciDriver; 2] = [PciDriver::VfioPci, PciDriver::UioPciGeneric];

    /// Returns the kernel's name of the driver.
    pub fn name(self) -> &'static str {
        match self {
            PciDriver::VfioPci => "vfio-pci",
            PciDriver::UioPciGeneric => "uio_pci_generic",
        }
    }

    /// Returns the driver with this name.
    pub fn from_name(name: &str) -> Option<PciDriver> {
        PciDriver::ALL.into_iter().find(|driver| driver.name() == name)
    }
}

impl fmt::Display for PciDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PciDriver {
    type Err = ParseDriverError;

    fn from_str(text: &str) -> Result<PciDriver, ParseDriverError> {
        PciDriver::from_name(text).ok_or_else(|| ParseDriverError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_named_as_the_kernel_names_them() {
        for driver in PciDriver::ALL {
            assert_eq!(driver.to_string().parse(), Ok(driver));
        }
        let wrong = "uio-pci-generic".parse::<PciDriver>().unwrap_err().to_string();
        assert!(wrong.contains("uio_pci_generic") && wrong.contains("vfio-pci"), "{wrong}");
    }
}
