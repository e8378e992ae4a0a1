//! [`TimerQueue`]: pending events in one deterministic order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// A priority queue of events by time. Events with equal times are returned in insertion order, so
/// that a run depends only on its inputs (ARCHITECTURE.md, R3).
///
/// Events of one kind become due after the same delay, and so in the order in which they are
/// inserted. The queue therefore keeps a few sorted runs, and appends each event to the first run
/// that ends before it (patience sorting: the ends of the runs descend). A heap holds the events
/// that fit no run. The cost of an event does not depend on the number of pending events, unless it
/// is in the heap. The queue allocates only when it grows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "SavedTimers<T>", into = "SavedTimers<T>")]
#[serde(bound(serialize = "T: Copy + Serialize", deserialize = "T: Copy + Deserialize<'de>"))]
pub struct TimerQueue<T> {
    runs: [VecDeque<Entry<T>>; RUNS],
    heap: BinaryHeap<Reverse<Entry<T>>>,
    /// Keys of the first event of each run, and of the heap; [`ABSENT`] without events.
    first: [Key; SOURCES],
    /// The runs and the heap in the order of their first events, those without events last.
    order: [Source; SOURCES],
    /// Time of the next event.
    next_at: Nanos,
    /// Times of the last event that each run had; they never ascend from one run to the next.
    last: [Nanos; RUNS],
    pushed: u64,
}

/// The time of an event, and then its number in order of insertion.
type Key = u128;

/// The key of an event that does not exist: greater than that of any event.
const ABSENT: Key = Key::MAX;
const RUNS: usize = 7;
/// The runs and the heap.
const SOURCES: usize = RUNS + 1;
const HEAP: usize = RUNS;
/// The index of a run, or [`HEAP`].
type Source = u8;
const ALL_SOURCES: [Source; SOURCES] = [0, 1, 2, 3, 4, 5, 6, HEAP as Source];

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry<T> {
    key: Key,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// The saved form of a queue. What else a queue has follows from it.
#[derive(Serialize, Deserialize)]
struct SavedTimers<T> {
    runs: [VecDeque<Entry<T>>; RUNS],
    heap: BinaryHeap<Reverse<Entry<T>>>,
    last: [Nanos; RUNS],
    pushed: u64,
}

impl<T: Copy> From<TimerQueue<T>> for SavedTimers<T> {
    fn from(queue: TimerQueue<T>) -> SavedTimers<T> {
        let TimerQueue { runs, heap, last, pushed, .. } = queue;
        SavedTimers { runs, heap, last, pushed }
    }
}

impl<T: Copy> From<SavedTimers<T>> for TimerQueue<T> {
    fn from(saved: SavedTimers<T>) -> TimerQueue<T> {
        let SavedTimers { runs, heap, last, pushed } = saved;
        let mut first = [ABSENT; SOURCES];
        for (first, run) in first.iter_mut().zip(&runs) {
            *first = run.front().map_or(ABSENT, |next| next.key);
        }
        first[HEAP] = heap.peek().map_or(ABSENT, |Reverse(next)| next.key);
        let mut order = ALL_SOURCES;
        order.sort_by_key(|source| first[usize::from(*source)]);
        let next_at = time_of(first[usize::from(order[0])]);
        TimerQueue { runs, heap, first, order, next_at, last, pushed }
    }
}

#[inline]
fn time_of(key: Key) -> Nanos {
    Nanos((key >> 64) as u64)
}

impl<T: Copy> TimerQueue<T> {
    /// Creates an empty queue with space for `capacity` events that become due in order.
    pub fn with_capacity(capacity: usize) -> TimerQueue<T> {
        let mut runs: [VecDeque<Entry<T>>; RUNS] = Default::default();
        runs[0].reserve(capacity);
        TimerQueue {
            runs,
            heap: BinaryHeap::new(),
            first: [ABSENT; SOURCES],
            order: ALL_SOURCES,
            next_at: Nanos::MAX,
            last: [Nanos::ZERO; RUNS],
            pushed: 0,
        }
    }

    /// Returns the number of pending events.
    pub fn len(&self) -> usize {
        self.runs.iter().map(VecDeque::len).sum::<usize>() + self.heap.len()
    }

    /// Whether no event is pending.
    pub fn is_empty(&self) -> bool {
        self.first_of(self.order[0]) == ABSENT
    }

    /// Returns the time of the next event; [`Nanos::MAX`] if there is none.
    #[inline]
    pub fn next_at(&self) -> Nanos {
        self.next_at
    }

    #[inline]
    fn first_of(&self, source: Source) -> Key {
        // The remainder changes nothing, and makes the check of the bounds unnecessary.
        self.first[usize::from(source) % SOURCES]
    }

    /// Adds an event due `at`.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: T) {
        let key = Key::from(at.0) << 64 | Key::from(self.pushed);
        self.pushed += 1;
        let source = self.last.iter().position(|last| *last <= at).unwrap_or(HEAP);
        let entry = Entry { key, event };
        match self.runs.get_mut(source) {
            Some(run) => {
                run.push_back(entry);
                self.last[source] = at;
            }
            None => self.heap.push(Reverse(entry)),
        }
        // A run ascends, so that only the first event of one can come before others.
        if key < self.first[source] {
            self.first[source] = key;
            self.move_forward(source as Source, key);
        }
    }

    /// Removes the earliest event if it is due at `now` or earlier, and returns it with its time.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        let at = self.next_at;
        if at > now {
            return None;
        }
        let source = self.order[0];
        let event = match self.runs.get_mut(usize::from(source)) {
            Some(run) => {
                let event = run.pop_front()?.event;
                let next = run.front().map_or(ABSENT, |next| next.key);
                self.first[usize::from(source) % SOURCES] = next;
                event
            }
            None => self.pop_heap()?,
        };
        self.move_back(source);
        Some((at, event))
    }

    #[inline(never)]
    fn pop_heap(&mut self) -> Option<T> {
        let Reverse(entry) = self.heap.pop()?;
        self.first[HEAP] = self.heap.peek().map_or(ABSENT, |Reverse(next)| next.key);
        Some(entry.event)
    }

    /// Moves a source forward in the order, whose first event is now an earlier one.
    #[inline]
    fn move_forward(&mut self, source: Source, key: Key) {
        let mut at = self.order.iter().position(|s| *s == source).unwrap_or(HEAP);
        while let Some(before) = at.checked_sub(1)
            && key < self.first_of(self.order[before])
        {
            self.order[at] = self.order[before];
            at = before;
        }
        self.order[at] = source;
        self.next_at = self.next_at.min(time_of(key));
    }

    /// Moves the first source back in the order, whose first event is now a later one.
    #[inline]
    fn move_back(&mut self, source: Source) {
        let key = self.first_of(source);
        let mut at = 0;
        while at + 1 < SOURCES && self.first_of(self.order[at + 1]) < key {
            self.order[at] = self.order[at + 1];
            at += 1;
        }
        self.order[at] = source;
        self.next_at = time_of(self.first_of(self.order[0]));
    }

    /// Removes every event.
    pub fn clear(&mut self) {
        self.runs.iter_mut().for_each(VecDeque::clear);
        self.heap.clear();
        self.first = [ABSENT; SOURCES];
        self.order = ALL_SOURCES;
        self.next_at = Nanos::MAX;
        self.last = [Nanos::ZERO; RUNS];
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
    fn a_saved_queue_returns_the_rest() {
        let mut q = TimerQueue::with_capacity(0);
        for i in 0..500u64 {
            q.push(Nanos(i * 7_919 % 97), i);
            if i % 3 == 0 {
                q.pop_due(Nanos::MAX);
            }
        }
        let mut copy = TimerQueue::from(SavedTimers::from(q.clone()));
        assert_eq!((copy.len(), copy.next_at()), (q.len(), q.next_at()));
        while let Some(event) = q.pop_due(Nanos::MAX) {
            assert_eq!(copy.pop_due(Nanos::MAX), Some(event));
        }
        assert!(copy.is_empty() && SavedTimers::from(copy).runs.iter().all(VecDeque::is_empty));
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
