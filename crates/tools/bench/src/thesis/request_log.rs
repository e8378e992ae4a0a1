//! [`RequestLog`]: latency and completion time of every request of a run in virtual time.

use std::collections::BTreeMap;

use block::{BlockDevice, Completion, QueueFull, Request};
use time::{Component, Nanos};

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoggedRequest {
    completed: Nanos,
    latency: Nanos,
}

/// The requests of a run, in the order of completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestLog {
    now: Nanos,
    /// Time of the first submission.
    begin: Option<Nanos>,
    /// Times of submission of the outstanding requests, by tag.
    outstanding: BTreeMap<u64, Nanos>,
    completed: Vec<LoggedRequest>,
}

impl RequestLog {
    /// Returns the latencies in microseconds, in the order of completion.
    pub(super) fn latencies_us(&self) -> Vec<f64> {
        self.completed.iter().map(|request| request.latency.as_micros_f64()).collect()
    }

    /// Returns the requests per second from the first submission to the last completion; 0 if no
    /// time passed.
    pub(super) fn iops(&self) -> f64 {
        let end = self.completed.last().map(|request| request.completed).unwrap_or_default();
        let seconds = end.since(self.begin.unwrap_or(end)).as_secs_f64();
        if seconds == 0.0 { 0.0 } else { self.completed.len() as f64 / seconds }
    }

    /// Returns the requests per second of each complete interval of this length, from the first
    /// submission on.
    pub(super) fn interval_iops(&self, interval: Nanos) -> Vec<f64> {
        let Some(begin) = self.begin else { return Vec::new() };
        let mut counts: Vec<u32> = Vec::new();
        for request in &self.completed {
            let index = (request.completed.since(begin).0 / interval.0) as usize;
            if counts.len() <= index {
                counts.resize(index + 1, 0);
            }
            counts[index] += 1;
        }
        counts.pop();
        counts.into_iter().map(|count| f64::from(count) / interval.as_secs_f64()).collect()
    }

    fn on_submission(&mut self, now: Nanos, tag: u64) {
        self.now = now;
        self.begin.get_or_insert(now);
        self.outstanding.insert(tag, now);
    }

    fn on_completion(&mut self, tag: u64) {
        if let Some(submitted) = self.outstanding.remove(&tag) {
            let latency = self.now.since(submitted);
            self.completed.push(LoggedRequest { completed: self.now, latency });
        }
    }
}

/// Returns the mean of `values`; 0 if there are none.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value) / values.len().max(1) as f64
}

/// Returns the standard deviation of `values` (population); 0 if there are none.
pub(super) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().fold(0.0, |sum, value| sum + (value - mean).powi(2));
    (squares / values.len().max(1) as f64).sqrt()
}

/// A device whose requests are recorded in a log.
pub(super) struct LoggedDevice<'a, D> {
    device: D,
    log: &'a mut RequestLog,
}

impl<'a, D> LoggedDevice<'a, D> {
    pub(super) fn new(device: D, log: &'a mut RequestLog) -> LoggedDevice<'a, D> {
        LoggedDevice { device, log }
    }
}

impl<D: BlockDevice> Component for LoggedDevice<'_, D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.log.now = now;
        self.device.poll(now)
    }
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl<D: BlockDevice> BlockDevice for LoggedDevice<'_, D> {
    block::delegate_block_device!(self => self.device; limits, memory, set_waker, can_wake,
        enable_sharing, can_wait, wait_for_event, visit_layers);

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.device.submit(now, request)?;
        self.log.on_submission(now, request.tag);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        self.log.on_completion(completion.tag);
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_latencies_and_intervals_have_rates() {
        let mut log = RequestLog::default();
        // Two outstanding requests; completions at 10, 20, 30 and 40 ms.
        for (submitted, completed, tag) in [(5, 10, 0), (5, 20, 1), (10, 30, 0), (20, 40, 1)] {
            log.on_submission(Nanos::from_millis(submitted), tag);
            log.now = Nanos::from_millis(completed);
            log.on_completion(tag);
        }
        assert_eq!(log.latencies_us(), [5000.0, 15000.0, 20000.0, 20000.0]);
        assert_eq!(log.iops(), 4.0 / 0.035);
        // Intervals of 12 ms from 5 ms on: one completion each, and an incomplete one.
        assert_eq!(log.interval_iops(Nanos::from_millis(12)), [1.0 / 0.012, 1.0 / 0.012]);
        assert!(log.outstanding.is_empty());
        log.on_completion(7);
        assert_eq!(log.completed.len(), 4);
    }

    #[test]
    fn a_log_without_requests_has_no_rate() {
        let log = RequestLog::default();
        assert_eq!((log.iops(), log.latencies_us().len()), (0.0, 0));
        assert!(log.interval_iops(Nanos::from_millis(1)).is_empty());
    }

    #[test]
    fn the_deviation_is_that_of_the_population() {
        assert_eq!((mean(&[2.0, 4.0]), deviation(&[2.0, 4.0])), (3.0, 1.0));
        assert_eq!((mean(&[]), deviation(&[]), deviation(&[7.0])), (0.0, 0.0, 0.0));
        assert!(deviation(&[]).is_sign_positive());
    }
}
