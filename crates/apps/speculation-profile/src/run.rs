//! [`run`]: executes a program under the emulator, and reads its events until all its processes have
//! ended.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::program::find_program;
use crate::{EventRing, ProgramProfileError, SpeculationProfile, WindowRecorder};

/// The plugin; empty in a build for another host.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so"));
const EMULATOR: &str = "qemu-x86_64";
/// Pause while there are no events.
const IDLE: Duration = Duration::from_micros(200);
/// Time between checks of whether processes still exist.
const LIVENESS_PERIOD: Duration = Duration::from_millis(50);

/// Settings of a run.
#[derive(Clone, Debug, Default)]
pub struct ProfileOptions {
    /// Directories whose files are on the volume. Without, every regular file is.
    pub directories: Vec<PathBuf>,
    /// Program of the emulator; `qemu-x86_64` in `PATH` without.
    pub emulator: Option<PathBuf>,
    /// Whether standard input and the outputs of the program are `/dev/null`, and not those of this
    /// process.
    pub is_silent: bool,
    /// Directory in which the program starts; that of this process without.
    pub current_dir: Option<PathBuf>,
    /// Variables that are added to the environment of the program.
    pub environment: Vec<(OsString, OsString)>,
}

/// A run that ended.
#[derive(Debug)]
pub struct ProfileRun {
    /// How the program ended.
    pub status: ExitStatus,
    /// Results.
    pub profile: SpeculationProfile,
}

/// Runs a program with its arguments, and profiles it and all programs that it executes. Returns when
/// all of them have ended. Signals that ask this process to end are forwarded to the program.
///
/// # Errors
/// [`ProgramProfileError`].
pub fn run(
    program: &[OsString],
    options: &ProfileOptions,
) -> Result<ProfileRun, ProgramProfileError> {
    if PLUGIN.is_empty() {
        return Err(ProgramProfileError::OtherHost);
    }
    let (name, arguments) =
        program.split_first().ok_or(ProgramProfileError::NotFound { name: String::new() })?;
    let not_found = || ProgramProfileError::NotFound { name: name.to_string_lossy().into_owned() };
    let search = std::env::var("PATH").unwrap_or_default();
    let found = find_program(name.to_str().ok_or_else(not_found)?, &search)?;
    let emulator = emulator(options.emulator.as_deref(), &search)?;
    let mut directories = Vec::new();
    for directory in &options.directories {
        let wrong = |source| ProgramProfileError::Directory { path: directory.clone(), source };
        directories.push(directory.canonicalize().map_err(wrong)?);
    }
    // Profiled programs may run as other users, which then load the plugin.
    let folder = tempfile::Builder::new().prefix("sluice-profile-").tempdir();
    let folder = folder.map_err(ProgramProfileError::io("a temporary folder"))?;
    let path = folder.path();
    let opened = fs::set_permissions(path, fs::Permissions::from_mode(0o711));
    opened.map_err(ProgramProfileError::io("the temporary folder"))?;
    let plugin = path.join("plugin.so");
    fs::write(&plugin, PLUGIN).map_err(ProgramProfileError::io("the plugin"))?;
    let mut ring = EventRing::create(&path.join("events"), &directories)?;
    let mut command = Command::new(&emulator);
    let (shown, events) = (plugin.display(), ring.path().display().to_string());
    command.arg("-plugin").arg(format!("{shown},events={events},plugin={shown}"));
    if found.interpreters.is_empty() {
        command.arg("-0").arg(name);
    }
    command.args(&found.interpreters).arg(&found.path).args(arguments);
    command.envs(options.environment.iter().map(|(name, value)| (name, value)));
    if options.is_silent {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    if let Some(directory) = &options.current_dir {
        command.current_dir(directory);
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(ProgramProfileError::io("handlers of signals"))?;
    let started = Instant::now();
    let child = command.spawn().map_err(ProgramProfileError::io(emulator.display().to_string()))?;
    let (process, handle) = (child.id(), signals.handle());
    let forwarder = thread::spawn(move || {
        for signal in &mut signals {
            // The terminal sends its signals to the program directly.
            if matches!(signal, SIGHUP | SIGTERM) {
                forward(process, signal);
            }
        }
    });
    let followed = follow(child, &mut ring, started);
    handle.close();
    // The thread only forwards signals: it has nothing to report.
    let _ = forwarder.join();
    let (status, recorder) = followed?;
    if !recorder.has_started() {
        return Err(match plugins_work(&emulator) {
            true => ProgramProfileError::NotStarted { emulator, status },
            false => ProgramProfileError::NoPlugins { emulator },
        });
    }
    let mut profile = recorder.finish(started.elapsed());
    profile.lost_events = ring.lost();
    profile.invalid_events += ring.invalid();
    Ok(ProfileRun { status, profile })
}

fn follow(
    mut child: Child,
    ring: &mut EventRing,
    started: Instant,
) -> Result<(ExitStatus, WindowRecorder), ProgramProfileError> {
    let mut recorder = WindowRecorder::new();
    let mut status = None;
    let mut checked = started;
    loop {
        let now = Instant::now();
        let mut is_idle = true;
        while let Some(event) = ring.next(now) {
            recorder.record(&event);
            is_idle = false;
        }
        if now.duration_since(checked) >= LIVENESS_PERIOD || (is_idle && status.is_none()) {
            if status.is_none() {
                status = child.try_wait().map_err(ProgramProfileError::io("the program"))?;
            }
            checked = now;
        }
        if let Some(status) = status
            && ring.is_empty()
            && is_idle
        {
            let live: Vec<u32> = recorder.live_processes().collect();
            for process in live {
                if !exists(process) && ring.is_empty() {
                    recorder.process_gone(process);
                }
            }
            if recorder.live_processes().next().is_none() && ring.is_empty() {
                return Ok((status, recorder));
            }
        }
        if is_idle {
            thread::sleep(IDLE);
        }
    }
}

/// Returns whether a process exists. One that has ended and that its parent has not waited for does
/// not.
fn exists(process: u32) -> bool {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.starts_with(['Z', 'X'])
}

fn forward(process: u32, signal: i32) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    if let (Some(process), Some(signal)) = (process, Signal::from_named_raw(signal)) {
        // The program may have ended.
        let _ = kill_process(process, signal);
    }
}

/// Finds the emulator.
fn emulator(given: Option<&Path>, search: &str) -> Result<PathBuf, ProgramProfileError> {
    let missing = |emulator: String| ProgramProfileError::NoEmulator { emulator };
    match given {
        Some(path) if path.is_file() => Ok(path.to_path_buf()),
        Some(path) => Err(missing(path.display().to_string())),
        None => search
            .split(':')
            .map(|directory| Path::new(directory).join(EMULATOR))
            .find(|path| path.is_file())
            .ok_or_else(|| missing(EMULATOR.to_owned())),
    }
}

/// Returns whether the emulator's help names the option for plugins.
fn plugins_work(emulator: &Path) -> bool {
    let help = Command::new(emulator).arg("--help").output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("-plugin"))
}
