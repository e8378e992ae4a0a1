//! [`Slab`]: a table of entries that are identified by their index and reused.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// A table of entries and a list of the free ones. The entry that was freed last is reused first,
/// so that indices are deterministic.
///
/// A free entry keeps its contents until it is reused: whether an entry is in use is the caller's
/// to know, where it must be known. In steady state nothing is allocated.
///
/// # Panics
/// An index beyond [`len`](Slab::len) panics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slab<T> {
    entries: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Creates a table without entries, which [`insert`](Slab::insert) extends.
    pub const fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Creates a table without entries, with memory for a number of them.
    pub fn with_capacity(capacity: usize) -> Slab<T> {
        Slab { entries: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    /// Creates a table of free entries. The lowest index is used first.
    pub fn with_free(entries: impl IntoIterator<Item = T>) -> Slab<T> {
        let entries: Vec<T> = entries.into_iter().collect();
        let free = (0..entries.len() as u32).rev().collect();
        Slab { entries, free }
    }

    /// Adds an entry to a free place or to a new one. Returns its index.
    #[inline]
    pub fn insert(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Takes a free place, with its old contents, or adds a new one. Returns its index.
    #[inline]
    pub fn take_or_push(&mut self, new: impl FnOnce() -> T) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(new());
            (self.entries.len() - 1) as u32
        })
    }

    /// Takes a free place, with its old contents; `None` if the table is full.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns the free place that is used next; `None` if the table is full.
    #[inline]
    pub fn next_free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Frees a place, which must be in use.
    #[inline]
    pub fn release(&mut self, index: u32) {
        debug_assert!((index as usize) < self.entries.len(), "place {index} does not exist");
        self.free.push(index);
    }

    /// Returns an entry, in use or free; `None` for an index beyond the table.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)
    }

    /// Returns an entry, in use or free; `None` for an index beyond the table.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)
    }

    /// Returns the number of entries, in use or free.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the table has no entries, in use or free.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of entries in use.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the number of free entries.
    #[inline]
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// Returns whether an entry is free.
    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether an index is free, by a search; for checks.
    pub fn is_free(&self, index: u32) -> bool {
        self.free.contains(&index)
    }

    /// Returns for each place whether it is in use; for checks. If a place was freed twice, fewer
    /// places are free than [`free_len`](Slab::free_len) says.
    pub fn usage(&self) -> Vec<bool> {
        let mut usage = vec![true; self.entries.len()];
        for &index in &self.free {
            if let Some(is_in_use) = usage.get_mut(index as usize) {
                *is_in_use = false;
            }
        }
        usage
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
    }

    /// Returns the indices of the free entries.
    pub fn free_indices(&self) -> &[u32] {
        &self.free
    }

    /// Returns all entries, in use or free, in the order of their indices.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// Returns all entries, in use or free, in the order of their indices.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.entries.iter_mut()
    }
}

impl<T> Slab<Option<T>> {
    /// Takes the contents of a place and frees it; `None` if it is free or beyond the table.
    #[inline]
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<'a, T> IntoIterator for &'a Slab<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> std::slice::Iter<'a, T> {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Slab<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> std::slice::IterMut<'a, T> {
        self.iter_mut()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.entries[index as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_grows_and_reuses_the_place_freed_last() {
        let mut slab = Slab::new();
        assert_eq!((slab.insert('a'), slab.insert('b'), slab.next_free()), (0, 1, None));
        slab.release(0);
        assert_eq!((slab.in_use(), slab.next_free(), slab[0]), (1, Some(0), 'a'));
        assert_eq!((slab.take_or_push(|| 'x'), slab[0]), (0, 'a'), "the old contents");
        assert_eq!((slab.take_or_push(|| 'x'), slab[2]), (2, 'x'));
        slab[2] = 'y';
        assert_eq!(slab.iter().collect::<String>(), "aby");
        assert!(slab.get(3).is_none() && slab.take().is_none() && !slab.has_free());
        slab.release(1);
        assert!(slab.is_free(1) && !slab.is_free(0));
        assert_eq!(slab.usage(), [true, false, true]);
        slab.clear();
        assert!(slab.is_empty() && !slab.has_free());
    }

    #[test]
    fn a_table_of_fixed_size_is_used_from_the_start_and_can_be_full() {
        let mut slab = Slab::with_free([None, None]);
        assert_eq!(slab.take(), Some(0));
        slab[0] = Some(7);
        assert_eq!((slab.insert(Some(8)), slab.take(), slab.free_len()), (1, None, 0));
        assert_eq!((slab.remove(0), slab.remove(0), slab.remove(9)), (Some(7), None, None));
        assert_eq!((slab.free_indices(), slab.in_use(), slab.len()), (&[0][..], 1, 2));
    }
}
