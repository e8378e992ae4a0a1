//! [`Contents`]: the bytes of a sector, which the rules see as a node of a tree and as records.

use std::rc::Rc;

use rng::Rng;

pub(super) const SECTOR_BYTES: usize = 512;
/// Keys, and children, of a node.
const FANOUT: usize = 31;
const WORDS: usize = SECTOR_BYTES / 8;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 16;
/// Keys of nodes are below this.
pub(super) const KEYS: u64 = 64;
/// Values of records modulo this are the keys of the table `wanted`.
pub(super) const CLASSES: u64 = 16;

/// The records of the program: as in `demo/rules/btree.rules`, in sectors of 512 bytes.
pub(super) const RECORDS: &str = "record Node = { leaf: u16, count: u16, pad: u32, key: u64[31], child: u64[31], mark: u64 }\n\
    record Pair = { value: u64, other: u64 }\n";

/// The bytes of a sector.
#[derive(Debug)]
pub(super) struct Contents {
    words: [u64; WORDS],
}

/// The end of a step in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeStep {
    /// The node has no key that is small enough.
    None,
    /// An inner node has this child.
    Child(u64),
    /// A leaf has this child, and its key is the one that is searched, or is not.
    Leaf { child: u64, is_equal: bool },
}

impl Contents {
    /// Returns the bytes of a value, on a drive with this number of sectors. The value 0 is all zeros.
    /// Others are nodes, also ones with more entries than a node has, and with children past the end.
    pub(super) fn new(value: u64, sectors: u64, area: u64) -> Rc<Contents> {
        let mut words = [0; WORDS];
        if value > 0 {
            let mut rng = Rng::new(value);
            let count = match rng.below(20) {
                0 => 0,
                1 => u64::from(u16::MAX),
                _ => 1 + rng.below(FANOUT as u64),
            };
            let is_leaf = rng.below(2);
            words[0] = is_leaf | count << 16 | (value & 0xffff_ffff) << 32;
            let (keys, children) = words[1..].split_at_mut(FANOUT);
            keys.iter_mut().for_each(|key| *key = rng.below(KEYS));
            keys.sort_unstable();
            for child in &mut children[..FANOUT] {
                *child = match rng.below(60) {
                    0 => sectors,
                    1 => u64::MAX - rng.below(2),
                    2 => 1 << 40,
                    3..20 => rng.below(area.min(6)),
                    _ => rng.below(area),
                };
            }
            words[WORDS - 1] = value;
        }
        Rc::new(Contents { words })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns the value whose bytes these may be.
    pub(super) fn value_of(bytes: &[u8]) -> u64 {
        let (words, _) = bytes.as_chunks();
        words.last().map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Returns the number of entries that the node claims.
    pub(super) fn count(&self) -> u64 {
        self.words[0] >> 16 & 0xffff
    }

    /// Returns the step from this node with a key.
    pub(super) fn step(&self, key: u64) -> NodeStep {
        let count = (self.count() as usize).min(FANOUT);
        let keys = &self.words[1..1 + count];
        let Some(at) = keys.partition_point(|own| *own <= key).checked_sub(1) else {
            return NodeStep::None;
        };
        let child = self.words[1 + FANOUT + at];
        match self.words[0] & 0xffff {
            1 => NodeStep::Leaf { child, is_equal: keys[at] == key },
            _ => NodeStep::Child(child),
        }
    }

    /// Returns the records whose value `matches`.
    pub(super) fn records(&self, matches: impl Fn(u64) -> bool) -> Vec<[u8; RECORD_BYTES]> {
        let (pairs, _) = self.words.as_chunks::<2>();
        let bytes = |[value, other]: &[u64; 2]| {
            let mut bytes = [0; RECORD_BYTES];
            bytes[..8].copy_from_slice(&value.to_le_bytes());
            bytes[8..].copy_from_slice(&other.to_le_bytes());
            bytes
        };
        pairs.iter().filter(|[value, _]| matches(*value)).map(bytes).collect()
    }
}
