//! `sluice exec`: runs a program whose files below one directory are on a volume (`docs/exec.md`).
//!
//! This process owns the volume and serves files. The program is its child, with
//! `libsluice_preload.so` loaded into it. This process ends when the program and all its
//! descendants have ended, with the exit status of the program.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;

use event::IdlePolicy;
use exec::{
    OutboxLimits, OutboxStats, OutputSupervisor, Service, ServiceAddress, ServiceStats,
    SpeculationStats,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use stack::WriteLogStats;
use time::Nanos;
use volume::Options;

use super::volume_command::{hexadecimal, open_store};
use crate::CliError;
use crate::args::{ExecArgs, Speculate, VolumeDevice, VolumeFormatArgs};

/// Environment variable with the path of the library, if it is not beside the executable.
const ENV_LIBRARY: &str = "SLUICE_PRELOAD";
const LIBRARY: &str = "libsluice_preload.so";
/// Threads that run at a time when a program speculates: its own, the service's and the drive's.
const SPECULATION_THREADS: usize = 3;
/// Bytes of a transaction and pages of a program that speculates: what it changes between two
/// transactions stays in memory, and half of a transaction can be data.
const SPECULATION_TXN_BYTES: u32 = 16 << 20;
const SPECULATION_PAGES: u32 = 16_384;
/// Time after which a sync is durable without an output: that of ext3 and ext4.
const COMMIT_INTERVAL: Nanos = Nanos::from_secs(5);

fn other(error: impl std::fmt::Display) -> CliError {
    CliError::Other(error.to_string())
}

/// Runs `sluice exec`.
///
/// # Errors
/// [`CliError`] if the program cannot be run with the library, if the directory, the device or the
/// volume cannot be used, or if the volume cannot be closed.
pub fn run(args: &ExecArgs) -> Result<ExitCode, CliError> {
    let at = directory(&args.at)?;
    let (name, arguments) = args.program.split_first().ok_or_else(|| usage("no program"))?;
    let name = name.to_str().ok_or_else(|| usage("the program's name is not UTF-8"))?;
    let search = std::env::var("PATH").unwrap_or_default();
    let program = exec::program::find(name, &search).map_err(usage)?;
    let library = library()?;
    let token = hexadecimal("/proc/sys/kernel/random/uuid")?;
    let name = format!("sluice-exec-{:016x}", hexadecimal("/proc/sys/kernel/random/uuid")? as u64);
    let address = ServiceAddress { name, token: format!("{token:032x}") };
    let on = VolumeDevice { device: args.volume.clone(), write_log: args.write_log.clone() };
    let new = VolumeFormatArgs { on, size: None, label: String::new(), unit: None, force: false };
    let (options, idle) = match args.speculate {
        Speculate::Off if args.commit_interval.is_some() => {
            return Err(usage("--commit-interval needs --speculate: without it syncs wait"));
        }
        Speculate::Off => (Options::default(), IdlePolicy::default()),
        Speculate::Wait | Speculate::Buffer => {
            let options = Options {
                txn_bytes: SPECULATION_TXN_BYTES,
                cache_pages: SPECULATION_PAGES,
                barrier_delay: args.commit_interval.unwrap_or(COMMIT_INTERVAL),
                ..Options::default()
            };
            (options, drive_idle(thread::available_parallelism().map_or(1, usize::from)))
        }
    };
    let (store, device, _claim) = open_store(&new.on, args.format.then_some(&new), options, idle)?;
    let mut service = Service::new(store, &address).map_err(other)?;
    if args.sync {
        service.set_sync_writes();
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(other)?;
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload(&library))
        .env(exec_proto::ENV_SERVICE, address.environment())
        .env(exec_proto::ENV_MOUNT, &at)
        .env_remove(exec_proto::ENV_CWD);
    let outbox = match args.speculate {
        Speculate::Off => None,
        Speculate::Wait => Some(OutboxLimits::NONE),
        Speculate::Buffer => Some(OutboxLimits::default()),
    };
    let supervisor = outbox.map(|outbox| service.speculate(outbox)).transpose().map_err(other)?;
    if let Some(supervisor) = &supervisor {
        supervisor.prepare(&mut command);
    }
    let stop = service.stop();
    let started = command.spawn();
    // The program keeps its own limit. In this process, every open file and every process needs a
    // descriptor.
    raise_descriptor_limit();
    let waiter = started.map(|mut child: Child| {
        let process = child.id();
        thread::spawn(move || {
            for signal in &mut signals {
                // The terminal sends its signals to the program directly.
                if matches!(signal, SIGHUP | SIGTERM) {
                    forward(process, signal);
                }
            }
        });
        thread::spawn(move || {
            let status = child.wait();
            stop.stop();
            status
        })
    });
    if waiter.is_err() {
        service.stop().stop();
        supervisor.iter().for_each(OutputSupervisor::cancel);
    }
    let served = match device.completion() {
        Some(completion) => service.run_with(device.clock(), completion),
        None => service.run(device.clock()),
    };
    let served = served.map_err(other);
    let waiter = waiter.map_err(|e| other(format!("{}: {e}", program.display())))?;
    let status = waiter.join().map_err(|_| other("the program could not be waited for"))?;
    supervisor.map_or(Ok(()), OutputSupervisor::join).map_err(other)?;
    let (mut queue, counters) = served?;
    let log = stack::log_stats(&mut queue);
    drop((queue, device));
    if counters.writeback_failures > 0 {
        let lost = counters.writeback_failures;
        eprintln!(
            "sluice exec: changes by mappings that had no room or no device: of {lost} files"
        );
    }
    if args.stats {
        eprintln!("{}", stats_text(&counters));
        if args.speculate != Speculate::Off {
            eprintln!("{}", speculation_text(&counters.speculation));
        }
        if args.speculate == Speculate::Buffer {
            eprintln!("{}", outbox_text(&counters.speculation.outbox));
        }
        log.iter().for_each(|log| eprintln!("{}", log_text(log)));
    }
    Ok(exit_code(status.map_err(other)?))
}

/// Raises the limit of descriptors to the maximum that the system allows. A failure is ignored.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn usage(error: impl std::fmt::Display) -> CliError {
    CliError::Usage(error.to_string())
}

/// Resolves links in the existing part of the directory's path. An existing directory must be
/// empty.
fn directory(at: &Path) -> Result<PathBuf, CliError> {
    let wrong = |why: &str| usage(format!("--at {}: {why}", at.display()));
    let absolute = std::path::absolute(at).map_err(|e| wrong(&e.to_string()))?;
    let dots = |part: std::path::Component| matches!(part, std::path::Component::ParentDir);
    if absolute.components().any(dots) {
        return Err(wrong("a path without `..` is wanted"));
    }
    let mut missing = Vec::new();
    let mut there = absolute.clone();
    let mut resolved = loop {
        match there.canonicalize() {
            Ok(resolved) => break resolved,
            Err(_) => match there.file_name() {
                Some(name) => missing.push(name.to_owned()),
                None => return Err(wrong("it cannot be resolved")),
            },
        }
        there.pop();
    };
    if missing.is_empty() {
        let mut entries = resolved.read_dir().map_err(|e| wrong(&e.to_string()))?;
        if entries.next().is_some() {
            return Err(wrong("it has files, which the volume would hide: use an empty directory"));
        }
    }
    resolved.extend(missing.iter().rev());
    let hidden = ["/proc", "/sys", "/dev"].iter().any(|dir| resolved.starts_with(dir));
    if hidden || resolved.parent().is_none() {
        return Err(wrong("not a directory for files"));
    }
    Ok(resolved)
}

/// Returns the path of the library: from the environment, or beside the executable.
fn library() -> Result<PathBuf, CliError> {
    if let Some(path) = std::env::var_os(ENV_LIBRARY) {
        let path = PathBuf::from(path);
        let there = path.canonicalize();
        return there.map_err(|e| usage(format!("{ENV_LIBRARY}={}: {e}", path.display())));
    }
    let own = std::env::current_exe().map_err(other)?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_path_buf(), beside.join("deps"), beside.join("../lib")];
    let found = places.iter().map(|dir| dir.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let beside = beside.display();
        other(format!(
            "{LIBRARY} is neither in {beside} nor in {beside}/../lib: `cargo build --package \
             sluice-preload` builds it, and {ENV_LIBRARY} says where it is"
        ))
    })
}

/// Returns the value of `LD_PRELOAD`: the library, and the current value.
fn preload(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Forwards a signal to the program, unless it has already ended.
fn forward(process: u32, signal: i32) {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let signal = rustix::process::Signal::from_named_raw(signal);
    if let (Some(process), Some(signal)) = (process, signal) {
        let _ = rustix::process::kill_process(process, signal);
    }
}

/// Returns the wait of an emulated drive's thread under a program that speculates, on a machine with
/// this many cores. The program does not wait for the drive, but may wait for a core.
fn drive_idle(cores: usize) -> IdlePolicy {
    if cores < SPECULATION_THREADS { IdlePolicy::PARK } else { IdlePolicy::default() }
}

/// Ends as the program did: by the same signal or with the same status.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // Returns only for signals that do not end a process.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from(128u8.wrapping_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

fn log_text(log: &WriteLogStats) -> String {
    let WriteLogStats { logged_writes, logged_sectors, persists, passed_changes, .. } = log;
    let WriteLogStats { absorbed_flushes, device_flushes, destaged_sectors, space_waits, .. } = log;
    format!(
        "log: {logged_writes} writes of {logged_sectors} sectors, {persists} persists; {passed_changes} \
         changes passed, {absorbed_flushes} flushes absorbed, {device_flushes} of the device; \
         {destaged_sectors} sectors destaged, {space_waits} waits for space"
    )
}

fn speculation_text(counters: &SpeculationStats) -> String {
    let SpeculationStats { syncs, barriers, waited, stopped, passed, failed, .. } = counters;
    let (total, max) = (counters.wait_total, counters.wait_max);
    let ended = if counters.has_ended { "; ended, because the program shares memory" } else { "" };
    format!(
        "speculation: {syncs} syncs, {barriers} barriers; {waited} outputs waited, {total} in total, \
         {max} at most; {stopped} stopped without a wait, {passed} passed, {failed} failed{ended}"
    )
}

fn outbox_text(counters: &OutboxStats) -> String {
    let OutboxStats { buffered, bytes, sent, failed, dropped, overflows, .. } = counters;
    let (total, max) = (counters.delay_total, counters.delay_max);
    format!(
        "outbox: {buffered} sends of {bytes} bytes, {total} in total, {max} at most; {sent} sent, \
         {failed} without a peer, {dropped} dropped, {overflows} did not fit"
    )
}

fn stats_text(counters: &ServiceStats) -> String {
    let ServiceStats { calls, posted_writes: left, refused, sessions, opened, sleeps, .. } =
        counters;
    let ServiceStats { mapped, written_back, store, .. } = counters;
    let volume::Stats {
        syncs,
        commits,
        data_bytes,
        journaled_bytes: logged_bytes,
        journaled_blocks: logged_blocks,
        ..
    } = store;
    let volume::Stats { whole_writes_journaled, journal_sectors, checkpoints, flushes, .. } = store;
    let device_bytes_written = store.device_bytes_written;
    format!(
        "sluice exec: {calls} calls, {left} writes left, {refused} refused, {opened} opened, {sessions} sessions, {sleeps} sleeps, \
         {mapped} mapped, {written_back} bytes brought back from mappings\n\
         volume: {syncs} syncs, {commits} transactions of {journal_sectors} sectors, with {logged_bytes} bytes of \
         {logged_blocks} blocks, {whole_writes_journaled} parts of writes to keep them whole; {data_bytes} bytes in place, {flushes} flushes, {checkpoints} snapshots; \
         {device_bytes_written} bytes written to the device"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_s_thread_spins_only_on_a_core_that_none_else_needs() {
        assert_eq!([1, 2].map(drive_idle), [IdlePolicy::PARK; 2]);
        assert_eq!([3, 64].map(drive_idle), [IdlePolicy::default(); 2]);
    }
}
