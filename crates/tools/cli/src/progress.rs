//! [`Progress`]: a progress bar on a terminal, and a line at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress of an activity, on standard error.
pub(super) struct Progress {
    what: String,
    /// The bar, on a terminal.
    bar: Option<ProgressBar>,
    /// Time of the last line, and its percentage.
    last_line: Option<(Instant, u32)>,
}

impl Progress {
    /// Returns the progress of `what`, such as `preconditioning drive0`.
    pub(super) fn new(what: String) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1_000);
            // The template is a valid constant.
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} {bar:40} {percent:>3} % {eta}")
            {
                bar.set_style(style);
            }
            bar.set_prefix(what.clone());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { what, bar, last_line: None }
    }

    /// Returns the name of the activity.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Sets the progress, from 0 to 1; returns a line to be written if one is due.
    pub(super) fn set(&mut self, part: f64) -> Option<String> {
        if let Some(bar) = &self.bar {
            bar.set_position((part * 1_000.0) as u64);
            return None;
        }
        let percent = (part * 100.0) as u32;
        let due = match self.last_line {
            None => true,
            Some((_, told)) if told >= 100 => false,
            Some((at, told)) => percent >= 100 || percent > told && at.elapsed() >= LINE_INTERVAL,
        };
        due.then(|| {
            self.last_line = Some((Instant::now(), percent));
            format!("{}: {percent} %", self.what)
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_there_are_few_lines_and_the_last_is_the_end() {
        let mut progress = Progress { what: "filling d".into(), bar: None, last_line: None };
        let lines: Vec<_> = (0..=1_000).filter_map(|n| progress.set(f64::from(n) / 1e3)).collect();
        assert_eq!(lines.first().unwrap(), "filling d: 0 %");
        assert_eq!(lines.last().unwrap(), "filling d: 100 %");
        assert!(lines.len() < 20, "{lines:?}");
        assert_eq!(progress.set(1.0), None, "told once");
    }
}
