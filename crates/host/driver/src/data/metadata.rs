//! Metadata of a namespace for requests, which carry none. [`MetadataBuffer`] serves namespaces
//! with separate metadata; [`ExtendedLbaLayout`] describes metadata that is interleaved with the
//! data.

use std::sync::Arc;

use mem::{PAGE_BYTES, SharedRegion};
use nvme::{MetadataFormat, MetadataTransfer, Sqe};
use transport::Port;

use crate::{ControllerInfo, DriverError};

/// Maximum size of the metadata of a transfer with a separate buffer, which is contiguous.
pub(crate) const METADATA_BYTES_MAX: u64 = 64 << 10;

/// The separate metadata buffer of a queue. All commands share it, because its contents do not
/// matter.
#[derive(Clone, Debug)]
pub(super) struct MetadataBuffer {
    _region: Arc<SharedRegion>,
    /// The drive's addresses of zeros, which are written, and of a buffer for what is read.
    zeros: u64,
    discarded: u64,
}

impl MetadataBuffer {
    /// Allocates the buffer of a queue of a drive, registered with `port`; `None` if its namespace
    /// needs none.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Unsupported`] if no memory is contiguous for the
    /// drive.
    pub(super) fn new_if_needed(
        port: &Port,
        info: &ControllerInfo,
    ) -> Result<Option<MetadataBuffer>, DriverError> {
        let Some(MetadataFormat { bytes, transfer: MetadataTransfer::SeparateBuffer, .. }) =
            info.metadata
        else {
            return Ok(None);
        };
        let bytes = u64::from(info.max_sectors) * u64::from(bytes);
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        let (region, at) = port.memory().allocate_registered(2 * bytes as usize)?;
        let run = |at| port.memory().contiguous_bus_address(at, bytes);
        let (zeros, thrown_away) = run(at)
            .zip(run(at.offset(bytes)))
            .ok_or(DriverError::Unsupported { what: "contiguous memory for metadata" })?;
        Ok(Some(MetadataBuffer { _region: region, zeros, discarded: thrown_away }))
    }

    /// Sets the metadata pointer of a command.
    pub(super) fn set_metadata_pointer(&self, sqe: &mut Sqe, reads: bool) {
        sqe.mptr = if reads { self.discarded } else { self.zeros }.into();
    }
}

/// The layout of a transfer: each `sector` bytes of payload are followed by `gap` bytes of
/// metadata. The metadata is zero when it is written and dropped when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedLbaLayout {
    pub(super) sector: u32,
    pub(super) metadata_bytes: u32,
}

impl ExtendedLbaLayout {
    /// The layout of a transfer without metadata.
    pub(crate) const NO_METADATA: ExtendedLbaLayout =
        ExtendedLbaLayout { sector: u32::MAX, metadata_bytes: 0 };

    /// Returns the layout for sectors of `sector` bytes.
    pub(crate) fn new(metadata: Option<MetadataFormat>, sector: u32) -> ExtendedLbaLayout {
        match metadata.map_or(0, |metadata| metadata.extended_lba_bytes()) {
            0 => ExtendedLbaLayout::NO_METADATA,
            gap => ExtendedLbaLayout { sector, metadata_bytes: gap },
        }
    }

    /// Returns the number of bytes that are transferred for `bytes` of payload.
    pub(super) fn wire_bytes(self, bytes: u32) -> Option<u32> {
        bytes.checked_add((bytes / self.sector).checked_mul(self.metadata_bytes)?)
    }
}
