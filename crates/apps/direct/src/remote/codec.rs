//! [`Writer`] and [`Reader`]: the fields of a message, in order, little endian. Input is not
//! trusted: a reader returns `None` at the end of the message or for an invalid value.

use super::name::{NAME_BYTES, ResourceName};

/// Maximum bytes of a text on the wire, truncated at a character boundary.
pub(super) const TEXT_BYTES_MAX: usize = 240;

/// Writes fields into a message.
pub(super) struct Writer<'m> {
    bytes: &'m mut [u8],
    position: usize,
}

impl<'m> Writer<'m> {
    pub(super) fn new(bytes: &'m mut [u8]) -> Writer<'m> {
        Writer { bytes, position: 0 }
    }

    /// Returns the number of bytes written.
    pub(super) fn len(&self) -> usize {
        self.position
    }

    /// Appends a field.
    ///
    /// # Panics
    /// Past the end of the buffer, which is sized for the longest message.
    pub(super) fn put(&mut self, field: &[u8]) -> &mut Self {
        self.bytes[self.position..self.position + field.len()].copy_from_slice(field);
        self.position += field.len();
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(super) fn flag(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends an optional number; all ones stand for `None`.
    pub(super) fn option(&mut self, value: Option<u64>) -> &mut Self {
        self.u64(value.unwrap_or(u64::MAX))
    }

    pub(super) fn name(&mut self, value: ResourceName) -> &mut Self {
        self.put(&value.to_wire())
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        let mut field = [0; TEXT_BYTES_MAX];
        let end = value.floor_char_boundary(TEXT_BYTES_MAX);
        field[..end].copy_from_slice(&value.as_bytes()[..end]);
        self.put(&field)
    }

    /// Appends reserved bytes, which are zero.
    pub(super) fn zeros(&mut self, count: usize) -> &mut Self {
        self.put(&[0; 16][..count])
    }
}

/// Reads fields from a message; returns `None` for invalid input.
pub(super) struct Reader<'m> {
    bytes: &'m [u8],
}

impl<'m> Reader<'m> {
    pub(super) fn new(bytes: &'m [u8]) -> Reader<'m> {
        Reader { bytes }
    }

    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*field)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[b]| b)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads an optional number; all ones stand for `None`.
    pub(super) fn option(&mut self) -> Option<Option<u64>> {
        self.u64().map(|value| (value != u64::MAX).then_some(value))
    }

    pub(super) fn name(&mut self) -> Option<ResourceName> {
        ResourceName::from_wire(self.take::<NAME_BYTES>()?)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let field = self.take::<TEXT_BYTES_MAX>()?;
        let len = field.iter().position(|b| *b == 0).unwrap_or(TEXT_BYTES_MAX);
        if field[len..].iter().any(|b| *b != 0) {
            return None;
        }
        std::str::from_utf8(&field[..len]).ok().map(str::to_owned)
    }

    /// Reads reserved bytes, which must be zero.
    pub(super) fn zeros<const N: usize>(&mut self) -> Option<()> {
        (self.take::<N>()? == [0; N]).then_some(())
    }

    /// Returns `value` if the message ends here.
    pub(super) fn finish<T>(self, value: T) -> Option<T> {
        self.bytes.is_empty().then_some(value)
    }
}
