//! The `errno` of errors, for callers that report one, as the C library and the Python package do.

use driver::{DriverError, NvmeDeviceError, RegionError, UringError};
use nvme::Status;
use share_proto::Code;

use crate::{DirectError, RemoteDeviceError};

fn os_errno(error: &std::io::Error, otherwise: i32) -> i32 {
    error.raw_os_error().unwrap_or(otherwise)
}

impl DirectError {
    /// Returns the `errno` of the error.
    pub fn errno(&self) -> i32 {
        match self {
            DirectError::File(error) => uring_errno(error),
            DirectError::Drive(DriverError::Depth { .. }) | DirectError::Config { .. } => {
                libc::EINVAL
            }
            DirectError::Drive(DriverError::NoFreeQueue { .. })
            | DirectError::NoQueueLeft { .. } => libc::ENOSPC,
            DirectError::Drive(DriverError::NoSuchChunks { .. }) => libc::ERANGE,
            DirectError::Drive(DriverError::Removed)
            | DirectError::Queue(NvmeDeviceError::Driver(DriverError::Removed)) => libc::ECONNRESET,
            DirectError::Drive(_) | DirectError::Rules { .. } => libc::EIO,
            DirectError::Queue(_)
            | DirectError::NoVector { .. }
            | DirectError::NoDrive { .. }
            | DirectError::NoInterrupts { .. }
            | DirectError::NoRegion { .. }
            | DirectError::NoHealth { .. } => libc::EOPNOTSUPP,
            DirectError::Region(RegionError::OutOfBounds { .. }) => libc::ERANGE,
            DirectError::Region(RegionError::NotReady) => libc::EBUSY,
            DirectError::Region(RegionError::Removed) => libc::ECONNRESET,
            DirectError::Memory { source, .. } => os_errno(source, libc::ENOMEM),
            DirectError::Vector(_) | DirectError::Register(_) => libc::ENOMEM,
            DirectError::Remote(error) => remote_errno(error),
        }
    }
}

fn remote_errno(error: &RemoteDeviceError) -> i32 {
    if let Some(refusal) = error.protocol_error() {
        return match refusal.code {
            Code::NotAllowed | Code::NotAdmin | Code::Denied => libc::EACCES,
            Code::Queues | Code::Connections => libc::EUSERS,
            Code::Memory | Code::Resources => libc::ENOMEM,
            Code::Taken => libc::EBUSY,
            Code::Version => libc::EPROTONOSUPPORT,
            Code::Kicked | Code::Stopping => libc::ECONNRESET,
            _ => libc::EIO,
        };
    }
    match error {
        RemoteDeviceError::Connect { source, .. } => os_errno(source, libc::ECONNREFUSED),
        RemoteDeviceError::Timeout { .. } => libc::ETIMEDOUT,
        RemoteDeviceError::Io(source) => os_errno(source, libc::EIO),
        RemoteDeviceError::Removed(_) => libc::ECONNRESET,
        RemoteDeviceError::Name(_) => libc::EINVAL,
        _ => libc::EPROTO,
    }
}

fn uring_errno(error: &UringError) -> i32 {
    match error {
        UringError::Open { source, .. } | UringError::Ring { source, .. } => {
            os_errno(source, libc::EIO)
        }
        UringError::Memory(source) => os_errno(source, libc::ENOMEM),
        UringError::NoPolling { source, .. } => os_errno(source, libc::EOPNOTSUPP),
        UringError::InUse { .. } => libc::EBUSY,
        UringError::Kind { .. } => libc::ENOTBLK,
        _ => libc::EINVAL,
    }
}

/// Maps a command's status to `errno`, as Linux does (`nvme_error_status`, `blk_errors`) where that
/// distinguishes what programs need.
pub fn status_errno(status: Status) -> i32 {
    match Status::from_bits(status.to_bits() & 0x7ff) {
        Status::SUCCESS => 0,
        Status::INVALID_FIELD => libc::EINVAL,
        Status::INVALID_OPCODE => libc::EOPNOTSUPP,
        Status::LBA_OUT_OF_RANGE => libc::ERANGE,
        Status::CAPACITY_EXCEEDED => libc::ENOSPC,
        Status::UNWRITTEN => libc::ENODATA,
        Status::OUT_OF_ORDER_WRITE => libc::ESPIPE,
        Status::INVALID_RESET => libc::EINVAL,
        Status::WRITE_PROTECTED => libc::EROFS,
        Status::DATA_TRANSFER_ERROR => libc::EFAULT,
        Status::HOST_PATH_ERROR => libc::ECONNRESET,
        Status::NOT_READY if status.is_final() => libc::ENODEV,
        Status::NOT_READY | Status::FORMAT_IN_PROGRESS | Status::SANITIZE_IN_PROGRESS => {
            libc::EBUSY
        }
        Status::ABORTED | Status::ABORTED_SQ_DELETED | Status::POWER_LOSS => libc::ECANCELED,
        // BLK_STS_PROTECTION.
        Status::GUARD_CHECK
        | Status::APPLICATION_TAG_CHECK
        | Status::REFERENCE_TAG_CHECK
        | Status::INVALID_PROTECTION => libc::EILSEQ,
        _ => libc::EIO,
    }
}
