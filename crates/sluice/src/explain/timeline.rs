//! [`Timeline`]: when a resource was busy, and with what. Kept as far back as open requests reach.

use std::collections::VecDeque;

use clock::Nanos;

use super::wait::WaitKind;

/// A stretch of time in which a resource was busy.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyInterval {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    /// The serial number of the part that used it.
    pub(super) pu_op: u64,
    /// The reason of those who wait for it meanwhile.
    pub(super) kind: WaitKind,
}

/// Stretches of one resource, by their beginning.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    busy: VecDeque<BusyInterval>,
}

impl Timeline {
    /// Adds a stretch. Most come in the order of time; one that does not is put in its place.
    pub(super) fn push(&mut self, busy: BusyInterval) {
        if busy.end <= busy.start {
            return;
        }
        let at = self.busy.iter().rposition(|b| b.start <= busy.start).map_or(0, |i| i + 1);
        self.busy.insert(at, busy);
    }

    /// Forgets what ended before `horizon`.
    pub(super) fn prune(&mut self, horizon: Nanos) {
        while self.busy.front().is_some_and(|b| b.end < horizon) {
            self.busy.pop_front();
        }
    }

    /// Cuts the time from `from` to `to` into stretches, in order: `None` where the resource was idle.
    pub(super) fn for_each_interval(
        &self,
        from: Nanos,
        to: Nanos,
        mut each: impl FnMut(Option<&BusyInterval>, Nanos, Nanos),
    ) {
        let mut at = from;
        // Stretches overlap little, so that few reach past the beginning of a later one.
        let mut first = self.busy.partition_point(|b| b.start <= from);
        while first > 0 && self.busy[first - 1].end > from {
            first -= 1;
        }
        for busy in self.busy.range(first..) {
            if at >= to || busy.start >= to {
                break;
            }
            if busy.end <= at {
                continue;
            }
            if busy.start > at {
                each(None, at, busy.start);
                at = busy.start;
            }
            let end = busy.end.min(to);
            each(Some(busy), at, end);
            at = end;
        }
        if at < to {
            each(None, at, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_cut_without_gaps_whatever_the_order_of_the_stretches() {
        let mut timeline = Timeline::default();
        let kind = WaitKind::Transfer;
        for (start, end, part) in [(10, 20, 1), (30, 40, 3), (18, 25, 2), (50, 50, 4)] {
            timeline.push(BusyInterval { start: Nanos(start), end: Nanos(end), pu_op: part, kind });
        }
        let mut cuts = Vec::new();
        timeline.for_each_interval(Nanos(5), Nanos(35), |busy, from, to| {
            cuts.push((busy.map(|b| b.pu_op), from.0, to.0));
        });
        let expected = [
            (None, 5, 10),
            (Some(1), 10, 20),
            (Some(2), 20, 25),
            (None, 25, 30),
            (Some(3), 30, 35),
        ];
        assert_eq!(cuts, expected);
        timeline.prune(Nanos(26));
        assert_eq!(timeline.busy.len(), 1);
    }
}
