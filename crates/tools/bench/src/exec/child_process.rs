//! [`ChildProcess`]: a program that runs during the measurement. It is asked to end when it is
//! dropped. If this process ends before, the kernel ends it (`PR_SET_PDEATHSIG`, which `setpriv`
//! sets).

// guarantee: D-19

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::setup;
use crate::BenchError;

/// Maximum time for a program to end after it was asked to.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a program has to end after it was asked to, before it is killed with all that it started.
const GRACE: Duration = Duration::from_secs(10);
/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Finds a program on the path.
///
/// # Errors
/// [`BenchError::Program`] with the Debian package that contains it.
pub(super) fn find(
    program: &'static str,
    why: &'static str,
    package: &'static str,
) -> Result<(), BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Also search the superuser's directories, which may be missing in the user's path.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    if directories.into_iter().any(|directory| directory.join(program).is_file()) {
        return Ok(());
    }
    Err(BenchError::Program { program, why, install: package })
}

/// Returns a command whose process ends with this process.
pub(super) fn command_dying_with_parent(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program).stdin(Stdio::null());
    command
}

/// Returns a command whose process ends with this process, and all processes that it starts, even if
/// they do not end when they are asked to: MariaDB does not while it starts.
pub(super) fn command_killed_with_parent(program: impl AsRef<OsStr>) -> Command {
    // Without a time limit, `timeout` passes the signal on to its group, and kills it after the grace.
    let mut command = command_dying_with_parent("timeout");
    command.arg(format!("--kill-after={}", GRACE.as_secs())).arg("0").arg(program);
    command
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot be run or fails; the message has its output.
pub(super) fn run_to_end(command: &mut Command) -> Result<Output, BenchError> {
    let out = command.output().map_err(|e| start_error(command, &e))?;
    if out.status.success() {
        return Ok(out);
    }
    Err(failed(command, out.status, &out.stderr))
}

fn start_error(command: &Command, error: &io::Error) -> BenchError {
    setup(format!("{}: {error}", line(command)))
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

pub(super) fn failed(command: &Command, status: ExitStatus, said: &[u8]) -> BenchError {
    let said = String::from_utf8_lossy(said);
    setup(format!("{}: {status}: {}", line(command), said.trim()))
}

/// A running program.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    line: String,
}

impl ChildProcess {
    /// Starts the program; its standard error is kept for a failure message.
    ///
    /// # Errors
    /// If it cannot be run.
    pub(super) fn start(command: &mut Command) -> Result<ChildProcess, BenchError> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| start_error(command, &e))?;
        Ok(ChildProcess { child, line: line(command) })
    }

    /// Returns the id of the process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a condition is true.
    ///
    /// # Errors
    /// If the program ends first, or at the timeout.
    pub(super) fn wait_until(&mut self, so: impl Fn() -> bool) -> Result<(), BenchError> {
        let begin = Instant::now();
        while !so() {
            if let Some(status) = self.child.try_wait()? {
                let said = self.stderr_text()?;
                return Err(setup(format!("{}: {status}: {}", self.line, said.trim())));
            }
            if begin.elapsed() > PROGRAM_TIMEOUT {
                return Err(setup(format!(
                    "{}: it is not ready after {PROGRAM_TIMEOUT:?}",
                    self.line
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the standard error of a program that has ended, at the first call.
    ///
    /// # Errors
    /// If it cannot be read, or is not UTF-8.
    pub(super) fn stderr_text(&mut self) -> Result<String, BenchError> {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said)?;
        }
        Ok(said)
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// At the timeout; the program is killed then.
    pub(super) fn wait(&mut self) -> Result<ExitStatus, BenchError> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() > PROGRAM_TIMEOUT {
                self.child.kill()?;
                self.child.wait()?;
                return Err(setup(format!("{}: it does not end", self.line)));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(process) = process {
            // The process has not been waited for, so its id is not reused.
            let _ = kill_process(process, Signal::TERM);
        }
        // Killed at the timeout; the error cannot be reported here.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_is_said_with_its_package() {
        let error = find("sluice-no-such-program", "it is measured", "a-package").unwrap_err();
        let said = error.to_string();
        assert!(said.contains("sluice-no-such-program") && said.contains("a-package"), "{said}");
        find("sh", "it is measured", "dash").unwrap();
    }

    #[test]
    fn a_killed_group_has_no_process_that_ignores_the_signal() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script =
            "trap '' TERM; echo $$ >\"$0\".new; mv \"$0\".new \"$0\"; while :; do sleep 1; done";
        let mut command = command_killed_with_parent("sh");
        let mut group = ChildProcess::start(command.args(["-c", script]).arg(&file)).unwrap();
        group.wait_until(|| file.exists()).unwrap();
        let pid = std::fs::read_to_string(&file).unwrap();
        let proc = std::path::Path::new("/proc").join(pid.trim());
        assert!(proc.exists());
        let begin = Instant::now();
        drop(group);
        // Its new parent may not have waited for it yet.
        let is_alive = || {
            let stat = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while is_alive() {
            assert!(begin.elapsed() < 3 * GRACE, "a process that ignores the signal remains");
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(begin.elapsed() >= GRACE, "it had {:?}", begin.elapsed());
    }

    #[test]
    fn what_fails_says_what_it_said() {
        let mut command = Command::new("sh");
        let error =
            run_to_end(command.args(["-c", "echo no luck >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("no luck") && error.contains('3'), "{error}");
        let mut early = ChildProcess::start(command.args(["-c", "exit 4"])).unwrap();
        let error = early.wait_until(|| false).unwrap_err().to_string();
        assert!(error.contains("no luck"), "{error}");
    }

    #[test]
    fn a_child_process_ends_when_it_is_dropped() {
        let companion = ChildProcess::start(command_dying_with_parent("sleep").arg("600")).unwrap();
        let process = companion.process();
        let there = || std::path::Path::new(&format!("/proc/{process}")).exists();
        assert!(there());
        drop(companion);
        assert!(!there());
    }
}
