//! [`CloudHealthLog`]: the cloud health log page of data center drives [OCP2.0 §4.8.6].

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// Identifier of the page.
pub const CLOUD_HEALTH: u8 = 0xc0;

/// Cloud health, 512 bytes [OCP2.0 §4.8.6].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CloudHealthLog {
    /// Bytes written to the media, for hosts and for the drive (bytes 15:0).
    pub media_bytes_written: U128,
    /// Bytes read from the media (bytes 31:16).
    pub media_bytes_read: U128,
    /// Bad user blocks: how many have failed (48 bits), and what is left of the spare in percent (16
    /// bits; bytes 39:32).
    pub bad_user_blocks: U64,
    /// Bad blocks of the system, in the form of `bad_user_blocks` (bytes 47:40).
    pub bad_system_blocks: U64,
    /// Recoveries by parity over dies (bytes 55:48).
    pub xor_recoveries: U64,
    /// Sectors that could not be read (bytes 63:56).
    pub uncorrectable_reads: U64,
    /// Sectors that ECC corrected only after retries (bytes 71:64).
    pub soft_ecc_errors: U64,
    /// End-to-end errors that were detected (bytes 75:72).
    pub end_to_end_detected: U32,
    /// End-to-end errors that were corrected (bytes 79:76).
    pub end_to_end_corrected: U32,
    /// Endurance of the system's blocks that is used, in percent (byte 80).
    pub system_used: u8,
    /// Blocks whose data was refreshed, 56 bits (bytes 87:81).
    pub refreshes: [u8; 7],
    /// Erases of the most worn user block (bytes 91:88).
    pub erases_max: U32,
    /// Erases of the least worn user block (bytes 95:92).
    pub erases_min: U32,
    /// Thermal throttling events (byte 96).
    pub throttling_events: u8,
    /// Present throttling (byte 97).
    pub throttling: u8,
    /// Version of the specification: errata, point, point, minor, minor, major (bytes 103:98).
    pub version: [u8; 6],
    /// Correctable errors of the PCIe link (bytes 111:104).
    pub link_errors: U64,
    /// Shutdowns without notice (bytes 115:112).
    pub incomplete_shutdowns: U32,
    /// Reserved (bytes 119:116).
    pub reserved116: [u8; 4],
    /// Free blocks in percent (byte 120).
    pub free_blocks: u8,
    /// Reserved (bytes 127:121).
    pub reserved121: [u8; 7],
    /// Energy of the capacitors in percent of what is needed; `ffffh` without any (bytes 129:128).
    pub capacitor_health: U16,
    /// NVMe errata (byte 130), and reserved (bytes 135:131).
    pub errata: [u8; 6],
    /// Unaligned commands (bytes 143:136).
    pub unaligned: U64,
    /// Security version (bytes 151:144).
    pub security_version: U64,
    /// Logical blocks that are mapped (bytes 159:152).
    pub mapped: U64,
    /// Power losses that the capacitors bridged (bytes 175:160).
    pub protected_power_losses: U128,
    /// Bytes that may be written in all; 0 if that is not known (bytes 191:176).
    pub endurance: U128,
    /// Retrainings of the link (bytes 199:192).
    pub link_retrainings: U64,
    /// Changes of the power state (bytes 207:200).
    pub power_state_changes: U64,
    /// Reserved (bytes 493:208).
    pub reserved208: [u8; 286],
    /// Version of the page (bytes 495:494).
    pub page_version: U16,
    /// Identifier of the page's format (bytes 511:496).
    pub guid: [u8; 16],
}

wire!(CloudHealthLog, 512);

impl CloudHealthLog {
    /// The value of `guid`.
    pub const GUID: [u8; 16] = 0xafd5_14c9_7c6f_4f9c_a4f2_bfea_2810_afc5_u128.to_le_bytes();

    /// Returns a page of zeros with its version and identifier.
    pub fn new() -> CloudHealthLog {
        CloudHealthLog {
            // 2.0.
            version: [0, 0, 0, 0, 0, 2],
            page_version: 3.into(),
            guid: CloudHealthLog::GUID,
            ..CloudHealthLog::new_zeroed()
        }
    }

    /// Returns the value of `bad_user_blocks` and `bad_system_blocks`.
    pub fn bad_blocks(failed: u64, spare_percent: u8) -> U64 {
        (failed & ((1 << 48) - 1) | u64::from(spare_percent) << 48).into()
    }
}

impl Default for CloudHealthLog {
    fn default() -> CloudHealthLog {
        CloudHealthLog::new()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The offsets are those that nvme-cli reads.
    #[test]
    fn the_layout_is_that_of_the_specification() {
        type Log = CloudHealthLog;
        for (at, byte) in [
            (offset_of!(Log, bad_user_blocks), 32),
            (offset_of!(Log, uncorrectable_reads), 56),
            (offset_of!(Log, end_to_end_detected), 72),
            (offset_of!(Log, system_used), 80),
            (offset_of!(Log, erases_max), 88),
            (offset_of!(Log, throttling_events), 96),
            (offset_of!(Log, version), 98),
            (offset_of!(Log, link_errors), 104),
            (offset_of!(Log, free_blocks), 120),
            (offset_of!(Log, capacitor_health), 128),
            (offset_of!(Log, unaligned), 136),
            (offset_of!(Log, mapped), 152),
            (offset_of!(Log, endurance), 176),
            (offset_of!(Log, power_state_changes), 200),
            (offset_of!(Log, page_version), 494),
            (offset_of!(Log, guid), 496),
        ] {
            assert_eq!(at, byte);
        }
        let log = CloudHealthLog::new();
        assert_eq!(log.to_bytes()[496..500], [0xc5, 0xaf, 0x10, 0x28]);
        assert_eq!(log.to_bytes()[103], 2);
        let bad = CloudHealthLog::bad_blocks(7, 93).get();
        assert_eq!((bad & 0xffff_ffff_ffff, bad >> 48), (7, 93));
    }
}
