//! [`WriteLogError`].

use mem::RegisterError;
use nvme::Status;

use crate::LogIdentity;

/// The reason for which a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WriteLogError {
    /// The log's size is no multiple of a line, or exceeds the memory.
    #[error(
        "a log of {bytes} bytes in persistent memory of {memory}: use a multiple of 64 that fits"
    )]
    Size {
        /// Size of the log in bytes.
        bytes: usize,
        /// Size of the memory in bytes.
        memory: usize,
    },
    /// The log is smaller than the largest write that it has to take.
    #[error(
        "a log of {bytes} bytes: writes of up to {write_bytes_max} bytes need at least {minimum}"
    )]
    TooSmall {
        /// Size of the log in bytes.
        bytes: usize,
        /// Maximum bytes of a logged write.
        write_bytes_max: u32,
        /// Minimum size in bytes.
        minimum: usize,
    },
    /// The device has fewer than two sectors, or a sector size that is no multiple of a line.
    #[error("a device of {sectors} sectors of {sector_bytes} bytes cannot have a log")]
    Device {
        /// Number of sectors.
        sectors: u64,
        /// Bytes of a sector.
        sector_bytes: u32,
    },
    /// A new log needs the last sector, which has data.
    #[error(
        "the device has no label of a log, and data in sector {lba}, its last one: the log needs this \
         sector"
    )]
    LastSectorInUse {
        /// The last sector.
        lba: u64,
    },
    /// The device's log may have data, and the memory has no log.
    #[error(
        "the log {identity} of the device, generation {generation}, may have data that is not on the \
         device, and this memory has no log: open the device with its own log"
    )]
    LogMissing {
        /// Identity of the device's log.
        identity: LogIdentity,
        /// Generation of the device's log.
        generation: u64,
    },
    /// The log has data of another device.
    #[error("the memory has data of the log {log}, and the device's log is {device:?}")]
    OtherDevice {
        /// Identity of the log in memory.
        log: LogIdentity,
        /// Identity of the device's log, if it has one.
        device: Option<LogIdentity>,
    },
    /// The log is older than the device.
    #[error(
        "the log has generation {log}, and the device generation {device}: the memory is an older copy"
    )]
    OldLog {
        /// Generation of the log.
        log: u64,
        /// Generation of the device.
        device: u64,
    },
    /// The device is older than the log.
    #[error(
        "the log has generation {log}, and the device generation {device}: the device is an older copy"
    )]
    OldDevice {
        /// Generation of the log.
        log: u64,
        /// Generation of the device.
        device: u64,
    },
    /// The log was written with another size, or for another sector size.
    #[error(
        "the log has {found_bytes} bytes for sectors of {found_sector_bytes} bytes, not \
         {expected_bytes} and {expected_sector_bytes}"
    )]
    OtherGeometry {
        /// Size of the log in bytes.
        found_bytes: u64,
        /// Bytes of a sector of the log.
        found_sector_bytes: u32,
        /// Size that was asked for, in bytes.
        expected_bytes: u64,
        /// Bytes of a sector of the device.
        expected_sector_bytes: u32,
    },
    /// The log or the label has another version.
    #[error("the {what} has version {found}, and this program reads version {expected}")]
    Version {
        /// The log or the label.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The version that is read.
        expected: u32,
    },
    /// A record that was persisted does not check.
    #[error("the log is damaged at position {position}: a record that was durable does not check")]
    Damaged {
        /// Position of the record in bytes.
        position: u64,
    },
    /// The device failed a request for its label.
    #[error(
        "the device fails to {operation} its last sector, which has the label of the log: {status:?}"
    )]
    Label {
        /// The operation.
        operation: &'static str,
        /// The status.
        status: Status,
    },
    /// Buffers cannot be registered with the device.
    #[error("buffers of the log: {0}")]
    Register(#[from] RegisterError),
}
