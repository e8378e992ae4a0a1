//! [`WaitPath`]: builder of the critical path of one request, from its start to its end.
//!
//! Waits are appended one after the other and cut at the limit, so their times add up to the
//! request's latency. Time without a tracepoint that explains it becomes [`WaitKind::Unexplained`].

use time::Nanos;

use super::wait::{Wait, WaitKind};

/// A path under construction.
#[derive(Debug)]
pub(super) struct WaitPath {
    waits: Vec<Wait>,
    at: Nanos,
    limit: Nanos,
}

impl WaitPath {
    /// Returns an empty path from `start` to `limit`.
    pub(super) fn new(start: Nanos, limit: Nanos) -> WaitPath {
        WaitPath { waits: Vec::new(), at: start, limit }
    }

    /// Returns the end of the path so far.
    pub(super) fn position(&self) -> Nanos {
        self.at
    }

    /// Appends a wait until `to`; does nothing if the path already reaches `to`.
    pub(super) fn add_wait(&mut self, to: Nanos, kind: WaitKind) {
        self.add_wait_on_pu(to, kind, None);
    }

    /// Appends a wait until `to` that involves parallel unit `pu`.
    pub(super) fn add_wait_on_pu(&mut self, to: Nanos, kind: WaitKind, pu: Option<u32>) {
        let to = to.min(self.limit);
        if to <= self.at {
            return;
        }
        let time = to.since(self.at);
        match self.waits.last_mut() {
            Some(last) if last.kind == kind && last.pu == pu => last.time += time,
            _ => self.waits.push(Wait { kind, pu, start: self.at, time }),
        }
        self.at = to;
    }

    /// Returns the waits up to the limit.
    pub(super) fn finish(mut self) -> Vec<Wait> {
        self.add_wait(self.limit, WaitKind::Unexplained);
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_add_up_and_do_not_overlap() {
        let mut path = WaitPath::new(Nanos(10), Nanos(100));
        path.add_wait(Nanos(5), WaitKind::Transfer);
        path.add_wait(Nanos(30), WaitKind::HostSubmit);
        path.add_wait(Nanos(20), WaitKind::Transfer);
        path.add_wait_on_pu(Nanos(40), WaitKind::MapPage, Some(3));
        path.add_wait_on_pu(Nanos(45), WaitKind::MapPage, Some(3));
        assert_eq!(path.position(), Nanos(45));
        path.add_wait(Nanos(60), WaitKind::Transfer);
        let waits = path.finish();
        let kinds: Vec<_> = waits.iter().map(|w| (w.kind, w.start.0, w.time.0)).collect();
        let expected = [
            (WaitKind::HostSubmit, 10, 20),
            (WaitKind::MapPage, 30, 15),
            (WaitKind::Transfer, 45, 15),
            (WaitKind::Unexplained, 60, 40),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(waits.iter().map(|w| w.time.0).sum::<u64>(), 90);
    }
}
