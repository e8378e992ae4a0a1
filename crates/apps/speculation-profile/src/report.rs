//! [`SpeculationProfile`]: the results of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::windows::{KindStats, SpeculatedIo, StopRule, WindowStats};

/// Numbers of one kind of I/O.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IoCount {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

/// Windows of all processes that ran a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramWindows {
    pub(crate) instructions: u64,
    pub(crate) processes: u64,
    pub(crate) io: [IoCount; 3],
    /// By [`StopRule`].
    pub(crate) stats: [KindStats; 2],
}

impl ProgramWindows {
    fn merge(&mut self, other: &ProgramWindows) {
        self.instructions += other.instructions;
        self.processes += other.processes;
        for (into, from) in self.io.iter_mut().zip(&other.io) {
            into.calls += from.calls;
            into.bytes = into.bytes.saturating_add(from.bytes);
        }
        for (into, from) in self.stats.iter_mut().flatten().zip(other.stats.iter().flatten()) {
            into.merge(from);
        }
    }

    fn io_profile(&self, kind: SpeculatedIo, elapsed: Duration) -> IoProfile {
        let io = self.io[kind as usize];
        let rule = |rule: StopRule| RuleProfile::new(&self.stats[rule.index()][kind as usize]);
        let seconds = elapsed.as_secs_f64();
        let calls_per_second = if seconds > 0.0 { io.calls as f64 / seconds } else { 0.0 };
        IoProfile {
            kind: kind.name(),
            calls: io.calls,
            bytes: io.bytes,
            calls_per_second,
            paper: rule(StopRule::Paper),
            sluice: rule(StopRule::Sluice),
        }
    }
}

/// Windows of one kind of I/O by one rule. Lengths are instructions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleProfile {
    /// Windows that ended.
    pub windows: u64,
    /// Mean length.
    pub mean: f64,
    /// Standard deviation of the length.
    pub deviation: f64,
    /// Smallest length.
    pub min: u64,
    /// Largest length.
    pub max: u64,
    /// Windows whose end is not known, because the process was killed.
    pub unfinished: u64,
    /// Number of windows by what stopped them.
    pub stops: BTreeMap<String, u64>,
}

impl RuleProfile {
    fn new(stats: &WindowStats) -> RuleProfile {
        RuleProfile {
            windows: stats.count(),
            mean: stats.mean(),
            deviation: stats.deviation(),
            min: stats.min(),
            max: stats.max(),
            unfinished: stats.unfinished(),
            stops: stats.stops().clone(),
        }
    }

    /// Returns the reasons of at least a twentieth of the windows, the most frequent first.
    fn stop_text(&self) -> String {
        let mut stops: Vec<_> = self.stops.iter().collect();
        stops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let mut text = String::new();
        for (name, count) in stops {
            let percent = 100.0 * *count as f64 / self.windows.max(1) as f64;
            if percent >= 5.0 {
                let comma = if text.is_empty() { "" } else { ", " };
                let _ = write!(text, "{comma}{name} {percent:.0} %");
            }
        }
        text
    }
}

/// Results of one kind of I/O.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoProfile {
    /// `read`, `write` or `sync`.
    pub kind: &'static str,
    /// Calls on the volume that succeeded.
    pub calls: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Calls per second of the run under the emulator.
    pub calls_per_second: f64,
    /// Windows by the rule of the paper.
    pub paper: RuleProfile,
    /// Windows by the rule of Sluice.
    pub sluice: RuleProfile,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct SpeculationProfile {
    pub(crate) elapsed: Duration,
    pub(crate) processes: u64,
    pub(crate) killed_processes: u64,
    pub(crate) calls: u64,
    pub(crate) invalid_events: u64,
    pub(crate) lost_events: u64,
    pub(crate) unknown_calls: BTreeMap<String, u64>,
    pub(crate) not_followed: Vec<(String, &'static str, u64)>,
    pub(crate) programs: BTreeMap<String, ProgramWindows>,
}

#[derive(Serialize)]
struct NotFollowedJson<'a> {
    program: &'a str,
    reason: &'a str,
    times: u64,
}

#[derive(Serialize)]
struct ProgramJson<'a> {
    program: &'a str,
    processes: u64,
    instructions: u64,
    io: Vec<IoProfile>,
}

#[derive(Serialize)]
struct ProfileJson<'a> {
    elapsed_ns: u64,
    instructions: u64,
    processes: u64,
    killed_processes: u64,
    calls: u64,
    lost_events: u64,
    invalid_events: u64,
    unknown_calls: &'a BTreeMap<String, u64>,
    not_followed: Vec<NotFollowedJson<'a>>,
    io: Vec<IoProfile>,
    programs: Vec<ProgramJson<'a>>,
}

impl SpeculationProfile {
    /// Instructions of all processes.
    pub fn instructions(&self) -> u64 {
        self.programs.values().map(|program| program.instructions).sum()
    }

    /// Time from the start to the end of the last process, under the emulator.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Processes that were followed.
    pub fn processes(&self) -> u64 {
        self.processes
    }

    /// Processes that ended without a call: by a signal.
    pub fn killed_processes(&self) -> u64 {
        self.killed_processes
    }

    /// Events that were lost or invalid.
    pub fn dropped_events(&self) -> u64 {
        self.lost_events + self.invalid_events
    }

    /// Programs that ran without being profiled: their names and reasons.
    pub fn not_followed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.not_followed.iter().map(|(name, reason, _)| (name.as_str(), *reason))
    }

    /// Calls of unknown effect, and how often they were made.
    pub fn unknown_calls(&self) -> &BTreeMap<String, u64> {
        &self.unknown_calls
    }

    /// Results of all programs together, or of one by its name: reads, writes and syncs. A name that
    /// no program has gives zeros.
    pub fn io(&self, program: Option<&str>) -> [IoProfile; 3] {
        let mut all = ProgramWindows::default();
        for (name, windows) in &self.programs {
            if program.is_none_or(|wanted| wanted == name) {
                all.merge(windows);
            }
        }
        SpeculatedIo::ALL.map(|kind| all.io_profile(kind, self.elapsed))
    }

    /// Returns the results as JSON (`docs/profile.md`).
    pub fn json(&self) -> impl Serialize {
        let kinds = |windows: &ProgramWindows| {
            SpeculatedIo::ALL.map(|kind| windows.io_profile(kind, self.elapsed)).to_vec()
        };
        let not_followed = self.not_followed.iter();
        let programs = self.programs.iter();
        ProfileJson {
            elapsed_ns: u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX),
            instructions: self.instructions(),
            processes: self.processes,
            killed_processes: self.killed_processes,
            calls: self.calls,
            lost_events: self.lost_events,
            invalid_events: self.invalid_events,
            unknown_calls: &self.unknown_calls,
            not_followed: not_followed
                .map(|(program, reason, times)| NotFollowedJson { program, reason, times: *times })
                .collect(),
            io: self.io(None).to_vec(),
            programs: programs
                .map(|(program, windows)| ProgramJson {
                    program,
                    processes: windows.processes,
                    instructions: windows.instructions,
                    io: kinds(windows),
                })
                .collect(),
        }
    }

    /// Returns the results as a table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} instructions, {} processes, {} calls, {:.3} s under the emulator\n",
            self.instructions(),
            self.processes,
            self.calls,
            self.elapsed.as_secs_f64(),
        );
        let _ = writeln!(
            text,
            "{:<12} {:<6} {:>9} {:>9} {:>7} {:>14} {:>14}  stopped by",
            "program", "I/O", "calls", "calls/s", "rule", "instructions", "deviation"
        );
        for (name, windows) in &self.programs {
            for kind in SpeculatedIo::ALL {
                let io = windows.io_profile(kind, self.elapsed);
                if io.calls == 0 {
                    continue;
                }
                for (rule, of) in [(StopRule::Paper, &io.paper), (StopRule::Sluice, &io.sluice)] {
                    let _ = writeln!(
                        text,
                        "{name:<12} {:<6} {:>9} {:>9.0} {:>7} {:>14.0} {:>14.0}  {}",
                        io.kind,
                        io.calls,
                        io.calls_per_second,
                        rule.name(),
                        of.mean,
                        of.deviation,
                        of.stop_text(),
                    );
                }
            }
        }
        for (name, times) in &self.unknown_calls {
            let _ = writeln!(text, "unknown call, which waits: {name} ({times} times)");
        }
        for (name, reason, times) in &self.not_followed {
            let _ = writeln!(text, "not profiled: {name} ({times} times): {reason}");
        }
        for (count, what) in [
            (self.killed_processes, "processes were killed: their open windows are not counted"),
            (self.lost_events, "events were lost with their processes"),
            (self.invalid_events, "events were invalid"),
        ] {
            if count > 0 {
                let _ = writeln!(text, "{count} {what}");
            }
        }
        text
    }
}
