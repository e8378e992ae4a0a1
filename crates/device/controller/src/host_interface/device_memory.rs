//! [`DeviceMemory`]: the drive's memory that hosts access directly.

use std::io;
use std::sync::Arc;

use mem::SharedRegion;
use transport::Port;

use crate::DriveConfig;
use crate::error::DriveError;
use crate::host_interface::cmb::DeviceCmb;
use crate::host_interface::pmr::{self, DevicePmr};

/// The memory of a drive that hosts access directly.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    /// The controller memory buffer.
    pub(crate) cmb: Option<DeviceCmb>,
    /// The persistent memory region.
    pub(crate) pmr: Option<DevicePmr>,
    /// The namespace whose newer blocks a host has in the region.
    pub(crate) logged_namespace: Option<u32>,
}

/// The memory that survives a power cut.
#[derive(Debug, Default)]
pub(crate) struct KeptDeviceMemory {
    /// Contents of a protected controller memory buffer.
    cmb: Option<Arc<SharedRegion>>,
    pmr: Option<DevicePmr>,
}

impl DeviceMemory {
    /// Creates the memory at power-on; `kept` is what survived the power cut.
    ///
    /// # Errors
    /// Out of memory, or a file that is not the memory of this drive.
    pub(crate) fn power_on(
        config: &DriveConfig,
        kept: KeptDeviceMemory,
    ) -> Result<DeviceMemory, DriveError> {
        let cmb = DeviceCmb::power_on(config, kept.cmb)?;
        let pmr = DevicePmr::power_on(config, kept.pmr)?;
        Ok(DeviceMemory { cmb, pmr, logged_namespace: None })
    }

    /// Handles a power cut, and returns what survives it. No host may access the memory any more.
    pub(crate) fn power_cut(self) -> KeptDeviceMemory {
        let mut pmr = self.pmr;
        if let Some(pmr) = &mut pmr {
            pmr.cut_power();
        }
        KeptDeviceMemory { cmb: self.cmb.and_then(DeviceCmb::power_cut), pmr }
    }

    /// Whether the drive has no such memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.cmb.is_none() && self.pmr.is_none()
    }

    /// Gives a host with all rights the memory; `index` is the number of its port.
    pub(crate) fn attach(&mut self, port: &Port, index: usize) -> io::Result<()> {
        if let Some(cmb) = &mut self.cmb {
            cmb.attach(port, index)?;
        }
        self.attach_region(port);
        Ok(())
    }

    /// Gives a host the persistent memory region.
    pub(crate) fn attach_region(&self, port: &Port) {
        if let Some(pmr) = &self.pmr {
            pmr.attach(port);
        }
    }

    /// Whether the persistent memory region, if there is one, can be shared with another process.
    pub(crate) fn can_share_region(&self) -> bool {
        self.pmr.as_ref().is_none_or(DevicePmr::can_share)
    }

    /// Handles the end of a host.
    pub(crate) fn detach(&mut self, port: &Port, index: usize) {
        if let Some(cmb) = &mut self.cmb {
            cmb.detach(index);
        }
        pmr::remove(port);
    }

    /// Makes everything durable that survives a power cut, at a clean shutdown.
    ///
    /// # Errors
    /// The error that `fsync(2)` returns.
    pub(crate) fn shut_down(&self) -> io::Result<()> {
        self.cmb.as_ref().map_or(Ok(()), DeviceCmb::sync)?;
        self.pmr.as_ref().map_or(Ok(()), DevicePmr::shut_down)
    }
}
