//! [`Pace`]: how fast requests of a queue end, and so how long nobody need look (NVMeDirect section 3.2,
//! the dynamic polling period).
//!
//! A device is kept busy by what is outstanding, whether somebody looks or not. Of n requests that end one
//! every t, those that have ended at a look are submitted again, and it takes the latency L of a request
//! alone until the device has something of them to end: what is left must last as long. A look is due when
//! all but those, and a sixteenth for sleeps that end late, should have ended: as late as nothing is lost
//! by it, because a sleep costs the same however long it is. Not more than three fifths at once, for devices
//! that are not as even as that, and a third at least: where L is longer there is little to be slept through, or
//! the device was kept from its work when L was seen. While L is not known it is a third, too. One or two are
//! due when the first should have ended.
//!
//! Those that were found by the last look count as outstanding: they are about to be submitted again, and if
//! they are not, the device has nothing to lose.
//!
//! # What is learnt
//!
//! L, from the first end after the device had nothing to do: the least that was seen. More than that
//! is believed by an eighth, and only from looks that were close together.
//!
//! The mean time between two ends, over the last hundred or so. The time at which somebody *finds* that a
//! request has ended is not when it ended: a look that comes after everything has ended says only that it
//! took no longer. Such looks make the pace faster, never slower, and by an eighth if they say nothing else:
//! otherwise whoever sleeps too long would believe that requests take as long as the sleep, and sleep as
//! long again.
//!
//! # What is kept
//!
//! A closed loop of n requests at such a device: it is idle at no time as long as sleeps end when they should,
//! and less than a sixteenth of n·t later than that. Where the time until a look is less than a sleeper's
//! usual lateness there is no sleep at all.

use clock::Nanos;

/// A look is due when one of so many of the outstanding requests should have ended, or later.
const DUE_DIVISOR: u64 = 3;
/// One of so many requests is left for sleeps that end late.
const SPARE_DIVISOR: u64 = 16;
/// Ends after which those before count half.
const HALF_LIFE_COMPLETIONS: u64 = 64;

/// How fast requests of one queue end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptivePeriod {
    /// Time in which requests ended, and how many: both forget together.
    time: Nanos,
    completions: u64,
    /// Since when the device has worked on what ends next: the last end found, or the first submission
    /// to an idle device; `None` while nothing has been seen of either.
    busy_since: Option<Nanos>,
    /// The last look.
    last_poll: Nanos,
    /// What `since` is: a submission to an idle device.
    since_is_submit: bool,
    /// How long a request takes alone, if that is known.
    idle_latency: Option<Nanos>,
    /// Requests outstanding before the last look that found any.
    depth: u32,
}

impl AdaptivePeriod {
    /// A request goes to a device that has had nothing to do.
    pub(crate) fn on_first_submit(&mut self, now: Nanos) {
        (self.busy_since, self.last_poll, self.since_is_submit) = (Some(now), now, true);
    }

    /// The first of `found` ends after an idle time were seen `time` after it, and looked for all the time
    /// but for a `gap`.
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

    /// Somebody has looked, found that many ends, and `left` requests are outstanding.
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
                // It says nothing of how soon others follow.
                return;
            }
        }
        // Everything has ended, at some time since the last look.
        let unknown = left == 0 && gap.0 > time.0 / 8;
        if unknown && self.completions > 0 {
            // Perhaps it took less than is believed: the next look comes earlier, and sees. But what had not
            // ended at the last look took longer than until then.
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

    /// When somebody should look, with `left` requests outstanding; now, as long as nothing is known.
    pub(crate) fn next_poll(&self, left: u32) -> Nanos {
        let Some(since) = self.busy_since else { return Nanos::ZERO };
        let outstanding = u64::from(left.max(self.depth));
        let (Some(each), 1..) = (self.time.0.checked_div(self.completions), outstanding) else {
            return since;
        };
        // So that nothing is divided by a device that takes no time.
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

    /// A device that begins one request every `each`, and ends it `latency` later; a closed loop of
    /// `depth`, looked at when the pace says so by somebody who wakes up to half of `late` later or
    /// earlier, and can sleep no less than that. Requests ended by `end`, and looks.
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
            // The application submits again after the look; when nothing was left it is what wakes.
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
        // 2.2 GB/s and 80 us: 8 and 16 KB.
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
                // One look for half of the queue, or nearly that, after those that have seen it begin.
                let most = done * 9 / 4 / u64::from(depth) + (80_000 + each) / 500;
                assert!(looks < most, "{each} x {depth}: {looks} looks, not {most}");
            }
        }
    }

    #[test]
    fn who_has_slept_too_long_does_not_believe_it() {
        let mut pace = AdaptivePeriod::default();
        pace.on_first_submit(Nanos(0));
        // One at a time, each of 10 us, found after sleeps of 100.
        pace.on_poll(Nanos(100_000), 1, 0);
        assert_eq!(pace.next_poll(1), Nanos(200_000), "nothing better is known");
        let mut waited = 0;
        for round in 1..=200u64 {
            let begin = Nanos(1_000_000 * round);
            pace.on_first_submit(begin);
            let due = pace.next_poll(1).since(begin).0;
            // It sleeps until a microsecond after it is due, and looks all the time from then on.
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
            // Of 3 ms; the look before the end and the one that finds it are a millisecond apart.
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
            // A third: nobody has seen it begin.
            assert!(due.0.abs_diff(10 * each) < each, "{due:?} of {each}");
        }
    }

    #[test]
    fn requests_that_remain_after_a_poll_last_as_long_as_a_single_request() {
        let mut pace = AdaptivePeriod::default();
        pace.on_first_submit(Nanos(0));
        // Looked for all the time: 80 us, and one every microsecond then.
        for us in 1..80 {
            pace.on_poll(Nanos(us * 1_000), 0, 128);
        }
        for us in 80..400 {
            pace.on_poll(Nanos(us * 1_000), 1, 127);
        }
        let since = Nanos(399_000);
        let wait = |pace: &AdaptivePeriod, left| pace.next_poll(left).since(since).0 / 1_000;
        // 80 would stay, and one in 16; a third goes.
        assert!((41..=43).contains(&wait(&pace, 128)), "{}", wait(&pace, 128));
        assert!((150..=155).contains(&wait(&pace, 256)), "{}", wait(&pace, 256));
        assert!((598..=606).contains(&wait(&pace, 1_000)), "not more than three fifths");
        // What was found a moment ago counts as submitted again.
        assert_eq!(wait(&pace, 1), wait(&pace, 128));
        // A device that is slow to begin is believed slowly, one that is fast at once.
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
    fn who_comes_while_requests_are_under_way_learns_from_the_second_end_on() {
        let mut pace = AdaptivePeriod::default();
        assert_eq!(pace.next_poll(100), Nanos::ZERO, "nothing is known");
        let hour = 3_600_000_000_000;
        pace.on_poll(Nanos(hour), 1, 30);
        assert_eq!(pace.next_poll(30), Nanos(hour), "nor how long the first took");
        pace.on_poll(Nanos(hour + 500), 1, 30);
        assert_eq!(pace.next_poll(30), Nanos(hour + 500 + 10 * 500));
    }
}
