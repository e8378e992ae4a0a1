//! `wire!`: a structure of the wire has a size, and is its bytes.

/// Gives a structure without padding `BYTES`, `to_bytes` and `from_bytes`, and asserts its size.
macro_rules! wire {
    ($type:ident, $bytes:literal) => {
        const _: () = assert!(size_of::<$type>() == $type::BYTES);

        impl $type {
            /// Bytes on the wire.
            pub const BYTES: usize = $bytes;

            /// The bytes of the wire.
            #[inline]
            pub fn to_bytes(self) -> [u8; $bytes] {
                zerocopy::transmute!(self)
            }

            /// What the bytes of the wire say.
            #[inline]
            pub fn from_bytes(bytes: [u8; $bytes]) -> $type {
                zerocopy::transmute!(bytes)
            }
        }
    };
}

pub(crate) use wire;
