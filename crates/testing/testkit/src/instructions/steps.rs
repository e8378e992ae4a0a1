//! Counts the instructions of each step of a case: those from one [`mark`] to the next.
//!
//! The case runs in a child that its parent single-steps. Each mark stops the child; the child
//! prints the sequence of its marks at the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{Failed, RepeatCount, use_one_cpu};

/// The mark of the code around the steps, which runs at full speed and does not count.
pub const OUTSIDE: u8 = 0;

/// The mark of nothing, for the cost of a mark.
const EMPTY: u8 = u8::MAX;

/// Number of marks without anything between them, which give the cost of a mark.
const EMPTY_MARKS: usize = 64;

static IS_TRACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MARKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Instructions of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCount {
    /// Number of times that the step was executed.
    pub times: u64,
    /// Instructions of all of them.
    pub instructions: f64,
}

/// Begins a step; without an effect where nothing is counted.
#[inline(never)]
pub fn mark(step: u8) {
    if IS_TRACED.load(Ordering::Relaxed) {
        MARKS.with_borrow_mut(|marks| marks.push(step));
        // A signal of this thread to itself; it cannot fail. The tracer does not deliver it.
        let _ = raise(if step == OUTSIDE { Signal::SIGURG } else { Signal::SIGSTOP });
    }
}

/// The child's part, which the arguments `stepped CASE` select: runs the case with marks. `run` must
/// have executed the case before, without marks, so that one-time work does not count.
///
/// # Errors
/// Those of `run`, and of tracing.
pub fn run_stepped(run: impl FnOnce(&mut dyn FnMut()) -> Result<(), Failed>) -> Result<(), Failed> {
    MARKS.with_borrow_mut(|marks| marks.reserve(1 << 16));
    ptrace::traceme()?;
    run(&mut || {
        IS_TRACED.store(true, Ordering::Relaxed);
        (0..EMPTY_MARKS).for_each(|_| mark(EMPTY));
        mark(OUTSIDE);
    })?;
    mark(OUTSIDE);
    IS_TRACED.store(false, Ordering::Relaxed);
    let marks = MARKS.take();
    let text: Vec<String> = marks.iter().map(u8::to_string).collect();
    println!("marks {}", text.join(" "));
    Ok(())
}

/// Counts the steps of a case of this program; `repeats` says how a repeated string instruction
/// counts. Returns them by the argument of [`mark`].
///
/// # Errors
/// If the child fails, or cannot be traced.
pub fn count_case(case: &str, repeats: RepeatCount) -> Result<BTreeMap<u8, StepCount>, Failed> {
    use_one_cpu()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["stepped", case])
        .stdout(Stdio::piped())
        .spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    // Instructions after each mark.
    let mut pieces: Vec<u64> = Vec::new();
    let (mut is_stepping, mut last) = (false, 0);
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, signal @ (Signal::SIGSTOP | Signal::SIGURG)) => {
                if pieces.is_empty() {
                    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
                }
                pieces.push(0);
                is_stepping = signal == Signal::SIGSTOP;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let at = match repeats {
                    RepeatCount::Iterations => 0,
                    RepeatCount::Once => ptrace::getregs(pid)?.rip,
                };
                if let Some(piece) = pieces.last_mut()
                    && (repeats == RepeatCount::Iterations || at != last)
                {
                    *piece += 1;
                }
                last = at;
            }
            WaitStatus::Exited(_, 0) => break,
            other => return Err(format!("{case}: the child ends with {other:?}").into()),
        }
        if is_stepping { ptrace::step(pid, None)? } else { ptrace::cont(pid, None)? }
    }
    let mut text = String::new();
    child.stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
    let marks = text.lines().find_map(|line| line.strip_prefix("marks "));
    let marks: Vec<u8> =
        marks.ok_or("no marks")?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    if marks.len() != pieces.len() || marks.len() <= EMPTY_MARKS {
        return Err(format!("{case}: {} marks, {} stops", marks.len(), pieces.len()).into());
    }
    let mut empty: Vec<u64> = pieces[..EMPTY_MARKS - 1].to_vec();
    empty.sort_unstable();
    let per_mark = empty[empty.len() / 2] as f64;
    let mut counts: BTreeMap<u8, StepCount> = BTreeMap::new();
    // After the last mark the child ends.
    let counted = EMPTY_MARKS..marks.len() - 1;
    for (step, piece) in marks[counted.clone()].iter().zip(&pieces[counted]) {
        let count = counts.entry(*step).or_default();
        count.times += 1;
        count.instructions += *piece as f64 - per_mark;
    }
    Ok(counts)
}
