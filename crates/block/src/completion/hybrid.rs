//! [`Hybrid`]: when to poll and when to rely on interrupts.
//!
//! HIOPS section 3.3 leaves the switch to future work and names what it could go by: the occupied
//! queue depth combined with the current rate of completions. Which of the two is better at a load
//! depends on what an interrupt, a timer and a context switch cost on the machine at hand, so the rule
//! here asks the machine. Load is measured in windows:
//!
//! * **Depth decides whether there is a question.** Below [`Hybrid::quiet`], in depth or in rate, a
//!   poll finds one completion at a time, late: interrupts.
//! * **Rate decides the answer.** Otherwise the mode stays that gave more completions per second. The
//!   other one is tried: half a window lets it settle, and then it is taken if it gives more by
//!   [`MARGIN_64THS`] over one window, over two, and over [`CONFIRM_WINDOWS`]. A trial ends after half a window if it
//!   gives less than two thirds.
//! * **Trials become rare.** Each that changes nothing doubles the time to the next, up to
//!   [`SELDOM`] windows; a rate that has moved by a third since the last one, or a change of mode,
//!   brings the next within [`TRIAL_WINDOWS_CHANGED`] windows. A mode that is worse so has 1.5 windows of [`TRIAL_WINDOWS_CHANGED`] + 1.5
//!   at worst, and of [`SELDOM`] + 1.5 under a steady load; one that is much worse, 1.

use clock::Nanos;

use super::StrategyError;

/// The other mode is taken if it gave this share more, in 64ths.
const MARGIN_64THS: u64 = 2;
/// Windows that a mode must win to be taken.
const CONFIRM_WINDOWS: u32 = 3;
/// Windows to the first trial.
const TRIAL_WINDOWS_FIRST: u32 = 1;
/// Windows to the next trial when the load has changed.
const TRIAL_WINDOWS_CHANGED: u32 = 24;
/// Windows to the next trial at most.
const TRIAL_WINDOWS_MAX: u32 = 128;

/// How loaded a controller is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests under way: threads that wait. What the hardware has of them says little, as a host
    /// that cannot keep up leaves it idle.
    pub depth: u32,
    /// Completions per second.
    pub rate: u64,
}

/// When to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// While polling: from the end of one look to the next.
    pub interval: Nanos,
    /// Over how long the load is measured.
    pub window: Nanos,
    /// Below this, in either respect, there is no polling.
    pub quiet: Load,
}

impl Hybrid {
    /// Polls every `interval`, if it is better, from a depth of two and a completion in sixteen
    /// intervals on. A window is ten milliseconds, or sixteen intervals if these are longer: shorter than
    /// a scheduler's rounds over hundreds of threads, rates would say nothing.
    pub const fn with_interval(interval: Nanos) -> Hybrid {
        let sixteen = interval.0.saturating_mul(16);
        let rate = match 1_000_000_000_u64.checked_div(sixteen) {
            Some(rate) => rate,
            None => 0,
        };
        let window = Nanos(if sixteen > 10_000_000 { sixteen } else { 10_000_000 });
        Hybrid { interval, window, quiet: Load { depth: 2, rate } }
    }

    pub(super) fn validate(&self) -> Result<(), StrategyError> {
        let Hybrid { interval, window, .. } = *self;
        // An interval that cannot be is told as such, by who asks.
        if window < interval {
            return Err(StrategyError::Window { window, interval });
        }
        Ok(())
    }
}

/// Which of the two a hybrid is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Relying on interrupts.
    #[default]
    Interrupt,
    /// Polling.
    Poll,
}

/// What a hybrid has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HybridStats {
    /// The mode now.
    pub mode: Mode,
    /// Times that it changed.
    pub switches: u64,
    /// Time relying on interrupts.
    pub interrupt_time: Nanos,
    /// Time polling.
    pub poll_time: Nanos,
    /// The load of the last window.
    pub load: Load,
}

/// Decides the mode of a hybrid.
#[derive(Debug)]
pub(super) struct Governor {
    hybrid: Hybrid,
    stats: HybridStats,
    /// Up to when time is accounted.
    accounted_until: Nanos,
    window_start: Nanos,
    completed_before: u64,
    /// What has just begun is not counted: the mode changed before it.
    settling: bool,
    /// The mode is on trial: rates of its windows so far, summed, and how many.
    trial: Option<(u64, u32)>,
    /// By mode, interrupts first: completions per second when last seen; 0 if it was not.
    rates: [u64; 2],
    /// The rate of the mode in use at the last trial.
    trial_rate: u64,
    /// Windows from trial to trial, and to the next.
    trial_period_windows: u32,
    windows_to_trial: u32,
}

impl Mode {
    fn other(self) -> Mode {
        match self {
            Mode::Interrupt => Mode::Poll,
            Mode::Poll => Mode::Interrupt,
        }
    }
}

impl Governor {
    /// Relies on interrupts at first. `ended` is the count of completions so far.
    pub(super) fn new(hybrid: Hybrid, now: Nanos, ended: u64) -> Governor {
        Governor {
            hybrid,
            stats: HybridStats::default(),
            accounted_until: now,
            window_start: now,
            completed_before: ended,
            settling: true,
            trial: None,
            rates: [0; 2],
            trial_rate: 0,
            trial_period_windows: TRIAL_WINDOWS_FIRST,
            windows_to_trial: TRIAL_WINDOWS_FIRST,
        }
    }

    /// What it has done.
    pub(super) fn stats(&self, now: Nanos) -> HybridStats {
        let mut stats = self.stats;
        let open = now.since(self.accounted_until);
        match stats.mode {
            Mode::Interrupt => stats.interrupt_time += open,
            Mode::Poll => stats.poll_time += open,
        }
        stats
    }

    /// Looks at the load: `ended` commands so far, `depth` requests under way now, which is asked for
    /// once per window. Returns the mode if it has changed.
    pub(super) fn update(
        &mut self,
        now: Nanos,
        ended: u64,
        depth: impl FnOnce() -> u32,
    ) -> Option<Mode> {
        let length = now.since(self.window_start);
        let whole = self.hybrid.window;
        if length.0 < whole.0 / 2 {
            return None;
        }
        let count = ended.wrapping_sub(self.completed_before);
        let rate = u128::from(count) * 1_000_000_000 / u128::from(length.0.max(1));
        let rate = rate as u64;
        if length < whole && !self.settling && !self.is_trial_lost(rate) {
            return None;
        }
        let load = Load { depth: depth(), rate };
        (self.window_start, self.completed_before) = (now, ended);
        self.stats = HybridStats { load, ..self.stats(now) };
        self.accounted_until = now;
        let next = self.decide(load);
        if next == self.stats.mode {
            return None;
        }
        self.stats.mode = next;
        self.stats.switches += 1;
        self.settling = true;
        Some(next)
    }

    /// The mode after a window with this load.
    fn decide(&mut self, load: Load) -> Mode {
        let mode = self.stats.mode;
        let quiet = self.hybrid.quiet;
        if load.depth < quiet.depth || load.rate < quiet.rate {
            self.trial = None;
            self.rates = [0; 2];
            (self.trial_period_windows, self.windows_to_trial) =
                (TRIAL_WINDOWS_FIRST, TRIAL_WINDOWS_FIRST);
            return Mode::Interrupt;
        }
        if std::mem::take(&mut self.settling) {
            return mode;
        }
        if let Some((sum, windows)) = self.trial.take() {
            return self.conclude_trial(mode, sum + load.rate, windows + 1);
        }
        let rate = &mut self.rates[mode as usize];
        *rate = if *rate == 0 { load.rate } else { (*rate * 3 + load.rate) / 4 };
        let (rate, then) = (*rate, self.trial_rate);
        if then > 0 && rate.abs_diff(then) > then / 3 {
            self.trial_rate = rate;
            (self.trial_period_windows, self.windows_to_trial) =
                (TRIAL_WINDOWS_CHANGED, self.windows_to_trial.min(TRIAL_WINDOWS_CHANGED));
        }
        self.windows_to_trial = self.windows_to_trial.saturating_sub(1);
        if self.windows_to_trial > 0 {
            return mode;
        }
        self.trial = Some((0, 0));
        mode.other()
    }

    /// Whether a trial need not go on.
    #[inline]
    fn is_trial_lost(&self, rate: u64) -> bool {
        self.trial.is_some() && rate < self.rates[self.stats.mode.other() as usize] / 3 * 2
    }

    /// The mode after `windows` windows of a trial of `mode`, whose rates sum up to `sum`.
    fn conclude_trial(&mut self, mode: Mode, sum: u64, windows: u32) -> Mode {
        let (rate, before) = (sum / u64::from(windows), self.rates[mode.other() as usize]);
        if rate <= before + before * MARGIN_64THS / 64 {
            self.rates[mode as usize] = rate;
            self.trial_rate = before;
            self.trial_period_windows = self
                .trial_period_windows
                .max(TRIAL_WINDOWS_CHANGED / 2)
                .saturating_mul(2)
                .min(TRIAL_WINDOWS_MAX);
            self.windows_to_trial = self.trial_period_windows;
            return mode.other();
        }
        if windows < CONFIRM_WINDOWS {
            self.trial = Some((sum, windows));
            return mode;
        }
        self.rates[mode as usize] = rate;
        self.trial_rate = rate;
        (self.trial_period_windows, self.windows_to_trial) =
            (TRIAL_WINDOWS_CHANGED, TRIAL_WINDOWS_CHANGED);
        mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: Hybrid = Hybrid::with_interval(Nanos::from_micros(10));

    /// A machine: what each mode gives at a depth.
    struct Machine {
        governor: Governor,
        now: Nanos,
        completed: u64,
        /// Of a completion, in billionths.
        fraction: u64,
    }

    impl Machine {
        fn new() -> Machine {
            let governor = Governor::new(HYBRID, Nanos::ZERO, 0);
            Machine { governor, now: Nanos::ZERO, completed: 0, fraction: 0 }
        }

        /// Runs for a time; returns the share of it that was spent polling.
        fn run(&mut self, time: Nanos, depth: u32, rates: [u64; 2]) -> f64 {
            let before = self.governor.stats(self.now);
            let start = self.now;
            while self.now.since(start) < time {
                let rate = rates[self.governor.stats.mode as usize];
                // Not a multiple of the window.
                let step = Nanos(37_001);
                self.now += step;
                self.fraction += rate * step.0;
                self.completed += self.fraction / 1_000_000_000;
                self.fraction %= 1_000_000_000;
                let changed = self.governor.update(self.now, self.completed, || depth);
                assert!(changed.is_none_or(|mode| mode == self.governor.stats.mode));
            }
            let after = self.governor.stats(self.now);
            let (poll, all) = (after.poll_time - before.poll_time, self.now - start);
            assert_eq!(
                after.poll_time + after.interrupt_time,
                before.poll_time + before.interrupt_time + all
            );
            poll.as_secs_f64() / all.as_secs_f64()
        }
    }

    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn takes_what_gives_more() {
        let mut machine = Machine::new();
        let poll = machine.run(SECOND * 4, 32, [3_000_000, 6_000_000]);
        assert!(poll > 0.95, "{poll}");
        let mut machine = Machine::new();
        let poll = machine.run(SECOND * 4, 32, [6_000_000, 3_000_000]);
        assert!(poll < 0.05, "{poll}");
        let mut machine = Machine::new();
        let poll = machine.run(SECOND * 4, 32, [6_000_000, 6_060_000]);
        assert!(poll < 0.05, "{poll}: one per cent more is not worth it");
    }

    #[test]
    fn follows_a_load_that_changes() {
        let mut machine = Machine::new();
        assert!(machine.run(SECOND * 20, 4, [2_000_000, 1_500_000]) < 0.02);
        let poll = machine.run(SECOND, 200, [4_000_000, 6_000_000]);
        assert!(poll > 0.6, "{poll}: the change is seen, and the other mode tried after a while");
        assert!(machine.run(SECOND * 20, 200, [4_000_000, 6_000_000]) > 0.98);
        let poll = machine.run(SECOND, 4, [2_000_000, 1_500_000]);
        assert!(poll < 0.4, "{poll}");
    }

    #[test]
    fn a_better_mode_is_found_although_the_rate_did_not_change() {
        let mut machine = Machine::new();
        assert!(machine.run(SECOND * 30, 8, [3_000_000, 2_000_000]) < 0.02);
        // Within the longest patience.
        machine.run(HYBRID.window * u64::from(TRIAL_WINDOWS_MAX + 4), 8, [3_000_000, 5_000_000]);
        let poll = machine.run(SECOND * 4, 8, [3_000_000, 5_000_000]);
        assert!(poll > 0.9, "{poll}");
    }

    #[test]
    fn a_quiet_controller_is_not_polled() {
        let mut machine = Machine::new();
        assert_eq!(machine.run(SECOND, 1, [1_000_000, 9_000_000]), 0.0, "not deep");
        assert_eq!(machine.run(SECOND, 9, [4_000, 5_000]), 0.0, "not fast");
        assert!(machine.run(SECOND * 2, 9, [1_000_000, 9_000_000]) > 0.9);
        let poll = machine.run(SECOND * 2, 1, [1_000_000, 9_000_000]);
        assert!(poll < 0.01, "{poll}: it ends within a window");
        assert_eq!(machine.governor.stats(machine.now).mode, Mode::Interrupt);
    }

    #[test]
    fn a_rate_that_jumps_about_costs_a_bounded_share() {
        let mut machine = Machine::new();
        let mut poll = 0.0;
        for i in 0..400 {
            let rate = if i % 2 == 0 { 3_000_000 } else { 6_000_000 };
            poll += machine.run(Nanos::from_millis(50), 32, [rate, rate / 2]) / 400.0;
        }
        assert!(poll < 0.1, "{poll}");
    }

    /// What one host CPU gave with interrupts and with polling at 1, 2, 4, … 256 threads, in a quiet
    /// moment of the machine that SPECIFICATION.md names (`sluice bench hiops`).
    const MEASURED: [(u32, [u64; 2]); 9] = [
        (1, [9_300, 8_500]),
        (1, [18_500, 16_900]),
        (3, [37_400, 31_100]),
        (6, [63_500, 47_000]),
        (9, [98_500, 60_100]),
        (9, [93_800, 69_800]),
        (9, [102_800, 124_400]),
        (10, [85_700, 151_000]),
        (10, [80_800, 144_700]),
    ];

    #[test]
    fn over_the_whole_load_it_loses_five_per_cent_at_most() {
        for noise in [0, 5, 10] {
            let mut rng = rng::Rng::new(noise);
            let mut machine = Machine::new();
            // Up and down again, so that every load follows another one.
            for (depth, rates) in MEASURED.iter().chain(MEASURED.iter().rev()) {
                let (start, before) = (machine.now, machine.completed);
                while machine.now.since(start) < SECOND * 5 {
                    let disturbed =
                        rates.map(|r| r * (100 - noise + rng.below(2 * noise + 1)) / 100);
                    machine.run(HYBRID.window, *depth, disturbed);
                }
                let time = machine.now.since(start).as_secs_f64();
                let got = (machine.completed - before) as f64 / time;
                let better = rates[0].max(rates[1]) as f64;
                assert!(got > 0.95 * better, "{depth}, noise {noise} %: {got} of {better}");
            }
        }
    }

    #[test]
    fn a_window_shorter_than_an_interval_is_refused() {
        assert_eq!(HYBRID.validate(), Ok(()));
        let short = Hybrid { window: Nanos(9_999), ..HYBRID };
        assert!(matches!(short.validate(), Err(StrategyError::Window { .. })));
    }
}
