//! Metadata of a namespace, where requests have none: [`MetadataBuffer`] is where it comes from and goes to if it has a
//! buffer of its own, [`Layout`] leaves room for it among the data if it has none.

use std::sync::Arc;

use nvme::{MetadataFormat, MetadataTransfer, Sqe};
use ring::{PAGE_BYTES, Port, SharedRegion};

use crate::{ControllerInfo, DriverError};

/// Metadata of a transfer at most that has a buffer of its own, which is in one piece.
pub(crate) const METADATA_BYTES_MAX: u64 = 64 << 10;

/// Where metadata comes from and goes to that has a buffer of its own and is nobody's: every command of
/// the queue is given the same.
#[derive(Clone, Debug)]
pub(super) struct MetadataBuffer {
    _region: Arc<SharedRegion>,
    /// As the drive finds them: zeros, which are written, and what is read.
    zeros: u64,
    discarded: u64,
}

impl MetadataBuffer {
    /// That of a queue of a drive, registered with `port`; `None` if its namespace needs none.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Unsupported`] where no memory is in one piece.
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
            .ok_or(DriverError::Unsupported { what: "memory in one piece for metadata" })?;
        Ok(Some(MetadataBuffer { _region: region, zeros, discarded: thrown_away }))
    }

    /// Sets the metadata pointer of a command.
    pub(super) fn set_metadata_pointer(&self, sqe: &mut Sqe, reads: bool) {
        sqe.mptr = if reads { self.discarded } else { self.zeros }.into();
    }
}

/// What of the bytes that a command transfers is its payload: of each `sector` bytes `gap` bytes more
/// are transferred, which are zeros when they are written and thrown away when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedLbaLayout {
    pub(super) sector: u32,
    pub(super) metadata_bytes: u32,
}

impl ExtendedLbaLayout {
    /// All of it is.
    pub(crate) const NO_METADATA: ExtendedLbaLayout =
        ExtendedLbaLayout { sector: u32::MAX, metadata_bytes: 0 };

    /// That of reads and writes of sectors of so many bytes.
    pub(crate) fn new(metadata: Option<MetadataFormat>, sector: u32) -> ExtendedLbaLayout {
        match metadata.map_or(0, |metadata| metadata.extended_lba_bytes()) {
            0 => ExtendedLbaLayout::NO_METADATA,
            gap => ExtendedLbaLayout { sector, metadata_bytes: gap },
        }
    }

    /// Bytes that are transferred for so many bytes of payload.
    pub(super) fn wire_bytes(self, bytes: u32) -> Option<u32> {
        bytes.checked_add((bytes / self.sector).checked_mul(self.metadata_bytes)?)
    }
}
