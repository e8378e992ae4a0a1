//! Commands of applications that share a translation layer: their blocks become those of the layer.
//!
//! Hosts and rules number the blocks of an application from 0. A command is translated once, when it starts:
//! after rules have chosen its blocks, and before the translation layer has it. Invariant: a translated
//! command addresses sectors of its application only.

use nvme::{DsmRange, IoCommand, Status};

use super::Spaces;
use crate::command::table::{Command, range_blocks};

/// The sectors of an application among those of its translation layer.
#[derive(Clone, Copy, Debug)]
struct ThinRange {
    base: u64,
    sectors: u64,
}

impl ThinRange {
    /// Returns the translation layer's address of the first of some sectors.
    ///
    /// # Errors
    /// *LBA out of range* if they exceed the quota.
    fn place(self, first: u64, count: u64) -> Result<u64, Status> {
        match first.checked_add(count) {
            Some(end) if end <= self.sectors => Ok(self.base + first),
            _ => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
        }
    }

    /// Returns the translation layer's addresses of ranges with sectors, and leaves out the others.
    fn place_all(self, ranges: &[DsmRange]) -> Result<Vec<DsmRange>, Status> {
        let with_sectors = ranges.iter().filter(|range| range.nlb.get() > 0);
        let place = |range: &DsmRange| {
            let first = self.place(range.slba.get(), range.nlb.get().into())?;
            Ok(DsmRange { slba: first.into(), ..*range })
        };
        with_sectors.map(place).collect()
    }
}

/// Translates the blocks of a command, which is about to start, to those of the translation layer of its
/// application.
///
/// # Errors
/// *LBA out of range* if it exceeds the quota of the application; the command is as before.
pub(crate) fn translate(spaces: &Spaces, command: &mut Command) -> Result<(), Status> {
    let app = command.app;
    let range = ThinRange { base: spaces.base_of(app), sectors: spaces.sectors_of(app) };
    if let IoCommand::DatasetManagement { deallocate: true, .. } = command.io {
        command.ranges = range.place_all(&command.ranges)?;
    }
    let copied = range_blocks(command);
    match &mut command.io {
        IoCommand::Read { slba, nlb, .. }
        | IoCommand::Write { slba, nlb, .. }
        | IoCommand::WriteZeroes { slba, nlb, .. }
        | IoCommand::Compare { slba, nlb, .. }
        | IoCommand::Verify { slba, nlb, .. }
        | IoCommand::WriteUncorrectable { slba, nlb }
        | IoCommand::LbaStatus { slba, nlb, .. } => {
            *slba = range.place(*slba, u64::from(*nlb))?;
        }
        IoCommand::Copy { slba, .. } => {
            let target = range.place(*slba, copied)?;
            command.ranges = range.place_all(&command.ranges)?;
            *slba = target;
        }
        // They name no blocks, or the drive does not execute them.
        IoCommand::Flush
        | IoCommand::DatasetManagement { .. }
        | IoCommand::Rule(_)
        | IoCommand::Named(_)
        | IoCommand::VectorRead { .. }
        | IoCommand::VectorWrite { .. }
        | IoCommand::VectorReset { .. }
        | IoCommand::VectorCopy { .. }
        | IoCommand::DeviceTrim { .. } => return Ok(()),
    }
    command.first_sector = command.first_sector.wrapping_add(range.base);
    Ok(())
}
