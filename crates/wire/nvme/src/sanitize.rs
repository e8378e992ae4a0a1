//! Sanitize: the parameters of the command [NVMe1.4 §5.24], the capabilities of a controller, and the
//! sanitize status log page [NVMe1.4 §5.14.1.16.2].

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;
use crate::wire::wire;

/// The action of a Sanitize command, SANACT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SanitizeAction {
    /// Leaves the failure mode after a sanitize operation that failed.
    ExitFailureMode,
    /// Erases the flash.
    BlockErase,
    /// Writes a pattern to the flash.
    Overwrite,
    /// Deletes the key of the data.
    CryptoErase,
}

/// The parameters of a Sanitize command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SanitizeCommand {
    /// The action.
    pub action: SanitizeAction,
    /// Whether the host may leave the failure mode if the operation fails, AUSE.
    pub allows_exit: bool,
    /// Number of passes of an overwrite, 1 to 16, OWPASS.
    pub passes: u8,
    /// Whether the pattern is inverted between passes, OIPBP.
    pub inverts: bool,
    /// Whether blocks are to stay allocated after the operation.
    pub no_deallocate: bool,
    /// The pattern of an overwrite, OVRPAT.
    pub pattern: u32,
}

/// Allow Unrestricted Sanitize Exit (AUSE), CDW10.
const AUSE: u32 = 1 << 3;
/// Overwrite Invert Pattern Between Passes (OIPBP), CDW10.
const OIPBP: u32 = 1 << 8;
/// No-Deallocate After Sanitize, CDW10.
const NO_DEALLOCATE: u32 = 1 << 9;

impl SanitizeCommand {
    /// Returns a command with this action: one pass of zeros, and a failure mode that the host cannot
    /// leave.
    pub fn new(action: SanitizeAction) -> SanitizeCommand {
        SanitizeCommand {
            action,
            allows_exit: false,
            passes: 1,
            inverts: false,
            no_deallocate: false,
            pattern: 0,
        }
    }

    /// Parses command dwords 10 and 11.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for reserved values.
    pub fn from_dwords(cdw10: u32, cdw11: u32) -> Result<SanitizeCommand, Status> {
        if cdw10 >> 10 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let action = match cdw10 & 7 {
            1 => SanitizeAction::ExitFailureMode,
            2 => SanitizeAction::BlockErase,
            3 => SanitizeAction::Overwrite,
            4 => SanitizeAction::CryptoErase,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(SanitizeCommand {
            action,
            allows_exit: cdw10 & AUSE != 0,
            passes: match (cdw10 >> 4 & 0xf) as u8 {
                0 => 16,
                passes => passes,
            },
            inverts: cdw10 & OIPBP != 0,
            no_deallocate: cdw10 & NO_DEALLOCATE != 0,
            pattern: cdw11,
        })
    }

    /// Encodes command dwords 10 and 11. More than 16 passes are 16, none is one.
    pub fn to_dwords(self) -> (u32, u32) {
        let action = match self.action {
            SanitizeAction::ExitFailureMode => 1,
            SanitizeAction::BlockErase => 2,
            SanitizeAction::Overwrite => 3,
            SanitizeAction::CryptoErase => 4,
        };
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let cdw10 = action
            | bit(self.allows_exit, AUSE)
            | (u32::from(self.passes.clamp(1, 16)) & 0xf) << 4
            | bit(self.inverts, OIPBP)
            | bit(self.no_deallocate, NO_DEALLOCATE);
        (cdw10, self.pattern)
    }

    /// Returns the pattern of a pass of an overwrite, the first is 0. With inversion between an even
    /// number of passes the first one has the inverted pattern, so that the last one has the pattern
    /// of the command [NVMe1.4 §8.15].
    pub fn pattern_of_pass(&self, pass: u8) -> u32 {
        let left = self.passes.saturating_sub(1).saturating_sub(pass);
        if self.inverts && left % 2 == 1 { !self.pattern } else { self.pattern }
    }
}

/// Sanitize capabilities, SANICAP of Identify Controller.
pub mod sanicap {
    /// Block erase is supported.
    pub const BLOCK_ERASE: u32 = 1 << 1;
    /// Overwrite is supported.
    pub const OVERWRITE: u32 = 1 << 2;
    /// No-Deallocate After Sanitize is inhibited, NDI.
    pub const NO_DEALLOCATE_INHIBITED: u32 = 1 << 29;
    /// The media is not additionally modified after a sanitize operation, NODMMAS.
    pub const MEDIA_NOT_MODIFIED: u32 = 1 << 30;
}

/// The sanitize status log page, 512 bytes [NVMe1.4 §5.14.1.16.2].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SanitizeLog {
    /// Progress of the operation in units of 1/65536, `ffffh` if none is in progress; SPROG (bytes
    /// 1:0).
    pub progress: U16,
    /// Status `[2:0]`, completed passes of an overwrite `[7:3]`, all data is erased `[8]`; SSTAT
    /// (bytes 3:2).
    pub status: U16,
    /// Command dword 10 of the last operation, SCDW10 (bytes 7:4).
    pub cdw10: U32,
    /// Estimated time of an overwrite with 16 passes, seconds; `ffffffffh` if it is not known (bytes
    /// 11:8).
    pub overwrite_seconds: U32,
    /// Estimated time of a block erase, seconds (bytes 15:12).
    pub block_erase_seconds: U32,
    /// Estimated time of a cryptographic erase, seconds (bytes 19:16).
    pub crypto_erase_seconds: U32,
    /// Estimated times of these with a modification of the media afterwards, seconds (bytes 31:20).
    pub modified_media_seconds: [U32; 3],
    /// Reserved (bytes 511:32).
    pub reserved32: [u8; 480],
}

wire!(SanitizeLog, 512);

impl SanitizeLog {
    /// Status: the drive was never sanitized.
    pub const NEVER: u16 = 0;
    /// Status: the last operation succeeded.
    pub const SUCCEEDED: u16 = 1;
    /// Status: an operation is in progress.
    pub const IN_PROGRESS: u16 = 2;
    /// Status: the last operation failed.
    pub const FAILED: u16 = 3;
    /// Status: the last operation succeeded, and has deallocated blocks that were to stay allocated.
    pub const SUCCEEDED_DEALLOCATED: u16 = 4;
    /// Bit of `status`: nothing was written since the last successful operation, or since manufacture
    /// of a drive that was never sanitized.
    pub const GLOBAL_DATA_ERASED: u16 = 1 << 8;
    /// The value of `progress` without an operation.
    pub const NO_PROGRESS: u16 = 0xffff;
    /// The value of an estimated time that is not known.
    pub const NO_ESTIMATE: u32 = u32::MAX;

    /// Returns a log of zeros.
    pub fn zeroed() -> SanitizeLog {
        SanitizeLog::new_zeroed()
    }

    /// Returns the status of the last operation, bits 2:0.
    pub fn last_status(&self) -> u16 {
        self.status.get() & 7
    }

    /// Returns the completed passes of an overwrite.
    pub fn passes(&self) -> u8 {
        (self.status.get() >> 3 & 0x1f) as u8
    }

    /// Whether nothing was written since the last successful operation.
    pub fn is_erased(&self) -> bool {
        self.status.get() & SanitizeLog::GLOBAL_DATA_ERASED != 0
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        type S = SanitizeLog;
        assert_eq!((offset_of!(S, status), offset_of!(S, cdw10)), (2, 4));
        assert_eq!((offset_of!(S, overwrite_seconds), offset_of!(S, block_erase_seconds)), (8, 12));
        assert_eq!((offset_of!(S, modified_media_seconds), offset_of!(S, reserved32)), (20, 32));
        let mut log = SanitizeLog::zeroed();
        log.status = 0x10b.into();
        assert_eq!((log.last_status(), log.passes(), log.is_erased()), (3, 1, true));
    }

    #[test]
    fn dwords_survive_the_wire_and_reserved_values_are_refused() {
        for cdw10 in 0..1 << 12 {
            match SanitizeCommand::from_dwords(cdw10, 0x1234_5678) {
                Ok(command) => assert_eq!(command.to_dwords(), (cdw10, 0x1234_5678)),
                Err(status) => {
                    assert_eq!(status, Status::INVALID_FIELD);
                    assert!(cdw10 >> 10 != 0 || !(1..5).contains(&(cdw10 & 7)), "{cdw10:#x}");
                }
            }
        }
        let sixteen = SanitizeCommand::from_dwords(3, 0).unwrap();
        assert_eq!(sixteen.passes, 16);
    }

    #[test]
    fn the_last_pass_has_the_pattern_of_the_command() {
        let mut command = SanitizeCommand::new(SanitizeAction::Overwrite);
        command.pattern = 0xff;
        for (passes, inverts) in [(1, true), (2, true), (3, true), (16, true), (3, false)] {
            (command.passes, command.inverts) = (passes, inverts);
            assert_eq!(command.pattern_of_pass(passes - 1), 0xff);
            if passes > 1 {
                let before = if inverts { !0xff } else { 0xff };
                assert_eq!(command.pattern_of_pass(passes - 2), before);
            }
        }
    }
}
