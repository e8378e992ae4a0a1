//! Table 2 of \[Spec14\]: instructions between an I/O and the point at which a program must wait, for
//! programs of Debian, by the paper's rule and by that of Sluice.
//!
//! Programs run once under the emulator and once natively: the ratio of both times is the slow-down.
//! Servers are profiled while a native client uses them. A program that is not installed is named on
//! standard error and has no rows.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use speculation_profile::{IoProfile, ProfileOptions, ProgramProfileError};

use super::BENCH;
use super::programs::{PROGRAMS, TableProgram, script};
use crate::{BenchError, Measurement, RunLength, Sink};

/// Programs whose mean of writes must be within a factor of ten of the paper's.
const PROGRAMS_MIN: f64 = 8.0;
/// Programs whose windows the rule of Sluice must make longer.
const LONGER: [&str; 3] = ["dd", "tar", "SQLite"];
/// Minimum of that factor.
const LONGER_MIN: f64 = 100.0;
/// Maximum of the slow-down.
const SLOWDOWN_MAX: f64 = 50.0;
/// A client of a server is killed after this time. The emulator makes a server start in many seconds.
const CLIENT_SECONDS: &str = "600";

impl From<ProgramProfileError> for BenchError {
    fn from(error: ProgramProfileError) -> BenchError {
        match error {
            ProgramProfileError::NoEmulator { .. } => BenchError::Program {
                program: "qemu-x86_64",
                why: "programs are profiled under it",
                install: "qemu-user",
            },
            error => BenchError::Setup(error.to_string()),
        }
    }
}

/// Measures the part. A program that fails has no rows, and a line says so.
///
/// # Errors
/// Without the emulator, and if a program fails that a bound is for.
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut close = 0.0;
    let mut missing = 0;
    for program in &PROGRAMS {
        if let Some((name, package)) = program.needs.iter().find(|(name, _)| !is_installed(name)) {
            eprintln!(
                "bench speculate: {}: {name} is not installed: `scripts/apt-install {package}`",
                program.name
            );
            missing += 1;
            continue;
        }
        match measure(program, length, sink) {
            Ok(is_close) => close += f64::from(u8::from(is_close)),
            // It is one of those outside of the order of magnitude; the others are measured.
            Err(BenchError::Setup(problem)) if !LONGER.contains(&program.name) => {
                eprintln!("bench speculate: {problem}");
            }
            Err(error) => return Err(error),
        }
    }
    let row = Measurement::new(BENCH, "table 2", "programs_in_order_of_magnitude", close, "1");
    let row = row.with_reference("programs", (PROGRAMS.len() - missing) as f64);
    sink.push(length.choose(row.clone().at_least(PROGRAMS_MIN), row))
}

/// Profiles a program. Returns whether its writes are in the paper's order of magnitude.
///
/// Inputs of a quick run are too short for the bounds.
fn measure(
    program: &TableProgram,
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<bool, BenchError> {
    let size = length.choose(10, 1);
    let profile = profiled(program, size)?;
    let [read, write, sync] = profile.io(Some(program.image));
    let paper = program.stands_for;
    let case = |kind: &str, rule: &str| format!("{}, {kind}, {rule}", program.name);
    let mut push = |io: &IoProfile, paper_mean: Option<f64>| -> Result<(), BenchError> {
        if io.calls == 0 {
            return Ok(());
        }
        for (rule, of) in [("paper's rule", &io.paper), ("rule of Sluice", &io.sluice)] {
            let case = case(io.kind, rule);
            let row = Measurement::new(BENCH, &case, "instructions", of.mean, "1");
            sink.push(match paper_mean.filter(|_| rule == "paper's rule") {
                Some(mean) => row.with_reference(format!("paper, {}", paper.name), mean),
                None => row,
            })?;
            sink.push(Measurement::new(BENCH, &case, "deviation", of.deviation, "1"))?;
        }
        let case = format!("{}, {}", program.name, io.kind);
        sink.push(Measurement::new(BENCH, case, "calls", io.calls as f64, "1"))
    };
    push(&read, Some(paper.reads))?;
    push(&write, Some(paper.writes))?;
    push(&sync, None)?;
    if LONGER.contains(&program.name) {
        let longer = write.sluice.mean / write.paper.mean;
        let case = format!("{}, write", program.name);
        let row = Measurement::new(BENCH, case, "window_by_rule_of_sluice", longer, "times");
        sink.push(length.choose(row.clone().at_least(LONGER_MIN), row))?;
    }
    if program.client.is_none() {
        let native = natively(program, size)?;
        let ratio = profile.elapsed().as_secs_f64() / native.as_secs_f64();
        let row = Measurement::new(BENCH, program.name, "slowdown", ratio, "times");
        sink.push(length.choose(row.clone().at_most(SLOWDOWN_MAX), row))?;
    }
    let ratio = write.paper.mean / paper.writes;
    Ok((0.1..=10.0).contains(&ratio))
}

fn profiled(
    program: &TableProgram,
    size: u32,
) -> Result<speculation_profile::SpeculationProfile, BenchError> {
    let folder = folder(program, size)?;
    let options = ProfileOptions {
        current_dir: Some(folder.path().to_path_buf()),
        is_silent: true,
        ..ProfileOptions::default()
    };
    let words = ["/bin/sh", "-c", &script(program.command, size)].map(std::ffi::OsString::from);
    let mut client = match program.client {
        Some(client) => {
            let mut command = Command::new("timeout");
            command.args(["--kill-after=10", CLIENT_SECONDS, "/bin/sh", "-c"]);
            command.arg(script(client, size)).current_dir(folder.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Some(command.spawn()?)
        }
        None => None,
    };
    let run = speculation_profile::run(&words, &options);
    if let Some(client) = &mut client {
        // A server that did not start has no client to wait for.
        if !run.as_ref().is_ok_and(|run| run.status.success()) {
            client.kill()?;
        }
        client.wait()?;
    }
    let run = run?;
    if !run.status.success() {
        let problem = format!("{} under the emulator: {}", program.name, run.status);
        return Err(BenchError::Setup(problem));
    }
    Ok(run.profile)
}

fn natively(program: &TableProgram, size: u32) -> Result<Duration, BenchError> {
    let folder = folder(program, size)?;
    let started = Instant::now();
    shell(program, program.command, size, folder.path())?;
    Ok(started.elapsed())
}

/// Returns a prepared folder.
fn folder(program: &TableProgram, size: u32) -> Result<tempfile::TempDir, BenchError> {
    let folder = tempfile::Builder::new().prefix("sluice-bench-").tempdir()?;
    // PostgreSQL runs as a user of its own.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    shell(program, program.prepare, size, folder.path())?;
    Ok(folder)
}

fn shell(
    program: &TableProgram,
    body: &str,
    size: u32,
    directory: &Path,
) -> Result<(), BenchError> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script(body, size)).current_dir(directory).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::Setup(format!("{}: {}: {}", program.name, output.status, said.trim())))
}

/// Returns whether a program is in the path, or in the directories of servers.
fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin".into(), "/sbin".into()]);
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    directories.extend(versions.map(|version| version.path().join("bin")));
    directories.iter().any(|directory| directory.join(name).is_file())
}
