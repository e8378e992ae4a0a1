//! [`MinTree`]: one key per member of a dense set, and the members with the smallest keys without a
//! scan of all of them.

use serde::{Deserialize, Serialize};

/// A key per member, in a tournament tree: an inner node has the smaller key of its two children.
///
/// Changes and searches take time proportional to the logarithm of the number of members. A change
/// goes up only as far as it changes the smallest key of a subtree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MinTree<K> {
    /// The leaves are the second half; the root is at 1.
    nodes: Vec<K>,
    /// Key of members that were never set: no other key is larger.
    absent: K,
}

impl<K: Copy + Ord> MinTree<K> {
    /// Returns a tree without members. `absent` is the largest key.
    pub fn new(absent: K) -> MinTree<K> {
        MinTree { nodes: Vec::new(), absent }
    }

    /// Returns a tree of at least `count` members, with the largest key each.
    pub fn with_len(count: usize, absent: K) -> MinTree<K> {
        let mut tree = MinTree::new(absent);
        tree.grow(count);
        tree
    }

    /// Returns the number of members that have a leaf.
    #[inline]
    pub fn len(&self) -> usize {
        self.nodes.len() / 2
    }

    /// Returns whether no member has a leaf.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Makes space for `count` members at least. New members have the largest key.
    pub fn grow(&mut self, count: usize) {
        let (old, new) = (self.len(), count.next_power_of_two());
        if count <= old {
            return;
        }
        let mut nodes = vec![self.absent; 2 * new];
        nodes[new..new + old].copy_from_slice(&self.nodes[old..]);
        for i in (1..new).rev() {
            nodes[i] = nodes[2 * i].min(nodes[2 * i + 1]);
        }
        self.nodes = nodes;
    }

    /// Sets the key of member `i`.
    ///
    /// # Panics
    /// If the member has no leaf.
    #[inline]
    pub fn set(&mut self, i: usize, key: K) {
        let mut node = self.len() + i;
        self.nodes[node] = key;
        while node > 1 {
            let least = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == least {
                return;
            }
            self.nodes[node] = least;
        }
    }

    /// Lowers the key of member `i` to `key`, if it is larger.
    ///
    /// # Panics
    /// If the member has no leaf.
    #[inline]
    pub fn lower(&mut self, i: usize, key: K) {
        if key < self.nodes[self.len() + i] {
            self.set(i, key);
        }
    }

    /// Removes the key of member `i`, if it has one.
    #[inline]
    pub fn remove(&mut self, i: usize) {
        if i < self.len() {
            self.set(i, self.absent);
        }
    }

    /// Returns the key of member `i`; `None` if it has no leaf.
    pub fn get(&self, i: usize) -> Option<K> {
        (i < self.len()).then(|| self.nodes[self.len() + i])
    }

    /// Returns the smallest key.
    #[inline]
    pub fn min(&self) -> K {
        self.nodes.get(1).copied().unwrap_or(self.absent)
    }

    /// Returns the first member with the smallest key; `None` if all have the largest key.
    pub fn first_min(&self) -> Option<usize> {
        let least = self.min();
        if least == self.absent {
            return None;
        }
        self.first_at_most(0, self.len(), least)
    }

    /// Returns the first member in `from..end` whose key is at most `limit`.
    #[inline]
    pub fn first_at_most(&self, from: usize, end: usize, limit: K) -> Option<usize> {
        let leaves = self.len();
        if from >= end.min(leaves) {
            return None;
        }
        let mut node = leaves + from;
        while self.nodes[node] > limit {
            // The next subtree to the right: beside the closest ancestor that is a left child.
            node >>= node.trailing_ones();
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < leaves {
            node *= 2;
            node += usize::from(self.nodes[node] > limit);
        }
        Some(node - leaves).filter(|i| *i < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_look_at_every_member_finds() {
        let mut x = 7u64;
        let mut draw = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for count in [1, 2, 3, 63, 64, 65, 200] {
            let mut tree = MinTree::with_len(count, u64::MAX);
            let mut plain = vec![u64::MAX; count];
            assert_eq!((tree.min(), tree.first_min()), (u64::MAX, None));
            for _ in 0..2000 {
                let (i, key) = (draw(count as u64) as usize, draw(50));
                match draw(4) {
                    0 => {
                        tree.lower(i, key);
                        plain[i] = plain[i].min(key);
                    }
                    1 => {
                        tree.remove(i);
                        plain[i] = u64::MAX;
                    }
                    _ => {
                        tree.set(i, key);
                        plain[i] = key;
                    }
                }
                let (from, end) = (draw(count as u64) as usize, draw(count as u64 + 1) as usize);
                let limit = draw(50);
                let found = (from..end).find(|i| plain[*i] <= limit);
                assert_eq!(tree.first_at_most(from, end, limit), found);
                let least = plain.iter().copied().min().unwrap();
                assert_eq!((tree.min(), tree.get(i)), (least, Some(plain[i])));
                let first = plain.iter().position(|key| *key == least && least < u64::MAX);
                assert_eq!(tree.first_min(), first);
            }
        }
    }

    #[test]
    fn keys_survive_growth() {
        let mut tree = MinTree::new(u32::MAX);
        assert!(tree.is_empty() && tree.min() == u32::MAX && tree.first_min().is_none());
        tree.remove(5);
        for i in 0..100 {
            tree.grow(i + 1);
            tree.set(i, 200 - i as u32);
            assert_eq!((tree.min(), tree.first_min()), (200 - i as u32, Some(i)));
        }
        assert_eq!(tree.first_at_most(0, 100, 150), Some(50));
    }
}
