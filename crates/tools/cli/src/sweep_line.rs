//! [`SweepLine`]: the progress of a sweep in one line.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use sweep::SweepProgress;

/// Interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress of a sweep: `612/1000 · 3 failed · 00:41`, with the time since its start.
pub(crate) struct SweepLine {
    /// Text before the numbers.
    what: &'static str,
    /// The line, on a terminal.
    bar: Option<ProgressBar>,
    started: Instant,
    /// Time of the last line, without a terminal.
    last_line: Instant,
}

impl SweepLine {
    /// Returns the progress of a sweep that starts now.
    pub(crate) fn new(what: &'static str) -> SweepLine {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            // The template is a valid constant.
            if let Ok(style) = ProgressStyle::with_template("{msg} · {clock}") {
                bar.set_style(style.with_key(
                    "clock",
                    |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                        // An error of the terminal cannot be shown on it.
                        let _ = out.write_str(&clock(state.elapsed()));
                    },
                ));
            }
            bar.set_message("starting");
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        SweepLine { what, bar, started: now, last_line: now }
    }

    /// Sets the progress; returns a line to be written if one is due.
    pub(crate) fn update(&mut self, progress: SweepProgress) -> Option<String> {
        let SweepProgress { done, total, failed } = progress;
        let text = format!("{}{done}/{total} · {failed} failed", self.what);
        let is_last = done == total;
        match &self.bar {
            Some(bar) if is_last => bar.finish_and_clear(),
            Some(bar) => {
                bar.set_message(text);
                return None;
            }
            None if !is_last && self.last_line.elapsed() < LINE_INTERVAL => return None,
            None => self.last_line = Instant::now(),
        }
        Some(format!("{text} · {}", clock(self.started.elapsed())))
    }
}

impl Drop for SweepLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats a time as minutes and seconds, with hours from an hour on.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let mut text = String::new();
    if seconds >= 3_600 {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}:", seconds / 3_600);
    }
    text + &format!("{:02}:{:02}", seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_counts_and_the_time() {
        assert_eq!(clock(Duration::from_secs(41)), "00:41");
        assert_eq!(clock(Duration::from_secs(3_661)), "1:01:01");
        let now = Instant::now();
        let mut line = SweepLine { what: "", bar: None, started: now, last_line: now };
        let progress = |done| SweepProgress { done, total: 1_000, failed: 3 };
        assert_eq!(line.update(progress(612)), None, "a line was written just now");
        assert_eq!(line.update(progress(1_000)).unwrap(), "1000/1000 · 3 failed · 00:00");
    }
}
