//! [`BusyTimeline`]: the busy intervals of a resource. It reaches back to the start of the oldest open
//! request.

use std::collections::VecDeque;

use time::Nanos;

use super::wait::WaitKind;

/// A time interval in which a resource was busy.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyInterval {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    /// Serial number of the operation part that used it.
    pub(super) pu_op: u64,
    /// Reason of waits for the resource in this interval.
    pub(super) kind: WaitKind,
}

/// Busy intervals of one resource, ordered by their start.
#[derive(Debug, Default)]
pub(super) struct BusyTimeline {
    busy: VecDeque<BusyInterval>,
}

impl BusyTimeline {
    /// Adds an interval. Most arrive in order; others are inserted.
    pub(super) fn push(&mut self, busy: BusyInterval) {
        if busy.end <= busy.start {
            return;
        }
        let at = self.busy.iter().rposition(|b| b.start <= busy.start).map_or(0, |i| i + 1);
        self.busy.insert(at, busy);
    }

    /// Removes the intervals that ended before `horizon`.
    pub(super) fn prune(&mut self, horizon: Nanos) {
        while self.busy.front().is_some_and(|b| b.end < horizon) {
            self.busy.pop_front();
        }
    }

    /// Divides the time from `from` to `to` into intervals, in order; `None` where the resource was
    /// idle.
    pub(super) fn for_each_interval(
        &self,
        from: Nanos,
        to: Nanos,
        mut each: impl FnMut(Option<&BusyInterval>, Nanos, Nanos),
    ) {
        let mut at = from;
        // Intervals overlap little, so few reach past the start of a later one.
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
        let mut timeline = BusyTimeline::default();
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
