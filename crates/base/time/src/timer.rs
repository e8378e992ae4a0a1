//! [`TimerQueue`]: pending events in one deterministic order.

use crate::Nanos;

/// A priority queue of events by time. Events with equal times are returned in insertion order, so
/// that a run depends only on its inputs (ARCHITECTURE.md, R3).
///
/// The queue is a 4-ary implicit heap. At the usual sizes (two events per parallel unit), its sift
/// operations touch one or two cache lines per level. It allocates only when it grows.
#[derive(Clone, Debug)]
pub struct TimerQueue<T> {
    heap: Vec<Entry<T>>,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    at: Nanos,
    order: u64,
    event: T,
}

impl<T> Entry<T> {
    #[inline]
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.order)
    }
}

const ARITY: usize = 4;

impl<T: Copy> TimerQueue<T> {
    /// Creates an empty queue with space for `capacity` events.
    pub fn with_capacity(capacity: usize) -> TimerQueue<T> {
        TimerQueue { heap: Vec::with_capacity(capacity), pushed: 0 }
    }

    /// Returns the number of pending events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no event is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the time of the next event; [`Nanos::MAX`] if there is none.
    #[inline]
    pub fn next_at(&self) -> Nanos {
        self.heap.first().map_or(Nanos::MAX, |e| e.at)
    }

    /// Adds an event due `at`.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: T) {
        let entry = Entry { at, order: self.pushed, event };
        self.pushed += 1;
        let mut hole = self.heap.len();
        self.heap.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.heap[parent].key() <= entry.key() {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = entry;
    }

    /// Removes the earliest event if it is due at `now` or earlier, and returns it with its time.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        let first = *self.heap.first()?;
        if first.at > now {
            return None;
        }
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sift_down(last);
        }
        Some((first.at, first.event))
    }

    /// Removes every event.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    #[inline]
    fn sift_down(&mut self, entry: Entry<T>) {
        let len = self.heap.len();
        let key = entry.key();
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            if first >= len {
                break;
            }
            let mut least = first;
            for child in first + 1..(first + ARITY).min(len) {
                if self.heap[child].key() < self.heap[least].key() {
                    least = child;
                }
            }
            if key <= self.heap[least].key() {
                break;
            }
            self.heap[hole] = self.heap[least];
            hole = least;
        }
        self.heap[hole] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_equal_times_in_order_of_arrival() {
        let mut q = TimerQueue::with_capacity(0);
        // A fixed permutation of 4,000 events over 97 instants.
        for i in 0..4_000u64 {
            q.push(Nanos(i * 7_919 % 97), i);
        }
        let mut seen = Vec::new();
        while let Some((at, i)) = q.pop_due(Nanos::MAX) {
            assert_eq!(at, Nanos(i * 7_919 % 97));
            seen.push((at, i));
        }
        assert_eq!(seen.len(), 4_000);
        assert!(seen.windows(2).all(|w| w[0] < w[1]), "order is (time, arrival)");
    }

    #[test]
    fn nothing_comes_out_early() {
        let mut q = TimerQueue::with_capacity(1);
        q.push(Nanos(10), 'a');
        assert_eq!(q.pop_due(Nanos(9)), None);
        assert_eq!(q.next_at(), Nanos(10));
        assert_eq!(q.pop_due(Nanos(10)), Some((Nanos(10), 'a')));
        assert_eq!(q.next_at(), Nanos::MAX);
        assert!(q.is_empty());
    }

    #[test]
    fn interleaved_pushes_and_pops_agree_with_a_sorted_list() {
        let mut q = TimerQueue::with_capacity(0);
        let mut model: Vec<(Nanos, u64)> = Vec::new();
        let mut x = 1u64;
        for i in 0..20_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (x >> 33) % 3 < 2 {
                let at = Nanos((x >> 40) % 1_000);
                q.push(at, i);
                model.push((at, i));
            } else {
                let expected = model.iter().min().copied();
                model.retain(|e| Some(*e) != expected);
                assert_eq!(q.pop_due(Nanos::MAX), expected);
            }
            assert_eq!(q.len(), model.len());
        }
    }
}
