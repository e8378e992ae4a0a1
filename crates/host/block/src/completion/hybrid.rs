//! [`HybridConfig`]: switches between polling and interrupts according to the load.
//!
//! [HIOPS14 §3.3] leaves the switch to future work and names possible inputs: the occupied queue
//! depth and the current rate of completions. The better mode depends on the cost of interrupts,
//! timers and context switches on the machine. The rule here therefore measures both modes, in
//! windows:
//!
//! - **The depth enables polling.** Below [`HybridConfig::quiet`], in depth or in rate, a poll finds one
//!   completion at a time, and late: the mode is interrupts.
//! - **The rate selects the mode.** Otherwise the mode with more completions per second stays. The
//!   other mode is tried: half a window lets it settle. It is adopted if its rate is higher by
//!   [`MARGIN_64THS`] over one window, over two, and over [`CONFIRM_WINDOWS`]. A trial ends after
//!   half a window if its rate is less than two thirds.
//! - **Trials become rare.** Each unsuccessful trial doubles the time to the next, up to
//!   [`TRIAL_WINDOWS_MAX`] windows. After a change of mode, or of the rate by a third since the
//!   last trial, the next trial is within [`TRIAL_WINDOWS_CHANGED`] windows.
//!
//! A worse mode therefore runs for 1.5 windows of [`TRIAL_WINDOWS_CHANGED`] + 1.5 in the worst
//! case, and of [`TRIAL_WINDOWS_MAX`] + 1.5 under a steady load. A much worse mode runs for 1
//! window of these.

use time::Nanos;

use super::StrategyError;

/// Margin by which the other mode must be better, in 64ths.
const MARGIN_64THS: u64 = 2;
/// Number of windows that a mode must win to be adopted.
const CONFIRM_WINDOWS: u32 = 3;
/// Number of windows before the first trial.
const TRIAL_WINDOWS_FIRST: u32 = 1;
/// Number of windows before the next trial when the load has changed.
const TRIAL_WINDOWS_CHANGED: u32 = 24;
/// Maximum number of windows before the next trial.
const TRIAL_WINDOWS_MAX: u32 = 128;

/// The load of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerLoad {
    /// Requests in flight: threads that wait. The number of commands in the hardware says little,
    /// because a host that cannot keep up leaves the hardware idle.
    pub depth: u32,
    /// Completions per second.
    pub rate: u64,
}

/// Parameters of hybrid notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridConfig {
    /// While polling: time from the end of one poll to the next.
    pub interval: Nanos,
    /// Time over which the load is measured.
    pub window: Nanos,
    /// Load below which, in depth or in rate, there is no polling.
    pub quiet: ControllerLoad,
}

impl HybridConfig {
    /// Returns parameters for polling every `interval`, from a depth of two and one completion per
    /// sixteen intervals.
    ///
    /// The window is 10 ms, or sixteen intervals if these are longer. With hundreds of threads,
    /// rates over less than a scheduling round are meaningless.
    pub const fn with_interval(interval: Nanos) -> HybridConfig {
        let sixteen = interval.0.saturating_mul(16);
        let rate = match 1_000_000_000_u64.checked_div(sixteen) {
            Some(rate) => rate,
            None => 0,
        };
        let window = Nanos(if sixteen > 10_000_000 { sixteen } else { 10_000_000 });
        HybridConfig { interval, window, quiet: ControllerLoad { depth: 2, rate } }
    }

    pub(super) fn validate(&self) -> Result<(), StrategyError> {
        let HybridConfig { interval, window, .. } = *self;
        // The caller checks the interval itself and reports an invalid one.
        if window < interval {
            return Err(StrategyError::Window { window, interval });
        }
        Ok(())
    }
}

/// The mode of hybrid notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Interrupts.
    #[default]
    Interrupt,
    /// Polling.
    Poll,
}

/// Counters of hybrid notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HybridStats {
    /// The current mode.
    pub mode: Mode,
    /// Number of mode changes.
    pub switches: u64,
    /// Time in interrupt mode.
    pub interrupt_time: Nanos,
    /// Time in polling mode.
    pub poll_time: Nanos,
    /// The load of the last window.
    pub load: ControllerLoad,
}

/// Decides the mode of hybrid notification.
#[derive(Debug)]
pub(super) struct Governor {
    hybrid: HybridConfig,
    stats: HybridStats,
    /// Time up to which the time per mode is accounted.
    accounted_until: Nanos,
    window_start: Nanos,
    completed_before: u64,
    /// Whether the current window is not counted, because the mode has just changed.
    settling: bool,
    /// The trial in progress, if any: the sum of its windows' rates, and their number.
    trial: Option<(u64, u32)>,
    /// Last rate by mode, interrupts first, in completions per second; 0 if unknown.
    rates: [u64; 2],
    /// Rate of the mode in use at the last trial.
    trial_rate: u64,
    /// Windows between trials, and until the next.
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
    /// Creates a governor in interrupt mode. `ended` is the number of completions so far.
    pub(super) fn new(hybrid: HybridConfig, now: Nanos, ended: u64) -> Governor {
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

    /// Returns the counters at `now`.
    pub(super) fn stats(&self, now: Nanos) -> HybridStats {
        let mut stats = self.stats;
        let open = now.since(self.accounted_until);
        match stats.mode {
            Mode::Interrupt => stats.interrupt_time += open,
            Mode::Poll => stats.poll_time += open,
        }
        stats
    }

    /// Evaluates the load and returns the mode if it has changed. `ended` is the number of
    /// completed commands; `depth` returns the requests in flight, and is called once per window.
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
        let load = ControllerLoad { depth: depth(), rate };
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

    /// Returns the mode after a window with this load.
    fn decide(&mut self, load: ControllerLoad) -> Mode {
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

    /// Returns whether a trial can be ended early.
    #[inline]
    fn is_trial_lost(&self, rate: u64) -> bool {
        self.trial.is_some() && rate < self.rates[self.stats.mode.other() as usize] / 3 * 2
    }

    /// Returns the mode after `windows` windows of a trial of `mode`, whose rates add up to `sum`.
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

    const HYBRID: HybridConfig = HybridConfig::with_interval(Nanos::from_micros(10));

    /// A model of a machine: the rate of each mode at a depth.
    struct Machine {
        governor: Governor,
        now: Nanos,
        completed: u64,
        /// Fraction of a completion, in billionths.
        fraction: u64,
    }

    impl Machine {
        fn new() -> Machine {
            let governor = Governor::new(HYBRID, Nanos::ZERO, 0);
            Machine { governor, now: Nanos::ZERO, completed: 0, fraction: 0 }
        }

        /// Runs for `time`. Returns the share of it spent polling.
        fn run(&mut self, time: Nanos, depth: u32, rates: [u64; 2]) -> f64 {
            let before = self.governor.stats(self.now);
            let start = self.now;
            while self.now.since(start) < time {
                let rate = rates[self.governor.stats.mode as usize];
                // The window is not a multiple of this step.
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
        // Within the longest time between trials.
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

    /// Rates of one host CPU with interrupts and with polling at 1, 2, 4, … 256 threads. Measured
    /// with `sluice bench hiops` on the machine that SPECIFICATION.md names, without other load.
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
            // Up and down, so that every load follows another one.
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
        let short = HybridConfig { window: Nanos(9_999), ..HYBRID };
        assert!(matches!(short.validate(), Err(StrategyError::Window { .. })));
    }
}
