//! [`CrashHarness`]: a volume on a drive, a program that uses it, and four kinds of cuts.
//!
//! The drive is emulated, with a volatile write buffer and an image. `kill -9` of the process that
//! holds the image is a power cut (`docs/format/image.md`): the buffered data is lost, and programs
//! in flight are torn.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rng::Rng;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    waitpgid, waitpid,
};

use super::library::{SLUICE, build, text};

/// Longer than any operation on a loaded machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The processes that are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Only the program; `sluice exec` then closes the volume cleanly.
    Program,
    /// `sluice exec`, with the volume in a file of the host; the program keeps running without its
    /// files.
    Service,
    /// `sluice serve`, which has the drive; `sluice exec` and the program keep running without it.
    Server,
    /// Program, service and drive at once, as in a power failure.
    Power,
}

/// A drive with a volatile write buffer and capacity for a volume, shared as partition `db`.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\n\
    geometry = { channels = 2, pus = 4, chunks = 128, pages = 64 }\n\
    timing = { read = \"10us\", program = \"50us\", erase = \"200us\" }\n\
    write_buffer = { kind = \"volatile\", size = \"1m\" }\n\
    [[partition]]\nname = \"db\"\nfirst = 0\nsectors = 40000\n";

/// Returns a directory in memory if there is enough space. Only processes are killed, so the host
/// keeps their files in any case.
fn directory() -> tempfile::TempDir {
    const SHM_BYTES_MIN: u64 = 2 << 30;
    let room = |has: rustix::fs::StatVfs| has.f_bavail * has.f_frsize;
    let memory = "/dev/shm";
    if rustix::fs::statvfs(memory).is_ok_and(|has| room(has) >= SHM_BYTES_MIN)
        && let Ok(dir) = tempfile::tempdir_in(memory)
    {
        return dir;
    }
    tempfile::tempdir().unwrap()
}

/// A volume, and the kind of its cuts.
pub(crate) struct CrashHarness {
    pub(crate) cut: Cut,
    dir: tempfile::TempDir,
    /// Mount point of the volume; an empty directory on the host.
    at: tempfile::TempDir,
    server: Option<Child>,
    /// Options of `sluice exec`.
    options: Vec<&'static str>,
}

impl CrashHarness {
    /// Creates a harness with a new volume.
    pub(crate) fn new(cut: Cut) -> CrashHarness {
        CrashHarness::with_drive(cut, DRIVE)
    }

    /// Creates a harness with a new volume on the drive of a scenario, whose image is `drive.img`.
    pub(crate) fn with_drive(cut: Cut, drive: &str) -> CrashHarness {
        build();
        // This process reaps orphans at once; the machine's init process might reap them late.
        set_child_subreaper(Some(getpid())).unwrap();
        let (dir, at) = (directory(), tempfile::tempdir().unwrap());
        let mut harness = CrashHarness { cut, dir, at, server: None, options: Vec::new() };
        if cut == Cut::Service {
            File::create(harness.path("disk.img")).unwrap().set_len(160 << 20).unwrap();
        } else {
            std::fs::write(harness.path("drive.toml"), drive).unwrap();
        }
        harness.serve();
        let out = harness.sluice(&["volume", "format", &harness.volume()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        harness
    }

    /// Makes every write of programs durable before it returns.
    pub(crate) fn set_sync_writes(&mut self) {
        self.options.push("--sync");
    }

    /// Lets syncs of programs return at once, with a value of `--speculate` for their output.
    pub(crate) fn speculating(mut self, mode: &'static str) -> CrashHarness {
        self.options.extend(["--speculate", mode]);
        self
    }

    /// Returns a path in the directory of the test.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the path of the volume as the program sees it.
    pub(crate) fn at(&self) -> String {
        self.at.path().canonicalize().unwrap().to_str().unwrap().to_owned()
    }

    fn volume(&self) -> String {
        match self.cut {
            Cut::Service => self.path("disk.img"),
            Cut::Server => format!("sluice://{}#db", self.path("share.sock")),
            Cut::Program | Cut::Power => self.path("drive.toml"),
        }
    }

    /// Starts the server if the cut needs one, and waits until clients can connect.
    fn serve(&mut self) {
        if self.cut != Cut::Server {
            return;
        }
        let mut command = Command::new(SLUICE);
        command.args(["serve", &self.path("drive.toml"), "--socket", &self.path("share.sock")]);
        let log = |name: &str| File::create(self.path(name)).unwrap();
        let mut server =
            command.stdout(log("server.out")).stderr(log("server.err")).spawn().unwrap();
        let begun = Instant::now();
        while !std::fs::read_to_string(self.path("server.out")).unwrap().contains("sharing ") {
            let ended = server.try_wait().unwrap();
            let said = std::fs::read_to_string(self.path("server.err")).unwrap();
            assert!(ended.is_none() && begun.elapsed() < TEST_TIMEOUT, "the server: {said}");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = Some(server);
    }

    pub(crate) fn sluice(&self, args: &[&str]) -> Output {
        Command::new("timeout").args(["-s", "KILL", "60", SLUICE]).args(args).output().unwrap()
    }

    /// Returns the command that runs a program on the volume.
    fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new(SLUICE);
        let (volume, at) = (self.volume(), self.at());
        command.args(["exec", "--volume", &volume, "--at", &at]);
        command.args(&self.options).arg("--").args(program);
        // In a process group of their own, because a cut may kill service and program at once.
        command.current_dir(self.dir.path()).process_group(0);
        // A copy that other users can read.
        let library = self.path("libsluice_preload.so");
        if Path::new(&library).exists() {
            command.env("SLUICE_PRELOAD", library);
        }
        command
    }

    /// Runs a program on the volume to its end.
    pub(crate) fn run(&self, program: &[&str]) -> Output {
        let running = self.start(program, Stdio::piped());
        running.output()
    }

    /// Starts a program on the volume. Its standard output is a pipe; its standard error is a file
    /// of the directory.
    pub(crate) fn start(&self, program: &[&str], stdin: Stdio) -> Running<'_> {
        let mut options = File::options();
        options.create(true).truncate(true).read(true).write(true);
        let said = options.open(self.path("said")).unwrap();
        let mut command = self.command(program);
        command.stdin(stdin).stdout(Stdio::piped()).stderr(said.try_clone().unwrap());
        let child = command.spawn().unwrap();
        Running { harness: self, child, stderr: said, is_over: false }
    }

    /// Occasionally starts the program and cuts before it has finished, so that a recovery is
    /// interrupted. Only with cuts that kill the program itself, because an idle program does not
    /// notice the others.
    pub(crate) fn run_with_cut(&mut self, program: &[&str], stdin: &str, rng: &mut Rng) {
        if !matches!(self.cut, Cut::Program | Cut::Power) || !rng.chance(0.3) {
            return;
        }
        let mut running = self.start(program, Stdio::piped());
        let mut input = running.stdin();
        // The program may have been killed before it reads this.
        let _ = input.write_all(stdin.as_bytes());
        std::thread::sleep(Duration::from_micros(rng.below(120_000)));
        running.cut();
        running.wait_all();
        self.restart();
    }

    /// Changes the scenario of the drive, whose image stays.
    pub(crate) fn set_drive(&self, drive: &str) {
        std::fs::write(self.path("drive.toml"), drive).unwrap();
    }

    /// Copies the image of the drive, whose volume is not in use.
    pub(crate) fn save_image(&self) {
        copy_sparse(&self.path("drive.img"), &self.path("saved.img"));
    }

    /// Returns the image to the state that was saved last.
    pub(crate) fn restore_image(&self) {
        copy_sparse(&self.path("saved.img"), &self.path("drive.img"));
    }

    /// After a cut: restarts the server if there is one, and checks that fsck finds the volume
    /// clean.
    pub(crate) fn restart(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
            self.serve();
        }
        let out = self.sluice(&["volume", "fsck", &self.volume()]);
        let said = text(&out.stdout);
        // A program that has unlinked an open file may be killed before it closes it; the next
        // mount removes such a file.
        let wrong = |line: &&str| !line.ends_with("has lost its name and its last user");
        let found: Vec<&str> = said.lines().filter(wrong).collect();
        assert_eq!((found, out.status.success()), (vec!["clean"], true), "{}", text(&out.stderr));
    }
}

impl Drop for CrashHarness {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A running program on the volume.
pub(crate) struct Running<'b> {
    harness: &'b CrashHarness,
    child: Child,
    /// Standard error of the program.
    stderr: File,
    is_over: bool,
}

impl Running<'_> {
    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Returns the text written to standard error.
    pub(crate) fn stderr_text(&self) -> String {
        let (mut said, mut all) = (self.stderr.try_clone().unwrap(), Vec::new());
        said.rewind().unwrap();
        said.read_to_end(&mut all).unwrap();
        text(&all)
    }

    /// Returns whether the program has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn output(mut self) -> Output {
        drop(self.child.stdin.take());
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        self.is_over = true;
        Output { status, stdout, stderr: self.stderr_text().into_bytes() }
    }

    /// Cuts. Processes that have lost their files end at their next access ([`Running::wait_all`]),
    /// or at an output that waits for what they have synced.
    pub(crate) fn cut(&mut self) {
        match self.harness.cut {
            Cut::Program => {
                // The program may have ended, or may not have started yet.
                let mut found = children(self.child.id());
                while found.is_empty() && !self.has_ended() {
                    found = children(self.child.id());
                }
                for process in found {
                    let _ = kill_process(process, Signal::KILL);
                }
            }
            Cut::Service => self.child.kill().unwrap(),
            Cut::Server => {
                let server = self.harness.server.as_ref().unwrap();
                kill_process(Pid::from_child(server), Signal::KILL).unwrap();
            }
            Cut::Power => self.kill().unwrap(),
        }
    }

    /// Sends a signal to the service.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the service, which ends after all processes of the program.
    pub(crate) fn status(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.is_over = true;
        status
    }

    /// Kills the remaining processes of service and program.
    pub(crate) fn kill(&self) -> rustix::io::Result<()> {
        kill_process_group(Pid::from_child(&self.child), Signal::KILL)
    }

    /// Waits for the end of the service and of all processes that it leaves behind.
    pub(crate) fn wait_all(mut self) {
        let begun = Instant::now();
        let group = Pid::from_child(&self.child);
        let orphan_ends =
            || waitpgid(group, WaitOptions::NOHANG).is_ok_and(|ended| ended.is_some());
        // Waits for the service first, so that its process number is not reused by another group
        // meanwhile.
        while self.child.try_wait().unwrap().is_none()
            || orphan_ends()
            || kill_session_leaders()
            || rustix::process::test_kill_process_group(group).is_ok()
        {
            let hangs = begun.elapsed() > TEST_TIMEOUT;
            assert!(
                !hangs,
                "{:?}: the processes do not end: {}",
                self.harness.cut,
                self.stderr_text()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.is_over = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Copies a file that is mainly holes.
fn copy_sparse(from: &str, to: &str) {
    let out = Command::new("cp").args(["--sparse=always", from, to]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
}

/// Kills orphans that lead a session of their own, as PostgreSQL's processes do. Returns whether
/// there were some.
fn kill_session_leaders() -> bool {
    let mut orphans = children(std::process::id());
    orphans.retain(|process| leads_session(*process));
    for process in &orphans {
        let _ = kill_process(*process, Signal::KILL);
        let _ = waitpid(Some(*process), WaitOptions::empty());
    }
    !orphans.is_empty()
}

/// Returns whether a process leads a session. `getsid` of rustix cannot tell: it panics if the
/// leader of the session is outside of the namespace of process numbers, as in a container.
fn leads_session(process: Pid) -> bool {
    let number = process.as_raw_nonzero().get();
    stat_numbers(&number.to_string()).is_some_and(|[_, _, session]| session == number)
}

/// Returns the children of a process.
fn children(parent: u32) -> Vec<Pid> {
    let of = |entry: std::fs::DirEntry| {
        let process = entry.file_name().into_string().ok()?;
        let [above, ..] = stat_numbers(&process)?;
        (above.cast_unsigned() == parent).then_some(process.parse().ok()?).and_then(Pid::from_raw)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.unwrap())).collect()
}

/// Returns parent, group and session of a process.
fn stat_numbers(process: &str) -> Option<[i32; 3]> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The numbers follow name and state. The name may contain blanks.
    let fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
    let numbers: Vec<i32> = fields.map_while(|field| field.parse().ok()).take(3).collect();
    numbers.try_into().ok()
}

/// Returns the seed of a run: `SLUICE_SEED`, or `default`.
pub(crate) fn seed(default: u64) -> u64 {
    std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default)
}

/// Prints how to replay a failing run.
pub(crate) struct Repeat(pub(crate) u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with SLUICE_SEED={}", self.0);
        }
    }
}

/// Sleeps briefly, so that the cut can occur at any time between two replies.
pub(crate) fn moment(rng: &mut Rng) {
    if rng.chance(0.7) {
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
    }
}
