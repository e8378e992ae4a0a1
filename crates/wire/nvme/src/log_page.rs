//! Log pages: health, errors, firmware slots [NVMe1.4 §5.14.1]. The chunk information page is
//! an array of [`ChunkDescriptor`](crate::ChunkDescriptor)s.

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;
use crate::wire::wire;

/// Errors, newest first: [`ErrorEntry`]s.
pub const ERROR: u8 = 0x01;
/// Health: [`HealthLog`].
pub const HEALTH: u8 = 0x02;
/// Firmware slots: [`FirmwareLog`].
pub const FIRMWARE: u8 = 0x03;
/// Namespaces whose attributes have changed: [`NamespaceList`](crate::NamespaceList).
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Commands supported and effects: [`CommandEffects`].
pub const EFFECTS: u8 = 0x05;
/// Chunks of an open-channel drive: [`ChunkDescriptor`](crate::ChunkDescriptor)s [OC20 §3].
pub const CHUNK_INFORMATION: u8 = 0xca;
/// Chunk notifications of an open-channel drive, newest first:
/// [`ChunkNotification`](crate::ChunkNotification)s [OC20 §3].
pub const CHUNK_NOTIFICATION: u8 = 0xd0;
/// The device L2P (vendor specific): for each logical address, the physical address of its latest
/// version, or [`UNMAPPED`], as a little-endian 64-bit word.
pub const DEVICE_L2P: u8 = 0xc1;
/// Commands that no rule of the drive matched (vendor specific): [`RuleMissLog`](crate::RuleMissLog).
pub const RULE_MISSES: u8 = 0xc4;
/// Events that rules have posted (vendor specific): [`RuleEventLog`](crate::RuleEventLog).
pub const RULE_EVENTS: u8 = 0xc5;
/// Valid sectors with names that the drive found when it was powered on (vendor specific):
/// [`FoundNameEntry`](crate::FoundNameEntry)s, and one with the name `u64::MAX` behind them. Reading the
/// last one without Retain Asynchronous Event removes them.
pub const FOUND_NAMES: u8 = 0xc6;
/// Status of Sanitize: [`SanitizeLog`](crate::SanitizeLog).
pub const SANITIZE: u8 = 0x81;
/// The value in [`DEVICE_L2P`] of a logical address that is not mapped.
pub const UNMAPPED: u64 = u64::MAX;
/// Counters of the device L2P (vendor specific): [`DeviceL2pLog`].
pub const DEVICE_L2P_TOTALS: u8 = 0xc2;

/// The commands that a controller supports, and their effects, 4096 bytes [NVMe1.4 §5.14.1.5].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEffects([u8; CommandEffects::BYTES]);

impl CommandEffects {
    /// Size of the page in bytes.
    pub const BYTES: usize = 4096;
    /// Bit of a command: it is supported, CSUPP.
    pub const SUPPORTED: u32 = 1;
    /// Bit of a command: it may change logical blocks, LBCC.
    pub const CHANGES_BLOCKS: u32 = 1 << 1;
    /// Bit of a command: it may change the namespaces of the drive, NIC.
    pub const CHANGES_INVENTORY: u32 = 1 << 3;
    /// Offset of the I/O commands, after the admin commands.
    const IO_COMMANDS: usize = 1024;

    /// Returns a page without commands.
    pub fn none() -> CommandEffects {
        CommandEffects([0; CommandEffects::BYTES])
    }

    /// Sets the effects of an admin command.
    pub fn set_admin(&mut self, opcode: u8, effects: u32) {
        self.0[usize::from(opcode) * 4..][..4].copy_from_slice(&effects.to_le_bytes());
    }

    /// Sets the effects of an I/O command.
    pub fn set_io(&mut self, opcode: u8, effects: u32) {
        let at = CommandEffects::IO_COMMANDS + usize::from(opcode) * 4;
        self.0[at..][..4].copy_from_slice(&effects.to_le_bytes());
    }

    /// Returns the bytes of the page.
    pub fn as_bytes(&self) -> &[u8; CommandEffects::BYTES] {
        &self.0
    }
}

/// SMART and health, 512 bytes [NVMe1.4 §5.14.1.2].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HealthLog {
    /// Critical warnings: bit 0 spare low, 1 temperature, 2 reliability degraded, 3 read only, 4
    /// backup failed (byte 0).
    pub critical_warning: u8,
    /// Composite temperature, kelvins (bytes 2:1).
    pub temperature: U16,
    /// Available spare, percent (byte 3).
    pub available_spare: u8,
    /// Available spare threshold, percent (byte 4).
    pub spare_threshold: u8,
    /// Percentage used, may exceed 100, saturates at 255 (byte 5).
    pub percentage_used: u8,
    /// Endurance group summary (byte 6).
    pub endurance_group: u8,
    /// Reserved (bytes 31:7).
    pub reserved7: [u8; 25],
    /// Read by the host, in thousands of 512 bytes, rounded up (bytes 47:32).
    pub data_units_read: U128,
    /// Written by the host, in thousands of 512 bytes, rounded up (bytes 63:48).
    pub data_units_written: U128,
    /// Read commands (bytes 79:64).
    pub host_reads: U128,
    /// Write commands (bytes 95:80).
    pub host_writes: U128,
    /// Minutes with commands outstanding (bytes 111:96).
    pub busy_minutes: U128,
    /// Power cycles (bytes 127:112).
    pub power_cycles: U128,
    /// Hours powered on (bytes 143:128).
    pub power_on_hours: U128,
    /// Power losses without notice (bytes 159:144).
    pub unsafe_shutdowns: U128,
    /// Media and integrity errors that were not recovered (bytes 175:160).
    pub media_errors: U128,
    /// Number of error log entries since manufacture (bytes 191:176).
    pub error_entries: U128,
    /// Minutes above the warning temperature (bytes 195:192).
    pub warning_minutes: U32,
    /// Minutes above the critical temperature (bytes 199:196).
    pub critical_minutes: U32,
    /// Temperature sensors, kelvins, 0 for none (bytes 215:200).
    pub sensors: [U16; 8],
    /// Thermal management: transitions and seconds, two levels (bytes 231:216).
    pub thermal: [U32; 4],
    /// Reserved (bytes 511:232).
    pub reserved232: [u8; 280],
}

wire!(HealthLog, 512);

impl HealthLog {
    /// Returns a log of zeros.
    pub fn zeroed() -> HealthLog {
        HealthLog::new_zeroed()
    }

    /// Converts bytes to the unit of `data_units_read` and `data_units_written`.
    pub fn data_units(bytes: u64) -> U128 {
        u128::from(bytes.div_ceil(512_000)).into()
    }
}

/// An error log entry, 64 bytes [NVMe1.4 §5.14.1.1].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error count, from 1; 0 for an unused entry (bytes 7:0).
    pub count: U64,
    /// Submission queue of the command; `ffffh` if the error is not specific to a command (bytes
    /// 9:8).
    pub sqid: U16,
    /// Command identifier; `ffffh` if the error is not specific to a command (bytes 11:10).
    pub cid: U16,
    /// Status field with phase tag in bit 0 (bytes 13:12).
    pub status: U16,
    /// Parameter error location: byte `[7:0]` and bit `[10:8]` of the command; `ffffh` if none
    /// (bytes 15:14).
    pub location: U16,
    /// First logical block in error (bytes 23:16).
    pub lba: U64,
    /// Namespace (bytes 27:24).
    pub nsid: U32,
    /// Vendor log page with more information, 0 for none (byte 28).
    pub vendor_page: u8,
    /// Transport (byte 29).
    pub transport: u8,
    /// Reserved (bytes 31:30).
    pub reserved30: [u8; 2],
    /// Command-specific information (bytes 39:32).
    pub command_specific: U64,
    /// Transport-specific information (bytes 41:40).
    pub transport_specific: U16,
    /// Reserved (bytes 63:42).
    pub reserved42: [u8; 22],
}

wire!(ErrorEntry, 64);

impl ErrorEntry {
    /// The value of location, queue and command for an error without a command.
    pub const NONE: u16 = 0xffff;

    /// Returns the `count`-th entry, for a command that completed with `status`.
    pub fn new(count: u64, sqid: u16, cid: u16, status: Status, nsid: u32, lba: u64) -> ErrorEntry {
        ErrorEntry {
            count: count.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status: (status.to_bits() << 1).into(),
            location: ErrorEntry::NONE.into(),
            lba: lba.into(),
            nsid: nsid.into(),
            ..ErrorEntry::new_zeroed()
        }
    }

    /// Sets the location: a byte (and a bit, times 256) of the command.
    #[must_use]
    pub fn with_location(self, location: u16) -> ErrorEntry {
        ErrorEntry { location: location.into(), ..self }
    }

    /// Returns the status of the command.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status.get() >> 1)
    }
}

/// Firmware slots, 512 bytes [NVMe1.4 §5.14.1.3].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareLog {
    /// Active slot `[2:0]`, slot of the next reset `[6:4]` (byte 0).
    pub active: u8,
    /// Reserved (bytes 7:1).
    pub reserved1: [u8; 7],
    /// Revision in each slot, ASCII (bytes 63:8).
    pub revision: [[u8; 8]; 7],
    /// Reserved (bytes 511:64).
    pub reserved64: [u8; 448],
}

wire!(FirmwareLog, 512);

impl FirmwareLog {
    /// Returns a log with one slot, which is active.
    pub fn one_slot(revision: [u8; 8]) -> FirmwareLog {
        let mut log = FirmwareLog::new_zeroed();
        log.active = 1;
        log.revision[0] = revision;
        log
    }
}

/// The counters of a device L2P, 24 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct DeviceL2pLog {
    /// Number of mapped logical addresses (bytes 7:0).
    pub mapped: U64,
    /// Number of trimmed logical addresses (bytes 15:8).
    pub trimmed: U64,
    /// The largest sequence number of these versions and trims; new sequence numbers must be larger
    /// (bytes 23:16).
    pub seq_max: U64,
}

wire!(DeviceL2pLog, 24);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        type H = HealthLog;
        assert_eq!((offset_of!(H, temperature), offset_of!(H, percentage_used)), (1, 5));
        assert_eq!((offset_of!(H, data_units_read), offset_of!(H, host_reads)), (32, 64));
        assert_eq!((offset_of!(H, unsafe_shutdowns), offset_of!(H, media_errors)), (144, 160));
        assert_eq!((offset_of!(H, warning_minutes), offset_of!(H, sensors)), (192, 200));
        type E = ErrorEntry;
        assert_eq!((offset_of!(E, status), offset_of!(E, lba), offset_of!(E, nsid)), (12, 16, 24));
        assert_eq!(offset_of!(E, command_specific), 32);
        assert_eq!(offset_of!(FirmwareLog, revision), 8);
    }

    #[test]
    fn an_error_carries_its_status() {
        let entry = ErrorEntry::new(1, 3, 77, Status::LBA_OUT_OF_RANGE.do_not_retry(), 1, 9);
        assert_eq!(entry.status(), Status::LBA_OUT_OF_RANGE.do_not_retry());
        assert_eq!(entry.as_bytes()[8..12], [3, 0, 77, 0]);
    }

    #[test]
    fn data_units_round_up() {
        for (bytes, units) in [(0, 0), (1, 1), (512_000, 1), (512_001, 2)] {
            assert_eq!(HealthLog::data_units(bytes).get(), units);
        }
    }
}
