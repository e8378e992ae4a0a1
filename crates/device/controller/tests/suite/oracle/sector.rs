//! [`Sector`]: the possible values of one logical sector.

use std::collections::VecDeque;

/// The possible values of one logical sector, numbered in the order in which they were sent.
#[derive(Clone, Debug)]
pub(crate) struct Sector {
    /// Possible values after a power cut: the last durable one, and all sent since.
    possible: VecDeque<u64>,
    /// Sequence number of the first possible value.
    first_seq: u64,
    /// Sequence number of the present value without a power cut.
    current_seq: u64,
    /// Whether a command that changes the sector is in flight.
    pub(crate) changing: bool,
    pub(crate) reading: u32,
}

impl Sector {
    pub(crate) fn zero() -> Sector {
        let possible = VecDeque::from([0]);
        Sector { possible, first_seq: 0, current_seq: 0, changing: false, reading: 0 }
    }

    /// Records that a value was sent. Returns its sequence number.
    pub(crate) fn send(&mut self, value: u64) -> u64 {
        self.possible.push_back(value);
        self.first_seq + self.possible.len() as u64 - 1
    }

    /// Records that the value with this sequence number is the present one.
    pub(crate) fn arrive(&mut self, number: u64) {
        self.current_seq = number;
    }

    /// Records that the value with this sequence number, or a later one, is durable.
    pub(crate) fn set_durable(&mut self, number: u64) {
        while self.first_seq < number {
            self.possible.pop_front();
            self.first_seq += 1;
        }
    }

    pub(crate) fn seq(&self) -> u64 {
        self.current_seq
    }

    pub(crate) fn value(&self) -> u64 {
        self.possible[(self.current_seq - self.first_seq) as usize]
    }

    pub(crate) fn allows(&self, value: u64) -> bool {
        self.possible.contains(&value)
    }

    /// Records the value found after a power cut.
    pub(crate) fn settle(&mut self, value: u64) {
        *self = Sector::zero();
        self.possible[0] = value;
    }
}

/// Encodes a value; 0 is zeros.
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
