//! `wire!`: defines the size of a wire structure, and its conversion to and from bytes.

/// Implements `BYTES`, `to_bytes` and `from_bytes` for a structure without padding, and asserts its
/// size.
macro_rules! wire {
    ($type:ident, $bytes:literal) => {
        const _: () = assert!(size_of::<$type>() == $type::BYTES);

        impl $type {
            /// Size on the wire in bytes.
            pub const BYTES: usize = $bytes;

            /// Encodes the structure.
            #[inline]
            pub fn to_bytes(self) -> [u8; $bytes] {
                zerocopy::transmute!(self)
            }

            /// Decodes the structure.
            #[inline]
            pub fn from_bytes(bytes: [u8; $bytes]) -> $type {
                zerocopy::transmute!(bytes)
            }
        }
    };
}

pub(crate) use wire;
