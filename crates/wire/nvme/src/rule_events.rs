//! The log pages of a drive whose rules post events, and whose sectors have names (vendor specific,
//! `docs/format/rule-program.md`).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// An event that a rule has posted.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RuleEvent {
    /// The kind that the rule gives it (bytes 1:0).
    pub kind: U16,
    /// Reserved (bytes 7:2).
    pub reserved2: [u8; 6],
    /// Its values (bytes 31:8).
    pub values: [U64; 3],
}

wire!(RuleEvent, 32);

impl RuleEvent {
    /// Kind of the event that a sector was moved: its old name, its new name, its tag.
    pub const MIGRATED: u16 = 1;
    /// Kind of the event that a sector could not be read when it was to be moved: its name. No rule posts
    /// it, but the drive itself.
    pub const LOST: u16 = 2;

    /// Creates an event.
    pub fn new(kind: u16, values: [u64; 3]) -> RuleEvent {
        RuleEvent { kind: kind.into(), reserved2: [0; 6], values: values.map(U64::new) }
    }
}

/// The log page of posted events: the oldest ones that no host has read. Reading the page without Retain
/// Asynchronous Event removes them.
///
/// Bytes 7:0 have the number of events that were lost, because the host did not read them in time; bytes
/// 15:8 the number of events in the page, which are from byte 64 on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleEventLog {
    /// Events that were lost since the drive was powered on.
    pub lost: u64,
    /// At most [`RuleEventLog::ENTRIES`].
    pub events: Vec<RuleEvent>,
}

impl RuleEventLog {
    /// Events at most.
    pub const ENTRIES: usize = 126;
    /// Size of the page in bytes.
    pub const BYTES: usize = RuleEventLog::HEADER_BYTES + RuleEventLog::ENTRIES * RuleEvent::BYTES;

    const HEADER_BYTES: usize = 64;

    /// Encodes the page.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; RuleEventLog::BYTES];
        bytes[..8].copy_from_slice(&self.lost.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.events.len() as u64).to_le_bytes());
        let places = bytes[RuleEventLog::HEADER_BYTES..].chunks_mut(RuleEvent::BYTES);
        for (place, event) in places.zip(&self.events) {
            place.copy_from_slice(&event.to_bytes());
        }
        bytes
    }

    /// Decodes the page.
    pub fn from_bytes(bytes: &[u8; RuleEventLog::BYTES]) -> RuleEventLog {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let (entries, _) = bytes[RuleEventLog::HEADER_BYTES..].as_chunks();
        let count = word(8).min(RuleEventLog::ENTRIES as u64) as usize;
        let events = entries[..count].iter().map(|entry| RuleEvent::from_bytes(*entry)).collect();
        RuleEventLog { lost: word(0), events }
    }
}

/// A valid sector that the drive found when it was powered on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct FoundNameEntry {
    /// The name of the sector (bytes 7:0); `u64::MAX` for none.
    pub name: U64,
    /// The host's tag (bytes 15:8).
    pub tag: U64,
}

wire!(FoundNameEntry, 16);

impl FoundNameEntry {
    /// In place of the name behind the last entry.
    pub const END: u64 = u64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_logs_are_inverse() {
        for count in [0, 1, RuleEventLog::ENTRIES] {
            let event = |n: usize| RuleEvent::new(n as u16, [n as u64, u64::MAX, 7]);
            let log = RuleEventLog { lost: 9, events: (0..count).map(event).collect() };
            let bytes: [u8; RuleEventLog::BYTES] = log.to_bytes().try_into().unwrap();
            assert_eq!(RuleEventLog::from_bytes(&bytes), log);
        }
        assert_eq!(RuleEventLog::BYTES, 4096);
    }
}
