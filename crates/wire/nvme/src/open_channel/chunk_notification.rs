//! [`ChunkNotification`]: an event of the media that an open-channel drive reports, and
//! [`AsyncEvent`]: the asynchronous event that announces it.
//!
//! [OC20 §3], log page D0h, and [NVMe1.4 §5.2] (Asynchronous Event Request).

use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// The part of the media that a notification concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChunkNotificationScope {
    /// Sectors from the address.
    Sector,
    /// The chunk of the address.
    Chunk,
    /// The parallel unit of the address, with all its chunks.
    Pu,
}

impl ChunkNotificationScope {
    /// Returns the bit in the mask byte.
    pub const fn to_bits(self) -> u8 {
        match self {
            ChunkNotificationScope::Sector => 1 << 0,
            ChunkNotificationScope::Chunk => 1 << 1,
            ChunkNotificationScope::Pu => 1 << 2,
        }
    }

    /// Decodes the mask byte; `None` unless exactly one known bit is set.
    pub const fn from_bits(bits: u8) -> Option<ChunkNotificationScope> {
        match bits {
            0b001 => Some(ChunkNotificationScope::Sector),
            0b010 => Some(ChunkNotificationScope::Chunk),
            0b100 => Some(ChunkNotificationScope::Pu),
            _ => None,
        }
    }
}

/// The event that a notification reports; the first four in order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChunkNotificationKind {
    /// Low error rate: few bit errors, or more than usual but harmless.
    ErrorRateLow,
    /// Medium error rate: bit errors use much of the ECC capacity; the data should be relocated in
    /// time.
    ErrorRateMedium,
    /// High error rate: reads need retries, or a program failed; the data should be relocated
    /// immediately.
    ErrorRateHigh,
    /// Unrecoverable: the sector is uncorrectable, or the chunk or the whole parallel unit is
    /// offline.
    Unrecoverable,
    /// The drive itself has refreshed the data.
    Refreshed,
    /// The wear-level index is outside the drive's limits.
    WearOutside,
}

impl ChunkNotificationKind {
    /// Returns the bit in the state field.
    pub const fn to_bits(self) -> u16 {
        match self {
            ChunkNotificationKind::ErrorRateLow => 1 << 0,
            ChunkNotificationKind::ErrorRateMedium => 1 << 1,
            ChunkNotificationKind::ErrorRateHigh => 1 << 2,
            ChunkNotificationKind::Unrecoverable => 1 << 3,
            ChunkNotificationKind::Refreshed => 1 << 4,
            ChunkNotificationKind::WearOutside => 1 << 8,
        }
    }

    /// Decodes the state field; `None` unless exactly one known bit is set.
    pub const fn from_bits(bits: u16) -> Option<ChunkNotificationKind> {
        match bits {
            0x001 => Some(ChunkNotificationKind::ErrorRateLow),
            0x002 => Some(ChunkNotificationKind::ErrorRateMedium),
            0x004 => Some(ChunkNotificationKind::ErrorRateHigh),
            0x008 => Some(ChunkNotificationKind::Unrecoverable),
            0x010 => Some(ChunkNotificationKind::Refreshed),
            0x100 => Some(ChunkNotificationKind::WearOutside),
            _ => None,
        }
    }
}

/// A notification, 64 bytes ([OC20 §3], log page D0h).
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
pub struct ChunkNotification {
    /// Number of the notification, counted from 1 without gaps; 0 for an unused entry (bytes 7:0).
    pub count: U64,
    /// Physical address (bytes 15:8).
    pub address: U64,
    /// Namespace (bytes 19:16).
    pub nsid: U32,
    /// Event, one bit of [`ChunkNotificationKind`] (bytes 21:20).
    pub state: U16,
    /// Scope, one bit of [`ChunkNotificationScope`] (byte 22).
    pub mask: u8,
    /// Reserved (bytes 31:23).
    pub reserved23: [u8; 9],
    /// Number of sectors from the address, zero-based, if the scope is sectors (bytes 33:32).
    pub nlb: U16,
    /// Reserved (bytes 63:34).
    pub reserved34: [u8; 30],
}

wire!(ChunkNotification, 64);

impl ChunkNotification {
    /// Returns the `count`-th notification; it concerns one sector if `scope` is sectors.
    pub fn new(
        count: u64,
        address: u64,
        nsid: u32,
        scope: ChunkNotificationScope,
        what: ChunkNotificationKind,
    ) -> ChunkNotification {
        ChunkNotification {
            count: count.into(),
            address: address.into(),
            nsid: nsid.into(),
            state: what.to_bits().into(),
            mask: scope.to_bits(),
            ..ChunkNotification::default()
        }
    }
}

/// Dword 0 of the completion of an Asynchronous Event Request [NVMe1.4 §5.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Event type, three bits.
    pub kind: u8,
    /// Event information.
    pub info: u8,
    /// Log page that describes the event, and clears it when read.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Event type: error status.
    pub const ERROR: u8 = 0;
    /// Event type: SMART and health status.
    pub const HEALTH: u8 = 1;
    /// Event type: notice.
    pub const NOTICE: u8 = 2;
    /// Event type: specific to the I/O command set, which includes the end of Sanitize.
    pub const IO_COMMAND_SET: u8 = 6;
    /// Event type: vendor specific, which includes chunk notifications.
    pub const VENDOR: u8 = 7;

    /// Information of an error event: a doorbell of a queue that does not exist was written.
    pub const UNKNOWN_DOORBELL: u8 = 0;
    /// Information of an error event: a value outside of its ring was written to a doorbell.
    pub const INVALID_DOORBELL_VALUE: u8 = 1;
    /// Information of an error event: a failure that the controller cannot attribute to commands.
    pub const PERSISTENT_INTERNAL_ERROR: u8 = 3;
    /// Information of a notice: the attributes of a namespace, or the list of namespaces, changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: u8 = 0;
    /// Information of an event of the I/O command set: a sanitize operation has ended.
    pub const SANITIZE_COMPLETED: u8 = 1;
    /// Information of an event of the I/O command set: a sanitize operation that was to keep blocks
    /// allocated has ended, and has deallocated them.
    pub const SANITIZE_DEALLOCATED: u8 = 2;
    /// Information of a health event: the reliability is degraded, or the drive is read-only.
    pub const RELIABILITY: u8 = 0;
    /// Information of a health event: a temperature threshold was passed.
    pub const TEMPERATURE: u8 = 1;
    /// Information of a health event: the spare capacity is below its threshold.
    pub const SPARE: u8 = 2;

    /// The event that announces chunk notifications [OC20 §3].
    pub const CHUNK_NOTIFICATION: AsyncEvent = AsyncEvent {
        kind: AsyncEvent::VENDOR,
        info: 0,
        log_page: crate::log_page::CHUNK_NOTIFICATION,
    };

    /// Encodes the dword.
    pub const fn to_dword(self) -> u32 {
        (self.kind & 7) as u32 | (self.info as u32) << 8 | (self.log_page as u32) << 16
    }

    /// Decodes the dword.
    pub const fn from_dword(dword: u32) -> AsyncEvent {
        AsyncEvent {
            kind: (dword & 7) as u8,
            info: (dword >> 8) as u8,
            log_page: (dword >> 16) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn bytes_are_where_the_specification_puts_them() {
        type N = ChunkNotification;
        assert_eq!((offset_of!(N, address), offset_of!(N, nsid)), (8, 16));
        assert_eq!((offset_of!(N, state), offset_of!(N, mask), offset_of!(N, nlb)), (20, 22, 32));
        let n = ChunkNotification::new(
            1,
            0x0102,
            7,
            ChunkNotificationScope::Chunk,
            ChunkNotificationKind::Unrecoverable,
        );
        let bytes = n.to_bytes();
        assert_eq!((bytes[0], bytes[8], bytes[9], bytes[16]), (1, 2, 1, 7));
        assert_eq!((bytes[20], bytes[21], bytes[22]), (8, 0, 2));
        assert_eq!(ChunkNotification::from_bytes(bytes), n);
    }

    #[test]
    fn exactly_one_bit_at_a_time() {
        for bits in 0..=u8::MAX {
            let one = bits.is_power_of_two() && bits < 8;
            assert_eq!(
                ChunkNotificationScope::from_bits(bits).map(ChunkNotificationScope::to_bits),
                one.then_some(bits)
            );
        }
        for bits in 0..=u16::MAX {
            let one = bits.is_power_of_two() && (bits < 32 || bits == 256);
            assert_eq!(
                ChunkNotificationKind::from_bits(bits).map(ChunkNotificationKind::to_bits),
                one.then_some(bits)
            );
        }
    }

    #[test]
    fn an_event_is_a_dword() {
        assert_eq!(AsyncEvent::CHUNK_NOTIFICATION.to_dword(), 0xd0_0007);
        for dword in [0, 0xd0_0007, 0x02_0301] {
            assert_eq!(AsyncEvent::from_dword(dword).to_dword(), dword);
        }
    }
}
