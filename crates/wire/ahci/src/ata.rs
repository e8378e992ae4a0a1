//! ATA commands, status and error bits, trim ranges, and the NCQ error log. Commands and logs have
//! the names that ATA/ATAPI Command Set 3 \[ACS3\] uses.

/// Command codes (ACS-3, the clause of each command).
pub mod command {
    /// READ FPDMA QUEUED: queued read.
    pub const READ_FPDMA_QUEUED: u8 = 0x60;
    /// WRITE FPDMA QUEUED: queued write.
    pub const WRITE_FPDMA_QUEUED: u8 = 0x61;
    /// DATA SET MANAGEMENT, not queued, DMA to the drive.
    pub const DATA_SET_MANAGEMENT: u8 = 0x06;
    /// READ LOG EXT, not queued, PIO to the host.
    pub const READ_LOG_EXT: u8 = 0x2f;
    /// FLUSH CACHE EXT, not queued, no data.
    pub const FLUSH_CACHE_EXT: u8 = 0xea;
    /// IDENTIFY DEVICE, not queued, PIO to the host.
    pub const IDENTIFY_DEVICE: u8 = 0xec;

    /// Whether a command is queued.
    pub const fn is_queued(command: u8) -> bool {
        matches!(command, READ_FPDMA_QUEUED | WRITE_FPDMA_QUEUED)
    }
}

/// TRIM, in the features of DATA SET MANAGEMENT.
pub const FEATURE_TRIM: u8 = 1;

/// Bits of the status register (ACS-3, Status field).
pub mod status {
    /// ERR: see the error register.
    pub const ERR: u8 = 1 << 0;
    /// DRQ: data is to be transferred.
    pub const DRQ: u8 = 1 << 3;
    /// DF: device fault.
    pub const DF: u8 = 1 << 5;
    /// DRDY: ready.
    pub const DRDY: u8 = 1 << 6;
    /// BSY: busy.
    pub const BSY: u8 = 1 << 7;
}

/// Bits of the error register (ACS-3, Error field).
pub mod error {
    /// ABRT: the command was aborted: not supported, or not now.
    pub const ABRT: u8 = 1 << 2;
    /// IDNF: the address is past the end, or cannot be written.
    pub const IDNF: u8 = 1 << 4;
    /// UNC: data cannot be read.
    pub const UNC: u8 = 1 << 6;
    /// ICRC: an error on the link.
    pub const ICRC: u8 = 1 << 7;
}

/// A range of DATA SET MANAGEMENT: LBA in bits 47:0, sectors in bits 63:48; empty if the number of
/// sectors is 0 (ACS-3, LBA Range Entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// First sector.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u16,
}

impl TrimRange {
    /// Size of a range in bytes.
    pub const BYTES: usize = 8;
    /// Ranges per block of 512 bytes.
    pub const PER_BLOCK: usize = 512 / TrimRange::BYTES;

    /// Encodes the range.
    pub fn to_bytes(self) -> [u8; TrimRange::BYTES] {
        (self.lba & 0xffff_ffff_ffff | u64::from(self.sectors) << 48).to_le_bytes()
    }

    /// Decodes a range.
    pub fn from_bytes(bytes: [u8; TrimRange::BYTES]) -> TrimRange {
        let word = u64::from_le_bytes(bytes);
        TrimRange { lba: word & 0xffff_ffff_ffff, sectors: (word >> 48) as u16 }
    }
}

/// The NCQ Command Error log, 10h: the failed queued command and its error (ACS-3, "Queued Error
/// Log"). After a queued command has failed, a drive accepts no other command until the host reads
/// this log, which also aborts the outstanding commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedErrorLog {
    /// Byte 0 bit 7, NQ: the failed command was not queued; the tag is invalid.
    pub not_queued: bool,
    /// Byte 0 bits 4:0: the tag.
    pub tag: u8,
    /// Byte 2: status.
    pub status: u8,
    /// Byte 3: error.
    pub error: u8,
    /// Bytes 4 to 6 and 8 to 10: the first LBA that failed.
    pub lba: u64,
}

impl QueuedErrorLog {
    /// Log address.
    pub const LOG: u8 = 0x10;
    /// Size of a log page in bytes.
    pub const BYTES: usize = 512;

    /// Encodes the log page, with the checksum by which all bytes add up to zero.
    pub fn to_bytes(self) -> [u8; QueuedErrorLog::BYTES] {
        let mut page = [0; QueuedErrorLog::BYTES];
        let [a, b, c, d, e, f, ..] = self.lba.to_le_bytes();
        page[0] = self.tag & 0x1f | u8::from(self.not_queued) << 7;
        page[2..4].copy_from_slice(&[self.status, self.error]);
        page[4..11].copy_from_slice(&[a, b, c, 0x40, d, e, f]);
        page[511] = page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg();
        page
    }

    /// Decodes a log page; `None` if the checksum is wrong.
    pub fn from_bytes(page: &[u8; QueuedErrorLog::BYTES]) -> Option<QueuedErrorLog> {
        if page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) != 0 {
            return None;
        }
        let [flags, _, status, error, a, b, c, _, d, e, f, ..] = *page;
        Some(QueuedErrorLog {
            not_queued: flags & 0x80 != 0,
            tag: flags & 0x1f,
            status,
            error,
            lba: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_logs_go_round() {
        let range = TrimRange { lba: 0xabcd_ef01_2345, sectors: 0xffff };
        assert_eq!(range.to_bytes(), [0x45, 0x23, 0x01, 0xef, 0xcd, 0xab, 0xff, 0xff]);
        assert_eq!(TrimRange::from_bytes(range.to_bytes()), range);

        let log = QueuedErrorLog {
            not_queued: false,
            tag: 17,
            status: status::DRDY | status::ERR,
            error: error::UNC,
            lba: 0x1234_5678_9abc,
        };
        let mut page = log.to_bytes();
        assert_eq!(page[..4], [17, 0, 0x41, 0x40]);
        assert_eq!(QueuedErrorLog::from_bytes(&page), Some(log));
        page[300] ^= 1;
        assert_eq!(QueuedErrorLog::from_bytes(&page), None, "checksum");
        let other = QueuedErrorLog { not_queued: true, ..log };
        assert_eq!(QueuedErrorLog::from_bytes(&other.to_bytes()), Some(other));
    }
}
