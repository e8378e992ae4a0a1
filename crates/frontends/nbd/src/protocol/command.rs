//! [`NbdCommand`]: a request that passed every check, or the [`RequestError`] it gets. Requests are untrusted; code
//! after this module relies on valid ranges, alignment and flags.

use crate::export::Export;
use crate::protocol::handshake::NegotiatedSession;
use crate::protocol::wire::{ErrorCode, RequestHeader, command, command_flag as flag};

/// Operation on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandAction {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes {
        /// Without `NBD_CMD_FLAG_NO_HOLE`.
        may_unmap: bool,
    },
    BlockStatus {
        /// `NBD_CMD_FLAG_REQ_ONE`.
        one: bool,
    },
}

impl CommandAction {
    /// Whether the request needs a buffer of its own length.
    pub(crate) fn has_payload(self) -> bool {
        matches!(self, CommandAction::Read | CommandAction::Write)
    }
}

/// A request within the export, in whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NbdCommand {
    pub(crate) action: CommandAction,
    pub(crate) cookie: u64,
    /// Bytes from the start of the export.
    pub(crate) offset: u64,
    /// Bytes; 0 only for a flush.
    pub(crate) length: u32,
    /// The reply must wait until the effect is durable.
    pub(crate) fua: bool,
}

/// Why a request is answered with an error without reaching the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestError {
    pub(crate) code: ErrorCode,
    pub(crate) text: &'static str,
}

const fn refuse(code: ErrorCode, text: &'static str) -> RequestError {
    RequestError { code, text }
}

impl NbdCommand {
    /// Checks a header against the export and what was negotiated (NBD "Request types", "Error
    /// values", "Block size constraints"). `NBD_CMD_DISC` is not a command: it has no reply.
    pub(crate) fn check(
        header: &RequestHeader,
        export: &Export,
        session: NegotiatedSession,
    ) -> Result<NbdCommand, RequestError> {
        use ErrorCode::{Invalid, NoSpace, NotSupported, Permission};
        // FUA is valid for all commands (NBD "Command flags").
        let (action, flags) = match header.kind {
            // The server never fragments a read, which satisfies DF.
            command::READ if session.structured => (CommandAction::Read, flag::DF),
            command::READ => (CommandAction::Read, 0),
            command::WRITE => (CommandAction::Write, 0),
            command::FLUSH => (CommandAction::Flush, 0),
            command::TRIM => (CommandAction::Trim, 0),
            command::WRITE_ZEROES => {
                let may_unmap = header.flags & flag::NO_HOLE == 0;
                (CommandAction::WriteZeroes { may_unmap }, flag::NO_HOLE | flag::FAST_ZERO)
            }
            command::BLOCK_STATUS => {
                let one = header.flags & flag::REQ_ONE != 0;
                (CommandAction::BlockStatus { one }, flag::REQ_ONE)
            }
            _ => return Err(refuse(Invalid, "unknown command")),
        };
        if header.flags & !(flags | flag::FUA) != 0 {
            return Err(refuse(Invalid, "a flag that this command does not have"));
        }
        let mut command = NbdCommand {
            action,
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
            fua: header.flags & flag::FUA != 0,
        };
        if action == CommandAction::Flush {
            if header.offset != 0 || header.length != 0 {
                return Err(refuse(Invalid, "offset and length of a flush must be zero"));
            }
            command.fua = false;
            return Ok(command);
        }
        let changes = matches!(
            action,
            CommandAction::Write | CommandAction::Trim | CommandAction::WriteZeroes { .. }
        );
        if changes && export.read_only {
            return Err(refuse(Permission, "the export is read-only"));
        }
        if matches!(action, CommandAction::BlockStatus { .. }) && !session.allocation {
            return Err(refuse(Invalid, "no metadata context was selected"));
        }
        if header.length == 0 {
            return Err(refuse(Invalid, "a length of zero"));
        }
        match header.offset.checked_add(u64::from(header.length)) {
            Some(end) if end <= export.bytes => {}
            // "SHOULD return NBD_ENOSPC if it receives a write request including one or more
            // sectors beyond the size of the device", and NBD_EINVAL for a read, trim or status.
            _ if matches!(action, CommandAction::Write | CommandAction::WriteZeroes { .. }) => {
                return Err(refuse(NoSpace, "past the end of the export"));
            }
            _ => return Err(refuse(Invalid, "past the end of the export")),
        }
        let mask = export.block_min - 1;
        if header.offset & u64::from(mask) != 0 || header.length & mask != 0 {
            return Err(refuse(Invalid, "not a whole number of blocks of the minimum size"));
        }
        let max = if session.sized { export.block_max } else { export.payload_max };
        if action.has_payload() && header.length > max {
            return Err(refuse(Invalid, "longer than the maximum block size"));
        }
        if action == (CommandAction::WriteZeroes { may_unmap: false })
            && header.flags & flag::FAST_ZERO != 0
        {
            return Err(refuse(NotSupported, "zeros that may not be a hole are not fast"));
        }
        command.fua &= changes;
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NbdConfig;

    const BYTES: u64 = 2048 * 4096;

    fn check(kind: u16, flags: u16, offset: u64, length: u32) -> Result<NbdCommand, ErrorCode> {
        let limits = block::Limits {
            sector_bytes: 4096,
            sectors: 2048,
            max_sectors: 64,
            optimal_sectors: 1,
            queue_depth: 8,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        let export = Export::new(&limits, &NbdConfig::default(), 32 << 20);
        let session = NegotiatedSession { structured: true, allocation: true, sized: true };
        let header = RequestHeader { flags, kind, cookie: 7, offset, length };
        NbdCommand::check(&header, &export, session).map_err(|r| r.code)
    }

    #[test]
    fn each_command_has_its_own_flags() {
        use command::*;
        for kind in [READ, WRITE, TRIM, WRITE_ZEROES, BLOCK_STATUS] {
            assert!(check(kind, flag::FUA, 0, 4096).is_ok(), "FUA on {kind}");
            assert_eq!(check(kind, 1 << 5, 0, 4096), Err(ErrorCode::Invalid));
        }
        for (bit, owner) in [
            (flag::DF, READ),
            (flag::NO_HOLE, WRITE_ZEROES),
            (flag::FAST_ZERO, WRITE_ZEROES),
            (flag::REQ_ONE, BLOCK_STATUS),
        ] {
            for kind in [READ, WRITE, TRIM, WRITE_ZEROES, BLOCK_STATUS] {
                assert_eq!(check(kind, bit, 0, 4096).is_ok(), kind == owner, "{bit} on {kind}");
            }
        }
        let slow = flag::FAST_ZERO | flag::NO_HOLE;
        assert_eq!(check(WRITE_ZEROES, slow, 0, 4096), Err(ErrorCode::NotSupported));
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        use command::*;
        for (kind, code) in [
            (READ, ErrorCode::Invalid),
            (TRIM, ErrorCode::Invalid),
            (BLOCK_STATUS, ErrorCode::Invalid),
            (WRITE, ErrorCode::NoSpace),
            (WRITE_ZEROES, ErrorCode::NoSpace),
        ] {
            assert!(check(kind, 0, BYTES - 4096, 4096).is_ok());
            for (offset, length) in
                [(BYTES, 4096), (BYTES - 4096, 8192), (!4095, 8192), (u64::MAX, 1)]
            {
                assert_eq!(check(kind, 0, offset, length), Err(code), "{kind} at {offset}");
            }
            for (offset, length) in [(1, 4096), (0, 1), (0, 4097), (0, 0)] {
                assert_eq!(check(kind, 0, offset, length), Err(ErrorCode::Invalid));
            }
        }
        assert_eq!(check(READ, 0, 0, 2 << 20), Err(ErrorCode::Invalid), "over the maximum");
        assert!(check(TRIM, 0, 0, BYTES as u32).is_ok(), "no payload, no maximum");
        assert_eq!(check(FLUSH, 0, 0, 1), Err(ErrorCode::Invalid));
        assert_eq!(check(5, 0, 0, 4096), Err(ErrorCode::Invalid), "CACHE is not offered");
    }
}
