//! [`SlowestRequests`]: the slowest requests of a run.

use super::Explained;

/// Keeps the requests with the largest latencies; among equal latencies the earlier ones.
#[derive(Debug)]
pub struct SlowestRequests {
    capacity: usize,
    /// The requests, slowest first.
    requests: Vec<Explained>,
}

impl SlowestRequests {
    /// Returns an empty list that keeps up to `capacity` requests.
    pub fn new(capacity: usize) -> SlowestRequests {
        SlowestRequests { capacity, requests: Vec::new() }
    }

    /// Adds a request.
    pub fn add(&mut self, request: &Explained) {
        let at = self.requests.partition_point(|r| r.latency >= request.latency);
        if at < self.capacity {
            self.requests.truncate(self.capacity - 1);
            self.requests.insert(at, request.clone());
        }
    }

    /// Returns the requests, slowest first.
    pub fn into_requests(self) -> Vec<Explained> {
        self.requests
    }
}

#[cfg(test)]
mod tests {
    use time::Nanos;
    use tracepoint::RequestOp;

    use super::*;

    #[test]
    fn the_slowest_are_kept_and_the_earlier_of_equal_ones() {
        let request = |serial, latency| Explained {
            serial,
            path: 0,
            job: 0,
            slot: 0,
            op: RequestOp::Read,
            lba: 0,
            sectors: 1,
            start: Nanos::ZERO,
            issued: Nanos::ZERO,
            latency: Nanos(latency),
            measured: true,
            waits: Vec::new(),
        };
        let mut slowest = SlowestRequests::new(3);
        for (serial, latency) in [(1, 5), (2, 9), (3, 5), (4, 7), (5, 5), (6, 1)] {
            slowest.add(&request(serial, latency));
        }
        let kept: Vec<u64> = slowest.into_requests().iter().map(|r| r.serial).collect();
        assert_eq!(kept, [2, 4, 1]);
        let mut none = SlowestRequests::new(0);
        none.add(&request(1, 1));
        assert!(none.into_requests().is_empty());
    }
}
