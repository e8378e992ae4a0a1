//! [`Flight`]: what a command on the drive is about, in the word that comes back with it.

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    /// A write unit of records.
    Program { chunk: u32, unit: u32 },
    /// Sectors of a whole chunk, by the job that writes it.
    Whole { job: u32, sector: u32 },
    /// Sectors, by the fetch that reads them.
    Read { fetch: u32, sector: u32 },
    /// An erase.
    Erase { chunk: u32 },
}

impl Flight {
    /// Two bits of kind, 30 of the first number, 32 of the second: chunks are fewer than 2^30,
    /// because their sectors are numbered with 31 bits and they have at least four.
    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        let (kind, a, b) = match self {
            Flight::Program { chunk, unit } => (0, chunk, unit),
            Flight::Whole { job, sector } => (1, job, sector),
            Flight::Read { fetch, sector } => (2, fetch, sector),
            Flight::Erase { chunk } => (3, chunk, 0),
        };
        kind << 62 | u64::from(a) << 32 | u64::from(b)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Flight {
        let (a, b) = ((bits >> 32) as u32 & 0x3fff_ffff, bits as u32);
        match bits >> 62 {
            0 => Flight::Program { chunk: a, unit: b },
            1 => Flight::Whole { job: a, sector: b },
            2 => Flight::Read { fetch: a, sector: b },
            _ => Flight::Erase { chunk: a },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_survives_its_bits() {
        for flight in [
            Flight::Program { chunk: (1 << 30) - 1, unit: u32::MAX },
            Flight::Whole { job: 3, sector: 64 },
            Flight::Read { fetch: 1 << 20, sector: 0 },
            Flight::Erase { chunk: 7 },
        ] {
            assert_eq!(Flight::from_bits(flight.to_bits()), flight);
        }
    }
}
