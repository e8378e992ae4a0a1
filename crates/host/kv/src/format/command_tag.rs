//! [`KvCommandTag`]: the purpose of a command, encoded in its 64-bit user data.

/// The purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvCommandTag {
    /// Programs a write unit of records.
    Program { chunk: u32, unit: u32 },
    /// Writes sectors of a whole chunk of a value; `job` is the write in [`crate::puts::large_value`].
    LargeValue { job: u32, sector: u32 },
    /// Reads sectors; `fetch` is the read operation.
    Read { fetch: u32, sector: u32 },
    /// Erases a chunk.
    Erase { chunk: u32 },
}

impl KvCommandTag {
    /// Encodes the tag: two bits of kind, 30 bits of the first number, 32 bits of the second.
    /// Chunks are fewer than 2^30, because a sector index has 31 bits and a chunk at least four
    /// sectors.
    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        let (kind, a, b) = match self {
            KvCommandTag::Program { chunk, unit } => (0, chunk, unit),
            KvCommandTag::LargeValue { job, sector } => (1, job, sector),
            KvCommandTag::Read { fetch, sector } => (2, fetch, sector),
            KvCommandTag::Erase { chunk } => (3, chunk, 0),
        };
        kind << 62 | u64::from(a) << 32 | u64::from(b)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> KvCommandTag {
        let (a, b) = ((bits >> 32) as u32 & 0x3fff_ffff, bits as u32);
        match bits >> 62 {
            0 => KvCommandTag::Program { chunk: a, unit: b },
            1 => KvCommandTag::LargeValue { job: a, sector: b },
            2 => KvCommandTag::Read { fetch: a, sector: b },
            _ => KvCommandTag::Erase { chunk: a },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_tag_survives_its_bits() {
        for flight in [
            KvCommandTag::Program { chunk: (1 << 30) - 1, unit: u32::MAX },
            KvCommandTag::LargeValue { job: 3, sector: 64 },
            KvCommandTag::Read { fetch: 1 << 20, sector: 0 },
            KvCommandTag::Erase { chunk: 7 },
        ] {
            assert_eq!(KvCommandTag::from_bits(flight.to_bits()), flight);
        }
    }
}
