//! [`Sector`]: the possible values of one logical sector.

use testkit::oracle::SectorModel;

/// The value of a sector that was made unreadable.
pub(crate) const UNREADABLE: u64 = u64::MAX;

/// The possible values of one logical sector, and the commands in flight for it.
#[derive(Clone, Debug)]
pub(crate) struct Sector {
    /// Values in submission order.
    pub(crate) model: SectorModel,
    /// Whether a command that changes the sector is in flight.
    pub(crate) changing: bool,
    pub(crate) reading: u32,
}

impl Sector {
    /// Creates a sector with a durable value.
    pub(crate) fn new(value: u64) -> Sector {
        Sector { model: SectorModel::new(value), changing: false, reading: 0 }
    }
}

/// Encodes a value; the value 0 is all zeros.
pub(crate) fn encode(value: u64, bytes: &mut [u8]) {
    let mut word = value;
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        if value != 0 {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ value;
        }
    }
}

/// Decodes a value; `None` if the bytes are mixed or damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; bytes.len()];
    encode(value, &mut expected);
    (expected == bytes).then_some(value)
}
