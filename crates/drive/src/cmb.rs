//! [`Cmb`]: the controller memory buffer, memory of the drive that hosts reach into (NVMe section 4.7;
//! LightNVM paper sections 2.2 and 2.3: the host stages data on the device and says when it is
//! written).
//!
//! One region for all hosts, registered with each of their ports: what a command names in it does
//! not cross between host and drive, so it takes no time of the DMA station. It may hold data, lists
//! and rings. Protected, its contents survive the loss of power, and beside an image in a file
//! (`docs/format/sidecar.md`) also the death of the process; unprotected, a drive that is powered on
//! finds zeros.

use std::io;
use std::sync::Arc;

use media::{DataStore, MediaConfig};
use nvme::register::{CMBLOC, CMBSZ};
use nvme::{CmbLocation, CmbSize};
use ring::{Iova, Port, SharedRegion};

use crate::error::DriveError;
use crate::sidecar::{self, SidecarKind};
use crate::{CmbConfig, DriveConfig};

/// The base address register that the buffer is behind.
const BAR: u8 = 2;

#[derive(Debug)]
pub(crate) struct Cmb {
    region: Arc<SharedRegion>,
    config: CmbConfig,
    /// Where each host has it that does, by the number of its port.
    bases: Vec<Option<Iova>>,
}

/// Where a protected buffer of a drive is kept; an unprotected one is in memory only.
fn data_store(config: &DriveConfig, cmb: CmbConfig) -> &DataStore {
    match &config.media {
        MediaConfig::Nand(nand) if cmb.protected => &nand.data,
        MediaConfig::Pcm(pcm) if cmb.protected => &pcm.data,
        _ => &DataStore::None,
    }
}

impl Cmb {
    /// The buffer of a drive that is powered on; `kept` is what was in it when the power failed.
    ///
    /// # Errors
    /// No memory; a file that is no buffer of this size.
    pub(crate) fn power_on(
        config: &DriveConfig,
        kept: Option<Arc<SharedRegion>>,
    ) -> Result<Option<Cmb>, DriveError> {
        let Some(cmb) = config.controller.cmb else { return Ok(None) };
        let bytes = cmb.bytes as usize;
        let beside = |image| sidecar::sidecar_path(image, "cmb");
        let region = match (data_store(config, cmb), kept) {
            (DataStore::File(image), Some(kept)) => {
                sidecar::replace(&beside(image), SidecarKind::Cmb, &kept, 0)?
            }
            (DataStore::File(image), None) => {
                sidecar::open_or_create(&beside(image), SidecarKind::Cmb, bytes, 0)?
            }
            (_, Some(kept)) => kept,
            (DataStore::Overlay(image), None) => {
                sidecar::open_overlay(&beside(image), SidecarKind::Cmb, bytes, 0)?
            }
            (_, None) => SharedRegion::anonymous(bytes).map_err(DriveError::Memory)?,
        };
        Ok(Some(Cmb { region, config: cmb, bases: Vec::new() }))
    }

    /// The power fails. What is left is a copy: hosts that still have the buffer mapped write
    /// nowhere from now on.
    pub(crate) fn power_cut(self) -> Option<Arc<SharedRegion>> {
        if !self.config.protected {
            return None;
        }
        match SharedRegion::anonymous(self.region.len()) {
            Ok(copy) => {
                SharedRegion::copy(&self.region, 0, &copy, 0, copy.len());
                Some(copy)
            }
            // Without memory for a copy, the buffer itself is better than nothing.
            Err(_) => Some(self.region),
        }
    }

    /// Shows the buffer to a host, whose port has this number.
    pub(crate) fn attach(&mut self, port: &Port, index: usize) -> io::Result<()> {
        let base = port.memory().register(&self.region).map_err(io::Error::other)?;
        let Some(size) = CmbSize::from_size_bytes(self.config.bytes) else {
            return Err(io::Error::other("a controller memory buffer of no size"));
        };
        port.set_bar(BAR, base);
        port.set_register(CMBLOC, CmbLocation { bar: BAR, offset_units: 0 }.to_value());
        port.set_register(CMBSZ, size.to_value());
        if self.bases.len() <= index {
            self.bases.resize(index + 1, None);
        }
        self.bases[index] = Some(base);
        Ok(())
    }

    /// A host is gone.
    pub(crate) fn detach(&mut self, index: usize) {
        if let Some(base) = self.bases.get_mut(index) {
            *base = None;
        }
    }

    /// The addresses of the buffer on a port: the first, and the first after it.
    #[inline]
    pub(crate) fn range(&self, port: usize) -> Option<(Iova, Iova)> {
        let base = (*self.bases.get(port)?)?;
        Some((base, base.offset(self.config.bytes)))
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.config.protected
    }

    /// Waits until everything is on the file's device. Nothing to do without a file.
    ///
    /// # Errors
    /// What `fsync(2)` returns.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.region.sync()
    }
}
