//! Keys of records as YCSB's client makes them: `user` and the FNV-1a hash of the record's index.
//! Thus the order of keys differs from the order of insertion.

/// Maximum length of a key in bytes: `user` and the digits of a 63-bit number.
pub const KEY_BYTES: usize = 4 + 19;

/// Key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKey {
    bytes: [u8; KEY_BYTES],
    len: u8,
}

impl RecordKey {
    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Returns the 64-bit FNV-1a hash of a number's bytes, least significant first, as a non-negative
/// 63-bit number (YCSB's `Utils.fnvhash64`).
pub fn fnv64(number: u64) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs() & (u64::MAX >> 1)
}

/// Returns the key of the record with index `number`.
pub fn record_key(number: u64) -> RecordKey {
    let mut key = RecordKey { bytes: [0; KEY_BYTES], len: 4 };
    key.bytes[..4].copy_from_slice(b"user");
    let (mut digits, mut count, mut rest) = ([0; 19], 0, fnv64(number));
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        (count, rest) = (count + 1, rest / 10);
        if rest == 0 {
            break;
        }
    }
    for digit in digits[..count].iter().rev() {
        key.bytes[usize::from(key.len)] = *digit;
        key.len += 1;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_those_of_the_published_client() {
        // Keys of the first records of every YCSB load.
        let names = [0, 1, 2].map(|i| String::from_utf8(record_key(i).as_bytes().into()).unwrap());
        assert_eq!(
            names,
            ["user6284781860667377211", "user8517097267634966620", "user1820151046732198393"]
        );
    }

    #[test]
    fn keys_are_apart() {
        let keys: BTreeSet<Vec<u8>> =
            (0..100_000).map(|i| record_key(i).as_bytes().to_vec()).collect();
        assert_eq!(keys.len(), 100_000);
        assert!(keys.iter().all(|k| k.len() <= KEY_BYTES && k.starts_with(b"user")));
    }
}
