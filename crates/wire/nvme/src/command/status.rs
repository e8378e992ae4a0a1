//! [`Status`]: the status of a completed command.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A status field without its phase tag: status code, status code type, and the *more* and
/// *do not retry* bits [NVMe1.4 §4.6.1].
///
/// ```text
/// bits  7:0   status code
/// bits 10:8   status code type
/// bits 12:11  command retry delay (always 0 here)
/// bit  13     more
/// bit  14     do not retry
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status(u16);

/// The type of a status code [NVMe1.4 fig. 126].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusType {
    /// Defined for all commands.
    Generic,
    /// Defined by the command.
    CommandSpecific,
    /// A media or data integrity error.
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
    /// The opcode is not supported.
    INVALID_OPCODE = 0x001, "invalid command opcode";
    /// A field has a value that is not supported.
    INVALID_FIELD = 0x002, "invalid field in command";
    /// A data pointer contains memory that is not registered, or the transfer failed.
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    /// The controller lost power while the command was outstanding.
    POWER_LOSS = 0x005, "commands aborted due to power loss notification";
    /// Internal error of the drive.
    INTERNAL = 0x006, "internal error";
    /// Aborted by an Abort command.
    ABORTED = 0x007, "command abort requested";
    /// Aborted because its submission queue was deleted.
    ABORTED_SQ_DELETED = 0x008, "command aborted due to SQ deletion";
    /// The command violates the required command sequence.
    COMMAND_SEQUENCE = 0x00c, "command sequence error";
    /// The namespace does not exist.
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    /// An SGL descriptor has a type or sub-type that is not supported.
    SGL_TYPE_INVALID = 0x011, "SGL descriptor type invalid";
    /// A PRP entry is misaligned.
    PRP_OFFSET_INVALID = 0x013, "PRP offset invalid";
    /// An SGL is shorter than the transfer.
    SGL_LENGTH_INVALID = 0x00f, "data SGL length invalid";
    /// Another user of the drive does not allow the operation.
    OPERATION_DENIED = 0x015, "operation denied";
    /// The last sanitize operation has failed, and the drive has not been recovered from that.
    SANITIZE_FAILED = 0x01c, "sanitize failed";
    /// A sanitize operation is in progress.
    SANITIZE_IN_PROGRESS = 0x01d, "sanitize in progress";
    /// The namespace is write protected: the drive went read-only.
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    /// The address, or the address plus the length, is past the end.
    LBA_OUT_OF_RANGE = 0x080, "LBA out of range";
    /// The drive has no space for the data. A trim frees space.
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    /// The drive cannot execute the command now.
    NOT_READY = 0x082, "namespace not ready";
    /// A Format NVM of the namespace is in progress.
    FORMAT_IN_PROGRESS = 0x084, "format in progress";
    /// The value has another size than the buffer or the format allows (NVMe Key Value Command Set
    /// 1.0, generic command status).
    INVALID_VALUE_SIZE = 0x085, "invalid value size";
    /// The key is too short or too long (NVMe Key Value Command Set 1.0, generic command status).
    INVALID_KEY_SIZE = 0x086, "invalid key size";
    /// The key does not exist (NVMe Key Value Command Set 1.0, generic command status).
    KEY_NOT_FOUND = 0x087, "key does not exist";
    /// The completion queue of a new submission queue does not exist.
    INVALID_CQ = 0x100, "completion queue invalid";
    /// The queue identifier is out of range or in use.
    INVALID_QID = 0x101, "invalid queue identifier";
    /// The queue size is zero or too large.
    INVALID_QUEUE_SIZE = 0x102, "invalid queue size";
    /// The number of outstanding asynchronous event requests exceeds the limit.
    TOO_MANY_EVENT_REQUESTS = 0x105, "asynchronous event request limit exceeded";
    /// The interrupt vector is out of range.
    INVALID_VECTOR = 0x108, "invalid interrupt vector";
    /// The log page does not exist.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The LBA format, metadata or protection information of a Format NVM is not supported.
    INVALID_FORMAT = 0x10a, "invalid format";
    /// The queue cannot be deleted while a submission queue uses it.
    INVALID_QUEUE_DELETION = 0x10c, "invalid queue deletion";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 0x10d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    /// The drive has too little unallocated capacity for the namespace. The error log has the
    /// capacity that the namespace requires, in bytes.
    NAMESPACE_CAPACITY = 0x115, "namespace insufficient capacity";
    /// The drive has as many namespaces as it can have.
    NAMESPACE_ID_UNAVAILABLE = 0x116, "namespace identifier unavailable";
    /// The namespace is attached to the controller already.
    NAMESPACE_ATTACHED = 0x118, "namespace already attached";
    /// The namespace is private, and attached to another controller.
    NAMESPACE_PRIVATE = 0x119, "namespace is private";
    /// The namespace is not attached to the controller.
    NAMESPACE_NOT_ATTACHED = 0x11a, "namespace not attached";
    /// A namespace with more blocks than capacity.
    THIN_PROVISIONING = 0x11b, "thin provisioning not supported";
    /// The list of controllers is empty, not ascending, or names one that does not exist.
    CONTROLLER_LIST_INVALID = 0x11c, "controller list invalid";
    /// Sanitize is refused while the persistent memory region is enabled.
    SANITIZE_PROHIBITED_PMR = 0x123, "sanitize prohibited while persistent memory region is enabled";
    /// A Copy names more ranges or blocks than the namespace allows (NVM command set).
    COMMAND_SIZE_LIMIT = 0x183, "command size limit exceeded";
    /// The fields of the command for protection information are not allowed together (NVM command
    /// set).
    INVALID_PROTECTION = 0x181, "invalid protection information";
    /// The attributes conflict (NVM command set).
    CONFLICTING_ATTRIBUTES = 0x180, "conflicting attributes";
    /// A program or erase failed on the media, or the medium takes no more writes.
    WRITE_FAULT = 0x280, "write fault";
    /// ECC could not correct the data, or the page is torn.
    UNRECOVERED_READ = 0x281, "unrecovered read error";
    /// The guard does not match the sector's data [NVMe1.4 §8.3].
    GUARD_CHECK = 0x282, "end-to-end guard check error";
    /// The application tag of the protection information does not match.
    APPLICATION_TAG_CHECK = 0x283, "end-to-end application tag check error";
    /// The reference tag of the protection information does not match.
    REFERENCE_TAG_CHECK = 0x284, "end-to-end reference tag check error";
    /// The data of a Compare differs from the data of the blocks.
    COMPARE_FAILURE = 0x285, "compare failure";
    /// The sector is not written, or not readable before its paired page is programmed.
    UNWRITTEN = 0x287, "deallocated or unwritten logical block";
    /// A reset took the chunk offline, or it was offline ([OC20 §4], media errors).
    OFFLINE_CHUNK = 0x2c0, "offline chunk";
    /// A reset of a chunk in a state that does not allow it ([OC20 §4], media errors).
    INVALID_RESET = 0x2c1, "invalid reset";
    /// A read succeeded, but the data should be relocated soon ([OC20 §4], media errors).
    HIGH_ECC = 0x2d0, "high ECC";
    /// A program failed and the chunk stays open: the host continues with the next write unit
    /// ([OC20 §4], media errors).
    WRITE_NEXT_UNIT = 0x2f0, "write fault, write next unit";
    /// A program failed and the chunk was closed early; sectors below its write pointer stay
    /// readable ([OC20 §4], media errors).
    CHUNK_CLOSED_EARLY = 0x2f1, "write fault, chunk closed early";
    /// A write did not start at the chunk's write pointer, or was not a multiple of the write unit;
    /// the chunk is still writable ([OC20 §4], media errors).
    OUT_OF_ORDER_WRITE = 0x2f2, "out of order write";
    /// The host lost the path to the controller ([NVMe1.4 fig. 128]: host pathing error). A drive
    /// never returns this status.
    HOST_PATH_ERROR = 0x370, "host pathing error";
    /// A rule of the drive did not find a key (vendor specific, `docs/rules.md`).
    RULE_NOT_FOUND = 0x7c1, "rule: not found";
    /// A rule of the drive regards the command as invalid (vendor specific).
    RULE_INVALID = 0x7c2, "rule: invalid";
    /// A rule of the drive does not permit the command (vendor specific).
    RULE_DENIED = 0x7c3, "rule: denied";
    /// A rule of the drive cannot decide now (vendor specific).
    RULE_BUSY = 0x7c4, "rule: busy";
    /// A rule of the drive read data that is not what it expects (vendor specific).
    RULE_CORRUPT = 0x7c5, "rule: corrupt data";
    /// A rule of the drive used an index past the end (vendor specific).
    RULE_INDEX = 0x7d0, "rule: index out of range";
    /// A table of a rule of the drive has no space (vendor specific).
    RULE_TABLE_FULL = 0x7d1, "rule: table full";
    /// A rule of the drive matched the command again too often (vendor specific).
    RULE_HOP_LIMIT = 0x7d2, "rule: hop limit";
    /// The host's buffer has no space for the results of a rule of the drive (vendor specific).
    RULE_OUTPUT_FULL = 0x7d3, "rule: output full";
    /// A rule of the drive chose an address that the command cannot use (vendor specific).
    RULE_BAD_ADDRESS = 0x7d4, "rule: bad address";
    /// No rule of the drive matches the command (vendor specific).
    RULE_MISS = 0x7e0, "no rule matches the command";
    /// The drive does not take the rule program (vendor specific).
    RULE_PROGRAM = 0x7e1, "the drive does not take the rule program";
}

const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    /// Decodes the 15 bits of the status field, without the phase tag.
    #[inline]
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// Encodes the 15 bits of the status field, without the phase tag.
    #[inline]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Returns the status code, 8 bits.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Returns the status code type.
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

    /// Returns this status with the *do not retry* bit.
    pub const fn do_not_retry(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// Whether the *do not retry* bit is set.
    pub const fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether the error log has more information.
    pub const fn has_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether two statuses are equal, apart from the *more* and *do not retry* bits.
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
