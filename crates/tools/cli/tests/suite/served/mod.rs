//! [`Server`]: a `sluice serve` in a process of its own, on a Unix socket in a temporary folder;
//! and the programs that connect to it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod numbered;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any operation on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A small, fast drive: 16 parallel units, 58 MiB of logical capacity.
pub const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 64 }\n\
    timing = { read = \"10us\", program = \"30us\", erase = \"100us\" }\n";

/// Returns a scenario with logical blocks of 512 bytes on a drive that maps 4 KiB.
pub fn small_blocks() -> String {
    DRIVE.replace("[drive]\n", "[drive]\nlba_bytes = 512\n")
}

/// Returns a scenario with the FTL on the host.
pub fn pblk() -> String {
    format!(
        "{DRIVE}personality = \"open-channel\"\n[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n"
    )
}

/// Returns a scenario with `pblk` in two shards.
pub fn shards() -> String {
    pblk() + "shards = 2\n"
}

/// Returns the scenario with a block layer for `cores` cores.
pub fn on_cores(scenario: &str, queue_model: &str, cores: u16) -> String {
    format!("{scenario}[path]\nqueue_model = \"{queue_model}\"\ncores = {cores}\n")
}

/// Returns the scenario with the drive's data in a file.
pub fn in_file(scenario: &str) -> String {
    scenario.replace("[drive]\n", "[drive]\ndata = \"file\"\npath = \"drive.img\"\n")
}

/// Returns the `sluice` that was built with the tests. A guest of `make test-guest` has it elsewhere,
/// and names it by the variable that cargo sets.
fn sluice() -> Command {
    const BUILT: &str = env!("CARGO_BIN_EXE_sluice");
    Command::new(std::env::var_os("CARGO_BIN_EXE_sluice").unwrap_or_else(|| BUILT.into()))
}

/// A server; killed when dropped.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
    dir: PathBuf,
    ended: bool,
}

impl Server {
    /// Serves a scenario from `dir`, and waits until clients can connect.
    pub fn start(dir: &Path, scenario: &str) -> Server {
        let server = Server::launch(dir, scenario, &[]);
        server.wait_ready()
    }

    /// Starts the process.
    pub fn launch(dir: &Path, scenario: &str, extra: &[&str]) -> Server {
        Server::launch_path(dir, scenario, "", extra)
    }

    /// Starts the process for a path of the scenario, as `"#NAME"`.
    pub fn launch_path(dir: &Path, scenario: &str, name: &str, extra: &[&str]) -> Server {
        let nbd = format!("unix:{}", dir.join("nbd.sock").display());
        Server::launch_exports(dir, scenario, name, &[&["--nbd", &nbd], extra].concat())
    }

    /// Starts the process for a scenario with `[[export]]` sections, one of them at `nbd.sock`.
    pub fn launch_exports(dir: &Path, scenario: &str, name: &str, extra: &[&str]) -> Server {
        let path = dir.join("scenario.toml");
        std::fs::write(&path, scenario).unwrap();
        let socket = dir.join("nbd.sock");
        let file = |name| File::create(dir.join(name)).unwrap();
        // A killed server leaves its socket; clients must not connect to that one.
        let _ = std::fs::remove_file(&socket);
        let child = sluice()
            .arg("serve")
            .arg(format!("{}{name}", path.display()))
            .arg("--json")
            .arg(dir.join("served.json"))
            .args(extra)
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        Server { child, socket, dir: dir.to_path_buf(), ended: false }
    }

    pub fn wait_ready(mut self) -> Server {
        let start = Instant::now();
        while !self.stdout().contains("\n") {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the server ended with {status}: {}", self.stderr());
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "not ready: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.join("stdout")).unwrap()
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr")).unwrap()
    }

    /// Returns the URI of an export; the empty name is the default one.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.ended = true;
                return status;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "the server does not end: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server, which is a power cut for the drive.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Stops the server, which must shut down cleanly. Returns the statistics of the first drive.
    pub fn stop(self) -> Value {
        self.stop_all()["drives"][0].take()
    }

    /// Stops the server, which must shut down cleanly. Returns the statistics.
    pub fn stop_all(mut self) -> Value {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.stderr());
        assert!(!self.socket.exists(), "a clean shutdown must remove the socket");
        assert!(self.stdout().contains("late_p99"), "{}", self.stdout());
        let json = std::fs::read_to_string(self.dir.join("served.json")).unwrap();
        serde_json::from_str::<Value>(&json).unwrap()["sluice"].take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the command for a program of a Debian package; panics with the package's name if it is
/// not installed.
pub fn program(name: &str, package: &str) -> Command {
    if Command::new(name).arg("--version").output().is_err() {
        panic!("`{name}` is not installed: apt-get install {package}, or `make test-packages`");
    }
    let mut command = Command::new("timeout");
    command.arg("120").arg(name);
    command
}

/// Runs a program that must succeed, and returns its output.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("`timeout` of coreutils runs");
    assert!(
        output.status.success(),
        "{command:?} failed with {}:\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns the command for fio on a server.
pub fn fio(server: &Server, options: &[&str]) -> Command {
    fio_at(server, "", options)
}

/// Returns the command for fio on an export of a server.
pub fn fio_at(server: &Server, export: &str, options: &[&str]) -> Command {
    let mut command = program("fio", "fio");
    command.args(["--name=job", "--ioengine=nbd", "--output-format=json"]);
    // Without this, fio would write its verification state into the current folder.
    command.arg("--verify_state_save=0").arg(format!("--uri={}", server.uri(export))).args(options);
    command.current_dir(&server.dir);
    command
}

/// Runs fio, which must find no error, and returns its JSON.
pub fn fio_ok(server: &Server, options: &[&str]) -> Value {
    fio_ok_at(server, "", options)
}

/// Runs fio on an export, as [`fio_ok`].
pub fn fio_ok_at(server: &Server, export: &str, options: &[&str]) -> Value {
    let output = succeed(&mut fio_at(server, export, options));
    let text = String::from_utf8(output.stdout).unwrap();
    // fio's engine reports its connection before the JSON begins.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {text}"));
    for job in value["jobs"].as_array().unwrap() {
        assert_eq!(job["error"], 0, "{value:#}");
    }
    value
}

/// Returns a number of a statistics file.
pub fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).unwrap_or_else(|| panic!("{path} in {value:#}"));
    found.as_u64().unwrap_or_else(|| panic!("{path} is {found}"))
}
