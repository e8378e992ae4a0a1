//! A server that shares a drive at a socket. It is the test binary in another process: the binary
//! has a test that only calls [`serve_if_asked`], and passes its path to [`Server::start`].

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::PollBudget;

const SCENARIO: &str = "SLUICE_SERVES";
const SOCKET: &str = "SLUICE_SERVES_AT";

pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Serves a scenario at a socket in `folder`; returns when clients can open `partition` there.
    pub(crate) fn start(test: &str, folder: &Path, scenario: &Path, partition: &str) -> Server {
        let socket = folder.join("s");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
        let child = child.env(SCENARIO, scenario).env(SOCKET, &socket).spawn().unwrap();
        let mut server = Server { child, socket };
        PollBudget::every(Duration::from_millis(20), Duration::from_secs(60)).poll_until(
            || {
                assert_eq!(server.child.try_wait().unwrap(), None, "the server has exited");
                user_io::IoDevice::connect(&server.socket, Some(partition)).is_ok()
            },
            || "not ready".into(),
        );
        server
    }

    /// Returns the name of the device for `sluice_open`.
    pub(crate) fn device(&self, partition: &str) -> String {
        format!("sluice://{}#{partition}", self.socket.display())
    }

    /// Sends a signal, by name, to the server.
    pub(crate) fn signal(&self, signal: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the server process: serves until it is killed. In any other process: returns at once.
pub(crate) fn serve_if_asked() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let path = std::env::var(SOCKET).unwrap().into();
    let options = cli::serve::ServeOptions {
        nbd: Vec::new(),
        allow_remote: false,
        socket: Some(cli::serve::SocketOptions { path, is_shared: true, mode: 0o600, acl: None }),
        threads: None,
        stats_interval: None,
    };
    let scenario = scenario::Scenario::load(Path::new(&scenario)).unwrap();
    cli::serve::serve(&scenario, &options, &mut |_| ()).unwrap();
}
