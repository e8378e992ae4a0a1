//! [`ValuePart`]: a part of a longer value, which several messages carry.

use collections::{PutBytes, Reader, SliceWriter};

/// Bytes of a part, from a position in the value on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePart {
    bytes: Vec<u8>,
}

impl ValuePart {
    /// Bytes of a part at most.
    pub const LEN_MAX: usize = 240;
    /// Bytes in a message.
    pub(crate) const WIRE_BYTES: usize = 8 + ValuePart::LEN_MAX;

    /// Returns the part of a value from a position on; an empty one past its end.
    pub fn of(value: &[u8], position: usize) -> ValuePart {
        let rest = value.get(position..).unwrap_or_default();
        ValuePart { bytes: rest[..rest.len().min(ValuePart::LEN_MAX)].to_vec() }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn encode(&self, w: &mut SliceWriter<'_>) {
        w.put_u32(self.bytes.len() as u32).put_zeros(4).put(&self.bytes);
        w.put_zeros(ValuePart::LEN_MAX - self.bytes.len());
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<ValuePart> {
        let len = r.u32()? as usize;
        r.zeros::<4>()?;
        let field = r.array::<{ ValuePart::LEN_MAX }>()?;
        let (bytes, rest) = field.split_at_checked(len)?;
        rest.iter().all(|byte| *byte == 0).then(|| ValuePart { bytes: bytes.to_vec() })
    }
}
