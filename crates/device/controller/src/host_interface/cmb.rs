//! [`DeviceCmb`]: the controller memory buffer, drive memory that hosts access directly [NVMe1.4 §4.7]. A
//! host can stage data in it and decide later when it is written [LightNVM17 §2.2, §2.3].
//!
//! One region serves all hosts; it is registered with each of their ports. Data in it does not
//! cross between host and drive, so it takes no time of the DMA stage. It may hold data, lists and
//! rings. If the buffer is protected, its contents survive a power loss. Beside an image it is kept
//! in a file (`docs/format/sidecar.md`), so that its contents also survive the death of the
//! process. An unprotected buffer contains zeros after power-on.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use media::{DataStore, MediaConfig};
use mem::{Iova, SharedRegion};
use nvme::register::{CMBLOC, CMBSZ};
use nvme::{CmbLocation, CmbSize};
use transport::Port;

use crate::error::DriveError;
use crate::persistence::sidecar::{self, SidecarKind};
use crate::{CmbConfig, DriveConfig};

/// The base address register (BAR) of the buffer.
const BAR: u8 = 2;

#[derive(Debug)]
pub(crate) struct DeviceCmb {
    region: Arc<SharedRegion>,
    config: CmbConfig,
    /// Base address for each host that has the buffer mapped, indexed by port.
    bases: Vec<Option<Iova>>,
}

/// Returns where a protected buffer is stored; an unprotected buffer is in memory only.
fn data_store(config: &DriveConfig, cmb: CmbConfig) -> &DataStore {
    match &config.media {
        MediaConfig::Nand(nand) if cmb.protected => &nand.data,
        MediaConfig::Pcm(pcm) if cmb.protected => &pcm.data,
        _ => &DataStore::None,
    }
}

impl DeviceCmb {
    /// Creates the buffer at power-on; `kept` is its contents at the power cut.
    ///
    /// # Errors
    /// Out of memory, or a file that is not a buffer of this size.
    pub(crate) fn power_on(
        config: &DriveConfig,
        kept: Option<Arc<SharedRegion>>,
    ) -> Result<Option<DeviceCmb>, DriveError> {
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
        Ok(Some(DeviceCmb { region, config: cmb, bases: Vec::new() }))
    }

    /// Handles a power cut. Returns a copy of a protected buffer, so that later writes of hosts
    /// that still have the old buffer mapped have no effect.
    pub(crate) fn power_cut(self) -> Option<Arc<SharedRegion>> {
        if !self.config.protected {
            return None;
        }
        match SharedRegion::anonymous(self.region.len()) {
            Ok(copy) => {
                SharedRegion::copy(&self.region, 0, &copy, 0, copy.len());
                Some(copy)
            }
            // Without memory for a copy, keep the buffer itself.
            Err(_) => Some(self.region),
        }
    }

    /// Registers the buffer with the port of a host; `index` is the number of the port.
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

    /// Forgets the address of a detached host.
    pub(crate) fn detach(&mut self, index: usize) {
        if let Some(base) = self.bases.get_mut(index) {
            *base = None;
        }
    }

    /// Returns the addresses of the buffer on a port.
    #[inline]
    pub(crate) fn range(&self, port: usize) -> Option<Range<Iova>> {
        let base = (*self.bases.get(port)?)?;
        Some(base..base.offset(self.config.bytes))
    }

    /// Clears the buffer, except for ranges of offsets in ascending order.
    pub(crate) fn clear_except(&self, kept: &[Range<usize>]) {
        let mut from = 0;
        for Range { start, end } in kept {
            self.region.fill(from, start.saturating_sub(from), 0);
            from = from.max(*end);
        }
        self.region.fill(from, self.region.len().saturating_sub(from), 0);
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.config.protected
    }

    /// Waits until the contents are on the file's device. Does nothing without a file.
    ///
    /// # Errors
    /// The error that `fsync(2)` returns.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.region.sync()
    }
}
