//! Metadata of a namespace, where requests have none: [`Beside`] is where it comes from and goes to if it has a
//! buffer of its own, [`Layout`] leaves room for it among the data if it has none.

use std::sync::Arc;

use nvme::{Metadata, MetadataPlace, Sqe};
use ring::{PAGE, Port, Region};

use crate::{DriveInfo, DriverError};

/// Metadata of a transfer at most that has a buffer of its own, which is in one piece.
pub(crate) const MOST_METADATA_BYTES: u64 = 64 << 10;

/// Where metadata comes from and goes to that has a buffer of its own and is nobody's: every command of
/// the queue is given the same.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    _region: Arc<Region>,
    /// As the drive finds them: zeros, which are written, and what is read.
    zeros: u64,
    thrown_away: u64,
}

impl Beside {
    /// That of a queue of a drive, registered with `port`; `None` if its namespace needs none.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Lacks`] where no memory is in one piece.
    pub(super) fn of(port: &Port, info: &DriveInfo) -> Result<Option<Beside>, DriverError> {
        let Some(Metadata { bytes, place: MetadataPlace::Apart, .. }) = info.metadata else {
            return Ok(None);
        };
        let bytes = u64::from(info.max_sectors) * u64::from(bytes);
        let bytes = bytes.next_multiple_of(PAGE as u64);
        let (region, at) = port.memory().provide(2 * bytes as usize)?;
        let run = |at| port.memory().wire_run(at, bytes);
        let (zeros, thrown_away) = run(at)
            .zip(run(at.offset(bytes)))
            .ok_or(DriverError::Lacks { what: "memory in one piece for metadata" })?;
        Ok(Some(Beside { _region: region, zeros, thrown_away }))
    }

    /// Sets the metadata pointer of a command.
    pub(super) fn point(&self, sqe: &mut Sqe, reads: bool) {
        sqe.mptr = if reads { self.thrown_away } else { self.zeros }.into();
    }
}

/// What of the bytes that a command transfers is its payload: of each `sector` bytes `gap` bytes more
/// are transferred, which are zeros when they are written and thrown away when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) sector: u32,
    pub(super) gap: u32,
}

impl Layout {
    /// All of it is.
    pub(crate) const PLAIN: Layout = Layout { sector: u32::MAX, gap: 0 };

    /// That of reads and writes of sectors of so many bytes.
    pub(crate) fn of(metadata: Option<Metadata>, sector: u32) -> Layout {
        match metadata.map_or(0, |metadata| metadata.inline_bytes()) {
            0 => Layout::PLAIN,
            gap => Layout { sector, gap },
        }
    }

    /// Bytes that are transferred for so many bytes of payload.
    pub(super) fn wire(self, bytes: u32) -> Option<u32> {
        bytes.checked_add((bytes / self.sector).checked_mul(self.gap)?)
    }
}
