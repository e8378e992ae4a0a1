//! The data of Namespace Management and Namespace Attachment, and Identify data about several
//! namespaces [NVMe1.4 §5.15.2, §5.19, §5.20].

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::IDENTIFY_BYTES;
use crate::wire::wire;

/// A list of controllers, ascending, 4096 bytes [NVMe1.4 §4.11].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ControllerList {
    /// Number of identifiers, up to 2047.
    pub count: U16,
    /// Controller identifiers.
    pub controllers: [U16; 2047],
}

wire!(ControllerList, 4096);

impl ControllerList {
    /// Returns the list of some controllers, of up to 2047 of them.
    pub fn of(controllers: &[u16]) -> ControllerList {
        let mut list = ControllerList::new_zeroed();
        for (to, from) in list.controllers.iter_mut().zip(controllers) {
            *to = (*from).into();
        }
        list.count = (controllers.len().min(2047) as u16).into();
        list
    }

    /// Returns the identifiers; `None` if the count is too large, or they do not ascend.
    pub fn checked(&self) -> Option<Vec<u16>> {
        let named = self.controllers.get(..usize::from(self.count.get()))?;
        let list: Vec<u16> = named.iter().map(|controller| controller.get()).collect();
        list.is_sorted_by(|a, b| a < b).then_some(list)
    }
}

/// The description of a new namespace: the fields that a host sets of Identify Namespace
/// [NVMe1.4 §5.20].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NewNamespace {
    /// Size, blocks, NSZE (bytes 7:0).
    pub nsze: U64,
    /// Capacity, blocks, NCAP (bytes 15:8).
    pub ncap: U64,
    /// Reserved (bytes 25:16).
    pub reserved16: [u8; 10],
    /// The format `[3:0]`; bit 4 metadata at the end of each block, FLBAS (byte 26).
    pub flbas: u8,
    /// Reserved (bytes 28:27).
    pub reserved27: [u8; 2],
    /// Protection settings, DPS (byte 29).
    pub dps: u8,
    /// Bit 0 whether it may be attached to several controllers at a time, NMIC (byte 30).
    pub nmic: u8,
    /// Reserved (bytes 91:31).
    pub reserved31: [u8; 61],
    /// Asymmetric access group (bytes 95:92).
    pub anagrpid: U32,
    /// Reserved (bytes 99:96).
    pub reserved96: [u8; 4],
    /// NVM set (bytes 101:100).
    pub nvmsetid: U16,
    /// Reserved (bytes 383:102).
    pub reserved102: [u8; 282],
    /// Vendor specific (bytes 4095:384).
    pub vendor: [u8; 3712],
}

wire!(NewNamespace, 4096);

impl NewNamespace {
    /// Returns the description of a namespace of this number of blocks, in format 0.
    pub fn with_blocks(blocks: u64) -> NewNamespace {
        NewNamespace { nsze: blocks.into(), ncap: blocks.into(), ..NewNamespace::new_zeroed() }
    }
}

/// The namespace granularities of a drive with one, 4096 bytes [NVMe1.4 §5.15.2.10].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceGranularities {
    /// Attributes (bytes 3:0): bit 0 whether descriptor n is that of LBA format n.
    pub attributes: U32,
    /// Number of descriptors, zero-based (byte 4).
    pub count: u8,
    /// Reserved (bytes 31:5).
    pub reserved5: [u8; 27],
    /// Bytes that sizes are preferred to be multiples of (bytes 39:32).
    pub size_bytes: U64,
    /// Bytes that capacity is allocated in (bytes 47:40).
    pub capacity_bytes: U64,
    /// Further descriptors, and reserved bytes (bytes 4095:48).
    pub reserved48: [u8; 4048],
}

wire!(NamespaceGranularities, 4096);

impl NamespaceGranularities {
    /// Returns the list of a drive that allocates capacity in units of `bytes`.
    pub fn of(bytes: u64) -> NamespaceGranularities {
        NamespaceGranularities {
            size_bytes: bytes.into(),
            capacity_bytes: bytes.into(),
            ..NamespaceGranularities::new_zeroed()
        }
    }
}

/// The Identify Namespace data structure without what depends on the command set
/// [NVMe2.0 §5.17.2.8].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Features, NSFEAT (byte 0).
    pub nsfeat: u8,
    /// Multi-path and sharing, NMIC (byte 1).
    pub nmic: u8,
    /// Reservations, RESCAP (byte 2).
    pub rescap: u8,
    /// Format progress, FPI (byte 3).
    pub fpi: u8,
    /// Asymmetric access group (bytes 7:4).
    pub anagrpid: U32,
    /// Attributes: bit 0 write protected, NSATTR (byte 8).
    pub nsattr: u8,
    /// Reserved (byte 9).
    pub reserved9: u8,
    /// NVM set (bytes 11:10).
    pub nvmsetid: U16,
    /// Endurance group (bytes 13:12).
    pub endgid: U16,
    /// Status: bit 0 ready, NSTAT (byte 14).
    pub nstat: u8,
    /// Reserved (bytes 4095:15).
    pub reserved15: [u8; 4081],
}

wire!(IndependentNamespace, 4096);

impl IndependentNamespace {
    /// Returns the data of a namespace that is ready.
    pub fn ready(is_write_protected: bool) -> IndependentNamespace {
        IndependentNamespace {
            nsattr: is_write_protected.into(),
            nstat: 1,
            ..IndependentNamespace::new_zeroed()
        }
    }
}

/// The combinations of command sets that a controller supports [NVMe2.0 §5.17.2.18].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSetList;

impl CommandSetList {
    /// Returns the list of a controller with the NVM command set only: combination 0 has bit 0.
    pub fn nvm_only() -> [u8; IDENTIFY_BYTES] {
        let mut list = [0; IDENTIFY_BYTES];
        list[0] = 1;
        list
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        type N = NewNamespace;
        assert_eq!((offset_of!(N, ncap), offset_of!(N, flbas), offset_of!(N, dps)), (8, 26, 29));
        assert_eq!((offset_of!(N, nmic), offset_of!(N, anagrpid)), (30, 92));
        assert_eq!((offset_of!(N, nvmsetid), offset_of!(N, vendor)), (100, 384));
        type G = NamespaceGranularities;
        assert_eq!((offset_of!(G, count), offset_of!(G, size_bytes)), (4, 32));
        assert_eq!(offset_of!(G, capacity_bytes), 40);
        type I = IndependentNamespace;
        assert_eq!(
            (offset_of!(I, anagrpid), offset_of!(I, nsattr), offset_of!(I, nstat)),
            (4, 8, 14)
        );
    }

    #[test]
    fn lists_of_controllers_ascend() {
        assert_eq!(ControllerList::of(&[0, 3]).checked(), Some(vec![0, 3]));
        assert_eq!(ControllerList::of(&[]).checked(), Some(vec![]));
        for wrong in [&[3, 0][..], &[1, 1]] {
            assert_eq!(ControllerList::of(wrong).checked(), None, "{wrong:?}");
        }
        let mut list = ControllerList::of(&[0]);
        list.count = 2048.into();
        assert_eq!(list.checked(), None);
    }
}
