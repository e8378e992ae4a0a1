//! [`RunBars`]: a progress bar for each running scenario, on a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use scenario::Scenario;
use scenario::format::{duration, printable};
use sim::SimStage;
use time::Nanos;

/// The bars of the runs; none if standard error is no terminal.
pub(super) struct RunBars {
    bars: Option<MultiProgress>,
    /// Number of scenarios.
    count: usize,
}

impl RunBars {
    /// Returns the bars of `count` scenarios.
    pub(super) fn new(count: usize) -> RunBars {
        RunBars { bars: std::io::stderr().is_terminal().then(MultiProgress::new), count }
    }

    /// Adds the bar of the scenario at `index`, whose run begins now.
    pub(super) fn start(&self, scenario: &Scenario, index: usize) -> RunBar {
        let preconditions = !scenario.precondition.is_none();
        let (furthest, jobs_began) = (0.0, None);
        let Some(bars) = &self.bars else {
            return RunBar { bar: ProgressBar::hidden(), preconditions, furthest, jobs_began };
        };
        let bar = bars.add(ProgressBar::new(1_000));
        // The template is a valid constant.
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {msg}") {
            bar.set_style(style);
        }
        let title = printable(&scenario.title);
        bar.set_prefix(match self.count {
            1 => title.into_owned(),
            count => format!("{}/{count} {title}", index + 1),
        });
        bar.enable_steady_tick(Duration::from_millis(200));
        RunBar { bar, preconditions, furthest, jobs_began }
    }
}

/// Progress of one run. It never decreases: if a drive is preconditioned, that is the first half.
/// The bar is cleared when this is dropped.
pub(super) struct RunBar {
    bar: ProgressBar,
    preconditions: bool,
    furthest: f64,
    /// Time of the first update from the jobs.
    jobs_began: Option<Instant>,
}

impl RunBar {
    pub(super) fn update(&mut self, stage: SimStage) {
        self.furthest = self.furthest.max(position(self.preconditions, stage));
        self.bar.set_position((self.furthest * 1_000.0) as u64);
        let percent = |part: f64| (part * 100.0).clamp(0.0, 100.0);
        self.bar.set_message(match stage {
            SimStage::Preconditioning(part) => format!("preconditioning, {:.0} %", percent(part)),
            SimStage::Running { part, elapsed } => {
                let began = *self.jobs_began.get_or_insert_with(Instant::now);
                let speed = speed(elapsed, began.elapsed());
                format!("running, {:.0} %, {speed}", percent(part))
            }
        });
    }
}

impl Drop for RunBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the simulated time, and how much of it passes per second of real time: `12.3 s
/// simulated, 4.1x`.
fn speed(simulated: Nanos, real: Duration) -> String {
    let time = duration(simulated.0);
    let factor = simulated.0 as f64 / real.as_nanos() as f64;
    // Two significant digits.
    let digits = match factor {
        10.0.. => 0,
        1.0.. => 1,
        0.1.. => 2,
        _ => 4,
    };
    match factor.is_finite() {
        true => format!("{time} simulated, {factor:.digits$}x"),
        false => format!("{time} simulated"),
    }
}

/// Returns the progress of a run, from 0 to 1.
fn position(preconditions: bool, stage: SimStage) -> f64 {
    let within = |part: f64| if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    match (stage, preconditions) {
        (SimStage::Preconditioning(part), true) => within(part) / 2.0,
        (SimStage::Preconditioning(_), false) => 0.0,
        (SimStage::Running { part, .. }, true) => 0.5 + within(part) / 2.0,
        (SimStage::Running { part, .. }, false) => within(part),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn running(part: f64) -> SimStage {
        SimStage::Running { part, elapsed: Nanos::ZERO }
    }

    #[test]
    fn progress_covers_preconditioning_and_never_goes_back() {
        let course = [
            SimStage::Preconditioning(0.0),
            SimStage::Preconditioning(0.7),
            SimStage::Preconditioning(1.0),
            running(0.0),
            running(0.5),
            running(1.0),
        ];
        let all: Vec<f64> = course.iter().map(|stage| position(true, *stage)).collect();
        assert_eq!(all, [0.0, 0.35, 0.5, 0.5, 0.75, 1.0]);
        assert_eq!(position(false, running(0.5)), 0.5);
        assert_eq!(position(true, running(f64::NAN)), 0.5);
        let parsed = Scenario::parse(Path::new("a.toml"), "[drive]\npreset = \"pcm\"\n");
        let mut bar = RunBars::new(1).start(&parsed.unwrap(), 0);
        bar.update(running(0.8));
        bar.update(running(0.3));
        assert_eq!(bar.furthest, 0.8, "it stays where it was");
    }

    #[test]
    fn speed_is_simulated_time_per_real_time() {
        let second = Duration::from_secs(1);
        for (simulated, text) in [
            (12_300_000_000, "12.3 s simulated, 12x"),
            (4_100_000_000, "4.10 s simulated, 4.1x"),
            (250_000_000, "250 ms simulated, 0.25x"),
            (3_000_000, "3 ms simulated, 0.0030x"),
        ] {
            assert_eq!(speed(Nanos(simulated), second), text);
        }
        assert_eq!(speed(Nanos(2_000), Duration::ZERO), "2 us simulated");
    }
}
