//! [`Flight`]: what a command on the drive is about, in the word that comes back with it.

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvCommandTag {
    /// A write unit of records.
    Program { chunk: u32, unit: u32 },
    /// Sectors of a whole chunk, by the job that writes it.
    LargeValue { job: u32, sector: u32 },
    /// Sectors, by the fetch that reads them.
    Read { fetch: u32, sector: u32 },
    /// An erase.
    Erase { chunk: u32 },
}

impl KvCommandTag {
    /// Two bits of kind, 30 of the first number, 32 of the second: chunks are fewer than 2^30,
    /// because their sectors are numbered with 31 bits and they have at least four.
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
