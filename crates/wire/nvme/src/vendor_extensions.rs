//! [`VendorExtensions`]: the capabilities of Sluice's drives beyond the specifications. They are
//! the first 32 vendor bytes (byte 3072) of Identify Controller and of the Geometry page.
//! `docs/format/ppa.md` is the byte map of all vendor-specific structures.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// The vendor extensions of a drive. A drive of another vendor has none.
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
pub struct VendorExtensions {
    /// [`SIGNATURE`](VendorExtensions::SIGNATURE); with another value, the other fields are not
    /// valid (bytes 3:0).
    pub signature: [u8; 4],
    /// Version of this structure: 1 (byte 4).
    pub version: u8,
    /// Reserved (byte 5).
    pub reserved5: u8,
    /// Planes per parallel unit, for plane modes (bytes 7:6).
    pub planes: U16,
    /// Supported extensions, the bits below (bytes 11:8).
    pub flags: U32,
    /// Maximum number of read retries (bytes 15:12).
    pub read_retries: U32,
    /// Number of logical addresses of the device L2P (bytes 23:16).
    pub l2p_entries: U64,
    /// Reserved (bytes 31:24).
    pub reserved24: [u8; 8],
}

wire!(VendorExtensions, 32);

impl VendorExtensions {
    /// The signature of the structure.
    pub const SIGNATURE: [u8; 4] = *b"SLCX";
    /// The version of the structure.
    pub const VERSION: u8 = 1;

    /// Plane modes are supported.
    pub const PLANE_MODES: u32 = 1 << 0;
    /// Suspension by reads with the hint is supported.
    pub const SUSPEND: u32 = 1 << 1;
    /// Reads are retried, and limited retry is supported.
    pub const LIMITED_RETRY: u32 = 1 << 2;
    /// Chunk notifications are logged and reported.
    pub const NOTIFICATIONS: u32 = 1 << 3;
    /// The contents of the controller memory buffer survive a power loss.
    pub const PROTECTED_CMB: u32 = 1 << 4;
    /// The drive keeps a device L2P.
    pub const DEVICE_L2P: u32 = 1 << 5;
    /// Vector Chunk Copy writes the out-of-band bytes at its metadata pointer, if it has one.
    pub const COPY_METADATA: u32 = 1 << 6;

    /// Decodes the extensions from vendor bytes; none if the signature differs.
    pub fn from_vendor_bytes(vendor: &[u8]) -> VendorExtensions {
        let Some(bytes) = vendor.first_chunk::<{ VendorExtensions::BYTES }>() else {
            return VendorExtensions::default();
        };
        let found = VendorExtensions::from_bytes(*bytes);
        let ours = found.signature == VendorExtensions::SIGNATURE && found.version >= 1;
        if ours { found } else { VendorExtensions::default() }
    }

    /// Writes the extensions to the start of the vendor bytes of a structure.
    ///
    /// # Panics
    /// If there are fewer than 32 bytes.
    pub fn write_to(self, vendor: &mut [u8]) {
        vendor[..VendorExtensions::BYTES].copy_from_slice(&self.to_bytes());
    }

    /// Returns the structure with signature, version and these flags.
    pub fn with_flags(flags: u32) -> VendorExtensions {
        VendorExtensions {
            signature: VendorExtensions::SIGNATURE,
            version: VendorExtensions::VERSION,
            flags: flags.into(),
            ..VendorExtensions::default()
        }
    }

    /// Whether all of these flags are set.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.flags.get() & flags == flags
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn extensions_are_those_of_drives_that_sign_them() {
        assert_eq!(offset_of!(VendorExtensions, flags), 8);
        assert_eq!(offset_of!(VendorExtensions, l2p_entries), 16);
        let mut vendor = [0; 1024];
        assert_eq!(VendorExtensions::from_vendor_bytes(&vendor), VendorExtensions::default());
        let mine = VendorExtensions {
            planes: 4.into(),
            ..VendorExtensions::with_flags(VendorExtensions::SUSPEND | VendorExtensions::DEVICE_L2P)
        };
        mine.write_to(&mut vendor);
        assert_eq!(VendorExtensions::from_vendor_bytes(&vendor), mine);
        assert!(mine.has(VendorExtensions::SUSPEND) && !mine.has(VendorExtensions::LIMITED_RETRY));
        assert!(!mine.has(VendorExtensions::SUSPEND | VendorExtensions::LIMITED_RETRY));
        vendor[0] = b'?';
        assert_eq!(VendorExtensions::from_vendor_bytes(&vendor), VendorExtensions::default());
        assert_eq!(VendorExtensions::from_vendor_bytes(&[0; 8]), VendorExtensions::default());
    }
}
