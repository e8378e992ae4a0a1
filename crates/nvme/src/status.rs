//! [`Status`]: how a command ended.

use std::fmt;

/// A status field without its phase tag: status code, status code type, and the *more* and
/// *do not retry* bits (NVMe section 4.6.1).
///
/// ```text
/// bits  7:0   status code
/// bits 10:8   status code type
/// bits 12:11  command retry delay (always 0 here)
/// bit  13     more
/// bit  14     do not retry
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// What kind of status code it is (NVMe figure 126).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusType {
    /// Defined for all commands.
    Generic,
    /// Defined by the command.
    CommandSpecific,
    /// The media or the data's integrity.
    Media,
    /// Reserved, path related or vendor specific.
    Other(u8),
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $bits:expr, $text:expr;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($bits);)*

            fn text(self) -> Option<&'static str> {
                match self.0 & 0x7ff {
                    $($bits => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command succeeded.
    SUCCESS = 0x000, "success";
    /// The opcode is not known.
    INVALID_OPCODE = 0x001, "invalid command opcode";
    /// A field has a value that is not supported.
    INVALID_FIELD = 0x002, "invalid field in command";
    /// A data pointer names memory that is not registered, or an error on its way.
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    /// The controller lost power while the command was outstanding.
    POWER_LOSS = 0x005, "commands aborted due to power loss notification";
    /// The drive's own fault.
    INTERNAL = 0x006, "internal error";
    /// Aborted by an Abort command.
    ABORTED = 0x007, "command abort requested";
    /// Aborted because its submission queue was deleted.
    ABORTED_SQ_DELETED = 0x008, "command aborted due to SQ deletion";
    /// The command may not follow those before it.
    COMMAND_SEQUENCE = 0x00c, "command sequence error";
    /// The namespace does not exist.
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    /// An SGL descriptor has a type or sub-type that is not supported.
    SGL_TYPE_INVALID = 0x011, "SGL descriptor type invalid";
    /// A PRP entry is not aligned as it must be.
    PRP_OFFSET_INVALID = 0x013, "PRP offset invalid";
    /// An SGL is shorter than the transfer.
    SGL_LENGTH_INVALID = 0x00f, "data SGL length invalid";
    /// The namespace is write protected: the drive went read-only.
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    /// The address, or the address plus the length, is past the end.
    LBA_OUT_OF_RANGE = 0x080, "LBA out of range";
    /// The drive has no place to put the data. A trim makes some.
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    /// The drive cannot serve the command now.
    NOT_READY = 0x082, "namespace not ready";
    /// The completion queue of a new submission queue does not exist.
    INVALID_CQ = 0x100, "completion queue invalid";
    /// The queue identifier is out of range or in use.
    INVALID_QID = 0x101, "invalid queue identifier";
    /// The queue size is zero or too large.
    INVALID_QUEUE_SIZE = 0x102, "invalid queue size";
    /// More asynchronous event requests than the drive holds.
    TOO_MANY_EVENT_REQUESTS = 0x105, "asynchronous event request limit exceeded";
    /// The interrupt vector is out of range.
    INVALID_VECTOR = 0x108, "invalid interrupt vector";
    /// The log page does not exist.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The queue cannot be deleted while a submission queue uses it.
    INVALID_QUEUE_DELETION = 0x10c, "invalid queue deletion";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 0x10d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    /// The attributes conflict (NVM command set).
    CONFLICTING_ATTRIBUTES = 0x180, "conflicting attributes";
    /// A program or erase failed on the media, or the medium takes no more writes.
    WRITE_FAULT = 0x280, "write fault";
    /// Error correction gave up, or the page is torn.
    UNRECOVERED_READ = 0x281, "unrecovered read error";
    /// The sector's bytes are not those that its guard is of (NVMe section 8.3).
    GUARD_CHECK = 0x282, "end-to-end guard check error";
    /// The sector's protection information is of another application.
    APPLICATION_TAG_CHECK = 0x283, "end-to-end application tag check error";
    /// The sector's protection information is of another sector.
    REFERENCE_TAG_CHECK = 0x284, "end-to-end reference tag check error";
    /// The sector is not written, or not readable before its pair is programmed.
    UNWRITTEN = 0x287, "deallocated or unwritten logical block";
    /// A reset made the chunk go offline, or it already was (OC section 4, media errors).
    OFFLINE_CHUNK = 0x2c0, "offline chunk";
    /// A reset of a chunk in a state that does not allow it (OC section 4, media errors).
    INVALID_RESET = 0x2c1, "invalid reset";
    /// A read succeeded, but the data should be moved soon (OC section 4, media errors).
    HIGH_ECC = 0x2d0, "high ECC";
    /// A program failed and the chunk stays open: writing goes on with the next write unit (OC
    /// section 4, media errors).
    WRITE_NEXT_UNIT = 0x2f0, "write fault, write next unit";
    /// A program failed and the chunk is closed early; what is below its write pointer stays
    /// readable (OC section 4, media errors).
    CHUNK_CLOSED_EARLY = 0x2f1, "write fault, chunk closed early";
    /// A write did not start at the chunk's write pointer, or not in whole write units; the chunk
    /// may still be written (OC section 4, media errors).
    OUT_OF_ORDER_WRITE = 0x2f2, "out of order write";
    /// The host has lost the way to the controller (NVMe 1.4, figure 128: host pathing error).
    /// Never sent by a drive.
    HOST_PATH_ERROR = 0x370, "host pathing error";
}

const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    /// From the wire's 15 bits (without the phase tag).
    #[inline]
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// The wire's 15 bits (without the phase tag).
    #[inline]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The status code, 8 bits.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// The status code type.
    pub const fn kind(self) -> StatusType {
        match self.0 >> 8 & 7 {
            0 => StatusType::Generic,
            1 => StatusType::CommandSpecific,
            2 => StatusType::Media,
            other => StatusType::Other(other as u8),
        }
    }

    /// Whether the command succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Whether the media, not the request, is at fault.
    pub const fn is_media_error(self) -> bool {
        matches!(self.kind(), StatusType::Media)
    }

    /// The same status, marked as pointless to retry.
    pub const fn do_not_retry(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// Whether a retry is pointless.
    pub const fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether the error log has more about it.
    pub const fn has_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether it is the same status, retry advice aside.
    pub const fn is(self, other: Status) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "status {:#05x}", self.0 & 0x7ff),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:#06x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_survive_the_wire_and_types_are_told_apart() {
        for s in [Status::SUCCESS, Status::UNRECOVERED_READ.do_not_retry(), Status::INVALID_QID] {
            assert_eq!(Status::from_bits(s.to_bits()), s);
        }
        assert_eq!(Status::UNRECOVERED_READ.kind(), StatusType::Media);
        assert_eq!(Status::INVALID_QID.kind(), StatusType::CommandSpecific);
        assert!(Status::WRITE_FAULT.is_media_error());
        assert!(!Status::LBA_OUT_OF_RANGE.is_media_error());
        assert!(Status::SUCCESS.do_not_retry().is_success());
        assert!(Status::WRITE_FAULT.do_not_retry().is(Status::WRITE_FAULT));
        assert_eq!(Status::CAPACITY_EXCEEDED.to_string(), "capacity exceeded");
    }
}
