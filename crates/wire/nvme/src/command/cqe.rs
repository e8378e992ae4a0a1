//! [`Cqe`]: the completion queue entry.

use crate::Status;

/// A completion queue entry, 16 bytes [NVMe1.4 fig. 122], as two 64-bit words so that a ring can
/// write the half with the phase tag last.
///
/// ```text
/// word 0: dword 0 (command specific), dword 1
/// word 1: SQ head [15:0], SQ identifier [31:16], CID [47:32], phase [48], status [63:49]
/// ```
/// On an open-channel drive dwords 0 and 1 hold one status bit per address of a vector command
/// ([OC20 §4]; [LightNVM17 §3.3]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// Dwords 0 (low) and 1 (high).
    pub result: u64,
    /// Head of the submission queue, as far as the controller has fetched.
    pub sq_head: u16,
    /// Submission queue of the command.
    pub sq_id: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status of the command.
    pub status: Status,
}

const PHASE: u64 = 1 << 48;

impl Cqe {
    /// Encodes the entry as two words, with the phase tag of this pass over the ring.
    #[inline]
    pub fn to_words(self, phase: bool) -> [u64; 2] {
        let word1 = u64::from(self.sq_head)
            | u64::from(self.sq_id) << 16
            | u64::from(self.cid) << 32
            | if phase { PHASE } else { 0 }
            | u64::from(self.status.to_bits()) << 49;
        [self.result, word1]
    }

    /// Decodes two words; the phase tag is ignored.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Cqe {
        Cqe {
            result: words[0],
            sq_head: words[1] as u16,
            sq_id: (words[1] >> 16) as u16,
            cid: (words[1] >> 32) as u16,
            status: Status::from_bits((words[1] >> 49) as u16),
        }
    }

    /// Returns the phase tag in the second word.
    #[inline]
    pub fn phase(word1: u64) -> bool {
        word1 & PHASE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_where_the_specification_puts_them() {
        let cqe = Cqe {
            result: 0xdead_beef_0000_0001,
            sq_head: 0x1234,
            sq_id: 3,
            cid: 77,
            status: Status::LBA_OUT_OF_RANGE,
        };
        let words = cqe.to_words(true);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(bytes[8..14], [0x34, 0x12, 3, 0, 77, 0]);
        // Bit 0 of byte 14 is the phase tag, bits 15:1 the status field.
        assert_eq!(u16::from_le_bytes([bytes[14], bytes[15]]), 0x80 << 1 | 1);
        assert_eq!(Cqe::from_words(words), cqe);
        assert!(Cqe::phase(words[1]));
        assert!(!Cqe::phase(cqe.to_words(false)[1]));
    }
}
