//! [`ThinkTime`]: pauses of a job after a number of requests.

use time::Nanos;

/// The pauses of a job.
#[derive(Debug)]
pub(super) struct ThinkTime {
    /// Length of a pause; zero if there are none.
    pause: Nanos,
    /// Number of requests between two pauses.
    blocks: u64,
    /// Requests issued since the last pause.
    issued: u64,
    until: Nanos,
}

impl ThinkTime {
    /// Creates pauses after every `blocks` requests.
    pub(super) fn new(pause: Nanos, blocks: u64) -> ThinkTime {
        ThinkTime { pause, blocks, issued: 0, until: Nanos::ZERO }
    }

    /// Returns the time from which the next request may be issued, at the earliest `at`; `None` if
    /// outstanding requests must complete before the pause starts.
    #[inline]
    pub(super) fn issue_at(&self, at: Nanos) -> Option<Nanos> {
        if self.pause == Nanos::ZERO {
            return Some(at);
        }
        (self.issued < self.blocks).then(|| self.until.max(at))
    }

    /// Counts a request.
    #[inline]
    pub(super) fn on_issue(&mut self) {
        self.issued += 1;
    }

    /// Starts a pause with the completion of the last outstanding request.
    #[inline]
    pub(super) fn on_completion(&mut self, at: Nanos, outstanding: u32) {
        if self.pause > Nanos::ZERO && outstanding == 0 && self.issued >= self.blocks {
            self.issued = 0;
            self.until = at + self.pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_starts_when_its_requests_have_completed() {
        let mut think = ThinkTime::new(Nanos(100), 2);
        for _ in 0..2 {
            assert_eq!(think.issue_at(Nanos(5)), Some(Nanos(5)));
            think.on_issue();
        }
        assert_eq!(think.issue_at(Nanos(6)), None);
        think.on_completion(Nanos(7), 1);
        assert_eq!(think.issue_at(Nanos(7)), None);
        think.on_completion(Nanos(8), 0);
        assert_eq!(think.issue_at(Nanos(9)), Some(Nanos(108)));
        assert_eq!(ThinkTime::new(Nanos::ZERO, 0).issue_at(Nanos(9)), Some(Nanos(9)));
    }
}
