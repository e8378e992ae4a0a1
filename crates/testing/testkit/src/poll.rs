//! [`PollBudget`]: a wait of a test in real time, which fails instead of hanging.

use std::time::{Duration, Instant};

/// How long a test waits, and its pause between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBudget {
    limit: Duration,
    /// Zero: the thread yields the processor.
    pause: Duration,
}

impl PollBudget {
    /// Polls up to `limit`, and yields the processor between polls.
    pub const fn within(limit: Duration) -> PollBudget {
        PollBudget { limit, pause: Duration::ZERO }
    }

    /// Polls every `pause`, up to `limit`.
    pub const fn every(pause: Duration, limit: Duration) -> PollBudget {
        PollBudget { limit, pause }
    }

    /// Polls until `is_done`.
    ///
    /// # Panics
    /// After the limit, with the text of `failure`.
    pub fn poll_until(self, mut is_done: impl FnMut() -> bool, failure: impl FnOnce() -> String) {
        let begin = Instant::now();
        while !is_done() {
            if begin.elapsed() >= self.limit {
                panic!("{} after {:?}", failure(), self.limit);
            }
            match self.pause {
                Duration::ZERO => std::thread::yield_now(),
                pause => std::thread::sleep(pause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_condition_or_fails() {
        let mut polls = 0;
        let mut count = || {
            polls += 1;
            polls == 3
        };
        PollBudget::within(Duration::MAX).poll_until(&mut count, || unreachable!());
        assert_eq!(polls, 3);
        let never = PollBudget::every(Duration::from_millis(1), Duration::from_millis(5));
        let failed = std::panic::catch_unwind(|| never.poll_until(|| false, || "no event".into()));
        let text = *failed.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(text, "no event after 5ms");
    }
}
