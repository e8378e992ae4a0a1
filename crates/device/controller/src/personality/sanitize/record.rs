//! [`SanitizeRecord`]: what a drive keeps of Sanitize in non-volatile memory
//! (`docs/format/sidecar.md`), and [`SanitizeState`].

use nvme::{SanitizeAction, SanitizeCommand, SanitizeLog};
use serde::{Deserialize, Serialize};

use crate::error::DriveError;
use crate::persistence::nonvolatile::{NonVolatile, SettingsSection};
use crate::personality::sanitize::run::SanitizeRun;

/// Bytes of the record.
const BYTES: usize = 32;

/// Bit of the flags: nothing was written since the last successful operation.
const ERASED: u8 = 1;
/// Bit of the flags: commands are refused since the last operation failed.
const FAILURE_MODE: u8 = 1 << 1;

const _: () = assert!(BYTES <= SettingsSection::Sanitize.bytes());

/// The state of Sanitize that a drive keeps over power cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SanitizeRecord {
    /// Status of the last operation, as in SSTAT.
    pub(super) status: u8,
    /// Completed passes of an overwrite.
    pub(super) passes: u8,
    /// Whether nothing was written since the last successful operation.
    pub(crate) is_erased: bool,
    /// Whether commands are refused since the last operation failed.
    pub(super) in_failure_mode: bool,
    /// Command dwords 10 and 11 of the last operation.
    pub(super) dwords: (u32, u32),
    /// Operations that have succeeded since the drive was made.
    pub(super) succeeded: u64,
}

impl SanitizeRecord {
    /// Reads the record. A status that this version does not know is that of a failed operation.
    pub(crate) fn read(settings: &NonVolatile) -> SanitizeRecord {
        let bytes = settings.section(SettingsSection::Sanitize);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        SanitizeRecord {
            status: bytes[0].min(SanitizeLog::SUCCEEDED_DEALLOCATED as u8 + 1),
            passes: bytes[1].min(16),
            is_erased: bytes[2] & ERASED != 0,
            in_failure_mode: bytes[2] & FAILURE_MODE != 0,
            dwords: (word(4), word(8)),
            succeeded: u64::from(word(16)) | u64::from(word(20)) << 32,
        }
        .checked()
    }

    fn checked(self) -> SanitizeRecord {
        let failed = SanitizeLog::FAILED as u8;
        let is_known = self.status <= SanitizeLog::SUCCEEDED_DEALLOCATED as u8;
        let status = if is_known { self.status } else { failed };
        SanitizeRecord { status, ..self }
    }

    /// Writes the record.
    ///
    /// # Errors
    /// Those of [`NonVolatile::replace`]; the memory is as before.
    pub(super) fn write(&self, settings: &mut NonVolatile) -> Result<(), DriveError> {
        let mut bytes = [0; BYTES];
        bytes[0] = self.status;
        bytes[1] = self.passes;
        bytes[2] = if self.is_erased { ERASED } else { 0 }
            | if self.in_failure_mode { FAILURE_MODE } else { 0 };
        bytes[4..8].copy_from_slice(&self.dwords.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.dwords.1.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.succeeded.to_le_bytes());
        settings.replace(SettingsSection::Sanitize, &bytes)
    }

    /// Whether an operation is in progress.
    pub(crate) fn is_running(&self) -> bool {
        self.status == SanitizeLog::IN_PROGRESS as u8
    }

    /// Returns the command of the last operation; that of a block erase if it is not known.
    pub(super) fn command(&self) -> SanitizeCommand {
        SanitizeCommand::from_dwords(self.dwords.0, self.dwords.1)
            .unwrap_or(SanitizeCommand::new(SanitizeAction::BlockErase))
    }

    /// Returns SSTAT.
    pub(super) fn sstat(&self) -> u16 {
        let passes = match self.command().action {
            SanitizeAction::Overwrite => u16::from(self.passes) << 3,
            _ => 0,
        };
        let erased = if self.is_erased { SanitizeLog::GLOBAL_DATA_ERASED } else { 0 };
        u16::from(self.status) | passes | erased
    }
}

/// The state of Sanitize of a drive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SanitizeState {
    /// The record, as in non-volatile memory; of a drive that was never sanitized, whether it is
    /// erased is not there.
    pub(crate) record: SanitizeRecord,
    /// The operation in progress.
    #[serde(skip)]
    pub(super) run: Option<Box<SanitizeRun>>,
    /// Whether the operation has begun to change the flash: the FTL does nothing.
    #[serde(skip)]
    pub(crate) has_flash: bool,
}

impl SanitizeState {
    /// Returns the state of a drive that is powered on. An operation in progress starts again.
    pub(crate) fn power_on(record: SanitizeRecord, is_new: bool) -> SanitizeState {
        let never = record.status == SanitizeLog::NEVER as u8;
        let record = SanitizeRecord { is_erased: record.is_erased || never && is_new, ..record };
        let run = record.is_running().then(|| Box::new(SanitizeRun::resumed(&record)));
        SanitizeState { record, has_flash: run.is_some(), run }
    }
}
