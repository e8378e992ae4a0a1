//! The keys by which a `[[process]]` differs from a `[[job]]`: a program that works between its I/Os,
//! and how the system goes on while an I/O is in flight \[Spec14\].

mod profile;

use std::ops::RangeInclusive;

use block::notify::{CompletionMethod, CompletionPolicy};
use machine::MachineModel;
use time::Nanos;

use profile::ProfiledWork;

use crate::PathConfig;
use crate::ranges::STEP_TIME;
use crate::section::{Keyword, Result, Section, Value};

/// I/Os from one output of a program to the next.
const OUTPUTS: RangeInclusive<u32> = 1..=1_000_000;
/// I/Os in flight of a program that goes on, unless the scenario says how many.
const DEPTH: u32 = 32;
/// Reads in flight of a program that prefetches, unless the scenario says how many.
const PREFETCH_DEPTH: u32 = 2;
/// Memory of a program.
const MEMORY: RangeInclusive<u64> = 0..=1 << 40;

/// The system's behavior while an I/O of a process is in flight [Spec14 §2].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessStrategy {
    /// It gives the core to others, and continues the process after an interrupt.
    Yield,
    /// It polls until the I/O has completed.
    Block,
    /// The process goes on, until an effect would be visible.
    Speculate,
    /// Reads begin before the process needs their data.
    Prefetch,
}

impl ProcessStrategy {
    /// All strategies.
    pub const ALL: [ProcessStrategy; 4] = [
        ProcessStrategy::Yield,
        ProcessStrategy::Block,
        ProcessStrategy::Speculate,
        ProcessStrategy::Prefetch,
    ];

    /// Returns the word of a scenario.
    pub const fn word(self) -> &'static str {
        match self {
            ProcessStrategy::Yield => "yield",
            ProcessStrategy::Block => "block",
            ProcessStrategy::Speculate => "speculate",
            ProcessStrategy::Prefetch => "prefetch",
        }
    }

    /// Returns whether the process works while an I/O is in flight.
    pub const fn goes_on(self) -> bool {
        matches!(self, ProcessStrategy::Speculate | ProcessStrategy::Prefetch)
    }

    /// Returns the strategy of processes that name none, if the path's `completion` implies one.
    pub(crate) fn of_path(config: &PathConfig) -> Option<ProcessStrategy> {
        if config.speculate {
            return Some(ProcessStrategy::Speculate);
        }
        let strategies = [ProcessStrategy::Block, ProcessStrategy::Yield];
        config.completion.and_then(|policy| strategies.into_iter().find(|s| s.waits_by(policy)))
    }

    /// Returns how the process waits for I/Os on a path whose scenario says nothing about it.
    fn default_method(self) -> CompletionMethod {
        match self {
            ProcessStrategy::Yield => CompletionMethod::Interrupt,
            _ => CompletionMethod::Poll,
        }
    }

    /// Returns whether the process can wait for I/Os in this way.
    fn waits_by(self, policy: CompletionPolicy) -> bool {
        let polls = policy == CompletionPolicy::default();
        match self {
            ProcessStrategy::Yield => !polls,
            ProcessStrategy::Block => polls,
            ProcessStrategy::Speculate | ProcessStrategy::Prefetch => true,
        }
    }
}

/// Work of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramWork {
    /// Time on a core that works for nothing else.
    Time(Nanos),
    /// Instructions, at the rate of the machine.
    Instructions(u32),
}

impl ProgramWork {
    fn read(value: &Value<'_>) -> Result<ProgramWork> {
        match value.string() {
            Ok(_) => value.duration_in(&STEP_TIME).map(ProgramWork::Time),
            Err(_) => value.u32().map(ProgramWork::Instructions).map_err(|_| {
                value.wrong_type("a duration, or a number of instructions below 4 billion")
            }),
        }
    }

    /// Returns the time that the work takes on a machine.
    pub fn time(self, model: &MachineModel) -> Nanos {
        match self {
            ProgramWork::Time(time) => time,
            ProgramWork::Instructions(count) => model.instructions(count.into()),
        }
    }
}

/// The program of a `[[process]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSpec {
    /// The behavior while an I/O is in flight.
    pub strategy: ProcessStrategy,
    /// Work from one I/O to the next.
    pub compute: ProgramWork,
    /// Work from an I/O that an output follows to this output; `None` for all of `compute`.
    pub window: Option<ProgramWork>,
    /// Number of I/Os from one output to the next.
    pub outputs: u32,
    /// Time of the checkpoint from which a program that went on could be repeated.
    pub checkpoint: Nanos,
    /// Maximum number of I/Os in flight.
    pub depth: u32,
    /// Hardware thread of the machine on which it works; `None` for one of its own.
    pub core: Option<u16>,
}

impl ProcessSpec {
    /// Keys that jobs do not have.
    pub(crate) const KEYS: [&'static str; 7] =
        ["strategy", "compute", "window", "outputs", "checkpoint", "memory", "core"];

    /// Returns whether jobs do not have a key.
    pub(crate) fn has_key(key: &str) -> bool {
        ProcessSpec::KEYS.contains(&key) || ProfiledWork::KEYS.contains(&key)
    }

    /// Reads the keys of a process. `default` is its strategy if it names none.
    pub(crate) fn read(
        s: &mut Section<'_>,
        default: Option<ProcessStrategy>,
    ) -> Result<ProcessSpec> {
        let words = ProcessStrategy::ALL.map(|strategy| Keyword(strategy.word(), strategy));
        let strategy = match (s.get("strategy"), default) {
            (Some(value), _) => value.choice(&words)?,
            (None, Some(default)) => default,
            (None, None) => {
                let help = "\"yield\", \"block\", \"speculate\" or \"prefetch\"";
                return Err(s.missing("strategy", help));
            }
        };
        let profile = ProfiledWork::read(s)?;
        let compute = match (profile, s.get("compute")) {
            (Some(profile), _) => profile.compute,
            (None, Some(compute)) => ProgramWork::read(&compute)?,
            (None, None) => {
                let help = "the work from one I/O to the next, as \"10us\" or in instructions";
                return Err(s.missing("compute", help));
            }
        };
        for key in ["window", "outputs", "checkpoint", "memory", "rule"] {
            if let (Some(value), true) = (s.get(key), strategy != ProcessStrategy::Speculate) {
                let message = format!("a process that does not speculate has no `{key}`");
                return Err(value.conflict(message, "set strategy = \"speculate\", or remove it"));
            }
        }
        let mut process = ProcessSpec {
            strategy,
            compute,
            window: None,
            outputs: 1,
            checkpoint: Nanos::ZERO,
            depth: 1,
            core: None,
        };
        if let Some(profile) = profile.filter(|_| strategy == ProcessStrategy::Speculate) {
            (process.window, process.outputs) = (Some(profile.window), profile.outputs);
        }
        s.set("core", &mut process.core, |v| v.u16_from(0).map(Some))?;
        s.set("window", &mut process.window, |v| ProgramWork::read(v).map(Some))?;
        s.set("outputs", &mut process.outputs, |v| match v.u32()? {
            outputs if OUTPUTS.contains(&outputs) => Ok(outputs),
            _ => Err(v.refuse("1 to 1000000 I/Os from one output to the next")),
        })?;
        process.checkpoint = read_checkpoint(s)?;
        process.depth = match (strategy, s.get("iodepth")) {
            (ProcessStrategy::Speculate, None) => process.outputs.min(DEPTH),
            (ProcessStrategy::Prefetch, None) => PREFETCH_DEPTH,
            (ProcessStrategy::Yield | ProcessStrategy::Block, None) => 1,
            (ProcessStrategy::Speculate, Some(value)) => value.u32()?,
            (ProcessStrategy::Prefetch, Some(value)) => match value.u32()? {
                depth if depth > 1 => depth,
                _ => return Err(value.refuse("2 and more: the read that is used, and others")),
            },
            (_, Some(value)) => {
                let message = format!("`{}` waits for each I/O", strategy.word());
                return Err(value.conflict(message, "remove `iodepth`, or set another strategy"));
            }
        };
        for key in ["fsync", "fdatasync"] {
            if let (Some(value), true) = (s.get(key), strategy.goes_on()) {
                let message = "a program that goes on waits for its writes, and issues no flushes";
                let help = "remove the key, and give the drive a write buffer that needs no flush";
                return Err(value.conflict(message, help));
            }
        }
        if let (ProcessStrategy::Prefetch, Some(value)) = (strategy, s.get("rw"))
            && !matches!(value.string()?, "read" | "randread")
        {
            let message = "only reads can begin before the program needs them";
            return Err(value.conflict(message, "set rw = \"read\" or \"randread\""));
        }
        Ok(process)
    }

    /// Returns how the path of the process waits for completions, if it can run the process. `given` is
    /// what the scenario says.
    pub(crate) fn completion(&self, given: Option<CompletionPolicy>) -> Option<CompletionPolicy> {
        let method = self.strategy.default_method();
        let policy = given.unwrap_or(CompletionPolicy { method, poll_interval: None });
        self.strategy.waits_by(policy).then_some(policy)
    }
}

/// Time of a copy-on-write clone of a program with `memory` bytes: about 50 us of a small one, and 1 ms
/// of 1 GB [Spec14 fig. 2].
fn fork_time(memory: u64) -> Nanos {
    let per_gib = (u128::from(memory) * (1_000_000 - 50_000)) >> 30;
    Nanos(50_000 + u64::try_from(per_gib).unwrap_or(u64::MAX / 2))
}

/// Reads `checkpoint` and `memory`.
fn read_checkpoint(s: &mut Section<'_>) -> Result<Nanos> {
    let memory = s.get("memory");
    let Some(value) = s.get("checkpoint") else {
        return match memory {
            Some(memory) => Err(memory.conflict(
                "the program's memory counts for a checkpoint by fork only",
                "set checkpoint = \"fork\", or remove the key",
            )),
            None => Ok(Nanos::ZERO),
        };
    };
    let bytes = match &memory {
        Some(memory) => match memory.size()? {
            bytes if MEMORY.contains(&bytes) => bytes,
            _ => return Err(memory.refuse("sizes up to 1T")),
        },
        None => 0,
    };
    match (value.string()?, memory) {
        ("fork", _) => Ok(fork_time(bytes)),
        (_, Some(memory)) => Err(memory.conflict(
            "the program's memory counts for a checkpoint by fork only",
            "set checkpoint = \"fork\", or remove the key",
        )),
        ("none", None) => Ok(Nanos::ZERO),
        (_, None) => value
            .duration_in(&STEP_TIME)
            .map_err(|_| value.refuse("\"none\", \"fork\", or a time such as \"20ns\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_takes_what_the_figure_shows() {
        assert_eq!(fork_time(0), Nanos::from_micros(50));
        assert_eq!(fork_time(1 << 30), Nanos::from_millis(1));
        assert_eq!(fork_time(512 << 20), Nanos(525_000));
        assert_eq!(fork_time(1 << 40), Nanos(50_000 + 1024 * 950_000));
    }

    #[test]
    fn a_strategy_waits_as_its_name_says() {
        let policy = |method| CompletionPolicy { method, poll_interval: None };
        let process = |strategy| ProcessSpec {
            strategy,
            compute: ProgramWork::Instructions(1),
            window: None,
            outputs: 1,
            checkpoint: Nanos::ZERO,
            depth: 1,
            core: None,
        };
        let (poll, interrupt) =
            (policy(CompletionMethod::Poll), policy(CompletionMethod::Interrupt));
        for (strategy, default, other) in [
            (ProcessStrategy::Yield, interrupt, Some(poll)),
            (ProcessStrategy::Block, poll, Some(interrupt)),
            (ProcessStrategy::Speculate, poll, None),
            (ProcessStrategy::Prefetch, poll, None),
        ] {
            assert_eq!(process(strategy).completion(None), Some(default), "{strategy:?}");
            for policy in [poll, interrupt] {
                let expected = (Some(policy) != other).then_some(policy);
                assert_eq!(process(strategy).completion(Some(policy)), expected, "{strategy:?}");
            }
        }
    }
}
