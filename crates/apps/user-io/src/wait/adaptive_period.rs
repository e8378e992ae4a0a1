//! [`AdaptivePeriod`]: when a queue is polled next, estimated from its completion rate (the dynamic
//! polling period of [NVMeDirect16 §3.2]).
//!
//! # Model
//!
//! A device works on outstanding requests whether or not the host polls. Assume n outstanding
//! requests and one completion every t. Requests found complete at a poll are submitted again,
//! and the device needs the latency L of a single request before the first of them completes. The
//! requests that remain must keep it busy for that time.
//!
//! The next poll is therefore due when all but L/t requests, and all but one sixteenth as a reserve
//! for late wakeups, should have completed. A later poll would idle the device; an earlier one
//! saves nothing, because a sleep costs the same whatever its length. Two bounds apply:
//!
//! - At most three fifths of the requests per sleep, because real devices are less even than the
//!   model.
//! - At least one third. If L demands less, little time is left to sleep through, or L was measured
//!   while the device was kept from its work. While L is unknown, the period is one third too.
//!
//! With one or two requests outstanding, the poll is due when the first should have completed.
//! Requests found by the last poll count as outstanding, because they are about to be submitted
//! again.
//!
//! # Estimates
//!
//! L is the smallest latency seen of the first completion after the device was idle. A larger value
//! moves the estimate by one eighth, and only if polls were close together.
//!
//! t is the mean time between completions over the last hundred or so. A poll that finds everything
//! complete gives an upper bound only. It can shorten the period, never lengthen it, and by one
//! eighth if it carries no other information. Otherwise a poller that slept too long would take its
//! own sleep for the latency, and sleep as long again.
//!
//! # Guarantee
//!
//! In a closed loop of n requests on such a device, the device is never idle as long as each sleep
//! ends less than n·t/16 late. If the time until the next poll is shorter than the sleeper's usual
//! lateness, the poller does not sleep.

// guarantee: A-08

use time::Nanos;

/// Without a known latency, the poll is due when one in this many outstanding requests should be
/// complete.
const DUE_DIVISOR: u64 = 3;
/// One in this many outstanding requests is reserved for late wakeups.
const SPARE_DIVISOR: u64 = 16;
/// Number of completions after which older samples weigh half.
const HALF_LIFE_COMPLETIONS: u64 = 64;

/// Estimates how fast requests of one queue complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptivePeriod {
    /// Decayed sum of the time in which `completions` requests completed; both decay together.
    time: Nanos,
    completions: u64,
    /// Start of the work on the next completion: the last completion found, or the first submission
    /// to an idle device. `None` before either has been seen.
    busy_since: Option<Nanos>,
    /// Time of the last poll.
    last_poll: Nanos,
    /// Whether `busy_since` is a submission to an idle device.
    since_is_submit: bool,
    /// Latency of a request that is alone on the device, if known.
    idle_latency: Option<Nanos>,
    /// Requests outstanding before the last poll that found a completion.
    depth: u32,
}

impl AdaptivePeriod {
    /// Records a submission to an idle device.
    pub(crate) fn on_first_submit(&mut self, now: Nanos) {
        (self.busy_since, self.last_poll, self.since_is_submit) = (Some(now), now, true);
    }

    /// Updates the latency estimate: `found` completions were seen `time` after a submission to an
    /// idle device. `gap` is the time since the poll before.
    fn record_idle_latency(&mut self, time: Nanos, gap: Nanos, found: u64) {
        let each = self.time.0.checked_div(self.completions).unwrap_or(0);
        let seen = time.since(Nanos(each.saturating_mul(found - 1)));
        let close = gap.0 <= time.0 / 8;
        self.idle_latency = match self.idle_latency {
            Some(old) if seen < old => Some(seen),
            Some(old) if close => Some(old + Nanos((seen.0 - old.0) / 8)),
            None if close => Some(seen),
            unchanged => unchanged,
        };
    }

    /// Records a poll that found `found` completions and left `left` requests outstanding.
    pub(crate) fn on_poll(&mut self, now: Nanos, found: u64, left: u32) {
        let gap = now.since(std::mem::replace(&mut self.last_poll, now));
        if found == 0 {
            return;
        }
        self.depth = left.saturating_add(found as u32);
        let fresh = std::mem::take(&mut self.since_is_submit);
        let Some(since) = self.busy_since.replace(now) else { return };
        let time = now.since(since);
        if fresh {
            self.record_idle_latency(time, gap, found);
            if left > 0 && self.completions == 0 {
                // The first completion says nothing about the rate of those that follow.
                return;
            }
        }
        // All requests completed at some time since the last poll.
        let unknown = left == 0 && gap.0 > time.0 / 8;
        if unknown && self.completions > 0 {
            // The requests may have taken less time than estimated. Shorten the period, so that the
            // next poll tells. The requests were incomplete at the last poll, which bounds the
            // estimate from below.
            let mean = self.time.0 / self.completions;
            let (least, most) = (time.since(gap).0 / found, time.0 / found);
            let believed = (mean - mean / 8).clamp(least, most);
            self.time = Nanos(believed.saturating_mul(self.completions));
        } else {
            (self.time, self.completions) = (self.time + time, self.completions + found);
        }
        while self.completions > 2 * HALF_LIFE_COMPLETIONS {
            (self.time, self.completions) = (Nanos(self.time.0 / 2), self.completions / 2);
        }
    }

    /// Returns the time of the next poll, with `left` requests outstanding. Returns the current
    /// start of work, which is in the past, while nothing is known.
    pub(crate) fn next_poll(&self, left: u32) -> Nanos {
        let Some(since) = self.busy_since else { return Nanos::ZERO };
        let outstanding = u64::from(left.max(self.depth));
        let (Some(each), 1..) = (self.time.0.checked_div(self.completions), outstanding) else {
            return since;
        };
        // Avoids a division by zero for a device that takes no time.
        let each = each.max(1);
        let count = match self.idle_latency {
            None => outstanding / DUE_DIVISOR,
            Some(alone) => {
                let kept = alone.0.div_ceil(each).saturating_add(outstanding / SPARE_DIVISOR);
                let (least, most) = (outstanding / DUE_DIVISOR, outstanding * 3 / 5);
                outstanding.saturating_sub(kept).clamp(least, most)
            }
        };
        since + Nanos(self.time.0.saturating_mul(count.max(1)) / self.completions)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rng::Rng;

    use super::*;

    /// Simulates a device that starts one request every `each` and completes it `latency` later,
    /// under a closed loop of `depth` requests. The poller follows the period, wakes up to half of
    /// `late` early or late, and cannot sleep for less than `late`. Returns the completions until
    /// `end`, and the polls.
    fn closed_loop((each, latency): (u64, u64), depth: u32, late: u64, end: u64) -> (u64, u64) {
        let (mut pace, mut rng, mut now) = (AdaptivePeriod::default(), Rng::new(late), 0);
        let (mut free_at, mut ends) = (0u64, VecDeque::new());
        let (mut done, mut looks) = (0, 0);
        while now < end {
            let found = ends.iter().take_while(|at| **at <= now).count();
            ends.drain(..found);
            (done, looks) = (done + found as u64, looks + 1);
            let left = ends.len() as u32;
            pace.on_poll(Nanos(now), found as u64, left);
            if left == 0 {
                pace.on_first_submit(Nanos(now));
            }
            // The application submits again after the poll; if no request was left, the submission
            // starts the device.
            let due = pace.next_poll(if left == 0 { depth } else { left }).0;
            while ends.len() < depth as usize {
                free_at = free_at.max(now) + each;
                ends.push_back(free_at + latency);
            }
            now = match due > now + late {
                true => due + rng.below(late + 1) - late / 2,
                false => now + 500,
            };
        }
        (done, looks)
    }

    #[test]
    fn the_device_is_kept_busy_wherever_there_is_time_to_sleep() {
        // 2.2 GB/s and 80 us, with requests of 8 and 16 KB.
        for (each, depth) in [(7_447, 32), (3_724, 128), (7_447, 128), (1_862, 128)] {
            for late in [5_000, 20_000, 55_000] {
                let slack = u64::from(depth) * each * 2 / 3;
                if 80_000 + each + late + late / 2 > slack {
                    continue;
                }
                let end = 100_000_000;
                let (done, looks) = closed_loop((each, 80_000), depth, late, end);
                let kept = done as f64 * each as f64 / end as f64;
                println!("{each} x {depth}, {late} late: kept {kept:.3}, {looks} looks");
                assert!(kept > 0.95, "{each} x {depth}, {late} late: {kept}");
                // About one poll per half of the queue, after the polls that measure the latency.
                let most = done * 9 / 4 / u64::from(depth) + (80_000 + each) / 500;
                assert!(looks < most, "{each} x {depth}: {looks} looks, not {most}");
            }
        }
    }

    #[test]
    fn who_has_slept_too_long_does_not_believe_it() {
        let mut pace = AdaptivePeriod::default();
        pace.on_first_submit(Nanos(0));
        // One request at a time, each of 10 us, found after sleeps of 100 us.
        pace.on_poll(Nanos(100_000), 1, 0);
        assert_eq!(pace.next_poll(1), Nanos(200_000), "nothing better is known");
        let mut waited = 0;
        for round in 1..=200u64 {
            let begin = Nanos(1_000_000 * round);
            pace.on_first_submit(begin);
            let due = pace.next_poll(1).since(begin).0;
            // The poller sleeps until a microsecond after the due time, and busy-polls from then
            // on.
            let mut look = due + 1_000;
            while look < 10_000 {
                pace.on_poll(begin + Nanos(look), 0, 1);
                look += 100;
            }
            pace.on_poll(begin + Nanos(look), 1, 0);
            waited = if round > 100 { waited.max(look) } else { 0 };
        }
        assert!(waited < 12_000, "found after {waited} ns");
        let due = pace.next_poll(1).since(Nanos(200_000_000)).0;
        assert!((17_000..22_000).contains(&due), "a sleep of nearly all of it: {due}");
    }

    #[test]
    fn who_is_kept_from_looking_does_not_forget_what_it_has_seen() {
        let mut pace = AdaptivePeriod::default();
        for round in 1..=200u64 {
            let begin = Nanos(100_000_000 * round);
            pace.on_first_submit(begin);
            // A latency of 3 ms; the poll before the completion and the poll that finds it are 1 ms
            // apart.
            pace.on_poll(begin + Nanos(2_500_000), 0, 1);
            pace.on_poll(begin + Nanos(3_500_000), 1, 0);
        }
        let end = Nanos(20_000_000_000 + 3_500_000);
        let due = pace.next_poll(1).since(end).0;
        assert!((2_500_000..=3_500_000).contains(&due), "{due}");
    }

    #[test]
    fn a_device_that_becomes_slower_is_believed() {
        let mut pace = AdaptivePeriod::default();
        let mut now = 0;
        for each in [1_000, 20_000, 3_000] {
            for _ in 0..400 {
                now += each;
                pace.on_poll(Nanos(now), 1, 30);
            }
            let due = pace.next_poll(30).since(Nanos(now));
            // A third: the latency is unknown.
            assert!(due.0.abs_diff(10 * each) < each, "{due:?} of {each}");
        }
    }

    #[test]
    fn requests_that_remain_after_a_poll_last_as_long_as_a_single_request() {
        let mut pace = AdaptivePeriod::default();
        pace.on_first_submit(Nanos(0));
        // Busy-polling: the first completion after 80 us, then one every microsecond.
        for us in 1..80 {
            pace.on_poll(Nanos(us * 1_000), 0, 128);
        }
        for us in 80..400 {
            pace.on_poll(Nanos(us * 1_000), 1, 127);
        }
        let since = Nanos(399_000);
        let wait = |pace: &AdaptivePeriod, left| pace.next_poll(left).since(since).0 / 1_000;
        // 80 and one in 16 would remain, so the lower bound of one third applies.
        assert!((41..=43).contains(&wait(&pace, 128)), "{}", wait(&pace, 128));
        assert!((150..=155).contains(&wait(&pace, 256)), "{}", wait(&pace, 256));
        assert!((598..=606).contains(&wait(&pace, 1_000)), "not more than three fifths");
        // Requests found at the last poll count as outstanding.
        assert_eq!(wait(&pace, 1), wait(&pace, 128));
        // A larger latency changes the estimate slowly, a smaller one at once.
        let alone = pace.idle_latency.unwrap();
        pace.on_first_submit(Nanos(1_000_000));
        (1..=16).for_each(|n| pace.on_poll(Nanos(1_000_000 + n * 10_000), u64::from(n == 16), 3));
        assert_eq!(pace.idle_latency.unwrap(), alone + Nanos((160_000 - alone.0) / 8));
        pace.on_first_submit(Nanos(2_000_000));
        pace.on_poll(Nanos(2_040_000), 1, 3);
        assert_eq!(pace.idle_latency, Some(Nanos(40_000)), "it took no longer, whoever slept");
        pace.on_first_submit(Nanos(3_000_000));
        pace.on_poll(Nanos(3_500_000), 1, 3);
        assert_eq!(pace.idle_latency, Some(Nanos(40_000)), "who has slept has seen nothing");
    }

    #[test]
    fn a_device_that_takes_no_time_is_looked_at_at_once() {
        let mut pace = AdaptivePeriod::default();
        pace.on_first_submit(Nanos(0));
        pace.on_poll(Nanos(0), 32, 0);
        assert!(pace.next_poll(32) <= Nanos(32));
        assert!(pace.next_poll(0) <= Nanos(32));
        assert!(pace.next_poll(u32::MAX) < Nanos::MAX);
    }

    #[test]
    fn a_poller_that_starts_with_requests_in_flight_uses_the_second_completion_on() {
        let mut pace = AdaptivePeriod::default();
        assert_eq!(pace.next_poll(100), Nanos::ZERO, "nothing is known");
        let hour = 3_600_000_000_000;
        pace.on_poll(Nanos(hour), 1, 30);
        assert_eq!(pace.next_poll(30), Nanos(hour), "nor how long the first took");
        pace.on_poll(Nanos(hour + 500), 1, 30);
        assert_eq!(pace.next_poll(30), Nanos(hour + 500 + 10 * 500));
    }
}
