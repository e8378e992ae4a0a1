//! [`Sector`]: what one logical sector may hold.

use std::collections::VecDeque;

/// What one logical sector may hold. Values are numbered in the order in which they were sent.
#[derive(Clone, Debug)]
pub(crate) struct Sector {
    /// What a power cut may leave: the last value known to be durable, and everything sent since.
    possible: VecDeque<u64>,
    /// Number of the first of these.
    first_seq: u64,
    /// Number of the value that the sector holds while power lasts.
    current_seq: u64,
    /// Whether a command that changes the sector is under way, or how many read it.
    pub(crate) changing: bool,
    pub(crate) reading: u32,
}

impl Sector {
    pub(crate) fn zero() -> Sector {
        let possible = VecDeque::from([0]);
        Sector { possible, first_seq: 0, current_seq: 0, changing: false, reading: 0 }
    }

    /// A value is on its way. Returns its number.
    pub(crate) fn send(&mut self, value: u64) -> u64 {
        self.possible.push_back(value);
        self.first_seq + self.possible.len() as u64 - 1
    }

    /// The value with this number is what the sector holds.
    pub(crate) fn arrive(&mut self, number: u64) {
        self.current_seq = number;
    }

    /// The value with this number is durable, or a later one.
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

    /// This is what a power cut left.
    pub(crate) fn settle(&mut self, value: u64) {
        *self = Sector::zero();
        self.possible[0] = value;
    }
}

/// The bytes of a value: 0 is zeros.
pub(crate) fn encode(value: u64, bytes: &mut [u8]) {
    let mut word = value;
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        if value != 0 {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ value;
        }
    }
}

/// The value in these bytes; `None` if they are no value's, because they are mixed or damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; bytes.len()];
    encode(value, &mut expected);
    (expected == bytes).then_some(value)
}
