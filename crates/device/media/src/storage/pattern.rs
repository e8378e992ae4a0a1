//! The data of a medium that stores none: a pattern derived from the address, which can be
//! verified.
//!
//! Word `i` (64 bits, little endian) of address `a` is `mix(a) + i × odd`. It differs for every
//! address, and is generated at memory bandwidth.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit words in which every output bit depends on every input bit (the finalizer
/// of SplitMix64).
#[inline]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Calls the closure with the pattern of `address` from byte `skip`, in pieces of 8 bytes except
/// the first and the last.
#[inline]
fn for_each_word(address: u64, skip: usize, len: usize, mut piece: impl FnMut(usize, &[u8])) {
    let mut word =
        mix(address.wrapping_add(STEP)).wrapping_add((skip as u64 / 8).wrapping_mul(STEP));
    let mut at = 0;
    let ragged = skip % 8;
    if ragged != 0 {
        let first = len.min(8 - ragged);
        piece(0, &word.to_le_bytes()[ragged..ragged + first]);
        word = word.wrapping_add(STEP);
        at = first;
    }
    while len - at >= 8 {
        piece(at, &word.to_le_bytes());
        word = word.wrapping_add(STEP);
        at += 8;
    }
    if at < len {
        piece(at, &word.to_le_bytes()[..len - at]);
    }
}

/// Fills `into` with the pattern of `address`: a logical or physical sector number.
pub fn fill_pattern(address: u64, into: &mut [u8]) {
    fill_pattern_from(address, 0, into);
}

/// Fills `into` with the pattern of `address` from byte `skip`.
pub fn fill_pattern_from(address: u64, skip: usize, into: &mut [u8]) {
    for_each_word(address, skip, into.len(), |at, bytes| {
        into[at..at + bytes.len()].copy_from_slice(bytes)
    });
}

/// Bytes that do not match the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {address:#x} does not hold its pattern: the first wrong byte is byte {offset}")]
pub struct PatternMismatch {
    /// The address.
    pub address: u64,
    /// Offset of the first wrong byte.
    pub offset: usize,
}

/// Checks that `bytes` match the pattern of `address`.
///
/// # Errors
/// [`PatternMismatch`] at the first wrong byte.
pub fn check_pattern(address: u64, bytes: &[u8]) -> Result<(), PatternMismatch> {
    let mut same = true;
    for_each_word(address, 0, bytes.len(), |at, want| same &= &bytes[at..at + want.len()] == want);
    if same {
        return Ok(());
    }
    let mut wrong = None;
    for_each_word(address, 0, bytes.len(), |at, want| {
        let here = bytes[at..].iter().zip(want).position(|(a, b)| a != b);
        wrong = wrong.or(here.map(|i| at + i));
    });
    Err(PatternMismatch { address, offset: wrong.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_verifies_at_its_own_address_only() {
        let mut bytes = [0; 4096];
        fill_pattern(77, &mut bytes);
        assert_eq!(check_pattern(77, &bytes), Ok(()));
        for other in [0, 76, 78, 77 << 32, u64::MAX] {
            assert_eq!(check_pattern(other, &bytes).unwrap_err().address, other);
        }
        for offset in [0, 1, 8, 4095] {
            bytes[offset] ^= 0x10;
            assert_eq!(check_pattern(77, &bytes), Err(PatternMismatch { address: 77, offset }));
            bytes[offset] ^= 0x10;
        }
    }

    #[test]
    fn any_range_of_a_pattern_has_equal_bytes() {
        let mut whole = [0; 100];
        fill_pattern(5, &mut whole);
        for from in 0..100 {
            for to in from..=100 {
                let mut piece = vec![0; to - from];
                fill_pattern_from(5, from, &mut piece);
                assert_eq!(piece, whole[from..to]);
            }
        }
        assert_eq!(check_pattern(5, &whole[..99]), Ok(()));
        assert_eq!(check_pattern(5, &[]), Ok(()));
    }
}
