//! [`WriteSequencer`]: the sequence numbers of write units, and those of them in flight.

use crate::ids::{ToIndex, WriteSeq};

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Numbers write units in the order in which they get a location, and tracks the number below which all
/// of them are on the media.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteSequencer {
    /// Whether each unit from `low` on is on the media or never will be; the first one is neither.
    retired: VecDeque<bool>,
    low_watermark: WriteSeq,
}

impl WriteSequencer {
    /// Creates a sequencer that starts at `next`.
    pub(crate) fn starting_at(next: WriteSeq) -> WriteSequencer {
        WriteSequencer { retired: VecDeque::with_capacity(64), low_watermark: next }
    }

    /// Returns the next sequence number.
    #[inline]
    pub(crate) fn next_seq(&self) -> WriteSeq {
        self.low_watermark + self.retired.len() as u64
    }

    /// Returns the number below which every unit is on the media.
    #[inline]
    pub(crate) fn low_watermark(&self) -> WriteSeq {
        self.low_watermark
    }

    /// Assigned sequence numbers that are not retired, ascending.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = WriteSeq> {
        self.low_watermark
            .ascending()
            .zip(&self.retired)
            .filter(|(_, ended)| !**ended)
            .map(|(number, _)| number)
    }

    /// Assigns a sequence number.
    #[inline]
    pub(crate) fn assign(&mut self) -> WriteSeq {
        let number = self.next_seq();
        self.retired.push_back(false);
        number
    }

    /// Retires a number: its unit is on the media, or will get another number first.
    #[inline]
    pub(crate) fn retire(&mut self, number: WriteSeq) {
        let retired = &mut self.retired[(number - self.low_watermark).index()];
        assert!(!*retired, "sequence number {number} is retired twice");
        *retired = true;
        while self.retired.front() == Some(&true) {
            self.retired.pop_front();
            self.low_watermark += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_stops_at_the_first_that_is_in_flight() {
        let mut issued = WriteSequencer::starting_at(WriteSeq(5));
        assert_eq!((issued.low_watermark(), issued.next_seq()), (WriteSeq(5), WriteSeq(5)));
        assert_eq!([issued.assign(), issued.assign(), issued.assign()], [5, 6, 7].map(WriteSeq));
        issued.retire(WriteSeq(6));
        assert_eq!((issued.low_watermark(), issued.next_seq()), (WriteSeq(5), WriteSeq(8)));
        issued.retire(WriteSeq(5));
        assert_eq!(issued.low_watermark(), WriteSeq(7));
        issued.retire(WriteSeq(7));
        assert_eq!((issued.low_watermark(), issued.next_seq()), (WriteSeq(8), WriteSeq(8)));
    }
}
