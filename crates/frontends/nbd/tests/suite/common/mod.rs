//! Shared by the tests: a device in memory, a server on a thread, a raw client, and programs.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

mod memory;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, path::PathBuf};

use block::Limits;
use event::{IdlePolicy, RealClock, Waker};
pub use memory::{Cues, MemoryDevice, limits};
use nbd::{Endpoint, NbdConfig, NbdServer, NbdStats, NbdStatsReader};
use testkit::PollBudget;
pub use testkit::nbd_client::*;
use time::{Component, Nanos};

/// A component without work.
pub struct NullComponent;

impl Component for NullComponent {
    fn poll(&mut self, _: Nanos) -> bool {
        false
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

/// A server on its own thread, with a Unix socket in a temporary directory.
pub struct Served {
    pub path: PathBuf,
    pub cues: Arc<Mutex<Cues>>,
    stats: NbdStatsReader,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<io::Result<()>>>,
    dir: tempfile::TempDir,
}

impl Served {
    pub fn new(limits: Limits, config: NbdConfig) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        let device = MemoryDevice::new(limits);
        let cues = device.cues();
        let endpoints = [Endpoint::Unix(path.clone())];
        let mut server = NbdServer::new(device, &endpoints, config).unwrap();
        let (stats, waker) = (server.stats_reader(), server.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            server.run(RealClock::start(), IdlePolicy::default(), &mut NullComponent, &told)
        });
        Served { path, cues, stats, stop, waker, thread: Some(thread), dir }
    }

    /// Serves 16 MiB of 512-byte sectors.
    pub fn small() -> Served {
        Served::new(limits(512, 16 << 20), NbdConfig::default())
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path.display())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn stats(&self) -> NbdStats {
        self.stats.snapshot()
    }

    pub fn cue(&self, change: impl FnOnce(&mut Cues)) {
        change(&mut self.cues.lock().unwrap());
    }

    /// Waits until the counters satisfy a condition.
    pub fn until(&self, what: &str, ok: impl Fn(&NbdStats) -> bool) {
        PollBudget::every(Duration::from_millis(2), Duration::from_secs(20))
            .poll_until(|| ok(&self.stats()), || format!("never: {what}; {:?}", self.stats()));
    }

    /// Checks that the server still serves, that all memory is free, and that it stops cleanly.
    pub fn ends_well(mut self) -> NbdStats {
        let mut client = NbdClient::transmission(&self.path);
        let pattern: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
        client.write(0, &pattern).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), pattern, "others are served");
        client.flush().unwrap();
        client.disconnect();
        self.until("everyone is gone", |s| s.connections_open == 0 && s.memory_bytes == 0);
        self.end()
    }

    fn end(&mut self) -> NbdStats {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
            assert!(!self.path.exists(), "the socket is removed");
        }
        self.stats()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Returns a program of a Debian package, or panics with the package's name.
pub fn program(name: &str, package: &str) -> Command {
    if Command::new(name).arg("--version").output().is_err() {
        panic!("`{name}` is not installed: apt-get install {package}");
    }
    let mut command = Command::new("timeout");
    command.arg("120").arg(name);
    command
}

/// Returns the output of a program that must succeed.
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
