//! [`ResourceName`]: the name of a drive or partition, on the socket and in a scenario.

use std::fmt;
use std::str::FromStr;

/// Bytes of a name on the wire.
pub const NAME_BYTES: usize = 32;

/// A name of 1 to 32 printable ASCII characters without spaces or slashes, or empty where a name is
/// optional.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName {
    /// Padded with zeros.
    bytes: [u8; NAME_BYTES],
}

/// A text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid name: use 1 to 32 printable ASCII characters, no spaces or slashes")]
pub struct NameError(pub String);

impl ResourceName {
    /// The empty name.
    pub const NONE: ResourceName = ResourceName { bytes: [0; NAME_BYTES] };

    /// Parses a name.
    ///
    /// # Errors
    /// [`NameError`], also for an empty text.
    pub fn new(text: &str) -> Result<ResourceName, NameError> {
        let fits = (1..=NAME_BYTES).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if !fits {
            return Err(NameError(text.chars().take(64).collect()));
        }
        let mut bytes = [0; NAME_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(ResourceName { bytes })
    }

    /// Decodes a name from the wire. Returns `None` if it is neither valid nor empty.
    pub(crate) fn from_wire(bytes: [u8; NAME_BYTES]) -> Option<ResourceName> {
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        if bytes[len..].iter().any(|b| *b != 0) {
            return None;
        }
        if len == 0 {
            return Some(ResourceName::NONE);
        }
        ResourceName::new(std::str::from_utf8(&bytes[..len]).ok()?).ok()
    }

    pub(crate) fn to_wire(self) -> [u8; NAME_BYTES] {
        self.bytes
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        // ASCII by construction.
        std::str::from_utf8(&self.bytes[..len]).unwrap_or("")
    }

    /// Returns whether the name is empty.
    pub fn is_none(&self) -> bool {
        self.bytes[0] == 0
    }
}

impl FromStr for ResourceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ResourceName, NameError> {
        ResourceName::new(text)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_can_be_typed() {
        for good in ["a", "drive0", "x-y_z.1", &"n".repeat(32)] {
            let name = ResourceName::new(good).unwrap();
            assert_eq!(name.as_str(), good);
            assert_eq!(ResourceName::from_wire(name.to_wire()), Some(name));
        }
        for bad in ["", " ", "a b", "a/b", "\u{e4}", "a\0", &"n".repeat(33)] {
            assert!(ResourceName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(ResourceName::from_wire([0; 32]), Some(ResourceName::NONE));
        let mut hole = [b'a'; 32];
        hole[3] = 0;
        assert_eq!(ResourceName::from_wire(hole), None, "letters after the end");
        assert_eq!(ResourceName::from_wire([0xff; 32]), None);
    }
}
