//! Fields of a message that [`collections::Reader`] and [`PutBytes`] do not have: optional numbers,
//! names, texts.

use collections::{PutBytes, Reader, SliceWriter};

use crate::name::{NAME_BYTES, ResourceName};

/// Maximum bytes of a text on the wire, truncated at a character boundary.
pub(crate) const TEXT_BYTES_MAX: usize = 240;

/// Maximum bytes of the text of a fault.
pub const FAULT_BYTES_MAX: usize = TEXT_BYTES_MAX;

/// Appends fields to a message.
pub(crate) trait PutField: PutBytes {
    /// Appends an optional number; all ones stand for `None`.
    fn put_option(&mut self, value: Option<u64>) -> &mut Self {
        self.put_u64(value.unwrap_or(u64::MAX))
    }

    fn put_name(&mut self, value: ResourceName) -> &mut Self {
        self.put(&value.to_wire())
    }

    fn put_text(&mut self, value: &str) -> &mut Self {
        let mut field = [0; TEXT_BYTES_MAX];
        let end = value.floor_char_boundary(TEXT_BYTES_MAX);
        field[..end].copy_from_slice(&value.as_bytes()[..end]);
        self.put(&field)
    }
}

impl PutField for SliceWriter<'_> {}

/// Reads fields from a message; returns `None` for invalid input.
pub(crate) trait ReadField {
    /// Reads an optional number; all ones stand for `None`.
    fn option(&mut self) -> Option<Option<u64>>;

    fn name(&mut self) -> Option<ResourceName>;

    fn text(&mut self) -> Option<String>;
}

impl ReadField for Reader<'_> {
    fn option(&mut self) -> Option<Option<u64>> {
        self.u64().map(|value| (value != u64::MAX).then_some(value))
    }

    fn name(&mut self) -> Option<ResourceName> {
        ResourceName::from_wire(self.array::<NAME_BYTES>()?)
    }

    fn text(&mut self) -> Option<String> {
        let field = self.array::<TEXT_BYTES_MAX>()?;
        let len = field.iter().position(|b| *b == 0).unwrap_or(TEXT_BYTES_MAX);
        if field[len..].iter().any(|b| *b != 0) {
            return None;
        }
        std::str::from_utf8(&field[..len]).ok().map(str::to_owned)
    }
}
