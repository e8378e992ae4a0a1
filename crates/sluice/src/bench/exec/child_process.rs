//! [`ChildProcess`]: a program that runs beside the measurement. It is asked to end when the companion is dropped,
//! and by the kernel when this process ends without that (`PR_SET_PDEATHSIG`, which `setpriv` sets).

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::setup;
use crate::bench::BenchError;

/// How long a program has to end after it has been asked to.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Whether a program is on the path.
///
/// # Errors
/// [`BenchError::Program`] says which Debian package has it.
pub(super) fn find(
    program: &'static str,
    why: &'static str,
    package: &'static str,
) -> Result<(), BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The superuser's programs are there even if the user's path does not say so.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    if directories.into_iter().any(|directory| directory.join(program).is_file()) {
        return Ok(());
    }
    Err(BenchError::Program { program, why, install: package })
}

/// A command that ends with this process.
pub(super) fn command_dying_with_parent(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be run or fails; with what it said.
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

/// It.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    line: String,
}

impl ChildProcess {
    /// Starts it; what it says on standard error is kept for when it fails.
    ///
    /// # Errors
    /// When it cannot be run.
    pub(super) fn start(command: &mut Command) -> Result<ChildProcess, BenchError> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| start_error(command, &e))?;
        Ok(ChildProcess { child, line: line(command) })
    }

    /// The process that was started.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something is so.
    ///
    /// # Errors
    /// When the program ends first, or it takes too long.
    pub(super) fn wait_until(&mut self, so: impl Fn() -> bool) -> Result<(), BenchError> {
        let begin = Instant::now();
        while !so() {
            if let Some(status) = self.child.try_wait()? {
                let mut said = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    stderr.read_to_string(&mut said)?;
                }
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

    /// Waits for its end.
    ///
    /// # Errors
    /// When it takes too long: it is killed then.
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
            // Not waited for yet, so the number is still its own.
            let _ = kill_process(process, Signal::TERM);
        }
        // Killed if it takes too long; there is nobody left to tell.
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
    fn a_companion_ends_when_it_is_dropped() {
        let companion = ChildProcess::start(command_dying_with_parent("sleep").arg("600")).unwrap();
        let process = companion.process();
        let there = || std::path::Path::new(&format!("/proc/{process}")).exists();
        assert!(there());
        drop(companion);
        assert!(!there());
    }
}
