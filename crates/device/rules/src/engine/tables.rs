//! Tables of the engine: arrays, and sets and maps as two-choice hash tables.
//!
//! A key is in one of two buckets of eight slots, so that an operation has a constant bound, whatever
//! the keys are. A key whose buckets are both full is refused as for a full table.

use crate::program::{TableDeclaration, TableKind};

use super::{RuleStatus, RuleTableError};

/// Slots of a bucket.
const BUCKET: usize = 8;

/// Returns the bytes of a table.
pub(crate) fn table_bytes(table: &TableDeclaration) -> u64 {
    let slots = || (buckets(table.capacity) as u64).saturating_mul(BUCKET as u64);
    match table.kind {
        TableKind::Address => 0,
        TableKind::Array(width) => table.capacity.saturating_mul(width.bytes()),
        TableKind::Set(_) => slots().saturating_mul(8).saturating_add(slots() / 8),
        TableKind::Map { .. } => slots().saturating_mul(16).saturating_add(slots() / 8),
    }
}

/// Returns the number of buckets: at most half of the slots are in use.
fn buckets(capacity: u64) -> usize {
    (capacity.saturating_mul(2).div_ceil(BUCKET as u64)).next_power_of_two().max(2) as usize
}

/// Returns the bytes of the image of all durable tables but those of addresses, one after the other.
pub(crate) fn durable_bytes(tables: &[TableDeclaration]) -> u64 {
    let durable = tables.iter().filter(|table| table.is_durable);
    durable.fold(0, |bytes, table| bytes.saturating_add(table_bytes(table)))
}

/// An array of integers.
#[derive(Clone, Debug)]
pub(super) struct IntArray {
    bytes: Box<[u8]>,
    shift: u8,
    max: u64,
}

impl IntArray {
    #[inline]
    fn load(&self, index: u64) -> Option<u64> {
        let start = usize::try_from(index).ok()?.checked_mul(1 << self.shift)?;
        let bytes = self.bytes.get(start..)?;
        match self.shift {
            0 => bytes.first().map(|byte| u64::from(*byte)),
            1 => bytes.first_chunk().map(|bytes| u16::from_le_bytes(*bytes).into()),
            2 => bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into()),
            _ => bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        }
    }

    /// Stores the lower bits of a value; returns whether the element changed.
    #[inline]
    fn store(&mut self, index: u64, value: u64) -> Option<bool> {
        let value = value & self.max;
        let changed = self.load(index)? != value;
        let (start, bytes) = ((index as usize) << self.shift, 1 << self.shift);
        self.bytes[start..start + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        Some(changed)
    }
}

/// A set or a map.
#[derive(Clone, Debug)]
pub(super) struct HashTable {
    /// Slots in use, a bit each.
    used: Box<[u8]>,
    keys: Box<[u64]>,
    /// Empty for a set.
    values: Box<[u64]>,
    len: u64,
    capacity: u64,
    key_max: u64,
    value_max: u64,
}

impl HashTable {
    /// Returns the two buckets of a key.
    #[inline]
    fn buckets(&self, key: u64) -> [usize; 2] {
        let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mask = self.used.len() - 1;
        [mixed as usize & mask, (mixed >> 32) as usize & mask]
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        self.buckets(key).into_iter().find_map(|bucket| {
            let is_key = |slot: &usize| {
                self.used[bucket] >> slot & 1 == 1 && self.keys[bucket * BUCKET + slot] == key
            };
            (0..BUCKET).find(is_key).map(|slot| bucket * BUCKET + slot)
        })
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.find(key).map(|slot| self.values.get(slot).copied().unwrap_or(0))
    }

    /// Inserts a key, or changes its value; returns whether that changed the table.
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, RuleTableError> {
        let value = value & self.value_max;
        if key > self.key_max {
            return Err(RuleTableError::OutOfRange);
        }
        if let Some(slot) = self.find(key) {
            let changed = self.values.get(slot).is_some_and(|stored| *stored != value);
            if let Some(stored) = self.values.get_mut(slot) {
                *stored = value;
            }
            return Ok(changed);
        }
        let [first, second] = self.buckets(key);
        let is_emptier = self.used[second].count_ones() < self.used[first].count_ones();
        let bucket = if is_emptier { second } else { first };
        let slot = self.used[bucket].trailing_ones() as usize;
        if self.len == self.capacity || slot == BUCKET {
            return Err(RuleTableError::Full);
        }
        self.used[bucket] |= 1 << slot;
        self.keys[bucket * BUCKET + slot] = key;
        if let Some(stored) = self.values.get_mut(bucket * BUCKET + slot) {
            *stored = value;
        }
        self.len += 1;
        Ok(true)
    }

    /// Returns the parts of the image that a change of a key has changed: the use of both buckets, and
    /// the slot of the key.
    fn image_of(&self, key: u64, mut part: impl FnMut(usize, &[u8])) {
        for bucket in self.buckets(key) {
            part(bucket, &self.used[bucket..=bucket]);
        }
        if let Some(slot) = self.find(key) {
            part(self.used.len() + 8 * slot, &self.keys[slot].to_le_bytes());
            if let Some(value) = self.values.get(slot) {
                part(self.used.len() + 8 * (self.keys.len() + slot), &value.to_le_bytes());
            }
        }
    }

    /// Takes the contents of an image. Returns `false` if a table has no such contents.
    fn load_image(&mut self, image: &[u8]) -> bool {
        let Some((used, slots)) = image.split_at_checked(self.used.len()) else { return false };
        let (numbers, rest) = slots.as_chunks::<8>();
        if !rest.is_empty() || numbers.len() != self.keys.len() + self.values.len() {
            return false;
        }
        self.used.copy_from_slice(used);
        let numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let slots = self.keys.iter_mut().chain(&mut self.values);
        slots.zip(numbers).for_each(|(slot, number)| *slot = number);
        self.len = self.used.iter().map(|bucket| u64::from(bucket.count_ones())).sum();
        let mut in_use = (0..self.keys.len())
            .filter(|slot| self.used[slot / BUCKET] >> (slot % BUCKET) & 1 == 1);
        let is_valid = |slot: usize| {
            self.keys[slot] <= self.key_max
                && self.find(self.keys[slot]) == Some(slot)
                && self.values.get(slot).is_none_or(|value| *value <= self.value_max)
        };
        self.len <= self.capacity && in_use.all(is_valid)
    }

    fn remove(&mut self, key: u64) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.used[slot / BUCKET] &= !(1 << (slot % BUCKET));
        self.len -= 1;
        true
    }
}

/// The contents of a table.
#[derive(Clone, Debug)]
pub(super) enum TableState {
    /// Addresses are the drive's.
    Address,
    Array(IntArray),
    Hash(HashTable),
}

impl TableState {
    /// Creates a table of zeros, or without keys.
    pub(super) fn new(table: &TableDeclaration) -> TableState {
        let hash = |key_max, value_max, has_values: bool| {
            let buckets = buckets(table.capacity);
            let slots = buckets * BUCKET;
            TableState::Hash(HashTable {
                used: vec![0; buckets].into(),
                keys: vec![0; slots].into(),
                values: vec![0; if has_values { slots } else { 0 }].into(),
                len: 0,
                capacity: table.capacity,
                key_max,
                value_max,
            })
        };
        match table.kind {
            TableKind::Address => TableState::Address,
            TableKind::Array(width) => TableState::Array(IntArray {
                bytes: vec![0; (table.capacity * width.bytes()) as usize].into(),
                shift: width as u8,
                max: width.max(),
            }),
            TableKind::Set(width) => hash(width.max(), 0, false),
            TableKind::Map { key, value } => hash(key.max(), value.max(), true),
        }
    }

    #[inline]
    pub(super) fn load(&self, key: u64) -> Option<u64> {
        match self {
            TableState::Array(array) => array.load(key),
            TableState::Hash(hash) => Some(hash.get(key).unwrap_or(0)),
            TableState::Address => None,
        }
    }

    /// Stores an element, or the value of a key; returns whether that changed the table.
    #[inline]
    pub(super) fn store(&mut self, key: u64, value: u64) -> Result<bool, RuleTableError> {
        match self {
            TableState::Array(array) => array.store(key, value).ok_or(RuleTableError::OutOfRange),
            TableState::Hash(hash) => hash.insert(key, value),
            TableState::Address => Err(RuleTableError::OtherKind),
        }
    }

    pub(super) fn has_key(&self, key: u64) -> bool {
        matches!(self, TableState::Hash(hash) if hash.find(key).is_some())
    }

    pub(super) fn remove(&mut self, key: u64) -> bool {
        match self {
            TableState::Hash(hash) => hash.remove(key),
            _ => false,
        }
    }

    /// Returns the number of keys that a set or a map can still take.
    pub(super) fn free(&self) -> u64 {
        match self {
            TableState::Hash(hash) => hash.capacity - hash.len,
            _ => 0,
        }
    }

    /// Returns the stored element or value as it is after a store.
    pub(super) fn stored(&self, value: u64) -> u64 {
        match self {
            TableState::Array(array) => value & array.max,
            TableState::Hash(hash) => value & hash.value_max,
            TableState::Address => value,
        }
    }

    /// Calls `part` with the parts of the table's image, an offset and bytes each, that a change of a key
    /// has changed.
    pub(super) fn image_of(&self, key: u64, mut part: impl FnMut(usize, &[u8])) {
        match self {
            TableState::Array(array) => {
                let start = (key as usize) << array.shift;
                part(start, &array.bytes[start..start + (1 << array.shift)]);
            }
            TableState::Hash(hash) => hash.image_of(key, part),
            TableState::Address => {}
        }
    }

    /// Takes the contents of an image. Returns `false`, and leaves other contents, if a table has no such
    /// contents.
    pub(super) fn load_image(&mut self, image: &[u8]) -> bool {
        match self {
            TableState::Array(array) if array.bytes.len() == image.len() => {
                array.bytes.copy_from_slice(image);
                true
            }
            TableState::Hash(hash) => hash.load_image(image),
            TableState::Array(_) => false,
            TableState::Address => image.is_empty(),
        }
    }

    pub(super) fn is_hash(&self) -> bool {
        matches!(self, TableState::Hash(_))
    }

    pub(super) fn clear(&mut self) {
        match self {
            TableState::Array(array) => array.bytes.fill(0),
            TableState::Hash(hash) => {
                hash.used.fill(0);
                hash.len = 0;
            }
            TableState::Address => {}
        }
    }
}

impl From<RuleTableError> for RuleStatus {
    fn from(error: RuleTableError) -> RuleStatus {
        match error {
            RuleTableError::Full => RuleStatus::TableFull,
            _ => RuleStatus::IndexOutOfRange,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppId, IntWidth};

    fn state(kind: TableKind, capacity: u64) -> TableState {
        let (name, app) = ("t".to_owned(), AppId::new(0));
        TableState::new(&TableDeclaration { name, app, kind, capacity, is_durable: false })
    }

    #[test]
    fn a_set_takes_its_capacity_and_no_more() {
        for capacity in [1, 2, 7, 8, 1000, 65536] {
            let mut set = state(TableKind::Set(IntWidth::U64), capacity);
            for key in 0..capacity {
                assert_eq!(set.store(key * key, 0), Ok(true), "{capacity}, key {key}");
            }
            assert_eq!((set.free(), set.store(3, 0)), (0, Err(RuleTableError::Full)));
            assert_eq!(set.store(0, 0), Ok(false), "a key that is there");
            assert!(set.has_key(0) && !set.has_key(3) && !set.remove(3) && set.remove(0));
            assert_eq!((set.has_key(0), set.free(), set.store(3, 0)), (false, 1, Ok(true)));
        }
    }

    #[test]
    fn an_image_has_every_change() {
        let mut rng = rng::Rng::new(2);
        let (key, value) = (IntWidth::U32, IntWidth::U16);
        for (kind, capacity) in [
            (TableKind::Array(IntWidth::U8), 100),
            (TableKind::Array(IntWidth::U64), 100),
            (TableKind::Set(IntWidth::U32), 100),
            (TableKind::Map { key, value }, 60),
        ] {
            let mut table = state(kind, capacity);
            let (name, app) = ("t".to_owned(), AppId::new(0));
            let declared = TableDeclaration { name, app, kind, capacity, is_durable: true };
            let mut image = vec![0; table_bytes(&declared) as usize];
            assert_eq!(durable_bytes(std::slice::from_ref(&declared)), image.len() as u64);
            for _ in 0..3_000 {
                let key = rng.below(100);
                if table.is_hash() && rng.chance(0.4) {
                    table.remove(key);
                } else if table.store(key, rng.next_u64()).is_err() {
                    continue;
                }
                table.image_of(key, |at, bytes| {
                    image[at..at + bytes.len()].copy_from_slice(bytes);
                });
            }
            let mut copy = state(kind, capacity);
            assert!(copy.load_image(&image));
            for key in 0..100 {
                assert_eq!(
                    (copy.load(key), copy.has_key(key)),
                    (table.load(key), table.has_key(key))
                );
            }
            assert_eq!(copy.free(), table.free());
            assert!(!copy.load_image(&image[1..]) && !copy.load_image(&[]));
            if let TableState::Hash(hash) = &table {
                // A key that the table would not find, or is too large for it.
                let used = hash.used.len();
                let slot = (0..).find(|slot| hash.used[slot / BUCKET] >> (slot % BUCKET) & 1 == 1);
                let slot = used + 8 * slot.expect("a key");
                let mut other = image.clone();
                other[slot + 7] = 1;
                assert!(!copy.load_image(&other));
                image[..used].fill(0xff);
                assert!(!copy.load_image(&image));
            }
        }
    }

    #[test]
    fn maps_and_arrays_agree_with_a_model() {
        let mut rng = rng::Rng::new(1);
        let mut map = state(TableKind::Map { key: IntWidth::U32, value: IntWidth::U16 }, 100);
        let mut model = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            let (key, value) = (rng.below(150), rng.next_u64());
            if rng.chance(0.4) {
                assert_eq!(map.remove(key), model.remove(&key).is_some());
            } else if model.len() < 100 || model.contains_key(&key) {
                map.store(key, value).expect("space");
                model.insert(key, value & 0xffff);
            } else {
                assert_eq!(map.store(key, value), Err(RuleTableError::Full));
            }
            assert_eq!(map.load(key), Some(model.get(&key).copied().unwrap_or(0)));
            assert_eq!(map.free(), 100 - model.len() as u64);
        }
        assert_eq!(map.store(1 << 32, 0), Err(RuleTableError::OutOfRange));
        for width in [IntWidth::U8, IntWidth::U16, IntWidth::U32, IntWidth::U64] {
            let mut array = state(TableKind::Array(width), 5);
            assert_eq!(array.store(4, u64::MAX), Ok(true));
            assert_eq!((array.load(3), array.load(4)), (Some(0), Some(width.max())));
            assert_eq!((array.load(5), array.load(u64::MAX)), (None, None));
            assert_eq!(array.store(5, 0), Err(RuleTableError::OutOfRange));
            array.clear();
            assert_eq!(array.load(4), Some(0));
        }
    }
}
