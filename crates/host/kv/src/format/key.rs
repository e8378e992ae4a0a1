//! [`Key`]: 1 to 255 bytes. Short keys are stored inline, so that the index needs no further
//! allocation and no pointer dereference for them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

/// Maximum length of an inline key in bytes.
const INLINE_BYTES_MAX: usize = 30;

#[derive(Clone)]
enum KeyRepr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Heap(Box<[u8]>),
}

/// A key of 1 to 255 bytes, in byte order.
#[derive(Clone)]
pub struct Key(KeyRepr);

/// A key that is empty or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key has {bytes} bytes, but 1 to 255 are allowed")]
pub struct KeyLengthError {
    /// Length in bytes.
    pub bytes: usize,
}

impl Key {
    /// Maximum length of a key in bytes.
    pub const BYTES_MAX: usize = 255;

    /// Creates a key. Allocates if it is longer than 30 bytes.
    ///
    /// # Errors
    /// [`KeyLengthError`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Key, KeyLengthError> {
        if bytes.is_empty() || bytes.len() > Key::BYTES_MAX {
            return Err(KeyLengthError { bytes: bytes.len() });
        }
        if bytes.len() > INLINE_BYTES_MAX {
            return Ok(Key(KeyRepr::Heap(bytes.into())));
        }
        let mut short = [0; INLINE_BYTES_MAX];
        short[..bytes.len()].copy_from_slice(bytes);
        Ok(Key(KeyRepr::Inline { len: bytes.len() as u8, bytes: short }))
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyRepr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyRepr::Heap(bytes) => bytes,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u8 {
        self.as_bytes().len() as u8
    }
}

impl TryFrom<&[u8]> for Key {
    type Error = KeyLengthError;
    fn try_from(bytes: &[u8]) -> Result<Key, KeyLengthError> {
        Key::new(bytes)
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyLengthError;
    fn try_from(text: &str) -> Result<Key, KeyLengthError> {
        Key::new(text.as_bytes())
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked_and_order_is_that_of_bytes() {
        assert_eq!(Key::new(b""), Err(KeyLengthError { bytes: 0 }));
        assert_eq!(Key::new(&[7; 256]), Err(KeyLengthError { bytes: 256 }));
        let mut keys = Vec::new();
        for len in [1, 2, 29, 30, 31, 254, 255] {
            for byte in [0, 1, 0x7f, 0xff] {
                let bytes = vec![byte; len];
                let key = Key::new(&bytes).unwrap();
                assert_eq!((key.as_bytes(), usize::from(key.len())), (&bytes[..], len));
                keys.push(key);
            }
        }
        keys.sort();
        assert!(keys.windows(2).all(|w| w[0].as_bytes() < w[1].as_bytes()));
        assert_eq!(size_of::<Key>(), 32);
    }
}
