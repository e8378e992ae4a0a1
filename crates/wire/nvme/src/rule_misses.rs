//! The commands of a drive with rules (vendor specific, `docs/format/rule-program.md`): the parameters of
//! the admin commands, and the log page of the commands that no rule matched.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// A class of commands that no rule matched: those of an operation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RuleMissEntry {
    /// Commands that missed (bytes 7:0).
    pub misses: U64,
    /// Commands that are parked (bytes 15:8).
    pub parked: U64,
    /// Commands that a rule of a later program matched (bytes 23:16).
    pub released: U64,
    /// Commands that the host rejected (bytes 31:24).
    pub rejected: U64,
    /// Commands that ended after the timeout (bytes 39:32).
    pub timed_out: U64,
    /// Commands that ended at once, because too many of their queue were parked (bytes 47:40).
    pub refused: U64,
    /// Commands that ended because of an Abort, the deletion of their queue, or a power cut (bytes
    /// 55:48).
    pub aborted: U64,
    /// First logical block of the command that missed last (bytes 63:56).
    pub slba: U64,
    /// Number of logical blocks of the command that missed last (bytes 67:64).
    pub nlb: U32,
    /// Reserved (bytes 127:68).
    pub reserved68: [u8; 60],
}

wire!(RuleMissEntry, 128);

impl Default for RuleMissEntry {
    fn default() -> RuleMissEntry {
        RuleMissEntry::new_zeroed()
    }
}

/// The log page of misses: the entry of each operation, by its code (`docs/format/rule-program.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMissLog(pub [RuleMissEntry; RuleMissLog::ENTRIES]);

impl RuleMissLog {
    /// Number of entries.
    pub const ENTRIES: usize = 16;
    /// Size of the page in bytes.
    pub const BYTES: usize = RuleMissLog::ENTRIES * RuleMissEntry::BYTES;

    /// Encodes the page.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|entry| entry.to_bytes()).collect()
    }

    /// Decodes the page.
    pub fn from_bytes(bytes: &[u8; RuleMissLog::BYTES]) -> RuleMissLog {
        let mut log = RuleMissLog([RuleMissEntry::default(); RuleMissLog::ENTRIES]);
        let (entries, _) = bytes.as_chunks();
        for (entry, bytes) in log.0.iter_mut().zip(entries) {
            *entry = RuleMissEntry::from_bytes(*bytes);
        }
        log
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_page_has_an_entry_for_each_code() {
        assert_eq!(offset_of!(RuleMissEntry, nlb), 64);
        let mut log = RuleMissLog([RuleMissEntry::default(); 16]);
        log.0[1] = RuleMissEntry { misses: 7.into(), nlb: 8.into(), ..RuleMissEntry::default() };
        let bytes: [u8; RuleMissLog::BYTES] = log.to_bytes().try_into().unwrap();
        assert_eq!((bytes[128], bytes[128 + 64]), (7, 8));
        assert_eq!(RuleMissLog::from_bytes(&bytes), log);
    }
}
