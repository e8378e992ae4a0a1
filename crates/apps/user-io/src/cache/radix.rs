//! [`Radix`]: maps block numbers to frames and marks dirty blocks. [NVMeDirect16 §3.2] indexes its cache by a
//! radix tree; the ordered search for dirty blocks follows Linux.
//!
//! A node has 64 slots and consumes 6 bits of the block number. One bit per slot says whether a
//! dirty block is below it, so that the search skips clean subtrees. Nodes come from a free list
//! and return to it: the tree stops allocating once it has reached its maximum size.
//!
//! A small table of hints maps recently used block prefixes to leaf nodes. A hint is valid as long
//! as its node exists: [`remove`](Radix::remove) clears the hint together with the node.

use collections::Slab;

use super::frames::BlockFrame;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;

/// No node, no frame.
const NONE: u32 = u32::MAX;

/// Number of hints, direct-mapped by prefix.
const LEAF_HINTS: usize = 64;

/// A leaf node, and the prefix of its blocks: their number without the last 6 bits.
#[derive(Clone, Copy, Debug)]
struct LeafHint {
    prefix: u64,
    node: u32,
}

/// An impossible prefix: two of its upper bits are always zero.
const NO_HINT: LeafHint = LeafHint { prefix: u64::MAX, node: 0 };

#[derive(Clone, Debug)]
struct Node {
    slots: [u32; SLOTS],
    present: u64,
    dirty: u64,
}

/// A radix tree from block numbers to frames.
#[derive(Debug)]
pub(crate) struct Radix {
    nodes: Slab<Node>,
    root: u32,
    levels: u32,
    leaf_hints: [LeafHint; LEAF_HINTS],
}

#[inline]
fn slot_index(unit: u64, level: u32) -> usize {
    (unit >> (level * BITS)) as usize & (SLOTS - 1)
}

impl Radix {
    /// Creates an empty tree for blocks below `units`.
    pub(crate) fn new(units: u64) -> Radix {
        let bits = u64::BITS - units.saturating_sub(1).leading_zeros();
        let mut tree = Radix {
            nodes: Slab::new(),
            root: NONE,
            levels: bits.div_ceil(BITS).max(1),
            leaf_hints: [NO_HINT; LEAF_HINTS],
        };
        tree.root = tree.new_node();
        tree
    }

    fn new_node(&mut self) -> u32 {
        self.nodes.take_or_push(|| Node { slots: [NONE; SLOTS], present: 0, dirty: 0 })
    }

    /// Returns the frame of a block.
    #[inline]
    pub(crate) fn get(&self, unit: u64) -> Option<u32> {
        let mut at = self.root;
        for level in (0..self.levels).rev() {
            at = self.nodes[at].slots[slot_index(unit, level)];
            if at == NONE {
                return None;
            }
        }
        Some(at)
    }

    /// Returns the frame of a block, and remembers its leaf for accesses to neighboring blocks.
    #[inline]
    pub(crate) fn get_with_hint(&mut self, unit: u64) -> Option<u32> {
        let prefix = unit >> BITS;
        let LeafHint { prefix: known, mut node } = self.leaf_hints[prefix as usize % LEAF_HINTS];
        if known != prefix {
            node = self.leaf(unit)?;
        }
        let frame = self.nodes[node].slots[slot_index(unit, 0)];
        (frame != NONE).then_some(frame)
    }

    /// Finds the leaf node of a block and stores it as a hint.
    fn leaf(&mut self, unit: u64) -> Option<u32> {
        let mut node = self.root;
        for level in (1..self.levels).rev() {
            node = self.nodes[node].slots[slot_index(unit, level)];
            if node == NONE {
                return None;
            }
        }
        let prefix = unit >> BITS;
        self.leaf_hints[prefix as usize % LEAF_HINTS] = LeafHint { prefix, node };
        Some(node)
    }

    /// Inserts a block's frame; the block must not be present.
    pub(crate) fn insert(&mut self, unit: u64, frame: u32) {
        let mut at = self.root;
        for level in (1..self.levels).rev() {
            let p = slot_index(unit, level);
            let mut next = self.nodes[at].slots[p];
            if next == NONE {
                next = self.new_node();
                let node = &mut self.nodes[at];
                node.slots[p] = next;
                node.present |= 1 << p;
            }
            at = next;
        }
        let (node, p) = (&mut self.nodes[at], slot_index(unit, 0));
        debug_assert_eq!(node.slots[p], NONE);
        node.slots[p] = frame;
        node.present |= 1 << p;
    }

    /// Removes a block; it must be present and clean.
    pub(crate) fn remove(&mut self, unit: u64) {
        self.remove_below(self.root, self.levels - 1, unit);
    }

    /// Removes a block below a node. Returns whether the node is empty now.
    fn remove_below(&mut self, at: u32, level: u32, unit: u64) -> bool {
        let p = slot_index(unit, level);
        if level > 0 {
            let next = self.nodes[at].slots[p];
            if !self.remove_below(next, level - 1, unit) {
                return false;
            }
            let (prefix, known) = (unit >> BITS, (unit >> BITS) as usize % LEAF_HINTS);
            if level == 1 && self.leaf_hints[known].prefix == prefix {
                self.leaf_hints[known] = NO_HINT;
            }
            self.nodes.release(next);
        }
        let node = &mut self.nodes[at];
        debug_assert_eq!(node.dirty >> p & 1, 0, "unit {unit} is dirty");
        node.slots[p] = NONE;
        node.present &= !(1 << p);
        node.present == 0
    }

    /// Marks a block dirty; it must be present.
    pub(crate) fn set_dirty(&mut self, unit: u64) {
        let mut at = self.root;
        for level in (0..self.levels).rev() {
            let (node, p) = (&mut self.nodes[at], slot_index(unit, level));
            node.dirty |= 1 << p;
            at = node.slots[p];
        }
    }

    /// Marks a block clean.
    pub(crate) fn set_clean(&mut self, unit: u64) {
        self.clean_below(self.root, self.levels - 1, unit);
    }

    /// Clears the dirty bits below a node. Returns whether no dirty block remains below it.
    fn clean_below(&mut self, at: u32, level: u32, unit: u64) -> bool {
        let p = slot_index(unit, level);
        if level > 0 {
            let next = self.nodes[at].slots[p];
            if !self.clean_below(next, level - 1, unit) {
                return false;
            }
        }
        let node = &mut self.nodes[at];
        node.dirty &= !(1 << p);
        node.dirty == 0
    }

    /// Returns the first dirty block at or after `from`, and its frame.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<BlockFrame> {
        if from >> (self.levels * BITS).min(63) > 0 {
            return None;
        }
        let (block, frame) = self.dirty_below(self.root, self.levels - 1, from)?;
        Some(BlockFrame { block, frame })
    }

    fn dirty_below(&self, at: u32, level: u32, from: u64) -> Option<(u64, u32)> {
        let node = &self.nodes[at];
        let first = slot_index(from, level);
        let mut bits = node.dirty & (!0 << first);
        while bits != 0 {
            let p = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // Later slots are beyond `from`: every block below them counts.
            let below = if p == first { from } else { 0 };
            let next = node.slots[p];
            if level == 0 {
                return Some((p as u64, next));
            }
            let low = (1u64 << (level * BITS)) - 1;
            if let Some((unit, frame)) = self.dirty_below(next, level - 1, below & low) {
                return Some(((p as u64) << (level * BITS) | unit, frame));
            }
        }
        None
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.count_below(self.root, self.levels - 1)
    }

    fn count_below(&self, at: u32, level: u32) -> usize {
        let node = &self.nodes[at];
        let slots = node.slots.iter().filter(|slot| **slot != NONE);
        if level == 0 {
            return slots.count();
        }
        slots.map(|slot| self.count_below(*slot, level - 1)).sum()
    }

    /// Returns the number of allocated nodes.
    #[cfg(test)]
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rng::Rng;

    use super::*;

    #[test]
    fn it_is_a_map_whose_dirty_units_are_found_in_order() {
        for (seed, units) in [(1, 1), (2, 64), (3, 65), (4, 5000), (5, 1 << 40)] {
            let mut rng = Rng::new(seed);
            let mut tree = Radix::new(units);
            let mut model: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
            for round in 0..6000u32 {
                let unit = match rng.below(3) {
                    0 => rng.below(units),
                    _ => rng.below(units.min(300)),
                };
                match (model.get(&unit).copied(), rng.below(4)) {
                    (None, _) if model.len() < 200 => {
                        tree.insert(unit, round);
                        model.insert(unit, (round, false));
                    }
                    (Some((frame, false)), 0 | 1) => {
                        tree.set_dirty(unit);
                        model.insert(unit, (frame, true));
                    }
                    (Some((frame, true)), _) => {
                        tree.set_clean(unit);
                        model.insert(unit, (frame, false));
                    }
                    (Some((_, false)), _) => {
                        tree.remove(unit);
                        model.remove(&unit);
                    }
                    (None, _) => {}
                }
                assert_eq!(tree.get(unit), model.get(&unit).map(|(frame, _)| *frame));
                let near = (unit ^ rng.below(64)).min(units - 1);
                for unit in [unit, near] {
                    assert_eq!(tree.get_with_hint(unit), tree.get(unit));
                }
                let from = rng.below(units);
                let next = model.range(from..).find(|(_, (_, dirty))| *dirty);
                let next =
                    next.map(|(block, (frame, _))| BlockFrame { block: *block, frame: *frame });
                assert_eq!(tree.next_dirty(from), next);
            }
            for unit in model.keys().copied().collect::<Vec<_>>() {
                if model[&unit].1 {
                    tree.set_clean(unit);
                }
                tree.remove(unit);
            }
            assert_eq!(tree.nodes.free_len() + 1, tree.nodes(), "all nodes but the root are free");
            assert_eq!(tree.next_dirty(0), None);
        }
    }
}
