//! Conversion of `errno` to NVMe status, for negative results.
//!
//! Linux's block layer converts a device's status into an `errno` (table `blk_errors`), and file
//! systems add their own values. This is the inverse.

use nvme::Status;
use rustix::io::Errno;

use crate::Op;

/// Returns the status of a command that the kernel completed with `errno`.
pub(super) fn from_errno(errno: Errno, op: Op) -> Status {
    match errno {
        // Errors of the medium, protection information, target, or link.
        Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::REMOTEIO | Errno::UCLEAN => {
            media_error(op)
        }
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Status::CAPACITY_EXCEEDED,
        Errno::INVAL | Errno::OVERFLOW => Status::INVALID_FIELD,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::INVALID_OPCODE,
        Errno::ROFS | Errno::BADF | Errno::PERM | Errno::ACCESS | Errno::TXTBSY => {
            Status::WRITE_PROTECTED
        }
        Errno::FAULT => Status::DATA_TRANSFER_ERROR,
        Errno::CANCELED | Errno::INTR => Status::ABORTED,
        Errno::NODEV | Errno::NXIO | Errno::SHUTDOWN => Status::NOT_READY,
        Errno::AGAIN | Errno::BUSY | Errno::NOMEM | Errno::TIMEDOUT | Errno::NOLINK => {
            Status::NOT_READY
        }
        _ => Status::INTERNAL,
    }
}

/// Returns the status of a media error.
pub(super) fn media_error(op: Op) -> Status {
    match op {
        Op::Read | Op::Extents => Status::UNRECOVERED_READ,
        Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => Status::WRITE_FAULT,
    }
}

/// Returns whether the device has been removed for good.
pub(super) fn is_device_removed(errno: Errno) -> bool {
    matches!(errno, Errno::NODEV | Errno::NXIO | Errno::SHUTDOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_its_status() {
        for (errno, op, status) in [
            (Errno::IO, Op::Read, Status::UNRECOVERED_READ),
            (Errno::IO, Op::Write, Status::WRITE_FAULT),
            (Errno::IO, Op::Flush, Status::WRITE_FAULT),
            (Errno::IO, Op::Discard, Status::WRITE_FAULT),
            (Errno::IO, Op::WriteZeroes, Status::WRITE_FAULT),
            (Errno::NODATA, Op::Read, Status::UNRECOVERED_READ),
            (Errno::ILSEQ, Op::Write, Status::WRITE_FAULT),
            (Errno::REMOTEIO, Op::Read, Status::UNRECOVERED_READ),
            (Errno::UCLEAN, Op::Read, Status::UNRECOVERED_READ),
            (Errno::NOSPC, Op::Write, Status::CAPACITY_EXCEEDED),
            (Errno::DQUOT, Op::Write, Status::CAPACITY_EXCEEDED),
            (Errno::FBIG, Op::Write, Status::CAPACITY_EXCEEDED),
            (Errno::INVAL, Op::Read, Status::INVALID_FIELD),
            (Errno::OVERFLOW, Op::Read, Status::INVALID_FIELD),
            (Errno::OPNOTSUPP, Op::Discard, Status::INVALID_OPCODE),
            (Errno::NOSYS, Op::WriteZeroes, Status::INVALID_OPCODE),
            (Errno::ROFS, Op::Write, Status::WRITE_PROTECTED),
            (Errno::BADF, Op::Write, Status::WRITE_PROTECTED),
            (Errno::PERM, Op::Discard, Status::WRITE_PROTECTED),
            (Errno::ACCESS, Op::Write, Status::WRITE_PROTECTED),
            (Errno::TXTBSY, Op::WriteZeroes, Status::WRITE_PROTECTED),
            (Errno::FAULT, Op::Read, Status::DATA_TRANSFER_ERROR),
            (Errno::CANCELED, Op::Read, Status::ABORTED),
            (Errno::INTR, Op::Write, Status::ABORTED),
            (Errno::NODEV, Op::Read, Status::NOT_READY),
            (Errno::NXIO, Op::Write, Status::NOT_READY),
            (Errno::SHUTDOWN, Op::Write, Status::NOT_READY),
            (Errno::AGAIN, Op::Read, Status::NOT_READY),
            (Errno::BUSY, Op::Write, Status::NOT_READY),
            (Errno::NOMEM, Op::Read, Status::NOT_READY),
            (Errno::TIMEDOUT, Op::Read, Status::NOT_READY),
            (Errno::NOLINK, Op::Read, Status::NOT_READY),
            (Errno::PROTO, Op::Read, Status::INTERNAL),
        ] {
            assert_eq!(from_errno(errno, op), status, "{errno:?} of {op:?}");
        }
        let gone: Vec<i32> =
            (1..134).filter(|e| is_device_removed(Errno::from_raw_os_error(*e))).collect();
        assert_eq!(gone.len(), 3, "ENXIO, ENODEV and ESHUTDOWN alone: {gone:?}");
        // No errno is converted to success.
        for errno in 1..4096 {
            for op in [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes] {
                assert!(!from_errno(Errno::from_raw_os_error(errno), op).is_success());
            }
        }
    }
}
