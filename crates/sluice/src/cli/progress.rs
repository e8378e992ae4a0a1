//! [`Progress`]: how far something is: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// How far something is, on standard error.
pub(super) struct Progress {
    what: String,
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// When the last line was written, and the percentage in it.
    last_line: Option<(Instant, u32)>,
}

impl Progress {
    /// Of `what`, as in `preconditioning drive0`.
    pub(super) fn new(what: String) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1_000);
            // The template is a constant that parses.
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

    /// What this is about.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Takes note that a part from 0 to 1 is done; returns a line to be written, at times.
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
