//! Counts the instructions of a benchmark's cases. Unlike a time, the count is independent of noise:
//! a build has the same count on a busy machine. Only the variant of `memcpy` that the processor
//! selects affects it.
//!
//! A case runs in a child process, and only instructions between two markers count.
//! [`CountingMethod`] says how: single steps by the parent, or valgrind's callgrind.
//!
//! | arguments of the benchmark | effect |
//! |---|---|
//! | none | counts all cases, and fails if a bound is exceeded |
//! | `run CASE BATCHES` | runs as many batches without a tracer, for timing or a profiler |

mod callgrind;
pub mod steps;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Any error; it is printed, and the benchmark fails.
pub type Failed = Box<dyn std::error::Error>;

/// The case of the markers' own cost: pairs of markers with nothing between them.
const NOTHING: &str = "nothing";

/// Minimum instructions per request of a crate that is printed.
const LEAST_PRINTED: f64 = 0.1;

/// Instructions per request of a case, and of each crate if the counter tells.
type PerRequest = (f64, Vec<(String, f64)>);

/// Is called where the measured part of a batch begins and where it ends.
#[derive(Debug)]
pub enum Marker {
    /// Nothing is measured.
    Off,
    /// Notifies the tracer, by a signal that the tracer does not deliver.
    Traced,
    /// Starts and stops the instrumentation of callgrind.
    Callgrind {
        /// Whether the instrumentation is on.
        is_counting: bool,
    },
    /// Measures the time between markers.
    Timed {
        /// The time of the first marker of a pair.
        begun: Option<Instant>,
        /// The sum of all pairs.
        total: Duration,
    },
}

impl Marker {
    /// Marks a begin or an end.
    ///
    /// # Errors
    /// If no signal can be sent.
    #[inline]
    pub fn mark(&mut self) -> Result<(), Failed> {
        match self {
            Marker::Off => {}
            Marker::Traced => raise(Signal::SIGSTOP)?,
            Marker::Callgrind { is_counting } => {
                *is_counting = !*is_counting;
                callgrind::set_instrumentation(*is_counting);
            }
            Marker::Timed { begun, total } => match begun.take() {
                Some(begun) => *total += begun.elapsed(),
                None => *begun = Some(Instant::now()),
            },
        }
        Ok(())
    }
}

/// A case and its bound.
#[derive(Clone, Copy, Debug)]
pub struct CountedCase {
    /// The name of the case.
    pub name: &'static str,
    /// The case to compare with, or an empty name.
    pub base: &'static str,
    /// Maximum instructions per request. The bound applies to the total, not to the difference to
    /// `base`, so that a regression of the base hides nothing.
    pub bound: f64,
    /// Requests per batch.
    pub batch: u64,
}

/// A bound on the instructions of a case as a multiple of those of another.
#[derive(Clone, Copy, Debug)]
pub struct RatioBound {
    /// The name of the case.
    pub case: &'static str,
    /// The name of the case to compare with.
    pub base: &'static str,
    /// Maximum of the quotient.
    pub bound: f64,
}

/// The count of a string instruction that is repeated (`rep movsb`): the processor steps once per
/// iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatCount {
    /// Every iteration counts.
    Iterations,
    /// The instruction counts once.
    Once,
}

/// A bound on the instructions that a case has more than another.
#[derive(Clone, Copy, Debug)]
pub struct DifferenceBound {
    /// The name of the case.
    pub case: &'static str,
    /// The name of the case to compare with.
    pub base: &'static str,
    /// Maximum of the difference per request.
    pub bound: f64,
}

/// How the instructions between markers are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingMethod {
    /// The parent single-steps the child. A step takes 10 us and more: for thousands of
    /// instructions.
    SingleSteps(RepeatCount),
    /// The child runs under valgrind's callgrind, some 50 times slower than without: for many
    /// millions of instructions. Every iteration of a repeated string instruction counts. The
    /// count is also given by crate.
    Callgrind,
}

/// A benchmark that counts instructions.
#[derive(Clone, Copy, Debug)]
pub struct InstructionBench<'a> {
    /// All cases. The base of a case comes before it.
    pub cases: &'a [CountedCase],
    /// Bounds on cases relative to each other.
    pub ratios: &'a [RatioBound],
    /// Bounds on the differences of cases.
    pub differences: &'a [DifferenceBound],
    /// Batches that are counted.
    pub batches: u64,
    /// How the instructions are counted.
    pub method: CountingMethod,
    /// Runs a case by its name, with a number of batches.
    pub run: fn(&str, u64, &mut Marker) -> Result<(), Failed>,
}

/// Keeps this process and its children on one CPU: a step takes two context switches, which then
/// need no wake-up of another CPU.
fn use_one_cpu() -> Result<(), Failed> {
    let (this, allowed) = (Pid::from_raw(0), sched_getaffinity(Pid::from_raw(0))?);
    if let Some(cpu) = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)) {
        let mut one = CpuSet::new();
        one.set(cpu)?;
        sched_setaffinity(this, &one)?;
    }
    Ok(())
}

impl InstructionBench<'_> {
    /// Runs the benchmark with the arguments of the process.
    pub fn main(&self) -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let done = match words[..] {
            [] => self.gate(),
            ["traced", case, batches] => self.traced(case, batches),
            ["instrumented", case, batches] => self.instrumented(case, batches),
            ["run", case, batches] => self.timed(case, batches),
            _ => Err("no arguments, or: run CASE BATCHES".into()),
        };
        match done {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("instructions: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn traced(&self, case: &str, batches: &str) -> Result<bool, Failed> {
        ptrace::traceme()?;
        let (batches, marker) = (batches.parse()?, &mut Marker::Traced);
        if case != NOTHING {
            return (self.run)(case, batches, marker).map(|()| true);
        }
        for _ in 0..2 * batches {
            marker.mark()?;
        }
        Ok(true)
    }

    fn instrumented(&self, case: &str, batches: &str) -> Result<bool, Failed> {
        let marker = &mut Marker::Callgrind { is_counting: false };
        (self.run)(case, batches.parse()?, marker).map(|()| true)
    }

    fn timed(&self, name: &str, batches: &str) -> Result<bool, Failed> {
        let batches: u64 = batches.parse()?;
        let mut marker = Marker::Timed { begun: None, total: Duration::ZERO };
        (self.run)(name, batches, &mut marker)?;
        let case = self.cases.iter().find(|case| case.name == name);
        if let (Marker::Timed { total, .. }, Some(case)) = (marker, case) {
            let requests = (batches * case.batch) as f64;
            println!("{name}: {:.1} ns", total.as_nanos() as f64 / requests);
        }
        Ok(true)
    }

    /// Single-steps a case in a child. Returns the number of instructions between markers, and the
    /// number of marker pairs.
    fn count_steps(&self, case: &str, repeats: RepeatCount) -> Result<(u64, u64), Failed> {
        let program = std::env::current_exe()?;
        let batches = self.batches.to_string();
        let child = Command::new(program).args(["traced", case, &batches]).spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let (mut counted, mut marks, mut last) = (0, 0, 0);
        loop {
            match waitpid(pid, None)? {
                WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                    if marks == 0 {
                        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
                    }
                    marks += 1;
                }
                WaitStatus::Stopped(_, Signal::SIGTRAP) if repeats == RepeatCount::Iterations => {
                    counted += 1;
                }
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                    let at = ptrace::getregs(pid)?.rip;
                    counted += u64::from(at != last);
                    last = at;
                }
                WaitStatus::Exited(_, 0) => return Ok((counted, marks / 2)),
                other => return Err(format!("{case}: the child ends with {other:?}").into()),
            }
            if marks % 2 == 1 { ptrace::step(pid, None)? } else { ptrace::cont(pid, None)? }
        }
    }

    /// Counts all cases. Returns whether all bounds hold.
    fn gate(&self) -> Result<bool, Failed> {
        let counted = match self.method {
            CountingMethod::SingleSteps(repeats) => self.single_steps(repeats)?,
            CountingMethod::Callgrind => self.by_callgrind()?,
        };
        let mut holds = true;
        for (i, (CountedCase { name, base, bound, .. }, (each, crates))) in
            self.cases.iter().zip(&counted).enumerate()
        {
            let verdict = if each <= bound { "ok" } else { "FAIL" };
            print!("{name:12} {each:7.1} instructions per request, at most {bound:4.0}: {verdict}");
            match self.cases[..i].iter().position(|other| other.name == *base) {
                Some(other) => println!("; {:+.1} over {base}", each - counted[other].0),
                None => println!(),
            }
            for (layer, each) in crates {
                println!("{:24} {each:7.1} instructions per request", format!("{name}/{layer}"));
            }
            holds &= each <= bound;
        }
        let count_of = |name: &str| {
            let found = self.cases.iter().zip(&counted).find(|(case, _)| case.name == name);
            found.map(|(_, (each, _))| *each).ok_or_else(|| format!("no such case: {name}"))
        };
        for RatioBound { case, base, bound } in self.ratios {
            let ratio = count_of(case)? / count_of(base)?;
            let verdict = if ratio <= *bound { "ok" } else { "FAIL" };
            println!("{case:12} {ratio:7.3} times {base}, at most {bound:.2}: {verdict}");
            holds &= ratio <= *bound;
        }
        for DifferenceBound { case, base, bound } in self.differences {
            let added = count_of(case)? - count_of(base)?;
            let verdict = if added <= *bound { "ok" } else { "FAIL" };
            println!("{case:12} {added:+7.1} to {base}, at most {bound:+.0}: {verdict}");
            holds &= added <= *bound;
        }
        Ok(holds)
    }

    /// Returns the instructions per request of each case, by single steps.
    fn single_steps(&self, repeats: RepeatCount) -> Result<Vec<PerRequest>, Failed> {
        use_one_cpu()?;
        let (nothing, pairs) = self.count_steps(NOTHING, repeats)?;
        let per_pair = nothing as f64 / pairs as f64;
        let per_request = |case: &CountedCase| {
            let (counted, pairs) = self.count_steps(case.name, repeats)?;
            let requests = (self.batches * case.batch) as f64;
            Ok(((counted as f64 - per_pair * pairs as f64) / requests, Vec::new()))
        };
        self.cases.iter().map(per_request).collect()
    }

    /// Returns the instructions per request of each case, and of each crate, by callgrind.
    fn by_callgrind(&self) -> Result<Vec<PerRequest>, Failed> {
        let per_request = |case: &CountedCase| {
            let counts = callgrind::count(case.name, self.batches)?;
            let requests = (self.batches * case.batch) as f64;
            let crates = counts.by_crate.into_iter().map(|(name, n)| (name, n as f64 / requests));
            let printed = crates.filter(|(_, each)| *each >= LEAST_PRINTED);
            Ok((counts.total as f64 / requests, printed.collect()))
        };
        self.cases.iter().map(per_request).collect()
    }
}
