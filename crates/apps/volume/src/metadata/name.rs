//! [`Name`]: a validated component of a path.

use crate::Error;

/// A name of 1 to 255 bytes, without `/` and NUL, and not `.` or `..`.
#[derive(Clone, Copy)]
pub struct Name {
    len: u8,
    bytes: [u8; Name::MAX],
}

impl Name {
    /// Maximum bytes of a name.
    pub const MAX: usize = 255;

    /// Validates a name.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], [`Error::Invalid`].
    pub fn new(name: impl AsRef<[u8]>) -> Result<Name, Error> {
        let name = name.as_ref();
        let len = u8::try_from(name.len()).map_err(|_| Error::NameTooLong)?;
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::Invalid("an empty name, `.` and `..` name no entry"));
        }
        if name.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(Error::Invalid("a name has no `/` and no NUL"));
        }
        let mut bytes = [0; Name::MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Name { len, bytes })
    }

    /// Returns the bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new("a").unwrap().as_bytes(), b"a");
        assert_eq!(Name::new([b'x'; 255]).unwrap().as_bytes().len(), 255);
        assert_eq!(Name::new([b'x'; 256]), Err(Error::NameTooLong));
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(matches!(Name::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
        assert!(Name::new("...").is_ok());
    }
}
