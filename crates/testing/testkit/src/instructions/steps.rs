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

use super::Failed;

/// The mark of the code around the steps, whose instructions do not count.
pub const OUTSIDE: u8 = 0;

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
        // A signal of this thread to itself; it cannot fail.
        let _ = raise(Signal::SIGSTOP);
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
        (0..EMPTY_MARKS).for_each(|_| mark(OUTSIDE));
    })?;
    mark(OUTSIDE);
    IS_TRACED.store(false, Ordering::Relaxed);
    let marks = MARKS.take();
    let text: Vec<String> = marks.iter().map(u8::to_string).collect();
    println!("marks {}", text.join(" "));
    Ok(())
}

/// Counts the steps of a case of this program. Returns them by the argument of [`mark`].
///
/// # Errors
/// If the child fails, or cannot be traced.
pub fn count_case(case: &str) -> Result<BTreeMap<u8, StepCount>, Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["stepped", case])
        .stdout(Stdio::piped())
        .spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    // Instructions after each mark.
    let mut pieces: Vec<u64> = Vec::new();
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                if pieces.is_empty() {
                    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
                }
                pieces.push(0);
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                if let Some(piece) = pieces.last_mut() {
                    *piece += 1;
                }
            }
            WaitStatus::Exited(_, 0) => break,
            other => return Err(format!("{case}: the child ends with {other:?}").into()),
        }
        if pieces.is_empty() { ptrace::cont(pid, None)? } else { ptrace::step(pid, None)? }
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
